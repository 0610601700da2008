"""The corners of the case table: where residuals, curvatures, weights or roots are out of line."""

from __future__ import annotations

import numpy as np

from recipes import Case, binary, classes, counts, hadamard, straight, table, uneven


def _residuals() -> list[Case]:
    """Residuals that vanish, margins that vanish, coefficients that vanish."""
    X = table(50, 24, 4)
    # The first feature occurs in one row alone, which is therefore met exactly; a row of zeros
    # labelled zero is met exactly whatever the coefficients are.
    alone = np.vstack([[2.0, 0, 0, 0], [0.0, 0, 0, 0], X * [0, 1, 1, 1]])
    alone_y = np.concatenate([[6.0, 0.0], straight(51, X)])
    # Each row beside its mirror image in the second feature, with the same label: w₁ = 0.
    half = X[:16]
    mirrored = np.vstack([half, half * [1, -1, 1, 1]])
    twice = np.vstack([half, half])
    opposite = np.repeat([0.0, 1.0], 16)
    return [
        Case("perfect-fit", "gaussian", X, X @ np.array([1.0, -2.0, 0.5, 3.0])),
        Case("perfect-fit-intercept", "gaussian", X, X @ np.ones(4) + 2.0, intercept=True),
        Case("some-residuals-zero", "gaussian", alone, alone_y),
        Case("some-residuals-zero-intercept-l2", "gaussian", alone, alone_y, 0.1, True),
        Case("all-labels-zero", "gaussian", X, np.zeros(24)),
        Case("all-labels-zero-l2-intercept", "gaussian", X, np.zeros(24), 0.1, True),
        Case("all-counts-one", "poisson", X, np.ones(24)),
        Case("coefficient-zero-linear", "gaussian", mirrored, np.tile(straight(52, half), 2)),
        Case(
            "coefficient-zero-logistic", "bernoulli", mirrored, np.tile(binary(53, half), 2), 0.01
        ),
        Case("coefficients-all-zero-logistic", "bernoulli", twice, opposite),
        Case("coefficients-all-zero-softmax", "categorical", twice, opposite, 0.01, True),
        Case("poisson-mostly-zeros", "poisson", X, np.arange(24) % 5 // 4 * 2.0, 0.02, True),
    ]


def _curvature() -> list[Case]:
    """Hessians with equal, tiny or far-apart eigenvalues, and margins deep in saturation."""
    H = hadamard(16)
    orthogonal = H[:, 1:7]
    Q = np.linalg.qr(table(60, 32, 5))[0]
    X = table(61, 36, 4)
    shifted = X + np.array([0, 0, 3, 0])
    apart = (shifted[:, 0] > 0).astype(float)
    decades = X * [1e-3, 1.0, 30.0, 1e3]
    mixing = np.eye(4) + 30 * np.ones((4, 4))
    return [
        Case("equal-eigenvalues", "gaussian", orthogonal, straight(62, orthogonal)),
        Case("equal-eigenvalues-intercept", "gaussian", orthogonal, straight(62, H), 0.2, True),
        Case("equal-eigenvalues-zero-labels", "gaussian", orthogonal, np.zeros(16)),
        Case("orthonormal", "gaussian", Q, straight(63, Q)),
        Case("separable", "bernoulli", shifted, apart, l2=1e-3),
        Case("separable-intercept", "bernoulli", shifted, apart, 1e-3, True),
        Case("saturated", "bernoulli", shifted * 4, apart, l2=1e-8),
        Case("scales-linear", "gaussian", decades, straight(64, X)),
        Case("scales-logistic-intercept", "bernoulli", decades, binary(65, X), intercept=True),
        Case("scales-poisson-l2", "poisson", decades / 1e3, counts(66, X), 1e-6),
        Case("correlated-linear", "gaussian", X @ mixing / 30, straight(67, X)),
        Case("correlated-logistic", "bernoulli", X @ mixing / 30, binary(68, X), 1e-4, True),
    ]


def _rows_and_columns() -> list[Case]:
    """Constant, empty and repeated parts of a table; weights that vanish or differ wildly."""
    X = table(70, 28, 4)
    constant = np.hstack([X, np.full((28, 1), 2.0)])
    empty = np.hstack([X, np.zeros((28, 1))])
    doubled = np.vstack([X[:14], X[:14]])
    faint = X * np.where(np.arange(28) % 3 == 0, 1e-9, 1.0)[:, None]
    none = np.where(np.arange(28) % 4 == 1, 0.0, uneven(71, 28))
    wild = uneven(72, 28, decades=3.0)
    return [
        Case("constant-column", "gaussian", constant, straight(73, X)),
        Case("constant-column-intercept-l2", "bernoulli", constant, binary(74, X), 0.05, True),
        Case("zero-column-linear", "gaussian", empty, straight(75, X), l2=0.1),
        Case("zero-column-logistic", "bernoulli", empty, binary(76, X), 0.1, True),
        Case("zero-column-softmax", "categorical", empty, classes(77, X, 3), l2=0.1),
        Case("faint-rows-linear", "gaussian", faint, straight(86, X)),
        Case("faint-rows-logistic", "bernoulli", faint, binary(87, X), 0.02),
        Case("faint-rows-intercept", "poisson", faint, counts(88, X), intercept=True),
        Case("duplicate-rows", "gaussian", doubled, straight(78, X)),
        Case("duplicate-rows-poisson", "poisson", doubled, counts(79, X), intercept=True),
        Case("zero-weights-linear", "gaussian", X, straight(80, X), sample_weight=none),
        Case("zero-weights-logistic", "bernoulli", X, binary(81, X), 0.02, True, none),
        Case("zero-weights-softmax", "categorical", X, classes(82, X, 3), 0.02, True, none),
        Case("wild-weights-linear", "gaussian", X, straight(83, X), 0.0, True, wild),
        Case("wild-weights-logistic", "bernoulli", X, binary(84, X), 1e-2, False, wild),
        Case("wild-weights-poisson", "poisson", X, counts(85, X), 1e-2, False, wild),
    ]


def _hidden_roots() -> list[Case]:
    """Rows whose largest eigenvalue lies at or below the top of the diagonal, r²D²_max.

    The top direction belongs to the feature that varies least. A row that moves along it, with
    the residual pulling against the coefficient, loses information there; one that has no part
    in it and nothing to add elsewhere stays exactly at the top.
    """
    rng = np.random.default_rng(90)
    X = rng.standard_normal((30, 3)) * [3.0, 2.0, 0.3]
    y = X @ [0.01, -0.02, 4.0] + 0.3 * rng.standard_normal(30)
    against = np.array([[0.0, 0.0, 0.3], [0.0, 0.0, -0.4], [0.02, 0.01, 0.2], [0.0, 0.0, 0.0]])
    X = np.vstack([X, against])
    y = np.concatenate([y, [9.0, -9.0, 12.0, 5.0]])
    # Mirror images in the last two features leave the coefficients along the first one alone, and
    # the rows added lie along it as well: the rank-two part is then of rank one, and negative.
    signs = np.array([[1, 1, 1], [1, -1, 1], [1, 1, -1], [1, -1, -1]])
    base = rng.standard_normal((8, 3)) * [0.3, 2.0, 3.0]
    along = np.array([[0.3, 0, 0], [-0.5, 0, 0], [0.1, 0, 0], [1e-9, 0, 0]])
    parallel = np.vstack([*(base * sign for sign in signs), along])
    parallel_y = np.concatenate([np.tile(4 * base[:, 0], 4), [7.0, -9.0, 8.0, 3.0]])
    light = np.where(np.arange(36) < 32, 1.0, 0.02)
    one = rng.uniform(0.5, 2.0, (16, 1))
    spread = 2 * one[:, 0] + 2.5 * rng.standard_normal(16)
    heavy = np.where(np.arange(34) < 30, 1.0, 0.05)
    many = np.hstack([X, rng.standard_normal((34, 36)) * np.geomspace(1, 4, 36)])
    return [
        Case("hidden-root-linear", "gaussian", X, y, sample_weight=heavy),
        Case("hidden-root-linear-intercept", "gaussian", X, y, 0.0, True, heavy),
        Case("hidden-root-parallel", "gaussian", parallel, parallel_y, 0.0, False, light),
        Case("hidden-root-parallel-intercept", "gaussian", parallel, parallel_y, 0.0, True, light),
        Case("hidden-root-one-feature", "gaussian", one, spread),
        Case("hidden-root-one-feature-intercept", "gaussian", one, spread, intercept=True),
        Case("hidden-root-many", "gaussian", many, y, 0.05, False, heavy),
        Case("hidden-root-many-intercept", "gaussian", many, y, 0.05, True, heavy),
    ]


def _broad() -> list[Case]:
    """The corners of single rows once more with so many features that no dense shortcut is left.

    The columns are orthogonal, so what happens along one of them stays there.
    """
    H = hadamard(32)
    X = H[:, 1:17] * np.repeat([0.2, 1.0, 3.0], [1, 7, 8])
    y = straight(95, X, 1.0)
    # The label follows the first column alone, and so do the rows added: against the coefficient,
    # with it, hardly there at all, and empty.
    along = np.zeros((5, 16))
    along[:, 0] = [0.3, -0.5, 0.4, 1e-9, 0.0]
    parallel = np.vstack([X, along])
    parallel_y = np.concatenate([4 * X[:, 0], [7.0, -9.0, -3.0, 3.0, 2.0]])
    light = np.where(np.arange(37) < 32, 1.0, 0.02)
    exact = np.vstack([X, np.zeros((2, 16))])
    exact[-1, 0] = 0.6
    part = np.concatenate([2 * X[:, 0], [0.0, 1.2]])
    faint = X * np.where(np.arange(32) % 3 == 0, 1e-9, 1.0)[:, None]
    flip = np.vstack([X[:16], X[:16]])
    return [
        Case("broad", "gaussian", X, y),
        Case("broad-intercept", "gaussian", X, y, 0.0, True),
        Case("broad-parallel", "gaussian", parallel, parallel_y, 0.0, False, light),
        Case("broad-parallel-intercept", "gaussian", parallel, parallel_y, 0.01, True, light),
        Case("broad-exact", "gaussian", exact, part),
        Case("broad-zero-labels", "gaussian", X, np.zeros(32)),
        Case("broad-faint", "gaussian", faint, y, l2=0.01),
        Case("broad-faint-logistic", "bernoulli", faint, binary(96, X), 0.01, True),
        Case("broad-saturated", "bernoulli", X * 5, (X[:, 0] > 0).astype(float), l2=1e-7),
        Case("broad-undecided", "bernoulli", flip, np.repeat([0.0, 1.0], 16), l2=0.01),
        Case("broad-zero-weights", "poisson", X, counts(97, X), 0.05, True, np.arange(32.0) // 8),
    ]


CORNERS = [
    *_residuals(),
    *_curvature(),
    *_rows_and_columns(),
    *_hidden_roots(),
    *_broad(),
]
