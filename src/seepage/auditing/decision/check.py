"""The check of a release for an output checker: a JSON file, and a sheet to sign.

The check states a recommendation, its reasons, the command, and the files with their SHA-256. All
contents of the check come from the report.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seepage.auditing.report.rendering import Report, json_text, render, to_plain
from seepage.auditing.report.words import Verdict, number, plain
from seepage.core.result import NOTICE
from seepage.errors import InputError
from seepage.support.files import check_path, write_text
from seepage.tables.names import shown

SCHEMA = "seepage-check/1"
LEAVES = "release"  # the role of a file that is to leave
# What a check repeats of a summary, in this order, where it has them
_FOUND = (
    *("source", "unit", "notices", "model", "release", "sigma", "target_eta", "epsilon", "delta"),
    *("items",),
    *("risks", "risks_reason", "outsider", "outsider_reason", "attacks", "guesses", "held_out"),
    *("structure", "disclosures", "ledger", "usefulness", "steps", "versions"),
)


@dataclass(frozen=True)
class CheckedFile:
    """An input file, or a file to be published."""

    role: str  # ``table``, ``model_file``, ``public``, ``plan``, or ``release`` (to be published)
    name: str  # without its folder
    bytes: int
    sha256: str


def checked_files(paths: Mapping[str, Path]) -> tuple[CheckedFile, ...]:
    """Return the files at these paths by their role; for a folder, all of its files."""
    return tuple(
        CheckedFile(role, file.relative_to(path.parent).as_posix(), size, digest)
        for role, path in paths.items()
        for file in _files_at(path)
        for size, digest in [_digest(file)]
    )


def _files_at(path: Path) -> list[Path]:
    check_path(path)
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    if not path.is_file():
        raise InputError(
            f"A check states the SHA-256 of every file, but {shown(path.name)} is not a file on "
            "this machine; copy it to this machine first."
        )
    return [path]


def _digest(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def recommend(verdict: Verdict, leaving: bool) -> str:
    """Return the recommendation: ``refuse``, ``review`` or ``release``.

    ``release`` requires that limits were set and all are met, that there is no other concern, and
    that the check covers files to be published. ``refuse`` means that a limit is exceeded or an
    attack succeeded. With ``review``, a person must decide.
    """
    if not verdict.passed or verdict.tone == "bad":
        return "refuse"
    supported = verdict.tone == "good" and bool(verdict.gates) and leaving
    return "release" if supported else "review"


@dataclass(frozen=True)
class Check:
    """The contents of a check: whether to release, with reasons, for an output checker.

    Parameters
    ----------
    report
        The report to check.
    command
        The command: ``audit`` or ``release``.
    settings
        The given options, by name; files are named without their folders.
    files
        The input files, and those to be published.
    """

    report: Report
    command: str
    settings: Mapping[str, Any]
    files: tuple[CheckedFile, ...]

    @property
    def leaving(self) -> tuple[CheckedFile, ...]:
        """The files that are to be published."""
        return tuple(file for file in self.files if file.role == LEAVES)

    def summary(self) -> dict[str, Any]:
        """Return the check as plain JSON values; ``seepage.check`` documents the schema."""
        verdict, whole = self.report.verdict, self.report.summary()
        recommendation = recommend(verdict, bool(self.leaving))
        values: dict[str, Any] = to_plain(
            {
                "schema": SCHEMA,
                "notice": NOTICE,
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "recommendation": recommendation,
                "reasons": self._reasons(whole),
                "verdict": {"tone": verdict.tone, "label": verdict.label},
                "preset": whole.get("preset"),
                "limits": [asdict(gate) | {"text": text} for gate, text in verdict.gates],
                "passed": verdict.passed if verdict.gates else None,
                "answers": [asdict(answer) for answer in verdict.answers],
                "run": {"command": self.command, "settings": dict(self.settings)},
                "files": [asdict(file) for file in self.files],
                "found": {key: whole[key] for key in _FOUND if key in whole},
            }
        )
        return values

    def _reasons(self, whole: Mapping[str, Any]) -> list[str]:
        """Return the reasons, the most important first."""
        verdict, reasons = self.report.verdict, [self.report.verdict.headline]
        gates = sorted(verdict.gates, key=lambda one: one[0].passed)  # what is exceeded first
        reasons += [f"{gate.name}: {text}" for gate, text in gates]
        reasons += whole.get("notices", ())
        reasons += verdict.sentences[:-1] if "attacks" in whole else ()
        reasons += [risk["text"] for risk in whole.get("structure", ()) if risk["found"]]
        if "attacks" in whole:
            reasons.append("Attacks give a lower bound on leakage, never an upper bound.")
        elif not verdict.gates:
            reasons.append(
                "No limit was set: set one, or choose a --preset for the recipients of the release."
            )
        if verdict.passed and not self.leaving and "attacks" not in whole:
            reasons.append(
                "An audit writes no file to publish: its numbers describe the model with noise, "
                "not a model file without noise. Use `seepage release --check`."
            )
        return reasons

    def write(self, path: Path) -> Path:
        """Write the JSON file and the text sheet to one folder, readable only by their owner."""
        check_target(path, ())
        summary = self.summary()
        texts = {path: json_text(summary), path.with_suffix(".txt"): self._sheet(summary)}
        try:
            for file, text in texts.items():
                write_text(file, text)
        except OSError as error:
            raise InputError(
                f"The check cannot be written to {shown(path.name)}: {error.strerror or error}. "
                "Choose another path."
            ) from error
        return path.with_suffix(".txt")

    def _sheet(self, summary: Mapping[str, Any]) -> str:
        limits = [
            (
                gate.name,
                number(gate.limit),
                "–" if gate.measured is None else number(gate.measured),
                "NO" if not gate.passed else "not exceeded" if gate.of_attack else "yes",
            )
            for gate, _ in self.report.verdict.gates
        ]
        files = [(f.role, f"{f.bytes:,}", plain(f.name), f.sha256) for f in self.files]
        return render(
            "check.txt.j2", check=summary, limits=limits, files=files, leaving=self.leaving
        )


def check_target(path: Path, keep: Iterable[Path]) -> None:
    """Raise an error, before any long work, if the check would replace another file.

    ``keep`` lists the inputs, and folders that are written as a whole.
    """
    check_path(path)
    if path.suffix.lower() != ".json":
        raise InputError(
            "The check must be a .json file (its sheet is written to the same folder), not "
            f"{shown(path.name)}."
        )
    for other in keep:
        real, place = other.resolve(), path.resolve()
        if place == real or place.is_relative_to(real) or place.with_suffix(".txt") == real:
            raise InputError(
                f"The check {shown(path.name)} would overwrite or lie inside {shown(other.name)}; "
                "name another file."
            )
    if (path.exists() or path.with_suffix(".txt").exists()) and not _is_check(path):
        raise InputError(
            f"{shown(path.name)}, or the sheet next to it, is not an earlier check and is not "
            "replaced; name another file."
        )


def _is_check(path: Path) -> bool:
    try:
        return str(json.loads(path.read_text("utf-8"))["schema"]).startswith("seepage-check/")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def stated(*asked: Any) -> dict[str, Any]:
    """Return the settings that differ from their defaults; for files, only the names."""
    found: dict[str, Any] = {}
    for question in asked:
        for field in fields(question):
            value = getattr(question, field.name)
            if is_dataclass(value):
                found |= stated(value)
            elif value != (None if field.default is MISSING else field.default):
                several = isinstance(value, Sequence) and not isinstance(value, str)
                named = value.name if isinstance(value, Path) else value
                found[field.name] = list(value) if several else named
    return found


class PendingCheck:
    """A requested check; the input files are read before the audit, and compared after it."""

    def __init__(
        self, path: Path, inputs: Mapping[str, Path], folders: Iterable[Path], *asked: Any
    ) -> None:
        check_target(path, (*inputs.values(), *folders))
        self.path, self.inputs, self.before = path, inputs, checked_files(inputs)
        self.settings = stated(*asked)

    def compare(self) -> None:
        """Raise an error if an input changed during the audit.

        The audited version would then be unknown.
        """
        if checked_files(self.inputs) != self.before:
            raise InputError(
                "A file changed while it was audited, so no check was written; run the command "
                "again."
            )

    def write(self, report: Report, command: str, leaving: Path | None = None) -> None:
        """Write the check; ``leaving`` is the folder to be published."""
        made = () if leaving is None else checked_files({LEAVES: leaving})
        Check(report, command, self.settings, (*self.before, *made)).write(self.path)
