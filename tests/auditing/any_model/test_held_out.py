"""Errors on held-out records, limits and encodings of audits by attack, beside refits by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ks_2samp
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import seepage as sp
from seepage.attacks.halves import random_halves
from seepage.attacks.membership.inference import MembershipInferenceResult
from seepage.auditing.any_model.inputs import ColumnEncoder, prepare
from seepage.auditing.any_model.limits import hold_to, membership_success
from seepage.auditing.any_model.report import AttackReport
from seepage.auditing.questions import Limits

RNG = np.random.default_rng(7)
N = 90
X = RNG.standard_normal((N, 3))
CLASS = np.where(X[:, 0] + RNG.standard_normal(N) > 0.3, "ill", "well")
NUMBER = 2 * X[:, 0] + RNG.standard_normal(N)


@pytest.mark.parametrize(
    "tree", [DecisionTreeClassifier(random_state=0), DecisionTreeRegressor(random_state=0)]
)
def test_errors_are_those_of_refits(tree: Any) -> None:
    classes = isinstance(tree, DecisionTreeClassifier)
    y = CLASS if classes else NUMBER
    found = sp.audit_estimator(tree, X, y, shadows=4, seed=3).held_out
    inside = random_halves(N, 6, 3)
    held, own, constant, tests = [], [], [], []
    for t, half in enumerate(inside):
        model = clone(tree).fit(X[half], y[half])
        said = model.predict(X)
        if classes:
            values, counts = np.unique(y[half], return_counts=True)
            wrong, other = said != y, y != values[counts.argmax()]
            losses = 1 - model.predict_proba(X)[np.arange(N), (y == "well").astype(int)]
        else:
            wrong, other = (said - y) ** 2, (y - y[half].mean()) ** 2
            losses = wrong
        held.append(wrong[~half])
        own.append(wrong[half])
        constant.append(other[~half])
        if t < 2:
            tests.append(ks_2samp(losses[half], losses[~half]))
    root = (lambda v: v) if classes else np.sqrt
    # Every record counts alike: it is in half of the models
    assert found.error == pytest.approx(root(np.concatenate(held).mean()))
    assert found.own == pytest.approx(root(np.concatenate(own).mean()))
    assert found.constant == pytest.approx(root(np.concatenate(constant).mean()))
    assert found.advantage == pytest.approx(found.constant - found.error)
    assert found.gap == pytest.approx(found.error - found.own)
    worst = min(tests, key=lambda test: test.pvalue)
    assert found.distance == pytest.approx(worst.statistic)
    assert found.p_value == pytest.approx(min(1, 2 * worst.pvalue))
    assert found.low < found.error < found.high
    assert found.gap_low < found.gap < found.gap_high


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_intervals_cover_the_error_of_new_records(kind: str) -> None:
    """At least 90 of 100 intervals cover what models of half as many records get wrong."""
    from seepage.auditing.any_model.held_out import compare_held_out, record_errors

    rng = np.random.default_rng(0)
    fits: Any = LogisticRegression() if kind == "classes" else LinearRegression()

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.standard_normal((n, 2))
        y = X[:, 0] + rng.standard_normal(n)
        return X, (y > 0).astype(int) if kind == "classes" else y

    new_X, new_y = draw(20_000)
    covered, gaps, runs, truth, own = 0, 0, 120, [], []
    ends = []
    for run in range(runs):
        X, y = draw(80)
        inside = random_halves(80, 6, run)
        models = [clone(fits).fit(X[half], y[half]) for half in inside]
        errors = np.stack([record_errors(model, X, y) for model in models])
        ends.append(
            compare_held_out(errors, -errors, inside, y, classes=kind == "classes", targets=2)
        )
        truth.append(record_errors(models[0], new_X, new_y).mean())
        own.append(errors[0][inside[0]].mean())
    root = (lambda v: v) if kind == "classes" else np.sqrt
    error = root(np.mean(truth))
    gap = error - root(np.mean(own))
    covered = sum(one.low <= error <= one.high for one in ends)
    gaps = sum(one.gap_low <= gap <= one.gap_high for one in ends)
    assert covered >= 0.9 * runs
    assert gaps >= 0.9 * runs


def test_a_useless_model_is_not_green() -> None:
    rng = np.random.default_rng(1)
    audit = sp.audit_estimator(
        DecisionTreeClassifier(random_state=0), X, rng.integers(0, 2, N), shadows=4
    )
    page = AttackReport(audit).page(())
    assert audit.held_out.advantage_low < 0
    assert audit.held_out.compared in ("not told apart", "worse")
    assert f'<p class="judged">{audit.held_out.compared}</p>' in page
    assert ">better<" not in page


FRAME = pd.DataFrame(
    {
        "age": np.where(np.arange(N) % 9 == 0, np.nan, X[:, 0]),
        "town": np.where(X[:, 1] > 0, "north", "south"),
        "seen": pd.to_datetime("2020-01-01") + pd.to_timedelta(np.arange(N), "D"),
    }
)
FRAME.loc[4, "town"] = None


def test_an_encoding_is_put_before_what_takes_no_text_and_is_said() -> None:
    """It was refused: could not convert string to float."""
    forest = RandomForestClassifier(5, random_state=0)
    audit = sp.audit_estimator(forest, FRAME, CLASS, shadows=4)
    (said,) = (step for step in audit.steps if "encoding" in step)
    assert said == (
        "RandomForestClassifier cannot be fitted on the columns as they are. An encoding step was "
        "put before it and is part of the audited model: text was encoded with one column "
        "per value ('town'); missing values were replaced by medians and marked in indicator "
        "columns ('age')."
    )
    assert [one.name for one in audit.guesses] == ["age", "town", "seen"]
    by_hand = np.column_stack(
        [
            np.where(FRAME["age"].isna(), FRAME["age"].median(), FRAME["age"]),
            FRAME["age"].isna(),
            *(
                FRAME["town"].astype(object).where(FRAME["town"].notna(), "None") == t
                for t in ("south", "north", "None")
            ),
            np.arange(N) + 18262.0,
        ]
    )
    made = ColumnEncoder((False, True, False)).fit_transform(FRAME)
    levels = np.argsort(-made[:, 2:5].sum(axis=0), kind="stable") + 2
    assert sorted(map(tuple, made[:, levels].T)) == sorted(map(tuple, by_hand[:, 2:5].T))
    np.testing.assert_array_equal(made[:, [0, 1, 5]], by_hand[:, [0, 1, 5]])


def test_nothing_is_put_before_what_takes_the_table_as_it_is() -> None:
    own = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    assert prepare(own, FRAME[["town"]], CLASS).steps == ()
    assert prepare(own, FRAME[["town"]], CLASS).estimator is own
    scaled = prepare(make_pipeline(StandardScaler(), LogisticRegression()), FRAME, CLASS)
    assert len(scaled.steps) == 1
    new = FRAME.assign(town="elsewhere")
    assert len(scaled.model.predict(new)) == N  # a value that no record had


class OnlyCodes(ClassifierMixin, BaseEstimator):
    """Takes classes only as 0, 1, 2 and so on, as XGBoost does."""

    def fit(self, X: Any, y: Any) -> Any:
        if np.unique(y).tolist() != list(range(len(np.unique(y)))):
            raise ValueError("Invalid classes inferred from unique values of `y`")
        self.inner_ = DecisionTreeClassifier(random_state=0).fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def predict(self, X: Any) -> Any:
        return self.inner_.predict(X)

    def predict_proba(self, X: Any) -> Any:
        return self.inner_.predict_proba(X)


def test_labels_are_numbered_for_what_takes_only_numbers() -> None:
    found = prepare(OnlyCodes(), X, CLASS)
    assert found.steps == (
        "OnlyCodes does not accept these labels, so the 2 classes were numbered from 0.",
    )
    np.testing.assert_array_equal(found.y, CLASS == "well")
    plain = prepare(DecisionTreeClassifier(), X, CLASS.astype(object))
    assert (plain.steps, plain.y.dtype.kind) == ((), "U")


@pytest.mark.parametrize(
    ("model", "table", "y", "words"),
    [
        (DecisionTreeClassifier(), X, NUMBER, "Unknown label type: continuous"),
        (DecisionTreeRegressor(), X, CLASS, "could not convert string to float"),
        (RandomForestRegressor(), X[:, 0], NUMBER, r"X has the shape \(90,\)"),
        (DecisionTreeRegressor(), X, NUMBER[:-1], "X has 90 rows, but y has 89"),
        (
            DecisionTreeRegressor(),
            pd.DataFrame(X[:, :2], columns=["a", "a"]),
            NUMBER,
            "with distinct column names",
        ),
    ],
)
def test_what_cannot_be_audited_gets_one_sentence(
    model: Any, table: Any, y: Any, words: str
) -> None:
    with pytest.raises(sp.InputError, match=words):
        sp.audit_estimator(model, table, y, shadows=4)


def test_success_is_not_judged_by_the_records_that_chose_its_threshold() -> None:
    rng = np.random.default_rng(0)
    rates, kept = [], []
    for _ in range(200):
        members = rng.random((2, 60)) < 0.5
        scores = rng.standard_normal((2, 60))
        rates.append(membership_success(MembershipInferenceResult("x", scores, members)).rate)
        best = max(np.mean((scores > line) == members) for line in scores.ravel())
        kept.append(best)
    assert abs(np.mean(rates) - 0.5) < 0.01
    assert np.mean(kept) > 0.54  # as the best threshold for the same records would say
    members = rng.random((2, 60)) < 0.5
    apart = MembershipInferenceResult("x", np.where(members, 3.0, -3.0), members)
    found = membership_success(apart)
    assert found.rate == 1.0
    assert found.interval.low > 0.9
    tied = membership_success(MembershipInferenceResult("x", np.zeros((2, 60)), members))
    assert 0.3 < tied.rate < 0.7


def test_an_attack_that_exceeds_a_limit_fails_its_gate() -> None:
    rng = np.random.default_rng(1)
    audit = sp.audit_estimator(
        DecisionTreeClassifier(random_state=0), X, rng.integers(0, 2, N), shadows=8
    )
    held = hold_to(Limits(max_membership=0.6, max_guess_gain=0.9), audit)
    over, within = held.gates
    best = max(membership_success(attack).rate for attack in audit.attacks)
    assert (over.name, over.measured, over.passed) == ("--max-membership", best, False)
    assert over.low < best < over.high
    worst = max(audit.guesses, key=lambda one: one.gained.inside)
    assert (within.measured, within.where) == (worst.gained.inside, worst.name)
    assert within.passed
    report = AttackReport(held)
    assert (report.verdict.tone, report.verdict.label) == ("bad", "Over the limit")
    assert not report.verdict.passed
    assert report.summary()["gates"][1]["text"].endswith("A stronger attack may exceed the limit.")
    with pytest.raises(sp.InputError, match="--max-eta applies only to linear models"):
        hold_to(Limits(max_eta=1.0), audit)


def test_a_preset_is_a_set_of_limits() -> None:
    audit = sp.audit_estimator(
        DecisionTreeClassifier(random_state=0), X, CLASS, shadows=4, preset="open"
    )
    assert audit.preset == "open"
    assert [(gate.name, gate.limit) for gate in audit.gates] == [
        ("--max-membership", 0.6),
        ("--max-guess-gain", 0.05),
    ]
    assert AttackReport(audit).verdict.tone != "good"
    kept = hold_to(Limits(max_membership=1.0), audit)
    page = AttackReport(kept).page(())
    assert "<strong>Not exceeded</strong>" in page  # by this attack: nothing green
    assert "<strong>Met</strong>" not in page
    with pytest.raises(sp.InputError, match="There is no preset"):
        sp.audit_estimator(DecisionTreeClassifier(), X, CLASS, preset="public")


def test_a_model_that_holds_records_is_not_to_be_released() -> None:
    """The verdict said that nothing was found."""
    audit = sp.audit_estimator(SVC(), X, CLASS, shadows=8)
    verdict = AttackReport(audit).verdict
    assert (verdict.tone, verdict.label) == ("bad", "Records are in the model")
    kept = next(risk for risk in audit.structure if risk.keeper is not None).records
    assert verdict.headline == (
        f"Do not release the model file: it contains {kept} records verbatim."
    )


def test_the_column_that_is_shown_was_picked_among_all() -> None:
    audit = sp.audit_estimator(DecisionTreeClassifier(random_state=0), X, CLASS, shadows=4)
    most = audit.most_guessed
    assert most is not None
    wide = most.with_model.interval("difference", 1 - 0.05 / 3)
    said = f"{100 * wide.low:.1f} to {100 * wide.high:.1f}"
    assert said in AttackReport(audit).verdict.sentences[2]
    narrow = most.with_model.interval("difference")
    assert wide.low < narrow.low < narrow.high < wide.high


def test_groups_are_reported() -> None:
    towns = np.where(np.arange(N) % 3 == 0, "north", "south")
    audit = sp.audit_estimator(
        DecisionTreeClassifier(random_state=0), X, CLASS, shadows=4, groups={"town": towns}
    )
    groups = AttackReport(audit).summary()["groups"]
    assert [(one["column"], one["group"]) for one in groups] == [
        ("town", "north"),
        ("town", "south"),
    ]
    sizes = [one["guesses"][0]["records"] for one in groups]
    assert sum(sizes) == len(audit.guesses[0].rows)
    with pytest.raises(sp.InputError, match="one label for each of the 90 records"):
        sp.audit_estimator(DecisionTreeClassifier(), X, CLASS, groups={"town": towns[:-1]})
