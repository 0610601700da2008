"""Tests attackers who score clients without knowing their property; adjusts for all attackers.

An attacker with auxiliary data scores each client without knowing the property of any client
(:class:`seepage.attacks.ShadowClients`). Under the null hypothesis (updates independent of the
property) the clients' labels are exchangeable and the scores do not change. A permutation test of
the area under the ROC curve (AUC) is therefore exact, and needs no training.

*Layers.* The AUC of every layer is standardised by its mean and spread over the permutations;
P-values are adjusted for the layers by the step-down method of Westfall and Young (1993).

*Attackers.* For permutation π, let ``r_a(π)`` be the P-value of attacker a's best layer. A P-value
p of any attacker becomes the share of permutations with ``min_a r_a(π) ≤ p``. If nothing leaks, the
probability that any layer of any attacker is named is at most the level, and all attackers have
equal weight, however many layers and rounds each of them tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import rankdata

from seepage.errors import InputError
from seepage.layers.measures.independence_test import TIE


@dataclass(frozen=True, eq=False)
class ClientScores:
    """An attacker's scores for every client, computed without knowing any client's property.

    Parameters
    ----------
    clients
        The clients' keys or nodes, as strings.
    layers
        The layers that the attacker used, and ``"all layers"``.
    values
        The scores, ``(layers, clients, classes)``: higher if the class is more likely.
    classes
        The values of the property, as strings.
    shadows
        The number of shadow clients that the attacker learnt from.
    notes
        Caveats, as sentences.
    """

    clients: tuple[str, ...]
    layers: tuple[str, ...]
    values: np.ndarray
    classes: tuple[str, ...]
    shadows: int = 0
    notes: tuple[str, ...] = field(default=())

    def of(self, clients: Iterable[object], classes: Iterable[object]) -> np.ndarray:
        """Return the scores of these clients and values of the property, in this order."""
        for wanted, there, what in (
            (clients, self.clients, "client"),
            (classes, self.classes, "value"),
        ):
            missing = [str(each) for each in wanted if str(each) not in there]
            if missing:
                raise InputError(
                    f"The attacker has no score for the {what} {missing[0]!r}; give auxiliary data "
                    "with every value of the property, and score the same recording."
                )
        rows = [self.clients.index(str(client)) for client in clients]
        columns = [self.classes.index(str(value)) for value in classes]
        return np.asarray(self.values[:, rows][:, :, columns])


@dataclass(frozen=True, eq=False)
class ScoreTest:
    """The test of an attacker's scores against the clients' property.

    Parameters
    ----------
    layers
        The layers, and ``"all layers"``.
    auc
        The area under the ROC curve of each layer; for more than two classes, the mean of
        one-vs-rest areas.
    p_values
        The P-values, adjusted for multiple tests over the layers and all attackers.
    chance
        The 95 % quantile, over the permutations, of the largest AUC of any layer.
    shadows
        The number of shadow clients that the attacker learnt from.
    """

    layers: tuple[str, ...]
    auc: np.ndarray
    p_values: np.ndarray
    chance: float
    shadows: int = 0

    @property
    def best(self) -> int:
        """The position of the layer with the smallest P-value; the largest AUC breaks ties."""
        return int(np.lexsort((-self.auc, self.p_values))[0])


def areas(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the AUC of scores ``(clients, classes)`` for each labelling, ``(m,)``.

    ``labels``, ``(m, clients)``, are positions in the classes. With two classes, the AUC is that of
    the second class against the first; with more, the one-vs-rest areas are averaged.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.layers.measures.client_scores import areas
    >>> scores = np.array([0.1, 0.4, 0.35, 0.8])
    >>> areas(np.stack([-scores, scores], axis=1), np.array([[0, 0, 1, 1], [1, 0, 0, 1]]))
    array([0.75, 0.5 ])
    """
    classes = scores.shape[1]
    found = []
    for k in [1] if classes == 2 else range(classes):
        ranks = rankdata(scores[:, 1] - scores[:, 0] if classes == 2 else scores[:, k])
        mine = labels == k
        count = mine.sum(axis=1)
        pairs = count * (labels.shape[1] - count)
        found.append((mine @ ranks - count * (count + 1) / 2) / np.maximum(pairs, 1))
    return np.asarray(np.mean(found, axis=0))


def standardised(statistics: np.ndarray) -> np.ndarray:
    """Return ``(tests, labellings)`` in standard deviations above each test's mean."""
    spread = statistics.std(axis=1, keepdims=True)
    above = statistics - statistics.mean(axis=1, keepdims=True)
    return np.where(spread > TIE, above / np.maximum(spread, TIE), 0.0)


def stepped_down(standings: np.ndarray) -> np.ndarray:
    """Return each test's adjusted P-value; column 0 of ``standings`` has the actual labels."""
    order = np.argsort(-standings[:, 0], kind="stable")
    highest = np.maximum.accumulate(standings[order][::-1], axis=0)[::-1]
    as_high = highest >= standings[order][:, :1] - TIE
    p_values = np.empty(len(standings))
    p_values[order] = np.maximum.accumulate(as_high.mean(axis=1))
    return p_values


def over_attackers(standings: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return P-values adjusted for each attacker's tests and for the number of attackers.

    ``standings`` contains one array per attacker, ``(tests, 1 + permutations)``, over the same
    labellings; the actual labelling comes first.
    """
    own = [stepped_down(each) for each in standings]
    if len(standings) == 1:
        return own
    # Rounding makes equal statistics differ, and must not split ties.
    highest = [np.round(each.max(axis=0) / TIE) * TIE for each in standings]
    ranks = [rankdata(-each, method="max") / len(each) for each in highest]
    least = np.min(ranks, axis=0)
    return [_share_at_most(least, p_values) for p_values in own]


def _share_at_most(least: np.ndarray, p_values: np.ndarray) -> np.ndarray:
    return np.asarray(
        np.searchsorted(np.sort(least), p_values + TIE, side="right") / len(least)
    ).reshape(p_values.shape)


def labellings(labels: np.ndarray, permutations: int, seed: int) -> np.ndarray:
    """Return the actual labels, then permutations of them, ``(1 + permutations, clients)``."""
    draw: Any = np.random.default_rng((seed, 4))
    drawn = draw.permuted(np.tile(labels, (permutations, 1)), axis=1)
    return np.vstack([labels, drawn])
