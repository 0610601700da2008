"""Ranks clients by how far their updates are from the others'; with a reference, tests them.

Let ``z_c`` be client c's mean update minus the mean over all clients
(:mod:`seepage.layers.federated.client_means`), and ``m`` the entrywise median over the clients. The
distance in a layer is the root mean square over the entries j of ::

    |z_cj − m_j| / mean over the others c′ of |z_c′j − m_j|

so that an outlier does not inflate its own scale. The logarithm of the distance is standardised by
the mean and the spread of the nearest three quarters of the clients. Outliers do not affect this
mean and spread if they are at most a quarter of the clients. A client's score is the largest
standardised value over the layers.

*Without a reference*, it is unknown how far the furthest of K similar clients would be from the
others. More rounds do not help, because a client's data stay the same. The share of clients that
are at least as far from the others is a P-value only for a client chosen in advance; the share is
never below ``1/K``, and no client is named.

*With a reference*, a client is compared with N clients simulated from the common population, with
as many records and the same training from the same models. Client and reference are exchangeable if
the client's data are a draw from that population and the models sent do not depend on them. Then
the rank of the client's score among all ``N + 1`` gives an exact P-value (conformal; Vovk,
Gammerman and Shafer 2005), which is multiplied by K (Bonferroni). In a client's first round, this
holds. Later models have been trained on the client's data, but not on those of simulated clients,
so P-values over several rounds are approximate. ``benchmarks/outlying_clients.py`` simulates both
cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.layers.federated.client_means import ClientRounds
from seepage.layers.federated.gradients import METRICS, LayerGradients, joined
from seepage.layers.measures.independence_test import LEVEL
from seepage.tables.names import counted
from seepage.tables.result_table import PlottedNumbers, RankedResult
from seepage.tables.source import build_frame

_STILL = 1e-12  # a spread that is rounding

Reference = LayerGradients | Mapping[Any, LayerGradients]  # one for all clients, or one for each


@dataclass(frozen=True, eq=False, repr=False)
class StandingOut(RankedResult):
    """The distance of each client's updates from those of the other clients.

    Parameters
    ----------
    clients
        The clients' keys or nodes.
    updates
        The number of updates of each client.
    layer
        The layer in which each client is furthest from the others.
    times
        The client's distance in that layer, as a multiple of the median client's distance.
    p_value
        Without a reference, the share of clients that are at least as far from the others; this is
        a P-value only for a client chosen in advance. With a reference, the P-value of the test,
        adjusted for the number of clients.
    reference
        The number of simulated clients that each client was compared with; 0 without a reference.
    """

    clients: tuple[object, ...]
    updates: np.ndarray
    layer: tuple[str, ...]
    times: np.ndarray
    p_value: np.ndarray
    reference: int = 0

    def named(self) -> list[object]:
        """Return the clients whose P-value is at most 0.05, the furthest first.

        If every client's data are a draw from the population of the reference, the probability that
        any client is named is at most 5 % in the clients' first round. Over several rounds, whose
        models were trained on their data, this level is approximate. Without a reference, no client
        is named.
        """
        if not self.reference:
            return []
        return [self.clients[k] for k in self.order() if self.p_value[k] <= LEVEL]

    def order(self) -> np.ndarray:
        """Return the positions of the clients, the furthest first."""
        return np.lexsort((-self.times, self.p_value))

    value_column = "times_the_median"

    def __repr__(self) -> str:
        furthest = int(self.order()[0])
        outlying = counted(len(self.named()), "stands out", "stand out")
        tested = f": {outlying}" if self.reference else ""
        return (
            f"<{len(self.clients)} clients{tested}, furthest {self.clients[furthest]} in "
            f"{self.layer[furthest]}, {self.times[furthest]:.3g} times the median>"
        )

    def labels(self) -> np.ndarray:
        """Return the clients' keys or nodes."""
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
            self.reference,
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


def standing_out(gradients: LayerGradients, *, reference: Reference | None = None) -> StandingOut:
    """Rank clients by how far their updates are from those of the other clients.

    With a reference, the distances are also tested. A client may be an outlier for any reason: its
    records, their number, its hardware, or malice.

    Parameters
    ----------
    gradients
        The recording, with nodes.
    reference
        A recording of clients simulated from auxiliary data. Each simulated client has as many
        records as the real clients and trains in the same way, from the models sent in the same
        rounds. A mapping ``{client: recording}`` gives each client its own reference. To name one
        of K clients as an outlier at the 5 % level, at least ``20·K − 1`` simulated clients are
        needed. For an exact test, pass only the rows of each client's first round.

    Examples
    --------
    >>> import numpy as np
    >>> from dataclasses import replace
    >>> import seepage.layers as layers
    >>> draw = np.random.default_rng(0)
    >>> def recording(clients, moved):
    ...     client = np.tile(np.arange(clients), 5)
    ...     updates = draw.standard_normal((5 * clients, 6)) + 9 * (client == moved)[:, None]
    ...     rounds = np.repeat(np.arange(5), clients)
    ...     return replace(layers.LayerGradients.of({"fc1": updates}), nodes=client, rounds=rounds)
    >>> seen = recording(10, moved=3)
    >>> layers.standing_out(seen)
    <10 clients, furthest 3 in fc1, 89.6 times the median>
    >>> layers.standing_out(seen, reference=recording(250, moved=None)).named()
    [3]
    """
    who = ClientRounds.of(gradients)
    count = len(who.clients)
    scores, logs = _scores(gradients, who)
    most = scores.argmax(axis=0), np.arange(count)
    times = np.exp(logs - np.median(logs, axis=1, keepdims=True))[most]
    simulated = 0
    if reference is None:
        p_values = (times[None] >= times[:, None] - _STILL).mean(axis=1)
    else:
        sizes, p_values = np.zeros(count, dtype=int), np.ones(count)
        for k, client in enumerate(who.clients):
            others = _reference_of(reference, client)
            sizes[k], p_values[k] = _rank(gradients.rows(who.client == k), others, str(client))
        simulated, p_values = int(sizes.min()), np.minimum(1.0, count * p_values)
    return StandingOut(
        who.clients,
        np.bincount(who.client),
        tuple(gradients.layers[k] for k in most[0]),
        times,
        p_values,
        simulated,
    )


def _reference_of(reference: Reference, client: object) -> LayerGradients:
    if isinstance(reference, LayerGradients):
        return reference
    by_name = {str(key): recording for key, recording in reference.items()}
    if str(client) not in by_name:
        raise InputError(
            f"There is no reference for client {client}; simulate one for each client."
        )
    return by_name[str(client)]


def _rank(own: LayerGradients, reference: LayerGradients, client: str) -> tuple[int, float]:
    """Return the number of simulated clients, and a client's P-value before adjustment."""
    if METRICS not in reference.layers and METRICS in own.layers:
        own = own.without(METRICS)
    own.check_same_projection(reference)
    if own.rounds is not None and reference.rounds is not None:
        reference = reference.rows(np.isin(reference.rounds, own.rounds))
    names = np.unique(np.asarray(reference.nodes), return_inverse=True)[1]
    several = own.runs is not None and len(np.unique(own.runs)) > 1
    if several or len(reference) != len(own) * (int(names.max(initial=-1)) + 1):
        raise InputError(
            f"The reference needs one update of every simulated client for each update of client "
            f"{client}; simulate the rounds of one run in which the client took part."
        )
    together = joined(
        [
            replace(own, nodes=np.full(len(own), len(reference)), clients=None),
            replace(reference, nodes=names, clients=None),
        ]
    )
    together = replace(together, metrics={}, runs=np.ones(len(together)))
    who = ClientRounds.of(together)
    highest = _scores(together, who)[0].max(axis=0)
    return len(highest) - 1, float(np.mean(highest >= highest[-1] - _STILL))


def _scores(gradients: LayerGradients, who: ClientRounds) -> tuple[np.ndarray, np.ndarray]:
    """Return each client's score and the logarithm of its distance, ``(layers, clients)``."""
    logs = np.zeros((len(gradients.layers), len(who.clients)))
    for k, layer in enumerate(gradients.layers):
        *_, (means, _) = who.means(gradients[layer])
        logs[k] = _log_distances(means)
    return _standing(logs), logs


def _log_distances(means: np.ndarray) -> np.ndarray:
    apart = np.abs(means - np.median(means, axis=0))
    others = (apart.sum(axis=0) - apart) / (len(means) - 1)
    moving = (others > _STILL).all(axis=0)  # an entry that only one client has moved has no scale
    if not moving.any():
        return np.zeros(len(means))
    squares = np.mean((apart[:, moving] / others[:, moving]) ** 2, axis=1)
    return np.asarray(np.log(np.maximum(squares, _STILL)) / 2)


def _standing(logs: np.ndarray) -> np.ndarray:
    """Standardise each row by the mean and standard deviation of its lowest three quarters."""
    kept = math.ceil(0.75 * logs.shape[1])
    nearer = np.sort(logs, axis=1)[:, :kept]
    spread = nearer.std(axis=1, keepdims=True)
    above = logs - nearer.mean(axis=1, keepdims=True)
    return np.asarray(np.where(spread > _STILL, above / np.maximum(spread, _STILL), 0.0))
