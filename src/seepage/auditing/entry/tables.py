"""``sp.audit`` for a table and its target: fits a linear model, as the command does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from seepage.auditing.audit import audit_table
from seepage.auditing.findings import Audit
from seepage.auditing.gates import check_limits, held_to
from seepage.auditing.intake.files import table_of_frame
from seepage.auditing.intake.table import TableInMemory, TableToAudit, encode, plan_columns
from seepage.auditing.outsider import check_outsider
from seepage.auditing.pipeline import sigma_of
from seepage.auditing.questions import Limits, Question
from seepage.errors import InputError
from seepage.glm.preprocessing.raw_columns import read_frame
from seepage.tables.source import own_index

# Options of the command line that errors of the intake name, as they are written in Python
_IN_PYTHON = {"quantity": "quantities", "group": "groups"}
_OF_COLUMN = re.compile(
    r"--(person|drop|categorical|quantity) (?!(?:or|and)\b)(\"[^\"]*\"|'[^']*'|[\w.-]*[\w-])"
)


def audit_frame(frame: Any, target: str, groups: Any, *, source: str, **options: Any) -> Audit:
    """Fit a linear model to the target of a data frame, and audit it."""
    with _said_in_python():
        found = _audit(
            lambda: TableInMemory(table_of_frame(frame)), target, groups, source, options
        )
    person = options.get("person")
    people = None if person is None else read_frame(frame)[0][person].to_numpy()
    return replace(found, labels=own_index(frame), people=people)


def audit_file(path: Path, target: str, groups: Any, **options: Any) -> Audit:
    """Fit a linear model to the target of a file, in any format of the command, and audit it."""
    from seepage.auditing.command import open_table

    question = Question(table=path, target=target, person=options.get("person"))
    with _said_in_python():
        return _audit(partial(open_table, question), target, groups, path.name, options)


def _audit(
    read: Callable[[], TableToAudit], target: str, groups: Any, source: str, options: dict[str, Any]
) -> Audit:
    person, attacker = options.get("person"), options.get("attacker")
    limits = Limits(preset=options["preset"])  # refused before any work
    sigma = sigma_of(options.get("noise"))
    check_limits(limits, bool(groups))
    if attacker is not None:
        check_outsider(attacker)
    if isinstance(groups, Mapping) or not (person is None or isinstance(person, str)):
        raise InputError(
            "For an audit of a whole table, groups and person must be names of its columns."
        )
    table = read()
    plan = plan_columns(
        table,
        target,
        drop=_names(options.get("drop")),
        sensitive=_names(options.get("sensitive")),
        groups=_names(groups),
        categorical=_names(options.get("categorical")),
        quantities=_names(options.get("quantities")),
        missing=options.get("missing", "refuse"),
        person=person,
    )
    found = audit_table(
        replace(encode(table, plan), raw=None),
        name=source,
        sigma=sigma,
        target_eta=options.get("target_eta"),
        limits=limits,
        attacker=attacker,
        seed=options["seed"],
    )
    notices = tuple(_in_python(notice) for notice in found.notices)
    return held_to(limits, replace(found, notices=notices, in_python=True))


def _names(given: str | Sequence[str] | None) -> Sequence[str]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def _in_python(text: str) -> str:
    """Return a text with command-line options rewritten as arguments: ``person='patient_id'``."""

    def named(option: re.Match[str]) -> str:
        column = repr(option[2].strip("\"'"))
        return f"{_option(option[1])}={column if option[1] == 'person' else f'[{column}]'}"

    def written(option: re.Match[str]) -> str:
        return f"{_option(option[1])}={repr(option[2]) if option[2] else ''}"

    said = _OF_COLUMN.sub(named, text)
    return re.sub(r"--([a-z][a-z-]*)(?: (drop|impute)\b)?", written, said)


def _option(name: str) -> str:
    return _IN_PYTHON.get(name, name.replace("-", "_"))


@contextmanager
def _said_in_python() -> Iterator[None]:
    """Rewrite command-line options in an error message as arguments: ``missing='drop'``."""
    try:
        yield
    except InputError as problem:
        said = _in_python(str(problem))
        if said == str(problem):
            raise
        raise type(problem)(said) from problem
