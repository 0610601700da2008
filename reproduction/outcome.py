"""What making a table or figure again gives: numbers beside the printed ones, words, a drawing."""

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
    """One measured number, and what the paper prints for it.

    Parameters
    ----------
    name
        What was measured.
    measured
        What came out.
    printed
        The paper's number as it is printed, so that its precision is known; ``None`` where the
        paper prints none.

    Examples
    --------
    >>> from reproduction.outcome import Quantity
    >>> Quantity("mean η", 0.0405, "0.040").agrees
    True
    """

    name: str
    measured: float
    printed: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.measured):
            raise InputError(f"The quantity {self.name!r} came out as {self.measured}.")

    @property
    def published(self) -> float | None:
        """The printed number."""
        return None if self.printed is None else float(self.printed)

    @property
    def difference(self) -> float | None:
        """Measured minus published."""
        return None if self.published is None else self.measured - self.published

    @property
    def decimals(self) -> int | None:
        """How many decimals are printed."""
        return None if self.printed is None else len(self.printed.partition(".")[2])

    @property
    def agrees(self) -> bool | None:
        """Whether the measured number, rounded as the printed one is, is the printed one."""
        if self.difference is None or self.decimals is None:
            return None
        # A number in the middle may be rounded either way: 80.65 is printed as 80.7.
        return abs(self.difference) <= 0.5 * 10.0**-self.decimals * (1 + 1e-6)

    def cells(self) -> tuple[str, ...]:
        """Return what a table shows of it: name, printed, measured, difference, and agreement."""
        if self.decimals is None or self.difference is None:
            return self.name, "–", number(self.measured), "–", "–"
        # Two digits more than the paper has: enough to see which way it was rounded.
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
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Quantity:
        """Return the quantity that :meth:`to_json` wrote."""
        return cls(found["name"], found["measured"], found["printed"])


@dataclass(frozen=True)
class Outcome:
    """A table or figure made again.

    Parameters
    ----------
    setting
        The data, the models and the number of trials, in a sentence or two.
    quantities
        The numbers.
    seen
        One line on what one sees.
    figure
        The drawing.
    """

    setting: str
    quantities: tuple[Quantity, ...]
    seen: str
    figure: Figure


def quantity_rows(quantities: Sequence[Quantity]) -> list[tuple[str, ...]]:
    """Return the quantities as the rows of a table, the first being its head.

    Where the paper prints none of them, only what was measured is shown.
    """
    head = ("quantity", "published", "measured", "difference", "agrees")
    rows = [head, *(quantity.cells() for quantity in quantities)]
    if all(quantity.published is None for quantity in quantities):
        return [(row[0], row[2]) for row in rows]
    return rows
