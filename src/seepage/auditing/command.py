"""Implementation of ``seepage audit`` and ``seepage calibrate``."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import typer

from seepage.auditing.audit import EVERYTHING, ONLY_NOISE, QUICK, Effort, Tell, audit_table
from seepage.auditing.decision.check import PendingCheck
from seepage.auditing.findings import Audit
from seepage.auditing.gates import check_limits, held_to
from seepage.auditing.intake.files import read_file
from seepage.auditing.intake.plan_file import PlanFile, column_facts, plan_text
from seepage.auditing.intake.table import (
    ColumnPlan,
    TableInMemory,
    TableToAudit,
    encode,
    plan_columns,
)
from seepage.auditing.outsider import attacker_of
from seepage.auditing.questions import ColumnQuestion, Limits, Question
from seepage.auditing.remedies import KINDS
from seepage.auditing.report.audit_report import AuditReport, tell_briefly
from seepage.auditing.report.figures import load_beside
from seepage.auditing.report.rendering import json_text, tell
from seepage.auditing.report.verdict import warn_of_constant
from seepage.auditing.report.words import error_at, say_error
from seepage.auditing.trained_model import MOST_TAKEN, EncodedTable
from seepage.errors import InputError, NotTheMinimiserError
from seepage.support.chunks import share_one_heap
from seepage.support.files import check_folder, check_input
from seepage.support.text_table import text_table
from seepage.tables.names import counted, escaped, shown

if TYPE_CHECKING:
    from seepage.streams.disk.files import Batches

_LONG = 1 << 25  # bytes of a file whose audit takes longer than loading what draws figures

Asked = TypeVar("Asked", bound=ColumnQuestion)


def answer(
    question: Question,
    *,
    effort: Effort = EVERYTHING,
    limits: Limits | None = None,
    client: Any = None,
) -> Audit:
    """Read and encode the table, fit the model and audit it.

    With ``client``, a cluster does the work. For data read in chunks or by a cluster, some
    per-record numbers are computed only when a report needs them.
    """
    if question.refit not in (None, "pipeline"):
        raise InputError(
            f"--refit must be pipeline or be left out, not {shown(str(question.refit))}."
        )
    if question.refit is not None and question.model_file is not None:
        raise InputError(
            "--refit pipeline refits the model without single records, but a model from a file "
            "cannot be refitted; use sp.audit(pipeline, X, y, refit='pipeline') instead."
        )
    attacker = None if question.attacker is None else attacker_of(question.attacker)
    with progress(1 + effort.stages + (attacker is not None)) as tell:
        tell("reading")
        fitted, encoded = _read(question, client)
        pa.default_memory_pool().release_unused()
        try:
            return audit_table(
                encoded,
                name=question.table.name,
                model=question.model,
                l2=question.l2,
                intercept=question.intercept,
                sigma=question.sigma,
                target_eta=question.target_eta,
                limits=limits,
                attacker=attacker,
                fitted=fitted,
                show_values=question.show_values,
                effort=effort,
                encode_anew=None if question.refit is None else partial(_anew, question, encoded),
                tell=tell,
            )
        except NotTheMinimiserError as error:
            file = question.model_file and escaped(question.model_file.name)
            raise InputError(
                f"The coefficients in {file} do not minimise their objective on "
                f"{escaped(question.table.name)}. Audit the table that the model was fitted on, "
                "with the same columns (--drop leaves columns out, --categorical names columns of "
                "codes). The file must state the scaling and penalty of the fit, as files written "
                "by sp.save do. If the fit stopped early, refine it with sp.refine before saving."
            ) from error


def _read(question: Question, client: Any) -> tuple[Any, EncodedTable]:
    """Return the model from a file, if one is named, and the encoded table.

    The raw values are kept only on request.
    """
    fitted = None
    if question.model_file is not None:
        from seepage.auditing.intake.model_file import load_model

        if question.model is not None or question.l2 is not None or not question.intercept:
            raise InputError(
                "A model file states its family, penalty and intercept: leave out --model, --l2 "
                "and --no-intercept."
            )
        fitted = load_model(question.model_file)
    encoded = _encoded(question, open_table(question, client), fitted)
    if question.refit is not None and encoded.raw is None:
        raise InputError(
            "--refit needs all records in memory, but this table is read in chunks; leave --refit "
            "out."
        )
    if fitted is not None:
        from seepage.auditing.intake.model_file import match_features, settle_penalty

        match_features(fitted, encoded.source.names)
        settle_penalty(fitted, len(encoded.source))
    wanted = question.show_values or question.refit is not None
    return fitted, encoded if wanted else replace(encoded, raw=None)


def roles(question: Question, table: TableToAudit) -> ColumnPlan:
    """Return the role of every column of a table."""
    return plan_columns(
        table,
        question.target,
        drop=question.drop,
        sensitive=question.sensitive,
        groups=question.group,
        categorical=question.categorical,
        quantities=question.quantity,
        missing=question.missing,
        person=question.person,
        classes=question.model == "softmax",
    )


def _encoded(question: Question, table: TableToAudit, fitted: Any = None) -> EncodedTable:
    """Return a table as numbers; for a given model, with the encoding used in its fit."""
    plan, public, drop_first = roles(question, table), None, question.intercept
    if question.public is not None:
        public = TableInMemory(read_file(question.public, replace(question.options, names=None)))
    if fitted is not None:
        from seepage.auditing.intake.model_file import keeps_first_levels

        categories = [n for n in plan.features if plan.kinds[n] == "categorical"]
        sizes = {n: len(plan.sums[n].levels or ()) for n in categories}
        drop_first = not keeps_first_levels(fitted, sizes)
    # A model's coefficients belong to the unscaled table.
    scaling = None if fitted is None else fitted.scaling_
    return encode(
        table,
        plan,
        scale=scaling is not None or (question.scale and fitted is None),
        drop_first=drop_first,
        public_records=public,
        scaling=scaling,
    )


def _anew(question: Question, encoded: EncodedTable, kept: np.ndarray) -> EncodedTable:
    """Return the records at the positions ``kept``, encoded from these records alone."""
    assert encoded.raw is not None  # noqa: S101 - told to the type checker
    return _encoded(replace(question, public=None), TableInMemory(encoded.raw.take(kept)))


def planned(question: Asked) -> Asked:
    """Return the question completed by its plan; raise an error if no target is named."""
    if question.plan is not None:
        plan = PlanFile.read(question.plan)
        target = question.target or plan.target or ""
        drop = tuple(dict.fromkeys([*question.drop, *plan.of_kind("drop", but=[target])]))
        own = {field.name for field in fields(question)}
        named = {key: names for key in ("sensitive", "group") if (names := getattr(plan, key))}
        if not own.issuperset(named):
            raise InputError(
                "A release accepts no sensitive columns or groups; remove them from the plan, and "
                "examine those columns with `seepage audit`."
            )
        changes: dict[str, Any] = {
            "target": target,
            "person": question.person or plan.person,
            "drop": drop,
            "categorical": (*question.categorical, *plan.of_kind("categorical", but=drop)),
            "quantity": (*question.quantity, *plan.of_kind("numeric", but=(target, *drop))),
            "missing": plan.missing if question.missing == "refuse" else question.missing,
            **{key: (*getattr(question, key), *names) for key, names in named.items()},
        }
        question = replace(question, **changes)
    if not question.target:
        if isinstance(question, Question):
            _list_columns(question)
        raise InputError("Which column does the model predict? Name the column with --target.")
    return question


def open_table(question: Question, client: Any = None) -> TableToAudit:
    """Return the table, in memory or in chunks.

    A folder, a large Parquet file and data on a cluster are read in chunks, unless rows of a person
    count together.
    """
    batches = _batches(question.table, client)
    opened: TableToAudit | None = None
    if batches is not None:
        from seepage.auditing.intake.parquet import TableInChunks

        if question.show_values:
            raise InputError(
                "--show-values needs all records in memory, but this table is read in chunks; "
                "leave --show-values out."
            )
        question.options.refuse_in_chunks()
        chunks = opened = TableInChunks.of(batches)
        if question.person is not None:
            # Rows of a person may lie anywhere, and all of them leave together.
            opened = TableInMemory(chunks.whole(MOST_TAKEN, "people, with all of their rows"))
    found = opened or TableInMemory(read_file(question.table, question.options))
    if question.plan is not None:
        PlanFile.read(question.plan).check(found, question.target)
    return found


def _batches(path: Path, client: Any) -> Batches | None:
    """Return a table to be read in chunks: a folder, a large Parquet file, or data on a cluster.

    For any other table, return ``None``.
    """
    if not path.is_dir() and path.suffix.lower() not in (".parquet", ".pq"):
        if client is not None:
            raise InputError(
                "On a cluster, only Parquet files can be audited; write the table as Parquet first."
            )
        return None
    from seepage.streams.disk.files import open_batches

    check_input(path)
    if not path.exists():
        return None
    batches = open_batches(path)
    if client is not None:
        from seepage.streams.dask.spread_files import SpreadFiles

        return SpreadFiles(batches, client)
    size = 8 * batches.rows * len(batches.schema.names)
    return batches if path.is_dir() or size > MOST_TAKEN else None


def _effort(question: Question) -> Effort:
    """Return the optional stages of an audit, as set by ``--remedies`` and ``--quick``."""
    effort = QUICK if question.quick else EVERYTHING
    if question.remedies is None:
        return effort
    named = tuple(n.strip() for n in question.remedies.split(",") if n.strip() != "none")
    for name in named:
        if name not in KINDS:
            raise InputError(
                f"There is no remedy {shown(name)}; choose one or more of {', '.join(KINDS)}, or "
                "none."
            )
    if "shape" in named and question.public is None:
        raise InputError("Shaped noise needs public records: name their table with --public.")
    return replace(effort, remedies=named)


def run_columns(question: Question) -> None:
    """Print the plan of a table's columns."""
    opened = open_table(question)
    text = plan_text(question.table.name, opened.rows, column_facts(opened), opened.steps)
    typer.echo(text, nl=False)


def _list_columns(question: Question) -> None:
    """Print the planned role of every column, since no target was named."""
    opened = open_table(question)
    typer.echo(f"{shown(question.table.name)} has {counted(opened.rows, 'row')}.")
    for step in opened.steps:
        typer.echo(f"  - {step}")
    facts = [(shown(f.name), f.kind, f.words) for f in column_facts(opened)]
    typer.echo(text_table(facts, ("column", "kind", "values"), indent=2))


def run_audit(
    question: Question,
    limits: Limits,
    *,
    out: Path | None,
    as_json: bool,
    check: Path | None = None,
    verbose: bool = False,
) -> bool:
    """Audit, write the report and print the findings; return whether every gate was passed."""
    asked = question, limits
    share_one_heap()
    if question.sigma is not None and question.target_eta is not None:
        raise InputError("Give --sigma or --target-eta, not both: each option sets the noise.")
    effort, question = _effort(question), planned(question)
    limited = limits != Limits()
    wanted = check_limits(limits, bool(question.group)) if limited else None
    if out is not None:
        check_folder(out, "report", question.inputs)  # before any long work
        if question.table.is_file() and question.table.stat().st_size > _LONG:
            load_beside()
    pending = None
    if check is not None:
        folders = () if out is None else (out,)
        pending = PendingCheck(check, question.named_inputs, folders, *asked)
    if question.sigma is not None:
        # The noise is fixed, so the limit is the target.
        question = replace(question, target_eta=wanted)
    cluster: AbstractContextManager[Any] = nullcontext()
    if question.dask is not None or question.workers is not None:
        from seepage.streams.dask.spread_files import on_cluster

        cluster = on_cluster(question.dask, question.workers)
    with cluster as client:
        audit = answer(question, effort=effort, limits=limits, client=client)
        report = AuditReport(held_to(limits, audit) if limited else audit)
        if pending is not None:
            pending.compare()
        page = None if out is None else report.write(out, keep=question.inputs)
        if pending is not None:
            pending.write(report, "audit")
        private = "values of the table itself" if question.show_values else None
        if as_json or verbose:
            return report.tell(page, as_json=as_json, private=private)
        return tell_briefly(report, page, private)


def run_calibration(question: Question, *, as_json: bool) -> None:
    """Print the noise that meets the target, and its cost in accuracy."""
    audit = answer(planned(question), effort=ONLY_NOISE)
    curve, error = audit.curve, error_at(audit, audit.sigma)
    if as_json:
        summary = {
            "schema": "seepage-calibration/1",
            "unit": audit.unit,
            "sigma": audit.sigma,
            "target_eta": audit.target_eta,
            "error_name": curve.error_name,
            "error": error,
            "noiseless_error": curve.noiseless_error,
            "trivial_error": curve.trivial_error,
        }
        typer.echo(json_text(summary), nl=False)
        return
    for notice in audit.notices:
        typer.echo(f"Notice: {notice}")
    typer.echo(f"σ = {audit.sigma:.6g}")
    typer.echo(tell("noise", audit))
    errors = (math.nan if error is None else error, curve.noiseless_error, curve.trivial_error)
    said = [say_error(audit, known) for known in errors]
    typer.echo(
        f"On held-out records, the {curve.error_name} is {said[0]} with this noise, {said[1]} "
        f"without noise, and {said[2]} for a constant prediction."
    )
    if worse := warn_of_constant(audit):
        typer.echo(worse)


@contextmanager
def progress(stages: int) -> Iterator[Tell]:
    """Show a progress bar with the name of the running stage, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda words: None
        return
    from tqdm import tqdm

    with tqdm(total=stages, leave=False, bar_format="{desc:<32}{bar}| {elapsed}") as bar:

        def tell(words: str) -> None:
            bar.update(1)
            bar.set_description_str(words)

        yield tell
