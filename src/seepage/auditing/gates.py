"""The limits of a release, and the gates that hold an audit to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scipy.optimize import brentq

from seepage.auditing.findings import (
    MAX_GUESS_GAIN,
    MAX_MEMBERSHIP,
    Audit,
    Gate,
    RiskFinding,
)
from seepage.auditing.report.words import tell_not_measured
from seepage.core.result import round_up
from seepage.errors import InputError
from seepage.risks.guessing import accuracy_beside
from seepage.support.number_check import check_positive

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
    return _of_records(
        audit, "--max-eta", limit, measured, limit * (1 + _ROUNDING), measured / limit
    )


def _min_mse(audit: Audit, limit: float) -> Gate:
    worst = audit.records.largest("eta")
    measured = worst**-2.0 if worst > 0 else math.inf
    most = math.sqrt((1 + _ROUNDING) / limit)
    return _of_records(audit, "--min-mse", limit, measured, most, math.sqrt(limit / measured))


def _of_records(
    audit: Audit, name: str, limit: float, measured: float, most: float, times: float
) -> Gate:
    """Return a gate on all records: none may leak ``most``, for which the noise grows ``times``."""
    over = audit.records.over(most)
    if not over:
        return Gate(name, limit, measured, True, over=0)
    rows = tuple(int(row) for row in audit.records.most(min(over, _NAMED)).row)
    return Gate(name, limit, measured, False, round_up(audit.sigma * times), over, rows)


def _group_ratio(audit: Audit, limit: float) -> Gate:
    worst = max(audit.groupings, key=lambda grouping: grouping.ratio)
    passed = worst.ratio <= limit * (1 + _ROUNDING)
    return Gate("--max-group-ratio", limit, worst.ratio, passed, where=worst.column)


def _membership(audit: Audit, limit: float) -> Gate:
    if limit >= 1 and audit.risks is None:
        return Gate("--max-membership", limit, None, True)
    risks = _known_risks(audit, "--max-membership")
    measured, rows = risks.recognised, (risks.recognised_row,)
    passed = measured <= limit * (1 + _ROUNDING)
    gate = Gate("--max-membership", limit, measured, passed, rows=rows)
    # No noise hides what a figure on a grid discloses, nor a row without which there is no model.
    if passed or risks.disclosed:
        return gate
    beside = float(accuracy_beside(0.0, 0.5, risks.epsilon))
    if beside >= limit:
        return replace(gate, beside=beside)
    if not math.isfinite(risks.mu):
        return gate
    # μ is inversely proportional to σ.
    allowed = brentq(lambda mu: accuracy_beside(mu, 0.5, risks.epsilon) - limit, 0.0, risks.mu)
    return replace(gate, enough=round_up(audit.sigma * risks.mu / allowed))


def _guess_gain(audit: Audit, limit: float) -> Gate:
    if limit >= 1 and audit.risks is None:
        return Gate("--max-guess-gain", limit, None, True)
    worst = _known_risks(audit, "--max-guess-gain").worst_guess
    if worst is None:
        return Gate("--max-guess-gain", limit, 0.0, True)
    passed = worst.gain <= limit * (1 + _ROUNDING)
    return Gate("--max-guess-gain", limit, worst.gain, passed, rows=(worst.row,), where=worst.name)


def _known_risks(audit: Audit, option: str) -> RiskFinding:
    if audit.risks is None:
        why = tell_not_measured(audit)
        raise InputError(f"{option} cannot be checked. {why} {option} 1 releases without it.")
    return audit.risks
