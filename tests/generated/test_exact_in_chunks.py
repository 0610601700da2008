"""Columns far from zero, in chunks and under finite changes, beside their truth in 60 digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from truth import Digits60, Objective, Truth

import seepage as sp
import seepage.streams.disk.source as reading
from sampled import sampled

KINDS = {
    "gaussian": sp.glm.LinearRegression,
    "bernoulli": sp.glm.LogisticRegression,
    "poisson": sp.glm.PoissonRegression,
    "categorical": sp.glm.SoftmaxRegression,
}
ROWS, L2, SIGMA = 12, 1e-2, 0.1


def problem(family: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a table with a time stamp, a serial number and an ordinary column, and labels."""
    rng = np.random.default_rng(5)
    Z = rng.standard_normal((ROWS, 3))
    X = Z * [1.0, 60.0, 1e3] + [0.5, 1.7e9, 3e12]
    signal = Z @ [1.0, -0.5, 0.3] + rng.standard_normal(ROWS)
    if family == "bernoulli":
        return X, (signal > 0).astype(float)
    if family == "poisson":
        return X, rng.poisson(np.exp(signal / 2)).astype(float)
    if family == "categorical":
        return X, np.digitize(signal, [-0.5, 0.5])
    return X, signal


def true_release(family: str, X: np.ndarray, y: np.ndarray) -> Truth:
    """Return the minimiser in 60 digits."""
    classes = 3 if family == "categorical" else 1
    return Truth(Objective(family, X, y, ROWS * L2, True, classes=classes), Digits60())


def estimator(family: str) -> Any:
    return KINDS[family](l2=L2, fit_intercept=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, from which few rows are read at a time."""
    monkeypatch.setattr(reading, "_CHUNK", 30)
    monkeypatch.setattr(reading, "_WIDE", 1)
    return tmp_path


def right(answer: sp.Result, truth: Any) -> None:
    """Check numbers against the truth, and that what they say of their accuracy holds."""
    found, true = np.asarray(answer, dtype=float), np.asarray(truth, dtype=float)
    stated = np.broadcast_to(np.asarray(answer.accuracy, dtype=float), found.shape)
    assert np.all(stated < 1e-6)
    assert np.all(np.abs(found - true) <= 10 * stated * true)


@pytest.mark.parametrize("family", sampled(KINDS, 2))
def test_time_stamps_in_parquet_files(family: str, folder: Path) -> None:
    X, y = problem(family)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    frame[:7].to_parquet(folder / "1.parquet")
    frame[7:].to_parquet(folder / "2.parquet")
    data = sp.parquet(folder, target="y")
    leak = sp.leakage(estimator(family).fit(data), data, noise=sp.Gaussian(SIGMA))
    W = true_release(family, X, y).whitened(np.asarray(SIGMA))
    every = [W.block([i], None, True) for i in range(ROWS)]
    records = [W.measure(block, "fil") for block in every]
    right(leak.records().result(), records)
    right(leak.records(measure="dfil").result(), [W.measure(block, "dfil") for block in every])
    right(leak.records().top(1), [max(records)])
    cells = [[W.measure(W.block([i], [j]), "fil") for j in range(3)] for i in range(ROWS)]
    right(leak.cells().result(), cells)
    for measure in ("fil", "dfil"):
        columns = [W.measure(W.block(None, [j]), measure) for j in range(3)]
        right(leak.columns(measure=measure), columns)
        right(leak.dataset(measure), W.measure(W.block(None, None, True), measure))
    teams = np.arange(ROWS) % 2
    groups = [W.block(np.flatnonzero(teams == g), None, True) for g in (0, 1)]
    right(leak.groups(teams), [W.measure(block, "fil") for block in groups])
    right(leak.subset([2, 10], ["b"]), W.measure(W.block([2, 10], [1]), "fil"))


@pytest.mark.parametrize("family", KINDS)
def test_a_finite_change_of_a_time_stamp(family: str) -> None:
    X, y = problem(family)
    leak = sp.leakage(estimator(family).fit(X, y), X, y, noise=sp.Gaussian(SIGMA))
    X[3, 1] += 25.0
    moved = true_release(family, X, y).parameters.reshape(-1)
    X[3, 1] -= 25.0
    moved = (moved - true_release(family, X, y).parameters.reshape(-1)).astype(float)
    other = X[3].copy()
    other[1] += 25.0
    found = leak.refits().moves(3, other)[0]
    # This is what bounds on finite changes are made of.
    np.testing.assert_allclose(found, moved, rtol=1e-6, atol=1e-9 * np.abs(moved).max())


@pytest.mark.parametrize("family", KINDS)
def test_leaving_out_a_record_with_a_time_stamp(family: str) -> None:
    X, y = problem(family)
    leak = sp.leakage(estimator(family).fit(X, y), X, y, noise=sp.Gaussian(SIGMA))
    classes = 3 if family == "categorical" else 1
    kept = np.arange(ROWS) != 4
    rest = Objective(family, X[kept], y[kept], ROWS * L2, True, classes=classes)
    theta = true_release(family, X, y).parameters - Truth(rest, Digits60()).parameters
    true = float(np.sqrt((theta.astype(float) ** 2).sum())) / SIGMA
    found = float(np.asarray(leak.membership([4], exact=True).mu)[0])
    assert found == pytest.approx(true, rel=1e-6)


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_records_drawn_in_place_of_one_with_a_time_stamp(family: str) -> None:
    X, y = problem(family)
    leak = sp.leakage(estimator(family).fit(X, y), X, y, noise=sp.Gaussian(SIGMA))
    refits = leak.refits()
    other = X[3].copy()
    other[1] += 25.0
    theta = refits.parameters(3, other)[0]
    jacobian = refits.jacobian(3, other, y[3], theta, sp.Gaussian(SIGMA))
    X[3] = other
    W = true_release(family, X, y).whitened(np.asarray(SIGMA))
    unknowns, _ = leak.unknowns(["x1"], False)
    found = float(jacobian.row_norms(unknowns)[0])
    assert found == pytest.approx(W.measure(W.block([3], [1]), "fil") ** 2, rel=1e-6)
