"""Every view and measure of every case against the naive dense truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import seepage as sp
from cases import BY_NAME, CASES, Case, audit, estimator, fit, is_one_hot, trio
from oracle import MEASURES, Dense, dense, fil, minimise, problem_of, stack
from recipes import binary, classes, counts, covariance, table

Blocks = Callable[[Case], list[dict[str, Any]]]

RELATIVE = 1e-10
# Where a residual and a coefficient are zero but for rounding, so is the leakage, and neither side
# has a digit to compare. Forgiven is this fraction of what leaks about the whole rows involved.
FLOOR = 1e-16


@dataclass(frozen=True)
class View:
    """A question to a Leakage, and the blocks of the dense Jacobian that answer it."""

    name: str
    method: str
    arguments: Callable[[Case], dict[str, Any]]
    blocks: Blocks
    least_columns: int = 1
    simplex: bool = False

    def applies_to(self, case: Case) -> bool:
        return case.d >= self.least_columns and (is_one_hot(case) or not self.simplex)

    @property
    def measures(self) -> tuple[str, ...]:
        # Of a single unknown both measures are one and the same, so cells takes none.
        return ("fil",) if self.method == "cells" else ("fil", "dfil")

    @property
    def about_labels(self) -> bool:
        return any(block.get("label") for block in self.blocks(CASES[0]))

    def ask(self, leak: Any, case: Case, measure: str) -> np.ndarray:
        chosen = {} if self.method == "cells" else {"measure": measure}
        return np.asarray(getattr(leak, self.method)(**self.arguments(case), **chosen))

    def truth(self, full: Dense, case: Case, measure: str) -> np.ndarray:
        return np.array([MEASURES[measure](full.block(**block)) for block in self.blocks(case)])

    def scales(self, full: Dense, case: Case) -> np.ndarray:
        """Return η of everything there is to know about the rows of each block."""
        blocks = self.blocks(case)
        return np.array([everything(full, tuple(b.get("rows", range(case.n)))) for b in blocks])


@cache
def everything(full: Dense, rows: tuple[int, ...]) -> float:
    return fil(full.block(rows, label=True))


def asking(**arguments: Any) -> Callable[[Case], dict[str, Any]]:
    return lambda case: arguments


def each_row(**block: Any) -> Blocks:
    """The same of every row."""
    return lambda case: [{"rows": [i], **block} for i in range(case.n)]


def each_cell(columns: Callable[[Case], Sequence[int]]) -> Blocks:
    return lambda case: [
        {"rows": [i], "columns": [j]} for i in range(case.n) for j in columns(case)
    ]


def one(**block: Any) -> Blocks:
    return lambda case: [block]


def scattered(case: Case) -> list[int]:
    """A few rows, out of order."""
    return sorted({0, case.n // 2, case.n - 1}, reverse=True)


def sites(case: Case) -> np.ndarray:
    """A group for every row: three of different sizes, or fewer where rows are few."""
    return np.array(["west", "north", "east", "north", "north"])[np.arange(case.n) % 5]


def each_site(**block: Any) -> Blocks:
    """The same of every group, in the order of their names."""
    return lambda case: [
        {"rows": np.flatnonzero(sites(case) == site), **block} for site in np.unique(sites(case))
    ]


def each_attribute(rows: Callable[[Case], Sequence[int]], simplex: bool = False) -> Blocks:
    """Every attribute in the order of its first column; the declared trio counts as one."""

    def blocks(case: Case) -> list[dict[str, Any]]:
        group = trio(case) if case.d >= 4 else []
        entries = [group if j in group else j for j in range(case.d) if j not in group[1:]]
        return [{"rows": rows(case), "columns": [e], "simplex": simplex} for e in entries]

    return blocks


def all_rows(case: Case) -> range:
    return range(case.n)


def columns_in_order(case: Case) -> list[Any]:
    """All columns with the declared trio as one entry, in the order of the attributes."""
    return [block["columns"][0] for block in each_attribute(all_rows)(case)]


VIEWS = [
    View("rows", "rows", asking(), each_row(label=True)),
    View("rows-features", "rows", asking(label=False), each_row()),
    View("rows-column", "rows", asking(columns=["x0"]), each_row(columns=[0])),
    View(
        "rows-column-and-label",
        "rows",
        asking(columns=[0], label=True),
        each_row(columns=[0], label=True),
    ),
    View("rows-two-columns", "rows", asking(columns=["x1", 0]), each_row(columns=[1, 0]), 2),
    View(
        "rows-many-columns",
        "rows",
        lambda case: {"columns": list(range(1, case.d))},
        lambda case: each_row(columns=range(1, case.d))(case),
        3,
    ),
    View(
        "rows-many-columns-and-label",
        "rows",
        lambda case: {"columns": [f"x{j}" for j in range(1, case.d)], "label": True},
        lambda case: each_row(columns=range(1, case.d), label=True)(case),
        3,
    ),
    View(
        "rows-every-column-by-name",
        "rows",
        lambda case: {"columns": [f"x{j}" for j in range(case.d)]},
        each_row(),
    ),
    View(
        "rows-attribute",
        "rows",
        asking(columns=["trio"]),
        lambda case: each_row(columns=[trio(case)])(case),
        4,
    ),
    View(
        "rows-attribute-simplex",
        "rows",
        asking(columns=["trio"], simplex=True),
        lambda case: each_row(columns=[trio(case)], simplex=True)(case),
        simplex=True,
    ),
    View(
        "rows-attribute-beside-column-simplex-and-label",
        "rows",
        asking(columns=["x0", "trio"], simplex=True, label=True),
        lambda case: each_row(columns=[0, trio(case)], simplex=True, label=True)(case),
        simplex=True,
    ),
    View(
        "rows-simplex",
        "rows",
        asking(simplex=True),
        lambda case: each_row(columns=columns_in_order(case), simplex=True, label=True)(case),
        simplex=True,
    ),
    View("rows-label", "rows", asking(columns=[], label=True), each_row(columns=[], label=True)),
    View("cells", "cells", asking(), each_cell(lambda case: range(case.d))),
    View(
        "cells-some",
        "cells",
        lambda case: {"columns": [case.d - 1, "x0"]},
        each_cell(lambda case: [case.d - 1, 0]),
        2,
    ),
    View("columns", "columns", asking(), each_attribute(all_rows)),
    View(
        "columns-over-rows",
        "columns",
        lambda case: {"rows": scattered(case)},
        each_attribute(scattered),
    ),
    View(
        "columns-simplex",
        "columns",
        asking(simplex=True),
        each_attribute(all_rows, simplex=True),
        simplex=True,
    ),
    View("groups", "groups", lambda case: {"labels": sites(case)}, each_site(label=True)),
    View(
        "groups-features",
        "groups",
        lambda case: {"labels": sites(case), "label": False},
        each_site(),
    ),
    View(
        "groups-two-columns",
        "groups",
        lambda case: {"labels": sites(case), "columns": [0, 1]},
        each_site(columns=[0, 1]),
        2,
    ),
    View("subset-everything", "subset", asking(), one(label=True)),
    View(
        "subset-rows",
        "subset",
        lambda case: {"rows": scattered(case)},
        lambda case: one(rows=scattered(case), label=True)(case),
    ),
    View("subset-columns", "subset", asking(columns=["x0"]), one(columns=[0])),
    View(
        "subset-block",
        "subset",
        lambda case: {"rows": scattered(case), "columns": [1, 0]},
        lambda case: one(rows=scattered(case), columns=[1, 0])(case),
        2,
    ),
    View(
        "subset-block-and-label",
        "subset",
        lambda case: {"rows": scattered(case), "columns": [1, 0], "label": True},
        lambda case: one(rows=scattered(case), columns=[1, 0], label=True)(case),
        2,
    ),
    View(
        "subset-attribute-simplex",
        "subset",
        lambda case: {"rows": scattered(case), "columns": ["trio"], "simplex": True},
        lambda case: one(rows=scattered(case), columns=[trio(case)], simplex=True)(case),
        simplex=True,
    ),
    View("dataset", "dataset", asking(), one(label=True)),
]


def check(view: View, leak: Any, full: Dense, case: Case) -> None:
    scales = view.scales(full, case)
    for measure in view.measures:
        got = view.ask(leak, case, measure)
        want = view.truth(full, case, measure)
        allowed = RELATIVE * want + FLOOR * scales
        if view.method == "cells":
            want, allowed = want.reshape(case.n, -1), allowed.reshape(case.n, -1)
        elif view.method in ("subset", "dataset"):
            want, allowed = want[0], allowed[0]
        assert got.shape == want.shape, f"{measure}: shape {got.shape}, not {want.shape}"
        for where in np.argwhere(~(np.abs(got - want) <= allowed)):
            at = tuple(int(k) for k in where)
            pytest.fail(f"{measure} at {at}: {float(got[at])!r}, expected {float(want[at])!r}")


def ids(items: Sequence[Any]) -> list[str]:
    return [item.name for item in items]


PAIRS = [
    pytest.param(view, case, id=f"{case.name}-{view.name}")
    for case in CASES
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


@pytest.mark.parametrize("case", FAMILIAR, ids=ids(FAMILIAR))
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


@pytest.mark.parametrize("case", FAMILIAR, ids=ids(FAMILIAR))
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
@pytest.mark.parametrize("case", FAMILIAR, ids=ids(FAMILIAR))
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
    [
        "linear-everything",
        "logistic-everything",
        "poisson-everything",
        "covariance-softmax-intercept",
    ],
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
