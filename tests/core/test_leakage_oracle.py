"""Every view and measure of every case against the naive dense truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import seepage as sp
from cases import BY_NAME, CASES, Case, audit, estimator, fit, trio
from oracle import Dense, dense, fil, minimise, problem_of, stack
from recipes import binary, classes, counts, covariance, table
from sampled import sampled
from views import VIEWS, View, check, sites


def ids(items: Sequence[Any]) -> list[str]:
    return [item.name for item in items]


def _marks(k: int) -> list[Any]:
    """Every view of one case in six; of the others in `make test-slow`, half of them in CI."""
    if k % 12 in (0, 9):
        return []
    return [pytest.mark.slow if k % 2 else pytest.mark.minutes]


PAIRS = [
    pytest.param(view, case, id=f"{case.name}-{view.name}", marks=_marks(k))
    for k, case in enumerate(CASES)
    for view in VIEWS
    if view.applies_to(case)
]


@pytest.mark.parametrize(("view", "case"), PAIRS)
def test_view_agrees_with_dense_truth(view: View, case: Case) -> None:
    check(view, audit(case), dense(case), case)


# --- several releases of one table --------------------------------------------------------------


def _releases() -> dict[str, list[Case]]:
    """Releases whose sum is asked about, each list about one and the same table."""
    X = table(200, 22, 5)
    X[:, [1, 2, 4]] = np.eye(3)[np.arange(22) % 3]
    y, z, c = counts(201, X), binary(202, X), classes(203, X, 3)
    linear = Case("linear", "gaussian", X, y, 0.02, True)
    poisson = Case("poisson", "poisson", X, y)
    softmax = Case("softmax", "categorical", X, c, 0.05, True)
    wide = BY_NAME["widest-poisson"]
    return {
        "twice": [linear, replace(linear, noise=sp.Gaussian(0.4))],
        "linear-and-poisson": [linear, poisson],
        "three": [linear, poisson, replace(linear, l2=0.5, noise=sp.Gaussian(covariance(204, 6)))],
        "weighted-and-not": [
            replace(poisson, l2=0.02, sample_weight=np.arange(22.0), intercept=True),
            replace(linear, noise=sp.Laplace(0.7)),
        ],
        "softmax-twice": [softmax, replace(softmax, l2=1.0, noise=sp.Laplace(2.0))],
        "softmax-and-logistic": [softmax, Case("logistic", "bernoulli", X, z, 0.05)],
        "wide": [wide, replace(wide, family="gaussian", intercept=True)],
    }


RELEASES = _releases()
UNLIKE_LABELS = {"softmax-and-logistic"}
COMPOSED = [
    pytest.param(view, name, id=f"{name}-{view.name}")
    for name in RELEASES
    for view in VIEWS
    if view.applies_to(RELEASES[name][0]) and not (name in UNLIKE_LABELS and view.about_labels)
]


@cache
def composed(name: str) -> tuple[Any, Dense]:
    """Return the leakage of all releases together, and the truth about it."""
    releases = RELEASES[name]
    leak = sp.compose(*(audit(case) for case in releases))
    return leak, stack(*(dense(case) for case in releases))


@pytest.mark.parametrize(("view", "name"), COMPOSED)
def test_composition_agrees_with_stacked_truth(view: View, name: str) -> None:
    check(view, *composed(name), RELEASES[name][0])


def test_unlike_labels_do_not_add() -> None:
    leak, _ = composed("softmax-and-logistic")
    with pytest.raises(sp.InputError, match="label=False"):
        leak.rows()


# --- the same numbers from every library --------------------------------------------------------

FAMILIAR = [
    BY_NAME[name]
    for name in (
        "linear-everything",
        "logistic-intercept",
        "poisson-weighted",
        "many-logistic-intercept-covariance",
        "hidden-root-linear",
        "softmax-3-weighted-intercept-l2",
    )
]


def audit_in(case: Case, X: Any, y: Any, weight: Any, **options: Any) -> Any:
    """Fit and audit a case on data held by some other library."""
    model = estimator(case).fit(X, y, sample_weight=weight)
    groups = {"trio": trio(case)} if case.d >= 4 else None
    return sp.leakage(
        model, X, y, noise=case.noise, sample_weight=weight, attributes=groups, **options
    )


@pytest.mark.parametrize("case", sampled(FAMILIAR, 3), ids=ids(FAMILIAR))
def test_torch_agrees_with_numpy(case: Case) -> None:
    weight = None if case.sample_weight is None else torch.tensor(case.sample_weight)
    leak = audit_in(case, torch.tensor(case.X), torch.tensor(case.y), weight)
    assert isinstance(leak.rows().values, torch.Tensor)
    for view in VIEWS:
        if not view.applies_to(case):
            continue
        for measure in view.measures:
            got, want = view.ask(leak, case, measure), view.ask(audit(case), case, measure)
            np.testing.assert_allclose(got, want, rtol=1e-11, atol=0, err_msg=view.name)


@pytest.mark.parametrize("case", sampled(FAMILIAR, 3), ids=ids(FAMILIAR))
def test_single_precision_on_request(case: Case) -> None:
    leak = sp.leakage(
        fit(case),
        case.X,
        case.y,
        noise=case.noise,
        sample_weight=case.sample_weight,
        attributes={"trio": trio(case)} if case.d >= 4 else None,
        dtype="float32",
    )
    assert np.asarray(leak.rows()).dtype == np.float32
    for view in VIEWS:
        if not view.applies_to(case):
            continue
        for measure in view.measures:
            got, want = view.ask(leak, case, measure), view.ask(audit(case), case, measure)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=0, err_msg=view.name)


def _frames() -> dict[str, Callable[[dict[str, np.ndarray]], Any]]:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    return {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("case", sampled(FAMILIAR, 2), ids=ids(FAMILIAR))
def test_data_frames_agree_with_numpy(case: Case, library: str) -> None:
    make = _frames()[library]
    X = make({f"x{j}": case.X[:, j] for j in range(case.d)})
    leak = audit_in(case, X, case.y, case.sample_weight)
    for view in VIEWS:
        if not view.applies_to(case):
            continue
        for measure in view.measures:
            got, want = view.ask(leak, case, measure), view.ask(audit(case), case, measure)
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=0, err_msg=view.name)
    for answer in (leak.rows(), leak.cells(), leak.columns(), leak.groups(sites(case))):
        assert type(answer.table()) is type(X)


# --- the truth and the table themselves ---------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    sampled(
        [
            "linear-everything",
            "logistic-everything",
            "poisson-everything",
            "covariance-softmax-intercept",
        ],
        ["linear-everything"],
    ),
)
def test_oracle_agrees_with_differences_of_its_minimiser(name: str) -> None:
    """The implicit function theorem against moving one entry at a time and solving again."""
    case = replace(BY_NAME[name], noise=sp.Gaussian(1.0))
    problem, full = problem_of(case), dense(case)
    h = 1e-3
    for row, entry in ((0, 0), (3, case.d - 1), (2, case.d)):
        solutions = {}
        for step in (-2, -1, 1, 2):
            X, label = problem.X.clone(), problem.label_start.clone()
            if entry < case.d:
                X[row, entry] += step * h
            else:
                label[row, 0] += step * h
            shift = label[:, 0] if problem.tangent is None else label @ problem.tangent.T
            moved = replace(problem, X=X, target=problem.target + shift)
            solutions[step] = minimise(moved)[0].numpy()
        outer, inner = solutions[2] - solutions[-2], solutions[1] - solutions[-1]
        difference = (8 * inner - outer) / (12 * h)
        np.testing.assert_allclose(full.jacobian[:, row, entry], difference, rtol=0, atol=1e-9)


def test_table_of_cases_holds_its_corners() -> None:
    """What the names of the cases promise is there: otherwise nothing tests it."""
    assert len({case.name for case in CASES}) == len(CASES)
    for name in ("hidden-root-linear", "hidden-root-parallel", "broad-parallel"):
        case, full = BY_NAME[name], dense(BY_NAME[name])
        problem, theta = problem_of(case), torch.from_numpy(full.theta)
        H = torch.func.hessian(problem.objective)(theta, problem.X, problem.label_start)
        top = problem.slopes(theta).abs().numpy() * np.linalg.norm(np.linalg.inv(H), 2)
        eta = np.array([fil(full.block([i])) for i in range(case.n)])
        assert np.sum(eta < 0.999 * top) >= 2, f"{name}: no root below the top of the diagonal"
    exact = BY_NAME["some-residuals-zero"]
    slopes = problem_of(exact).slopes(torch.from_numpy(dense(exact).theta))
    np.testing.assert_array_equal(slopes[:2], 0.0)
    np.testing.assert_array_equal(dense(BY_NAME["all-labels-zero"]).theta, 0.0)
    assert abs(dense(BY_NAME["coefficient-zero-linear"]).theta[1]) < 1e-15
