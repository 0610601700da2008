"""What ``seepage audit`` and ``seepage calibrate`` do between the command line and the report."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seepage.auditing.intake.columns import plan_columns
from seepage.auditing.intake.encoding import Encoded, encode
from seepage.auditing.intake.read_file import read_file
from seepage.auditing.measures.assess import Tell, assess
from seepage.auditing.measures.findings import Findings
from seepage.auditing.measures.gates import check, check_limits
from seepage.auditing.report.exposure import error_at, most_exposed
from seepage.auditing.report.verdict import judge
from seepage.core.result import NOTICE
from seepage.errors import InputError
from seepage.streams.dask.connection import on_cluster
from seepage.tables.names import shown

if TYPE_CHECKING:
    from seepage.streams.disk.files import Batches

_STAGES = 9
STREAMED_FROM = 10**9  # bytes of a Parquet table as numbers, from which on it is read in chunks
_SHOWN = 8


@dataclass(frozen=True)
class Question:
    """A table, what to fit on it, and the noise: what both commands are asked about."""

    table: Path
    target: str
    model: str | None = None
    l2: float | None = None
    sigma: float | None = None
    target_eta: float | None = None
    sensitive: Sequence[str] = ()
    group: Sequence[str] = ()
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    missing: str = "refuse"
    scale: bool = True
    header: bool = True
    names: str | None = None
    model_file: Path | None = None
    show_values: bool = False
    dask: str | None = None
    workers: int | None = None


def answer(question: Question, *, remedies: bool = True, client: Any = None) -> Findings:
    """Read, encode, fit and measure; on the cluster of a client, where one is given.

    Of data that are read in chunks, or by a cluster, some numbers about the single records are
    computed when a report asks for them.
    """
    with _progress() as tell:
        tell("reading")
        batches = _streamed(question, client)
        if batches is not None:
            return _answer_streamed(question, batches, remedies, tell)
        fitted, encoded = _read(question)
        return assess(
            encoded,
            source=question.table.name,
            model=question.model,
            l2=question.l2,
            sigma=question.sigma,
            target_eta=question.target_eta,
            fitted=fitted,
            show_values=question.show_values,
            remedies=remedies,
            tell=tell,
        )


def _streamed(question: Question, client: Any) -> Batches | None:
    """Return the table as data to be read in chunks: a folder, or Parquet too large for memory."""
    path = question.table
    if not path.is_dir() and path.suffix.lower() not in (".parquet", ".pq"):
        if client is not None:
            raise InputError("A cluster audits Parquet files; write the table as Parquet first.")
        return None
    from seepage.streams.disk.files import open_batches

    if not path.exists():
        return None
    batches = open_batches(path)
    if client is not None:
        from seepage.streams.dask.spread_files import SpreadFiles

        return SpreadFiles(batches, client)
    size = 8 * batches.rows * len(batches.schema.names)
    return batches if path.is_dir() or size > STREAMED_FROM else None


def _answer_streamed(question: Question, batches: Batches, remedies: bool, tell: Tell) -> Findings:
    from seepage.auditing.streamed.audit import assess_streamed

    for given, option in (
        (question.show_values, "--show-values"),
        (not question.header, "--no-header"),
        (question.names, "--names"),
    ):
        if given:
            raise InputError(f"{option} cannot be used with data that are read in chunks.")
    return assess_streamed(
        batches,
        source=question.table.name,
        target=question.target,
        model=question.model,
        l2=question.l2,
        sigma=question.sigma,
        target_eta=question.target_eta,
        choices={
            "drop": question.drop,
            "sensitive": question.sensitive,
            "groups": question.group,
            "categorical": question.categorical,
            "missing": question.missing,
        },
        scale=question.scale,
        fitted=_given_model(question),
        remedies=remedies,
        tell=tell,
    )


def audit_table(
    question: Question,
    *,
    out: Path | None,
    as_json: bool,
    max_eta: float | None,
    min_mse: float | None,
    max_group_ratio: float | None,
) -> bool:
    """Audit, write the report, tell; return whether every gate was passed."""
    from seepage.auditing.report import to_json, write_report

    wanted = check_limits(max_eta, min_mse, max_group_ratio, bool(question.group))
    if question.sigma is not None:
        # The noise is fixed, so what to aim for is the limit.
        question = replace(question, target_eta=wanted)
    limits = {"max_eta": max_eta, "min_mse": min_mse, "max_group_ratio": max_group_ratio}
    with on_cluster(question.dask, question.workers) as client:
        audit = answer(question, client=client)
        audit = replace(audit, gates=check(audit, **limits))
        page = write_report(audit, out) if out is not None else None
        if as_json:
            typer.echo(to_json(audit), nl=False)
        else:
            tell_people(audit, page)
    if question.show_values:
        typer.echo(
            "warning: the report shows values of the table itself; do not pass it on.", err=True
        )
    failed = [gate for gate in audit.gates if not gate.passed]
    for gate in failed if as_json else ():
        typer.echo(f"over the limit {gate.name}: {gate.text}", err=True)
    return not failed


def calibrate_table(question: Question, *, as_json: bool) -> None:
    """Print the noise that meets the target, and what it costs."""
    with on_cluster(question.dask, question.workers) as client:
        audit = answer(question, remedies=False, client=client)
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
    typer.echo(audit.sigma_reason)
    typer.echo(
        f"On held-out records the {curve.error_name} is {error:.4g} with this noise, "
        f"{curve.noiseless_error:.4g} without any, and {curve.trivial_error:.4g} if the answer is "
        "always the same."
    )


def tell_people(audit: Findings, page: Path | None) -> None:
    """Print what matters on a screen or less; the report has the rest."""
    verdict = judge(audit)
    say = typer.echo
    say(
        f"{shown(audit.source)}: a {audit.model} model of {shown(audit.target)} on "
        f"{audit.records.count:,} records; {audit.released:,} numbers released with Gaussian noise "
        f"σ = {audit.sigma:.4g}."
    )
    say(f"\n{verdict.label}: {verdict.headline}")
    for sentence in (*verdict.sentences, audit.sigma_reason):
        say(f"  {sentence}")
    say("\nWhat was done to the data:")
    for step in audit.steps:
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
    widths = [max(len(line[k]) for line in lines) for k in range(4)]
    for line in lines:
        say("  " + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())
    if audit.remedies:
        say("\nWhat would help:")
    for remedy in audit.remedies:
        say(f"  - {remedy.name}: {remedy.text}")
    for gate in audit.gates:
        say(f"\n{'within' if gate.passed else 'OVER'} {gate.name}: {gate.text}")
    if page is not None:
        say(f"\nReport: {page}")
    say(NOTICE)


def _read(question: Question) -> tuple[Any, Encoded]:
    """Return the given model, if any, and the table as numbers."""
    names = None if question.names is None else [n.strip() for n in question.names.split(",")]
    table = read_file(question.table, header=question.header, names=names)
    plan = plan_columns(
        table,
        question.target,
        drop=question.drop,
        sensitive=question.sensitive,
        groups=question.group,
        categorical=question.categorical,
        missing=question.missing,
    )
    fitted = _given_model(question)
    if fitted is None:
        return None, encode(table, plan, scale=question.scale)
    from seepage.auditing.intake.modelfile import match_features

    # A model's coefficients belong to the table as it stands.
    encoded = encode(table, plan, scale=False, drop_first=bool(fitted.fit_intercept))
    match_features(fitted, encoded.names)
    return fitted, encoded


def _given_model(question: Question) -> Any:
    """Return the model in the given file, or ``None`` where there is none."""
    if question.model_file is None:
        return None
    from seepage.auditing.intake.modelfile import load_model

    if question.model is not None or question.l2 is not None:
        raise InputError("A model file says its family and penalty: leave --model and --l2 out.")
    return load_model(question.model_file)


@contextmanager
def _progress() -> Iterator[Tell]:
    """Show a bar on a terminal, and nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda words: None
        return
    from tqdm import tqdm

    with tqdm(total=_STAGES, leave=False, bar_format="{desc:<32}{bar}| {elapsed}") as bar:

        def tell(words: str) -> None:
            bar.update(1)
            bar.set_description_str(words)

        yield tell
