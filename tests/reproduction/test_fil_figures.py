"""What the experiments compute themselves, on small made-up data."""

from __future__ import annotations

import numpy as np
import pytest

import seepage as sp
from bayes_oracle import by_lines
from reproduction.fil import best_guesses, objective_perturbation
from reproduction.fil import figure4 as fil_figure4
from reproduction.fil import figure6 as fil_figure6
from reproduction.fil import figure7 as fil_figure7
from reproduction.fil import overlap as fil_overlap
from reproduction.fil import table1 as fil_table1
from reproduction.fil.image_models import ImageModel
from seepage.attacks import InversionResult


def _curve(eta, accuracy, l2=1.0):
    accuracy = np.array(accuracy)[:, None]
    return fil_figure6.PenaltyCurve(
        l2, np.ones(3), np.array(eta), accuracy, 1.0, {"white-box": accuracy}
    )


def test_accuracies_that_rise_with_leakage_correlate_fully():
    curves = [_curve([8.0, 4.0, 1.0], [0.9, 0.6, 0.3]), _curve([6.0, 3.0, 0.5], [0.8, 0.5, 0.2])]
    assert fil_figure6.rank_correlation(curves, "white-box") == pytest.approx(1)
    curves.append(_curve([100.0, 50.0, 20.0], [0.3, 0.2, 0.1]))
    assert fil_figure6.rank_correlation(curves, "white-box") < 0.5


def test_curves_on_top_of_each_other_have_no_gap():
    curves = [_curve([8.0, 4.0, 2.0], [0.9, 0.6, 0.3]), _curve([8.0, 2.0], [0.9, 0.3], 0.1)]
    assert fil_figure6.gap_across_penalties(curves, "white-box") == pytest.approx(0)


def test_the_gap_is_a_share_of_the_range():
    curves = [_curve([10.0, 1.0], [0.9, 0.4]), _curve([10.0, 1.0], [0.8, 0.3])]
    assert fil_figure6.gap_across_penalties(curves, "white-box") == pytest.approx(0.1 / 0.6)


def test_where_half_of_the_black_box_gain_is_lost():
    accuracy = np.array([0.7, 0.6, 0.4, 0.3])[:, None]
    curve = fil_figure6.PenaltyCurve(
        1.0, np.ones(3), np.array([8.0, 4.0, 2.0, 1.0]), accuracy, 1.0, {"black-box": accuracy}
    )
    # From 0.4 over the prior to 0.2, half-way between the second and the third on a log scale.
    assert fil_figure6.half_gain(curve, 0.3) == pytest.approx(np.sqrt(8.0))


def test_the_noise_scales_are_those_of_the_paper():
    assert len(fil_figure6.SCALES) == 16
    assert (fil_figure6.SCALES[0], fil_figure6.SCALES[-1]) == (1e-5, 1.0)
    assert list(fil_figure6.SCALES) == sorted(fil_figure6.SCALES)


def test_deciles_are_in_rising_order_and_of_equal_size():
    values = np.random.default_rng(0).permutation(103).astype(float)
    deciles = fil_figure7.deciles_of(values)
    sizes = np.bincount(deciles)
    assert len(sizes) == 10
    assert np.ptp(sizes) <= 1
    for k in range(9):
        assert values[deciles == k].max() < values[deciles == k + 1].min()


@pytest.mark.parametrize(("last", "overlap"), [(0.5, True), (1.0, False)])
def test_whether_the_ends_overlap(last, overlap):
    rng = np.random.default_rng(1)
    deciles = np.repeat(np.arange(10), 100)
    hits = rng.random((50, 1000)) < np.where(deciles == 9, last, 0.5)
    course = fil_figure7.Course(
        None, np.ones((1, 1000)), deciles, {0: InversionResult("", "", 2, hits)}
    )
    gap, reach = course.gap(0)
    assert gap == pytest.approx(hits[:, deciles == 9].mean() - hits[:, deciles == 0].mean())
    assert (abs(gap) < reach) is overlap
    assert course.overlap(0) is overlap


def test_the_optimum_is_bayes_rule_and_no_rule_beats_it():
    rng = np.random.default_rng(3)
    X = np.column_stack([np.eye(3)[rng.integers(0, 3, 40)][:, 1:], rng.standard_normal((40, 2))])
    y = X @ [1.0, -1.0, 0.5, 0.2] + rng.standard_normal(40)
    attribute = sp.attacks.NominalAttribute.from_table(X, [0, 1], "kind")
    white = sp.attacks.WhiteBox(attribute, sp.glm.LinearRegression(l2=1e-2)).fit(X, y)
    found = best_guesses.beside_the_optimum(white, 40, 0.05, 2000, 0)
    prior = np.exp(white.log_prior_)
    refits = white.candidates_.differences(slice(0, 2)) / 0.05
    for i, points in enumerate(refits):
        centred = points - points.mean(axis=0)
        plane = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
        assert found.optimum[i] == pytest.approx(by_lines(plane, prior), abs=1e-8)
    assert found.excess(found.plain) < 3
    assert abs(found.excess(found.weighed)) < 3.5
    assert found.plain.mean() < found.weighed.mean()


def test_round_after_round_is_the_algorithm():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((60, 3))
    y = X @ [1.0, -1.0, 0.5] + rng.standard_normal(60)
    model = sp.glm.LinearRegression(l2=1e-2)
    weights = np.ones(60)
    for _ in range(4):
        step = sp.glm.reweight(
            model, X, y, rounds=1, columns=[0], sample_weight=weights, tolerance=0.0
        )
        weights = step.weights
    whole = sp.glm.reweight(model, X, y, rounds=4, columns=[0], tolerance=0.0)
    np.testing.assert_allclose(weights, whole.weights, rtol=1e-9)
    np.testing.assert_allclose(step.eta, whole.eta, rtol=1e-9)


def test_what_a_heuristic_finds_of_the_most_leaked_tenth():
    eta = np.arange(100.0)
    assert fil_figure4._recall(eta, eta) == 1
    assert fil_figure4._recall(eta, -eta) == 0
    assert fil_figure4._recall(eta, np.roll(eta, 5)) == 0.5


def test_the_hundred_largest():
    eta = np.random.default_rng(3).permutation(500).astype(float)
    chosen = fil_overlap._largest(eta)
    assert chosen.sum() == 100
    assert eta[chosen].min() == 400


def test_the_jacobian_written_out_gives_the_same_leakage():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((40, 3))
    y = (X @ [1.0, -1.0, 0.5] + rng.standard_normal(40) > 0).astype(float)
    data = sp.data.Problem(X, y, X, y, ("a", "b", "c"))
    linear = ImageModel("MNIST", "linear", sp.glm.LinearRegression(), data, 2 * y - 1)
    np.testing.assert_allclose(fil_table1.dense_eta(linear), linear.eta(), rtol=1e-10)


def test_accuracy_is_that_of_the_sign_also_for_a_linear_model():
    data = sp.data.Problem(
        np.eye(2),
        np.array([0.0, 1.0]),
        np.array([[-2.0, 0], [0, 3.0], [0, 0.1], [-1, 0]]),
        np.array([1.0, 1.0, 1.0, 0.0]),
        ("a", "b"),
    )
    setting = ImageModel("MNIST", "linear", sp.glm.LinearRegression(), data, 2 * data.y - 1)
    model = setting.fit()
    np.testing.assert_allclose(model.coef_, [-1, 1])
    assert setting.accuracy(model) == 75


def _release(x, y, X, target, beta, l2):
    """Mean and covariance of what objective perturbation releases, with the first record given."""
    X, target = np.vstack([x, X[1:]]), np.concatenate([[y], target[1:]])
    H = X.T @ X + len(X) * l2 * np.eye(X.shape[1])
    inverse = np.linalg.inv(H)
    return inverse @ X.T @ target, beta**2 * inverse @ inverse


def test_objective_perturbation_gives_away_what_a_normal_release_does():
    rng = np.random.default_rng(5)
    X, l2, beta, step = rng.standard_normal((12, 3)), 0.05, 0.8, 1e-5
    y = X @ [1.0, -1.0, 0.5] + rng.standard_normal(12)
    record = np.concatenate([X[0], y[:1]])
    slopes = []
    for k in range(4):
        ends = [record.copy(), record.copy()]
        ends[0][k] += step
        ends[1][k] -= step
        (m1, S1), (m2, S2) = (_release(e[:3], e[3], X, y, beta, l2) for e in ends)
        slopes.append(((m1 - m2) / (2 * step), (S1 - S2) / (2 * step)))
    S = np.linalg.inv(_release(X[0], y[0], X, y, beta, l2)[1])
    # The Fisher information of N(m, Σ): m'Σ⁻¹m' + ½ tr(Σ⁻¹Σ'Σ⁻¹Σ').
    want = [[m @ S @ n + np.trace(S @ C @ S @ D) / 2 for n, D in slopes] for m, C in slopes]
    found = objective_perturbation.mechanisms("", X, y, (X, y), l2)
    got = found.gradient[0] / beta**2 + found.covariance[0]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)
    norm = np.sqrt(np.linalg.eigvalsh(np.array(want))[-1])
    assert found.objective(beta)[0] == pytest.approx(norm, rel=1e-6)
    model = sp.glm.LinearRegression(l2=l2).fit(X, y)
    rows = sp.leakage(model, X, y, noise=sp.Gaussian(1.0)).rows()
    np.testing.assert_allclose(found.output, rows, rtol=1e-9)


def test_errors_of_both_mechanisms_are_those_of_their_noise():
    rng = np.random.default_rng(6)
    X = rng.standard_normal((30, 2))
    y = X @ [1.0, 2.0] + rng.standard_normal(30)
    found = objective_perturbation.mechanisms("", X, y, (X, y), 0.1)
    w = np.linalg.solve(X.T @ X + 3 * np.eye(2), X.T @ y)
    inverse = np.linalg.inv(X.T @ X + 3 * np.eye(2))
    draws = rng.standard_normal((200_000, 2))
    for added, noise in ((found.per_output, draws), (found.per_objective, draws @ inverse)):
        errors = np.mean((X @ (w + noise[:, None, :])[:, 0, :].T - y[:, None]) ** 2)
        assert found.error + added == pytest.approx(errors, rel=0.02)
    output, objective = found.errors(0.5)
    assert output > found.error
    assert objective > found.error
    assert found.objective(1e9).max() == pytest.approx(found.floor, rel=1e-6)
