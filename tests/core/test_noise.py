"""The noise: what information it lets through, and what is drawn."""

import numpy as np
import pytest

import seepage as sp


def _numeric_location_information(log_density, spread):
    """∫ p′²/p by the trapezium rule."""
    z = np.linspace(-40 * spread, 40 * spread, 400_001)
    p = np.exp(log_density(z))
    slope = np.gradient(p, z)
    inside = p > 1e-290
    return np.trapezoid(np.where(inside, slope**2 / np.where(inside, p, 1.0), 0.0), z)


def test_gaussian_information_is_that_of_its_density():
    sigma = 0.7
    numeric = _numeric_location_information(
        lambda z: -0.5 * (z / sigma) ** 2 - np.log(sigma * np.sqrt(2 * np.pi)), sigma
    )
    assert sp.Gaussian(sigma).information(1) == pytest.approx(numeric, rel=1e-5)


def test_laplace_information_is_that_of_its_density():
    scale = 0.4
    numeric = _numeric_location_information(lambda z: -np.abs(z) / scale - np.log(2 * scale), scale)
    assert sp.Laplace(scale).information(1) == pytest.approx(numeric, rel=1e-3)


def test_matrix_information_inverts_the_covariance():
    covariance = np.array([[2.0, 0.3], [0.3, 0.5]])
    np.testing.assert_allclose(
        sp.Gaussian(covariance).information(2) @ covariance, np.eye(2), atol=1e-14
    )


@pytest.mark.parametrize(
    "noise",
    [
        sp.Gaussian(0.5),
        sp.Gaussian([0.5, 2.0]),
        sp.Gaussian([[2.0, 0.3], [0.3, 0.5]]),
        sp.Laplace(0.5),
        sp.Laplace([0.5, 1.0]),
    ],
    ids=repr,
)
def test_draws_have_the_stated_covariance_and_scale(noise):
    draws = noise.draw((200_000, 2), seed=1)
    information = noise.information(2)
    full = information if information.ndim == 2 else np.diag(np.broadcast_to(information, 2))
    variance = 2.0 if isinstance(noise, sp.Laplace) else 1.0
    np.testing.assert_allclose(np.cov(draws.T), variance * np.linalg.inv(full), atol=0.05)
    # Scaling by 3 divides the information by 9.
    np.testing.assert_allclose(noise.scaled(3.0).information(2) * 9, information)


def test_without_a_seed_no_two_draws_agree_and_with_one_they_do():
    noise = sp.Gaussian(1.0)
    assert not np.array_equal(noise.draw(8), noise.draw(8))
    assert np.array_equal(noise.draw(8, seed=3), noise.draw(8, seed=3))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sp.Gaussian(0.0), "above zero, not 0"),
        (lambda: sp.Gaussian(-1.0), "above zero, not -1"),
        (lambda: sp.Gaussian(float("nan")), "above zero, not nan"),
        (lambda: sp.Gaussian([1.0, 0.0]), "a vector with 0 in it"),
        (lambda: sp.Laplace(-2), "above zero, not -2"),
        (lambda: sp.Laplace(np.eye(2)), "number or a vector"),
        (lambda: sp.Gaussian(np.ones((2, 3))), "square covariance"),
        (lambda: sp.Gaussian([[1.0, 2.0], [0.0, 1.0]]), "symmetric"),
        (lambda: sp.Gaussian(np.ones((2, 2))), "without noise"),
        (lambda: sp.Gaussian([1.0, 2.0]).information(3), "the noise has 2"),
        (lambda: sp.Gaussian(1.0).scaled(0.0), "factor must be"),
    ],
)
def test_impossible_noise_is_refused_in_one_sentence(make, says):
    with pytest.raises(sp.InputError, match=says):
        make()
