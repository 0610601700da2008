"""The outcome of a reproduction: numbers beside the printed ones, words, a drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reproduction.drawing import Figure
from seepage.auditing.report.words import number
from seepage.errors import InputError


@dataclass(frozen=True)
class Quantity:
    """One measured number, the printed one, and why they differ.

    Parameters
    ----------
    name
        What was measured.
    measured
        The result; ``None`` if the paper's number could not be reproduced.
    printed
        The paper's number as printed, so that its precision is known; ``None`` if the paper prints
        none. ``> 88`` is a bound, ``9/10`` allows either.
    why
        Why the measured number is not the printed one: a sentence that names its evidence. It is
        shown where they differ, and the page refuses such a number without it.

    Examples
    --------
    >>> from reproduction.outcome import Quantity
    >>> Quantity("mean η", 0.0405, "0.040").agrees
    True
    """

    name: str
    measured: float | None
    printed: str | None = None
    why: str | None = None

    def __post_init__(self) -> None:
        if self.measured is None:
            if self.printed is None or self.why is None:
                raise InputError(f"The quantity {self.name!r} is neither measured nor explained.")
        elif not math.isfinite(self.measured):
            raise InputError(f"The quantity {self.name!r} came out as {self.measured}.")

    @property
    def published(self) -> float | None:
        """The printed number; the first of two."""
        return None if self.printed is None else self._choices()[0]

    @property
    def difference(self) -> float | None:
        """Measured minus printed; the nearer of two printed numbers."""
        if self.printed is None or self.measured is None:
            return None
        measured = self.measured
        return min((measured - choice for choice in self._choices()), key=abs)

    @property
    def decimals(self) -> int | None:
        """How many decimals are printed."""
        return None if self.printed is None else len(self.printed.partition(".")[2])

    @property
    def agrees(self) -> bool | None:
        """Whether the measured number, rounded like the printed one, equals it.

        ``None`` where either is missing.
        """
        if self.printed is None or self.difference is None or self.decimals is None:
            return None
        if self.printed.startswith(">"):
            return self.difference > 0
        # A number in the middle may be rounded either way: 80.65 is printed as 80.7.
        return abs(self.difference) <= 0.5 * 10.0**-self.decimals * (1 + 1e-6)

    @property
    def reason(self) -> str | None:
        """Why the printed number was not reached; ``None`` if it was, or if none is printed."""
        return None if self.printed is None or self.agrees else self.why

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to explain."""
        return self.printed is None or bool(self.agrees) or bool(self.why)

    def cells(self) -> tuple[str, ...]:
        """Return its row of a table: name, printed, measured, difference, and agreement."""
        if self.measured is None:
            return self.name, str(self.printed), "–", "–", "not made"
        if self.decimals is None or self.difference is None:
            return self.name, "–", number(self.measured), "–", "–"
        # Two digits more than the paper: enough to see which way it was rounded.
        digits = self.decimals + 2 if self.measured % 1 else self.decimals
        difference = f"{self.difference:+z.{digits}f}".replace("-", "−")
        agrees = "yes" if self.agrees else "no"
        return self.name, str(self.printed), f"{self.measured:.{digits}f}", difference, agrees

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "name": self.name,
            "published": self.published,
            "measured": self.measured,
            "difference": self.difference,
            "printed": self.printed,
            "agrees": self.agrees,
            "why": self.why,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Quantity:
        """Return the quantity that :meth:`to_json` wrote."""
        return cls(found["name"], found["measured"], found["printed"], found["why"])

    def _choices(self) -> list[float]:
        return [float(part) for part in str(self.printed).removeprefix(">").split("/")]


@dataclass(frozen=True)
class Outcome:
    """A table or figure reproduced.

    Parameters
    ----------
    setting
        The data, the models and the number of trials, in a sentence or two.
    quantities
        The numbers.
    seen
        The finding, in a line or two.
    figure
        The drawing.
    kept
        For results that were kept from earlier runs: which files, and where each comes from.
    """

    setting: str
    quantities: tuple[Quantity, ...]
    seen: str
    figure: Figure
    kept: tuple[str, ...] = ()


def quantity_rows(quantities: Sequence[Quantity]) -> list[tuple[str, ...]]:
    """Return the quantities as the rows of a table, the first being its head.

    If the paper prints none of them, only the measured numbers are shown. A number after *no*
    refers to :func:`reasons`.
    """
    head = ("quantity", "published", "measured", "difference", "agrees")
    if all(quantity.printed is None for quantity in quantities):
        return [(row[0], row[2]) for row in (head, *(q.cells() for q in quantities))]
    said = reasons(quantities)
    rows: list[tuple[str, ...]] = [head]
    for quantity in quantities:
        *cells, agrees = quantity.cells()
        if quantity.reason:
            agrees = f"{agrees} ({said.index(quantity.reason) + 1})"
        rows.append((*cells, agrees))
    return rows


def reasons(quantities: Sequence[Quantity]) -> list[str]:
    """Return why numbers are not the printed ones, each reason once."""
    return list(dict.fromkeys(q.reason for q in quantities if q.reason))
