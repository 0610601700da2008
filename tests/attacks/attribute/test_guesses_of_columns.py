"""Guesses of columns from any model, beside a computation by hand and models that hide nothing."""

from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.tree import DecisionTreeClassifier

from seepage.attacks.attribute.any_model import guess_columns, plan_guesses
from seepage.attacks.halves import fit_halves, random_halves
from seepage.attacks.membership.signals import confidence
from seepage.errors import InputError

RNG = np.random.default_rng(3)
N = 120
FRAME = pd.DataFrame(
    {
        "town": RNG.choice(["north", "south", "east"], N),
        "age": RNG.normal(50, 10, N).round(1),
        "weight": RNG.normal(70, 10, N),
    },
    index=np.arange(N)[::-1],
)
Y = RNG.integers(0, 2, N)


class Memory(ClassifierMixin, BaseEstimator):
    """Knows the class of every record that it has seen as it is, and nothing of others."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        rows = pd.DataFrame(X).astype(str).agg("|".join, axis=1)
        self.known_ = dict(zip(rows, np.asarray(y).tolist(), strict=True))
        return self

    def predict_proba(self, X):
        rows = pd.DataFrame(X).astype(str).agg("|".join, axis=1)
        chances = np.full((len(rows), 2), 0.5)
        for i, row in enumerate(rows):
            if row in self.known_:
                chances[i] = np.where(self.classes_ == self.known_[row], 0.99, 0.01)
        return chances

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def attacked(model, X, y, models=8, **settings):
    """Return what is guessed, and all that it was computed from."""
    plan, inside = plan_guesses(X, y, **settings), random_halves(len(y), models, 0)
    signals = np.stack(fit_halves(model, X, y, inside, partial(confidence, X=X, y=y)))
    answers = fit_halves(model, X, y, inside, plan.ask)
    return guess_columns(plan, answers, signals, inside), plan, answers, signals, inside


def test_a_model_that_remembers_records_gives_their_values_away_and_no_others():
    found, *_ = attacked(Memory(), FRAME, Y)
    town = next(one for one in found if one.name == "town")
    with_model = town.with_model
    assert with_model.inside > 0.97
    assert with_model.outside == pytest.approx(town.baseline, abs=0.02)
    assert with_model.interval("difference").low > 0.4
    assert town.gained.inside == pytest.approx(with_model.inside - town.baseline)
    assert "of members with it" in repr(town)


def test_a_constant_leaks_nothing_at_all():
    found, *_ = attacked(DummyClassifier(), FRAME, Y)
    for one in found:
        assert one.with_model.difference == 0.0
        assert one.with_model.inside == one.baseline == one.with_model.outside
        low, high = one.with_model.interval("difference")
        assert low < 0 < high  # which is no proof that it never does


def log_odds(p):
    return np.log(p / (1 - p))


def test_guesses_are_those_of_the_formula():
    tree = DecisionTreeClassifier(max_depth=6, random_state=0)
    X = FRAME[["age", "weight"]]
    found, plan, answers, signals, inside = attacked(tree, X, Y)
    models = range(len(inside))
    for j, one in enumerate(found):
        truth = plan.columns[j].codes
        for t in models:
            # δ and σ² of the other models, record by record
            rises, squares, freedom = [], 0.0, 0
            for i in range(N):
                without = [log_odds(signals[s, i]) for s in models if s != t and not inside[s, i]]
                mean = np.mean(without)
                rises += [log_odds(signals[s, i]) - mean for s in models if s != t and inside[s, i]]
                if len(without) > 1:
                    squares += np.sum((np.array(without) - mean) ** 2)
                    freedom += len(without) - 1
            weight = max(np.mean(rises), 0) / (squares / freedom)
            for a, i in enumerate(plan.rows):
                others = [s for s in models if s != t and not inside[s, i]]
                scores = []
                for k in range(one.levels):
                    mean = np.mean([log_odds(answers[s][j][a, k]) for s in others])
                    rise = log_odds(answers[t][j][a, k]) - mean
                    share = len(others) / (len(others) + 1)
                    scores.append(plan.priors[j][a, k] + weight * share * rise)
                ranked = np.sort(scores)
                if ranked[-1] - ranked[-2] > 1e-9:  # no order among ties
                    assert one.hits[t, a] == (np.argmax(scores) == truth[i])


def test_the_records_that_are_tried_are_those_meant():
    plan = plan_guesses(FRAME, Y)
    at = 0
    for column in plan.columns:
        for row in plan.rows:
            for k in range(len(column)):
                made, own = plan.tried.iloc[at], FRAME.iloc[row]
                for name in FRAME:
                    holder = FRAME.iloc[column.holders[k]]
                    assert made[name] == (holder if name == column.name else own)[name]
                assert plan.labels[at] == Y[row]
                at += 1
    assert at == len(plan.tried)
    age = plan.columns[1]
    counts = np.bincount(age.codes)
    assert (age.kind, len(age)) == ("numeric", 10)
    assert counts.max() - counts.min() <= 4  # bands of equally many records, but for ties
    order = np.argsort(FRAME["age"].to_numpy(), kind="stable")
    assert np.all(np.diff(age.codes[order]) >= 0)
    assert np.all(age.codes[age.holders] == np.arange(10))


@pytest.mark.parametrize("library", ["polars", "arrow", "array"])
def test_every_kind_of_table_gives_the_same_guesses(library):
    numbers = FRAME[["age", "weight"]]
    kinds = {
        "polars": lambda: pl.from_pandas(numbers),
        "arrow": lambda: pa.Table.from_pandas(numbers, preserve_index=False),
        "array": numbers.to_numpy,
    }
    tree = DecisionTreeClassifier(random_state=0)
    expected, *_ = attacked(tree, numbers, Y)
    found, *_ = attacked(tree, kinds[library](), Y)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one.hits, other.hits)


def test_columns_that_belong_together_are_guessed_together():
    towns = (FRAME["town"].to_numpy()[:, None] == ["north", "south", "east"]).astype(float)
    X = np.column_stack([towns, FRAME["age"]])
    tree = DecisionTreeClassifier(random_state=0)
    found, plan, *_ = attacked(tree, X, Y, together={"town": (0, 1, 2), "age": (3,)})
    assert [(one.name, one.levels) for one in found] == [("town", 3), ("age", 10)]
    assert np.all(plan.tried[:, :3].sum(axis=1) == 1)  # never two towns at once


def test_what_is_not_guessed_is_named():
    wide = np.random.default_rng(0).standard_normal((60, 12))
    plan = plan_guesses(np.column_stack([wide, np.ones(60)]), Y[:60], queries=1500, fewest=20)
    assert len(plan.columns) == 7
    assert len(plan.left_out) == 6
    assert "column 12" in plan.left_out
    names = plan_guesses(pd.DataFrame({"name": [f"n{i}" for i in range(N)]}), Y)
    assert len(names.columns[0]) == 30  # of a text with many values the most frequent ones
    assert np.sum(names.columns[0].codes < 0) == N - 30
    none = plan_guesses(np.ones((20, 2)), Y[:20])
    assert none.ask(None) == []
    assert guess_columns(none, [[]] * 4, np.full((4, 20), 0.5), random_halves(20, 4, 0)) == ()


def test_groups_are_parts_of_the_whole():
    found, *_ = attacked(DecisionTreeClassifier(random_state=0), FRAME[["age"]], Y)
    (age,) = found
    parts = age.by(FRAME["town"])
    assert set(parts) == {"north", "south", "east"}
    assert sum(len(part.rows) for part in parts.values()) == len(age.rows)
    for town, part in parts.items():
        own = FRAME["town"].to_numpy()[age.rows] == town
        assert part.baseline == age.alone[own].mean()
        assert part.with_model.inside == pytest.approx(
            np.mean([age.hits[age.inside[:, a], a].mean() for a in np.flatnonzero(own)])
        )
    with pytest.raises(InputError, match="one label for each record"):
        age.by(["a", "b"])


def test_gaps_are_a_value_of_their_own():
    numbers = FRAME["age"].where(np.arange(N) % 4 > 0)
    plan = plan_guesses(pd.DataFrame({"age": numbers, "weight": FRAME["weight"]}), Y)
    age = plan.columns[0]
    assert len(age) == 11
    missing = age.codes[numbers.isna().to_numpy()]
    assert len(np.unique(missing)) == 1
    assert not np.any(age.codes[numbers.notna().to_numpy()] == missing[0])
