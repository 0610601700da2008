"""Every question to a Leakage beside the blocks of the dense Jacobian that answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from cases import CASES, Case, is_one_hot, trio
from oracle import MEASURES, Dense, fil

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
        answer = getattr(leak, self.method)(**self.arguments(case), **chosen)
        stays_with_workers = type(leak.source).__name__ == "DaskRows" and hasattr(answer, "to_dask")
        return np.asarray(answer.to_dask() if stays_with_workers else answer)

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
