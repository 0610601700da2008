"""Fair leakage: refit with sample weights until every record leaks the same (IRFIL).

Record i of unit k (a unit is a record, or a group of them) has the weight ``ωᵢ = ω⁰ᵢ f_k``. With
``η̄_k`` the mean leakage of the unit's records and ``t_k`` the leakage wanted of it, relative to the
others, the factors follow (paper 001, algorithm 1, where every record is a unit and every t one)::

    f_k ← c f_k t_k / η̄_k,      c such that  Σᵢ ωᵢ = Σᵢ ω⁰ᵢ

With limits the right-hand side is clipped to them, and c is such that the sum holds after clipping.
Where rounds no longer bring the leakages nearer to each other, because the weights swing to and fro
about the fixed point, steps are halved on a logarithmic scale: ``f_k ← c f_k (t_k/η̄_k)^½`` and so
on. The fixed point is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import clone

from seepage.core.leakage import group_labels
from seepage.core.noise import Gaussian, Noise
from seepage.core.result import Result
from seepage.core.unknowns import Attributes, Unknowns
from seepage.errors import InputError, nearest
from seepage.glm.adapters.registry import describe
from seepage.glm.estimators import LinearModel
from seepage.glm.inputs import read_weights
from seepage.glm.leakage import leakage, release_of
from seepage.glm.reweighting.whole_procedure import procedure_leakage
from seepage.support.chunks import progress
from seepage.tables.source import (
    MemorySource,
    Table,
    as_numpy,
    build_frame,
    check_length,
    place_like,
    read_table,
)

if TYPE_CHECKING:
    from seepage.core.leakage import Leakage

Columns = str | int | Sequence[str | int] | None

NOTICE = (
    "The weights were chosen by looking at the data, so they carry information about every record "
    "into the release. eta and leakage() take them as known constants; whole_procedure() measures "
    "the release with the choice of the weights included, and can be several times as large. Do "
    "not publish the weights."
)

_SHORTEST_STEP = 1 / 16
_NOTHING = 1e-12  # of the largest leakage: below it a unit is said to leak nothing


class ReweightRound(NamedTuple):
    """One round: the weights, and the leakage of every record with them."""

    weights: np.ndarray  # (n,)
    factors: np.ndarray  # (units,)
    eta: np.ndarray  # (n,)
    change: float  # how far the next factors lie away, relative, root mean square over the units


@dataclass(frozen=True, eq=False)
class ReweightRule:
    """Which records share a weight, what leakage is wanted of them, and within which limits."""

    start: np.ndarray  # ``ω⁰``, (n,). Records of weight zero stay out: they count in no mean.
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
        """Return how many records of each unit take part, (units,)."""
        taking_part = (self.start > 0).astype(float)
        return np.bincount(self.unit, weights=taking_part, minlength=len(self.target))

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the mean over the records of each unit that take part, (units,)."""
        kept = np.where(self.start > 0, values, 0.0)
        sums = np.bincount(self.unit, weights=kept, minlength=len(self.target))
        return np.asarray(sums / np.maximum(self.counts(), 1.0))

    def leaking(self, eta: np.ndarray) -> np.ndarray:
        """Return which units leak at all, (units,); the weights of others can do nothing."""
        means = self.means(eta)
        return np.asarray(means > _NOTHING * np.max(means, initial=0.0))

    def following(self, factors: np.ndarray, eta: np.ndarray, step: float = 1.0) -> np.ndarray:
        """Return the factors of the next round, (units,), or some part of the way to them.

        A unit that leaks nothing, whatever its weight, keeps the factor it has.
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
        """Return the relative difference, root mean square over the units that take part.

        Without limits this is, once small, the spread of ``η̄_k/t_k`` over its mean.
        """
        here = self.mass() > 0
        return float(np.sqrt(np.mean((following[here] / factors[here] - 1) ** 2)))

    def run(
        self, leakage_with: Callable[[np.ndarray], np.ndarray], rounds: int, tolerance: float
    ) -> Iterator[ReweightRound]:
        """Yield the first step, with the weights ω⁰, and then one for every round.

        ``leakage_with`` refits with the weights it is given and returns the leakage of every
        record. There is no further round where the weights would change by less than ``tolerance``.
        """
        factors, step, before = np.ones(len(self.target)), 1.0, math.inf
        for _ in progress(range(rounds + 1), "rounds"):
            weights = self.weights(factors)
            eta = leakage_with(weights)
            change = self.change(factors, self.following(factors, eta))
            yield ReweightRound(weights, factors, eta, change)
            if change <= tolerance:
                return
            step = max(step / 2, _SHORTEST_STEP) if change >= before else step
            factors, before = self.following(factors, eta, step), change


def _scaled_into(
    values: np.ndarray, mass: np.ndarray, total: float, low: float, high: float
) -> np.ndarray:
    """Return ``clip(c·values, low, high)`` with c such that ``Σ mass·clip(…) = total``.

    The sum is piecewise linear in c and bends where a value meets a limit; the piece with the
    solution is found by bisection over those points.
    """
    if low <= 0 and high == math.inf:
        return np.asarray(values * (total / float(np.sum(mass * values))))
    bends = np.concatenate([low / values, high / values])
    bends = np.sort(bends[np.isfinite(bends)])

    def reached(c: float) -> bool:
        return float(np.sum(mass * np.clip(c * values, low, high))) >= total

    first, last = 0, len(bends)  # the first bend at which the total is reached
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if reached(bends[middle]) else (middle + 1, last)
    below = bends[first - 1] if first > 0 else 0.0
    above = bends[first] if first < len(bends) else 2 * below + 1.0
    inside = (below + above) / 2 * values
    clipped = np.clip(inside, low, high)
    free = (inside > low) & (inside < high)
    if not np.any(free):
        return np.asarray(np.clip(above * values, low, high))
    rest = total - float(np.sum(mass[~free] * clipped[~free]))
    c = rest / float(np.sum(mass[free] * values[free]))
    return np.asarray(np.clip(np.where(free, c * values, clipped), low, high))


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
            "target must hold one number per row: the leakage wanted of it, relative to the "
            "others; only with by= it is a mapping from groups to numbers."
        )
    check_length(wanted, table, "target")
    return _positive(wanted.astype(float))


def _group_targets(target: Any, labels: np.ndarray) -> np.ndarray:
    if target is None:
        return np.ones(len(labels))
    if not hasattr(target, "keys"):
        raise InputError("With by=, target must be a mapping from each group to its number.")
    known = labels.tolist()
    for label in target:
        if label not in known:
            raise InputError(f"No record is in the group {label!r}{nearest(label, known)}.")
    missing = [label for label in known if label not in target]
    if missing:
        raise InputError(f"target has no number for the group {missing[0]!r}; give one for each.")
    return _positive(np.asarray([float(target[label]) for label in known]))


def _positive(wanted: np.ndarray) -> np.ndarray:
    if not np.all(np.isfinite(wanted) & (wanted > 0)):
        worst = int(np.argmin(np.where(np.isfinite(wanted), wanted, -np.inf)))
        raise InputError(
            f"target must be finite and above zero, but its entry {worst} is {wanted[worst]:g}; to "
            "leave a row out, give it the sample weight zero."
        )
    return wanted


def _groups(by: Any, table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the groups' labels in sorted order, and the position among them of every record's."""
    values = as_numpy(by)
    if values.ndim == 0:
        raise InputError('by must be "class" or hold the group of every row.')
    values = group_labels(values, table, "by")
    try:
        labels, unit = np.unique(values, return_inverse=True)
    except TypeError:
        raise InputError("by holds labels of mixed types; make them all text.") from None
    return labels, unit.reshape(-1)


def _limits(clamp: Any) -> tuple[float, float]:
    try:
        low, high = (float(limit) for limit in clamp)
    except (TypeError, ValueError):
        raise InputError(f"clamp must be a pair of numbers (low, high), not {clamp!r}.") from None
    if not 0 <= low <= 1 <= high:
        raise InputError(
            f"clamp must have 0 ≤ low ≤ 1 ≤ high, because weights are one on average, but it is "
            f"({low:g}, {high:g})."
        )
    return low, high


class Round(NamedTuple):
    """What one round of reweighting left: the leakage of the records, and how good the model is."""

    round: int  # 0 is the fit before any reweighting
    mean: float
    spread: float  # the standard deviation over the records
    largest: float
    change: float  # how far the next weights lie from these, relative, root mean square
    score: float


class ReweightedData(NamedTuple):
    """What the weights were found for."""

    X: Any
    y: Any
    table: Table
    unknowns: Unknowns
    attributes: Mapping[str, Sequence[str | int]]
    rule: ReweightRule
    last: ReweightRound


@dataclass(frozen=True, eq=False, repr=False)
class Reweighting:
    """A model fitted with weights that even out the leakage of its records.

    Parameters
    ----------
    model
        The model of the last round, fitted with ``weights``.
    weights
        ``ω``, (n,).
    eta
        The leakage of every record with these weights taken as constants, at ``noise``.
    trajectory
        One :class:`Round` for the fit with the first weights and one for each round after it.
    groups
        With ``by``, the mean leakage of each group.
    noise
        The noise that ``eta`` was measured at.
    about
        What the leakage is about, in words.
    notice
        What the numbers leave out.

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
        """Return the usual leakage of releasing the model, the weights taken as constants."""
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
        """Return the leakage about each record with the choice of the weights included.

        A record moves the released parameters in three ways: through its own term of the
        objective, which :meth:`leakage` measures; through its own weight; and through the weights
        of all others. This is ``‖Φ^½ dθ/dzᵢ‖₂`` with the derivative of all of it, by implicit
        differentiation of the minimiser and the weights together where the rounds have settled
        (:mod:`seepage.glm.reweighting.whole_procedure`). It is about the same unknowns as ``eta``.

        Parameters
        ----------
        rows
            Positions, in any order, or a mask; ``None`` means all.
        noise
            The noise of the release; that of ``eta`` where none is given.

        Raises
        ------
        InputError
            For softmax, for families that do not state their third derivatives, for more than
            about 150 parameters, and where the weights have not settled.
        """
        here = self._setting
        leak = self.leakage(noise)
        positions = as_numpy(leak.row_positions(rows))
        if rows is not None and as_numpy(rows).dtype != bool:
            positions = np.atleast_1d(as_numpy(rows)) % len(self.weights)  # in the caller's order
        eta = procedure_leakage(
            describe(self.model, here.table, here.y, self.weights),
            as_numpy(here.table.values),
            here.rule,
            here.last,
            here.unknowns,
            self.noise,
            rows=positions,
            release_noise=leak.noise[0],
        )
        index = positions if here.table.index is None else here.table.index[positions]
        return Result(
            place_like(eta, here.table.values),
            "rows",
            "fil",
            about=f"{self.about}, through the weights too",
            index=index if rows is not None else here.table.index,
            library=here.table.library,
            noise=leak.noise,
        )

    def table(self, library: str | None = None) -> Any:
        """Return the trajectory as a data frame of the caller's own library (see ``Result``)."""
        columns = zip(*self.trajectory, strict=True)
        frame = dict(zip(Round._fields, map(np.asarray, columns), strict=True))
        return build_frame(frame, library or self._setting.table.library)

    def __repr__(self) -> str:
        first, last = self.trajectory[0], self.trajectory[-1]
        return (
            f"<Reweighting of {len(self.weights)} records about {self.about}: mean η "
            f"{first.mean:.4g} ± {first.spread:.2g} → {last.mean:.4g} ± {last.spread:.2g} in "
            f"{last.round} rounds>"
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
    """Fit a model with weights that make every record leak the same (IRFIL).

    Each round fits the model, measures the leakage η of every record and sets the weights to
    ``ω ← n (ω/η) / Σ(ω/η)`` (paper 001, algorithm 1). Records that leak much come to weigh little.

    The weights depend on the data. The η that is made equal takes them as constants, as the paper
    does; :meth:`Reweighting.whole_procedure` gives the leakage with the choice of the weights
    included, which is not equal, and can be larger than that of a fit without weights.

    Parameters
    ----------
    model
        A model of :mod:`seepage.glm`; it need not be fitted, and is left as it is.
    X, y
        The data: anything :func:`seepage.leakage` takes.
    rounds
        How many times to set new weights and refit, at most.
    target
        The leakage wanted of each record, relative to the others: a number above zero each; with
        ``by``, a mapping from each group to its number. All the same where none is given.
    columns, label, simplex, attributes
        What the leakage is about, as for :meth:`seepage.Leakage.records`: the whole record with its
        label, or the named columns.
    by
        The group of every record, or ``"class"`` for its label: one weight for each group, so that
        the *mean* leakages of the groups become equal.
    clamp
        The least and the largest weight, such as ``(0.1, 10)``; weights are one on average. Rows at
        a limit leak more (or less) than the others.
    tolerance
        Stop when the weights would change by less than this, relative, root mean square. Without
        limits that is the standard deviation of η over its mean.
    noise
        The noise of the release; only the ratios of its variances matter here. The same for every
        parameter, of standard deviation one, where none is given.
    sample_weight
        Weights to begin with: record i weighs ``ω⁰ᵢ`` times the weight found for it, and the
        sum stays ``Σω⁰``. Records of weight zero stay out.
    X_test, y_test
        Data to score the model of every round on; the training data where none are given.
    scoring
        ``scoring(model, X, y)``; the model's own ``score`` where none is given.

    Returns
    -------
    Reweighting
        The fitted model, the weights, the leakage and how it went.

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
            f"Reweighting refits the model many times and needs one of seepage.glm, not a "
            f"{type(model).__name__}."
        )
    if not isinstance(rounds, int | np.integer) or isinstance(rounds, bool) or rounds < 0:
        raise InputError(f"rounds must be a whole number, at least 0, not {rounds!r}.")
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance must lie between 0 and 1, not {tolerance!r}.")
    if (X_test is None) != (y_test is None):
        raise InputError("X_test and y_test belong together: give both or neither.")
    noise = Gaussian(1.0) if noise is None else noise
    if not isinstance(noise, Noise):
        raise InputError("noise must say what is added: sp.Gaussian(sigma) or sp.Laplace(scale).")
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

    score = scoring or (lambda chosen, *data: chosen.score(*data))
    tested = (X, y) if X_test is None else (X_test, y_test)
    steps = rule.run(leakage_with, int(rounds), tolerance)
    last = next(steps)
    trajectory = [_round(0, last, rule, float(score(fitted, *tested)))]
    for last in steps:
        trajectory.append(_round(len(trajectory), last, rule, float(score(fitted, *tested))))
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


def _round(number: int, step: ReweightRound, rule: ReweightRule, score: float) -> Round:
    eta = step.eta[rule.start > 0]
    return Round(number, float(eta.mean()), float(eta.std()), float(eta.max()), step.change, score)
