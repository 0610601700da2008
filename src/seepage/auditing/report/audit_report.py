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
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.auditing.any_model.structure import FEW
from seepage.auditing.findings import (
    MU,
    NUMBERS,
    ONE_PERSON,
    ONE_ROW,
    SCHEMA,
    SHARES,
    Audit,
    SomeRecords,
)
from seepage.auditing.report.figures import Drawing, draw_figures
from seepage.auditing.report.first_screen import show_audit
from seepage.auditing.report.rendering import TEMPLATES, Report, render, tell, to_plain
from seepage.auditing.report.verdict import (
    judge,
    name_change,
    tell_codes,
    tell_noise,
    tell_steps,
)
from seepage.auditing.report.words import (
    Verdict,
    compared,
    count_over,
    error_at,
    find_limit,
    many,
    most_exposed,
    number,
    plain,
    protection,
    say_error,
    short,
    spread_kept_of,
)
from seepage.core.result import COARSER, NOTICE, round_down
from seepage.risks.guessing import accuracy_beside
from seepage.support.files import write_private
from seepage.tables.names import shown, unique

EMBEDDED_ROWS = 100_000  # above this the page holds only the most exposed records
_EMBEDDED_CELLS = 6  # sensitive attributes shown per record in the page
_OF_A_BOUND = ("adversary", "unit", "value", "guarantee", "assumptions", "reason")


class AuditReport(Report):
    """The report of an audit of a linear model."""

    screen = "audit.txt.j2"

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    @cached_property
    def verdict(self) -> Verdict:  # type: ignore[override]
        """The verdict on the audit."""
        return judge(self.audit)

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
            "sigma_reason": tell_noise(audit),
            "steps": tell_steps(audit),
            "codes_words": tell_codes(audit),
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
            least=self._listed(audit.records.least(8)),
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
        """Return records for a table, each with its leakage relative to the largest."""
        largest = self.audit.records.largest("eta") or 1.0
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
        """Return the model card."""
        return {"model-card.md": self.card()}

    def card(self) -> str:
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
        return render(
            "model-card.md.j2",
            **self.about(),
            smallest_group=smallest_group,
            least=round_down(audit.records.count, COARSER),
            groups=groups,
            errors=[f"{number(100 * e)}%" if audit.classes else number(e) for e in rounded],
            compared=compared(audit, audit.sigma),
        )

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
                "sigma_reason": tell_noise(audit),
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
                name: {f"{q:g}": v for q, v in zip(SHARES, values, strict=True)}
                for name, values in ((name, records.quantiles(name, SHARES)) for name in NUMBERS)
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
    """Return the most exposed records as JSON: per column, little-endian numbers in base64."""
    kept = audit.records.at(np.sort(audit.records.most(EMBEDDED_ROWS).place))
    columns = list(_page_columns(kept, audit))
    with np.errstate(over="ignore"):  # beyond single precision counts as infinite
        numbers = [np.asarray(values).astype("<f4") for *_, values in columns[1:]]
    packed = [np.asarray(kept.row).astype("<f8"), *numbers]
    rows, *others = (base64.b64encode(values.tobytes()).decode("ascii") for values in packed)
    keys = ("label", "title", "descending")
    return {
        "count": len(kept),
        "many": many(audit.unit),
        "limit": find_limit(audit).eta,
        "columns": [dict(zip(keys, column[:3], strict=True)) for column in columns],
        "rows": rows,
        "numbers": others,
    }


def _page_columns(
    records: SomeRecords, audit: Audit
) -> Iterator[tuple[str, str, bool, np.ndarray]]:
    """Yield the columns of the page's table: short and full heading, order, values."""
    eta, features, label, exact = (records.numbers[name] for name in NUMBERS)
    if audit.unit == ONE_PERSON:
        words = "number of the person's first row in the table, 0 for the first"
        yield "first row", words, False, records.row
        yield "leakage η", "about all rows of the person with their labels", True, eta
    else:
        yield "row", "number of the record in the table, 0 for the first", False, records.row
        yield "leakage η", "about the whole record with its label", True, eta
    yield "η of columns", "about the record without its label", True, features
    yield "η of label", "about the label alone", True, label
    words = "least error of an attack on all its columns at once, in standard deviations"
    yield "error on all columns", words, False, exact
    for name, errors in list(records.errors.items())[:_EMBEDDED_CELLS]:
        words = f"least error of an attack on {plain(name)}, in its own units"
        yield f"± on {short(name, 24)}", words, False, errors
    risks = audit.risks
    if MU in records.numbers and risks is not None:
        right = accuracy_beside(records.numbers[MU], 0.5, risks.epsilon, risks.delta)
        right = np.where(np.isin(records.row, risks.disclosed), 1.0, right)
        words = "highest success rate of membership inference, in per cent; chance: 50"
        yield "recognised, %", words, True, 100 * right
