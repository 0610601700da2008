"""The case table: small data sets that visit every corner the closed forms have to turn.

A case is a model and its noise on a fixed table; ``fit`` trains the package's own estimator on it
and ``audit`` asks for its leakage. What the numbers should be is the business of ``oracle.py``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import seepage as sp
from corners import CORNERS
from recipes import (
    OWN_FAMILIES,
    Case,
    binary,
    classes,
    counts,
    covariance,
    straight,
    table,
    uneven,
)

ESTIMATORS = {
    "gaussian": "LinearRegression",
    "bernoulli": "LogisticRegression",
    "poisson": "PoissonRegression",
    "categorical": "SoftmaxRegression",
}


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
    *CORNERS,
    *_one_hot(),
    *_own_families(),
    *_labels(),
    *_softmax(),
    *_noise(),
]
BY_NAME = {case.name: case for case in CASES}
SINGLE_OUTPUT = [case for case in CASES if case.family != "categorical"]
