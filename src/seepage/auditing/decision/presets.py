"""Limits on a release by recipient; they are recommendations of seepage, not law.

Without any information, membership inference succeeds half of the time. A success rate of 60, 75 or
90 % turns odds of 1 : 1 into 1.5, 3 or 9 : 1. Pure differential privacy with ε = log 1.5, log 3 or
log 9 allows the same success rates. An inferred value harms the person directly. The limit on the
gain of a guess is therefore five percentage points below the limit on the gain of membership
inference over chance. A true positive rate of 10, 50 or 90 % at a false positive rate of 1 % means
a precision of at most 9, 34 or 48 % for a value with a prevalence of 1 %.
``docs/how-to/decide.md`` gives the reasons.

This module imports nothing, because ``seepage --help`` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """Limits for one kind of recipient, against an attacker who knows all other records."""

    audience: str  # the recipients of the release
    max_membership: float  # the success rate of membership inference (chance: 0.5)
    max_guess_gain: float  # how much the release may raise the success rate of a guess
    max_guess_tpr: float  # the true positive rate of attribute inference at 1 % false positives


PRESETS = {
    "open": Preset("anybody, permanently", 0.60, 0.05, 0.10),
    "partners": Preset("named partners under a contract", 0.75, 0.20, 0.50),
    "internal": Preset("colleagues whose access is controlled and logged", 0.90, 0.35, 0.90),
}
# What a verdict compares with where no limit was set, and a release is held to by default
DEFAULT = "partners"
