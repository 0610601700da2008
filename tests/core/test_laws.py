"""Laws that leakage obeys whatever the data: scaling, inclusion, composition, symmetry, bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import seepage as sp
from cases import Case, fit
from oracle import dense, fil
from recipes import binary, classes, counts, covariance, straight, table, uneven

ROUNDING = 1e-9  # what an inequality may miss by, relatively, before it counts as broken

LABELS: dict[str, Callable[[int, np.ndarray], np.ndarray]] = {
    "gaussian": straight,
    "bernoulli": binary,
    "poisson": counts,
    "categorical": lambda seed, X: classes(seed, X, 3),
}
some = settings(max_examples=20, deadline=None, derandomize=True, database=None)


@st.composite
def cases(draw: st.DrawFn, families: tuple[str, ...] = tuple(LABELS)) -> Case:
    family = draw(st.sampled_from(families))
    n, d = draw(st.integers(6, 12)), draw(st.integers(1, 4))
    seed = draw(st.integers(0, 10**6))
    X = table(seed, n, d)
    return Case(
        "drawn",
        family,
        X,
        LABELS[family](seed + 1, X),
        l2=draw(st.sampled_from([0.02, 0.3])),
        intercept=draw(st.booleans()),
        sample_weight=draw(st.sampled_from([None, uneven(seed + 2, n)])),
        noise=sp.Gaussian(draw(st.sampled_from([0.1, 1.0, 7.0]))),
    )


SINGLE = cases(families=("gaussian", "bernoulli", "poisson"))


def leakage(case: Case, model: Any = None) -> Any:
    return sp.leakage(
        fit(case) if model is None else model,
        case.X,
        case.y,
        noise=case.noise,
        sample_weight=case.sample_weight,
    )


def views(leak: Any, n: int) -> dict[str, np.ndarray]:
    """Every view at once, in both measures."""
    halves = np.arange(n) % 2
    out = {"cells": leak.cells()}
    for measure in ("fil", "dfil"):
        out |= {
            f"rows {measure}": leak.rows(measure=measure),
            f"features {measure}": leak.rows(label=False, measure=measure),
            f"columns {measure}": leak.columns(measure=measure),
            f"groups {measure}": leak.groups(halves, measure=measure),
            f"subset {measure}": leak.subset(rows=[0, 2], columns=[0], measure=measure),
            f"dataset {measure}": leak.dataset(measure=measure),
        }
    return {name: np.asarray(values) for name, values in out.items()}


def at_most(smaller: Any, larger: Any) -> bool:
    """Whether ``smaller ≤ larger`` up to rounding, which is relative to the largest of them."""
    smaller, larger = np.asarray(smaller), np.asarray(larger)
    slack = ROUNDING * max(np.max(np.abs(larger), initial=0.0), np.max(smaller, initial=0.0))
    return bool(np.all(smaller <= larger + slack))


@some
@given(cases(), st.floats(1e-3, 1e3))
def test_leakage_is_inverse_to_the_noise(case: Case, factor: float) -> None:
    model = fit(case)
    louder = replace(case, noise=case.noise.scaled(factor))
    before, after = views(leakage(case, model), case.n), views(leakage(louder, model), case.n)
    for name, values in before.items():
        np.testing.assert_allclose(
            after[name] * factor, values, rtol=1e-9, atol=1e-14, err_msg=name
        )


@some
@given(cases(), st.data())
def test_a_whole_leaks_at_least_as_much_as_its_parts(case: Case, data: st.DataObject) -> None:
    leak = leakage(case)
    n, d = case.n, case.d
    rows, columns, label = leak.rows(), leak.rows(label=False), leak.rows(columns=[], label=True)
    assert at_most(columns, rows)
    assert at_most(label, rows)
    assert at_most(np.max(np.asarray(leak.cells()), axis=1), columns)
    assert at_most(np.max(np.asarray(leak.cells()), axis=0), leak.columns())
    assert at_most(leak.columns(), leak.subset(label=False))
    assert at_most(rows, leak.dataset())
    groups = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n), label="groups")
    by_group = dict(zip(sorted(set(groups)), np.asarray(leak.groups(groups)), strict=True))
    for i, group in enumerate(groups):
        assert at_most(rows[i], by_group[group])
    assert at_most(list(by_group.values()), leak.dataset())
    block = data.draw(st.sets(st.integers(0, n - 1), min_size=1), label="rows")
    wanted = data.draw(st.sets(st.integers(0, d - 1), min_size=1), label="columns")
    inside = leak.subset(rows=sorted(block), columns=sorted(wanted))
    for i in block:
        assert at_most(leak.rows(columns=sorted(wanted))[i], inside)
    for j in wanted:
        assert at_most(leak.subset(rows=sorted(block), columns=[j]), inside)
    assert at_most(inside, leak.subset(rows=sorted(block), columns=sorted(wanted), label=True))


@some
@given(cases())
def test_traces_add_over_the_parts_of_a_block(case: Case) -> None:
    """Squared dFIL times the number of unknowns is a trace, and the trace of a sum is a sum."""
    leak = leakage(case)
    n, d = case.n, case.d
    cells = np.asarray(leak.cells()) ** 2
    features = np.asarray(leak.rows(label=False, measure="dfil")) ** 2 * d
    columns = np.asarray(leak.columns(measure="dfil")) ** 2 * n
    np.testing.assert_allclose(cells.sum(axis=1), features, rtol=1e-9)
    np.testing.assert_allclose(cells.sum(axis=0), columns, rtol=1e-9)
    whole = float(leak.subset(label=False, measure="dfil")) ** 2 * n * d
    np.testing.assert_allclose(cells.sum(), whole, rtol=1e-9)


@some
@given(cases(), st.sampled_from([0.5, 1.0, 3.0]), st.booleans())
def test_composition_adds_information(case: Case, sigma: float, refit: bool) -> None:
    """η² of the composition lies between the largest and the sum; traces add exactly."""
    other = replace(case, noise=sp.Gaussian(sigma), l2=case.l2 * 5 if refit else case.l2)
    first, second = leakage(case), leakage(other)
    both = views(sp.compose(first, second), case.n)
    one, two = views(first, case.n), views(second, case.n)
    for name, values in both.items():
        total = one[name] ** 2 + two[name] ** 2
        if "dfil" in name or name == "cells" or not refit:
            # Of one and the same model both releases leak in the same directions.
            np.testing.assert_allclose(values**2, total, rtol=1e-9, atol=1e-14, err_msg=name)
        else:
            assert at_most(values**2, total), name
            assert at_most(np.maximum(one[name], two[name]), values), name


@some
@given(cases(), st.integers(0, 10**6))
def test_post_processing_never_increases_leakage(case: Case, seed: int) -> None:
    """Releasing Aθ with noise of covariance AΣAᵀ, for any A, tells no more than θ with Σ does."""
    plain = dense(replace(case, noise=sp.Gaussian(1.0)))
    size = len(plain.theta)
    case = replace(case, noise=sp.Gaussian(covariance(seed, size)))
    leak = leakage(case)
    rng = np.random.default_rng(seed)
    kept = rng.permutation(size)[: rng.integers(1, size + 1)]
    for A in (np.eye(size)[kept], rng.standard_normal((rng.integers(1, size + 1), size))):
        root = np.linalg.cholesky(A @ case.noise.sigma @ A.T)
        for label in (False, True):
            processed = [
                fil(np.linalg.solve(root, A @ plain.block([i], label=label))) for i in range(case.n)
            ]
            assert at_most(processed, leak.rows(label=label))
        everything = fil(np.linalg.solve(root, A @ plain.matrix))
        assert at_most(everything, leak.dataset())


@some
@given(cases())
def test_data_twice_at_half_the_weight(case: Case) -> None:
    """Every row twice with half its weight each, and λ halved because n has doubled.

    The objective is the same function, so the model is the same; but ∂θ/∂(x, y) of a single copy
    is half of what it was. A copy leaks η/2; both together, [J/2, J/2], leak η/√2, for the
    adversary now has twice as many unknowns to tell apart.
    """
    weight = np.ones(case.n) if case.sample_weight is None else case.sample_weight
    twice = replace(
        case,
        X=np.tile(case.X, (2, 1)),
        y=np.tile(case.y, 2),
        sample_weight=np.tile(weight / 2, 2),
        l2=case.l2 / 2,
    )
    before, after = leakage(case), leakage(twice)
    np.testing.assert_allclose(fit(twice).coef_, fit(case).coef_, rtol=1e-9, atol=1e-12)
    pairs = np.tile(np.arange(case.n), 2)
    for measure, together in (("fil", 2**-0.5), ("dfil", 0.5)):
        rows = np.asarray(before.rows(measure=measure))
        expected = np.tile(rows / 2, 2)
        np.testing.assert_allclose(after.rows(measure=measure), expected, rtol=1e-8)
        grouped = after.groups(pairs, measure=measure)
        np.testing.assert_allclose(grouped, rows * together, rtol=1e-8)
        whole = float(before.dataset(measure=measure)) * together
        np.testing.assert_allclose(float(after.dataset(measure=measure)), whole, rtol=1e-8)


@some
@given(cases(), st.integers(0, 10**6))
def test_order_of_rows_and_columns_does_not_matter(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(case.n), rng.permutation(case.d)
    weight = case.sample_weight
    shuffled = replace(
        case,
        X=case.X[rows][:, columns],
        y=case.y[rows],
        sample_weight=None if weight is None else weight[rows],
    )
    before, after = leakage(case), leakage(shuffled)
    same = {"rtol": 1e-8, "atol": 1e-12}
    np.testing.assert_allclose(after.cells(), np.asarray(before.cells())[rows][:, columns], **same)
    for measure in ("fil", "dfil"):
        for now, then, order in (
            (after.rows(measure=measure), before.rows(measure=measure), rows),
            (after.columns(measure=measure), before.columns(measure=measure), columns),
        ):
            np.testing.assert_allclose(now, np.asarray(then)[order], **same)
        now, then = after.dataset(measure=measure), before.dataset(measure=measure)
        np.testing.assert_allclose(float(now), float(then), **same)


@some
@given(SINGLE)
def test_bounds_tighten_from_fil_over_dfil_to_exact(case: Case) -> None:
    """1/η² ≤ 1/dFIL² ≤ Tr(I⁻¹)/d for a row; 1/I_jj ≤ (I⁻¹)_jj for a cell."""
    leak = leakage(case)
    loosest = np.asarray(leak.rows(label=False).mse_bound())
    looser = np.asarray(leak.rows(label=False, measure="dfil").mse_bound())
    exact = np.asarray(sp.bounds.cramer_rao_rows(leak))
    assert np.all(loosest <= looser * (1 + ROUNDING))
    assert np.all(looser <= exact * (1 + ROUNDING))
    alone, among = np.asarray(leak.cells().mse_bound()), sp.bounds.cramer_rao_cells(leak)
    assert np.all(alone <= np.asarray(among) * (1 + ROUNDING))
    np.testing.assert_allclose(np.mean(np.asarray(among), axis=1), exact, rtol=1e-9)
