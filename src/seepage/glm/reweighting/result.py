"""What reweighting gives: the model, its weights, how it went, and what releasing it leaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seepage.core.noise import Noise
from seepage.core.unknowns import Unknowns
from seepage.glm.adapters.describe import describe
from seepage.glm.estimators.inputs import place_like
from seepage.glm.reweighting.leakage import procedure_leakage
from seepage.glm.reweighting.rule import ReweightRule, Step
from seepage.tables.frames import Table, as_numpy, build_frame

if TYPE_CHECKING:
    from seepage.core.leakage import Leakage
    from seepage.core.result import Result

NOTICE = (
    "The weights were chosen by looking at the data, so they carry information about every record "
    "into the release. eta and leakage() take them as known constants; whole_procedure() measures "
    "the release with the choice of the weights included, and can be several times as large. Do "
    "not publish the weights."
)


class Round(NamedTuple):
    """What one round of reweighting left: the leakage of the rows, and how good the model is."""

    round: int  # 0 is the fit before any reweighting
    mean: float
    spread: float  # the standard deviation over the rows
    largest: float
    change: float  # how far the next weights lie from these, relative, root mean square
    score: float


class Setting(NamedTuple):
    """What the weights were found for."""

    X: Any
    y: Any
    table: Table
    unknowns: Unknowns
    attributes: Mapping[str, Sequence[str | int]]
    rule: ReweightRule
    last: Step


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
        The leakage of every row with these weights taken as constants, at ``noise``.
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
    _setting: Setting
    notice: str = NOTICE

    def leakage(self, noise: Noise | None = None) -> Leakage:
        """Return the usual leakage of releasing the model, the weights taken as constants."""
        from seepage.glm.leakage import leakage

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
        (:mod:`seepage.glm.reweighting.leakage`). It is about the same unknowns as ``eta``.

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
        from seepage.core.result import Result

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
