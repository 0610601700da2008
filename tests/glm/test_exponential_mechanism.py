"""A choice among candidates: everything is a finite sum, and derivatives are checked by steps."""

import numpy as np
import pytest

import seepage as sp
from seepage.errors import InputError

LOSSES = {
    "gaussian": lambda m, y: (m - y) ** 2 / 2,
    "bernoulli": lambda m, y: np.log1p(np.exp(m)) - y * m,
    "poisson": lambda m, y: np.exp(m) - y * m,
}


def case(family, intercept=False):
    rng = np.random.default_rng(4)
    X, candidates = rng.standard_normal((12, 2)), rng.standard_normal((5, 2 + intercept)) / 2
    y = {"gaussian": rng.standard_normal(12), "bernoulli": rng.integers(0, 2, 12) * 1.0}
    return candidates, X, y.get(family, rng.poisson(1.0, 12).astype(float))


def shares(family, candidates, X, y, sharpness):
    padded = np.hstack([X, np.ones((len(X), 1))])[:, : candidates.shape[1]]
    loss = LOSSES[family](padded @ candidates.T, y[:, None]).sum(axis=0)
    odds = np.exp(-sharpness * (loss - loss.min()))
    return odds / odds.sum()


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("family", LOSSES)
def test_leakage_by_finite_differences(family, intercept):
    candidates, X, y = case(family, intercept)
    chosen = sp.glm.ExponentialMechanism(candidates, X, y, 0.4, family)
    p = shares(family, candidates, X, y, 0.4)
    np.testing.assert_allclose(chosen.probabilities, p, rtol=1e-10)
    for i in range(3):
        scores = []
        for k in range(3):
            ends = []
            for h in (1e-5, -1e-5):
                Z, labels = X.copy(), y.copy()
                if k < 2:
                    Z[i, k] += h
                else:
                    labels[i] += h
                ends.append(np.log(shares(family, candidates, Z, labels, 0.4)))
            scores.append((ends[0] - ends[1]) / 2e-5)
        information = (np.array(scores) * p) @ np.array(scores).T
        np.testing.assert_allclose(chosen.information()[i], information, rtol=1e-5, atol=1e-8)
        eta = np.sqrt(np.linalg.eigvalsh(information)[-1])
        assert np.asarray(chosen.records())[i] == pytest.approx(eta, rel=1e-5)
        label = np.sqrt(information[2, 2])
        assert np.asarray(chosen.labels())[i] == pytest.approx(label, rel=1e-5)
        q = shares(family, candidates, np.delete(X, i, 0), np.delete(y, i), 0.4)
        right = np.sum(np.maximum(p, q)) / 2
        assert np.asarray(chosen.membership())[i] == pytest.approx(right, rel=1e-10)


def test_draws_have_the_stated_frequencies():
    candidates, X, y = case("bernoulli")
    chosen = sp.glm.ExponentialMechanism(candidates, X, y, 0.4, "bernoulli")
    drawn = np.bincount([chosen.draw(seed) for seed in range(4000)], minlength=5) / 4000
    np.testing.assert_allclose(drawn, chosen.probabilities, atol=0.035)
    assert 0 <= chosen.draw() < 5


def test_losses_of_any_size_are_compared():
    _, X, y = case("gaussian")
    far = sp.glm.ExponentialMechanism([[1e4, 0.0], [0.0, 0.0]], X, y, 1.0, "gaussian")
    np.testing.assert_allclose(far.probabilities, [0.0, 1.0])
    assert np.isfinite(np.asarray(far.records())).all()


def test_the_sharper_the_surer():
    candidates, X, y = case("bernoulli")
    most = [
        sp.glm.ExponentialMechanism(candidates, X, y, sharpness=one, family="bernoulli")
        for one in (0.02, 0.2, 2.0)
    ]
    assert np.all(np.diff([one.probabilities.max() for one in most]) > 0)


def test_bad_input_is_refused():
    candidates, X, y = case("bernoulli")
    for wrong, sentence in (
        ((candidates, X, y, 0.0, "bernoulli"), "above zero"),
        ((candidates[:1], X, y, 1.0, "bernoulli"), "at least two rows"),
        ((candidates[:, :1], X, y, 1.0, "bernoulli"), "at least two rows"),
        ((candidates, X, y[:3], 1.0, "bernoulli"), "12 records, but y has 3 labels"),
        ((candidates * np.nan, X, y, 1.0, "bernoulli"), "finite"),
        ((candidates, X, y + 5, 1.0, "bernoulli"), "is not valid for"),
        ((candidates, X, y, "abc", "bernoulli"), "sharpness must be a finite number above zero"),
        ((candidates, X, [None] * 12, 1.0, "bernoulli"), "labels must be finite"),
        ((candidates, X, ["a"] * 12, 1.0, "bernoulli"), "y must contain one number"),
        ((candidates, X, y.astype(str), 1.0, "bernoulli"), "y must contain one number"),
        (([[1.0, 0.0], [1.0]], X, y, 1.0, "bernoulli"), "all of the same length, not"),
        (("abc", X, y, 1.0, "bernoulli"), "rows of numbers, .* not 'abc'"),
        (([candidates] * 2, X, y, 1.0, "bernoulli"), "at least two rows"),
        ((candidates, X, y, 1.0, None), "name of a family, .* not None"),
        ((candidates, X, y, 1.0, "abc"), "no family 'abc'"),
    ):
        with pytest.raises(InputError, match=sentence):
            sp.glm.ExponentialMechanism(*wrong)
