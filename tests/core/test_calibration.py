"""Calibrated noise meets its target exactly, whatever the noise and the view."""

import numpy as np
import pytest

import seepage as sp

RNG = np.random.default_rng(1)
X = RNG.standard_normal((60, 4))
Y = (X[:, 0] + 0.5 * RNG.standard_normal(60) > 0).astype(int)
MODEL = sp.glm.LogisticRegression(l2=0.05).fit(X, Y)
NOISES = [
    sp.Gaussian(0.3),
    sp.Gaussian([0.1, 0.2, 0.3, 0.4]),
    sp.Gaussian(np.diag([0.1, 0.2, 0.3, 0.4]) + 0.01),
    sp.Laplace(2.0),
]


def at(noise):
    return sp.leakage(MODEL, X, Y, noise=noise)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize(
    ("over", "summary"),
    [("max", np.max), ("mean", np.mean), (0.9, lambda v: np.quantile(v, 0.9)), (1, np.max)],
)
def test_the_leakage_meets_its_target(noise, over, summary):
    calibrated = sp.calibrate(at(noise), eta=0.01, over=over, grid=None)
    assert type(calibrated) is type(noise)
    assert summary(np.asarray(at(calibrated).rows())) == pytest.approx(0.01, rel=1e-12)


@pytest.mark.parametrize(
    "view",
    [
        lambda leak: leak.rows(measure="dfil"),
        lambda leak: leak.cells(),
        lambda leak: leak.columns(),
        lambda leak: leak.labels(),
        lambda leak: leak.dataset(),
        lambda leak: sp.bounds.cramer_rao_rows(leak),
        lambda leak: leak.rows().std_bound(),
    ],
    ids=["dfil", "cells", "columns", "labels", "dataset", "exact bound", "standard error"],
)
def test_an_error_bound_meets_its_target_in_any_view(view):
    leak = at(sp.Gaussian(0.3))
    after = view(at(sp.calibrate(leak, mse=4.0, view=view(leak), grid=None)))
    errors = {"mse": after, "std": after}.get(after.measure)
    bound = after.mse_bound() if errors is None else errors
    power = 2 if after.measure == "std" else 1
    assert np.min(np.asarray(bound)) ** power == pytest.approx(4.0, rel=1e-11)


def test_the_mean_of_bounds_meets_its_target():
    leak = at(sp.Gaussian(0.3))
    noise = sp.calibrate(leak, mse=9.0, over="mean", grid=None)
    assert np.mean(np.asarray(at(noise).rows().mse_bound())) == pytest.approx(9.0, rel=1e-12)


@pytest.mark.parametrize("eta", [0.3, 0.01, 7.0])
@pytest.mark.parametrize("noise", [sp.Gaussian(0.37), sp.Laplace(0.2)])
def test_noise_lies_on_the_coarse_grid_unless_told_otherwise(noise, eta):
    leak = at(noise)
    coarse, exact = sp.calibrate(leak, eta=eta), sp.calibrate(leak, eta=eta, grid=None)
    name = "sigma" if isinstance(noise, sp.Gaussian) else "scale"
    found, least = getattr(coarse, name), getattr(exact, name)
    assert f"{found:.1e}".split("e")[0] in {"1.0", "1.5", "2.0", "3.0", "5.0", "7.0"}
    assert least <= found <= 1.5 * least
    assert float(np.max(at(coarse).records())) <= eta
    by_tens = getattr(sp.calibrate(leak, eta=eta, grid=(1.0,)), name)
    assert by_tens == 10.0 ** np.ceil(np.log10(least))


def test_of_shaped_noise_the_factor_lies_on_the_grid():
    before = np.array([0.1, 0.2, 0.3, 0.4])
    factors = sp.calibrate(at(sp.Gaussian(before)), eta=0.01).sigma / before
    assert np.ptp(factors) < 1e-12 * factors[0]
    assert f"{factors[0]:.6e}".split("e")[0].rstrip("0").rstrip(".") in {
        "1",
        "1.5",
        "2",
        "3",
        "5",
        "7",
    }


def test_the_mean_of_biased_bounds_meets_its_target():
    leak = at(sp.Gaussian(0.3))
    view = sp.bounds.biased_leakage(leak.rows(), bias=1.0)
    noise = sp.calibrate(leak, mse=9.0, over="mean", view=view, grid=None)
    variance = np.mean(1 / np.asarray(leak.rows()) ** 2)
    assert noise.sigma == pytest.approx(0.3 * np.sqrt(8.0 / variance), rel=1e-9)
