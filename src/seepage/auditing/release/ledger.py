"""The ledger of releases: what each told about every record, so that the next one counts them all.

Information adds up over independent releases, ``I = Σ I_k``, so a record's leakage over several is
at most ``√(Σ η_k²)``. The ledger keeps every record's η of every release (where a column identifies
people, that of all records of its person together) beside keyed digests of its values
(:mod:`seepage.auditing.release.recognition`). Its key lies in the same file, so whoever has the
file can try values out: it is as private as the table, readable by its owner only, and part of no
release.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.auditing.findings import ONE_PERSON
from seepage.auditing.release.recognition import CellDigests, People
from seepage.auditing.report.rendering import tell
from seepage.core.result import NOTICE
from seepage.errors import InputError
from seepage.support.files import write_text
from seepage.tables.names import listed

FORMAT = "seepage-ledger/2"
_AS_WRITTEN = "seepage-ledger/1"  # its releases know a record by how its values were written


class UnrecognisedRecordsWarning(UserWarning):
    """The ledger cannot tell whether the records of a table were in earlier releases."""


@dataclass(frozen=True, eq=False)
class PastRelease:
    """A release of the past: when and what, and η of every record."""

    about: Mapping[str, Any]
    eta: np.ndarray
    people: People

    def __len__(self) -> int:
        return len(self.eta)

    @property
    def of_people(self) -> bool:
        """Whether every η is that of all records of a person together."""
        return self.about.get("unit") == ONE_PERSON

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {**self.about, "eta": self.eta.tolist(), **self.people.as_json()}


@dataclass(frozen=True, eq=False)
class PastReleaseAsWritten:
    """One that an earlier version recorded: η by the digest of how a whole row was written."""

    about: Mapping[str, Any]
    eta: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.eta)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {**self.about, "eta": dict(self.eta)}


@dataclass(frozen=True, eq=False)
class Recognition:
    """What earlier releases told about the records of a table."""

    people: People
    spent: np.ndarray  # the sum of η² over the earlier releases in which a record, or person, was
    known: np.ndarray  # whether it was in any
    doubts: tuple[str, ...] = ()  # what the owner must know before anything is released


@dataclass(frozen=True, eq=False)
class ReleaseLedger:
    """What earlier releases told about records, each known by keyed digests of its values."""

    key: bytes = field(default_factory=partial(os.urandom, 32))
    releases: tuple[PastRelease | PastReleaseAsWritten, ...] = ()

    @classmethod
    def read(cls, path: Path) -> ReleaseLedger:
        """Return the ledger in a file; a new one if there is none."""
        if not path.exists():
            return cls()
        try:
            content = json.loads(path.read_text("utf-8"))
            if content["format"] not in (FORMAT, _AS_WRITTEN):
                raise ValueError("another format")
            return cls(
                bytes.fromhex(content["key"]), tuple(map(_past_release, content["releases"]))
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path.name!r} is not a ledger of releases, or it is damaged; restore it, or name "
                "another with --ledger."
            ) from error

    def write(self, path: Path) -> None:
        """Write the ledger, readable by its owner only."""
        content = {
            "format": FORMAT,
            "notice": NOTICE,
            "key": self.key.hex(),
            "releases": [release.as_json() for release in self.releases],
        }
        write_text(path, json.dumps(content, indent=1))

    @cached_property
    def _digests(self) -> CellDigests:
        return CellDigests(self.key)

    def recognise(self, raw: pa.Table, identity: str | None = None) -> Recognition:
        """Return which records of a table were in earlier releases, and what these told.

        Where a column identifies people, what was told about all records of each.
        """
        people = self._digests.people(raw, identity)
        spent, known = np.zeros(len(people)), np.zeros(len(people), dtype=bool)
        compared = apart = 0  # earlier records that could be compared, and those without a column
        same_columns = False
        vague: list[PastRelease] = []
        unsure = np.zeros(len(people), dtype=bool)  # not as an earlier version would have it
        old = any(isinstance(release, PastReleaseAsWritten) for release in self.releases)
        written = _as_written(self.key, raw, identity) if old else []
        for release in self.releases:
            if isinstance(release, PastReleaseAsWritten):
                eta = np.array([release.eta.get(row, np.nan) for row in written])
                unsure |= np.isnan(eta)
                if identity is not None:
                    eta = people.of_each_person(eta, add_up=True)
            else:
                found = release.people.earlier_eta(release.eta, people, of_people=release.of_people)
                if found is None:
                    if release.people.shared(people):
                        vague.append(release)
                    else:
                        apart += len(release)
                    continue
                eta = found
                compared += len(release)
                same_columns |= set(release.people.columns) == set(people.columns)
            known |= ~np.isnan(eta)
            spent += np.nan_to_num(eta) ** 2
        doubts = []
        if (compared or apart) and not known.any():
            doubts.append(tell("nobody", len(people), compared, apart, same_columns))
        if vague:
            columns = dict.fromkeys(n for r in vague for n in r.people.shared(people))
            doubts.append(tell("vague", len(vague), listed(list(columns))))
        if unsure.any():
            doubts.append(tell("unsure", int(np.sum(unsure)), len(people)))
        return Recognition(people, spent, known, tuple(doubts))


def _past_release(content: dict[str, Any]) -> PastRelease | PastReleaseAsWritten:
    """Return a release as the file has it, or raise ``ValueError``."""
    written = content["eta"]
    values = np.asarray(list(written.values()) if isinstance(written, dict) else written, float)
    if values.ndim != 1 or not np.all(values >= 0):  # nan is not
        raise ValueError("a leakage is no number")
    kept = ("eta", "identity", "columns", "whole")
    about = {name: value for name, value in content.items() if name not in kept}
    if isinstance(written, dict):
        return PastReleaseAsWritten(about, {str(row): float(eta) for row, eta in written.items()})
    return PastRelease(about, values, People.read(content, len(values)))


def _as_written(key: bytes, raw: pa.Table, identity: str | None) -> list[str]:
    """Return the digest of every row as the earlier format has it, of how Python writes the row."""
    names = sorted(raw.column_names) if identity is None else [identity]
    columns = [raw.column(name).to_pylist() for name in names]
    return [
        hmac.new(key, repr(row).encode(), hashlib.sha256).hexdigest()[:32]
        for row in zip(*columns, strict=True)
    ]
