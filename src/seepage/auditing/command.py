"""What ``seepage audit`` and ``seepage calibrate`` do between the command line and the report."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import typer

from seepage.auditing.audit import EVERYTHING, ONLY_NOISE, QUICK, Effort, Tell, audit_table
from seepage.auditing.findings import Audit
from seepage.auditing.gates import Limits
from seepage.auditing.intake.files import FileOptions
from seepage.auditing.intake.table import (
    ColumnPlan,
    TableInMemory,
    TableToAudit,
    encode,
    plan_columns,
)
from seepage.auditing.report import to_json, write_report
from seepage.auditing.report.figures import load_beside
from seepage.auditing.report.words import (
    Verdict,
    error_at,
    judge,
    most_exposed,
    say_error,
    tell_noise,
    tell_steps,
    warn_of_constant,
)
from seepage.auditing.tradeoff import REMEDIES
from seepage.auditing.trained_model import MOST_TAKEN, EncodedTable
from seepage.core.result import NOTICE
from seepage.errors import InputError, NotTheMinimiserError
from seepage.support.chunks import share_one_heap
from seepage.support.files import check_folder, check_input
from seepage.tables.names import counted, escaped, shown

if TYPE_CHECKING:
    from seepage.auditing.intake.plan_file import PlanFile
    from seepage.auditing.trained_model import EncodedTable
    from seepage.streams.disk.files import Batches

_SHOWN = 8  # the most columns that are printed
_LONG = 1 << 25  # bytes of a file that is worked on for seconds


@dataclass(frozen=True, kw_only=True)
class Question:
    """A table, what to fit on it, and the noise: the input of both commands.

    :func:`seepage.auditing.intake.table.plan_columns` explains the roles of its columns.
    """

    table: Path  # a file, or a folder of Parquet
    target: str = ""  # if empty, the columns are listed
    model: str | None = None
    l2: float | None = None
    intercept: bool = True  # whether the model has one; it is not penalised
    sigma: float | None = None
    target_eta: float | None = None  # the most that a record may leak
    sensitive: Sequence[str] = ()
    group: Sequence[str] = ()
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    quantities: Sequence[str] = ()
    missing: str = "refuse"
    scale: bool = True  # whether columns are standardised
    options: FileOptions = field(default_factory=FileOptions)  # how to read the file
    plan: PlanFile | None = None  # what its columns are, if a plan file says so
    model_file: Path | None = None  # a model that was fitted elsewhere
    # ``pipeline`` asks about membership in the whole procedure, encoding included
    refit: str | None = None
    show_values: bool = False  # whether the report shows the records' own values
    public: Path | None = None  # a table of public records, which may shape the noise
    dask: str | None = None  # the address of a cluster that audits Parquet files
    workers: int | None = None  # or how many processes to start here for that

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that are read and must not be overwritten."""
        named = (self.table, self.model_file, self.public)
        return tuple(path for path in named if path is not None)


def answer(question: Question, *, effort: Effort = EVERYTHING, client: Any = None) -> Audit:
    """Read, encode, fit and measure; on the cluster of a client, where one is given.

    For data read in chunks or by a cluster, some numbers about single records are computed only
    when a report asks for them.
    """
    if question.refit is not None:
        _check_refit(question)
    with progress(1 + effort.stages) as tell:
        tell("reading")
        fitted = _given_model(question)
        encoded = _read(question, fitted, client)
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
                fitted=fitted,
                show_values=question.show_values,
                effort=effort,
                encode_anew=None if question.refit is None else partial(_anew, question, encoded),
                tell=tell,
            )
        except NotTheMinimiserError as error:
            raise _mismatch(question) from error


def _read(question: Question, fitted: Any, client: Any) -> EncodedTable:
    """Read a table and turn it into numbers; the original is kept only on request."""
    table = open_table(question, client)
    if question.plan is not None:
        question.plan.check(table, question.target)
    encoded = _encoded(question, table, fitted)
    if question.refit is not None and encoded.raw is None:
        raise InputError("--refit needs all records in memory; these are read in chunks.")
    if fitted is not None:
        from seepage.auditing.intake.model_file import match_features, settle_penalty

        match_features(fitted, encoded.source.names)
        settle_penalty(fitted, len(encoded.source))
    wanted = question.show_values or question.refit is not None
    return encoded if wanted else replace(encoded, raw=None)


def _encoded(question: Question, table: TableToAudit, fitted: Any = None) -> EncodedTable:
    """Return a table as numbers; for a given model, in the encoding it was fitted on."""
    plan = plan_columns(
        table,
        question.target,
        drop=question.drop,
        sensitive=question.sensitive,
        groups=question.group,
        categorical=question.categorical,
        quantities=question.quantities,
        missing=question.missing,
    )
    # A model's coefficients belong to the unscaled table.
    scaling = None if fitted is None else fitted.scaling_
    return encode(
        table,
        plan,
        scale=scaling is not None or (question.scale and fitted is None),
        drop_first=question.intercept if fitted is None else _drops_first(fitted, plan),
        public_records=_public(question),
        scaling=scaling,
    )


def _anew(question: Question, encoded: EncodedTable, kept: np.ndarray) -> EncodedTable:
    """Return some of the records encoded as if there were no others."""
    assert encoded.raw is not None  # noqa: S101 - told to the type checker
    return _encoded(replace(question, public=None), TableInMemory(encoded.raw.take(kept)))


def _check_refit(question: Question) -> None:
    if question.refit != "pipeline":
        raise InputError(f"--refit is pipeline or left out, not {shown(str(question.refit))}.")
    if question.model_file is not None:
        raise InputError(
            "--refit pipeline refits the model without each record, but one from a file was "
            "fitted elsewhere; use sp.audit(pipeline, X, y, refit='pipeline') for that one."
        )


def _public(question: Question) -> TableInMemory | None:
    if question.public is None:
        return None
    return TableInMemory(replace(question.options, names=None).read(question.public))


def planned(question: Question) -> Question:
    """Return a question with the plan's columns in place of the options."""
    plan = question.plan
    if plan is None:
        return question
    target = question.target or plan.target or ""
    drop = tuple(dict.fromkeys([*question.drop, *plan.of_kind("drop", but=[target])]))
    but = (target, *drop)
    return replace(
        question,
        target=target,
        drop=drop,
        sensitive=(*question.sensitive, *plan.sensitive),
        group=(*question.group, *plan.group),
        categorical=(*question.categorical, *plan.of_kind("categorical", but=drop)),
        quantities=(*question.quantities, *plan.of_kind("numeric", but=but)),
        missing=plan.missing if question.missing == "refuse" else question.missing,
    )


def open_table(question: Question, client: Any = None) -> TableToAudit:
    """Return the table: in memory, or in chunks if it is a folder or Parquet too large."""
    batches = _batches(question.table, client)
    if batches is None:
        return TableInMemory(question.options.read(question.table))
    from seepage.auditing.intake.parquet import TableInChunks

    if question.show_values:
        raise InputError("--show-values cannot be used with data read in chunks.")
    question.options.refuse_in_chunks()
    return TableInChunks.of(batches)


def _batches(path: Path, client: Any) -> Batches | None:
    """Return the table as data read in chunks, if it is a folder or too large for memory."""
    if not path.is_dir() and path.suffix.lower() not in (".parquet", ".pq"):
        if client is not None:
            raise InputError("A cluster audits Parquet files; write the table as Parquet first.")
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


def read_effort(remedies: str | None, quick: bool, question: Question) -> Effort:
    """Return what to do beyond measuring, from the named remedies and ``--quick``."""
    effort = QUICK if quick else EVERYTHING
    if remedies is None:
        return effort
    named = tuple(name.strip() for name in remedies.split(",") if name.strip() != "none")
    for name in named:
        if name not in REMEDIES:
            raise InputError(
                f"There is no remedy {shown(name)}; choose from {', '.join(REMEDIES)}, or none."
            )
    if "shape" in named and question.public is None:
        raise InputError("Shaped noise needs public records: name their table with --public.")
    return replace(effort, remedies=named)


def run_columns(question: Question) -> None:
    """Print the plan of a table's columns."""
    from seepage.auditing.intake.plan_file import column_facts, plan_text

    table = open_table(question)
    facts = column_facts(table)
    typer.echo(plan_text(question.table.name, table.rows, facts, table.steps), nl=False)


def list_columns(question: Question) -> None:
    """Print what an audit would make of every column, since no target was named."""
    from seepage.auditing.intake.plan_file import column_facts

    table = open_table(question)
    facts = column_facts(table)
    typer.echo(f"{shown(question.table.name)} has {counted(table.rows, 'row')}.")
    for step in table.steps:
        typer.echo(f"  - {step}")
    tell_table([(shown(f.name), f.kind, f.words) for f in facts])
    raise InputError("Which column does the model predict? Name it with --target.")


def run_audit(
    question: Question,
    limits: Limits,
    *,
    out: Path | None,
    as_json: bool,
    effort: Effort = EVERYTHING,
) -> bool:
    """Audit, write the report, print the findings; return whether every gate was passed."""
    share_one_heap()
    question = planned(question)
    wanted = limits.check(bool(question.group))
    if not question.target:
        list_columns(question)
    if out is not None:
        check_folder(out, "report", question.inputs)  # before any long work
        if question.table.is_file() and question.table.stat().st_size > _LONG:
            load_beside()
    if question.sigma is not None:
        # The noise is fixed, so the limit is the target.
        question = replace(question, target_eta=wanted)
    with _cluster(question) as client:
        audit = answer(question, effort=effort, client=client)
        audit = replace(audit, gates=limits.gates(audit))
        page = None if out is None else write_report(audit, out, keep=question.inputs)
        if as_json:
            typer.echo(to_json(audit), nl=False)
        else:
            tell_people(audit, page)
    values = "values of the table itself" if question.show_values else None
    return all_passed(judge(audit), as_json=as_json, values=values)


def run_calibration(question: Question, *, as_json: bool) -> None:
    """Print the noise that meets the target, and what it costs."""
    question = planned(question)
    with _cluster(question) as client:
        audit = answer(question, effort=ONLY_NOISE, client=client)
    curve, error = audit.curve, error_at(audit, audit.sigma)
    if as_json:
        found = {
            "schema": "seepage-calibration/1",
            "sigma": audit.sigma,
            "target_eta": audit.target_eta,
            "error_name": curve.error_name,
            "error": error,
            "noiseless_error": curve.noiseless_error,
            "trivial_error": curve.trivial_error,
        }
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(f"σ = {audit.sigma:.6g}")
    typer.echo(tell_noise(audit))
    errors = (math.nan if error is None else error, curve.noiseless_error, curve.trivial_error)
    said = [say_error(audit, known) for known in errors]
    typer.echo(
        f"On held-out records the {curve.error_name} is {said[0]} with this noise, {said[1]} "
        f"without any, and {said[2]} for a constant prediction."
    )
    if worse := warn_of_constant(audit):
        typer.echo(worse)


def tell_people(audit: Audit, page: Path | None) -> None:
    """Print what matters on one screen; the report has the rest."""
    verdict = judge(audit)
    say = typer.echo
    say(
        f"{shown(audit.source)}: a {audit.model} model of {shown(audit.target)} on "
        f"{audit.records.count:,} records; {audit.released:,} numbers released with Gaussian noise "
        f"σ = {audit.sigma:.4g}."
    )
    say(f"\n{verdict.label}: {verdict.headline}")
    for answer in verdict.answers:
        say(f"\n{answer.question}\n  {answer.text}")
    say("\nIn leakage η and least errors:")
    for sentence in (*verdict.sentences, tell_noise(audit)):
        say(f"  {sentence}")
    say("\nWhat was done to the data:")
    for step in tell_steps(audit):
        say(f"  - {step}")
    say("\nColumns that an unbiased attack can come closest to:")
    lines = [("column", "least error", "spread", "in row")]
    for found in most_exposed(audit.attributes)[:_SHOWN]:
        lines.append(
            (
                shown(found.name)[1:-1],
                f"±{found.smallest_error:.3g}" + ("" if found.kind == "numeric" else " level"),
                f"±{found.spread:.3g}",
                str(found.easiest_row),
            )
        )
    tell_table(lines)
    tell_advice(verdict)
    tell_gates(verdict)
    if page is not None:
        say(f"\nReport: {escaped(str(page))}")
    say(NOTICE)


def _cluster(question: Question) -> AbstractContextManager[Any]:
    """Give a client of the requested cluster, or ``None``."""
    if question.dask is None and question.workers is None:
        return nullcontext()
    from seepage.streams.dask.spread_files import on_cluster

    return on_cluster(question.dask, question.workers)


def _drops_first(fitted: Any, plan: ColumnPlan) -> bool:
    from seepage.auditing.intake.model_file import keeps_first_levels

    categories = [n for n in plan.features if plan.kinds[n] == "categorical"]
    return not keeps_first_levels(fitted, {n: len(plan.sums[n].levels or ()) for n in categories})


def _mismatch(question: Question) -> InputError:
    """Return the refusal of a model that does not minimise its objective on the table."""
    file = "the model file" if question.model_file is None else escaped(question.model_file.name)
    return InputError(
        f"The coefficients in {file} do not minimise their objective on "
        f"{escaped(question.table.name)}. The table must be the one the model was fitted on, with "
        "the same columns (--drop leaves others out, --categorical names codes) and, in the file, "
        "the scaling and penalty of the fit, as sp.save writes them; a fit that stopped early can "
        "be taken to its minimiser with sp.refine before it is saved."
    )


def _given_model(question: Question) -> Any:
    """Return the model in the given file, or ``None`` if no file was given."""
    if question.model_file is None:
        return None
    from seepage.auditing.intake.model_file import load_model

    if question.model is not None or question.l2 is not None or not question.intercept:
        raise InputError(
            "A model file states its family and penalty: leave --model and --l2 out, and "
            "--no-intercept."
        )
    return load_model(question.model_file)


@contextmanager
def progress(stages: int) -> Iterator[Tell]:
    """Show a progress bar that names the running stage; on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda words: None
        return
    from tqdm import tqdm

    with tqdm(total=stages, leave=False, bar_format="{desc:<32}{bar}| {elapsed}") as bar:

        def tell(words: str) -> None:
            bar.update(1)
            bar.set_description_str(words)

        yield tell


def tell_table(lines: Sequence[Sequence[str]]) -> None:
    """Print lines of cells in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  " + "  ".join(cells).rstrip())


def tell_advice(verdict: Verdict) -> None:
    """Print what would help, if anything was tried."""
    if verdict.advice:
        typer.echo("\nWhat would help:")
    for name, text in verdict.advice:
        typer.echo(f"  - {name}: {text}")


def tell_gates(verdict: Verdict) -> None:
    """Print what every gate says."""
    for gate, text in verdict.gates:
        typer.echo(f"\n{'within' if gate.passed else 'OVER'} {gate.name}: {text}")


def all_passed(verdict: Verdict, *, as_json: bool, values: str | None = None) -> bool:
    """Return whether every gate was passed; warn, and with JSON say on stderr which was not.

    ``values`` names the values that the report shows, if any.
    """
    if values is not None:
        typer.echo(f"warning: the report shows {values}; do not pass it on.", err=True)
    failed = [(gate, text) for gate, text in verdict.gates if not gate.passed]
    for gate, text in failed if as_json else ():
        typer.echo(f"over the limit {gate.name}: {text}", err=True)
    return not failed
