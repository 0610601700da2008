"""Terminal output of an audit: the verdict, the risks, the remedies and the files.

The output is shortened to fit 25 lines of 80 columns, if possible; paths are not folded.
``--verbose`` and the page show everything. Colour is used on terminals only. Numbers and wording
match the report.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from seepage.auditing.findings import (
    NOT_MEASURED,
    ONE_PERSON,
    Audit,
    GuessFinding,
    Remedy,
    RemedyKind,
)
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.verdict import tell_codes
from seepage.auditing.report.words import (
    error_said,
    find_limit,
    most_exposed,
    number,
    number_of,
    percent,
    say_error,
    short,
    spread_kept_of,
    whom,
)
from seepage.core.result import NOTICE
from seepage.tables.names import counted, escaped, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

COLOURS = {"good": "green", "caution": "yellow", "bad": "red"}


def tell_briefly(report: AuditReport, page: Path | None, private: str | None = None) -> bool:
    """Print an audit on one screen; return whether every limit is met.

    ``private`` names the data values that the report shows, if any.
    """
    from rich.console import Console

    columns = min(80, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 80
    console = Console(width=columns, markup=False, emoji=False, highlight=False)

    def lines(parts: Iterable[RenderableType]) -> list[str]:
        """Return parts as lines, coloured on a terminal."""
        with console.capture() as captured:
            for part in parts:
                console.print(part)
        return [line.rstrip() for line in captured.get().splitlines()]

    # A path that is folded cannot be copied.
    end = [] if page is None else [f"Report: {escaped(str(page))}"]
    end += lines([f"{NOTICE} More: --verbose."])
    notices = _notices(report.audit)
    pointer = ["Read the notices first, in the report or with --verbose."]
    for shown_notices, remedies in (
        (notices, 9),
        (notices and pointer, 9),
        (notices and pointer, 1),
    ):
        said = [*lines([_verdict(report), *shown_notices, *_below(report, remedies)]), *end]
        if len(said) > 25:
            said = [line for line in said if line]
        if len(said) <= 25:
            break
    for line in said:
        typer.echo(line)
    if private is not None:
        typer.echo(f"warning: the report shows {private}; do not share it.", err=True)
    return report.verdict.passed


def _verdict(report: AuditReport) -> RenderableType:
    from rich.text import Text

    verdict = report.verdict
    style = f"bold {COLOURS[verdict.tone]}"
    return Text.assemble((verdict.label, style), f": {verdict.headline}")


def _notices(audit: Audit) -> list[str]:
    """Return the notices to read before any number."""
    codes = [tell_codes(audit)] if audit.codes else []
    return [f"Notice: {notice}" for notice in (*audit.notices, *codes)]


def _below(report: AuditReport, most: int) -> Iterator[RenderableType]:
    """Yield the lines below the verdict and the notices, with at most this many remedies."""
    audit, people = report.audit, report.audit.unit == ONE_PERSON
    rows = f"{audit.records.rows:,} rows of " if people else ""
    yield (
        f"{shown(short(audit.source, 40))}: a {audit.model} model of "
        f"{shown(short(audit.target, 40))} on {rows}"
        f"{number_of(audit.records.count, audit.unit)}; {counted(audit.released, 'number')} "
        f"released, σ = {audit.sigma:.4g}."
    )
    yield ""
    yield _table(("", "with it", "baseline", "whom"), list(_risks(audit)))
    if not audit.risks and audit.risks_reason:
        yield "Membership and guesses were not measured; --verbose gives the reason."
    if audit.outsider_reason:
        yield "There is no estimate for an attacker who knows fewer records; see --verbose."
    tried = [r for r in audit.remedies if r.sigma is not None and r.error is not None]
    if tried:
        yield ""
        heads = ("remedy, by error", "η", "recognised", "guess gains", "error", "vs constant")
        yield _table(heads, [_as_it_is(audit), *(_line(audit, r) for r in tried[:most])])
    if passed := [f"{gate.name} {gate.limit:g}" for gate in audit.gates if gate.passed]:
        yield f"within {', '.join(passed)}."
    for gate in audit.gates:
        if not gate.passed:
            measured = (
                "not measured" if gate.measured is None else f"measured {number(gate.measured)}"
            )
            enough = "" if gate.enough is None else f"; σ = {gate.enough:g} would be enough"
            yield f"OVER {gate.name} {gate.limit:g}: {measured}{enough}."
    yield ""


def _risks(audit: Audit) -> Iterator[tuple[str, str, str, str]]:
    """Yield the risks of membership and attribute inference, and the usefulness of the model."""
    risks, found, chance = audit.risks, audit.outsider, "50 %, chance"
    who = "a person" if audit.unit == ONE_PERSON else "a row"
    if risks is not None:
        row = whom(audit, risks.recognised_row)
        how = " as in the data" if found is None else ", all others known"
        yield f"{who} recognised{how}", percent(risks.recognised), chance, row
    if found is not None:
        # An estimate never stands without the attacker who knows all others.
        noise = "no noise: " if found.sigma is None else "by "
        if risks is None or found.sigma is None:
            yield f"  {noise}all others known", percent(found.informed), chance, ""
        about = f"about {percent(found.membership)}"
        name = found.attacker.partition(",")[0]
        yield f"  {noise}{name} (estimate)", about, chance, whom(audit, found.row)
    for guess in _guesses(audit):
        baseline = f"{percent(guess.baseline)} without it"
        name = f"“{short(guess.name, 24)}” guessed right"
        yield name, percent(guess.right), baseline, whom(audit, guess.row, guess.unit)
    numbers = tuple(a for a in audit.attributes if a.sensitive and a.kind == "numeric")
    for a in most_exposed(numbers)[:1]:
        known, spread = (spread_kept_of(a) or 0.0) * a.spread, f"±{number(a.spread)} without it"
        name = f"“{short(a.name, 24)}” estimated to"
        yield name, f"±{number(known)}", spread, whom(audit, a.easiest_row)
    limit, (exposed, worst) = find_limit(audit), audit.records.worst()
    told = f"{number(limit.eta)}, {limit.words}"
    yield "leakage η", number(worst), told, whom(audit, exposed) if worst > 0 else ""
    constant = f"{say_error(audit, audit.curve.trivial_error)} for a constant"
    name = audit.curve.error_name.partition(" (")[0]
    yield f"{name}, unseen records", error_said(audit, audit.sigma), constant, ""


def _guesses(audit: Audit) -> Iterator[GuessFinding]:
    """Yield the guess that gains most, over all columns and over sensitive ones, each once."""
    guesses = () if audit.risks is None else audit.risks.guesses
    sensitive = {a.name for a in audit.attributes if a.sensitive}
    seen: GuessFinding | None = None
    for among in (guesses, [guess for guess in guesses if guess.name in sensitive]):
        worst = max(among, key=lambda guess: guess.gain, default=None)
        if worst is not None and worst is not seen:
            yield worst
        seen = worst


def _as_it_is(audit: Audit) -> tuple[str, ...]:
    risks = audit.risks
    worst = None if risks is None else risks.worst_guess
    return (
        f"as it is, σ = {audit.sigma:.3g}",
        number(audit.records.largest("eta")),
        "–" if risks is None else percent(risks.recognised),
        "–" if worst is None else _points(worst.gain),
        error_said(audit, audit.sigma),
        "" if audit.usefulness is None else audit.usefulness.compared,
    )


def _line(audit: Audit, remedy: Remedy) -> tuple[str, ...]:
    """Return a remedy's benefit and cost, and how its model compares with a constant prediction."""
    guessed = audit.risks is not None and audit.risks.worst_guess is not None
    unknown = "–" if audit.risks is None else NOT_MEASURED
    remark = "" if remedy.compared == NOT_MEASURED else remedy.compared
    if not (remedy.reaches_target or remedy.membership is None):
        remark = "not enough"
    if remedy.reason is not None:
        remark = "no help"
    return (
        _change(remedy),
        "–" if remedy.eta is None else number(remedy.eta),
        unknown if remedy.membership is None else percent(remedy.membership),
        _points(remedy.gain) if remedy.gain is not None else unknown if guessed else "–",
        "–" if remedy.error is None else say_error(audit, remedy.error),
        remark,
    )


def _change(remedy: Remedy) -> str:
    noise, penalty = f"σ = {remedy.sigma:.3g}", f"λ = {remedy.l2 or 0:.3g}"
    return {
        RemedyKind.NOISE: f"noise {noise}",
        RemedyKind.PENALTY: f"penalty {penalty}",
        RemedyKind.COMBINATION: f"penalty {penalty}, {noise}",
        RemedyKind.WEIGHTS: f"reweighting, {noise}",
    }.get(remedy.kind, f"{remedy.name}, {noise}")


def _points(gain: float) -> str:
    return f"{100 * gain:.3g} pts"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        style = "dim" if row[-1] in ("worse", "not told apart", "no help") else ""
        table.add_row(*(Text(cell) for cell in row), style=style)
    return table
