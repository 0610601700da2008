"""Limits on an audit by attack, which can show only that a limit is exceeded.

Two of the limits for linear models apply to attacks, because an attack's success can exceed them:
the success rates of membership inference and of guesses. The other limits apply to upper bounds,
which attacks do not provide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from seepage.attacks.intervals import ConfidenceInterval, accuracy_interval
from seepage.attacks.membership.inference import MembershipInferenceResult
from seepage.auditing.any_model.findings import AttackAudit
from seepage.auditing.decision.presets import PRESETS
from seepage.auditing.findings import Gate
from seepage.auditing.gates import check_limits
from seepage.auditing.questions import Limits
from seepage.core.result import SAME
from seepage.errors import InputError


class MembershipSuccess(NamedTuple):
    """The accuracy of a membership inference attack if half of the records are members."""

    rate: float
    interval: ConfidenceInterval


def membership_success(attack: MembershipInferenceResult) -> MembershipSuccess:
    """Return the accuracy of an attack that thresholds its scores.

    Each half of the records (alternate rows) is tested at the best threshold for the other half, so
    threshold and test records are independent.
    """
    scores, members = attack.scores, attack.members
    hits = np.empty(scores.shape, dtype=bool)
    for side in (0, 1):
        known, judged = slice(side, None, 2), slice(1 - side, None, 2)
        line = _best_threshold(scores[:, known].ravel(), members[:, known].ravel())
        hits[:, judged] = (scores[:, judged] > line) == members[:, judged]
    return MembershipSuccess(float(hits.mean()), accuracy_interval(hits))


def _best_threshold(scores: np.ndarray, members: np.ndarray) -> float:
    """Return the threshold that separates members (above it) from non-members most accurately."""
    order = np.argsort(-scores, kind="stable")
    ranked, inside = scores[order], members[order]
    right = np.cumsum(np.where(inside, 1, -1))
    # Between two scores only: equal ones are on one side
    ends = np.append(ranked[1:] < ranked[:-1], True)
    best = int(np.argmax(np.where(ends, right, -len(right) - 1)))
    if right[best] <= 0:
        return float(ranked[0])
    return float(ranked[best + 1]) if best + 1 < len(ranked) else -np.inf


def check_attack_limits(limits: Limits) -> tuple[str, ...]:
    """Return the preset's limits that attacks do not measure.

    Raise an error if the caller set such a limit.
    """
    check_limits(limits, grouped=True)
    preset = PRESETS.get(limits.preset or "")
    left_out = []
    for name in vars(limits):
        value = getattr(limits, name)
        if name in ("preset", *_GATES) or value is None:
            continue
        option = f"--{name.replace('_', '-')}"
        if preset is None or getattr(preset, name, None) != value:
            raise InputError(
                f"{option} applies only to linear models, because attacks do not measure it; "
                "leave it out. With --model-kind, set --max-membership and --max-guess-gain, "
                "which attacks can test."
            )
        left_out.append(option)
    return tuple(left_out)


def hold_to(limits: Limits, audit: AttackAudit) -> AttackAudit:
    """Return an audit by attack with a gate for every limit that attacks can test."""
    left_out = check_attack_limits(limits)
    stated = ((gate, getattr(limits, name)) for name, gate in _GATES.items())
    gates = tuple(gate(audit, limit) for gate, limit in stated if limit is not None)
    steps = audit.steps
    if left_out:
        one = len(left_out) == 1
        steps += (
            f"The preset's {'limit' if one else 'limits'} {', '.join(left_out)} "
            f"{'was' if one else 'were'} not checked, because attacks do not measure "
            f"{'it' if one else 'them'}.",
        )
    return replace(audit, gates=gates, preset=limits.preset, steps=steps)


def _membership(audit: AttackAudit, limit: float) -> Gate:
    # Each attack has its own threshold; the one that does best is not picked by the area
    best = max((membership_success(attack) for attack in audit.attacks), key=lambda one: one.rate)
    passed = best.rate <= limit * (1 + SAME)
    low, high = best.interval
    return Gate("--max-membership", limit, best.rate, passed, low=low, high=high)


def _guess_gain(audit: AttackAudit, limit: float) -> Gate:
    if not audit.guesses:
        return Gate("--max-guess-gain", limit, None, limit >= 1)
    worst = max(audit.guesses, key=lambda one: one.gained.inside)
    gain, (low, high) = worst.gained.inside, worst.gained.interval("inside")
    passed = gain <= limit * (1 + SAME)
    return Gate("--max-guess-gain", limit, gain, passed, where=worst.name, low=low, high=high)


_GATES: dict[str, Callable[[AttackAudit, float], Gate]] = {
    "max_membership": _membership,
    "max_guess_gain": _guess_gain,
}
