"""The report on a linear model: its page, summary, table of records and model card.

``summary.json`` is the machine-readable audit, in a documented, versioned format without the table
of records. ``leakage.parquet`` contains one row per record. ``model-card.md`` is a page to paste
into a model card or a data-protection impact assessment. The card names no record and no small
group. It gives data-dependent figures in coarse bands, and held-out errors to two digits.
"""

from __future__ import annotations

import base64
import hashlib
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import typer

from seepage.auditing.findings import (
    FEW,
    MU,
    NOT_MEASURED,
    NUMBERS,
    ONE_PERSON,
    ONE_ROW,
    SCHEMA,
    SHARES,
    Audit,
    Remedy,
    RemedyKind,
    SomeRecords,
)
from seepage.auditing.report.figures import Drawing, draw_figures
from seepage.auditing.report.first_screen import show_audit
from seepage.auditing.report.rendering import TEMPLATES, Report, render, tell, to_plain
from seepage.auditing.report.verdict import judge, name_change, tell_steps
from seepage.auditing.report.words import (
    MANY,
    compared,
    count_over,
    error_at,
    find_limit,
    most_exposed,
    number,
    number_of,
    percent,
    plain,
    protection,
    say_error,
    short,
    spread_kept_of,
    whom,
)
from seepage.core.result import COARSER, NOTICE, round_down
from seepage.risks.guessing import accuracy_beside
from seepage.support.files import write_private
from seepage.tables.names import counted, escaped, shown, unique

if TYPE_CHECKING:
    from rich.console import RenderableType

COLOURS = {"good": "green", "caution": "yellow", "bad": "red"}
EMBEDDED_ROWS = 100_000  # of a larger table, the page contains only the most exposed records
_EMBEDDED_CELLS = 6  # sensitive attributes shown per record in the page
_OF_A_BOUND = ("adversary", "unit", "value", "guarantee", "assumptions", "reason")


class AuditReport(Report):
    """The report of an audit of a linear model."""

    screen = "audit.txt.j2"

    def __init__(self, audit: Audit) -> None:
        self.audit, self.verdict = audit, judge(audit)

    def figures(self) -> tuple[Drawing, ...]:
        """Return the figures of the page."""
        return draw_figures(self.audit)

    def about(self) -> dict[str, Any]:
        """Return the context of all templates: the audit and derived quantities."""
        audit = self.audit
        return {
            "audit": audit,
            "limit": find_limit(audit),
            "over": count_over(audit),
            "sigma_reason": tell("noise", audit),
            "steps": tell_steps(audit),
            "codes_words": tell("codes", audit) if audit.codes else "",
            "attributes": most_exposed(audit.attributes),
            "sensitive": most_exposed(tuple(a for a in audit.attributes if a.sensitive)),
            "error": error_at(audit, audit.sigma),
            "said": partial(say_error, audit),
            "lines": [
                (
                    shown(a.name)[1:-1],
                    f"±{a.smallest_error:.3g}" + ("" if a.kind == "numeric" else " level"),
                    f"±{a.spread:.3g}",
                    str(a.easiest_row),
                )
                for a in most_exposed(audit.attributes)[:8]
            ],
        }

    def page(self, figures: tuple[Drawing, ...]) -> str:
        """Return the page, one self-contained file that runs only its own script."""
        audit, script = self.audit, (TEMPLATES / "page.js").read_text("utf-8")
        drawings = {figure.name: figure for figure in figures}
        values = audit.values or {}
        sensitive = {a.name for a in audit.attributes if a.sensitive}
        return render(
            "report.html.j2",
            **self.about(),
            verdict=self.verdict,
            screen=show_audit(audit),
            drawings=drawings,
            most=self._listed(audit.records.most(8)),
            least=self._listed(audit.records.most(8, least=True)),
            # The sensitive columns first; more than 30 beside a record cannot be read
            shown_values=sorted(values, key=lambda name: name not in sensitive)[:30],
            guarantees=self._guarantees(),
            groupings=[
                (grouping, grouping.ranked(40), drawings.get(f"groups-{place}"))
                for place, grouping in enumerate(audit.groupings, 1)
            ],
            records=pack(audit),
            embedded_cells=_EMBEDDED_CELLS,
            schema=SCHEMA,
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )

    def _listed(self, some: SomeRecords) -> list[dict[str, Any]]:
        """Return records for a table, each with its leakage as a fraction of the largest."""
        largest = self.audit.records.quantile("eta", 1) or 1.0
        eta, columns, label, _ = (some.numbers[name].tolist() for name in NUMBERS)
        shares = np.clip(np.asarray(eta) / largest, 0, 1).tolist()
        names = [short(self.audit.called(int(row))) for row in some.row]
        keys = ("place", "row", "held", "eta", "share", "label", "columns")
        held = some.held.tolist()
        lines = zip(some.place.tolist(), names, held, eta, shares, label, columns, strict=True)
        return [dict(zip(keys, line, strict=True)) for line in lines]

    def _guarantees(self) -> dict[str, Any] | None:
        """Return the bounds by adversary, with numbered assumptions; ``None`` if there are none."""
        found = self.audit.guarantees
        if found is None or not any(line.applies for line in found.rows):
            return None
        texts = list(dict.fromkeys(text for line in found.rows for text in line.assumptions))
        groups: dict[str, list[dict[str, Any]]] = {}
        for line in found.rows:
            said = "–" if line.value is None else number(line.value)
            if line.value is not None and line.unit == "mse":
                said = f"±{number(math.sqrt(line.value))}"
            note = " ".join(f"[{texts.index(text) + 1}]" for text in line.assumptions)
            rivals = sum(r.adversary == line.adversary and r.applies for r in found.rows)
            best = rivals > 1 and line.unit == "mse" and line is found.tightest(line.adversary)
            groups.setdefault(line.adversary, []).append(
                {
                    "name": line.name,
                    "said": said if line.guarantee or line.value is None else f"{said} *",
                    "note": note if line.applies else f"does not apply: {line.reason}",
                    "tightest": best,
                }
            )
        return {
            "row": found.label,
            "guessing": f"±{number(math.sqrt(found.guessing))}",
            "groups": list(groups.items()),
            "assumptions": texts,
            "indications": any(line.applies and not line.guarantee for line in found.rows),
        }

    def texts(self) -> dict[str, str]:
        """Return the model card, as Markdown."""
        audit, groups = self.audit, []
        smallest_group = 20  # records of a group that may be compared
        for grouping in audit.groupings:
            large = [g for g in grouping.ranked() if g.count >= smallest_group and g.mean_eta > 0]
            if len(large) > 1:
                groups.append((grouping.column, large[0], large[-1]))
        curve, error = audit.curve, error_at(audit, audit.sigma)
        errors = (error or 0.0, curve.trivial_error, curve.noiseless_error)
        rounded = [float(f"{e:.2g}") for e in errors]
        card = render(
            "model-card.md.j2",
            **self.about(),
            smallest_group=smallest_group,
            least=round_down(audit.records.count, COARSER),
            groups=groups,
            errors=[f"{number(100 * e)}%" if audit.classes else number(e) for e in rounded],
            compared=compared(audit, audit.sigma),
        )
        return {"model-card.md": card}

    def write_records(self, folder: Path) -> None:
        """Write the table of all records."""
        make = partial(record_table, index=self.audit.labels, unit=self.audit.unit)
        write_private(folder / "leakage.parquet", self.audit.records.writer(make))

    def summary(self) -> dict[str, Any]:
        """Return the summary as plain JSON values; ``docs/report.md`` documents the schema.

        Infinite errors (no unbiased attack exists) and unknown numbers are ``None``.
        """
        audit, verdict, records = self.audit, self.verdict, self.audit.records
        risks, bounds = audit.risks, audit.guarantees
        summary = {
            "schema": SCHEMA,
            "notice": NOTICE,
            "source": audit.source,
            "unit": audit.unit,
            "notices": audit.notices,
            **verdict.summary(),
            "preset": audit.preset,
            "model": {
                "kind": audit.model,
                "target": audit.target,
                "l2": audit.l2,
                "intercept": audit.intercept,
                "classes": audit.classes,
                "codes": audit.codes,
            },
            "release": {
                "numbers": audit.released,
                "noise": "gaussian",
                "sigma": audit.sigma,
                "choice": asdict(audit.noise),
                "sigma_reason": tell("noise", audit),
                "test_error": error_at(audit, audit.sigma),
                "constant_error": audit.curve.trivial_error,
            },
            "target": {
                "eta": audit.target_eta,
                "sigma": audit.calibrated_sigma,
                "met": audit.meets_target,
            },
            "steps": tell_steps(audit),
            "held": audit.held,
            "records": {
                "count": records.count,
                "rows": records.rows,
                "people": records.count if audit.unit == ONE_PERSON else None,
                "limit": find_limit(audit).eta,
                "over_limit": count_over(audit),
                "worst_row": records.worst()[0],
            }
            | {
                name: {f"{share:g}": records.quantile(name, share) for share in SHARES}
                for name in NUMBERS
            },
            "attributes": [
                asdict(a) | {"protection": protection(a), "spread_kept": spread_kept_of(a)}
                for a in audit.attributes
            ],
            "groupings": [asdict(grouping) for grouping in audit.groupings],
            "dataset_eta": audit.dataset_eta,
            "curve": asdict(audit.curve),
            "remedies": [
                asdict(r)
                | {
                    "name": r.name,
                    "compared": r.compared,
                    "change": name_change(audit, r),
                    "text": text,
                }
                for r, (_, text) in zip(audit.remedies, verdict.advice, strict=True)
            ],
            # Without saying which record that is
            "guarantees": [
                {"bound": line.name, **{key: getattr(line, key) for key in _OF_A_BOUND}}
                for line in (() if bounds is None else bounds.rows)
            ],
            "risks": risks
            and asdict(risks)
            | {"recognised": risks.recognised, "recognised_row": risks.recognised_row}
            | {"guesses": [asdict(guess) | {"gain": guess.gain} for guess in risks.guesses]},
            "risks_reason": audit.risks_reason or None,
            "outsider": audit.outsider and asdict(audit.outsider),
            "outsider_reason": audit.outsider_reason or None,
            "disclosures": audit.disclosures and asdict(audit.disclosures),
            "ledger": audit.ledger and asdict(audit.ledger),
            "usefulness": audit.usefulness
            and asdict(audit.usefulness) | {"compared": audit.usefulness.compared},
            "structure": [
                asdict(risk) | {"text": tell("risk", risk, FEW, None, of="attack.j2")}
                for risk in audit.structure
            ],
            "versions": audit.versions,
        }
        plain_values: dict[str, Any] = to_plain(summary)
        return plain_values


def record_table(
    records: SomeRecords, index: np.ndarray | None = None, unit: str = ONE_ROW
) -> pa.Table:
    """Return one row per record, with ``error of <column>`` for every sensitive attribute.

    ``index`` contains the labels of a pandas table, which become a text column. For people, ``row``
    is the first row of each person, and ``rows`` the number of their rows.
    """
    columns: dict[str, Any] = {"row": np.asarray(records.row, np.int64)}
    if unit == ONE_PERSON:
        columns["rows"] = np.asarray(records.held, np.int64)
    if index is not None:
        columns["index"] = [plain(label) for label in index[records.row]]
    columns |= {name: np.asarray(values, float) for name, values in records.numbers.items()}
    errors = [np.asarray(values, float) for values in records.errors.values()]
    names = unique([*columns, *(f"error of {plain(name)}" for name in records.errors)])
    table = pa.table([*columns.values(), *errors], names=names)
    return table.replace_schema_metadata({"schema": SCHEMA, "notice": NOTICE})


def pack(audit: Audit) -> dict[str, Any]:
    """Return the most exposed records for the page's JSON: columns of numbers in base64."""
    kept = audit.records.at(np.sort(audit.records.most(EMBEDDED_ROWS).place))
    eta, features, label, exact = (kept.numbers[name] for name in NUMBERS)
    people, risks = audit.unit == ONE_PERSON, audit.risks
    first = "first row" if people else "row"
    which = "the person's first row" if people else "the record"
    whole, of_columns = "the record with its label", "the record's columns alone"
    of_label = "the record's label alone"
    if people:
        whole, of_columns, of_label = (
            "all rows of the person with their labels",
            "the columns of these rows alone",
            "the labels of these rows alone",
        )
    every = (
        "least root mean squared error of an unbiased attack on all columns at once, in standard "
        "deviations"
    )
    # A short and a full heading, the order, and the values
    columns = [
        (first, f"number of {which} in the table, 0 for the first", False, kept.row),
        ("leakage η", f"leakage about {whole}", True, eta),
        ("η of columns", f"leakage about {of_columns}", True, features),
        ("η of label", f"leakage about {of_label}", True, label),
        ("error on all columns", every, False, exact),
    ]
    for name, errors in list(kept.errors.items())[:_EMBEDDED_CELLS]:
        words = (
            f"least standard error of an unbiased attack on {plain(name)}, in the column's units"
        )
        columns.append((f"± on {short(name, 24)}", words, False, errors))
    if MU in kept.numbers and risks is not None:
        right = accuracy_beside(kept.numbers[MU], 0.5, risks.epsilon, risks.delta)
        right = np.where(np.isin(kept.row, risks.disclosed), 1.0, right)
        words = "highest success rate of membership inference, in per cent; chance: 50"
        columns.append(("recognised, %", words, True, 100 * right))
    with np.errstate(over="ignore"):  # beyond single precision counts as infinite
        numbers = [np.asarray(values).astype("<f4") for *_, values in columns[1:]]
    packed = [np.asarray(kept.row).astype("<f8"), *numbers]
    rows, *others = (base64.b64encode(values.tobytes()).decode("ascii") for values in packed)
    keys = ("label", "title", "descending")
    return {
        "count": len(kept.row),
        "many": MANY[audit.unit],
        "limit": find_limit(audit).eta,
        "columns": [dict(zip(keys, column[:3], strict=True)) for column in columns],
        "rows": rows,
        "numbers": others,
    }


# On a terminal ----------------------------------------------------------------------------------


def tell_briefly(report: AuditReport, page: Path | None, private: str | None = None) -> bool:
    """Print an audit on one screen; return whether every limit is met.

    ``private`` names the data values that the report shows, if any.
    """
    from rich.console import Console
    from rich.text import Text

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
    audit, verdict = report.audit, report.verdict
    style = f"bold {COLOURS[verdict.tone]}"
    headline = Text.assemble((verdict.label, style), f": {verdict.headline}")
    codes = [tell("codes", audit)] if audit.codes else []
    notices = [f"Notice: {notice}" for notice in (*audit.notices, *codes)]
    pointer = ["Read the notices first, in the report or with --verbose."]
    for shown_notices, remedies in (
        (notices, 9),
        (notices and pointer, 9),
        (notices and pointer, 1),
    ):
        said = [*lines([headline, *shown_notices, *_lines_below(report, remedies)]), *end]
        if len(said) > 25:
            said = [line for line in said if line]
        if len(said) <= 25:
            break
    for line in said:
        typer.echo(line)
    if private is not None:
        typer.echo(f"warning: the report shows {private}; do not share it.", err=True)
    return verdict.passed


def _lines_below(report: AuditReport, most: int) -> Iterator[RenderableType]:
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
    yield _table(("", "with it", "baseline", "whom"), list(_risk_rows(audit)))
    if not audit.risks and audit.risks_reason:
        yield "Membership and guesses were not measured; --verbose gives the reason."
    if audit.outsider_reason:
        yield "There is no estimate for an attacker who knows fewer records; see --verbose."
    tried = [r for r in audit.remedies if r.sigma is not None and r.error is not None]
    if tried:
        yield ""
        risks = audit.risks
        worst = None if risks is None else risks.worst_guess
        now = (
            f"as it is, σ = {audit.sigma:.3g}",
            number(audit.records.quantile("eta", 1)),
            "–" if risks is None else percent(risks.recognised),
            "–" if worst is None else f"{100 * worst.gain:.3g} pts",
            say_error(audit, error_at(audit, audit.sigma)),
            "" if audit.usefulness is None else audit.usefulness.compared,
        )
        heads = ("remedy, by error", "η", "recognised", "guess gains", "error", "vs constant")
        yield _table(heads, [now, *(_remedy_row(audit, r) for r in tried[:most])])
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


def _risk_rows(audit: Audit) -> Iterator[tuple[str, str, str, str]]:
    """Yield membership and attribute inference, the leakage η, and the usefulness of the model."""
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
    guesses = () if risks is None else risks.guesses
    sensitive = {a.name for a in audit.attributes if a.sensitive}
    # The guesses with the largest gain, of all columns and of the sensitive columns
    among = (guesses, [guess for guess in guesses if guess.name in sensitive])
    for guess in dict.fromkeys(max(some, key=attrgetter("gain")) for some in among if some):
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
    error = say_error(audit, error_at(audit, audit.sigma))
    yield f"{name}, unseen records", error, constant, ""


def _remedy_row(audit: Audit, remedy: Remedy) -> tuple[str, ...]:
    """Return a remedy's benefit and cost, and how its model compares with a constant prediction."""
    guessed = audit.risks is not None and audit.risks.worst_guess is not None
    unknown = "–" if audit.risks is None else NOT_MEASURED
    remark = "" if remedy.compared == NOT_MEASURED else remedy.compared
    if not (remedy.reaches_target or remedy.membership is None):
        remark = "not enough"
    if remedy.reason is not None:
        remark = "no help"
    noise, penalty = f"σ = {remedy.sigma:.3g}", f"λ = {remedy.l2 or 0:.3g}"
    change = {
        RemedyKind.NOISE: f"noise {noise}",
        RemedyKind.PENALTY: f"penalty {penalty}",
        RemedyKind.COMBINATION: f"penalty {penalty}, {noise}",
        RemedyKind.WEIGHTS: f"reweighting, {noise}",
    }
    return (
        change.get(remedy.kind, f"{remedy.name}, {noise}"),
        "–" if remedy.eta is None else number(remedy.eta),
        unknown if remedy.membership is None else percent(remedy.membership),
        f"{100 * remedy.gain:.3g} pts" if remedy.gain is not None else unknown if guessed else "–",
        say_error(audit, remedy.error),
        remark,
    )


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
