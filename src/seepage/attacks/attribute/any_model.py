"""Attribute inference for every column of a table, with any model that can be refitted.

The attacker knows the model, a record's label and all of the record's columns but one, and infers
which value ``k`` of the unknown column best explains the model's output. The baseline without the
model is imputation: a random forest fitted on other records predicts ``q(k)``, the probability of
each value given the other columns and the label. The gain over this baseline is attribute inference
beyond imputation (Jayaraman and Evans 2022).

The evidence from the model comes from membership inference on each candidate record (Yeom et al.
2018), with the likelihood ratio of Carlini et al. (2022). Let ``ℓ(k)`` be the attacked model's
log-odds of the record's true label with the value ``k`` in the column, and ``μ(k)`` the mean
log-odds over shadow models not fitted on the record. At a record's true value, ``δ`` is the mean
log-odds in models fitted on the record minus that in the other models, and ``σ²`` is the variance
in the other models. If both distributions are normal with this variance, the log-likelihood ratio
is ``(δ/σ²)(ℓ(k) − μ(k))`` up to a constant, and the guess is::

    argmax_k  log q(k) + (δ/σ²)(ℓ(k) − μ(k))

Each model is attacked in turn, with all other models as shadow models. Each record is a member of
half of the models' training sets. The additional accuracy against models fitted on the record is
leakage about training records; the remaining gain is inference about the population.

In a text column, or a column with few distinct numbers, the attacker guesses the value. Any other
column of numbers or dates is divided into up to ten bands of about equally many records; a guess is
correct if it names the right band.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.attacks.intervals import ConfidenceInterval, Contrast, accuracy_interval, contrast
from seepage.attacks.membership.signals import as_probabilities, confidence, log_odds
from seepage.errors import InputError
from seepage.tables.frames import columns_as_they_are, put_together
from seepage.tables.result_table import SummaryTable
from seepage.tables.source import as_numpy


@dataclass(frozen=True, eq=False)
class GuessedColumn:
    """A column, or several columns that encode one attribute, with the candidate values."""

    name: str
    columns: tuple[int, ...]  # their positions in the table
    kind: str  # ``categorical``: its values; ``numeric``: bands of them
    codes: np.ndarray  # (n,): the value or band of every record; −1 if it is none that is tried
    holders: np.ndarray  # (K,): a record that holds each of them

    def __len__(self) -> int:
        return len(self.holders)


@dataclass(frozen=True, eq=False)
class GuessingPlan:
    """The columns and records to attack, and the attacker's guesses without a model.

    Parameters
    ----------
    columns
        The columns to guess.
    left_out
        The names of columns that are not attacked, because they have only one value, or because the
        queries do not suffice for all columns.
    rows
        The positions of the attacked records, ``(m,)``.
    priors
        For each column, the log-probability of each candidate value without a model, ``(m, K)``.
    tried, labels
        The attacked records with every value of every column in turn, and their labels. Rows are
        ordered by column, then by record, then by value.
    """

    columns: tuple[GuessedColumn, ...]
    left_out: tuple[str, ...]
    rows: np.ndarray
    priors: tuple[np.ndarray, ...]
    tried: Any
    labels: np.ndarray

    def ask(self, model: Any) -> list[np.ndarray]:
        """Return a model's confidence in the true labels: for each column, an array (m, K)."""
        if not self.columns:
            return []
        answers = confidence(model, self.tried, self.labels)
        ends = np.cumsum([len(self.rows) * len(column) for column in self.columns])
        return [part.reshape(len(self.rows), -1) for part in np.split(answers, ends[:-1])]


def plan_guesses(
    X: Any,
    y: np.ndarray,
    together: Mapping[str, Sequence[int]] | None = None,
    *,
    seed: int = 0,
    queries: int = 40_000,
    fewest: int = 60,
) -> GuessingPlan:
    """Choose the columns and records to attack with about ``queries`` predictions per model.

    ``together`` maps each attribute to its columns; by default, each column is an attribute. At
    least ``fewest`` records are attacked, but at most half of the table; the attacker learns from
    the remaining records.
    """
    table = columns_as_they_are(X)
    found = [
        _guessed(name, tuple(places), [table[j][1] for j in places])
        for name, places in (
            together or {name: (j,) for j, (name, _) in enumerate(_unique(table))}
        ).items()
    ]
    rng = np.random.default_rng(seed)
    # A wide table is asked about less often: all that is tried is held at once
    queries = min(queries, max(2_000, 8_000_000 // len(table)))
    some = min(fewest, len(y) // 2)
    # With more columns than the queries allow for, those that are guessed are drawn at random
    chosen, spent = [], 0
    for k in rng.permutation(len(found)):
        if len(found[k]) > 1 and spent + len(found[k]) <= max(queries // some, 2):
            chosen.append(int(k))
            spent += len(found[k])
    columns = tuple(found[k] for k in sorted(chosen))
    left_out = tuple(found[k].name for k in range(len(found)) if k not in chosen)
    size = min(len(y) // 2, max(some, queries // max(spent, 1)))
    order = rng.permutation(len(y))
    rows, others = np.sort(order[:size]), np.sort(order[size:])
    numbers = np.column_stack([_as_numbers(values) for _, values in table] + [_as_numbers(y)])
    priors = tuple(
        _without_model(column, numbers, rows, others[: max(2000, 2 * size)]) for column in columns
    )
    again = np.concatenate([np.repeat(rows, len(column)) for column in columns] or [rows[:0]])
    holders = [again] * len(table)
    start = 0
    for column in columns:
        there = slice(start, start := start + size * len(column))
        for j in column.columns:
            holders[j] = again.copy() if holders[j] is again else holders[j]
            holders[j][there] = np.tile(column.holders, size)
    tried = put_together(X, again, holders)
    return GuessingPlan(columns, left_out, rows, priors, tried, y[again])


def _unique(table: list[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    names = [name for name, _ in table]
    twice = next((name for k, name in enumerate(names) if name in names[:k]), None)
    if twice is not None:
        raise InputError(f"Two columns of X have the name {twice!r}; rename one of them.")
    return table


def _guessed(
    name: str, places: tuple[int, ...], values: list[np.ndarray], most: int = 30, bands: int = 10
) -> GuessedColumn:
    """Return a column with its candidates: its most frequent values, or bands of its numbers."""
    if len(values) == 1 and values[0].dtype.kind == "f":
        numbers = values[0]
        known = numbers[np.isfinite(numbers)]
        if len(np.unique(known)) > bands:
            cuts = np.unique(np.quantile(known, np.arange(1, bands) / bands, method="lower"))
            raw = np.where(np.isfinite(numbers), np.searchsorted(cuts, numbers), len(cuts) + 1)
            _, codes = np.unique(raw, return_inverse=True)
            holders = [_middle(numbers, codes == k) for k in range(codes.max() + 1)]
            return GuessedColumn(name, places, "numeric", codes, np.array(holders))
    text = [np.array([str(cell) for cell in column.tolist()]) for column in values]
    _, first, codes, counts = np.unique(
        np.column_stack(text), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    frequent = np.argsort(-counts, kind="stable")[:most]
    place = np.full(len(counts), -1)
    place[frequent] = np.arange(len(frequent))
    return GuessedColumn(name, places, "categorical", place[codes.reshape(-1)], first[frequent])


def _middle(numbers: np.ndarray, band: np.ndarray) -> int:
    """Return the position of a band's median record."""
    rows = np.flatnonzero(band)
    return int(rows[np.argsort(numbers[rows], kind="stable")[len(rows) // 2]])


def _as_numbers(values: np.ndarray) -> np.ndarray:
    """Return a column as numbers for a random forest.

    Text is replaced by its frequency rank, and missing numbers by a value below all others.
    """
    if values.dtype.kind in "biuf":
        numbers = values.astype(float)
        known = numbers[np.isfinite(numbers)]
        return np.where(np.isfinite(numbers), numbers, known.min() - 1 if len(known) else 0.0)
    text = np.array([str(cell) for cell in values.tolist()])
    _, codes, counts = np.unique(text, return_inverse=True, return_counts=True)
    return np.argsort(np.argsort(-counts, kind="stable"))[codes].astype(float)


def _without_model(
    column: GuessedColumn, numbers: np.ndarray, rows: np.ndarray, others: np.ndarray
) -> np.ndarray:
    """Return ``log q(k)``, (m, K), given the other columns and the label."""
    from sklearn.ensemble import RandomForestClassifier

    known = others[column.codes[others] >= 0]
    shares = np.bincount(column.codes[known], minlength=len(column)) + 1.0
    chances = np.tile(shares / shares.sum(), (len(rows), 1))
    kept = np.setdiff1d(np.arange(numbers.shape[1]), column.columns)
    if len(np.unique(column.codes[known])) > 1:
        forest = RandomForestClassifier(20, min_samples_leaf=3, random_state=0)
        forest.fit(numbers[np.ix_(known, kept)], column.codes[known])
        # A value that no neighbour has is unlikely, not impossible
        chances *= 0.05
        chances[:, forest.classes_] += 0.95 * forest.predict_proba(numbers[np.ix_(rows, kept)])
    return np.asarray(np.log(chances))


@dataclass(frozen=True, eq=False, repr=False)
class ColumnGuesses(SummaryTable):
    """How often one column was guessed correctly, without a model and with each model.

    The per-record hits depend on the data and are themselves sensitive: do not publish them.

    Parameters
    ----------
    name, guess, levels
        The column's name, what is guessed (a ``value`` or a ``band``), and the number of
        candidates.
    rows
        The positions of the attacked records, ``(m,)``.
    alone
        Whether the guess without a model is correct, ``(m,)``.
    hits
        Whether the guess with each of M models is correct, ``(M, m)``.
    inside
        Whether the model was fitted on the record, ``(M, m)``.
    kind
        ``attack``: a lower bound on what can be guessed, never an upper bound.
    """

    name: str
    guess: str
    levels: int
    rows: np.ndarray
    alone: np.ndarray
    hits: np.ndarray
    inside: np.ndarray
    kind: str = "attack"

    def spans(self) -> Mapping[str, tuple[float, float, float]]:
        """Return the shares of correct guesses and the gap between members and non-members.

        Each number comes with the ends of its 95 % confidence interval.
        """
        found = self.with_model
        return {
            "without the model": (self.baseline, *self.baseline_interval),
            "non-members": (found.outside, *found.interval("outside")),
            "members": (found.inside, *found.interval("inside")),
            "members minus non-members": (found.difference, *found.interval("difference")),
        }

    @property
    def baseline(self) -> float:
        """The share of correct guesses without the model, by imputation from other records."""
        return float(self.alone.mean())

    @property
    def baseline_interval(self) -> ConfidenceInterval:
        """The 95 % confidence interval of :attr:`baseline`."""
        return accuracy_interval(self.alone[None, :])

    @property
    def with_model(self) -> Contrast:
        """The shares of correct guesses with the model: members, non-members and difference.

        The difference between members and non-members is the leakage about training records.
        """
        return contrast(self.hits.astype(float), self.inside)

    @property
    def gained(self) -> Contrast:
        """The shares of correct guesses with the model, minus :attr:`baseline`."""
        return contrast(self.hits.astype(float) - self.alone, self.inside)

    def by(self, groups: Any) -> dict[Hashable, ColumnGuesses]:
        """Return the results by group, given one group label per record of the whole table."""
        labels = as_numpy(groups)
        if labels.ndim != 1 or len(labels) <= self.rows.max():
            raise InputError(
                f"groups has the shape {labels.shape}; give one label for each record of the table."
            )
        labels = labels[self.rows]
        return {
            label: ColumnGuesses(
                self.name,
                self.guess,
                self.levels,
                self.rows[labels == label],
                self.alone[labels == label],
                self.hits[:, labels == label],
                self.inside[:, labels == label],
            )
            for label in np.unique(labels).tolist()
        }

    def __repr__(self) -> str:
        found, ends = self.with_model, self.with_model.interval("difference")
        return (
            f"<{self.name} guessed as one of {self.levels} {self.guess}s, attack: "
            f"{100 * self.baseline:.1f} % without the model, {100 * found.outside:.1f} % of "
            f"non-members and {100 * found.inside:.1f} % of members with it; difference "
            f"{100 * found.difference:.1f} percentage points "
            f"[{100 * ends.low:.1f}, {100 * ends.high:.1f}]>"
        )


def guess_columns(
    plan: GuessingPlan, answers: Sequence[list[np.ndarray]], signals: np.ndarray, inside: np.ndarray
) -> tuple[ColumnGuesses, ...]:
    """Return how often each column is guessed correctly with each model, and without a model.

    For each attacked model, all other models serve as shadow models.

    Parameters
    ----------
    plan
        The columns and records to guess.
    answers
        The result of :meth:`GuessingPlan.ask` for each model.
    signals, inside
        The confidence of each of M models in the label of each of n unchanged records, and whether
        the model was fitted on that record, ``(M, n)``.
    """
    outside = signals[~inside]
    usual = log_odds(as_probabilities(signals, outside))
    weights = [
        _weight(np.delete(usual, t, 0), np.delete(inside, t, 0)) for t in range(len(signals))
    ]
    here = inside[:, plan.rows]
    found = []
    for j, column in enumerate(plan.columns):
        each = np.stack([model[j] for model in answers])  # (M, m, K)
        odds = log_odds(as_probabilities(each, outside))
        without = np.where(here[:, :, None], 0.0, odds)
        counts, sums = (~here).sum(axis=0)[:, None], without.sum(axis=0)
        truth, hits = column.codes[plan.rows], []
        for t, weight in enumerate(weights):
            # The mean over the other models that were not fitted on the record
            own = (~here[t])[:, None]
            left = np.maximum(counts - own, 1)
            mean = (sums - own * odds[t]) / left
            evidence = weight * left / (left + 1) * (odds[t] - mean)
            hits.append(np.argmax(plan.priors[j] + evidence, axis=1) == truth)
        alone = np.argmax(plan.priors[j], axis=1) == truth
        guess = "band" if column.kind == "numeric" else "value"
        found.append(
            ColumnGuesses(column.name, guess, len(column), plan.rows, alone, np.stack(hits), here)
        )
    return tuple(found)


def _weight(odds: np.ndarray, inside: np.ndarray) -> float:
    """Return ``δ/σ²`` from the shadow models' log-odds, (M, n); zero if ``δ`` is negative."""
    counts = (~inside).sum(axis=0)
    mean = np.where(inside, 0.0, odds).sum(axis=0) / np.maximum(counts, 1)
    apart = odds - mean
    enough = counts > 1
    spread = np.where(inside, 0.0, apart**2).sum(axis=0)[enough]
    variance = float(spread.sum() / max(int((counts[enough] - 1).sum()), 1))
    rise = float(apart[inside].mean())
    return max(rise, 0.0) / max(variance, 1e-12)
