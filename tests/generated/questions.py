"""Every view and measure of a leakage, each asked of the package and of the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from problems import Problem
from truth import Whitened

import seepage as sp

SINGULAR = 1e20  # the condition of an information from which on its inverse is not compared


class Question(NamedTuple):
    """One view: how the package answers it, and the true numbers.

    ``condition`` is that of the information where it is inverted, one for each number.
    """

    name: str
    ask: Callable[[sp.Leakage], Any]
    true: Callable[[], tuple[np.ndarray, np.ndarray | None]]


def questions(problem: Problem, W: Whitened, seed: int = 0) -> Iterator[Question]:
    """Yield the questions that suit a problem."""
    rng = np.random.default_rng(problem.seed + seed)
    n, d = problem.X.shape
    some = sorted(rng.choice(d, size=int(rng.integers(1, d + 1)), replace=False).tolist())
    one = [int(rng.integers(d))]
    hot = problem.one_hot
    for label, columns in ((True, None), (False, None), (False, one), (False, some), (True, some)):
        for measure in ("fil", "dfil"):
            yield _leak(
                f"rows {measure}",
                lambda leak, c=columns, b=label, m=measure: leak.rows(c, label=b, measure=m),
                W,
                measure,
                [W.block([i], columns, label) for i in range(n)],
            )
    if hot:
        yield _leak(
            "rows on the simplex",
            lambda leak: leak.rows("category", simplex=True),
            W,
            "fil",
            [W.block([i], hot, False, hot) for i in range(n)],
        )
    yield _leak(
        "labels", lambda leak: leak.labels(), W, "fil", [W.block([i], [], True) for i in range(n)]
    )
    cells = [[W.block([i], [j]) for j in range(d)] for i in range(n)]
    yield Question(
        "cells",
        lambda leak: leak.cells(),
        lambda: (np.array([[W.measure(c, "fil") for c in line] for line in cells]), None),
    )
    attributes = [hot] if hot else []
    attributes += [(j,) for j in range(d) if j not in hot]
    few = sorted(rng.choice(n, size=int(rng.integers(1, n + 1)), replace=False).tolist())
    for measure in ("fil", "dfil"):
        yield _leak(
            f"columns {measure}",
            lambda leak, m=measure: leak.columns(measure=m),
            W,
            measure,
            [W.block(None, a) for a in attributes],
        )
        yield _leak(
            f"columns of some {measure}",
            lambda leak, m=measure: leak.columns(rows=few, measure=m),
            W,
            measure,
            [W.block(few, a) for a in attributes],
        )
        yield _leak(
            f"subset {measure}",
            lambda leak, m=measure: leak.subset(few, some, measure=m),
            W,
            measure,
            [W.block(few, some)],
        )
        yield _leak(
            f"dataset {measure}",
            lambda leak, m=measure: leak.dataset(measure=m),
            W,
            measure,
            [W.block(None, None, True)],
        )
    teams = np.arange(n) % 2
    yield _leak(
        "groups",
        lambda leak: leak.groups(teams),
        W,
        "fil",
        [W.block(np.flatnonzero(teams == g), None, True) for g in np.unique(teams)],
    )
    if problem.large:
        return
    for label, columns in ((False, None), (False, one), (False, some), (True, one)):
        yield Question(
            "Cramér–Rao of records",
            lambda leak, c=columns, b=label: sp.bounds.cramer_rao_rows(leak, c, label=b),
            lambda c=columns, b=label: _inverses(
                W, [W.block([i], c, b) for i in range(n)], np.mean
            ),
        )
    yield Question(
        "Cramér–Rao of cells",
        lambda leak: sp.bounds.cramer_rao_cells(leak),
        lambda: _inverses(W, [W.block([i]) for i in range(n)], lambda v: v),
    )
    yield Question(
        "Cramér–Rao of a block",
        lambda leak: sp.bounds.cramer_rao(leak, [0, n - 1] if n > 1 else [0], one),
        lambda: _inverses(W, [W.block([0, n - 1] if n > 1 else [0], one)], np.mean),
    )


def _leak(name: str, ask: Any, W: Whitened, measure: str, blocks: list[np.ndarray]) -> Question:
    return Question(name, ask, lambda: (np.array([W.measure(b, measure) for b in blocks]), None))


def _inverses(W: Whitened, blocks: list[np.ndarray], take: Any) -> tuple[np.ndarray, np.ndarray]:
    found = [W.inverse_diagonal(block) for block in blocks]
    values = np.array([take(diagonal) for diagonal, _ in found])
    conditions = np.array([condition for _, condition in found])
    return values, conditions
