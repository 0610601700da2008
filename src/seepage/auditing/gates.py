"""The limits of a release, and the gates that hold an audit to them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import brentq

from seepage.auditing.findings import (
    MAX_GUESS_GAIN,
    MAX_MEMBERSHIP,
    NOT_MEASURED,
    Audit,
    Gate,
    RiskFinding,
)
from seepage.auditing.report.words import percent
from seepage.core.result import round_up
from seepage.errors import InputError
from seepage.risks.guessing import accuracy_beside
from seepage.support.number_check import check_positive
from seepage.tables.names import counted, shown

_NAMED = 10  # the most records over a limit that are named
_ROUNDING = 1e-9  # noise calibrated to a limit meets it


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits that a caller sets; a release over one of them does not pass."""

    max_eta: float | None = None  # the most that any record may leak
    # The least mean squared error, in squared standard deviations of the columns, of an unbiased
    # attack on any number of any record: ``1/η²``
    min_mse: float | None = None
    # The most by which the mean leakage of one group may exceed that of another
    max_group_ratio: float | None = None
    # The largest allowed probability of telling correctly that a record was in the data
    max_membership: float | None = None
    # The most that the release may add to the probability of a right guess of a class or category
    max_guess_gain: float | None = None

    @classmethod
    def of_release(cls, max_membership: float | None, max_guess_gain: float | None) -> Limits:
        """Return the limits of a release: the defaults, where none is given."""
        return cls(
            max_membership=MAX_MEMBERSHIP if max_membership is None else max_membership,
            max_guess_gain=MAX_GUESS_GAIN if max_guess_gain is None else max_guess_gain,
        )

    def check(self, grouped: bool) -> float | None:
        """Refuse limits that make no sense, and return the leakage of a record that meets them all.

        Called before any work is done; ``grouped`` says whether there are groups to compare.
        """
        etas = []
        if self.max_eta is not None:
            check_positive(self.max_eta, "--max-eta")
            etas.append(self.max_eta)
        if self.min_mse is not None:
            check_positive(self.min_mse, "--min-mse")
            etas.append(self.min_mse**-0.5)
        ratio = self.max_group_ratio
        if ratio is not None and not (math.isfinite(ratio) and ratio >= 1):
            raise InputError(f"--max-group-ratio must be a number of at least 1, not {ratio:g}.")
        told, gain = self.max_membership, self.max_guess_gain
        if told is not None and not 0.5 < told <= 1:
            raise InputError(
                "--max-membership is a probability above 0.5, a coin toss, and up to 1 (no limit), "
                f"not {told:g}."
            )
        if gain is not None and not 0 < gain <= 1:
            raise InputError(
                f"--max-guess-gain is a probability between 0 and 1 (no limit), not {gain:g}."
            )
        if ratio is not None and not grouped:
            raise InputError("--max-group-ratio compares groups: name a column with --group.")
        return min(etas) if etas else None

    def gates(self, audit: Audit) -> tuple[Gate, ...]:
        """Return one gate per limit; records over it are named by row, never by their values."""
        self.check(bool(audit.groupings))
        gates = []
        if self.max_eta is not None:
            gates.append(_max_eta(audit, self.max_eta))
        if self.min_mse is not None:
            gates.append(_min_mse(audit, self.min_mse))
        if self.max_group_ratio is not None:
            gates.append(_group_ratio(audit, self.max_group_ratio))
        if self.max_membership is not None:
            gates.append(_membership(audit, self.max_membership))
        if self.max_guess_gain is not None:
            gates.append(_guess_gain(audit, self.max_guess_gain))
        return tuple(gates)


def _max_eta(audit: Audit, limit: float) -> Gate:
    measured = audit.records.largest("eta")
    over = audit.records.over(limit * (1 + _ROUNDING))
    if not over:
        text = f"The most exposed record has η = {measured:.4g}, within the limit of {limit:g}."
    else:
        text = (
            f"{_records(audit, over)} more than η = {limit:g} (the worst {measured:.4g}); "
            f"σ = {round_up(audit.sigma * measured / limit):g} would be enough."
        )
    return Gate("--max-eta", limit, measured, not over, text)


def _min_mse(audit: Audit, limit: float) -> Gate:
    worst = audit.records.largest("eta")
    measured = worst**-2.0 if worst > 0 else math.inf
    over = audit.records.over(math.sqrt((1 + _ROUNDING) / limit))
    if not over:
        text = (
            f"No unbiased attack has a mean squared error below {measured:.4g} on any record, "
            f"within the limit of {limit:g}."
        )
    else:
        text = (
            f"{_records(audit, over)} so much that the mean squared error of an attack may be below"
            f" {limit:g} (as low as {measured:.4g}); "
            f"σ = {round_up(audit.sigma * math.sqrt(limit / measured)):g} would be enough."
        )
    return Gate("--min-mse", limit, measured, not over, text)


def _group_ratio(audit: Audit, limit: float) -> Gate:
    worst = max(audit.groupings, key=lambda grouping: grouping.ratio)
    passed = worst.ratio <= limit * (1 + _ROUNDING)
    text = (
        f"Between the groups of column {worst.column!r} the mean leakage differs by a factor of "
        f"{worst.ratio:.4g}, {'within' if passed else 'over'} the limit of {limit:g}."
    )
    return Gate("--max-group-ratio", limit, worst.ratio, passed, text)


def _membership(audit: Audit, limit: float) -> Gate:
    if limit >= 1 and audit.risks is None:
        return Gate("--max-membership", limit, 1.0, True, "Membership was not measured.")
    risks = _known_risks(audit, "--max-membership")
    measured = risks.recognised
    passed = measured <= limit * (1 + _ROUNDING)
    side = "within" if passed else "over"
    text = (
        f"Membership inference succeeds up to {percent(risks.membership)} of the time (row "
        f"{risks.row}; chance: 50 %), {side} the limit of {percent(limit)}."
    )
    if risks.disclosed:
        many = counted(len(risks.disclosed), "row")
        figures = ", ".join(risks.disclosing[:_NAMED])
        text = (
            f"Without row {risks.disclosed[0]} published figures would change ({figures}), so its "
            f"membership is certain ({many} of those tried), {side} the limit of {percent(limit)}. "
            "Through the noisy numbers membership inference succeeds up to "
            f"{percent(risks.membership)} of the time (row {risks.row})."
        )
    elif not passed:
        text += " " + _enough_noise(audit, risks, limit)
    return Gate("--max-membership", limit, measured, passed, text)


def _enough_noise(audit: Audit, risks: RiskFinding, limit: float) -> str:
    """Say which σ would meet a limit on membership: μ is inversely proportional to it."""
    alone = float(accuracy_beside(0.0, 0.5, risks.epsilon))
    if alone >= limit:
        return (
            f"What is drawn beside the noisy numbers (ε = {risks.epsilon:.3g}) allows "
            f"{percent(alone)} by itself: declare the noise with --sigma."
        )
    if not math.isfinite(risks.mu):
        return "No noise would be enough: without this row the model is not determined."
    allowed = brentq(lambda mu: accuracy_beside(mu, 0.5, risks.epsilon) - limit, 0.0, risks.mu)
    return f"σ = {round_up(audit.sigma * risks.mu / allowed):g} would be enough."


def _guess_gain(audit: Audit, limit: float) -> Gate:
    if limit >= 1 and audit.risks is None:
        return Gate("--max-guess-gain", limit, 1.0, True, "Guesses were not measured.")
    guesses = _known_risks(audit, "--max-guess-gain").guesses
    if not guesses:
        text = "There is no class or category to guess."
        return Gate("--max-guess-gain", limit, 0.0, True, text)
    worst = max(guesses, key=lambda guess: guess.gain)
    passed = worst.gain <= limit * (1 + _ROUNDING)
    text = (
        f"{shown(worst.name)} of row {worst.row} is guessed right {percent(worst.right)} of the "
        f"time, {percent(worst.baseline)} without the release, "
        f"{'within' if passed else 'over'} the limit of {100 * limit:g} percentage points more."
    )
    if not passed:
        text += " More noise or a larger penalty would lower it."
    return Gate("--max-guess-gain", limit, worst.gain, passed, text)


def _known_risks(audit: Audit, option: str) -> RiskFinding:
    if audit.risks is None:
        why = next((step for step in audit.steps if step.startswith(NOT_MEASURED)), NOT_MEASURED)
        raise InputError(f"{option} cannot be checked. {why} {option} 1 releases without it.")
    return audit.risks


def _records(audit: Audit, count: int) -> str:
    rows = ", ".join(str(int(row)) for row in audit.records.most(min(count, _NAMED)).row)
    more = f" and {count - _NAMED:,} more" if count > _NAMED else ""
    if count == 1:
        return f"1 record (row {rows}) leaks"
    return f"{count:,} records (rows {rows}{more}) leak"
