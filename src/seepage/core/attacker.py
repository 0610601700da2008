"""What an attacker knows besides the release: everything else, or a share of the other records.

Whoever does not know the others sees a release that is random through them, even without noise. The
share ``u`` of that randomness which is left to her is the only thing the formulas ask of her.
"""

from __future__ import annotations

from dataclasses import dataclass

from seepage.errors import InputError
from seepage.support.number_check import check_count, check_number


@dataclass(frozen=True)
class Attacker:
    """What somebody knows who wants to tell whether a record was in the data.

    Parameters
    ----------
    knows
        The share of the other records (or people) that she knows: 1 for all of them, 0 for an
        outsider, who only knows what kind of people they are.
    reference
        How many records she learnt that from. Without it, she is taken to know the population
        exactly, which no attacker does: that errs on the side of the person.
    fraction
        The share of the population that is in the data. Drawn without replacement, the others vary
        by ``1 − fraction`` of what they would.

    Examples
    --------
    >>> import seepage as sp
    >>> sp.Attacker(knows=0.9).unknown(500)
    0.1
    """

    knows: float = 1.0
    reference: int | None = None
    fraction: float = 0.0

    def __post_init__(self) -> None:
        for value, name in ((self.knows, "knows"), (self.fraction, "fraction")):
            check_number(value, name)
            if isinstance(value, bool) or not 0 <= value <= 1:
                raise InputError(f"{name} is a share, from 0 to 1, not {value!r}.")
        if self.fraction == 1:
            raise InputError(
                "A fraction of 1 puts the whole population into the data: whoever knows it knows "
                "every record. Use a fraction below 1."
            )
        if self.reference is not None:
            check_count(self.reference, "reference")

    @property
    def knows_all(self) -> bool:
        """Whether she knows all other records."""
        return self.knows == 1

    def unknown(self, people: int) -> float:
        """Return ``(1 − f)(u + u²n/m)``: the share of the others' randomness left to her.

        ``u = 1 − knows`` is the share of the others she does not know, ``n`` how many people there
        are, ``m`` her reference records: what they leave open about the population adds to what the
        others leave open.
        """
        u = round(1 - self.knows, 12)  # so that knows=0.9 leaves 0.1, not 0.09999…
        learnt = 0.0 if self.reference is None else u**2 * people / self.reference
        return (1 - self.fraction) * (u + learnt)

    def __str__(self) -> str:
        if self.knows_all:
            return "an attacker who knows all other records"
        if self.knows == 0:
            return "an outsider, who knows none of the others"
        return f"an attacker who knows {100 * self.knows:.3g} % of the others"
