"""Recognises a table's records in earlier tables by value, regardless of cell types.

A cell is stored as a keyed digest of its column's name and its value in canonical form. The values
45, 45.0 and the text "45" count as equal. So do a number and its rounding to single precision, and
texts that differ only in case and white space. Two records count as the same person if they agree
in every column that both tables have. Columns may therefore be reordered, added or dropped, and
their names may be written in capitals. In case of doubt, records count as the same person: a false
match costs noise, whereas a missed match breaks the guarantee. So a record without a full match is
also matched to records that differ from it in only one column. In that column, a missing value may
have been filled in, or a value corrected.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from seepage.auditing.intake.files import MISSING
from seepage.errors import InputError
from seepage.risks.privacy_loss import PrivacyLoss
from seepage.tables.columns import decoded
from seepage.tables.names import shown

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?")
_TRUTH = {"true": 1, "false": 0}


def canonical(value: Any, *, cased: bool = False) -> tuple[str, str]:
    """Return a value's canonical forms for comparison: in single precision, and exact.

    Case and white space in texts are ignored, except with ``cased``, for digests of an earlier
    version.

    The two forms differ for integers from 2²⁴ on, such as patient numbers, because single precision
    cannot represent all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.auditing.release.recognition import canonical
    >>> {canonical(value) for value in (45, 45.0, "45", np.float32(45), " 45.0 ")}
    {('45.0', '45.0')}
    >>> canonical(0.1) == canonical(np.float32(0.1))
    True
    >>> canonical(123456789)
    ('123456792.0', '123456789')
    """
    if isinstance(value, str):
        value = _of_text(value)
    if value is None or value != value:
        return "missing", "missing"
    if isinstance(value, Real | Decimal):  # truth values too
        return _of_number(value)
    if isinstance(value, date):
        day = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        day = day if day.tzinfo is None else day.astimezone(UTC).replace(tzinfo=None)
        text = f"date {day.isoformat()}"
    else:
        text = f"text {value if cased else _folded(str(value))}"
    return text, text


def _folded(text: str) -> str:
    """Return a text in lower case and in one Unicode normal form, with single spaces."""
    once = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", once).split())


def _of_text(text: str) -> Any:
    """Return the value that a text represents: a number, Boolean, date, missing value or text."""
    text = unicodedata.normalize("NFC", text.strip())
    if text in MISSING:
        return None
    if _NUMBER.fullmatch(text):
        return Decimal(text)
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    if _DATE.fullmatch(text):
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            return text
    return text


def _of_number(value: Any) -> tuple[str, str]:
    with np.errstate(over="ignore"):
        try:
            single = float(np.float32(float(value))) + 0.0  # −0 is 0
        except OverflowError:
            single = float("inf") if value > 0 else float("-inf")
    # From 2²⁴ on single precision does not hold every whole number.
    if abs(single) < 2**24 or not np.isfinite(single) or value != int(value):
        return repr(single), repr(single)
    return repr(single), str(int(value))


class Match(NamedTuple):
    """The privacy loss of one table's records, after matching them to another table's people."""

    loss: PrivacyLoss
    known: np.ndarray  # whether a record matches
    doubtful: np.ndarray  # whether it matches in all columns but one


@dataclass(frozen=True, eq=False)
class People:
    """The keyed digests of a table's cells by column, and the identifying column."""

    columns: Mapping[str, np.ndarray]  # of values in single precision
    whole: Mapping[str, np.ndarray]  # of exact values, where single precision falls short of them
    identity: str | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def as_json(self) -> dict[str, Any]:
        """Return the digests as plain JSON values."""
        return {
            "identity": self.identity,
            **{
                kind: {
                    name: base64.b64encode(digests.astype("<u8").tobytes()).decode()
                    for name, digests in made.items()
                }
                for kind, made in (("columns", self.columns), ("whole", self.whole))
            },
        }

    @classmethod
    def read(cls, content: Mapping[str, Any], rows: int) -> People:
        """Return the object from the JSON of :meth:`as_json`; raise ``ValueError`` if invalid."""
        columns, whole = (
            {
                str(name): np.frombuffer(base64.b64decode(text, validate=True), "<u8").astype("u8")
                for name, text in content[key].items()
            }
            for key in ("columns", "whole")
        )
        if not columns or any(len(d) != rows for d in (*columns.values(), *whole.values())):
            raise ValueError("the digests do not have one entry per row")
        identity = content["identity"]
        if identity is not None and identity not in columns:
            raise ValueError("the identifying column is missing")
        return cls(columns, whole, identity)

    def names_of(self, names: Sequence[str]) -> list[str]:
        """Return column names as they are spelt in this table; case and white space are ignored.

        If several names differ only in case or white space, they are returned unchanged.
        """
        here, folded = {_folded(name): name for name in self.columns}, list(map(_folded, names))
        alone = [folded.count(text) == 1 for text in folded]
        return [
            here.get(text, name) if single and name not in self.columns else name
            for name, text, single in zip(names, folded, alone, strict=True)
        ]

    def shared(self, others: People) -> list[str]:
        """Return the columns that both tables have."""
        return [name for name in self.columns if name in others.columns]

    def same_rows(self, others: People) -> bool:
        """Return whether both tables have the same rows and columns, in the same row order."""
        return self.columns.keys() == others.columns.keys() and all(
            np.array_equal(digests, others.columns[name]) for name, digests in self.columns.items()
        )

    def earlier_loss(self, loss: PrivacyLoss, others: People, *, of_people: bool) -> Match | None:
        """Return the losses of the other table's records, matched to this table, and the matches.

        ``loss`` has one entry per record of this table; with ``of_people``, an entry is for all
        records of the record's person together. Return ``None`` if the tables cannot be compared.
        If a column identifies people in either table and both tables have it, that column decides.
        Of two such columns, the one with the larger loss is used. Otherwise all shared columns must
        agree. If the other table lacks columns of this one, at least half of this table's records
        must be unique in the shared columns. The probability that a stranger from the same
        population matches nobody is then about one half or more. If everybody matches somebody, for
        example by sex alone, a match is uninformative. Records without a match are compared again
        with each column left out in turn, under the same condition. A match found in this way
        counts, but is marked as doubtful.
        """
        names = self.shared(others)
        decisive = [[n] for n in {self.identity: 0, others.identity: 0} if n in names]
        identified = bool(decisive)
        if not decisive:
            dropped = len(names) < len(self.columns)
            if not names or (dropped and not self._tells_apart(names)):
                return None
            decisive = [names]
        told, known = PrivacyLoss.of(len(others)), np.zeros(len(others), dtype=bool)
        for by in decisive:
            found, agrees = self._loss_by(by, loss, others, of_people, identified)
            told, known = told.or_larger(found), known | agrees
        doubtful = np.zeros(len(others), dtype=bool)
        if identified or known.all() or len(names) == 1:
            return Match(told, known, doubtful)
        mine, theirs = self._rows(names, others), others._rows(names, self)[~known]
        for name in names:
            rest = [other for other in names if other != name]
            wanted = theirs - others._column(name, self)[~known]
            # Mostly nobody: the whole table need not be sorted for that.
            near = np.flatnonzero(np.isin(mine - self._column(name, others), wanted))
            if len(near) and self._tells_apart(rest):
                some = self._at(near)
                found, agrees = some._loss_by(rest, loss.at(near), others, of_people, identified)
                told = told.or_larger(found.where(agrees & ~known))
                doubtful |= agrees & ~known
        return Match(told, known | doubtful, doubtful)

    def _at(self, rows: np.ndarray) -> People:
        columns, whole = (
            {name: digests[rows] for name, digests in made.items()}
            for made in (self.columns, self.whole)
        )
        return People(columns, whole, self.identity)

    def _loss_by(
        self,
        by: Sequence[str],
        loss: PrivacyLoss,
        others: People,
        of_people: bool,
        identified: bool,
    ) -> tuple[PrivacyLoss, np.ndarray]:
        """Return the loss of the other table's records, matched by some columns, and the matches.

        A record of the other table may be any of its matches in this table, so it gets their
        largest loss. A *person* in the other table gets the combined loss of all matches of their
        records, each counted once. If the columns do not identify people, each of the person's
        records counts as the most exposed of its matches.
        """
        values, place = np.unique(self._rows(by, others), return_inverse=True)
        rows = others._rows(by, self)
        where = np.minimum(np.searchsorted(values, rows), len(values) - 1)
        agrees = values[where] == rows
        if others.identity is None:
            return loss.largest(place, len(values)).at(where).where(agrees), agrees
        unit = self.owner if of_people else np.arange(len(self))
        if identified or not of_people:
            once = _firsts(place, unit)
            parts, part = loss.at(once).together(place[once], len(values)), where
        else:
            worst = np.lexsort((-loss.eta, place))  # of those who agree, the most exposed first
            likely = unit[worst[np.unique(place[worst], return_index=True)[1]]]
            parts, part = loss.at(np.unique(unit, return_index=True)[1]), likely[where]
        owner, here = others.owner, np.flatnonzero(agrees)
        once = here[_firsts(owner[here], part[here])]
        people = parts.at(part[once]).together(owner[once], len(others))
        known = np.bincount(owner[once], minlength=len(others)) > 0
        return people.at(owner), known[owner]

    @property
    def owner(self) -> np.ndarray:
        """The number of each record's person, or of the record if no column identifies people."""
        if self.identity is None:
            return np.arange(len(self))
        rows = self._rows([self.identity], self)
        return np.unique(rows, return_inverse=True)[1].reshape(-1)

    def _rows(self, names: Sequence[str], others: People) -> np.ndarray:
        """Return a digest of each record's values in the given columns, in any column order.

        Digests are pseudorandom and differ by column, so their sum modulo 2⁶⁴ serves as the digest
        of a row.
        """
        total = np.zeros(len(self), dtype=np.uint64)
        for name in names:
            total += self._column(name, others)
        return total

    def _column(self, name: str, others: People) -> np.ndarray:
        """Return the digests of a column, exact if both tables have exact digests."""
        exact = name in self.whole and name in others.whole
        return (self.whole if exact else self.columns)[name]

    def _tells_apart(self, names: Sequence[str]) -> bool:
        """Return whether at least half of the distinct records are unique in these columns."""
        _, once = np.unique(self._rows(list(self.columns), self), return_index=True)
        _, counts = np.unique(self._rows(names, self)[once], return_counts=True)
        return bool(2 * np.sum(counts == 1) >= len(once))


@dataclass(frozen=True, eq=False)
class CellDigests:
    """Computes and caches keyed digests of cells."""

    key: bytes
    cased: bool = False  # as an earlier version made them
    _made: dict[Any, tuple[int, int]] = field(default_factory=dict, repr=False)

    def people(self, raw: pa.Table, identity: str | None = None) -> People:
        """Return the digests of a table."""
        if identity is not None and identity not in raw.column_names:
            raise InputError(
                f"There is no column {shown(identity)} to identify people; name a column of the "
                "table."
            )
        columns, whole = {}, {}
        for name in raw.column_names:
            both = self._of_column(name, decoded(raw.column(name)))
            columns[name] = both[:, 0].copy()
            single = raw.schema.field(name).type in (pa.float16(), pa.float32())
            if not single and np.any(both[:, 0] != both[:, 1]):
                whole[name] = both[:, 1].copy()
        return People(columns, whole, identity)

    def _of_column(self, name: str, column: pa.ChunkedArray) -> np.ndarray:
        """Return both digests of every cell of a column, (n, 2)."""
        levels, places = column, None
        with suppress(pa.ArrowNotImplementedError):  # as of nested values, which are no levels
            coded = column.combine_chunks().dictionary_encode("encode")
            levels, places = coded.dictionary, np.asarray(coded.indices)
        cells = [self._of_cell(name, value) for value in levels.to_pylist()]
        both = np.array(cells, dtype=np.uint64).reshape(-1, 2)
        return both if places is None else both[places]

    def _of_cell(self, name: str, value: Any) -> tuple[int, int]:
        """Return the digests of a value in single precision, and of the exact value."""
        # A list is no key of a dictionary, and a nan would be kept again every time.
        kept = None if isinstance(value, list | dict) or value != value else (name, value)
        if kept in self._made:
            return self._made[kept]
        digests = []
        for text in canonical(value, cased=self.cased):
            # The length keeps names and values apart.
            content = f"{len(name)} {name} {text}".encode("utf-8", "surrogatepass")
            made = hashlib.blake2b(content, key=self.key, digest_size=8)  # bytes of a number
            digests.append(int.from_bytes(made.digest(), "little"))
        if kept is not None:
            self._made[kept] = (digests[0], digests[1])
        return digests[0], digests[1]


def _firsts(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the position of the first occurrence of each distinct pair of two numbers."""
    pairs = first.astype(np.int64) * (int(second.max(initial=0)) + 1) + second
    return np.asarray(np.unique(pairs, return_index=True)[1])
