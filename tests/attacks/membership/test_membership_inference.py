"""Membership inference: where it must see all, where nothing, and what its intervals hold."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import seepage as sp
from seepage.attacks.membership.inference import MembershipInferenceResult
from seepage.attacks.membership.scores import lira, rmia
from seepage.attacks.membership.signals import confidence

RNG = np.random.default_rng(0)
X = RNG.standard_normal((240, 5))
Y = RNG.integers(0, 2, 240)


@pytest.mark.parametrize("method", ["lira", "rmia"])
@pytest.mark.parametrize("online", [True, False])
def test_a_tree_that_learns_noise_by_heart_gives_everybody_away(method: str, online: bool) -> None:
    attack = sp.attacks.MembershipInference(
        DecisionTreeClassifier(random_state=0), method=method, online=online, shadows=12
    )
    found = attack.run(X, Y, targets=2)
    assert found.kind == "attack"
    assert found.auc > 0.7
    assert found.interval.low < found.auc < found.interval.high
    assert found.tpr(0.01).rate <= found.tpr(0.1).rate
    ordering = found.record_scores()
    assert ordering.shape == (240,)
    assert np.nanmean(ordering) > 0


def test_a_model_that_learns_nothing_gives_nobody_away() -> None:
    class Constant(Ridge):
        """Predicts one and the same number whatever it was fitted on."""

        def predict(self, X: np.ndarray) -> np.ndarray:
            return np.full(len(X), 0.5)

    found = sp.attacks.MembershipInference(Constant(), shadows=8).run(X, Y.astype(float))
    assert found.interval.low <= 0.5 <= found.interval.high
    assert found.tpr(0.1).interval.low <= 0.1


def test_regressors_and_margins_are_attacked_too() -> None:
    tree = sp.attacks.MembershipInference(DecisionTreeRegressor(random_state=0), shadows=8)
    assert tree.run(X, RNG.standard_normal(240)).auc > 0.8
    svm = sp.attacks.MembershipInference(LinearSVC(C=1.0), shadows=8, method="rmia")
    assert 0.4 < svm.run(X, Y).auc < 1.0


def test_a_given_model_is_attacked_by_shadows_of_its_kind() -> None:
    members = np.arange(240) < 120
    forest = RandomForestClassifier(20, random_state=0).fit(X[members], Y[members])
    attack = sp.attacks.MembershipInference(RandomForestClassifier(20, random_state=1), shadows=8)
    assert attack.against(forest, X, Y, members).auc > 0.8
    with pytest.raises(sp.InputError, match="needs both members"):
        attack.against(forest, X, Y, np.ones(240))


def test_lira_is_the_likelihood_ratio_of_two_normal_distributions() -> None:
    rng = np.random.default_rng(1)
    inside = np.arange(4000)[:, None] % 2 == 0
    shadows = np.where(inside, rng.normal(1.0, 1.0, (4000, 1)), rng.normal(0.0, 2.0, (4000, 1)))
    target = np.linspace(-3, 3, 7)
    scores = [lira(np.array([t]), shadows, inside)[0] for t in target]
    truth = (target / 2.0) ** 2 / 2 - (target - 1) ** 2 / 2 + np.log(2.0)
    assert scores == pytest.approx(truth, abs=0.35)
    assert lira(np.array([2.0]), shadows, inside, online=False)[0] == pytest.approx(1.0, abs=0.1)


def test_rmia_counts_the_records_that_are_beaten() -> None:
    shadows = np.full((4, 4), 0.5)
    inside = np.tile([True, False], (4, 2))
    inside[2:] = ~inside[2:]
    scores = rmia(np.array([0.9, 0.2, 0.4, 0.05]), shadows, inside)
    assert scores == pytest.approx([0.75, 0.25, 0.5, 0.0], abs=1e-6)


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(2)
    mu, hits, inside_tpr = 0.5, 0, 0
    from scipy.stats import norm

    for _ in range(200):
        members = rng.permutation(400) < 200
        scores = rng.standard_normal(400) + mu * members
        found = MembershipInferenceResult("made up", scores[None], members[None])
        ends = found.interval
        hits += ends.low <= norm.cdf(mu / np.sqrt(2)) <= ends.high
        rate = found.tpr(0.05).interval
        inside_tpr += rate.low <= norm.cdf(norm.ppf(0.05) + mu) <= rate.high
    assert hits >= 183  # of 200 at 95 %, at a chance of 1 in 100 below
    assert inside_tpr >= 186


def test_what_cannot_be_attacked_is_refused() -> None:
    with pytest.raises(sp.InputError, match="needs an estimator with fit and predict"):
        sp.attacks.MembershipInference(object())
    with pytest.raises(sp.InputError, match="method must be 'lira', 'rmia' or 'loss'"):
        sp.attacks.MembershipInference(Ridge(), method="guess")
    with pytest.raises(sp.InputError, match="shadows must be at least 2"):
        sp.attacks.MembershipInference(Ridge(), shadows=1)


def test_too_few_records_and_odd_rates_are_refused() -> None:
    attack = sp.attacks.MembershipInference(Ridge(), shadows=8)
    with pytest.raises(sp.InputError, match="at least 8 records, but got 5"):
        attack.run(X[:5], Y[:5])
    found = MembershipInferenceResult("LiRA", np.zeros((1, 4)), np.arange(4)[None] < 2)
    for fpr in (0.0, 1.0):
        with pytest.raises(sp.InputError, match="fpr must lie between 0 and 1"):
            found.tpr(fpr)


class _Says:
    """A classifier of three classes that says what it was given."""

    classes_ = np.array(["a", "b", "c"])

    def __init__(self, **answers: np.ndarray) -> None:
        for name, answer in answers.items():
            setattr(self, name, lambda X, answer=answer: answer)


def test_margins_of_several_classes_are_compared_with_the_best_rival() -> None:
    margins = np.array([[2.0, 0.5, -1.0], [0.0, 1.0, 3.0]])
    found = confidence(_Says(decision_function=margins), None, np.array(["a", "b"]))
    assert found == pytest.approx([1 / (1 + np.exp(-1.5)), 1 / (1 + np.exp(2.0))])


def test_bare_predictions_are_right_or_wrong() -> None:
    found = confidence(_Says(predict=np.array(["a", "c"])), None, np.array(["a", "b"]))
    assert found == pytest.approx([1 - 1e-6, 1e-6])
