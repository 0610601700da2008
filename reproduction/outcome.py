"""The outcome of a reproduction: numbers beside the printed ones, words, a drawing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction.drawing import Figure
from seepage.auditing.report.words import number
from seepage.errors import InputError

AGREES, DIFFERS, UNDECIDED, MISSING = VERDICTS = (
    "agrees",
    "differs",
    "undecided",
    "not available here",
)
KINDS = ("result", "count", "setting")
ROOT = Path(__file__).parents[1]


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
        Why the measured number is not the printed one: a sentence that names its evidence, a file
        of this repository between backticks. It is shown unless they agree, and the page refuses
        such a number without it.
    kind
        What kind of number is printed: a ``"result"``, a ``"count"`` of records or features, or a
        ``"setting"``, which is fixed by the set-up or by the goal of an algorithm.
    comparable
        Whether data, split, training and units are the paper's, so that a difference counts.
    tied
        Whether the runs cannot tell, since the numbers compared differ by less than their errors.

    Examples
    --------
    >>> from reproduction.outcome import Quantity
    >>> Quantity("mean η", 0.0405, "0.040").agrees
    True
    >>> Quantity("accuracy", 94.3, "99", "Its split is not stated.", comparable=False).verdict
    'undecided'
    """

    name: str
    measured: float | None
    printed: str | None = None
    why: str | None = None
    kind: str = "result"
    comparable: bool = True
    tied: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"The quantity {self.name!r} is of no known kind: {self.kind!r}.")
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
    def verdict(self) -> str | None:
        """One of :data:`VERDICTS`; ``None`` if nothing is printed."""
        if self.printed is None:
            return None
        if self.measured is None:
            return MISSING
        if self.tied or not (self.agrees or self.comparable):
            return UNDECIDED
        return AGREES if self.agrees else DIFFERS

    @property
    def reason(self) -> str | None:
        """The verdict and its reason; ``None`` for an agreement, or if nothing is printed."""
        if self.verdict in (None, AGREES) or self.why is None:
            return None
        return f"{str(self.verdict).capitalize()}. {self.why}"

    @property
    def evidence(self) -> list[Path]:
        """The files of this repository that the reason names, of which each must exist.

        A name with a star stands for all files like it.
        """
        named = re.findall(r"`((?:reproduction|benchmarks)/[^`\s]+)`", self.why or "")
        found = {name: sorted(ROOT.glob(name)) for name in named}
        for name, paths in found.items():
            if not paths:
                raise InputError(f"The reason of {self.name!r} names {name}, which does not exist.")
        return [path for paths in found.values() for path in paths]

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to explain.

        A difference needs a computation as its evidence; a number that cannot be had needs words.
        """
        if self.verdict in (DIFFERS, UNDECIDED):
            return bool(self.evidence)
        return self.verdict in (None, AGREES) or bool(self.why)

    def cells(self) -> tuple[str, ...]:
        """Return its row of a table: name, printed, measured, difference, kind and verdict."""
        if self.measured is None:
            return self.name, str(self.printed), "–", "–", self.kind, str(self.verdict)
        if self.decimals is None or self.difference is None:
            return self.name, "–", number(self.measured), "–", "–", "–"
        # Two digits more than the paper: enough to see which way it was rounded.
        digits = self.decimals + 2 if self.measured % 1 else self.decimals
        difference = f"{self.difference:+z.{digits}f}".replace("-", "−")
        measured = f"{self.measured:.{digits}f}"
        return self.name, str(self.printed), measured, difference, self.kind, str(self.verdict)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "name": self.name,
            "published": self.published,
            "measured": self.measured,
            "difference": self.difference,
            "printed": self.printed,
            "agrees": self.agrees,
            "kind": self.kind,
            "verdict": self.verdict,
            "comparable": self.comparable,
            "tied": self.tied,
            "why": self.why,
            "evidence": [path.relative_to(ROOT).as_posix() for path in self.evidence],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Quantity:
        """Return the quantity that :meth:`to_json` wrote."""
        names = ("name", "measured", "printed", "why", "kind", "comparable", "tied")
        return cls(*(found[name] for name in names))

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

    If the paper prints none of them, only the measured numbers are shown. A number after the
    verdict refers to :func:`reasons`.
    """
    head = ("quantity", "published", "measured", "difference", "kind", "verdict")
    if all(quantity.printed is None for quantity in quantities):
        return [(row[0], row[2]) for row in (head, *(q.cells() for q in quantities))]
    said = reasons(quantities)
    rows: list[tuple[str, ...]] = [head]
    for quantity in quantities:
        *cells, verdict = quantity.cells()
        if quantity.reason:
            verdict = f"{verdict} ({said.index(quantity.reason) + 1})"
        rows.append((*cells, verdict))
    return rows


def reasons(quantities: Sequence[Quantity]) -> list[str]:
    """Return the verdicts other than agreement with their reasons, each once."""
    return list(dict.fromkeys(q.reason for q in quantities if q.reason))
