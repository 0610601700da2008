"""The best guess among K candidates, against integrals of Bayes' rule by other means."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import seepage as sp
from bayes_oracle import by_lines
from sampled import sampled
from seepage.risks.guessing import accuracy, best_guess


def one(w: np.ndarray, p: np.ndarray, precision: float = 1e-5) -> tuple[float, float]:
    found = best_guess((w @ w.T)[None], p, precision)
    return float(found.right[0]), float(found.error[0])


def by_orthants(w: np.ndarray, p: np.ndarray) -> float:
    """Add up the probabilities that each candidate wins if it is the truth, with SciPy's CDF."""
    total = 0.0
    for k in range(len(w)):
        away = np.delete(w, k, axis=0) - w[k]
        limits = np.log(p[k] / np.delete(p, k)) + np.sum(away**2, axis=1) / 2
        cdf = multivariate_normal(cov=away @ away.T, allow_singular=True)
        cdf.abseps = cdf.releps = 2e-6
        cdf.maxpts = 400_000
        total += p[k] * cdf.cdf(limits)
    return total


@pytest.mark.parametrize("seed", range(6))
def test_three_candidates_are_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.uniform(0.05, 2.5) * rng.standard_normal((3, 2))
    p = rng.dirichlet(np.ones(3))
    assert one(w, p)[0] == pytest.approx(by_lines(w, p), abs=1e-8)


def test_three_candidates_on_a_line_and_two_that_are_the_same() -> None:
    p = np.array([0.5, 0.3, 0.2])
    on_a_line = np.array([[0.0, 0.0], [1.5, 0.0], [3.1, 0.0]])
    assert one(on_a_line, p)[0] == pytest.approx(by_lines(on_a_line, p), abs=1e-8)
    twice = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 0.0]])
    truth = 0.8 * accuracy(1.5, 0.5 / 0.8)
    assert one(twice, p)[0] == pytest.approx(truth, abs=1e-12)
    equal = np.array([0.4, 0.2, 0.4])
    assert one(twice, equal)[0] == pytest.approx(0.6 * accuracy(1.5, 0.4 / 0.6), abs=1e-12)


@pytest.mark.parametrize("levels", sampled([4, 5, 6], [4]))
def test_up_to_six_candidates_are_right_to_the_stated_error(levels: int) -> None:
    rng = np.random.default_rng(levels)
    w = 0.8 * rng.standard_normal((levels, levels - 1))
    p = rng.dirichlet(3 * np.ones(levels))
    right, error = one(w, p)
    assert error <= 1e-5
    assert right == pytest.approx(by_orthants(w, p), abs=1.5e-5)


@pytest.mark.parametrize(
    ("levels", "directions", "size"), [(7, 2, 0.3), (9, 8, 0.7), (30, 3, 0.4), (30, 29, 0.2)]
)
def test_many_candidates_share_their_draws(levels: int, directions: int, size: float) -> None:
    """To a coarse precision: beside hits of plain draws, and in an interval that is kept."""
    rng = np.random.default_rng(levels + directions)
    w, p = size * rng.standard_normal((levels, directions)), rng.dirichlet(np.ones(levels))
    right, error = one(w, p, 1e-3)
    assert 0 < error < 6e-3
    draws = 200_000
    truth = rng.choice(levels, size=draws, p=p)
    seen = w[truth] + rng.standard_normal((draws, directions))
    guessed = np.argmax(np.log(p) + seen @ w.T - np.sum(w**2, axis=1) / 2, axis=1)
    off = 4 * np.sqrt(right * (1 - right) / draws)
    assert right == pytest.approx(np.mean(guessed == truth), abs=error + off)


@pytest.mark.slow
def test_more_candidates_come_with_an_honest_error() -> None:
    rng = np.random.default_rng(1)
    w, p = 0.7 * rng.standard_normal((9, 8)), rng.dirichlet(np.ones(9))
    right, error = one(w, p)
    assert 0 < error < 1e-3
    draws = 400_000
    truth = rng.choice(9, size=draws, p=p)
    seen = w[truth] + rng.standard_normal((draws, 8))
    guessed = np.argmax(np.log(p) + seen @ w.T - np.sum(w**2, axis=1) / 2, axis=1)
    assert right == pytest.approx(np.mean(guessed == truth), abs=error + 4 * 0.5 / np.sqrt(draws))


def test_it_grows_with_every_distance_and_never_falls_below_the_prior() -> None:
    rng = np.random.default_rng(2)
    w, p = rng.standard_normal((3, 2)), rng.dirichlet(np.ones(3), size=5)
    before = p.max(axis=1)
    for scale in (0.0, 0.1, 0.5, 1.0, 3.0):
        gram = np.repeat((scale**2 * w @ w.T)[None], 5, axis=0)
        right = best_guess(gram, p).right
        assert np.all(right >= before - 1e-12)
        before = right
    # Data processing: a projection of the release tells no more.
    flat = w.copy()
    flat[:, 1] = 0.0
    assert one(flat, p[0])[0] <= one(w, p[0])[0] + 1e-12


def test_a_candidate_without_a_release_is_told_for_certain() -> None:
    gram = np.zeros((1, 2, 2))
    gram[0, 1, 1] = np.inf
    assert best_guess(gram, np.array([0.9, 0.1])).right[0] == pytest.approx(1.0)


def test_a_bad_prior_is_refused() -> None:
    with pytest.raises(sp.InputError, match="needs one probability per candidate"):
        best_guess(np.zeros((1, 3, 3)), np.array([0.5, 0.5]))
    with pytest.raises(sp.InputError, match="add up to 1"):
        best_guess(np.zeros((1, 2, 2)), np.array([0.9, 0.3]))


def on_a_plane(points: list[list[float]], prior: list[float]) -> None:
    w, p = np.array(points), np.array(prior)
    right, error = one(w, p, 1e-4)
    assert right == pytest.approx(by_lines(w, p), abs=error + 1e-9)


def test_four_candidates_that_span_a_plane_are_right_to_the_stated_error() -> None:
    # Two of them differ in the lesser direction alone.
    on_a_plane([[1.5, 0.0], [-1.5, 0.0], [0.0, 1.0], [0.0, -1.0]], [0.1, 0.2, 0.3, 0.4])


def test_four_candidates_on_a_line_are_exact() -> None:
    on_a_line = np.array([[0.0, 0.0], [1.0, 0.0], [2.5, 0.0], [4.0, 0.0]])
    p = np.array([0.1, 0.2, 0.3, 0.4])
    t = np.linspace(-9, 13, 200_001)
    heights = p[:, None] * np.exp(-((t - on_a_line[:, :1]) ** 2) / 2) / np.sqrt(2 * np.pi)
    right, error = one(on_a_line, p)
    assert error == 0.0
    assert right == pytest.approx(float(np.trapezoid(heights.max(axis=0), t)), abs=1e-8)


def test_of_two_equal_candidates_among_four_only_one_is_guessed() -> None:
    w = np.array([[0.0, 0.0], [1.0, 0.0], [2.5, 0.0], [2.5, 0.0]])
    three = one(w[:3], np.full(3, 1 / 3))[0]
    assert one(w, np.full(4, 0.25))[0] == pytest.approx(0.75 * three, abs=1e-9)


@pytest.mark.parametrize("candidates", [3, 4])
def test_a_record_whose_every_candidate_leaves_no_release(candidates: int) -> None:
    gram = np.zeros((2, candidates, candidates))
    gram[0, range(candidates), range(candidates)] = np.inf
    prior = np.full(candidates, 1 / candidates)
    assert best_guess(gram[:1], prior).right == pytest.approx([1.0])
    # Beside a record whose candidates all have the same release.
    assert best_guess(gram, prior).right == pytest.approx([1.0, 1 / candidates])
