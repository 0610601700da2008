"""The limits of a release by who will see it: our default, not law.

An attacker who has no idea whether somebody is in the data is right half of the time. Membership
inference that is right 60, 75 or 90 % of the time turns odds of 1 : 1 into 1.5, 3 or 9 : 1, as pure
differential privacy with ε = log 1.5, log 3 or log 9 would allow. A guess of a value may gain five
points less than membership gains over chance, since the value is itself the harm. A true positive
rate of 0.1, 0.5 or 0.9 at 1 % false positives means that of those said to have a value that one in
a hundred has, at most 9, 34 or 48 % have it. ``docs/how-to/decide.md`` has the reasons.

Nothing is imported here, because ``seepage --help`` reads this file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """Limits for one kind of recipient; they hold against who knows all other records."""

    audience: str  # who will see the release
    max_membership: float  # how often membership inference may succeed; chance is 0.5
    max_guess_gain: float  # what the release may add to a guess of a class or category
    max_guess_tpr: float  # how often a value may be recognised at 1 % false positives


PRESETS = {
    "open": Preset("anybody, for ever", 0.60, 0.05, 0.10),
    "partners": Preset("named partners under a contract", 0.75, 0.20, 0.50),
    "internal": Preset("colleagues whose access is controlled and logged", 0.90, 0.35, 0.90),
}
# What a verdict compares with where no limit was set, and a release is held to by default
DEFAULT = "partners"
