"""Figures 2 to 4 of Guo et al. 2022: small runs, and what they measure on MNIST."""

from __future__ import annotations

import numpy as np
import pytest

import seepage as sp
from reproduction import find_experiment
from reproduction.bounds import figure2 as bounds_figure2
from reproduction.bounds import figure3 as bounds_figure3
from reproduction.bounds import figure4 as bounds_figure4
from reproduction.bounds import pixel_models
from seepage.data.structures import Problem


@pytest.fixture
def small(monkeypatch):
    """A few made-up images in place of MNIST: a bright square left or right, in noise."""
    rng = np.random.default_rng(0)
    y = np.arange(160) % 2
    images = 0.4 * rng.random((160, 28, 28)) ** 3
    for image, side in zip(images, y, strict=True):
        left = 4 + 12 * side
        image[8:20, left : left + 8] += 0.5 * rng.random((12, 8))
    X = images.reshape(160, -1)
    problem = Problem(X[:120], y[:120] * 1.0, X[120:], y[120:] * 1.0, ())
    for module in (bounds_figure2, bounds_figure3, bounds_figure4):
        monkeypatch.setattr(module, "problem", lambda: problem)
    return problem


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bounds-figure2", "bounds-figure3", "bounds-figure4"])
def test_it_runs_on_a_small_table(small, name):
    outcome = find_experiment(name).reproduce(quick=True)
    assert len({quantity.name for quantity in outcome.quantities}) == len(outcome.quantities)
    assert outcome.seen.endswith(".")
    assert len(outcome.figure.png) > 1000
    assert all(
        isinstance(quantity.to_json()["measured"], float | int) for quantity in outcome.quantities
    )


def test_ranks_are_compared_up_to_a_limit():
    bound = np.array([1.0, 2.0, 3.0, 4.0])
    error = np.array([1.0, 5.0, 2.0, 0.0])
    assert bounds_figure3.rank_correlation(bound, error, 2.0) == pytest.approx(1.0)
    assert bounds_figure3.rank_correlation(bound, error, 3.0) == pytest.approx(0.5)


@pytest.mark.slow
def test_the_ones_are_known_and_not_counted():
    rng = np.random.default_rng(1)
    X, y = rng.random((12, 784)), np.arange(12) % 2
    ones = pixel_models.with_ones(X)
    fitted = pixel_models.model().fit(ones, y)
    found = pixel_models.bounds(fitted, ones, y, 0.1)
    leak = sp.leakage(fitted, ones, y, noise=sp.Gaussian(0.1))
    traces = np.asarray(leak.cells())[:, :784] ** 2
    np.testing.assert_allclose(found.dfil, 1 / traces.mean(axis=1))
    assert np.all(found.exact >= found.dfil)


@pytest.mark.slow
def test_figure_2_on_mnist():
    try:
        pixel_models.load_mnist(download=False)
    except sp.InputError as error:
        pytest.skip(f"the data set is not at hand: {error}")
    found = {q.name: q for q in find_experiment("bounds-figure2").reproduce(quick=True).quantities}
    assert all(q.agrees for q in found.values() if q.printed is not None)
    assert found["test accuracy in percent, mean of the releases"].measured == pytest.approx(
        99.95, abs=0.1
    )
    assert found["dFIL bound: smallest"].measured == pytest.approx(1.80, abs=0.005)
    assert found["ε(2) of output perturbation, 4L²/(nλσ)²"].measured == pytest.approx(736, abs=1)


@pytest.mark.minutes
def test_figure_3_on_mnist():
    try:
        pixel_models.load_mnist(download=False)
    except sp.InputError as error:
        pytest.skip(f"the data set is not at hand: {error}")
    found = {
        q.name: q.measured
        for q in find_experiment("bounds-figure3").reproduce(quick=False).quantities
    }
    rank = "the paper's attack: rank correlation of bound and {} error, dFIL bound ≤ {}"
    for kind, limit, value in (
        ("mean", "0.001", 0.98),
        ("mean", "1", 0.60),
        ("median", "0.001", 0.99),
        ("median", "1", 0.98),
    ):
        assert found[rank.format(kind, limit)] == pytest.approx(value, abs=0.02)
    for name in ("the paper's attack", "attack with the label"):
        below = f"{name}: mean error below the dFIL bound, in percent, dFIL bound ≤ 1"
        assert found[below] == 0
        assert found[f"{name}: of them above the bound for that slope, in percent"] == 100
    close = "attack with the label: mean error over the exact bound, 100 most exposed records, "
    assert found[close + "median"] == pytest.approx(1.0, abs=0.06)
