"""Equal leakage: refit with sample weights until all records leak equally (IRFIL).

Record i of unit k has the weight ``ωᵢ = ω⁰ᵢ f_k``, where a unit is a record or a group of records.
Let ``η̄_k`` be the mean leakage of the unit's records and ``t_k`` the unit's relative target
leakage. Each round updates the factors as in Hannun et al. 2021, algorithm 1, where every record is
a unit and every t is one::

    f_k ← c f_k t_k / η̄_k,      c such that  Σᵢ ωᵢ = Σᵢ ω⁰ᵢ

If the factors have limits, the right-hand side is clipped to these limits, and c is chosen so that
the sum is preserved after clipping. Weights can oscillate about the fixed point, so that further
rounds do not reduce the differences. Steps are then halved on a logarithmic scale: ``f_k ← c f_k
(t_k/η̄_k)^½`` and so on. The fixed point does not change.

**The leakage of the whole procedure** follows from the derivative through the minimiser and the
weights together. At convergence the weights are a function of the parameters θ and the Hessian ``H
= Σ ω a x̃x̃ᵀ + nλE`` only. Let ``eᵢ(θ, H)`` be the leakage of record i per unit of weight::

    ωᵢ = ω⁰ᵢ f_k,   f_k = c t_k / D_k,   D_k = the mean of ω⁰ᵢ eᵢ over the records of unit k

Here the sum of the weights determines c, and f_k is constant if it is at a limit. So the procedure
is an implicit system in ``s = (θ, H)`` with P + P(P+1)/2 unknowns, regardless of the number of
records::

    G₁ = Σ ωᵢ(s) rᵢ x̃ᵢ + nλEθ = 0,      G₂ = H − Σ ωᵢ(s) aᵢ x̃ᵢx̃ᵢᵀ − nλE = 0

A record zᵢ then changes the release by ``dθ/dzᵢ = −[I 0] (∂G/∂s)⁻¹ ∂G/∂zᵢ``: P rows of the inverse
suffice for all records. This derivation is not in Hannun et al. 2021, who treat the weights as
constants.

The leakage of a record per unit of weight is ``eᵢ = ‖A Mᵢ‖₂`` with ``A = Φ^½ H⁻¹`` and ``Mᵢ = [a x̃
w_Vᵀ + r E_V, b x̃]``: V is the set of unknown features, and the label's column is included if the
label is unknown. Let u and v be the leading singular vectors of ``A M``, ``g = Aᵀu`` and ``h =
H⁻¹Mv``. First-order perturbation of a singular value then gives::

    de = uᵀ d(A M) v = −gᵀ dH h + gᵀ dM v

Third derivatives of the loss enter only through dM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from sklearn.base import clone

from seepage.core.jacobian import (
    Attributes,
    Unknowns,
    dense_largest,
)
from seepage.core.leakage import Leakage, group_labels, named_positions
from seepage.core.noise import Gaussian, Noise, check_noise_kind
from seepage.core.result import Result
from seepage.errors import InputError, nearest
from seepage.glm.adapters.registry import describe, kind_of
from seepage.glm.estimators import LinearModel
from seepage.glm.fitting.objective import FittedGLM, hessian
from seepage.glm.jacobian.optimum import whitened_inverse
from seepage.glm.leakage import leakage, release_of
from seepage.glm.losses import Categorical, read_weights
from seepage.support.chunks import progress, row_slices
from seepage.support.number_check import check_count
from seepage.tables.result_table import PlottedNumbers, ResultTable
from seepage.tables.source import (
    MemorySource,
    Table,
    as_numpy,
    build_frame,
    check_length,
    place_like,
    read_table,
)

Columns = str | int | Sequence[str | int] | None
Rows = slice | np.ndarray

NOTICE = (
    "The weights were chosen from the data, so the release also leaks through them. eta and "
    "leakage() treat the weights as known constants. The result of whole_procedure() includes "
    "their choice, and can be several times as large as eta. Do not publish the weights."
)

# Relative to the largest leakage: below it a unit counts as leaking nothing, and has no slope.
_NOTHING = 1e-12


class ReweightRound(NamedTuple):
    """The weights of one round, and the leakage of every record with these weights."""

    weights: np.ndarray  # (n,)
    factors: np.ndarray  # (units,)
    eta: np.ndarray  # (n,)
    change: float  # how far away the next factors lie, relative, root mean square over the units


@dataclass(frozen=True, eq=False)
class ReweightRule:
    """The rule for the weights: units of records, their target leakage, and the limits."""

    start: np.ndarray  # ``ω⁰``, (n,). Records of weight zero are left out of every mean.
    unit: np.ndarray  # the unit of every record, (n,)
    target: np.ndarray  # ``t``, (units,)
    # The limits of the factors
    low: float = 0.0
    high: float = math.inf

    def weights(self, factors: np.ndarray) -> np.ndarray:
        """Return ``ω⁰ᵢ f_k`` of every record, (n,)."""
        return np.asarray(self.start * factors[self.unit])

    def mass(self) -> np.ndarray:
        """Return ``Σ ω⁰`` over the records of each unit, (units,)."""
        return np.bincount(self.unit, weights=self.start, minlength=len(self.target))

    def counts(self) -> np.ndarray:
        """Return the number of records of positive weight in each unit, (units,)."""
        taking_part = (self.start > 0).astype(float)
        return np.bincount(self.unit, weights=taking_part, minlength=len(self.target))

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the mean over the records of positive weight in each unit, (units,)."""
        kept = np.where(self.start > 0, values, 0.0)
        sums = np.bincount(self.unit, weights=kept, minlength=len(self.target))
        return np.asarray(sums / np.maximum(self.counts(), 1.0))

    def leaking(self, eta: np.ndarray) -> np.ndarray:
        """Return which units leak at all, (units,); the other units leak nothing at any weight."""
        means = self.means(eta)
        return np.asarray(means > _NOTHING * np.max(means, initial=0.0))

    def following(self, factors: np.ndarray, eta: np.ndarray, step: float = 1.0) -> np.ndarray:
        """Return the factors of the next round, (units,), after a full or a partial step.

        A unit that leaks nothing at any weight keeps its factor.
        """
        moving = self.leaking(eta)
        if not np.any(moving):
            return factors
        mass = self.mass()
        wanted = factors[moving] * (self.target[moving] / self.means(eta)[moving]) ** step
        left = float(np.sum(mass[moving] * factors[moving]))
        new = factors.copy()
        new[moving] = _scaled_into(wanted, mass[moving], left, self.low, self.high)
        return new

    def change(self, factors: np.ndarray, following: np.ndarray) -> float:
        """Return the relative change of the weights: the RMS over the units of positive weight.

        If the factors have no limits, a small change is close to the coefficient of variation of
        ``η̄_k/t_k``.
        """
        here = self.mass() > 0
        return float(np.sqrt(np.mean((following[here] / factors[here] - 1) ** 2)))

    def run(
        self, leakage_with: Callable[[np.ndarray], np.ndarray], rounds: int, tolerance: float
    ) -> Iterator[ReweightRound]:
        """Yield the state with the initial weights, and then the state after each round.

        ``leakage_with`` refits with the given weights and returns every record's leakage. Rounds
        stop when the weights would change by less than ``tolerance``.
        """
        factors, step, before = np.ones(len(self.target)), 1.0, math.inf
        for _ in progress(range(rounds + 1), "rounds"):
            weights = self.weights(factors)
            eta = leakage_with(weights)
            change = self.change(factors, self.following(factors, eta))
            yield ReweightRound(weights, factors, eta, change)
            if change <= tolerance:
                return
            step = max(step / 2, 1 / 16) if change >= before else step
            factors, before = self.following(factors, eta, step), change


def _scaled_into(
    values: np.ndarray, mass: np.ndarray, total: float, low: float, high: float
) -> np.ndarray:
    """Return ``clip(c·values, low, high)``, with c such that ``Σ mass·clip(…) = total``.

    The sum is piecewise linear and increasing in c, with a kink where a value reaches a limit.
    Brent's method finds the interval between two kinks on which the equation is linear.
    """
    if low <= 0 and high == math.inf:
        return np.asarray(values * (total / float(np.sum(mass * values))))

    def excess(c: float) -> float:
        return float(np.sum(mass * np.clip(c * values, low, high))) - total

    most = float(np.max((high if math.isfinite(high) else total / np.min(mass)) / values))
    for c in (0.0, most):  # all of them at a limit, up to rounding
        if excess(c) * (1 if c else -1) <= 0:
            return np.asarray(np.clip(c * values, low, high))
    scaled = brentq(excess, 0.0, most, xtol=1e-300, rtol=4 * np.finfo(float).eps) * values
    clipped, free = np.clip(scaled, low, high), (scaled > low) & (scaled < high)
    if np.any(free):
        rest = total - float(np.sum(mass[~free] * clipped[~free]))
        clipped[free] = values[free] * (rest / float(np.sum(mass[free] * values[free])))
    return np.asarray(np.clip(clipped, low, high))


def read_rule(
    table: Table, y: Any, *, by: Any, target: Any, clamp: Any, sample_weight: Any
) -> tuple[ReweightRule, np.ndarray | None]:
    """Read the arguments of :func:`seepage.glm.reweight`; also return the groups' labels."""
    start = np.ones(len(table)) if sample_weight is None else as_numpy(sample_weight).astype(float)
    if by is None:
        unit, labels = np.arange(len(table)), None
        wanted = _row_targets(target, table)
    else:
        labels, unit = _groups(y if isinstance(by, str) and by == "class" else by, table)
        wanted = _group_targets(target, labels)
    low, high = (0.0, math.inf) if clamp is None else _limits(clamp)
    return ReweightRule(start, unit, wanted, low, high), labels


def _row_targets(target: Any, table: Table) -> np.ndarray:
    if target is None:
        return np.ones(len(table))
    wanted = as_numpy(target)
    if wanted.ndim == 0 or wanted.dtype.kind not in "biuf":
        raise InputError(
            "target must contain one number per row: the row's relative target leakage. To pass a "
            "mapping from groups to numbers, also pass by=."
        )
    check_length(wanted, table, "target")
    return _positive(wanted.astype(float))


def _group_targets(target: Any, labels: np.ndarray) -> np.ndarray:
    if target is None:
        return np.ones(len(labels))
    if not hasattr(target, "keys"):
        raise InputError(
            "With by=, target must be a mapping from each group to its target leakage."
        )
    known = labels.tolist()
    for label in target:
        if label not in known:
            raise InputError(
                f"No record is in the group {label!r}{nearest(label, known)}; leave it out of "
                "target."
            )
    missing = [label for label in known if label not in target]
    if missing:
        raise InputError(
            f"target has no entry for the group {missing[0]!r}; pass one number per group."
        )
    return _positive(np.asarray([float(target[label]) for label in known]))


def _positive(wanted: np.ndarray) -> np.ndarray:
    if not np.all(np.isfinite(wanted) & (wanted > 0)):
        worst = int(np.argmin(np.where(np.isfinite(wanted), wanted, -np.inf)))
        raise InputError(
            f"target must be finite and above zero, but its entry {worst} is {wanted[worst]:g}; "
            "to exclude a row, set its sample weight to zero."
        )
    return wanted


def _groups(by: Any, table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted group labels, and the position of each record's label among them."""
    if as_numpy(by).ndim == 0:
        raise InputError('by must be "class", or contain the group of every row.')
    values = group_labels(by, table, "by")
    try:
        labels, unit = np.unique(values, return_inverse=True)
    except TypeError:
        raise InputError("by contains labels of mixed types; convert them all to text.") from None
    return labels, unit.reshape(-1)


def _limits(clamp: Any) -> tuple[float, float]:
    try:
        low, high = (float(limit) for limit in clamp)
    except (TypeError, ValueError):
        raise InputError(f"clamp must be a pair of numbers (low, high), not {clamp!r}.") from None
    if not 0 <= low <= 1 <= high:
        raise InputError(
            "clamp must satisfy 0 ≤ low ≤ 1 ≤ high, because the mean weight is one; it is "
            f"({low:g}, {high:g})."
        )
    return low, high


class Round(NamedTuple):
    """The state after a round: statistics of the records' leakage, and the model's score."""

    round: int  # 0 is the fit before any reweighting
    mean: float
    spread: float  # the standard deviation over the records
    largest: float
    change: float  # how far the next weights lie from these: relative, root mean square
    score: float


class ReweightedData(NamedTuple):
    """The data used for reweighting."""

    X: Any
    y: Any
    table: Table
    unknowns: Unknowns
    attributes: Mapping[str, Sequence[str | int]]
    rule: ReweightRule
    last: ReweightRound


@dataclass(frozen=True, eq=False, repr=False)
class Reweighting(ResultTable):
    """A model fitted with weights that equalise the leakage of the records.

    Parameters
    ----------
    model
        The model of the last round, fitted with ``weights``.
    weights
        The weight ω of every record, (n,).
    eta
        The leakage of every record with ``noise``, treating the weights as constants.
    trajectory
        A :class:`Round` for the fit with the initial weights, and another for each later round.
    groups
        With ``by``, the mean leakage of each group.
    noise
        The noise for which ``eta`` was measured.
    about
        A description of the values whose leakage is measured.
    notice
        The limitations of the results.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> X, y = sp.data.load_bundled("diabetes").X, sp.data.load_bundled("diabetes").y
    >>> fair = sp.glm.reweight(sp.glm.LinearRegression(l2=1e-3), X, y - y.mean())
    >>> honest = np.asarray(fair.whole_procedure()) / fair.eta
    >>> f"{honest.min():.2f} to {honest.max():.2f} times the leakage with weights as constants"
    '0.80 to 1.91 times the leakage with weights as constants'
    """

    model: Any
    weights: np.ndarray
    eta: np.ndarray
    trajectory: tuple[Round, ...]
    groups: dict[Any, float] | None
    noise: Noise
    about: str
    _setting: ReweightedData
    notice: str = NOTICE

    def leakage(self, noise: Noise | None = None) -> Leakage:
        """Return the leakage of the released model, treating the weights as constants."""
        here = self._setting
        return leakage(
            self.model,
            here.X,
            here.y,
            noise=self.noise if noise is None else noise,
            sample_weight=self.weights,
            attributes=here.attributes,
        )

    def whole_procedure(self, rows: Any = None, noise: Noise | None = None) -> Result:
        """Return the leakage about each record, including the choice of the weights.

        A record affects the released parameters through its own term in the objective (which
        :meth:`leakage` measures), through its own weight, and through the weights of all other
        records. The result is ``‖Φ^½ dθ/dzᵢ‖₂`` with all three effects, by implicit differentiation
        of the converged minimiser and weights together (:mod:`seepage.glm.reweighting`). The
        unknowns are the same as for ``eta``.

        Parameters
        ----------
        rows
            The positions of the records, in any order, or a mask; by default all records.
        noise
            The noise of the release; by default that of ``eta``.

        Raises
        ------
        InputError
            Raised for softmax, for families without third derivatives, for more than about 150
            parameters, and if the weights have not converged or are not differentiable.
        """
        here, released = self._setting, self.noise if noise is None else noise
        check_noise_kind(released)
        # In the caller's order
        positions = named_positions(rows, len(self.weights), here.table)
        eta = procedure_leakage(
            describe(self.model, here.table, here.y, self.weights),
            as_numpy(here.table.values),
            here.rule,
            here.last,
            here.unknowns,
            self.noise,
            rows=positions,
            release_noise=released,
        )
        index = positions if here.table.index is None else here.table.index[positions]
        return Result(
            place_like(eta, here.table.values),
            "rows",
            "fil",
            about=f"{self.about}, through the weights too",
            index=index if rows is not None else here.table.index,
            library=here.table.library,
            noise=(released,),
        )

    value_column = "mean"

    def drawing(self) -> PlottedNumbers:
        """Return the data that :meth:`plot` draws: the mean η after each round, with its spread."""
        mean = np.array([one.mean for one in self.trajectory])
        spread = np.array([one.spread for one in self.trajectory])
        names = [f"round {one.round}" for one in self.trajectory]
        ends = (mean - spread, mean + spread)
        return PlottedNumbers(mean, names, "mean η ± spread", "rounds", *ends, ranked=False)

    def table(self, library: str | None = None) -> Any:
        """Return the trajectory as a data frame of the caller's library (see ``Result``)."""
        columns = zip(*self.trajectory, strict=True)
        frame = dict(zip(Round._fields, map(np.asarray, columns), strict=True))
        return build_frame(frame, library or self._setting.table.library)

    def __repr__(self) -> str:
        first, last = self.trajectory[0], self.trajectory[-1]
        return (
            f"<Reweighting of {len(self.weights)} records about {self.about}: mean η "
            f"{first.mean:.4g} ± {first.spread:.2g} → {last.mean:.4g} ± {last.spread:.2g} in "
            f"{last.round} round{'' if last.round == 1 else 's'}>"
        )


def reweight(
    model: Any,
    X: Any,
    y: Any,
    *,
    rounds: int = 15,
    target: Any = None,
    columns: Columns = None,
    label: bool | None = None,
    simplex: bool = False,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    by: Any = None,
    clamp: tuple[float, float] | None = None,
    tolerance: float = 1e-6,
    noise: Noise | None = None,
    sample_weight: Any = None,
    X_test: Any = None,
    y_test: Any = None,
    scoring: Callable[[Any, Any, Any], float] | None = None,
) -> Reweighting:
    """Fit a model with weights that make all records leak equally (IRFIL).

    Each round fits the model, measures the leakage η of every record and sets the weights to
    ``ω ← n (ω/η) / Σ(ω/η)`` (Hannun et al. 2021, algorithm 1). Records that leak more get smaller
    weights.

    The weights depend on the data. The equalised η treats the weights as constants, as Hannun et
    al. do. :meth:`Reweighting.whole_procedure` includes the choice of the weights; the resulting
    leakage differs between records, and can exceed that of an unweighted fit.

    Parameters
    ----------
    model
        A model from :mod:`seepage.glm`. The model need not be fitted, and is not changed.
    X, y
        The data: a table in memory (an array, a tensor or a data frame), and the labels.
    rounds
        The maximum number of rounds; each computes new weights and refits.
    target
        Each record's relative target leakage, a number above zero; with ``by``, a mapping from each
        group to its target. By default, all are equal.
    columns, label, simplex, attributes
        The unknowns, as for :meth:`seepage.Leakage.records`: the whole record with its label, or
        the named columns.
    by
        The group of every record, or ``"class"`` for its label. Each group has one weight, so that
        all groups have the same *mean* leakage.
    clamp
        The smallest and the largest weight, such as ``(0.1, 10)``, relative to the initial weights;
        the mean is one. Records at the smallest (largest) weight leak more (less) than the records
        between the limits.
    tolerance
        The root-mean-square relative change of the weights below which the rounds stop. Without
        limits, if the change is small, it is close to the standard deviation of η divided by its
        mean.
    noise
        The noise of the release; only the ratios of its variances affect the weights. By default,
        every parameter has noise of standard deviation one.
    sample_weight
        Initial weights ``ω⁰``. The weight of record i is ``ω⁰ᵢ`` times its computed factor; the
        weights always sum to ``Σω⁰``. Records of weight zero are excluded.
    X_test, y_test
        The data on which every round's model is scored; by default the training data.
    scoring
        A function ``scoring(model, X, y)``; by default the model's own ``score``.

    Returns
    -------
    Reweighting
        The fitted model, the weights, the leakage and the trajectory of the rounds.

    Examples
    --------
    >>> import seepage as sp
    >>> data = sp.data.load_bundled("diabetes")
    >>> fair = sp.glm.reweight(sp.glm.LinearRegression(l2=1e-3), data.X, data.y - data.y.mean())
    >>> first, last = fair.trajectory[0], fair.trajectory[-1]
    >>> bool(first.spread > 0.4 * first.mean), bool(last.spread < 1e-4 * last.mean)
    (True, True)
    """
    if not isinstance(model, LinearModel):
        raise InputError(
            "Reweighting refits the model many times and supports only seepage.glm models; pass "
            f"one, such as sp.glm.LogisticRegression(l2=1e-2), not a {type(model).__name__}."
        )
    kind_of(model)  # refuses a derived class that overrides what is differentiated here
    check_count(rounds, "rounds", 0)
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance must lie between 0 and 1, not {tolerance!r}.")
    if (X_test is None) != (y_test is None):
        raise InputError("X_test and y_test must be passed together; pass both or neither.")
    noise = Gaussian(1.0) if noise is None else noise
    check_noise_kind(noise)
    table = read_table(X)
    read_weights(sample_weight, table)
    rule, groups = read_rule(
        table, y, by=by, target=target, clamp=clamp, sample_weight=sample_weight
    )
    unknowns, about = Attributes(MemorySource(table), attributes).unknowns(
        columns, columns is None if label is None else bool(label), simplex
    )
    fitted = clone(model)

    def leakage_with(weights: np.ndarray) -> np.ndarray:
        fitted.fit(X, y, sample_weight=weights)
        fitted._start = fitted._parameters()
        source = MemorySource(table, y, weights)
        jacobian = release_of(fitted, source, noise, "raise").template
        return np.asarray(np.sqrt(np.maximum(as_numpy(jacobian.row_norms(unknowns)), 0.0)))

    scored = scoring or (lambda chosen, *data: chosen.score(*data))
    tested = (X, y) if X_test is None else (X_test, y_test)
    trajectory: list[Round] = []
    for last in rule.run(leakage_with, int(rounds), tolerance):
        eta = last.eta[rule.start > 0]
        spread = float(eta.mean()), float(eta.std()), float(eta.max())
        score = float(scored(fitted, *tested))
        trajectory.append(Round(len(trajectory), *spread, last.change, score))
    fitted._start = None
    means = None
    if groups is not None:
        means = dict(zip(groups.tolist(), rule.means(last.eta).tolist(), strict=True))
    return Reweighting(
        model=fitted,
        weights=last.weights,
        eta=last.eta,
        trajectory=tuple(trajectory),
        groups=means,
        noise=noise,
        about=about,
        _setting=ReweightedData(X, y, table, unknowns, dict(attributes or {}), rule, last),
    )


def procedure_leakage(
    fit: FittedGLM,
    X: np.ndarray,
    rule: ReweightRule,
    last: ReweightRound,
    unknowns: Unknowns,
    noise: Noise,
    *,
    rows: np.ndarray,
    release_noise: Noise,
) -> np.ndarray:
    """Return ``‖Φ^½ dθ/dzᵢ‖₂`` for these records, including the choice of the weights.

    ``fit`` is the last fit on the table ``X``, (n, d), and ``last`` is the round at which the
    weights converged. The weights equalise the leakage about ``unknowns``, measured with
    ``noise``. Φ is the Fisher information matrix of the release's noise.
    """
    _check(fit, last)
    fit = replace(
        fit,
        coef=as_numpy(fit.coef),
        intercept=None if fit.intercept is None else as_numpy(fit.intercept),
        target=as_numpy(fit.target),
    )
    family, width = fit.family, X.shape[1]
    curvature = family.curvature(fit.margins(X), fit.target)
    H = hessian(X, last.weights * curvature, ridge=fit.ridge, intercept=fit.intercept is not None)
    system = _System(fit, X, H, unknowns, noise, rule, last)
    adjoint = system.adjoint()
    root = whitened_inverse(np.eye(len(H)), release_noise)
    squared = np.empty(len(rows))
    for piece in row_slices(len(rows), width * width, what="rows"):
        J = root @ system.jacobians(adjoint, rows[piece])
        transposed = np.matrix_transpose(J)
        short = transposed @ J if J.shape[2] < J.shape[1] else J @ transposed
        squared[piece] = dense_largest(short)
    return np.sqrt(squared)


def _check(fit: FittedGLM, last: ReweightRound) -> None:
    """Raise an error unless the derivative through the weights exists and can be computed."""
    if last.change > 1e-3:
        raise InputError(
            "The weights have not converged (the next round would change them by a relative amount "
            f"of {last.change:.1g}), so there is no fixed point to differentiate. Reweight with "
            "more rounds."
        )
    if isinstance(fit.family, Categorical):
        raise InputError(
            "The leakage of the whole procedure is supported for models with one output only; for "
            "softmax, use leakage(), which treats the weights as constants."
        )
    third = ("curvature_slope", "curvature_label_slope", "label_curvature")
    missing = [name for name in third if getattr(fit.family, name) is None]
    if missing:
        raise InputError(
            "The leakage of the whole procedure requires third derivatives of the loss, but the "
            f"family {fit.family.name!r} lacks {', '.join(missing)}; define them."
        )
    size = int(fit.parameters.shape[0])
    if size + size * (size + 1) // 2 > 12_000:  # the system's matrix then takes a gigabyte
        raise InputError(
            "The leakage of the whole procedure requires about P²/2 equations for P parameters, "
            f"too many for {size} parameters; use 150 columns or fewer."
        )


class RecordSlopes(NamedTuple):
    """The records' terms in :class:`_System`, and derivatives of leakage per unit of weight."""

    design: np.ndarray  # x̃, (m, P)
    a: np.ndarray
    a_m: np.ndarray  # ∂a/∂m
    a_y: np.ndarray  # ∂a/∂y
    M: np.ndarray  # (m, P, q)
    own: np.ndarray  # ∂e/∂z by the record's own unknowns, (m, q)
    by_theta: np.ndarray  # ∂e/∂θ, (m, P)
    by_hessian: np.ndarray  # ∂e/∂H, packed, (m, P(P+1)/2)


class _System:
    """The equations in ``s = (θ, H)`` of a model with one output, linearised at convergence.

    ``F_k = ∂G/∂f_k`` is the effect of a unit's factor on the system. ``F̄``, the effect of the
    normalisation, is the weighted mean of F_k over the units whose factor is not at a limit.

    Parameters
    ----------
    fit, X
        The model and its table, as NumPy arrays.
    H
        The Hessian of its objective, (P, P).
    unknowns, noise
        The unknown values, and the noise with which their leakage is measured.
    rule, last
        The rule that maps leakages to weights, and the last round.
    """

    def __init__(
        self,
        fit: FittedGLM,
        X: np.ndarray,
        H: np.ndarray,
        unknowns: Unknowns,
        noise: Noise,
        rule: ReweightRule,
        last: ReweightRound,
    ) -> None:
        self.fit, self.X, self.H, self.unknowns, self.noise = fit, X, H, unknowns, noise
        self.rule, self.weights = rule, last.weights
        # E_V, (P, t): how the unknown features enter the design
        self.selection = np.asarray(unknowns.of(np.eye(len(H), X.shape[1]), axis=1))
        mass, unit = rule.mass(), rule.unit
        moves = (last.factors > rule.low) & (last.factors < rule.high) & (mass > 0)
        counted = moves[unit] & (rule.start > 0)
        silent = counted & (last.eta <= _NOTHING * np.max(last.eta))
        if np.any(silent):
            raise InputError(
                f"Row {int(np.argmax(silent))} leaks nothing at any weight, so the weights are "
                "not differentiable at this row; drop rows that leak nothing."
            )
        factors = np.where(moves, last.factors, 0.0)
        P = len(H)
        total = np.zeros(P + P * (P + 1) // 2)
        # F_k, (units, S); None where every record is a unit of its own
        self.effects = None if len(mass) == len(X) else np.zeros((len(mass), len(total)))
        for rows in row_slices(len(X), P * P, what="rows"):
            effect = self._effect(rows)
            total += factors[unit[rows]] @ effect
            if self.effects is not None:
                np.add.at(self.effects, unit[rows], effect)
        # F̄, (S,). Σ W_k f_k vanishes only where no factor moves, and then nothing is multiplied
        # by it.
        self.mean_effect = total / max(float(np.sum(mass * factors)), np.finfo(float).tiny)
        # D_k = η̄_k / f_k, because the records of a unit leak ω⁰ᵢ f_k eᵢ.
        D = np.where(moves, rule.means(last.eta) / last.factors, 1.0)
        # ω⁰ f_k / (m_k D_k) of every record; zero where the factor cannot move
        self.scale = rule.start * (factors / (D * np.maximum(rule.counts(), 1.0)))[unit]

    def adjoint(self) -> np.ndarray:
        """Return the first P rows of ``(∂G/∂s)⁻¹``, (P, S)."""
        P, S = len(self.H), len(self.mean_effect)
        L = np.eye(S)
        L[:P, :P] = self.H
        for rows in row_slices(len(self.X), P * P, what="rows"):
            t = self.slopes(rows)
            curved = (self.weights[rows] * t.a_m)[:, None] * t.design
            L[P:, :P] -= packed(t.design).T @ curved
            L += self._by_leakage(rows).T @ np.hstack([t.by_theta, t.by_hessian])
        return np.asarray(np.linalg.solve(L.T, np.eye(S, P)).T)

    def jacobians(self, adjoint: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return ``dθ/dzᵢ`` of the records, (m, P, q)."""
        P, t, V = len(self.H), self.slopes(rows), self.unknowns
        first, second = adjoint[:, :P], unpacked_form(adjoint[:, P:], P)
        along = np.reshape(t.design @ np.reshape(second, (P * P, P)).T, (-1, P, P))
        square = np.vecdot(along, t.design[:, None, :])
        # The effect of the record's own data on H at its weight: by its curvature, and by x̃x̃ᵀ.
        on_hessian = square[:, :, None] * (t.a_m[:, None] * V.of(self.fit.coef))[:, None, :]
        on_hessian += 2 * t.a[:, None, None] * (along @ self.selection)
        if V.label:
            by_label = (square * t.a_y[:, None])[:, :, None]
            on_hessian = np.concatenate([on_hessian, by_label], axis=2)
        direct = self.weights[rows, None, None] * (first @ t.M - on_hessian)
        through_weights = self._by_leakage(rows) @ adjoint.T
        return np.asarray(-direct - through_weights[:, :, None] * t.own[:, None, :])

    def slopes(self, rows: Rows) -> RecordSlopes:
        """Return the terms of the records; raise an error if their leakage has no derivative."""
        family: Any = self.fit.family
        at = self.fit.margins(self.X[rows, :]), self.fit.target[rows]
        a_m, a_y, b_y = (
            f(*at)
            for f in (family.curvature_slope, family.curvature_label_slope, family.label_curvature)
        )
        design, r, a, b = self._terms(rows)
        E, w = self.selection, self.unknowns.of(self.fit.coef)
        label = self.unknowns.label
        M = (a[:, None] * design)[:, :, None] * w + r[:, None, None] * E
        if label:
            M = np.concatenate([M, (b[:, None] * design)[:, :, None]], axis=2)
        A = whitened_inverse(self.H, self.noise)
        u, v, tied = _leading(A @ M)
        if np.any(tied & (self.scale[rows] > 0)):
            raise InputError(
                "A record leaks equally in two directions, so its leakage has no derivative and "
                "the whole procedure cannot be measured; use leakage() instead."
            )
        g, h = u @ A, np.linalg.solve(self.H, (M @ v[:, :, None])[:, :, 0].T).T
        v_x, v_y = v[:, : len(w)], v[:, -1] if label else np.zeros(len(v))
        g_x, g_V = np.vecdot(g, design), g @ E
        wv, gv = v_x @ w, np.vecdot(g_V, v_x)
        # gᵀ dM v for a change of the margin alone, of the label alone, and of x̃ as it occurs in M
        by_margin = (a_m * wv + a_y * v_y) * g_x + a * gv
        by_label = (a_y * wv + b_y * v_y) * g_x + b * gv
        own = by_margin[:, None] * w + (a * wv + b * v_y)[:, None] * g_V
        if label:
            own = np.concatenate([own, by_label[:, None]], axis=1)
        by_theta = by_margin[:, None] * design + (a * g_x)[:, None] * (v_x @ E.T)
        return RecordSlopes(design, a, a_m, a_y, M, own, by_theta, -packed_form(g, h))

    def _by_leakage(self, rows: Rows) -> np.ndarray:
        """Return ``∂G/∂eᵢ = ω⁰ᵢ f_k (W_k F̄ − F_k) / (m_k D_k)`` of the records, (m, S).

        ``W_k`` is the sum of the unit's initial weights, and ``m_k`` is the number of its records.
        """
        unit = self.rule.unit[rows]
        effect = self._effect(rows) if self.effects is None else self.effects[unit]
        mass = self.rule.mass()[unit]
        return np.asarray(self.scale[rows, None] * (mass[:, None] * self.mean_effect - effect))

    def _effect(self, rows: Rows) -> np.ndarray:
        """Return the records' contribution to ``F_k``: ``ω⁰ [r x̃, −a x̃x̃ᵀ]``, packed, (m, S)."""
        design, r, a, _ = self._terms(rows)
        both = np.hstack([r[:, None] * design, -a[:, None] * packed(design)])
        return np.asarray(self.rule.start[rows, None] * both)

    def _terms(self, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return ``x̃`` of the records, (m, P), and their r, a and b, (m,) each."""
        family: Any = self.fit.family
        X = self.X[rows, :]
        at = self.fit.margins(X), self.fit.target[rows]
        return self.fit.design(X), family.slope(*at), family.curvature(*at), family.label_slope(*at)


def _leading(B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the leading singular vectors, (m, P) and (m, q), and which of them are tied."""
    tall = B.shape[1] > B.shape[2]
    transposed = np.matrix_transpose(B)
    # The Gram matrix of the shorter side: it costs the leading vectors no digits.
    squares, vectors = np.linalg.eigh(transposed @ B if tall else B @ transposed)
    near = vectors[:, :, -1]
    far = ((B if tall else transposed) @ near[:, :, None])[:, :, 0]
    length = np.sqrt(np.vecdot(far, far))
    far = far / np.where(length > 0, length, 1.0)[:, None]
    second = squares[:, -2] if squares.shape[1] > 1 else np.zeros(len(B))
    # A relative gap of two singular values this small is rounding: e has no derivative there.
    tied = squares[:, -1] - second <= 2e-9 * squares[:, -1]
    return (far, near, tied) if tall else (near, far, tied)


def packed(p: np.ndarray) -> np.ndarray:
    """Return the upper triangles of ``p pᵀ``, row by row, (m, P(P+1)/2)."""
    i, j = np.triu_indices(p.shape[1])
    return np.asarray(p[:, i] * p[:, j])


def packed_form(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return rows whose product with a packed symmetric S is ``pᵀSq``."""
    i, j = np.triu_indices(p.shape[1])
    once = p[:, i] * q[:, j]
    return np.asarray(np.where(i == j, once, once + p[:, j] * q[:, i]))


def unpacked_form(forms: np.ndarray, P: int) -> np.ndarray:
    """Return each packed form as a symmetric F: its product with a packed S is ``Σ F∘S``."""
    i, j = np.triu_indices(P)
    out = np.zeros((len(forms), P, P))
    out[:, i, j] = np.where(i == j, forms, forms / 2)
    out[:, j, i] = out[:, i, j]
    return out
