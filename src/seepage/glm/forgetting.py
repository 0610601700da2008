"""Unlearning: refit without records, bound a Newton step's error, and measure what still leaks.

Let L be the objective of the remaining records, θ* its minimiser and θ̂ the model fitted on all
records. One step ``θ₁ = θ̂ − H(θ̂)⁻¹∇L(θ̂)`` approximates θ*. The gradient and Hessian at θ₁ bound
the distance between θ₁ and θ* (:mod:`seepage.glm.dense_objective`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import narwhals as nw
import numpy as np
import pyarrow as pa
from sklearn.base import clone

from seepage.core.noise import Gaussian, Noise
from seepage.errors import InputError, NotConvergedWarning
from seepage.glm.dense_objective import DenseObjective
from seepage.glm.leakage import leakage
from seepage.support.number_check import check_share
from seepage.tables.names import counted, shown
from seepage.tables.source import as_numpy


def forget(model: Any, X: Any, y: Any, rows: Any, *, sample_weight: Any = None) -> Forgotten:
    """Refit a linear model without some records, and bound the error of one Newton step.

    The refit uses the model's own settings. With seepage's ``l2``, a penalty per record, the total
    penalty shrinks with the number of records; with scikit-learn's ``C``, it stays the same. A
    published model cannot be recalled: it still leaks to everyone who has a copy; see
    :meth:`Forgotten.pair`.

    Parameters
    ----------
    model, X, y, sample_weight
        A fitted linear model and the data it was fitted on, as for :func:`seepage.leakage`.
    rows
        The positions of the records to forget; pass all records of a person together.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 2))
    >>> y = X @ [1.0, -1.0] + rng.standard_normal(200) > 0
    >>> model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    >>> forgotten = sp.forget(model, X, y, [7])
    >>> bool(np.linalg.norm(forgotten.step.coef_ - forgotten.model.coef_) <= forgotten.distance)
    True
    >>> round(forgotten.pair(sp.Gaussian(0.05), sp.Gaussian(0.05)), 2)
    0.32
    >>> forgotten.pair(None, sp.Gaussian(0.01))
    inf
    """
    positions = _positions(rows, len(y))
    weights = None if sample_weight is None else np.asarray(sample_weight)
    before = _objective(model, X, y, weights)
    rest = np.delete(np.arange(len(y)), positions)
    own = {} if weights is None else {"sample_weight": weights[rest]}
    table, labels = _taken(X, rest), np.asarray(y)[rest]
    refit = clone(model).fit(table, labels, **own)
    with warnings.catch_warnings():
        # A refit that stopped short is no matter: its distance from the minimiser is certified.
        warnings.simplefilter("ignore", NotConvergedWarning)
        after = _objective(refit, table, labels, own.get("sample_weight"), "warn")
    if before.outputs.count != after.outputs.count:
        raise InputError(
            "Removing these records removes a whole class, so the refit would have a different "
            "form; keep at least one record of every class."
        )
    stepped = after.stepped(before.theta)
    return Forgotten(
        model=refit,
        step=after.as_model(refit, stepped),
        distance=after.distance(stepped),
        moved=float(np.linalg.norm(before.parameters - after.parameters))
        + after.distance(after.theta),
        rows=positions,
        records=len(y),
    )


class PeopleLedger(Protocol):
    """The interface of a release ledger, implemented by :class:`seepage.LedgerFile`."""

    def spent(self, table: Any, person: str | None = None, *, entry: int | None = None) -> Any:
        """Return the privacy loss of a table's rows, in all entries together or in one entry."""

    def record(self, table: Any, what: str, **numbers: Any) -> int:
        """Add an entry, and return the entry's number."""


@dataclass(frozen=True, eq=False, repr=False)
class Forgotten:
    """A model refitted without some records, and what the old and new models leak about them.

    Parameters
    ----------
    model
        The model refitted without the records. Publish this model.
    step
        The model after one Newton step from the old model. This model still depends slightly on the
        records.
    distance
        A certified bound on the distance between the parameters of ``step`` and the minimiser
        without the records. The bound is infinite if none can be certified.
    moved
        A bound on the distance between the old parameters and that minimiser.
    rows
        The positions of the forgotten records.
    records
        The number of records before the removal.
    """

    model: Any
    step: Any
    distance: float
    moved: float
    rows: np.ndarray
    records: int

    @property
    def removed(self) -> int:
        """The number of forgotten records."""
        return len(self.rows)

    def pair(self, old: Noise | None, new: Noise | None, *, stepped: bool = False) -> float:
        """Return μ (Gaussian differential privacy) for an attacker who has both models.

        The attacker knows all other records, and tests whether the forgotten records were ever
        used. Let θ̂ be the old parameters, θ* the minimiser without the records, and θ₁ the
        parameters of ``step``. The old release contributes ``‖θ̂ − θ*‖/σ_old``. A refit adds
        nothing; a Newton step adds the bound ``distance``, in units of the new model's noise::

            μ² = (‖θ̂ − θ*‖/σ_old)² + (‖θ₁ − θ*‖/σ_new)²

        The noise of each model is drawn independently. Without noise on the old model (``None``), μ
        is infinite: an exact release cannot be forgotten. For people in both models, η, μ and ε
        compose as for any two releases.
        """
        first, trace = _size(old, self.moved), self.distance if stepped else 0.0
        return math.hypot(first, _size(new, trace) if trace else 0.0)

    def record(
        self,
        ledger: PeopleLedger,
        table: Any,
        old: Noise | None,
        new: Noise | None,
        *,
        stepped: bool = False,
        entry: int | None = None,
        person: str | None = None,
    ) -> int:
        """Record the forgotten person's μ for both models together in a ledger.

        Call this method once per person, before publishing the new model. Record the people who
        remain in the data as part of the new release.

        Parameters
        ----------
        ledger
            A :class:`seepage.LedgerFile`.
        table
            The table of all people that the old model was fitted on, with its rows in the same
            order.
        old, new, stepped
            As for :meth:`pair`.
        entry
            The number of the old release in the ledger. The person's μ in that release is counted
            only once: the new entry is ``√(μ² − μ_entry²)``, so the two entries together amount to
            at least the μ of both models. If omitted, the old release is assumed not to be in the
            ledger, and the new entry is the full μ.
        person
            The column that identifies people. If omitted, each record is a separate person.
        """
        frame = _frame(table)
        if len(frame) != self.records:
            raise InputError(
                f"The table has {counted(len(frame), 'row')}, but the model was fitted on "
                f"{self.records:,}; pass the table that the model was fitted on, with its rows in "
                "the same order."
            )
        if person is None and self.removed > 1:
            raise InputError(
                f"μ covers {self.removed} records together, but a ledger entry covers one person; "
                "forget one person at a time, and set person= to the column that identifies "
                "people."
            )
        if person is not None:
            if person not in frame.columns:
                raise InputError(
                    f"There is no column {shown(person)}; set person= to the column that "
                    "identifies people."
                )
            who = frame[person].to_list()
            theirs = [k for k, name in enumerate(who) if name == who[self.rows[0]]]
            if theirs != self.rows.tolist():
                raise InputError(
                    "These records are not exactly the records of one person; forget one person "
                    f"at a time, with all records that have the same {shown(person)}."
                )
        own = frame[self.rows.tolist()].to_native()
        mu: Any = self.pair(old, new, stepped=stepped)
        if entry is not None and math.isfinite(mu):
            listed = np.asarray(ledger.spent(own, person, entry=entry).mu, dtype=float)
            # The old release cannot have told more than its part of the pair.
            mu = np.sqrt(mu**2 - np.minimum(listed, self.pair(old, None)) ** 2)
        unit = "row" if person is None else "person"
        return ledger.record(own, "forgotten", person=person, unit=unit, mu=mu)

    def __repr__(self) -> str:
        return (
            f"<Forgotten: {counted(self.removed, 'record')}; the parameters changed by "
            f"{self.moved:.3g}, and are within {self.distance:.3g} of the refit after one step>"
        )


@dataclass(frozen=True)
class CertifiedRemoval:
    """The new parameters after removing records from a model with a random linear term.

    Parameters
    ----------
    parameters
        The parameters to release instead of the old ones, in the form that
        :meth:`ObjectivePerturbation.draw` returns.
    residual
        A bound on the norm of the remaining gradient of the objective without the records.
    sigma
        The standard deviation of the random linear term that was drawn in the first training.
    """

    parameters: np.ndarray
    residual: float
    sigma: float

    def epsilon(self, delta: float) -> float:
        """Return the ε of (ε, δ)-certified removal (Guo et al. 2020, theorem 3).

        ``ε = (residual/σ) √(2 log(1.5/δ))`` applies to an attacker who sees *only* the new
        parameters. This ε bounds how well this attacker can distinguish the new parameters from
        parameters trained without the records. The theorem requires a bound on the residual that is
        valid for every draw of the random term. Therefore, set a limit on the residual in advance,
        and train again with a new random term once the residual exceeds the limit. Certified
        removal does not protect against an attacker who also has the old parameters; for that
        attacker, see :meth:`ObjectivePerturbation.membership`.
        """
        check_share(delta, "delta")
        return self.residual / self.sigma * math.sqrt(2 * math.log(1.5 / delta))


def remove_records(
    objective: DenseObjective, sigma: float, first: np.ndarray, rows: Any, current: Any = None
) -> CertifiedRemoval:
    """Remove records from a model with a random linear term, without changing the total penalty.

    The first released parameters determine the random term: ``b = −∇L`` on all records. ``current``
    are the parameters after all earlier steps, and the residual covers all removals together.
    """
    positions = _positions(rows, len(objective.y))
    outputs = objective.outputs

    def within(parameters: Any) -> np.ndarray:
        given = np.asarray(parameters, dtype=float)
        if given.shape != objective.parameters.T.shape:
            raise InputError(
                f"The parameters must have the shape {objective.parameters.T.shape} that draw() "
                f"returns, but they have the shape {given.shape}."
            )
        return outputs.within(given.T)

    start = within(first)
    term, rest = -objective.gradient(start)[0], objective.without(positions)
    theta = rest.stepped(start if current is None else within(current), term)
    slope, rounding = rest.gradient(theta)
    left = float(np.linalg.norm(slope + term) + np.linalg.norm(rounding))
    basis = outputs.basis
    found = theta[:, 0] if basis is None else basis @ theta.T
    return CertifiedRemoval(np.asarray(found), left, sigma)


def _size(noise: Noise | None, length: float) -> float:
    """Return an upper bound on a distance, in units of the noise."""
    if noise is None:
        return math.inf if length > 0 else 0.0
    if not isinstance(noise, Gaussian):
        raise InputError(
            "μ of the two models is available only for Gaussian noise; pass sp.Gaussian(sigma)."
        )
    sigma = np.asarray(noise.sigma)
    least = np.sqrt(np.linalg.eigvalsh(sigma).min()) if sigma.ndim == 2 else sigma.min()
    return float(length / least)


def _positions(rows: Any, n: int) -> np.ndarray:
    given = np.atleast_1d(np.asarray(rows))
    if given.ndim != 1 or given.dtype.kind not in "iu" or not given.size:
        raise InputError("rows must be the positions of the records to forget, such as [3, 17].")
    if given.min() < 0 or given.max() >= n:
        raise InputError(
            f"rows must contain positions from 0 to {n - 1:,}, because the table has "
            f"{counted(n, 'record')}."
        )
    found = np.unique(given)
    if len(found) == n:
        raise InputError("Removing all records leaves nothing to fit; keep at least one record.")
    return found


def _frame(table: Any) -> Any:
    """Return a table of people as a data frame."""
    try:
        if isinstance(table, Mapping):
            table = pa.table({str(name): list(values) for name, values in table.items()})
        return nw.from_native(table, eager_only=True)
    except (TypeError, ValueError) as error:
        raise InputError(
            "table must be a data frame or a mapping of equally long columns, not "
            f"{type(table).__name__}."
        ) from error


def _taken(X: Any, rows: np.ndarray) -> Any:
    """Return the given rows of a table in its own type, a data frame or an array."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    return frame[rows.tolist()].to_native() if isinstance(frame, nw.DataFrame) else X[rows]


def _objective(
    model: Any, X: Any, y: Any, weights: Any, on_mismatch: str = "raise"
) -> DenseObjective:
    found = leakage(
        model, X, y, noise=Gaussian(1.0), sample_weight=weights, on_mismatch=on_mismatch
    )
    fit = found.release.model
    if fit is None or fit.tilt is not None or fit.family.self_concordance is None:
        raise InputError(
            "Forgetting is supported for linear, logistic, Poisson and softmax models with an L2 "
            "penalty or none, without preprocessing steps; refit other models without the records."
        )
    return DenseObjective(fit, np.asarray(as_numpy(found.table.values), dtype=float))
