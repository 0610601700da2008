"""A table of all bounds that apply to a release, each with its adversary and assumptions.

The table covers one record, by default the record with the largest dFIL. Each row bounds an
adversary's mean squared error per number, or the advantage in inferring membership or an attribute.
The adversary knows all other data. Rows are grouped by adversary.
"""

from __future__ import annotations

import html
import math
import textwrap
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seepage.bounds.cramer_rao import cramer_rao_rows
from seepage.bounds.from_privacy import from_privacy, membership_advantage, two_point
from seepage.bounds.hammersley import hammersley_chapman_robbins
from seepage.bounds.van_trees import (
    BoundedPrior,
    ColumnSpread,
    Domain,
    GaussianPrior,
    van_trees_rows,
)
from seepage.core.leakage import Columns, Leakage
from seepage.core.result import NOTICE, UNBIASED, Result
from seepage.errors import InputError, accepts_other_names, nearest
from seepage.privacy import PrivacyStatement, output_perturbation, renyi_of_event
from seepage.risks.guessing import advantage
from seepage.tables.result_table import PlottedNumbers, ResultTable
from seepage.tables.source import as_numpy, build_frame

UNBIASED_ADVERSARY = "an unbiased adversary"
EVERY_ADVERSARY = "every adversary"
ONE_CELL = "an unbiased adversary, one cell"
MEMBERSHIP = "membership inference"
ATTRIBUTE = "attribute inference"

_FROM_DATA = "The prior has each column's mean and standard deviation in the data."
_REGULAR = "The bound is for small changes to the record, linearised at the actual data."
_FREQUENCIES = "The prior probability of a value is its frequency in the data."
_WIDTH = 100  # characters of a printed line


@accepts_other_names
def guarantees(
    leak: Leakage[Any],
    *,
    domain: Any = None,
    dp: Any = None,
    prior: GaussianPrior | BoundedPrior | None = None,
    row: int | None = None,
    columns: Columns = None,
    draws: int = 128,
    seed: int = 0,
) -> Guarantees:
    """Return a table of the bounds for one record, each with its assumptions.

    Parameters
    ----------
    leak
        The leakage of one release; its records may be in memory or read in chunks.
    domain
        The domain of the records: a pair ``(lower, upper)``, each of them one number or one per
        column, or a mapping from column names to such pairs. The default is each column's range in
        the data; a bound based on these ranges is marked as indicative, not a guarantee.
    dp
        The privacy guarantee of the release: from :mod:`seepage.privacy`, or a ``dp_accounting``
        event. The default is the guarantee of output perturbation, where one can be derived.
    prior
        The adversary's prior, for the van Trees bound, which is valid for biased estimates too. The
        default is a Gaussian prior with the columns' means and standard deviations in the data.
        With this default and a stated domain, a second bound uses a prior within the domain.
    row
        The position of the record; by default, the record with the largest dFIL.
    columns
        The columns to reconstruct; by default, all columns. The label is assumed known.
    draws, seed
        The number of draws from the prior, and the seed; the model is refitted for each draw.

    Examples
    --------
    >>> import seepage as sp
    >>> wine = sp.data.load_bundled("wine")
    >>> X, y = wine.X / wine.X.max(axis=0), wine.y == 0
    >>> model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    >>> table = sp.guarantees(sp.leakage(model, X, y, noise=sp.Gaussian(0.1)), domain=(0, 1))
    >>> table.tightest("an unbiased adversary").name
    'Cramér–Rao'
    """
    unknowns, about = leak.unknowns(columns, False)
    names = leak.source.names
    which = list(range(len(names)) if unknowns.columns is None else unknowns.columns)
    if row is None:  # the record with the largest dFIL
        position = int(np.argmax(np.asarray(leak.per_record("dfil", unknowns, "rows", about))))
    else:
        position = int(leak.row_positions([row])[0])
    spread = ColumnSpread.of(leak.source)
    limits = Domain.within(domain, names, spread)
    promise, no_promise = _promise(leak, limits, dp)
    promised = (promise, no_promise, limits, which)
    information = np.asarray(as_numpy(leak.information(position, which, False)), dtype=float)
    known = np.diag(information)  # about each cell, if all other cells are known
    sampling = {"draws": draws, "seed": seed}
    rows = [
        *_unbiased(leak, columns, position),
        _promised("Rényi differential privacy", UNBIASED_ADVERSARY, from_privacy, *promised),
        *_van_trees(leak, prior, spread, limits, which, position, sampling),
        _promised("two points", EVERY_ADVERSARY, two_point, *promised),
        *_cell(leak, limits, which, position, known),
        *_risks(leak, promise, no_promise, spread, which[int(np.argmax(known))], position),
    ]
    index = leak.source.index
    return Guarantees(
        rows=tuple(
            _resting_on(line, *leak.assumptions(label=False), guarantee=True) for line in rows
        ),
        row=position,
        label=str(position if index is None else index[position]),
        chosen=row is not None,
        records=len(leak.source),
        about=about,
        numbers=len(which),
        guessing=float(np.mean(spread.variance[which])),
    )


@dataclass(frozen=True)
class Guarantee:
    """One row of the table of bounds.

    Parameters
    ----------
    name
        The name of the bound.
    value
        The lower bound on the mean squared error per number (``unit="mse"``), or the upper bound on
        the advantage (``unit="advantage"``); ``None`` if the bound does not apply.
    adversary
        The adversary to whom the bound applies.
    assumptions
        The assumptions behind the bound.
    guarantee
        Whether the bound needs only the stated assumptions; if it also uses values taken from the
        data, it is only indicative.
    reason
        The reason why the bound does not apply; empty if it does.
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
class Guarantees(ResultTable):
    """The bounds for one record; printing shows them as a table.

    Parameters
    ----------
    rows
        One entry per bound.
    row, label
        The position of the record, and its label in the original table.
    chosen
        Whether the record was chosen by the caller; otherwise it is the record with the largest
        dFIL.
    records
        The number of records.
    about, numbers
        The unknowns of the record as text, and their number.
    guessing
        For comparison, the mean squared error per number of guessing every column's mean.
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
        """Return the tightest bound on the error for an adversary.

        ``adversary`` names a group of the table that bounds the error. By default, all these groups
        are considered, except that for a single cell.
        """
        groups = list(dict.fromkeys(line.adversary for line in self.rows if line.unit == "mse"))
        if adversary is not None and adversary not in groups:
            raise InputError(
                f"There are no bounds on the error for {adversary!r}{nearest(adversary, groups)}; "
                f"choose from {', '.join(map(repr, groups))}."
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
            raise InputError(
                f"No bound on the error applies to {adversary or 'this release'}; print the table "
                "for the reasons."
            )
        return max(lines, key=lambda line: line.value or 0.0)

    index_columns = 2

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: the least error per number that each bound allows."""
        lines = [line for line in self.rows if line.applies and line.unit == "mse"]
        values = np.sqrt([line.value or 0.0 for line in lines])
        names = [f"{line.name}: {line.adversary}" for line in lines]
        guess = (math.sqrt(self.guessing), "guessing the mean")
        return PlottedNumbers(
            values, names, "least error per number", "bounds", mark=guess, ranked=False
        )

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per bound."""
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
            library or "pyarrow",
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        count = sum(line.applies for line in self.rows)
        return (
            f"<{count} of {len(self.rows)} bounds apply to record {self.label}, about "
            f"{self.about}; print() shows them with their assumptions>"
        )

    def _title(self) -> str:
        which = "" if self.chosen else f", the most exposed of {self.records:,} by dFIL"
        return f"Bounds on the reconstruction of record {self.label}{which}"

    def _numbered(self) -> dict[str, int]:
        """Return the assumptions, numbered in order of first use."""
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
            yield "  *   An indication, not a guarantee: it depends on values taken from the data."
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


def _unbiased(leak: Leakage[Any], columns: Columns, position: int) -> Iterator[Guarantee]:
    unknowns, about = leak.unknowns(columns, False)
    bounds = {
        "FIL, 1/η²": leak.per_record("fil", unknowns, "rows", about).mse_bound(),
        "dFIL, 1/η̄²": leak.per_record("dfil", unknowns, "rows", about).mse_bound(),
        "Cramér–Rao": cramer_rao_rows(leak, columns=columns),
    }
    for name, bound in bounds.items():
        value = float(np.asarray(bound)[position])
        yield Guarantee(name, value, UNBIASED_ADVERSARY, (*UNBIASED, _REGULAR))


def _promise(leak: Leakage[Any], limits: Domain, dp: Any) -> tuple[PrivacyStatement | None, str]:
    """Return the privacy guarantee of the release, or the reason why none is known."""
    if isinstance(dp, PrivacyStatement):
        return dp, ""
    if dp is not None:
        return renyi_of_event(dp), ""
    try:
        norm = limits.row_norm if limits.stated else None
        return output_perturbation(leak, row_norm=norm), ""
    except InputError as error:
        return None, str(error)


def _where_it_applies(name: str, adversary: str, bound: Callable[[], Guarantee]) -> Guarantee:
    """Return the table row of a bound; if the bound does not apply, the row states the reason."""
    try:
        return bound()
    except InputError as error:
        return Guarantee(name, None, adversary, (), reason=str(error))


def _promised(
    name: str,
    adversary: str,
    bound: Callable[[PrivacyStatement, np.ndarray], Result],
    promise: PrivacyStatement | None,
    reason: str,
    limits: Domain,
    which: list[int],
) -> Guarantee:
    """Return the table row of a bound that follows from a privacy guarantee and the domain."""

    def line() -> Guarantee:
        if promise is None:
            raise InputError(reason)
        found = bound(promise, limits.diameters[which])
        assumptions = (*found.assumptions[:2], limits.words, *_about(promise))
        safe = promise.guarantee and limits.stated
        return Guarantee(name, float(found), adversary, assumptions, guarantee=safe)

    return _where_it_applies(name, adversary, line)


def _about(promise: PrivacyStatement) -> tuple[str, ...]:
    return (f"The release is protected by {promise.words}.", *promise.assumptions)


def _van_trees(
    leak: Leakage[Any],
    prior: GaussianPrior | BoundedPrior | None,
    spread: ColumnSpread,
    limits: Domain,
    which: list[int],
    position: int,
    sampling: dict[str, int],
) -> Iterator[Guarantee]:
    if prior is not None:
        yield _averaged("van Trees", leak, prior, which, position, 1.0, sampling)
        return
    # A column that cannot vary is known and cannot be guessed wrongly.
    std = np.sqrt(spread.variance)
    sought = [j for j in which if std[j] > 0]
    share = len(sought) / len(which)
    gaussian = GaussianPrior(std[sought], spread.mean[sought])
    name = "van Trees, spread as the data"
    found = _averaged(name, leak, gaussian, sought, position, share, sampling)
    yield _resting_on(found, _FROM_DATA, guarantee=False)
    if not limits.stated:
        # A prior over the data's ranges would be far wider than the records are.
        return
    sought = [j for j in which if limits.diameters[j] > 0]
    share = len(sought) / len(which)
    bounded = BoundedPrior(limits.lower[sought], limits.upper[sought])
    name = "van Trees, within the domain"
    found = _averaged(name, leak, bounded, sought, position, share, sampling)
    yield _resting_on(found, limits.words, guarantee=True)


def _resting_on(line: Guarantee, *assumptions: str, guarantee: bool) -> Guarantee:
    """Return a row with additional assumptions; ``guarantee=False`` makes it only indicative."""
    if not line.applies:
        return line
    every = tuple(dict.fromkeys((*line.assumptions, *assumptions)))
    return replace(line, assumptions=every, guarantee=guarantee and line.guarantee)


def _averaged(
    name: str,
    leak: Leakage[Any],
    prior: GaussianPrior | BoundedPrior,
    sought: list[int],
    position: int,
    share: float,
    sampling: dict[str, int],
) -> Guarantee:
    """Return the row of a van Trees bound, multiplied by the share of the unknowns that vary."""

    def line() -> Guarantee:
        if not sought:
            raise InputError(
                "None of the columns to reconstruct varies, so each value is known; name a column "
                "that varies."
            )
        found = van_trees_rows(leak, prior, [position], sought, **sampling)
        return Guarantee(name, share * float(found[0]), EVERY_ADVERSARY, found.assumptions)

    return _where_it_applies(name, EVERY_ADVERSARY, line)


def _cell(
    leak: Leakage[Any], limits: Domain, which: list[int], position: int, known: np.ndarray
) -> Iterator[Guarantee]:
    """Yield the bounds for the cell that leaks most, if all other cells are known."""
    with np.errstate(divide="ignore"):
        cells = 1 / known  # least squared errors of unbiased estimates
    j = which[int(np.argmin(cells))]
    column = leak.source.names[j]
    yield Guarantee(f"Cramér–Rao, {column}", float(cells.min()), ONE_CELL, (*UNBIASED, _REGULAR))
    name = f"Hammersley–Chapman–Robbins, {column}"

    def line() -> Guarantee:
        found = hammersley_chapman_robbins(leak, position, j, domain=limits).bound
        return Guarantee(name, float(found), ONE_CELL, found.assumptions, guarantee=limits.stated)

    yield _where_it_applies(name, ONE_CELL, line)


def _risks(
    leak: Leakage[Any],
    promise: PrivacyStatement | None,
    reason: str,
    spread: ColumnSpread,
    column: int,
    position: int,
) -> Iterator[Guarantee]:
    """Yield the table rows for membership inference, and for guesses of the label and of one cell.

    Membership inference is on this record and, from the privacy guarantee, on any record. For
    labels, the advantage is ``2Φ(μ/2) − 1``, where μ is the distance, in units of the noise, that
    the release moves if one label replaces the other. The cell that leaks most is guessed to within
    one standard deviation of its column; the advantage is the gain over the best guess without the
    release.
    """
    width = float(np.sqrt(spread.variance[column]))

    def absence() -> Guarantee:
        found = leak.membership(rows=[position])
        return Guarantee("", float(advantage(found.mu)[0]), "", found.mu.assumptions)

    def any_record() -> Guarantee:
        if promise is None:
            raise InputError(reason)
        value, safe = membership_advantage(promise), promise.guarantee
        return Guarantee("", value, "", _about(promise), guarantee=safe)

    def two_labels() -> Guarantee:
        found = leak.guess(None, rows=[position])
        return Guarantee("", float(advantage(found.mu)[0]), "", found.right.assumptions)

    def one_cell() -> Guarantee:
        found = leak.within(column, width, rows=[position])
        value, assumptions = float(np.asarray(found.gain())[0]), found.right.assumptions
        return Guarantee("", value, "", (*assumptions, _FREQUENCIES), guarantee=False)

    for name, adversary, bound in (
        ("advantage, this record", MEMBERSHIP, absence),
        ("advantage, any record", MEMBERSHIP, any_record),
        ("advantage, label of this record", ATTRIBUTE, two_labels),
        (f"gain, {leak.source.names[column]} to ± {width:.3g}", ATTRIBUTE, one_cell),
    ):
        line = _where_it_applies(name, adversary, bound)
        yield replace(line, name=name, adversary=adversary, unit="advantage")


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
    """Pad text with blanks to a width; combining marks do not count."""
    return text.ljust(width + sum(unicodedata.combining(c) > 0 for c in text))


def _number(value: float) -> str:
    if math.isinf(value):
        return "∞"
    return f"{value:.3g}" if value > 1e-30 else "0"  # that says nothing, whatever the units


def _root(value: float) -> str:
    return f"±{_number(math.sqrt(value))}"
