"""Guesses to within a tolerance, against a simulation that guesses."""

from __future__ import annotations

import numpy as np
import pytest

from seepage.risks.guessing import accuracy, best_within, windows


def test_windows_cover_what_a_guess_may_be_off_by() -> None:
    covered = windows(np.array([0.0, 1.0, 2.0, 5.0]), 1.0)
    assert covered[0].tolist() == [True, True, True, False]
    assert covered[3].tolist() == [False, False, False, True]


def test_it_is_what_a_simulated_adversary_reaches() -> None:
    rng = np.random.default_rng(0)
    v = np.linspace(20, 80, 13)
    curve = np.stack([np.sin(v / 20), v / 15, (v / 40) ** 2], axis=1)
    p = rng.dirichlet(np.ones(13))
    gram = (curve @ curve.T)[None]
    found = best_within(gram, p, windows(v, 5.0), draws=4000, rng=np.random.default_rng(1))
    draws = 60_000
    truth = rng.choice(13, size=draws, p=p)
    seen = curve[truth] + rng.standard_normal((draws, 3))
    scores = np.log(p) + seen @ curve.T - np.sum(curve**2, axis=1) / 2
    posterior = np.exp(scores - scores.max(axis=1, keepdims=True))
    # Guesses on a fine grid of numbers, the best of them by the posterior, counted by the truth.
    numbers = np.linspace(15, 85, 141)
    mass = posterior @ (np.abs(v[:, None] - numbers[None, :]) <= 5.0 + 1e-9)
    right = np.abs(v[truth] - numbers[mass.argmax(axis=1)]) <= 5.0 + 1e-9
    slack = float(found.error[0]) + 2.6 * 0.5 / np.sqrt(draws)
    assert float(found.right[0]) == pytest.approx(right.mean(), abs=slack)


def test_two_values_far_apart_are_a_guess_between_two() -> None:
    gram = np.array([[[0.0, 0.0], [0.0, 4.0]]])
    cover = windows(np.array([0.0, 10.0]), 1.0)
    found = best_within(
        gram, np.array([0.4, 0.6]), cover, draws=40_000, rng=np.random.default_rng(2)
    )
    assert float(found.right[0]) == pytest.approx(accuracy(2.0, 0.4), abs=float(found.error[0]))


def test_a_value_without_a_release_leaves_nothing_to_say() -> None:
    gram = np.zeros((2, 3, 3))
    gram[0, 1, 1] = np.inf
    cover = windows(np.arange(3.0), 0.1)
    found = best_within(gram, np.full(3, 1 / 3), cover, rng=np.random.default_rng(0))
    assert (found.right[0], found.error[0]) == (1.0, 1.0)
    assert found.right[1] == pytest.approx(1 / 3, abs=float(found.error[1]) + 1e-9)
