"""The limit to a guess among many candidates, beside draws of the release."""

from __future__ import annotations

import numpy as np
import pytest

from seepage.risks.guessing import accuracy, best_guess, guess_limit


def distances(places: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum((places[:, None] - places[None]) ** 2, axis=2))


def drawn(places: np.ndarray, prior: np.ndarray, rng: np.random.Generator) -> float:
    """How often the likeliest candidate is the true one, over 200,000 draws."""
    truth = rng.choice(len(prior), 200_000, p=prior)
    seen = places[truth] + rng.standard_normal((len(truth), places.shape[1]))
    with np.errstate(divide="ignore"):
        scores = np.log(prior) - ((seen[:, None] - places) ** 2).sum(axis=2) / 2
    return float(np.mean(scores.argmax(axis=1) == truth))


@pytest.mark.parametrize("levels", [2, 3, 4, 6, 9])
@pytest.mark.parametrize("size", [0.1, 0.7, 2.0, 6.0])
def test_no_guess_is_right_more_often(levels: int, size: float) -> None:
    rng = np.random.default_rng(levels)
    for rare in (1.0, 0.1):
        places = size * rng.standard_normal((levels, 3))
        prior = rng.dirichlet(np.full(levels, rare))
        limit = float(guess_limit(distances(places)[None], prior[None])[0])
        right = drawn(places, prior, rng)
        assert prior.max() <= limit <= 1
        assert right <= limit + 0.004  # four standard errors
        if levels == 2:
            assert right == pytest.approx(limit, abs=0.004)
        # The limit is of use: within a few times what the release adds.
        assert limit - prior.max() <= 4 * max(right - prior.max(), 0) + 0.01


def test_the_limit_of_two_candidates_is_exact() -> None:
    mu, p = np.array([0.0, 0.3, 2.0, np.inf]), np.array([0.5, 0.9, 0.01, 0.3])
    apart = np.zeros((4, 2, 2))
    apart[:, 0, 1] = apart[:, 1, 0] = mu
    limits = guess_limit(apart, np.c_[p, 1 - p])
    assert limits == pytest.approx(accuracy(mu, p), abs=1e-12)


def test_corners_of_the_limit() -> None:
    same = np.zeros((1, 4, 4))
    prior = np.array([[0.4, 0.3, 0.3, 0.0]])
    assert guess_limit(same, prior).tolist() == [0.4]  # the releases are all the same
    lost = same.copy()
    lost[0, 2, :] = lost[0, :, 2] = np.inf  # one level leaves no release at all
    lost[0, 2, 2] = 0.0
    assert guess_limit(lost, prior)[0] == pytest.approx(0.7)
    gram = np.diag([0.0, 0.0, np.inf, 0.0])[None]
    assert best_guess(gram, prior).right[0] == pytest.approx(0.7)
    every = np.where(np.eye(4, dtype=bool), 0.0, np.inf)[None]
    assert guess_limit(every, prior)[0] == pytest.approx(1.0)
    sure = np.array([[0.0, 1.0, 0.0, 0.0]])
    assert guess_limit(every, sure).tolist() == [1.0]
