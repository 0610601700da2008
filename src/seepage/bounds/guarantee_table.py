"""The table of guarantees: its lines, and how people read it."""

from __future__ import annotations

import html
import math
import textwrap
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from seepage.core.result import NOTICE
from seepage.errors import InputError, nearest
from seepage.tables.frames import build_frame

_WIDTH = 100
_NOTHING = 1e-30  # a bound below it says nothing, whatever the units


@dataclass(frozen=True)
class Guarantee:
    """One line of the table.

    Parameters
    ----------
    name
        Where the bound comes from.
    value
        The least mean squared error per number (``unit="mse"``), or the largest advantage
        (``unit="advantage"``); ``None`` where the bound does not apply.
    adversary
        For whom it holds.
    assumptions
        What must hold for it to bind.
    guarantee
        Whether it rests on what was stated alone; if not, on the ranges of the data at hand too,
        and it is an indication.
    reason
        Why it does not apply, where it does not.
    unit
        ``mse`` or ``advantage``.
    """

    name: str
    value: float | None
    adversary: str
    assumptions: tuple[str, ...]
    guarantee: bool = True
    reason: str = ""
    unit: str = "mse"

    @property
    def applies(self) -> bool:
        """Whether the bound applies to this release."""
        return self.value is not None


@dataclass(frozen=True)
class Guarantees:
    """Every bound on what can be found out about one record; print it to read it.

    Parameters
    ----------
    rows
        The lines.
    row, label
        The record's position, and what the caller's table calls it.
    chosen
        Whether the caller chose it; otherwise it is the most exposed one by dFIL.
    records
        How many records there are.
    about, numbers
        What is sought of the record, and how many numbers that is.
    guessing
        For comparison: the mean squared error of guessing every column's mean.
    """

    rows: tuple[Guarantee, ...]
    row: int
    label: str
    chosen: bool
    records: int
    about: str
    numbers: int
    guessing: float

    def tightest(self, adversary: str | None = None) -> Guarantee:
        """Return the line with the largest bound on the error that holds for an adversary.

        ``adversary`` is one of the groups of the table; where not given, bounds on one cell and on
        membership are left aside, and any adversary will do.
        """
        groups = list(dict.fromkeys(line.adversary for line in self.rows if line.unit == "mse"))
        if adversary is not None and adversary not in groups:
            raise InputError(
                f"There are no bounds for {adversary!r}{nearest(adversary, groups)}; there are "
                f"some for {', '.join(map(repr, groups))}."
            )
        lines = [
            line
            for line in self.rows
            if line.applies
            and line.unit == "mse"
            and (
                line.adversary == adversary or (adversary is None and "cell" not in line.adversary)
            )
        ]
        if not lines:
            raise InputError(f"No bound applies to {adversary or 'this release'}.")
        return max(lines, key=lambda line: line.value or 0.0)

    def table(self, library: str = "pyarrow") -> Any:
        """Return a data frame with a line for every bound."""
        return build_frame(
            {
                "adversary": [line.adversary for line in self.rows],
                "bound": [line.name for line in self.rows],
                "value": [math.nan if line.value is None else line.value for line in self.rows],
                "unit": [line.unit for line in self.rows],
                "applies": [line.applies for line in self.rows],
                "guarantee": [line.guarantee for line in self.rows],
                "assumptions": [" ".join(line.assumptions) or line.reason for line in self.rows],
            },
            library,
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _title(self) -> str:
        which = "" if self.chosen else f", the most exposed of {self.records:,} by dFIL"
        return f"What can be found out about record {self.label}{which}"

    def _numbered(self) -> dict[str, int]:
        """Return the number of every assumption, in the order of their first use."""
        texts = dict.fromkeys(text for line in self.rows for text in line.assumptions)
        return {text: k for k, text in enumerate(texts, 1)}

    def _groups(self) -> Iterator[tuple[str, list[Guarantee]]]:
        for group in dict.fromkeys(line.adversary for line in self.rows):
            yield group, [line for line in self.rows if line.adversary == group]

    def _best(self, group: str, lines: list[Guarantee]) -> Guarantee | None:
        able = [line for line in lines if line.applies and line.unit == "mse"]
        return self.tightest(group) if len(able) > 1 else None

    def _lines(self) -> Iterator[str]:
        numbered = self._numbered()
        width = max(len(line.name) for line in self.rows) + 2
        numbers = f"{self.numbers:,} number{'s' if self.numbers != 1 else ''}"
        yield self._title()
        yield f"({self.about}: {numbers}; the error is per number, in the table's own units)"
        yield ""
        head = f"  {'':<{width}}{'squared':>11}{'error':>12}"
        yield head.rstrip()
        guess = _number(self.guessing)
        yield f"  {'for comparison: guess the mean':<{width}}{guess:>11}{_root(self.guessing):>12}"
        told: set[str] = set()
        for group, lines in self._groups():
            yield ""
            yield group[0].upper() + group[1:]
            best = self._best(group, lines)
            for line in lines:
                if line.applies:
                    yield _line(line, width, numbered, line is best)
                else:
                    yield _why_not(line, width, line.reason in told)
                    told.add(line.reason)
        yield ""
        yield "Assuming:"
        for text, k in numbered.items():
            yield textwrap.fill(
                text, _WIDTH, initial_indent=f"  [{k}] ", subsequent_indent=" " * (6 + (k > 9))
            )
        if any(line.applies and not line.guarantee for line in self.rows):
            yield "  *   An indication, not a guarantee: it rests on what was read off the data."
        yield NOTICE

    def _repr_html_(self) -> str:
        numbered = self._numbered()
        body = []
        for group, lines in self._groups():
            body.append(f'<tr><th colspan="4">{html.escape(group)}</th></tr>')
            best = self._best(group, lines)
            for line in lines:
                value = "–" if line.value is None else _number(line.value)
                error = "–" if line.value is None or line.unit != "mse" else _root(line.value)
                refs = ", ".join(f"[{numbered[text]}]" for text in line.assumptions)
                mark = "" if line.guarantee else "*"
                name = html.escape(line.name)
                if line is best:
                    name = f"<strong>{name}</strong>"
                note = refs if line.applies else html.escape(line.reason)
                body.append(
                    f"<tr><td>{name}</td><td>{value}{mark}</td><td>{error}</td><td>{note}</td></tr>"
                )
        notes = "".join(f"<li>{html.escape(text)}</li>" for text in numbered)
        return (
            f"<p><strong>{html.escape(self._title())}</strong></p><table><thead><tr><th>bound</th>"
            f"<th>squared error</th><th>error</th><th>assuming</th></tr></thead><tbody>"
            f"{''.join(body)}</tbody></table><ol>{notes}</ol><p><em>{NOTICE}</em></p>"
        )


def _line(line: Guarantee, width: int, numbered: dict[str, int], best: bool) -> str:
    value = line.value or 0.0
    error = _root(value) if line.unit == "mse" else ""
    mark = " " if line.guarantee else "*"
    refs = " ".join(f"[{numbered[text]}]" for text in line.assumptions)
    tail = f"{refs}  ← tightest" if best else refs
    return f"  {_padded(line.name, width)}{_number(value):>11}{mark}{error:>11}   {tail}"


def _why_not(line: Guarantee, width: int, told: bool) -> str:
    reason = "for the same reason." if told else line.reason
    return textwrap.fill(
        f"does not apply: {reason}",
        _WIDTH,
        initial_indent=f"  {_padded(line.name, width)}",
        subsequent_indent=" " * (width + 2),
    )


def _padded(text: str, width: int) -> str:
    """Fill up with blanks; a mark that stands above a letter takes no room of its own."""
    return text.ljust(width + sum(unicodedata.combining(c) > 0 for c in text))


def _number(value: float) -> str:
    if math.isinf(value):
        return "∞"
    return f"{value:.3g}" if value > _NOTHING else "0"


def _root(value: float) -> str:
    return f"±{_number(math.sqrt(value))}"
