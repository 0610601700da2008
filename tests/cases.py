"""The case table: small data sets that visit every corner the closed forms have to turn.

A case is a model and its noise on a fixed table; ``fit`` trains the package's own estimator on it
and ``audit`` asks for its leakage. What the numbers should be is the business of ``oracle.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace

import seepage as sp
from recipes import binary, classes, counts, covariance, hadamard, straight, table, uneven

ESTIMATORS = {
    "gaussian": "LinearRegression",
    "bernoulli": "LogisticRegression",
    "poisson": "PoissonRegression",
    "categorical": "SoftmaxRegression",
}

# Losses whose label slope is not −1, as a user would add them: one robust, one for waiting times.
OWN_FAMILIES = {
    "pseudo-huber": sp.glm.Family(
        "pseudo-huber",
        loss=lambda m, y: (1 + (m - y) ** 2) ** 0.5 - 1,
        slope=lambda m, y: (m - y) * (1 + (m - y) ** 2) ** -0.5,
        curvature=lambda m, y: (1 + (m - y) ** 2) ** -1.5,
        label_slope=lambda m, y: -((1 + (m - y) ** 2) ** -1.5),
        mean=lambda m: m,
    ),
    "exponential": sp.glm.Family(
        "exponential",
        loss=lambda m, y: y * array_namespace(m).exp(-m) + m,
        slope=lambda m, y: 1 - y * array_namespace(m).exp(-m),
        curvature=lambda m, y: y * array_namespace(m).exp(-m),
        label_slope=lambda m, y: -array_namespace(m).exp(-m),
        mean=lambda m: array_namespace(m).exp(m),
    ),
}


@dataclass(frozen=True, eq=False)
class Case:
    """One release: a family fitted on a table, and the noise added to its parameters."""

    name: str
    family: str
    X: np.ndarray
    y: np.ndarray
    l2: float = 0.0
    intercept: bool = False
    sample_weight: np.ndarray | None = None
    noise: Any = field(default_factory=lambda: sp.Gaussian(1.0))

    @property
    def n(self) -> int:
        return self.X.shape[0]

    @property
    def d(self) -> int:
        return self.X.shape[1]


def estimator(case: Case) -> Any:
    """Return the package's estimator for the case's family, not yet fitted."""
    options = {"l2": case.l2, "fit_intercept": case.intercept}
    if case.family in OWN_FAMILIES:
        return sp.glm.GeneralizedLinearRegression(OWN_FAMILIES[case.family], **options)
    return getattr(sp.glm, ESTIMATORS[case.family])(**options)


def fit(case: Case) -> Any:
    """Fit the package's estimator of the case's family."""
    return estimator(case).fit(case.X, case.y, sample_weight=case.sample_weight)


@cache
def audit(case: Case) -> Any:
    """Return the leakage of a case; where it is wide enough, three columns form one attribute."""
    attributes = {"trio": trio(case)} if case.d >= 4 else None
    return sp.leakage(
        fit(case),
        case.X,
        case.y,
        noise=case.noise,
        sample_weight=case.sample_weight,
        attributes=attributes,
    )


def trio(case: Case) -> list[int]:
    """The columns of the declared attribute of a case with at least four columns."""
    return [1, 2, case.d - 1]


def is_one_hot(case: Case) -> bool:
    """Whether the declared attribute is a complete one-hot category."""
    return case.d >= 4 and bool(np.all(case.X[:, trio(case)].sum(axis=1) == 1))


def _plain() -> list[Case]:
    """Every family as people use it: bare, with an intercept, with L2, weighted."""
    makers = {
        "gaussian": ("linear", straight),
        "bernoulli": ("logistic", binary),
        "poisson": ("poisson", counts),
    }
    cases = []
    for seed, (family, (name, labels)) in enumerate(makers.items()):
        X = table(seed, 30, 5)
        y = labels(seed + 10, X)
        ω = uneven(seed + 20, 30)
        cases += [
            Case(name, family, X, y),
            Case(f"{name}-intercept", family, X, y, intercept=True),
            Case(f"{name}-l2", family, X, y, l2=0.05),
            Case(f"{name}-weighted", family, X, y, sample_weight=ω),
            Case(f"{name}-everything", family, X, y, 0.03, True, ω, sp.Gaussian(0.3)),
        ]
    return cases


def _shapes() -> list[Case]:
    """One feature, one row, more features than rows, more eigenvalues than a handful."""
    one, wide, many = table(30, 20, 1), table(31, 12, 30), table(32, 40, 40)
    widest = table(44, 8, 60)
    single = np.array([[0.8, -1.7, 0.4]])
    sigma = covariance(33, 41)
    return [
        Case("one-feature-linear", "gaussian", one, straight(34, one)),
        Case("one-feature-linear-intercept", "gaussian", one, straight(34, one), intercept=True),
        Case("one-feature-logistic", "bernoulli", one, binary(35, one)),
        Case("one-feature-logistic-intercept", "bernoulli", one, binary(35, one), 0.02, True),
        Case("one-feature-poisson-intercept", "poisson", one, counts(36, one), intercept=True),
        Case("one-feature-linear-l2", "gaussian", one, straight(34, one), 0.1, True),
        Case("one-feature-steep", "gaussian", one, 2 * one[:, 0] + 0.3 * one[::-1, 0], 0.1, True),
        Case("wide-linear", "gaussian", wide, straight(37, wide), l2=0.1),
        Case("wide-logistic-intercept", "bernoulli", wide, binary(38, wide), 0.05, True),
        Case("widest-poisson", "poisson", widest, counts(45, widest), l2=0.1),
        Case("many-linear", "gaussian", many, straight(39, many, 3.0), l2=0.2),
        Case("many-logistic", "bernoulli", many, binary(40, many), l2=0.02),
        Case(
            "many-logistic-intercept-covariance",
            "bernoulli",
            many,
            binary(40, many),
            0.02,
            True,
            uneven(41, 40),
            sp.Gaussian(sigma),
        ),
        Case("many-poisson", "poisson", many, counts(42, many), l2=0.05),
        Case("one-row-linear", "gaussian", single, np.array([2.0]), l2=0.3),
        Case("one-row-linear-intercept", "gaussian", single, np.array([2.0]), 0.3, True),
        Case("one-row-poisson", "poisson", single, np.array([3.0]), l2=0.3),
        Case("two-rows-logistic", "bernoulli", table(43, 2, 3), np.array([0.0, 1.0]), l2=0.3),
    ]


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


def _one_hot() -> list[Case]:
    """A category written as three columns, of which one is 1 in every row."""
    cases = []
    for name, d in (("one-hot", 6), ("one-hot-broad", 18)):
        X = table(140 + d, 36, d)
        X[:, [1, 2, d - 1]] = np.eye(3)[np.random.default_rng(141).integers(0, 3, 36)]
        ω = uneven(142, 36)
        cases += [
            Case(f"{name}-linear", "gaussian", X, straight(143, X)),
            Case(f"{name}-logistic", "bernoulli", X, binary(144, X), 0.02, True),
            Case(f"{name}-poisson", "poisson", X, counts(145, X), 0.02, False, ω, sp.Laplace(2.0)),
            Case(f"{name}-softmax", "categorical", X, classes(146, X, 3), 0.05, True, ω),
        ]
    return cases


def _own_families() -> list[Case]:
    """Losses that are not the package's own."""
    cases = []
    for name, X in (("", table(150, 30, 4)), ("-broad", table(151, 40, 15))):
        ω = uneven(152, len(X))
        y, t = straight(153, X, 1.5), np.exp(straight(154, X) / 3)
        cases += [
            Case(f"pseudo-huber{name}", "pseudo-huber", X, y, 0.02, True),
            Case(f"exponential{name}", "exponential", X, t, 0.02, False, ω, sp.Gaussian(0.5)),
        ]
    return cases


def _labels() -> list[Case]:
    """Labels as people write them."""
    X = table(100, 26, 3)
    y = binary(101, X).astype(int)
    K = classes(102, X, 3)
    return [
        Case("labels-plus-minus-one", "bernoulli", X, 2 * y - 1, 0.02, True),
        Case("labels-strings", "bernoulli", X, np.array(["no", "yes"])[y], 0.02),
        Case("labels-boolean", "bernoulli", X, y.astype(bool), 0.02),
        Case("labels-strings-softmax", "categorical", X, np.array(["ash", "elm", "oak"])[K], 0.02),
    ]


def _softmax() -> list[Case]:
    """Two, three and four classes, with the gauge fixed by L2 or left free."""
    X = table(110, 40, 3)
    one, wide, widest = table(111, 30, 1), table(112, 12, 30), table(113, 8, 60)
    ω = uneven(121, 40)
    two, three, four = (classes(114 + k, X, k) for k in (2, 3, 4))
    return [
        Case("softmax-2", "categorical", X, two),
        Case("softmax-2-intercept-l2", "categorical", X, two, 0.05, True),
        Case("softmax-3", "categorical", X, three),
        Case("softmax-3-intercept", "categorical", X, three, intercept=True),
        Case("softmax-3-l2", "categorical", X, three, 0.05),
        Case("softmax-3-weighted-intercept-l2", "categorical", X, three, 0.05, True, ω),
        Case("softmax-4-intercept", "categorical", X, four, 0.0, True, ω, sp.Gaussian(0.2)),
        Case("softmax-4-l2", "categorical", X, four, 0.1),
        Case("softmax-one-feature", "categorical", one, classes(119, one, 3), 0.01, True),
        Case("softmax-wide", "categorical", wide, classes(120, wide, 3), 0.1, True),
        Case("softmax-widest", "categorical", widest, classes(122, widest, 2), 0.1),
    ]


def _noise() -> list[Case]:
    """Noise of every shape."""
    X = table(130, 25, 4)
    y, z, k, c = straight(131, X), binary(132, X), counts(133, X), classes(134, X, 3)
    σ4, σ5 = np.geomspace(0.1, 3.0, 4), np.geomspace(2.0, 0.05, 5)
    σ12, σ15 = np.geomspace(0.1, 3.0, 12), np.geomspace(0.1, 3.0, 15)
    full4, full5 = sp.Gaussian(covariance(135, 4)), sp.Gaussian(covariance(136, 5))
    return [
        Case("vector-noise-linear", "gaussian", X, y, noise=sp.Gaussian(σ4)),
        Case("vector-noise-intercept", "bernoulli", X, z, 0.01, True, None, sp.Gaussian(σ5)),
        Case("covariance-linear-intercept", "gaussian", X, y, 0.0, True, None, full5),
        Case("covariance-logistic", "bernoulli", X, z, 0.01, False, None, full4),
        Case("covariance-poisson-weighted", "poisson", X, k, 0.0, True, uneven(137, 25), full5),
        Case("laplace-linear", "gaussian", X, y, noise=sp.Laplace(0.4)),
        Case("laplace-vector-poisson", "poisson", X, k, noise=sp.Laplace(σ4)),
        Case("vector-noise-softmax", "categorical", X, c, 0.02, False, None, sp.Gaussian(σ12)),
        Case("vector-noise-softmax-free", "categorical", X, c, 0.0, True, None, sp.Gaussian(σ15)),
        Case(
            "covariance-softmax-intercept",
            "categorical",
            X,
            c,
            0.02,
            True,
            uneven(138, 25),
            sp.Gaussian(covariance(139, 15)),
        ),
        Case("laplace-softmax", "categorical", X, c, 0.02, noise=sp.Laplace(0.3)),
    ]


CASES = [
    *_plain(),
    *_shapes(),
    *_residuals(),
    *_curvature(),
    *_rows_and_columns(),
    *_hidden_roots(),
    *_broad(),
    *_one_hot(),
    *_own_families(),
    *_labels(),
    *_softmax(),
    *_noise(),
]
BY_NAME = {case.name: case for case in CASES}
SINGLE_OUTPUT = [case for case in CASES if case.family != "categorical"]
