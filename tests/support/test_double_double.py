"""Arithmetic of twice the precision against mpmath."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from seepage.support.double_double import Double, exponential, product


def exact(pairs: Double) -> list[mpmath.mpf]:
    return [mpmath.mpf(h) + mpmath.mpf(t) for h, t in zip(*pairs, strict=True)]


def pairs(scale: float, seed: int) -> Double:
    rng = np.random.default_rng(seed)
    high = scale * rng.standard_normal(50)
    return Double(high, 1e-17 * high * rng.uniform(-1, 1, 50))


@pytest.mark.parametrize("scale", [1e-9, 1.0, 30.0])
def test_the_exponential_of_a_pair(scale: float) -> None:
    x = pairs(scale, seed=0)
    with mpmath.workdps(50):
        for found, at in zip(exact(exponential(x)), exact(x), strict=True):
            assert abs(found / mpmath.exp(at) - 1) < 1e-30


def test_exponentials_beyond_all_numbers_are_zero_and_that_of_zero_is_one() -> None:
    found = exponential(Double.of(np.array([0.0, -1e5])))
    assert found.high.tolist() == [1.0, 0.0]
    assert found.low.tolist() == [0.0, 0.0]


def test_products_and_quotients_of_pairs() -> None:
    x, y = pairs(3.0, seed=1), pairs(1e5, seed=2)
    with mpmath.workdps(50):
        for found, a, b in zip(exact(x * y), exact(x), exact(y), strict=True):
            assert abs(found / (a * b) - 1) < 1e-30
        for found, a in zip(exact(x / 7.0), exact(x), strict=True):
            assert abs(found * 7 / a - 1) < 1e-30


def test_a_product_over_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="an empty product"):
        product(Double.of(np.ones((2, 0))), Double.of(np.ones((0, 3))))
