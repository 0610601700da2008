"""What the values of one column show: its kind, its gaps, and whether it can be used at all."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

ENOUGH = 10  # rows from which all-different values make an identifier
FEW = 20  # different texts up to which numbers among them are taken for codes

COMMAS = "numbers with commas in them"

_DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([ T]\d{1,2}:\d\d.*)?"
)
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_COMMAS = r"^[-+]?\d*(,\d+)+(\.\d*)?$"


@dataclass(frozen=True)
class Facts:
    """What one column holds."""

    # How many rows there are, how many of them have no value, how many different values
    rows: int
    missing: int
    distinct: int = 0
    kind: str = "categorical"  # ``numeric``, ``boolean`` or ``categorical``
    # Whether the type is an integer, and whether all values are whole numbers (or text)
    integer: bool = False
    whole: bool = True
    least: float = 0.0  # the smallest value of a column of numbers
    identifier: str = ""  # why the column is an identifier, to follow "its values", or nothing
    refused: str = ""  # what it holds that cannot be used (``dates``, …), or nothing
    # Of a column of text that is mostly numbers, the first row that is none; −1 where only that
    # there is one is known
    almost_number: int | None = None
    # Whether there may be more different values than ``distinct``, which is then a bound that was
    # passed
    capped: bool = False


def look_at(column: pa.ChunkedArray, *, as_codes: bool = False) -> Facts:
    """Return the facts of a column; ``as_codes`` takes numbers as codes of categories."""
    kind = column.type
    rows = len(column)
    if pa.types.is_null(kind):
        return Facts(rows, rows)
    if pa.types.is_temporal(kind):
        return Facts(rows, column.null_count, refused="dates")
    if pa.types.is_boolean(kind):
        kind_name = "categorical" if as_codes else "boolean"
        return Facts(rows, column.null_count, _distinct(column), kind_name)
    if is_number(kind):
        return _look_at_numbers(column, as_codes)
    if is_text(kind):
        return _look_at_text(column, as_codes)
    what = (
        "bytes" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "nested values"
    )
    return Facts(rows, column.null_count, refused=what)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds numbers."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def decoded(column: pa.Array) -> pa.Array:
    """Return a column with its values written out where it holds positions in a dictionary."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string_view(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column


def plain_numbers(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column of numbers with nothing in place of NaN, one zero, and decimals as floats.

    It may be one array or in chunks; columns of anything else come back as they are.
    Arrow tells -0.0 from 0.0 where it counts or looks up values; nobody who groups by them does.
    """
    if pa.types.is_decimal(column.type) or column.type == pa.float16():
        column = column.cast(pa.float64())
    if not pa.types.is_floating(column.type):
        return column
    column = pc.add(column, pa.scalar(0.0, column.type))  # -0.0 + 0.0 is 0.0
    gone = pc.is_nan(column)
    if not pc.any(gone).as_py():
        return column
    return pc.if_else(gone, pa.scalar(None, column.type), column)


def _distinct(column: pa.ChunkedArray) -> int:
    return int(pc.count_distinct(column, mode="only_valid").as_py())


def _look_at_numbers(column: pa.ChunkedArray, as_codes: bool) -> Facts:
    column = plain_numbers(column)
    rows, missing, distinct = len(column), column.null_count, _distinct(column)
    if distinct == 0:
        return Facts(rows, missing)
    span = pc.min_max(column).as_py()
    low, high = float(span["min"]), float(span["max"])
    if max(abs(low), abs(high)) == float("inf"):
        return Facts(rows, missing, distinct, "numeric", refused="infinite values")
    integer = pa.types.is_integer(column.type)
    whole = integer or bool(pc.all(pc.equal(column, pc.floor(column))).as_py())
    identifier = ""
    if whole and missing == 0 and rows >= ENOUGH and distinct == rows and high - low == rows - 1:
        identifier = "are all different and count up"
    kind = "boolean" if whole and {low, high} == {0.0, 1.0} and distinct == 2 else "numeric"
    return Facts(
        rows,
        missing,
        distinct,
        "categorical" if as_codes else kind,
        integer,
        whole,
        low,
        identifier,
    )


def _look_at_text(column: pa.ChunkedArray, as_codes: bool) -> Facts:
    rows, missing, distinct = len(column), column.null_count, _distinct(column)
    filled = rows - missing
    if as_codes or distinct == 0:
        return Facts(rows, missing, distinct)
    sample = column.drop_null()[:100].to_pylist()
    if looks_like_dates(sample):
        return Facts(rows, missing, distinct, refused="dates")
    if 2 * _matching(commas_in(column)) > filled:
        return Facts(rows, missing, distinct, refused=COMMAS)
    numbers = numbers_in(column)
    if distinct > FEW and filled > _matching(numbers) >= 0.9 * filled:
        first = int(pc.index(numbers, False).as_py())
        return Facts(rows, missing, distinct, almost_number=first)
    identifier = "are all different" if filled >= ENOUGH and distinct == filled else ""
    return Facts(rows, missing, distinct, identifier=identifier)


def looks_like_dates(texts: list[str]) -> bool:
    """Say whether all of some texts are dates."""
    return all(_DATE.fullmatch(text) for text in texts)


def numbers_in(texts: pa.Array) -> pa.Array:
    """Return which texts are numbers."""
    return pc.match_substring_regex(texts, _NUMBER)


def commas_in(texts: pa.Array) -> pa.Array:
    """Return which texts are numbers with commas in them."""
    return pc.match_substring_regex(texts, _COMMAS)


def _matching(flags: pa.ChunkedArray) -> int:
    return int(pc.sum(flags).as_py())
