"""The loss families of generalised linear models, each defined by a loss and its derivatives.

Let the margin be ``m = wᵀx`` and the loss ``ℓ(m, y)``. Nearly all results for a single-output model
are computed from three numbers per record::

    r = ∂ℓ/∂m        the slope       (the residual, for the canonical links here)
    a = ∂²ℓ/∂m²      the curvature
    b = ∂²ℓ/∂m∂y     the label slope

A custom family is a :class:`Family` with the loss and these derivatives; :func:`register_family`
registers it after checking the derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array
from sklearn.utils.validation import column_or_1d

from seepage.core.jacobian import simplex_basis
from seepage.errors import InputError, nearest
from seepage.tables.names import counted
from seepage.tables.source import Array, Table, as_numpy, looked_up, read_vector

Elementwise = Callable[[Array, Array], Array]

_MEANING = {
    "slope": "∂ℓ/∂m",
    "curvature": "∂²ℓ/∂m²",
    "label_slope": "∂²ℓ/∂m∂y",
    "curvature_slope": "∂³ℓ/∂m³",
    "curvature_bend": "∂⁴ℓ/∂m⁴",
    "curvature_label_slope": "∂³ℓ/∂m²∂y",
    "label_curvature": "∂³ℓ/∂m∂y²",
}


@dataclass(frozen=True)
class Family:
    """A convex, twice differentiable loss of one margin and one label.

    Parameters
    ----------
    name
        The name of the family.
    loss, slope, curvature, label_slope
        ``ℓ(m, y)``, ``∂ℓ/∂m``, ``∂²ℓ/∂m²`` and ``∂²ℓ/∂m∂y``, elementwise, written with the array
        API standard, so that they run on any device.
    mean
        The prediction ``E[y | m]``, elementwise.
    problem_with
        A function that checks the labels. The function returns ``None``, or a clause that explains
        why the labels are not valid for this family.
    probe
        Margins and labels at which the derivatives are checked on registration.
    curvature_slope, curvature_label_slope, label_curvature
        ``∂³ℓ/∂m³``, ``∂³ℓ/∂m²∂y`` and ``∂³ℓ/∂m∂y²``, elementwise.
        :meth:`seepage.glm.Reweighting.whole_procedure` requires all three;
        :func:`seepage.glm.private_shape_leakage` requires the first two.
    self_concordance
        A constant ``M`` with ``|∂³ℓ/∂m³| ≤ M ∂²ℓ/∂m²`` everywhere (Bach 2010), if one exists. A
        few matrix products then give certified bounds on the risks of all records, without refits.
    curvature_bend
        ``∂⁴ℓ/∂m⁴``, elementwise. Define it only for losses with ``|∂⁴ℓ/∂m⁴| ≤ M² ∂²ℓ/∂m²`` and
        ``|∂⁵ℓ/∂m⁵| ≤ M³ ∂²ℓ/∂m²`` everywhere. Risks then have tight bounds without refits.
    """

    name: str
    loss: Elementwise
    slope: Elementwise
    curvature: Elementwise
    label_slope: Elementwise
    mean: Callable[[Array], Array]
    problem_with: Callable[[Array], str | None] = lambda y: None
    probe: tuple[tuple[float, ...], tuple[float, ...]] = (
        (-2.0, -0.3, 0.4, 1.7),
        (0.0, 1.0, 0.3, 2.0),
    )
    curvature_slope: Elementwise | None = None
    curvature_label_slope: Elementwise | None = None
    label_curvature: Elementwise | None = None
    self_concordance: float | None = None
    curvature_bend: Elementwise | None = None

    def check_labels(self, labels: Array, model: str | None = None) -> None:
        """Raise an error that names ``model`` (if given) unless all labels are valid."""
        problem = self.problem_with(labels)
        if problem is not None:
            whom = f"the {self.name} family" if model is None else model
            raise InputError(
                f"y is not valid for {whom}: {problem}; correct these labels, or fit another model."
            )


def _zero(m: Array, y: Array) -> Array:
    return array_namespace(m).zeros_like(m)


def _sigmoid(m: Array) -> Array:
    xp = array_namespace(m)
    # exp is only ever taken of a non-positive number, so it cannot overflow.
    small = xp.exp(-xp.abs(m))
    return xp.where(m >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


def _softplus(m: Array) -> Array:
    xp = array_namespace(m)
    return xp.where(m > 0, m, xp.zeros_like(m)) + xp.log1p(xp.exp(-xp.abs(m)))


def _bernoulli_slope(m: Array, y: Array) -> Array:
    xp = array_namespace(m)
    small = xp.exp(-xp.abs(m))
    likely, other = 1.0 / (1.0 + small), small / (1.0 + small)  # s(|m|) and s(−|m|)
    return (1 - y) * xp.where(m >= 0, likely, other) - y * xp.where(m >= 0, other, likely)


def _bernoulli_curvature(m: Array, y: Array) -> Array:
    xp = array_namespace(m)
    small = xp.exp(-xp.abs(m))
    return small / (1.0 + small) ** 2


def _bernoulli_bend(m: Array, y: Array) -> Array:
    curvature = _bernoulli_curvature(m, y)
    return curvature * (1 - 6 * curvature)


def _outside_unit_interval(y: Array) -> str | None:
    xp = array_namespace(y)
    if bool(xp.any((y < 0) | (y > 1))):
        return "a logistic label must lie between 0 and 1"
    return None


def _negative_counts(y: Array) -> str | None:
    xp = array_namespace(y)
    if bool(xp.any(y < 0)):
        below = int(xp.sum(xp.astype(y < 0, xp.int64)))
        return f"{counted(below, 'count is', 'counts are')} negative"
    return None


def _not_positive(y: Array) -> str | None:
    xp = array_namespace(y)
    if bool(xp.any(y <= 0)):
        below = int(xp.sum(xp.astype(y <= 0, xp.int64)))
        return f"{counted(below, 'label is', 'labels are')} not positive"
    return None


def _inside(m: Array, y: Array) -> Array:
    """Return how far a record is inside the margin of its class, or 0 outside the margin."""
    xp = array_namespace(m)
    left = 1 - (2 * y - 1) * m
    return xp.where(left > 0, left, xp.zeros_like(left))


def _is_inside(m: Array, y: Array) -> Array:
    xp = array_namespace(m)
    return xp.astype((2 * y - 1) * m < 1, m.dtype)


def tweedie(power: float) -> Family:
    """Return the Tweedie family with a logarithmic link, for a power from 1 to 2.

    The loss is half the unit deviance, without the terms that do not depend on the margin::

        ℓ(m, y) = e^{(2−p)m}/(2−p) − y e^{(1−p)m}/(1−p),     m + y e^{−m} for p = 2

    It is the Poisson loss at ``p = 1`` and the gamma loss at ``p = 2``, and convex at every power.
    """
    p = float(power)
    if not 1 <= p <= 2:
        raise InputError(
            f"The Tweedie family has a convex loss for powers from 1 to 2, not for {p:g}; choose "
            "a power in that range."
        )
    if p == 1:
        return poisson

    def rising(m: Array, order: int) -> Array:
        return (2 - p) ** (order - 1) * array_namespace(m).exp((2 - p) * m)

    def falling(m: Array, y: Array, order: int) -> Array:
        return y * (1 - p) ** (order - 1) * array_namespace(m).exp((1 - p) * m)

    def first(m: Array) -> Array:
        return m if p == 2 else rising(m, 0)

    return Family(
        name="gamma" if p == 2 else f"tweedie {p:g}",
        loss=lambda m, y: first(m) - falling(m, y, 0),
        slope=lambda m, y: rising(m, 1) - falling(m, y, 1),
        curvature=lambda m, y: rising(m, 2) - falling(m, y, 2),
        label_slope=lambda m, y: -falling(m, array_namespace(m).ones_like(m), 1),
        mean=lambda m: array_namespace(m).exp(m),
        problem_with=_not_positive if p == 2 else _negative_counts,
        probe=((-2.0, -0.3, 0.4, 1.7), (0.5, 1.0, 0.3, 2.0)),
        curvature_slope=lambda m, y: rising(m, 3) - falling(m, y, 3),
        curvature_label_slope=lambda m, y: -falling(m, array_namespace(m).ones_like(m), 2),
        label_curvature=_zero,
    )


gaussian = Family(
    name="gaussian",
    loss=lambda m, y: 0.5 * (m - y) ** 2,
    slope=lambda m, y: m - y,
    curvature=lambda m, y: array_namespace(m).ones_like(m),
    label_slope=lambda m, y: -array_namespace(m).ones_like(m),
    mean=lambda m: m,
    curvature_slope=_zero,
    curvature_label_slope=_zero,
    label_curvature=_zero,
    self_concordance=0.0,
)

bernoulli = Family(
    name="bernoulli",
    # log(1 + eᵐ) − y m, then s(m) − y, in forms that keep their digits where a fit is good.
    loss=lambda m, y: (1 - y) * _softplus(m) + y * _softplus(-m),
    slope=_bernoulli_slope,
    curvature=_bernoulli_curvature,
    label_slope=lambda m, y: -array_namespace(m).ones_like(m),
    mean=_sigmoid,
    problem_with=_outside_unit_interval,
    probe=((-2.0, -0.3, 0.4, 1.7), (0.0, 1.0, 0.3, 1.0)),
    # a (1 − 2s)
    curvature_slope=lambda m, y: -_bernoulli_curvature(m, y) * array_namespace(m).tanh(m / 2),
    curvature_label_slope=_zero,
    label_curvature=_zero,
    self_concordance=1.0,
    curvature_bend=_bernoulli_bend,
)

poisson = Family(
    name="poisson",
    loss=lambda m, y: array_namespace(m).exp(m) - y * m,
    slope=lambda m, y: array_namespace(m).exp(m) - y,
    curvature=lambda m, y: array_namespace(m).exp(m),
    label_slope=lambda m, y: -array_namespace(m).ones_like(m),
    mean=lambda m: array_namespace(m).exp(m),
    problem_with=_negative_counts,
    curvature_slope=lambda m, y: array_namespace(m).exp(m),
    curvature_label_slope=_zero,
    label_curvature=_zero,
    self_concordance=1.0,
    curvature_bend=lambda m, y: array_namespace(m).exp(m),
)

gamma = tweedie(2.0)

squared_hinge = Family(
    name="squared hinge",
    # max(0, 1 − s m)² with the sign s = 2y − 1 of the class. The curvature jumps where a record
    # enters the margin; no record lies on that edge itself, so there it need not be defined.
    loss=lambda m, y: _inside(m, y) ** 2,
    slope=lambda m, y: -2 * (2 * y - 1) * _inside(m, y),
    curvature=lambda m, y: 2 * (2 * y - 1) ** 2 * _is_inside(m, y),
    label_slope=lambda m, y: 4 * _is_inside(m, y) * (2 * (2 * y - 1) * m - 1),
    mean=lambda m: m,
    problem_with=_outside_unit_interval,
    probe=((-2.0, -0.3, 0.4, 1.7), (0.0, 1.0, 0.3, 1.0)),
)

_registry = {family.name: family for family in (gaussian, bernoulli, poisson, gamma)}


def get_family(name: str | Family) -> Family:
    """Return the family with this name; a :class:`Family` is returned unchanged."""
    if isinstance(name, Family):
        return name
    if name not in _registry:
        raise InputError(
            f"There is no family {name!r}{nearest(name, _registry)}; choose one of these: "
            f"{', '.join(sorted(_registry))}."
        )
    return _registry[name]


def register_family(family: Family) -> Family:
    """Register a family under its name, after checking its derivatives.

    ``slope``, ``curvature``, ``label_slope`` and any higher derivatives are compared with
    extrapolated central differences at ``family.probe``. The curvature must be non-negative,
    because the loss must be convex.

    Examples
    --------
    >>> from seepage.glm.losses import Family, register_family
    >>> from array_api_compat import array_namespace
    >>> def sqrt1(m, y):
    ...     return array_namespace(m).sqrt(1 + (m - y) ** 2)
    >>> _ = register_family(Family(
    ...     "pseudo-huber",
    ...     loss=lambda m, y: sqrt1(m, y) - 1,
    ...     slope=lambda m, y: (m - y) / sqrt1(m, y),
    ...     curvature=lambda m, y: sqrt1(m, y) ** -3,
    ...     label_slope=lambda m, y: -(sqrt1(m, y) ** -3),
    ...     mean=lambda m: m,
    ... ))
    """
    check_derivatives(family)
    _registry[family.name] = family
    return family


def check_derivatives(family: Family) -> None:
    """Raise an error unless the slope, curvature and label slope are derivatives of ``loss``.

    Third and fourth derivatives are also checked, if defined. Each derivative is compared with
    extrapolated central differences of the next lower derivative, in float64 and to 1e-9. The
    comparison uses every pair of a probe margin and a probe label. The curvature must be
    non-negative.
    """
    margins, labels = probe_points(family)
    for name, truth in _by_differences(family, margins, labels).items():
        if getattr(family, name) is None:
            continue
        stated = _stated(family, name, margins, labels)
        error = np.abs(stated - truth)
        allowed = 1e-9 * np.maximum(1.0, np.abs(truth))
        if not np.all(error <= allowed):  # in this form NaN fails too
            worst = int(np.argmax(np.where(np.isnan(error), np.inf, error / allowed)))
            raise InputError(
                f"{name} of family {family.name!r} is not {_MEANING[name]}: at m = "
                f"{margins[worst]:g}, y = {labels[worst]:g} it is {stated[worst]:.6g}, but the "
                f"loss implies {truth[worst]:.6g} (difference {error[worst]:.2g}); correct {name}."
            )
    curvature = _stated(family, "curvature", margins, labels)
    if np.any(curvature < 0):
        worst = int(np.argmin(curvature))
        raise InputError(
            f"The curvature of family {family.name!r} is negative ({curvature[worst]:.6g} at m = "
            f"{margins[worst]:g}, y = {labels[worst]:g}), so its loss is not convex and may have "
            "several minimisers. Use a convex loss."
        )


def probe_points(family: Family) -> tuple[np.ndarray, np.ndarray]:
    """Return every pair of a probe margin and a probe label as two float64 vectors."""
    margins, labels = np.meshgrid(*(np.asarray(side, dtype=float) for side in family.probe))
    return margins.ravel(), labels.ravel()


def _stated(family: Family, name: str, margins: np.ndarray, labels: np.ndarray) -> np.ndarray:
    values = np.asarray(getattr(family, name)(margins, labels), dtype=float)
    return np.broadcast_to(values, margins.shape)


def _by_differences(
    family: Family, margins: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    def by_margin(name: str) -> np.ndarray:
        return _central(lambda h: _stated(family, name, margins + h, labels))

    def by_label(name: str) -> np.ndarray:
        return _central(lambda h: _stated(family, name, margins, labels + h))

    derivatives = {
        "slope": by_margin("loss"),
        "curvature": by_margin("slope"),
        "label_slope": by_label("slope"),
        "curvature_slope": by_margin("curvature"),
        "curvature_label_slope": by_label("curvature"),
        "label_curvature": by_label("label_slope"),
    }
    if family.curvature_slope is not None:  # without it nothing uses the fourth derivative
        derivatives["curvature_bend"] = by_margin("curvature_slope")
    return derivatives


def _central(along: Callable[[float], np.ndarray], step: float = 0.02) -> np.ndarray:
    """Return the derivative at 0 by central differences with three Richardson extrapolations.

    Halving the step cancels the terms of order h², h⁴ and h⁶, so the error is of order h⁸.
    """
    table = [(along(h) - along(-h)) / (2 * h) for h in (step, step / 2, step / 4, step / 8)]
    for order in (4.0, 16.0, 64.0):
        table = [(order * fine - coarse) / (order - 1) for coarse, fine in pairwise(table)]
    (best,) = table
    return np.asarray(best)


# Several outputs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Categorical:
    """The loss ``log Σ_k exp(m_k) − Σ_k y_k m_k`` for margins m = Wᵀx and a label y on the simplex.

    With ``π = softmax(m)``, the slope is ``π − y``, the curvature is ``diag π − ππᵀ``, and the
    mixed derivative with respect to margins and label is ``−I``. The label is a point on the
    simplex (one-hot or soft). The simplex has K − 1 directions; the label slope is the derivative
    along an orthonormal basis of these directions.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.glm.losses import Categorical
    >>> Categorical(3).slope(np.zeros((1, 3)), np.asarray([[0.0, 0.0, 1.0]])).round(2)
    array([[ 0.33,  0.33, -0.67]])
    """

    outputs: int  # the number of classes K, at least 2
    name: str = "categorical"
    self_concordance: ClassVar[float] = 1.0  # where |t| is the span of a shift of the margins

    def __post_init__(self) -> None:
        if self.outputs < 2:
            raise InputError(
                f"A categorical label requires at least 2 classes, not {self.outputs}."
            )

    def loss(self, M: Array, Y: Array) -> Array:
        """Return ``log Σ_k exp(m_k) − Σ_k y_k m_k`` of every record, (n,)."""
        xp = array_namespace(M)
        # Relative to the label's own margin, the largest taken out: keeps its digits where a fit
        # is good.
        beside = M - xp.sum(Y * M, axis=1)[:, None]
        top = xp.max(beside, axis=1, keepdims=True)
        classes = xp.arange(M.shape[1], device=device(M))
        first = xp.argmax(beside, axis=1)[:, None] == classes[None, :]
        powers = xp.where(first, xp.zeros_like(beside), xp.exp(beside - top))
        return top[:, 0] + xp.log1p(xp.sum(powers, axis=1))

    def mean(self, M: Array) -> Array:
        """Return the probabilities ``π = softmax(m)`` of every record, (n, K)."""
        xp = array_namespace(M)
        powers = xp.exp(M - xp.max(M, axis=1, keepdims=True))
        return powers / xp.sum(powers, axis=1, keepdims=True)

    def slope(self, M: Array, Y: Array) -> Array:
        """Return ``∂ℓ/∂m = π − y`` of every record, (n, K)."""
        P = self.mean(M)
        # π (1 − y) − y (1 − π): it keeps its digits where a record is fitted well.
        return P * (1 - Y) - Y * _others(P)

    def curvature(self, M: Array, Y: Array) -> Array:
        """Return ``∂²ℓ/∂m² = diag π − ππᵀ`` of every record, (n, K, K)."""
        P = self.mean(M)
        A = -P[:, :, None] * P[:, None, :]
        on_diagonal = P * _others(P)
        for k in range(self.outputs):
            A[:, k, k] = on_diagonal[:, k]
        return A

    def label_slope(self, M: Array, Y: Array) -> Array:
        """Return ``∂²ℓ/∂m∂y`` along the simplex: its basis, times −1, (n, K, K−1)."""
        xp = array_namespace(M)
        T = xp.asarray(simplex_basis(self.outputs), dtype=M.dtype, device=device(M))
        return xp.broadcast_to(-T, (M.shape[0], self.outputs, self.outputs - 1))


def class_positions(labels: np.ndarray, classes: np.ndarray, start: int = 0) -> np.ndarray:
    """Return the position of every label among the sorted classes, of shape (m,).

    ``start`` is the row of the first label in the whole table.
    """
    if labels.dtype.kind in "biuf" and classes.dtype.kind in "biuf":
        positions = np.searchsorted(classes, labels)
        positions = np.minimum(positions, classes.shape[0] - 1)
        unknown = classes[positions] != labels
    else:
        places = {label: position for position, label in enumerate(classes.tolist())}
        known, met = looked_up(labels)
        positions = np.asarray([places.get(label, -1) for label in known.tolist()], np.int64)[met]
        unknown = positions < 0
    if unknown.any():
        row = int(np.argmax(unknown))
        raise InputError(
            f"Row {start + row:,} has the label {labels[row : row + 1].tolist()[0]!r}, which is "
            f"not one of the model's classes ({', '.join(map(repr, classes.tolist()[:10]))}); pass "
            "the labels on which the model was fitted."
        )
    return np.asarray(positions)


def class_targets(positions: np.ndarray, family: Family | Categorical) -> np.ndarray:
    """Return class positions as a family's labels: numbers, or one-hot rows, (m, K)."""
    if isinstance(family, Categorical):
        return np.asarray(np.eye(family.outputs)[positions])
    return positions.astype(float)


def _others(P: Array) -> Array:
    """Return ``1 − π_k`` as the sum of the other probabilities, to avoid cancellation near one."""
    xp = array_namespace(P)
    K = P.shape[1]
    return P @ (1 - xp.eye(K, dtype=P.dtype, device=device(P)))


# Labels and weights as numbers -------------------------------------------------------------------


def read_response(y: Any, table: Table) -> Array:
    """Read the numeric target of a regression, of shape (n,)."""
    if y is None:
        raise InputError("This estimator requires y to be passed, but the target y is None.")
    if is_torch_array(y):
        return read_vector(y, table, "y")
    values = column_or_1d(as_numpy(y), warn=True)
    try:
        values = values.astype(float)
    except (TypeError, ValueError):
        raise InputError(
            "Unknown label type: y must contain numbers for a regression, but it contains "
            f"{values.dtype} values; convert them to numbers, or fit a classifier."
        ) from None
    return read_vector(values, table, "y")


def read_weights(sample_weight: Any, table: Table) -> Array | None:
    """Read non-negative sample weights, (n,), not all zero; return ``None`` if all equal one."""
    if sample_weight is None:
        return None
    weights = read_vector(sample_weight, table, "sample_weight")
    xp = array_namespace(weights)
    if bool(xp.any(weights < 0)):
        worst = int(xp.argmin(weights))
        raise InputError(
            f"sample_weight must not be negative, but row {worst} has the weight "
            f"{float(weights[worst]):g}; use 0 to exclude a row."
        )
    if not bool(xp.any(weights > 0)):
        raise InputError(
            "sample_weight is zero for every row, so no rows remain to fit; give some rows a "
            "positive weight."
        )
    return None if bool(xp.all(weights == 1)) else weights
