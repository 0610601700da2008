"""The ledger of releases, which stores each record's privacy loss in every release.

Each entry contains every record's privacy loss (η, μ, ε and δ), which composes over independent
releases (:mod:`seepage.risks.privacy_loss`). If a column identifies people, the loss is that of all
records of the record's person together. The loss is stored with keyed digests of the record's
values (:mod:`seepage.auditing.release.recognition`). The key is in the same file, so anyone with
the file can test guessed values. The ledger is therefore as private as the table, is readable only
by its owner, and is never part of a release.

An entry is *prepared* when its folder is complete on disk but not yet in its final place. It is
*committed* once the folder has been moved there, and *voided* if this will never happen. Prepared
entries count. If a killed process leaves an entry unsettled, the next process that opens the ledger
settles it. The entry is voided if the folder is still where it was written. Otherwise it is
committed, since the folder may have been copied.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa

from seepage.auditing.findings import ONE_PERSON, ONE_ROW
from seepage.auditing.release.recognition import CellDigests, Match, People
from seepage.auditing.report.rendering import tell
from seepage.core.result import NOTICE, SAME
from seepage.errors import InputError
from seepage.risks.privacy_loss import PrivacyLoss
from seepage.support.files import MANIFEST, check_path, only_writer, write_text
from seepage.tables.names import listed, shown
from seepage.tables.result_table import Listing
from seepage.tables.source import build_frame

FORMAT = "seepage-ledger/3"
_WITHOUT_EPSILON = "seepage-ledger/2"  # its releases have η alone, and digests of cased texts
_CASED = "cased"
_AS_WRITTEN = "seepage-ledger/1"  # and know a record by how its values were written
NAME = "seepage-ledger.json"
PREPARED, COMMITTED, VOIDED = "prepared", "committed", "voided"
_LOSSES = ("eta", "mu", "epsilon", "delta")


class UnrecognisedRecordsWarning(UserWarning):
    """Warns that the ledger cannot determine whether a table's records were in earlier releases."""


class BudgetSpentError(InputError):
    """Earlier releases in the ledger leave too little of the privacy budget for this release."""


@dataclass(frozen=True)
class GuessLoss:
    """Privacy loss of a release with respect to the values of classes and categories.

    An attacker guesses among a record's possible values, so the record is *replaced*, not left out.
    ``distance`` maps each column to the largest distance μ between the releases for two values of a
    record. The distance is infinite if unknown, and zero for a column that the release does not
    use. For the same replacement, ε and δ apply to the figures published with the noisy numbers.
    Over independent releases, squared distances, ε and δ each add up.
    """

    distance: Mapping[str, float]
    epsilon: float = 0.0
    delta: float = 0.0

    @classmethod
    def of(cls, entry: PastRelease | PastReleaseAsWritten, column: str) -> GuessLoss:
        """Return an entry's privacy loss for guesses of a column.

        An entry without columns may be a training run, with ε and δ for removal. A replacement then
        counts as a removal and an addition, with privacy loss ``2ε`` and ``δ(1 + e^ε)``. A distance
        μ for removal gives no bound for replacement.
        """
        if (told := entry.about.get("guesses")) is not None:
            mu = told["distance"].get(column, 0.0)
            return cls({column: _unpacked(mu)}, _unpacked(told["epsilon"]), float(told["delta"]))
        most = {name: float(np.max(v, initial=0.0)) for name, v in entry.loss.columns.items()}
        with np.errstate(over="ignore"):
            delta = most["delta"] and min(most["delta"] * (1 + np.exp(most["epsilon"])), 1.0)
        apart = math.inf if most["mu"] else 0.0
        return cls({column: apart}, 2 * most["epsilon"], float(delta))

    def as_json(self) -> dict[str, Any]:
        """Return the privacy loss as plain JSON values."""
        names, values = list(self.distance), np.array(list(self.distance.values()), dtype=float)
        distance = dict(zip(names, _packed(values), strict=True))
        epsilon = self.epsilon if math.isfinite(self.epsilon) else None
        return {"distance": distance, "epsilon": epsilon, "delta": self.delta}


@dataclass(frozen=True, eq=False)
class PastRelease:
    """An earlier release: its time, description, and each record's privacy loss."""

    about: Mapping[str, Any]
    loss: PrivacyLoss
    people: People

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def of_people(self) -> bool:
        """Whether each privacy loss covers all records of a person together."""
        return self.about.get("unit") == ONE_PERSON

    def as_json(self) -> dict[str, Any]:
        """Return the entry as plain JSON values."""
        columns = self.loss.columns
        losses = {name: _packed(columns[name]) for name in ("mu", "epsilon", "delta", "eta")}
        for name in ("mu", "epsilon", "delta"):  # one number where all are equal, as ε mostly is
            if np.unique(columns[name]).size == 1:
                losses[name] = losses[name][0]
        return {**self.about, **losses, **self.people.as_json()}


@dataclass(frozen=True, eq=False)
class PastReleaseAsWritten:
    """An entry in an earlier format, which stores η by the digest of a whole row's text."""

    about: Mapping[str, Any]
    eta: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.eta)

    @property
    def loss(self) -> PrivacyLoss:
        """Each record's privacy loss, of which only η is known."""
        eta = list(self.eta.values())
        return PrivacyLoss.of(len(self), eta=eta, mu=np.inf, epsilon=np.inf)

    def as_json(self) -> dict[str, Any]:
        """Return the entry as plain JSON values."""
        return {**self.about, "eta": dict(self.eta)}

    def earlier_loss(self, written: Sequence[str], people: People) -> Match:
        """Return each record's or person's privacy loss, and which records this entry contains."""
        found = [self.eta.get(row) for row in written]
        known = np.array([eta is not None for eta in found], dtype=bool)
        every = PrivacyLoss.of(
            len(written), eta=[eta or 0.0 for eta in found], mu=np.inf, epsilon=np.inf
        ).where(known)
        owner = people.owner
        whole = every.together(owner, len(written)).at(owner)
        anybody = np.asarray((np.bincount(owner, known, len(written)) > 0)[owner])
        return Match(whole, anybody, np.zeros(len(written), dtype=bool))


@dataclass(frozen=True, eq=False)
class Recognition:
    """The privacy loss of earlier releases for the records of a table."""

    people: People
    loss: PrivacyLoss  # over the earlier releases that contain a record, or its person
    known: np.ndarray  # whether any earlier release contains the record or its person
    doubts: tuple[str, ...] = ()  # warnings to the owner before a release
    entries: tuple[PastRelease | PastReleaseAsWritten, ...] = ()  # those with any of the records

    @property
    def spent(self) -> np.ndarray:
        """The sum of η² over the earlier releases."""
        return np.asarray(self.loss.eta**2)


@dataclass(frozen=True, eq=False)
class ReleaseLedger:
    """Each record's privacy loss in earlier releases, by keyed digests of the record's values."""

    key: bytes = field(default_factory=partial(os.urandom, 32))
    entries: tuple[PastRelease | PastReleaseAsWritten, ...] = ()

    @property
    def releases(self) -> tuple[PastRelease | PastReleaseAsWritten, ...]:
        """All entries that are not voided; only these count."""
        return tuple(entry for entry in self.entries if state_of(entry) != VOIDED)

    @classmethod
    def read(cls, path: Path) -> ReleaseLedger:
        """Return the ledger in a file, or a new one if the file does not exist."""
        if not path.exists():
            return cls()
        try:
            content = json.loads(path.read_text("utf-8"))
            if content["format"] not in (FORMAT, _WITHOUT_EPSILON, _AS_WRITTEN):
                raise ValueError("another format")
            read = partial(_past_release, cased=content["format"] == _WITHOUT_EPSILON)
            return cls(bytes.fromhex(content["key"]), tuple(map(read, content["releases"])))
        except (
            *(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError),
        ) as error:
            raise InputError(
                f"{shown(path.name)} is not a ledger of releases, or is damaged; restore it from a "
                "copy, or choose another file with --ledger."
            ) from error

    def write(self, path: Path) -> None:
        """Write the ledger to a file that only its owner can read."""
        content = {
            "format": FORMAT,
            "notice": NOTICE,
            "key": self.key.hex(),
            "releases": [entry.as_json() for entry in self.entries],
        }
        try:
            write_text(path, json.dumps(content, indent=1, allow_nan=False))
        except OSError as error:
            raise InputError(
                f"The ledger {shown(path.name)} cannot be written: {error.strerror or error}; free "
                "disk space, or choose another file with --ledger."
            ) from error

    @cached_property
    def digests(self) -> CellDigests:
        """Makes the digests of a table's values under this ledger's key."""
        return CellDigests(self.key)

    def recognise(self, raw: pa.Table, identity: str | None = None) -> Recognition:
        """Return which records of a table were in earlier releases, and their privacy loss.

        If a column identifies people, the loss is that of all records of each person.
        """
        cased, written = None, None
        own = self.digests.people(raw, identity)

        def spelt(release: PastRelease) -> People:
            """Return the table's digests under the column names of an entry."""
            names = release.people.names_of(raw.column_names)
            if names == raw.column_names:
                return own
            name = dict(zip(raw.column_names, names, strict=True))
            return self.digests.people(raw.rename_columns(names), identity and name[identity])

        if any(isinstance(release, PastReleaseAsWritten) for release in self.releases):
            written = _as_written(self.key, raw, identity)
        if any(release.about.get("text") == _CASED for release in self.releases):
            cased = CellDigests(self.key, cased=True).people(raw, identity)
        return self.total(own, cased, written, spelt)

    def total(
        self,
        people: People,
        cased: People | None = None,
        written: Sequence[str] | None = None,
        spelt: Callable[[PastRelease], People] | None = None,
    ) -> Recognition:
        """Return the result of :meth:`recognise` for people whose digests are already computed.

        ``cased`` and ``written`` are the digests of the same people in earlier formats; without
        them, entries in those formats are skipped. ``spelt`` takes an entry and returns the digests
        under that entry's column names.
        """
        loss, known = PrivacyLoss.of(len(people)), np.zeros(len(people), dtype=bool)
        compared = apart = 0  # earlier records that could be compared, and those without a column
        same_columns = False
        vague: list[list[str]] = []  # of earlier releases, the columns they share with the table
        unsure = np.zeros(len(people), dtype=bool)  # not as an earlier version would have it
        doubtful = np.zeros(len(people), dtype=bool)
        entries = []
        for release in self.releases:
            if isinstance(release, PastReleaseAsWritten):
                if written is None:
                    continue
                found = release.earlier_loss(written, people)
                unsure |= ~found.known
            else:
                others: People | None = people if spelt is None else spelt(release)
                if release.about.get("text") == _CASED:
                    others = cased
                if others is None:
                    continue
                match = release.people.earlier_loss(
                    release.loss, others, of_people=release.of_people
                )
                if match is None:
                    if shared := release.people.shared(others):
                        vague.append(shared)
                    else:
                        apart += len(release)
                    continue
                found = match
                compared += len(release)
                same_columns |= set(release.people.columns) == set(others.columns)
            if found.known.any():
                entries.append(release)
            known |= found.known
            doubtful |= found.doubtful
            loss += found.loss
        doubts = []
        if (compared or apart) and not known.any():
            doubts.append(tell("nobody", len(people), compared, apart, same_columns))
        if vague:
            columns = dict.fromkeys(name for shared in vague for name in shared)
            doubts.append(tell("vague", len(vague), listed(list(columns))))
        if doubtful.any():
            doubts.append(tell("doubtful", int(np.sum(doubtful)), len(people)))
        if unsure.any():
            doubts.append(tell("unsure", int(np.sum(unsure)), len(people)))
        return Recognition(people, loss, known, tuple(doubts), tuple(entries))

    @property
    def of_one_form(self) -> bool:
        """Whether all counted entries have the same form, so that they can be compared."""
        return not any(
            isinstance(entry, PastReleaseAsWritten) or entry.about.get("text") == _CASED
            for entry in self.releases
        )

    def doubts_about(self, folder: Path) -> tuple[str, ...]:
        """Return a warning if a folder contains a release that is not in the ledger."""
        folders = [entry.about.get("folder") for entry in self.entries]
        if None in folders:  # of an earlier version, or without a folder: it may be one of those
            return ()
        digest, listing = _digest(folder), [where["manifest"] for where in folders if where]
        return () if digest in (None, *listing) else (tell("unlisted", shown(folder.name)),)

    def split_at(self, folder: Path) -> tuple[ReleaseLedger, ReleaseLedger]:
        """Return the entries before a folder's release, and its own entry, as two ledgers."""
        digest = _digest(folder)
        for k, entry in enumerate(self.entries):
            where = entry.about.get("folder")
            listed = where is not None and digest is not None and where["manifest"] == digest
            if listed and state_of(entry) != VOIDED:
                return replace(self, entries=self.entries[:k]), replace(self, entries=(entry,))
        raise InputError(
            f"The ledger has no entry for the release in {shown(folder.name)}; give the ledger of "
            "that release with --ledger."
        )

    def only(self, number: int) -> ReleaseLedger:
        """Return the ledger with only one entry; entries are numbered from 1."""
        if not 1 <= number <= len(self.entries):
            raise InputError(
                f"The ledger has no entry {number}; `seepage ledger show` lists all entries."
            )
        return replace(self, entries=self.entries[number - 1 : number])

    def with_entry(self, number: int, **about: Any) -> ReleaseLedger:
        """Return the ledger with one entry changed; entries are numbered from 1."""
        entries = list(self.entries)
        entry = entries[number - 1]
        entries[number - 1] = replace(entry, about={**entry.about, **about})
        return replace(self, entries=tuple(entries))


def state_of(entry: PastRelease | PastReleaseAsWritten) -> str:
    """Return whether an entry is prepared, committed or voided."""
    return str(entry.about.get("state", COMMITTED))  # earlier versions had no others


def _past_release(content: dict[str, Any], cased: bool) -> PastRelease | PastReleaseAsWritten:
    """Return a release from its JSON form; raise ``ValueError`` if it is invalid."""
    written = content["eta"]
    kept = (*_LOSSES, "identity", "columns", "whole")
    about = {name: value for name, value in content.items() if name not in kept}
    if cased:
        about["text"] = _CASED
    if about.get("state", COMMITTED) not in (PREPARED, COMMITTED, VOIDED):
        raise ValueError("an entry has an unknown state")
    if about.get("state") == PREPARED:
        _ = [Path(about["folder"][name]) for name in ("path", "written", "manifest")]
    if (told := about.get("guesses")) is not None:
        numbers = [*told["distance"].values(), told["epsilon"], told["delta"]]
        if not all(_unpacked(value) >= 0 for value in numbers) or not told["delta"] <= 1:
            raise ValueError("the privacy loss for guessed values is not a number")
    for told in about.get("replaced", {}).values():
        if not float(told["epsilon"]) >= 0 or not 0 <= float(told["delta"]) <= 1:
            raise ValueError("the privacy loss for replacements is not a number")
    if isinstance(written, dict):
        if not all(eta >= 0 for eta in written.values()):
            raise ValueError("a leakage value is not a number")
        return PastReleaseAsWritten(about, {str(row): float(eta) for row, eta in written.items()})
    # What a version did not write down, nobody knows.
    losses = {name: _unpacked(content.get(name)) for name in ("eta", "mu", "epsilon")}
    loss = PrivacyLoss.of(len(written), **losses, delta=_unpacked(content.get("delta", 0.0)))
    return PastRelease(about, loss, People.read(content, len(loss)))


def _packed(values: np.ndarray) -> Any:
    """Return numbers as JSON values, with unknown ones as ``None``."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _unpacked(content: Any) -> Any:
    if isinstance(content, list):
        return [math.inf if value is None else float(value) for value in content]
    return math.inf if content is None else float(content)


def _as_written(key: bytes, raw: pa.Table, identity: str | None) -> list[str]:
    """Return the digest of every row in the earlier format, from the row's text in Python."""
    names = sorted(raw.column_names) if identity is None else [identity]
    columns = [raw.column(name).to_pylist() for name in names]
    return [
        hmac.new(key, repr(row).encode(), hashlib.sha256).hexdigest()[:32]
        for row in zip(*columns, strict=True)
    ]


def find_ledger() -> Path:
    """Return the path of the project's ledger, which covers all folders below its own.

    If ``SEEPAGE_LEDGER`` is set, it names the file. Otherwise the ledger is the nearest
    ``seepage-ledger.json`` in the current folder and its parents, up to the home folder or a folder
    with ``.git``. If there is none, the ledger is a new file in the current folder. Another user's
    ledger is not used.
    """
    if named := os.environ.get("SEEPAGE_LEDGER"):
        return Path(named)
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / NAME
        if path.is_file() and (not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()):
            return Path(NAME) if folder == here else path
        if folder == Path.home() or (folder / ".git").exists():
            break
    return Path(NAME)


class OpenLedger:
    """A locked ledger; changes are written to disk immediately."""

    def __init__(self, path: Path) -> None:
        self.path, self.ledger = path, ReleaseLedger.read(path)
        settled = self.ledger
        for number, entry in enumerate(self.ledger.entries, 1):
            if state_of(entry) == PREPARED:
                settled = settled.with_entry(number, **_settled(entry.about["folder"]))
        if settled is not self.ledger:
            self._keep(settled)

    def add(self, entry: PastRelease) -> int:
        """Add an entry, and return its number."""
        self._keep(replace(self.ledger, entries=(*self.ledger.entries, entry)))
        return len(self.ledger.entries)

    @contextmanager
    def prepared(self, entry: PastRelease, folder: Path) -> Iterator[Any]:
        """Yield a function to call with a complete folder before it is moved into place.

        Calling it adds a prepared entry, which is committed at the end of the block. If the block
        fails, the entry is committed if the folder is already in place, and voided otherwise.
        """
        where: dict[str, str | None] = {"path": str(folder.resolve())}

        def prepare(written: Path) -> None:
            where.update(written=str(written.resolve()), manifest=_digest(written))
            self.add(replace(entry, about={**entry.about, "state": PREPARED, "folder": where}))

        try:
            yield prepare
        except BaseException as error:
            # Nobody else was here: what is not in its place never was.
            there = "manifest" in where and _lies_in(Path(str(where["path"])), where)
            reason = f"The folder could not be moved into place ({type(error).__name__})."
            voided = {"state": VOIDED, "reason": reason}
            self._close(where, {"state": COMMITTED} if there else voided)
            raise
        self._close(where, {"state": COMMITTED})

    def _close(self, where: Mapping[str, Any], state: Mapping[str, str]) -> None:
        """Settle the entry of a folder, if an entry was written."""
        # An interruption may have come after the file was replaced and before that was known here.
        with suppress(InputError):  # left prepared it counts, and is settled the next time
            self.ledger = ReleaseLedger.read(self.path)
            for number, entry in enumerate(self.ledger.entries, 1):
                if state_of(entry) == PREPARED and entry.about["folder"] == where:
                    self._keep(self.ledger.with_entry(number, **state))

    def void(self, number: int, reason: str) -> None:
        """Void an entry whose release was never published."""
        (entry,) = self.ledger.only(number).entries
        if not reason.strip():
            raise InputError("Use --reason to state why the entry is voided.")
        about = entry.about
        where = about.get("folder")
        if where is not None and _lies_in(Path(where["path"]), where):
            raise InputError(
                f"Entry {number} is the release in {shown(Path(where['path']).name)}, which still "
                "exists; void a release only if nobody has received it, after deleting its folder."
            )
        if about.get("state") == VOIDED:
            raise InputError(f"Entry {number} is already voided; see `seepage ledger show`.")
        when = datetime.now(UTC).isoformat(timespec="seconds")
        self._keep(self.ledger.with_entry(number, state=VOIDED, reason=reason, voided=when))

    def _keep(self, ledger: ReleaseLedger) -> None:
        ledger.write(self.path)
        self.ledger = ledger


@contextmanager
def open_ledger(path: Path) -> Iterator[OpenLedger]:
    """Open a ledger under a lock, and settle entries left by killed processes.

    Links are followed, since replacing the link by a new file would create a second ledger.
    """
    check_path(path)
    path = path.resolve()
    with ExitStack() as stack:
        try:
            stack.enter_context(only_writer(path))
        except OSError as error:
            raise InputError(
                f"The ledger {shown(path.name)} cannot be opened: {error.strerror or error}; "
                "choose another file with --ledger."
            ) from error
        yield OpenLedger(path)


def _settled(where: Mapping[str, Any]) -> dict[str, str]:
    """Return the state of a prepared entry, determined from the location of its folder."""
    if _lies_in(Path(where["path"]), where):
        return {"state": COMMITTED}
    if _digest(Path(where["written"])) == where["manifest"]:
        reason = "The process was killed before the folder was moved into place."
        return {"state": VOIDED, "reason": reason}
    reason = "The folder was moved or deleted; the release may have been copied before."
    return {"state": COMMITTED, "reason": reason}


def _lies_in(folder: Path, where: Mapping[str, Any]) -> bool:
    """Return whether a folder, or a folder directly in it, is the release of an entry."""
    written = Path(where["written"])
    inside = folder.iterdir() if folder.is_dir() else ()
    places = (folder, *(part for part in inside if part.is_dir() and part != written))
    return any(_digest(place) == where["manifest"] for place in places)


def _digest(folder: Path) -> str | None:
    """Return the SHA-256 of a folder's manifest, which lists the digests of all other files."""
    try:
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return None


class LedgerFile(Listing):
    """The ledger of a project, for releases made without ``seepage release``.

    Record the privacy loss of a training run, or of a predictor's answers, for the people in a
    table **before** publishing. ``seepage release`` then counts this loss, and :meth:`record`
    counts earlier releases.

    Parameters
    ----------
    path
        The ledger file. The default is the file that ``SEEPAGE_LEDGER`` names, otherwise the
        nearest ``seepage-ledger.json`` in the current folder or its parents, otherwise a new file
        in the current folder.

    Examples
    --------
    >>> import tempfile, pathlib, seepage as sp
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> ledger = sp.LedgerFile(folder / "seepage-ledger.json")
    >>> people = {"name": ["Ada", "Ben", "Cy"], "age": [36, 45, 52]}
    >>> ledger.record(people, "training run", eta=0.5, epsilon=1.0, delta=1e-6)
    1
    >>> ledger.record({"name": ["Ben", "Eve"], "age": [45.0, 61.0]}, "answers", epsilon=0.1)
    2
    >>> ledger.spent(people).epsilon.tolist()
    [1.0, 1.1, 1.0]
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = find_ledger() if path is None else Path(path)

    def spent(
        self, table: Any, person: str | None = None, *, entry: int | None = None
    ) -> PrivacyLoss:
        """Return the total privacy loss over all entries, for each row of a table.

        With ``person``, the loss of a row is that of the row's person. With ``entry``, return the
        loss in the entry with this number only, which is zero if the entry was voided.
        """
        with open_ledger(self.path) as held:
            ledger = held.ledger if entry is None else held.ledger.only(entry)
            return ledger.recognise(_arrow(table), person).loss

    def record(
        self,
        table: Any,
        what: str,
        *,
        person: str | None = None,
        unit: str = ONE_ROW,
        eta: Any = 0.0,
        mu: Any = 0.0,
        epsilon: Any = 0.0,
        delta: Any = 0.0,
        target_eta: float | None = None,
        max_membership: float | None = None,
    ) -> int:
        """Add an entry, and return its number; raise an error if anyone would exceed a limit.

        Parameters
        ----------
        table
            The people's table: a data frame from any library, or a mapping of columns.
        what
            A description, such as ``"training run"``.
        person
            The column that identifies people.
        unit
            ``"row"`` if the numbers apply to single rows, ``"person"`` if they apply to all rows of
            a person together.
        eta, mu, epsilon, delta
            The privacy loss: one number, or one per row; use ``np.inf`` if it is unknown.
        target_eta, max_membership
            The limits on η and on the success rate of membership inference, over all entries
            together, as in ``seepage release``.
        """
        raw = _arrow(table)
        if unit not in (ONE_ROW, ONE_PERSON):
            raise InputError(f"unit must be 'row' or 'person', not {shown(unit)}.")
        if unit == ONE_PERSON and person is None:
            raise InputError("unit='person' requires person=, the column that identifies people.")
        loss = PrivacyLoss.of(raw.num_rows, eta=eta, mu=mu, epsilon=epsilon, delta=delta)
        with open_ledger(self.path) as held:
            earlier = held.ledger.recognise(raw, person)
            owner = earlier.people.owner
            each = loss.largest if unit == ONE_PERSON else loss.together
            total = earlier.loss + each(owner, raw.num_rows).at(owner)
            for name, values, limit in (
                ("η", total.eta, target_eta),
                ("the success rate of membership inference", total.membership(), max_membership),
            ):
                if limit is not None and np.max(values) > limit * (1 + SAME):
                    raise InputError(
                        f"Over all entries of the ledger, {name} would be {np.max(values):.3g} for "
                        f"row {int(np.argmax(values))}, above the limit of {limit:g}. Nothing was "
                        "recorded; add noise, or leave that row out."
                    )
            about = {
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "what": what,
                "unit": unit,
                "state": COMMITTED,
            }
            return held.add(PastRelease(about, loss, earlier.people))

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with the description and largest losses of each entry."""
        with open_ledger(self.path) as held:
            entries = held.ledger.entries
        columns: dict[str, list[Any]] = {
            "entry": list(range(1, len(entries) + 1)),
            "what": [str(one.about.get("what", "release")) for one in entries],
            "when": [str(one.about.get("when", "")) for one in entries],
            "state": [state_of(one) for one in entries],
            "rows": [len(one) for one in entries],
        }
        for name in ("eta", "mu", "epsilon", "delta"):
            each = (one.loss.columns[name] for one in entries)
            columns[name] = [float(np.max(values, initial=0.0)) for values in each]
        return build_frame(columns, library or "pyarrow")

    def void(self, number: int, reason: str) -> None:
        """Void an entry whose release was never published."""
        with open_ledger(self.path) as held:
            held.void(number, reason)

    def __repr__(self) -> str:
        return f"<LedgerFile {self.path.name}>"


def _arrow(table: Any) -> pa.Table:
    """Return any supported table as an Arrow table."""
    try:
        if isinstance(table, Mapping):
            return pa.table({str(name): list(values) for name, values in table.items()})
        return nw.from_native(table, eager_only=True).to_arrow()
    except (TypeError, ValueError) as error:
        raise InputError(
            "The table must be a data frame, or a mapping of columns of equal length and one type "
            f"each; convert this object of type {type(table).__name__}."
        ) from error
