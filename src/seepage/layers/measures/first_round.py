"""Finds the first round after which updates reveal a property, with a test per round and layer.

After each round, every client's updates so far are averaged
(:mod:`seepage.layers.federated.client_means`). A kernel ridge regression predicts the clients'
labels from these averages, as in the test over all groups
(:mod:`seepage.layers.measures.independence_test`). The statistic is the sum of squared
leave-one-client-out errors. If updates are independent of the property, clients' labels are
exchangeable. The same permutations are used in all rounds and layers, which preserves the
dependence between tests. Errors are standardised by their mean and spread over the permutations.
P-values are adjusted for the number of rounds and layers by the step-down method of Westfall and
Young (1993). Under the null hypothesis, the probability of naming any layer after any round is at
most the significance level, however correlated the rounds are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.client_means import ClientRounds
from seepage.layers.federated.gradients import LayerGradients
from seepage.layers.measures.client_scores import (
    ClientScores,
    ScoreTest,
    areas,
    labellings,
    over_attackers,
    standardised,
)
from seepage.layers.measures.independence_test import LEVEL, TIE, left_out_errors, left_out_smoother
from seepage.layers.measures.property_batches import read_property
from seepage.support.number_check import check_count
from seepage.tables.names import counted
from seepage.tables.result_table import GREY, ResultTable, new_axes
from seepage.tables.source import build_frame


@dataclass(frozen=True, eq=False, repr=False)
class RoundByRound(ResultTable):
    """P-values by round and layer for the test of whether the updates reveal the property.

    Parameters
    ----------
    layers
        The names of the layers.
    rounds
        The rounds after which the test was made: all rounds, or a selection if there are many.
    p_values
        The P-values, ``(rounds, layers)``, adjusted for the number of rounds and layers.
    clients
        The number of clients that had sent an update by each tested round.
    """

    layers: tuple[str, ...]
    rounds: tuple[int, ...]
    p_values: np.ndarray
    clients: tuple[int, ...]

    def first(self, layer: str | None = None) -> int | None:
        """Return the first round after which a leak is detected in the layer (default: any)."""
        which = slice(None) if layer is None else [self.layers.index(layer)]
        significant = (self.p_values[:, which] <= LEVEL).any(axis=1)
        return self.rounds[int(significant.argmax())] if significant.any() else None

    index_columns = 2
    value_column = "p_value"

    def __repr__(self) -> str:
        first = self.first()
        when = "no leak detected" if first is None else f"first leak detected after round {first}"
        return (
            f"<{counted(len(self.layers), 'layer')} after {counted(len(self.rounds), 'round')}: "
            f"{when}, smallest P-value {self.p_values.min():.3g}>"
        )

    def plot(self, ax: Any = None) -> Any:
        """Plot every layer's P-value against the rounds, and return the matplotlib axes."""
        ax = new_axes(ax, figsize=(6.4, 4.0))
        for name, values in zip(self.layers, self.p_values.T, strict=True):
            ax.plot(self.rounds, values, marker=".", label=name)
        ax.axhline(LEVEL, color=GREY, ls=":", label=f"{LEVEL:g}")
        ax.set_yscale("log")
        ax.set_xlabel("round")
        ax.set_ylabel("P-value")
        ax.legend(frameon=False)
        return ax

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per round and layer."""
        columns = {
            "round": np.repeat(self.rounds, len(self.layers)),
            "layer": list(self.layers) * len(self.rounds),
            "p_value": self.p_values.ravel(),
        }
        return build_frame(columns, library or "pyarrow")


@accepts_other_names
def since_when(
    gradients: LayerGradients, property: Any, *, permutations: int = 999, seed: int = 0
) -> RoundByRound:
    """Test, after every round, whether each layer reveals a property of the clients.

    If there are more than 24 rounds, 24 evenly spaced rounds are tested, including the last.

    Parameters
    ----------
    gradients
        The recording, with nodes and rounds.
    property
        The property of every update, ``(n,)``; it must be the same for all updates of a client.
    permutations
        The number of random permutations of labels.
    seed
        The seed of the permutations.

    Examples
    --------
    >>> import numpy as np
    >>> from dataclasses import replace
    >>> import seepage.layers as layers
    >>> draw = np.random.default_rng(0)
    >>> client, number = np.tile(np.arange(12), 4), np.repeat([1, 2, 3, 4], 12)
    >>> late = (client % 2) * (number > 2)  # the third round is the first to tell
    >>> seen = layers.LayerGradients.of(
    ...     {"fc1": draw.standard_normal((48, 5)) + 9 * late[:, None], "fc2": np.ones((48, 2))}
    ... )
    >>> seen = replace(seen, nodes=client, rounds=number)
    >>> found = layers.since_when(seen, client % 2)
    >>> found.first("fc1"), found.first("fc2")
    (3, None)
    """
    return compare_attackers(gradients, property, None, permutations=permutations, seed=seed)[0]


def compare_attackers(
    gradients: LayerGradients,
    property: Any,
    scores: ClientScores | None,
    *,
    permutations: int,
    seed: int,
) -> tuple[RoundByRound, ScoreTest | None]:
    """Test an attacker who knows other clients' property, and an attacker with scores, jointly.

    The tests share their permutations, and both results are adjusted for both attackers
    (:mod:`seepage.layers.measures.client_scores`).
    """
    check_count(permutations, "permutations")
    who = ClientRounds.of(gradients)
    levels, labels = read_property(property, len(gradients), "updates")
    own = np.zeros(len(who.clients), dtype=int)
    own[who.client] = labels
    if (own[who.client] != labels).any():
        raise InputError(
            "A client has several values of the property, but the first round that reveals the "
            "property is defined only for clients with a single value. Give each client one value."
        )
    tried = labellings(own, permutations, seed)
    last = len(who.rounds) - 1
    stages = sorted({round(k) for k in np.linspace(0, last, min(last + 1, 24))})
    standings = np.zeros((len(stages), len(gradients.layers), len(tried)))
    clients = [0] * len(stages)
    for place, layer in enumerate(gradients.layers):
        for k, (means, known) in enumerate(who.means(gradients[layer])):
            if k in stages:
                clients[stages.index(k)] = int(known.sum())
                standings[stages.index(k), place] = _standing(means[known], tried[:, known])
    attackers = [standings.reshape(-1, len(tried))]
    if scores is not None:
        found = np.stack([areas(each, tried) for each in scores.of(who.clients, levels)])
        attackers.append(standardised(found))
    p_values, *others = over_attackers(attackers)
    rounds = tuple(who.rounds[k] for k in stages)
    by_round = RoundByRound(
        gradients.layers, rounds, p_values.reshape(standings.shape[:2]), tuple(clients)
    )
    if scores is None:
        return by_round, None
    chance = float(np.quantile(found.max(axis=0), 1 - LEVEL, method="higher"))
    return by_round, ScoreTest(scores.layers, found[:, 0], others[0], chance, scores.shadows)


def _standing(means: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return how far each permutation's error is below the mean error, in standard deviations."""
    if len(means) < 3:
        return np.zeros(len(labels))
    smoother = left_out_smoother(means, np.arange(len(means)))
    if smoother is None:
        return np.zeros(len(labels))
    errors = left_out_errors(smoother, labels)
    spread = float(errors.std())
    below = errors.mean() - errors
    return np.asarray(below / spread if spread > TIE else np.zeros(len(labels)))
