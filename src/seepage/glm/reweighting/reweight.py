"""Fair leakage: refit with sample weights until every record leaks the same (IRFIL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import clone

from seepage.core.noise import Gaussian, Noise
from seepage.core.result import Result
from seepage.core.unknowns import Attributes, Unknowns
from seepage.errors import InputError
from seepage.glm.adapters.registry import describe
from seepage.glm.estimators import LinearModel
from seepage.glm.inputs import read_weights
from seepage.glm.leakage import leakage, release_of
from seepage.glm.reweighting.rule import ReweightRound, ReweightRule, read_rule
from seepage.glm.reweighting.whole_procedure import procedure_leakage
from seepage.tables.source import MemorySource, Table, as_numpy, build_frame, place_like, read_table

if TYPE_CHECKING:
    from seepage.core.leakage import Leakage

Columns = str | int | Sequence[str | int] | None

NOTICE = (
    "The weights were chosen by looking at the data, so they carry information about every record "
    "into the release. eta and leakage() take them as known constants; whole_procedure() measures "
    "the release with the choice of the weights included, and can be several times as large. Do "
    "not publish the weights."
)


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
