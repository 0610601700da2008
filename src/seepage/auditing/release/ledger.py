"""The ledger of releases: what each told about every record, so that the next one counts them all.

Information adds up over independent releases, ``I = Σ I_k``, so a record's leakage over several is
at most ``√(Σ η_k²)``. The ledger keeps every record's η of every release under a keyed hash of the
record; it is as private as the records, readable by its owner only, and part of no release.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.core.result import NOTICE
from seepage.errors import InputError
from seepage.support.files import write_private
from seepage.tables.names import shown

FORMAT = "seepage-ledger/1"


@dataclass(frozen=True, eq=False)
class ReleaseLedger:
    """What earlier releases told about records, each known by a keyed hash."""

    key: bytes = field(default_factory=lambda: os.urandom(32))
    releases: tuple[dict[str, Any], ...] = ()  # what was released, and ``eta`` by record

    @classmethod
    def read(cls, path: Path) -> ReleaseLedger:
        """Return the ledger in a file; a new one if there is none."""
        if not path.exists():
            return cls()
        try:
            told = json.loads(path.read_text("utf-8"))
            if told["format"] != FORMAT:
                raise ValueError("another format")
            releases = tuple(told["releases"])
            for release in releases:
                np.asarray(list(release["eta"].values()), dtype=float)
            return cls(bytes.fromhex(told["key"]), releases)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path.name!r} is not a ledger of releases, or it is damaged; restore it, or name "
                "another with --ledger."
            ) from error

    def write(self, path: Path) -> None:
        """Write the ledger, readable by its owner only."""
        told = {
            "format": FORMAT,
            "notice": NOTICE,
            "key": self.key.hex(),
            "releases": list(self.releases),
        }
        text = json.dumps(told, indent=1).encode()
        write_private(path, lambda file: file.write(text))

    def records(self, raw: pa.Table, identity: str | None) -> list[str]:
        """Return what identifies every row: a column, or all it holds."""
        if identity is not None and identity not in raw.column_names:
            raise InputError(
                f"There is no column {shown(identity)} with which to identify records."
            )
        names = sorted(raw.column_names) if identity is None else [identity]
        columns = [raw.column(name).to_pylist() for name in names]
        return [
            hmac.new(self.key, repr(row).encode(), hashlib.sha256).hexdigest()[:32]
            for row in zip(*columns, strict=True)
        ]

    def spent(self, records: list[str]) -> np.ndarray:
        """Return the sum of η² of all earlier releases about each record."""
        total = np.zeros(len(records))
        for release in self.releases:
            known = release["eta"]
            total += np.asarray([known.get(record, 0.0) ** 2 for record in records])
        return total

    def with_release(
        self, about: dict[str, Any], records: list[str], eta: np.ndarray
    ) -> ReleaseLedger:
        """Return the ledger with one more release."""
        told: dict[str, float] = {}
        for record, value in zip(records, eta.tolist(), strict=True):
            told[record] = max(value, told.get(record, 0.0))
        return ReleaseLedger(self.key, (*self.releases, about | {"eta": told}))
