"""Limits on a release, and the gates that compare an audit with them."""

from __future__ import annotations

import math
from dataclasses import replace

from scipy.optimize import brentq

from seepage.auditing.findings import FALSE_POSITIVES, OVER_ALL, Audit, Gate, RiskFinding
from seepage.auditing.questions import Limits
from seepage.auditing.report.rendering import tell
from seepage.core.result import SAME, round_up
from seepage.errors import InputError
from seepage.risks.guessing import accuracy_beside, rate_beside, true_positive_rate
from seepage.support.number_check import check_positive


def check_limits(limits: Limits, grouped: bool) -> float | None:
    """Check the limits; return the largest leakage that they allow a record, if they limit it.

    This function is called before any computation. ``grouped`` states whether there are groups to
    compare.
    """
    etas = []
    if limits.max_eta is not None:
        check_positive(limits.max_eta, "--max-eta")
        etas.append(limits.max_eta)
    if limits.min_mse is not None:
        check_positive(limits.min_mse, "--min-mse")
        etas.append(limits.min_mse**-0.5)
    ratio = limits.max_group_ratio
    if ratio is not None and not (math.isfinite(ratio) and ratio >= 1):
        raise InputError(f"--max-group-ratio must be a number of at least 1, not {ratio:g}.")
    told = limits.max_membership
    if told is not None and not 0.5 < told <= 1:
        raise InputError(
            "--max-membership must be a probability above 0.5 (chance) and up to 1 (no limit), not "
            f"{told:g}."
        )
    if (gain := limits.max_guess_gain) is not None and not 0 < gain <= 1:
        raise InputError(
            f"--max-guess-gain must be a number above 0 and up to 1 (no limit), not {gain:g}."
        )
    if (rate := limits.max_guess_tpr) is not None and not FALSE_POSITIVES[0] < rate <= 1:
        raise InputError(
            "--max-guess-tpr must be a rate above 0.01 (chance) and up to 1 (no limit), not "
            f"{rate:g}."
        )
    if (right := limits.max_outsider) is not None and not 0.5 < right <= 1:
        raise InputError(
            "--max-outsider must be a probability above 0.5 (chance) and up to 1 (no limit), not "
            f"{right:g}."
        )
    if ratio is not None and not grouped:
        raise InputError("--max-group-ratio compares groups; name a grouping column with --group.")
    return min(etas) if etas else None


def held_to(limits: Limits, audit: Audit) -> Audit:
    """Return the audit with one gate per limit, and with the preset of the limits.

    Records above a limit are named by row, never by value.
    """
    check_limits(limits, bool(audit.groupings))
    gates = []
    for name, gate in _GATES.items():
        limit = getattr(limits, name)
        if limit is not None and limit >= 1 and audit.risks is None and gate in _OF_RISKS:
            gates.append(Gate(f"--{name.replace('_', '-')}", limit, None, True))
        elif limit is not None:
            gates.append(gate(audit, limit))
    return replace(audit, gates=tuple(gates), preset=limits.preset)


def _max_eta(audit: Audit, limit: float) -> Gate:
    measured = audit.records.quantile("eta", 1)
    return _of_records(audit, "--max-eta", limit, measured, limit * (1 + SAME), measured / limit)


def _min_mse(audit: Audit, limit: float) -> Gate:
    worst = audit.records.quantile("eta", 1)
    measured = worst**-2.0 if worst > 0 else math.inf
    most = math.sqrt((1 + SAME) / limit)
    return _of_records(audit, "--min-mse", limit, measured, most, math.sqrt(limit / measured))


def _of_records(
    audit: Audit, name: str, limit: float, measured: float, most: float, times: float
) -> Gate:
    """Return a gate that fails above the leakage ``most``; noise ``times`` as large would pass."""
    over = audit.records.over(most)
    if not over:
        return Gate(name, limit, measured, True, over=0)
    rows = tuple(int(row) for row in audit.records.most(min(over, 10)).row)  # the worst are named
    return Gate(name, limit, measured, False, round_up(audit.sigma * times), over, rows)


def _group_ratio(audit: Audit, limit: float) -> Gate:
    worst = max(audit.groupings, key=lambda grouping: grouping.ratio)
    passed = worst.ratio <= limit * (1 + SAME)
    return Gate("--max-group-ratio", limit, worst.ratio, passed, where=worst.column)


def _membership(audit: Audit, limit: float) -> Gate:
    risks = _known_risks(audit, "--max-membership")
    measured, rows = risks.recognised, (risks.recognised_row,)
    gate = Gate("--max-membership", limit, measured, measured <= limit * (1 + SAME), rows=rows)
    # No noise hides what a figure on a grid discloses, nor a row without which there is no model.
    if not (gate.passed or risks.disclosed):
        gate = _with_enough_noise(audit, risks, gate)
    ledger = audit.ledger
    if ledger is not None and ledger.known and limit < 1 and not risks.disclosed:
        passed = ledger.membership <= limit * (1 + SAME)
        enough = None if passed else ledger.enough
        measured, rows = ledger.membership, (ledger.row,)
        return Gate(gate.name, limit, measured, passed, enough, rows=rows, where=OVER_ALL)
    if not audit.published_as_it_is or limit >= 1:
        return gate
    # Without noise the release is certain to whoever knows all others; the audit's σ is not in it.
    enough = audit.sigma if gate.passed else gate.enough
    return replace(gate, measured=1.0, passed=False, enough=enough, beside=None)


def _with_enough_noise(audit: Audit, risks: RiskFinding, gate: Gate) -> Gate:
    """Return the gate on membership inference with the noise that would meet it, if any does."""

    def over(mu: float) -> float:
        return float(accuracy_beside(mu, 0.5, risks.epsilon, risks.delta)) - gate.limit

    if over(0.0) >= 0:
        return replace(gate, beside=float(accuracy_beside(0.0, 0.5, risks.epsilon, risks.delta)))
    if not math.isfinite(risks.mu):
        return gate
    # μ is inversely proportional to σ.
    allowed = brentq(over, 0.0, risks.mu)
    return replace(gate, enough=round_up(audit.sigma * risks.mu / allowed))


def _guess_gain(audit: Audit, limit: float) -> Gate:
    worst = _known_risks(audit, "--max-guess-gain").worst_guess
    if worst is None:
        return Gate("--max-guess-gain", limit, 0.0, True)
    ledger = audit.ledger
    if ledger is not None and ledger.gain is not None and limit < 1:
        passed = ledger.gain <= limit * (1 + SAME)
        return Gate("--max-guess-gain", limit, ledger.gain, passed, where=OVER_ALL)
    # Without noise a value that moves the model is no guess to whoever knows all else.
    gain = 1 - worst.baseline if audit.published_as_it_is and worst.gain > 0 else worst.gain
    passed = gain <= limit * (1 + SAME)
    return Gate("--max-guess-gain", limit, gain, passed, rows=(worst.row,), where=worst.name)


def _guess_tpr(audit: Audit, limit: float) -> Gate:
    risks = _known_risks(audit, "--max-guess-tpr")
    gate, ledger = _noisy_guess_tpr(audit, risks, limit), audit.ledger
    if ledger is not None and ledger.tpr is not None and limit < 1 and not risks.replaced:
        passed = ledger.tpr <= limit * (1 + SAME)
        return Gate("--max-guess-tpr", limit, ledger.tpr, passed, where=OVER_ALL)
    if not audit.published_as_it_is or limit >= 1 or not gate.measured:
        return gate
    enough = audit.sigma if gate.passed else gate.enough
    return replace(gate, measured=1.0, passed=False, enough=enough)


def _noisy_guess_tpr(audit: Audit, risks: RiskFinding, limit: float) -> Gate:
    """Return the gate on attribute inference against the noisy release."""
    if risks.replaced:
        # Two values of a record with different figures are told apart without an error.
        return Gate("--max-guess-tpr", limit, 1.0, limit >= 1, rows=risks.replaced[:1])
    worst = risks.told_best
    if worst is None or worst.tpr is None or worst.mu is None:
        return Gate("--max-guess-tpr", limit, 0.0, True)
    passed = worst.tpr <= limit * (1 + SAME)
    rows = () if worst.tpr_row is None else (worst.tpr_row,)
    gate = Gate("--max-guess-tpr", limit, worst.tpr, passed, rows=rows, where=worst.name)
    if passed or not math.isfinite(worst.mu):
        return gate

    def over(mu: float) -> float:
        rate = float(true_positive_rate(mu, FALSE_POSITIVES[0]))
        beside = risks.guess_epsilon, risks.guess_delta
        return rate_beside(rate, FALSE_POSITIVES[0], *beside) - limit

    if over(0.0) >= 0:  # figures beside the noisy numbers are enough to be over it
        return gate
    # μ is inversely proportional to σ.
    allowed = brentq(over, 0.0, worst.mu)
    return replace(gate, enough=round_up(audit.sigma * worst.mu / allowed))


def _outsider(audit: Audit, limit: float) -> Gate:
    found = audit.outsider
    if found is None:
        why = audit.outsider_reason or "Name the attacker with --attacker, such as outsider."
        raise InputError(f"--max-outsider cannot be checked. {why}")
    passed = found.membership <= limit * (1 + SAME)
    return Gate("--max-outsider", limit, found.membership, passed, rows=(found.row,))


def _known_risks(audit: Audit, option: str) -> RiskFinding:
    if audit.risks is None:
        why = tell("not_measured", audit)
        raise InputError(
            f"{option} cannot be checked. {why} Use {option} 1 to skip this check (in Python, "
            "leave the preset out)."
        )
    return audit.risks


_OF_RISKS = (_membership, _guess_gain, _guess_tpr)  # a limit of 1 on these is none
_GATES = {
    "max_eta": _max_eta,
    "min_mse": _min_mse,
    "max_group_ratio": _group_ratio,
    "max_membership": _membership,
    "max_guess_gain": _guess_gain,
    "max_guess_tpr": _guess_tpr,
    "max_outsider": _outsider,
}
