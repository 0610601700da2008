"""Bounds from finite changes, from promises, from priors and for biased adversaries."""

from __future__ import annotations

import math
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import laplace, norm

import seepage as sp
from cases import BY_NAME, audit, estimator
from recipes import Case
from sampled import sampled
from seepage.bounds import (
    BoundedPrior,
    Domain,
    EmpiricalPrior,
    GaussianPrior,
    biased,
    biased_leakage,
    from_privacy,
    from_renyi,
    hammersley_chapman_robbins,
    membership_advantage,
    two_point,
    van_trees,
    van_trees_rows,
)
from seepage.bounds.hammersley import renyi_of_shift
from seepage.privacy import DifferentialPrivacy, GaussianDP, RenyiDP

HCR_CASES = [
    "linear",
    "linear-l2",
    "logistic-l2",
    "logistic-everything",
    "poisson-everything",
    "softmax-3-l2",
    "laplace-linear",
    "covariance-logistic",
    "one-feature-logistic-intercept",
    "pseudo-huber",
]

# Hammersley, Chapman and Robbins -----------------------------------------------------------------


def parameters(case: Case, X: np.ndarray) -> np.ndarray:
    model = estimator(case).fit(X, case.y, sample_weight=case.sample_weight)
    coef = np.atleast_2d(model.coef_).T
    if case.intercept:
        coef = np.concatenate([coef, np.reshape(model.intercept_, (1, -1))])
    return coef.reshape(-1)


def chi_square(case: Case, shift: np.ndarray) -> float:
    """χ² between the noise and the noise moved, without the package's formulas."""
    if isinstance(case.noise, sp.Laplace):
        scale = np.broadcast_to(case.noise.scale, shift.shape)
        product = 1.0
        for s, b in zip(np.abs(shift), scale, strict=True):
            product *= quad(
                lambda x, s=s, b=b: laplace.pdf(x, s, b) ** 2 / laplace.pdf(x, 0, b),
                -40 * b,
                s + 40 * b,
                points=[0, s],
                limit=200,
            )[0]
        return product - 1
    sigma = np.asarray(case.noise.sigma)
    if sigma.ndim == 2:
        return math.expm1(shift @ np.linalg.solve(sigma, shift))
    return math.expm1(np.sum((shift / sigma) ** 2))


@pytest.mark.parametrize("name", sampled(list(HCR_CASES), 2, 3))
def test_the_supremum_over_finite_changes_is_found(name):
    """Against refits of a grid of changes from scratch."""
    case, leak = BY_NAME[name], audit(BY_NAME[name])
    row, column = 4, case.d - 1
    lower, upper = case.X[:, column].min(), case.X[:, column].max()
    found = hammersley_chapman_robbins(leak, row, column)
    base = parameters(case, case.X)
    best = 0.0
    for value in np.linspace(lower, upper, 41):
        change = value - case.X[row, column]
        if abs(change) < 1e-9:
            continue
        X = case.X.copy()
        X[row, column] = value
        best = max(best, change**2 / chi_square(case, parameters(case, X) - base))
    assert float(found) >= best * (1 - 1e-6)
    assert float(found) >= found.cramer_rao * (1 - 1e-12)
    if found.change == 0:
        assert float(found) == found.cramer_rao
    else:
        X = case.X.copy()
        X[row, column] += found.change
        attained = found.change**2 / chi_square(case, parameters(case, X) - base)
        assert float(found) == pytest.approx(attained, rel=1e-5)
        assert lower - 1e-9 <= X[row, column] <= upper + 1e-9


def test_where_the_cell_has_no_room_it_is_cramer_rao():
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.standard_normal((30, 2)), np.ones(30)])
    y = (X[:, 0] + rng.standard_normal(30) > 0).astype(int)
    model = sp.glm.LogisticRegression(l2=0.05).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.1))
    found = hammersley_chapman_robbins(leak, 3, 2, domain=(1 - 1e-6, 1 + 1e-6))
    assert float(found) == pytest.approx(leak.cells().mse_bound()[3, 2], rel=1e-4)
    alone = hammersley_chapman_robbins(leak, 3, 2)  # a constant column, whose range is a point
    assert (float(alone), alone.change) == (alone.cramer_rao, 0.0)


@pytest.mark.slow
def test_a_wider_domain_never_lowers_the_bound():
    leak = audit(BY_NAME["logistic-l2"])
    bounds = [
        float(hammersley_chapman_robbins(leak, 3, 1, domain=(-width, width)))
        for width in (4.0, 8.0, 40.0, 400.0)
    ]
    assert np.all(np.diff(bounds) >= -1e-9 * np.array(bounds[:-1]))
    assert bounds[-1] > 1e2 * bounds[0]  # no estimate is unbiased everywhere with a finite variance


def test_domains_of_a_cell_are_read_and_checked():
    leak = audit(BY_NAME["logistic-l2"])
    pair = float(hammersley_chapman_robbins(leak, 0, "x2", domain=(-5, 5)))
    assert float(hammersley_chapman_robbins(leak, 0, "x2", domain={"x2": (-5, 5)})) == pair
    whole = Domain(np.full(5, -5.0), np.full(5, 5.0), True)
    assert float(hammersley_chapman_robbins(leak, 0, 2, domain=whole)) == pair
    with pytest.raises(sp.InputError, match="outside the stated domain"):
        hammersley_chapman_robbins(leak, 0, "x2", domain=(0, 0.1))
    with pytest.raises(sp.InputError, match="single column"):
        hammersley_chapman_robbins(leak, 0, "trio")


@given(st.floats(0.01, 3.0), st.floats(0.05, 2.0))
def test_divergences_of_shifted_noise(shift, scale):
    got = renyi_of_shift(np.array([[shift]]), sp.Laplace(scale))[0]
    t = shift / scale
    assert math.exp(got) == pytest.approx(2 / 3 * math.exp(t) + math.exp(-2 * t) / 3, rel=1e-12)
    normal = renyi_of_shift(np.array([[shift]]), sp.Gaussian(scale))[0]
    assert normal == pytest.approx(t * t, rel=1e-12)


# From promises -----------------------------------------------------------------------------------


def test_theorem_1_as_the_paper_works_it_out():
    assert float(from_renyi(2.0, 100.0)) == pytest.approx(391, abs=0.5)
    assert float(from_renyi(1.58, np.ones(784))) == pytest.approx(0.065, abs=5e-4)
    # z + N(0, σ²) on [0, M]: the bound falls short of the true σ² by a factor of 4 as M → 0.
    assert float(from_renyi(1e-6, 1e-3)) == pytest.approx(0.25, rel=1e-5)


@given(st.just(0.0) | st.floats(1e-6, 50.0), st.just(0.0) | st.floats(0.1, 2), st.floats(-3, 3))
def test_theorem_1_with_bias(epsilon, slope, bias):
    widths = np.array([1.0, 2.0, 5.0])
    got = float(from_renyi(epsilon, widths, slope=slope, bias=bias))
    if epsilon == 0:
        assert got == (math.inf if slope else pytest.approx(bias**2))
    else:
        want = slope**2 * np.mean(widths**2) / 4 / math.expm1(epsilon) + bias**2
        assert got == pytest.approx(want, rel=1e-9)


def test_an_enormous_epsilon_promises_nothing_without_overflow():
    assert 0 <= float(from_renyi(736.0, 1.0)) < 1e-300
    assert float(from_renyi(1e6, 1.0)) == 0.0
    assert float(from_renyi(math.inf, 1.0, bias=2.0)) == 4.0


def test_promises_without_a_divergence_are_refused_with_a_way_out():
    promise = DifferentialPrivacy(1.0, 1e-5)
    with pytest.raises(sp.InputError, match="two_point"):
        from_privacy(promise, 1.0)
    assert float(two_point(promise, 1.0)) > 0
    assert float(from_privacy(GaussianDP.meeting(1.0, 1e-5), 1.0)) > 0
    assert float(from_privacy(RenyiDP({2: 0.3}), 1.0)) == float(from_renyi(0.3, 1.0))


@given(st.floats(0.01, 8.0), st.floats(0.5, 20.0))
def test_two_points_bound_the_best_guess_there_is(mu, width):
    """The posterior mean of a cell that is one of two values, released with Gaussian noise."""
    grid = np.linspace(-9, mu + 9, 20_001)
    p, q = norm.pdf(grid), norm.pdf(grid, mu)
    with np.errstate(invalid="ignore"):
        risk = np.nan_to_num(width**2 * p * q / (p + q)) / 2
    bayes = np.trapezoid(risk, grid)
    bound = float(two_point(GaussianDP(mu), width))
    assert bound <= bayes * (1 + 1e-6)
    assert bayes <= 2 * bound * (1 + 1e-6)  # and it is not far off


def test_without_a_release_two_points_are_guessed_in_the_middle():
    assert float(two_point(DifferentialPrivacy(0.0), [2.0, 4.0])) == pytest.approx((1 + 4) / 2)


@given(st.floats(0, 10))
def test_membership_is_the_formula_of_humphries_et_al(epsilon):
    want = (math.exp(epsilon) - 1) / (math.exp(epsilon) + 1)
    assert membership_advantage(DifferentialPrivacy(epsilon)) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("diameters", [[], [[1.0]], [-1.0], [math.inf]])
def test_impossible_diameters_are_refused(diameters):
    with pytest.raises(sp.InputError, match="diameters"):
        from_renyi(1.0, diameters)
    with pytest.raises(sp.InputError, match="epsilon"):
        from_renyi(-1.0, 1.0)


# Bias --------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6))
def test_biased_leakage_is_below_the_bound_of_the_whole_matrix(seed):
    rng = np.random.default_rng(seed)
    leak = audit(BY_NAME["linear-l2"])
    row = int(rng.integers(30))
    information = leak.information(row, label=False)
    gamma, bias = rng.uniform(-1, 2, 5), rng.standard_normal(5)
    exact = float(biased(information, np.diag(gamma - 1), bias))
    for measure in ("fil", "dfil"):
        view = leak.rows(label=False, measure=measure)
        loose = biased_leakage(view, gamma, bias)
        assert float(loose[row]) <= exact * (1 + 1e-9)
        plain = biased_leakage(view)
        assert float(plain[row]) == pytest.approx(view.mse_bound()[row], rel=1e-12)
    assert loose.assumptions[0] == "The adversary's estimate has the stated bias."


def test_ignoring_the_release_costs_the_bias_alone():
    nothing = sp.Result(np.array([0.0, 2.0]), "rows", "fil")
    np.testing.assert_array_equal(np.asarray(biased_leakage(nothing, 0.0, 3.0)), [9.0, 9.0])
    with pytest.raises(sp.InputError, match="finite"):
        biased_leakage(nothing, math.nan)


# Priors and van Trees ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("prior", [GaussianPrior([0.5, 2.0], [1, -1]), BoundedPrior([0, -3], 1)])
def test_draws_have_the_density_that_the_information_is_of(prior):
    """Stein: the score of a density has mean zero and the prior's information as variance."""
    drawn = prior.draw(200_000, 2, np.random.default_rng(0))
    if isinstance(prior, GaussianPrior):
        score = -(drawn - prior.centre(2)) / np.array([0.5, 2.0]) ** 2
    else:
        width = np.array([1.0, 4.0])
        centre = np.array([0.5, -1.0])
        assert np.all(np.abs(drawn - centre) < width / 2)
        score = -2 * np.pi / width * np.tan(np.pi * (drawn - centre) / width)
        # tan² is heavy at the limits; its mean under the density is 1.
        score = np.clip(score, -200 / width, 200 / width)
    assert np.all(np.abs(score.mean(axis=0)) < 0.05)
    np.testing.assert_allclose(score.var(axis=0), prior.information(2), rtol=0.05)


def test_a_full_covariance_is_a_prior_too():
    covariance = np.array([[2.0, 0.6], [0.6, 1.0]])
    prior = GaussianPrior(covariance, [3.0, 4.0])
    np.testing.assert_allclose(prior.information(2), np.linalg.inv(covariance))
    drawn = prior.draw(100_000, 2, np.random.default_rng(1))
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.05)
    matrix = np.array([[3.0, 1.0], [1.0, 2.0]])
    want = np.trace(np.linalg.inv(matrix + np.linalg.inv(covariance))) / 2
    assert float(van_trees(matrix, prior)) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("name", ["linear-intercept", "logistic-everything", "softmax-3-l2"])
@pytest.mark.parametrize("columns", [None, [1]])
def test_the_expectation_is_over_refits_at_draws_from_the_prior(name, columns):
    """Against fitting and auditing the table anew for every draw."""
    case, leak = BY_NAME[name], audit(BY_NAME[name])
    size = case.d if columns is None else 1
    prior = GaussianPrior(0.7, mean=0.2)
    got = van_trees_rows(leak, prior, [6], columns, draws=5, seed=3)
    matrices = []
    for z in prior.draw(5, size, np.random.default_rng(3)):
        X = case.X.copy()
        X[6, slice(None) if columns is None else columns] = z
        model = estimator(case).fit(X, case.y, sample_weight=case.sample_weight)
        other = sp.leakage(model, X, case.y, noise=case.noise, sample_weight=case.sample_weight)
        matrices.append(other.information(6, columns, label=False))
    want = van_trees(np.stack(matrices), prior)
    assert float(got[0]) == pytest.approx(float(want), rel=1e-7)
    assert got.labels().tolist() == [6]
    assert "5 draws" in got.assumptions[-1]


def test_a_prior_that_knows_everything_leaves_nothing_to_find():
    leak = audit(BY_NAME["linear"])
    narrow = van_trees_rows(leak, GaussianPrior(1e-3), [0], draws=4)
    assert float(narrow[0]) == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("prior", "options", "words"),
    [
        (EmpiricalPrior(np.eye(5)), {}, "no density"),
        ("gaussian", {}, "must be a GaussianPrior"),
        (GaussianPrior(1.0), {"draws": 1}, "draws must be at least 2"),
        (GaussianPrior([1.0, 2.0]), {}, "one per unknown .5 in all"),
        (GaussianPrior(-1.0), {}, "above zero"),
        (GaussianPrior(1.0, mean=math.nan), {}, "finite"),
        (GaussianPrior(np.zeros((5, 5))), {}, "positive definite"),
        (GaussianPrior(np.eye(3)), {}, "each unknown"),
        (BoundedPrior(1.0, 0.0), {}, "above the lower"),
    ],
)
def test_priors_that_do_not_fit_are_refused(prior, options, words):
    with pytest.raises(sp.InputError, match=words):
        van_trees_rows(audit(BY_NAME["linear"]), prior, [0], **options)


def test_a_prior_under_which_the_model_diverges_is_refused():
    X = np.array([[-2.0], [-1.0], [1.0], [2.0], [-1.5]])
    y = np.array([0, 0, 1, 1, 1])
    model = sp.glm.LogisticRegression(l2=0.0).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match="no minimiser"):
        van_trees_rows(leak, GaussianPrior(0.1, mean=1.5), [4], draws=3)


@pytest.mark.parametrize(
    ("points", "weights", "words"),
    [
        (np.zeros((0, 2)), None, "records"),
        (np.eye(3), None, "shape .records, 2., with one column per unknown"),
        (np.eye(2), [1.0], "weight"),
        (np.eye(2), [-1.0, 2.0], "weight"),
    ],
)
def test_empirical_priors_are_checked(points, weights, words):
    with pytest.raises(sp.InputError, match=words):
        EmpiricalPrior(points, weights).records(2)


# Domains -----------------------------------------------------------------------------------------


def test_domains_are_read_in_every_form():
    table = audit(BY_NAME["one-feature-linear"]).table
    span = Domain.of(None, table)
    assert not span.stated
    assert span.diameters[0] == pytest.approx(np.ptp(table.values))
    for domain in ((-9, 9), ([-9], [9]), {"x0": (-9, 9)}, np.array([-9.0, 9.0])):
        read = Domain.of(domain, table)
        assert (read.stated, read.lower[0], read.upper[0], read.row_norm) == (True, -9, 9, 9)


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        ((0, 0.1), "outside the stated domain"),
        ((9, -9), "finite, with the lower limit first"),
        ((-math.inf, math.inf), "finite, with the lower limit first"),
        (3, "domain must be"),
        ((1, 2, 3), "domain must be"),
        ({"x1": (0, 1)}, "no column 'x1'"),
        ({}, "no limits for the column 'x0'"),
        ({"x0": 3}, "limits"),
    ],
)
def test_impossible_domains_are_refused(domain, words):
    with pytest.raises(sp.InputError, match=words):
        Domain.of(domain, audit(BY_NAME["one-feature-linear"]).table)


def test_a_domain_of_other_columns_is_refused():
    leak = audit(BY_NAME["linear"])
    with pytest.raises(sp.InputError, match="limits for every column"):
        sp.guarantees(leak, domain=Domain(np.zeros(1), np.ones(1), True))


def test_priors_show_numbers_and_count_vectors():
    assert repr(GaussianPrior(np.eye(3))) == "GaussianPrior(std=<covariance>, mean=0)"
    assert repr(GaussianPrior([1.0, 2.0])) == "GaussianPrior(std=<2 numbers>, mean=0)"
    assert repr(BoundedPrior([0.0, 0.0], 1)) == "BoundedPrior(lower=<2 numbers>, upper=1)"


def test_many_released_numbers_are_not_projected_out(monkeypatch):
    monkeypatch.setattr(import_module("seepage.bounds.cramer_rao"), "_BLOCK_LIMIT", 2)
    leak = audit(BY_NAME["linear"])
    with pytest.raises(sp.InputError, match="More than 2 numbers are released"):
        sp.bounds.cramer_rao(leak, 0, columns=[0], rest="unknown")
