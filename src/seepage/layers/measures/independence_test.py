"""An exact test of independence between a layer's gradients and a property.

Under independence, labels are exchangeable between single gradients, between whole groups of
gradients (clients) that have one label each, and within a group with several labels.

*In turn.* The folds are processed in order. The predictor for fold k is trained on the earlier
folds. The predictor's log-likelihood ``T`` of the fold's labels is ranked among the log-likelihoods
of labels permuted within the fold. Given the earlier folds, the P-value ``p_k`` from this rank is
uniform, with ties broken at random. Therefore ::

    Z = Σ_k w_k Φ⁻¹(1 − p_k) / √(Σ_k w_k²),   w_k² = (gradients before the fold) · (in the fold)

is standard normal for any family of predictors, without refits. (If *all* folds were used for both
training and testing, as in cross-fitting, the folds' errors would be correlated, and the test would
reject too often.) The weights are optimal for a predictor whose quality grows with the square root
of its training set size. Every pair of gradients from different folds is used once; a single split
into halves would use half of all pairs.

*Over all groups.* If a fold contains too few groups for permutations, labels are permuted over all
folds and a predictor is refitted to each permutation. A closed form makes these refits cheap. The
predictor is a ridge regression on the groups' mean embeddings under a Gaussian kernel. If ``A`` is
the embeddings' kernel matrix plus the ridge and ``y`` the labels, the residual of group g when it
is left out is ``(A⁻¹y)_g / (A⁻¹)_gg``. The sum of squared residuals is ranked, with ties counted
against significance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, ndtr, ndtri

from seepage.support.chunks import CHUNK

LEVEL = 0.05  # the P-value up to which a layer, a round or a client is named
TIE = 1e-9  # relative to their size, statistics this near are equal up to rounding


@dataclass(frozen=True)
class Exchange:
    """The units (gradients or groups) whose labels are exchangeable under independence."""

    unit: (
        np.ndarray
    )  # (n,): the unit that each gradient belongs to and that has one label: itself or its group
    label: np.ndarray  # (U,): the label of every unit
    cell: np.ndarray  # (U,): the units among which it may be exchanged
    fold: np.ndarray  # (U,)
    grouped: bool  # whether every unit is a group

    @staticmethod
    def of(labels: np.ndarray, fold: np.ndarray, groups: np.ndarray | None) -> Exchange:
        """Return the exchangeable units of n gradients with these labels, folds and groups.

        Examples
        --------
        >>> import numpy as np
        >>> from seepage.layers.measures.independence_test import Exchange
        >>> clients = np.repeat(np.arange(4), 3)
        >>> found = Exchange.of(clients % 2, clients // 2, clients)
        >>> found.arrangements(), found.over_all()
        (6.0, True)
        """
        if groups is None:
            return Exchange(np.arange(len(labels)), labels, fold, fold, False)
        _, first = np.unique(groups, return_index=True)
        alike = np.bincount(groups, labels == labels[first][groups])
        whole = (alike == np.bincount(groups))[groups]
        # A group with several labels is a cell of its own, within which its gradients exchange
        # them.
        cell = np.where(whole, fold, fold.max() + 1 + groups)
        name = np.where(whole, len(labels) + groups, np.arange(len(labels)))
        _, first, unit = np.unique(name, return_index=True, return_inverse=True)
        return Exchange(unit, labels[first], cell[first], fold[first], bool(whole.all()))

    def over_all(self) -> bool:
        """Return whether every unit is a group and a fold has too few of them to permute."""
        folds = range(1, int(self.fold.max()) + 1)
        return self.grouped and min(self._ways(self.fold == k, self.cell) for k in folds) < 20

    def arrangements(self) -> float:
        """Return the number of arrangements of the tested labels; infinity if it overflows."""
        if self.over_all():
            return self._ways(np.ones(len(self.fold), dtype=bool), np.zeros_like(self.cell))
        return self._ways(self.fold > 0, self.cell)

    def _ways(self, among: np.ndarray, cell: np.ndarray) -> float:
        """Return the number of ways to permute labels within cells: ``Π m! / Π_k m_k!``."""
        _, place = np.unique(cell[among], return_inverse=True)
        counts = np.zeros((place.max() + 1, self.label.max() + 1))
        np.add.at(counts, (place, self.label[among]), 1)
        logs = np.sum(gammaln(counts.sum(axis=1) + 1) - gammaln(counts + 1).sum(axis=1))
        return float(np.round(np.exp(logs))) if logs < 700 else math.inf

    def drawn(self, permutations: int, draw: np.random.Generator) -> list[np.ndarray]:
        """Return ``permutations`` arrangements of the units' labels for each fold but the first."""
        arrangements = []
        for k in range(1, int(self.fold.max()) + 1):
            inside = self.fold == k
            places = _shuffled_within(self.cell[inside], permutations, draw)
            arrangements.append(self.label[inside].astype(np.int16)[places])
        return arrangements


def in_turn(
    exchange: Exchange,
    drawn: Sequence[np.ndarray],
    predictions: Sequence[np.ndarray | None],
    draw: np.random.Generator,
) -> float:
    """Return the P-value of a layer; under independence it is uniform, apart from a minimum.

    The minimum is one over the number of possible arrangements, or one over the number of
    permutations plus one, whichever is larger. For every fold except the first, ``drawn`` contains
    arrangements of its labels, and ``predictions`` contains probabilities, ``(m, K)``, from a
    predictor trained on the earlier folds, or ``None`` if the predictor could not be trained. A
    fold in which no permutation changes the log-likelihood, because the predictor is constant, is
    left out. ``draw`` breaks ties.
    """
    fold = exchange.fold[exchange.unit]
    before, total, weight = int(np.sum(fold == 0)), 0.0, 0.0
    for k, (labels, probabilities) in enumerate(zip(drawn, predictions, strict=True), start=1):
        inside = np.flatnonzero(exchange.fold == k)
        size = int(np.sum(fold == k))
        if probabilities is not None:
            place = np.searchsorted(inside, exchange.unit[fold == k])
            scores = np.zeros((len(inside), probabilities.shape[1]))
            np.add.at(scores, place, np.log(np.maximum(probabilities, 0.5 / len(fold))))
            above, ties = _compared(scores, exchange.label[inside], labels)
            if ties < len(labels):
                p = (above + draw.random() * (ties + 1)) / (len(labels) + 1)
                total -= math.sqrt(before * size) * float(ndtri(max(p, 1e-300)))
                weight += before * size
        before += size
    if weight == 0:
        return 1.0
    least = max(1 / (len(drawn[0]) + 1), 1 / exchange.arrangements())
    return max(float(ndtr(-total / math.sqrt(weight))), least)


def _compared(scores: np.ndarray, own: np.ndarray, drawn: np.ndarray) -> tuple[int, int]:
    """Return how many arrangements score above the actual labels, and how many score equally."""
    units, above, ties = np.arange(len(own)), 0, 0
    level = TIE * (1 + float(np.abs(scores).sum()))
    reached = scores[units, own].sum()
    for some in np.array_split(drawn, math.ceil(drawn.size / 2 / CHUNK)):
        gap = scores[units, some].sum(axis=1) - reached
        above += int(np.sum(gap > level))
        ties += int(np.sum(np.abs(gap) <= level))
    return above, ties


def over_all_groups(
    exchange: Exchange, block: np.ndarray, permutations: int, draw: np.random.Generator
) -> float:
    """Return the P-value of a layer with few groups, whose labels are permuted over all folds.

    The P-value is the share of arrangements, including the actual one, whose errors are no larger
    than those of the actual labels. Under independence, the P-value is below α with probability at
    most α. ``block`` contains the layer's gradients, ``(n, width)``.
    """
    smoother = left_out_smoother(block, exchange.unit)
    if smoother is None:
        return 1.0
    places = _shuffled_within(np.zeros(len(smoother), dtype=int), permutations, draw)
    labels = np.vstack([exchange.label, exchange.label[places]])
    errors = left_out_errors(smoother, labels)
    return max(float(np.mean(errors <= errors[0] * (1 + TIE))), 1 / exchange.arrangements())


def left_out_smoother(block: np.ndarray, group: np.ndarray) -> np.ndarray | None:
    """Return the matrix that maps the groups' labels to their leave-one-group-out errors.

    The result is ``None`` if all groups have the same gradients.

    Parameters
    ----------
    block
        Gradients, ``(n, width)``.
    group
        The group of every gradient, ``(n,)``, 0 to G − 1.
    """
    gram = _group_embeddings(block, group)
    ridge = float(np.trace(gram)) / len(gram)
    if ridge <= TIE:
        return None
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
    return np.asarray(inverse / np.diag(inverse)[:, None])


def left_out_errors(smoother: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the sum of squared errors of each row of ``labels``, an arrangement of G labels."""
    errors = np.zeros(len(labels))
    for k in range(int(labels.max()) + 1):
        wanted = labels == k
        wanted = wanted - wanted.mean(axis=1, keepdims=True)
        errors += np.sum((wanted @ smoother.T) ** 2, axis=1)
    return errors


def _group_embeddings(block: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the centred Gram matrix of the groups' mean embeddings under a Gaussian kernel.

    Columns are first scaled to equal spread; the kernel width is the median distance.
    """
    from scipy.spatial.distance import pdist, squareform
    from sklearn.preprocessing import KernelCenterer, StandardScaler

    most = max(1, 2000 // (int(group.max()) + 1))  # of a group; the kernel takes all pairs
    ordered = np.argsort(group, kind="stable")
    rank = np.empty(len(group), dtype=int)
    starts = np.concatenate([[0], np.cumsum(np.bincount(group))])
    rank[ordered] = np.arange(len(group)) - starts[group[ordered]]
    kept = rank < most
    rows = StandardScaler().fit_transform(np.asarray(block[kept], dtype=float))
    distances = pdist(rows, "sqeuclidean")
    middle = float(np.median(distances)) or float(distances.max()) or 1.0
    shares = (group[kept] == np.arange(group.max() + 1)[:, None]).astype(float)
    shares /= shares.sum(axis=1, keepdims=True)
    gram = shares @ np.exp(-squareform(distances, checks=False) / middle) @ shares.T
    return np.asarray(KernelCenterer().fit_transform(gram))


def _shuffled_within(cells: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """Return ``count`` random permutations in which every position remains within its cell."""
    home = np.argsort(cells, kind="stable")
    _, cell = np.unique(cells, return_inverse=True)
    shuffled = np.empty((count, len(cells)), dtype=np.intp)
    # Sorting random numbers within each cell shuffles it.
    shuffled[:, home] = np.argsort(cell + draw.random((count, len(cells))), axis=1)
    return shuffled
