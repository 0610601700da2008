"""Finds outlying clients by the distance of their updates from those of other clients, by layer.

Let ``z_c`` be client c's mean update minus the mean over all clients
(:mod:`seepage.layers.federated.client_means`), and ``m`` the entrywise median over the clients. The
distance is the root mean square over the entries j of ::

    |z_cj − m_j| / mean over the others c′ of |z_c′j − m_j|

which prevents an outlier from inflating its own scale. The logarithms of these distances are
compared with the mean and spread over the nearest three quarters of the clients, which are not
affected if up to a quarter of the clients are outliers. The P-value is the probability that the
maximum of one normal variable per client reaches this distance, multiplied by the number of layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.layers.federated.client_means import ClientRounds
from seepage.layers.federated.gradients import LayerGradients
from seepage.layers.measures.independence_test import LEVEL
from seepage.support.chunks import CHUNK
from seepage.tables.result_table import PlottedNumbers, RankedResult
from seepage.tables.source import build_frame

_STILL = 1e-12  # a spread that is rounding


@dataclass(frozen=True, eq=False, repr=False)
class StandingOut(RankedResult):
    """The distance of each client's updates from those of the other clients.

    Parameters
    ----------
    clients
        Their nodes.
    updates
        The number of updates of each client.
    layer
        The layer in which each client is furthest from the other clients.
    times
        The client's distance in that layer, as a multiple of the median client's distance.
    p_value
        The P-value of the client's largest distance in any layer, adjusted for the number of
        clients and layers; NaN for fewer than four clients.
    """

    clients: tuple[object, ...]
    updates: np.ndarray
    layer: tuple[str, ...]
    times: np.ndarray
    p_value: np.ndarray

    def named(self) -> list[object]:
        """Return the clients whose approximate P-value is at most 0.05, the furthest first.

        If all clients have the same distribution and the logarithms of distances are normal, at
        most one recording in twenty names a client. In small networks the tails are heavier and
        false positives are far more frequent. Investigate a named client, but do not treat the
        result as an exact test.
        """
        order = np.lexsort((-self.times, self.p_value))
        return [self.clients[k] for k in order if self.p_value[k] <= LEVEL]

    value_column = "times_the_median"

    def __repr__(self) -> str:
        furthest, layer = int(np.argmax(self.times)), self.layer[int(np.argmax(self.times))]
        return (
            f"<{len(self.clients)} clients: {len(self.named())} stand out, furthest "
            f"{self.clients[furthest]} in {layer}, {self.times[furthest]:.3g} times the median>"
        )

    def labels(self) -> np.ndarray:
        """Return the node of each client."""
        return np.array(self.clients, dtype=object)

    def select(self, positions: Any) -> StandingOut:
        """Return the clients at the given positions, in that order."""
        order = [int(k) for k in positions]
        return StandingOut(
            tuple(self.clients[k] for k in order),
            self.updates[order],
            tuple(self.layer[k] for k in order),
            self.times[order],
            self.p_value[order],
        )

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: every client's distance, the furthest first."""
        worst, name = self.sort(), "distance, in multiples of the median client's"
        return PlottedNumbers(worst.times, worst.labels(), name, "clients", mark=(1.0, "median"))

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per client."""
        columns = {
            "client": [str(client) for client in self.clients],
            "updates": self.updates,
            "layer": list(self.layer),
            "times_the_median": self.times,
            "p_value": self.p_value,
        }
        return build_frame(columns, library or "pyarrow")


def standing_out(gradients: LayerGradients) -> StandingOut:
    """Return the distance of each client's updates from other clients' updates, with P-values.

    The P-value assumes that the logarithms of the distances are normally distributed, so the test
    is not exact. A client may be an outlier for any reason: its records, their number, its
    hardware, or malice.

    Parameters
    ----------
    gradients
        The recording, with nodes.

    Examples
    --------
    >>> import numpy as np
    >>> from dataclasses import replace
    >>> import seepage.layers as layers
    >>> draw = np.random.default_rng(0)
    >>> client = np.tile(np.arange(10), 5)
    >>> moved = draw.standard_normal((50, 6)) + 9 * (client == 3)[:, None]
    >>> seen = layers.LayerGradients.of({"fc1": moved, "fc2": draw.standard_normal((50, 6))})
    >>> layers.standing_out(replace(seen, nodes=client)).named()
    [3]
    """
    who = ClientRounds.of(gradients)
    count = len(who.clients)
    logs = np.zeros((len(gradients.layers), count))
    for k, layer in enumerate(gradients.layers):
        *_, (means, _) = who.means(gradients[layer])
        logs[k] = _log_distances(means)
    p_values = np.full((len(logs), count), np.nan)
    if count > 3:
        # As many draws as memory holds, but no more than a P-value of three digits needs.
        draws = min(20_000, max(1000, 8 * CHUNK // count))
        drawn = np.random.default_rng(0).standard_normal((draws, count))
        furthest = np.sort(_standing(drawn).max(axis=1))
        beyond = len(furthest) - np.searchsorted(furthest, _standing(logs))
        p_values = np.minimum(1.0, (1 + beyond) / (1 + len(furthest)) * len(logs))
    rank = p_values if count > 3 else -logs
    most = np.lexsort((-_standing(logs), rank), axis=0)[0]
    places = np.arange(count)
    ratios = np.exp(logs - np.median(logs, axis=1, keepdims=True))
    return StandingOut(
        who.clients,
        np.bincount(who.client),
        tuple(gradients.layers[k] for k in most),
        ratios[most, places],
        p_values[most, places],
    )


def _log_distances(means: np.ndarray) -> np.ndarray:
    apart = np.abs(means - np.median(means, axis=0))
    others = (apart.sum(axis=0) - apart) / (len(means) - 1)
    moving = (others > _STILL).all(axis=0)  # an entry that only one client has moved has no scale
    if not moving.any():
        return np.zeros(len(means))
    squares = np.mean((apart[:, moving] / others[:, moving]) ** 2, axis=1)
    return np.asarray(np.log(np.maximum(squares, _STILL)) / 2)


def _standing(logs: np.ndarray) -> np.ndarray:
    """Return how far each value is above the mean of the nearest values, in standard deviations."""
    kept = math.ceil(0.75 * logs.shape[1])
    nearer = np.sort(logs, axis=1)[:, :kept]
    spread = nearer.std(axis=1, keepdims=True)
    above = logs - nearer.mean(axis=1, keepdims=True)
    return np.asarray(np.where(spread > _STILL, above / np.maximum(spread, _STILL), 0.0))
