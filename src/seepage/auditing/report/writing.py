"""Writes the report: everything is made first, then each file appears complete or not at all.

Beside the page: ``summary.json``, the audit for machines in a documented and versioned form without
records; ``leakage.parquet``, the table of records; and ``model-card.md``, a page to paste into a
model card or a data-protection impact assessment. The card names no record and no small group, and
gives figures that depend on the data in coarse bands, errors on held-out records to two digits.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import count as counting
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from seepage.auditing.findings import (
    NUMBERS,
    SCHEMA,
    SHARES,
    Audit,
    RecordLeakage,
    RiskFinding,
    SomeRecords,
)
from seepage.auditing.report.figures import draw_figures
from seepage.auditing.report.page import render_page
from seepage.auditing.report.words import (
    Verdict,
    count_over,
    error_at,
    find_limit,
    judge,
    markdown,
    most_exposed,
    name_change,
    number,
    plain,
    protection,
    spread_kept_of,
    tell_noise,
    tell_steps,
    warn_of_constant,
)
from seepage.core.result import COARSER, NOTICE, round_down, round_up
from seepage.errors import InputError
from seepage.support.files import whole_folder, write_private
from seepage.tables.names import counted

_SHOWN = 5  # columns on the card
SMALLEST_GROUP = 20  # records of a group that the card may compare


def write_report(audit: Audit, out: str | os.PathLike[str], *, keep: Sequence[Path] = ()) -> Path:
    """Write an audit into the folder ``out`` and return the path of its page.

    ``report.html``, ``leakage.parquet``, ``summary.json``, ``model-card.md``, ``figures/*.svg``
    and ``manifest.json``, which lists them, readable by their owner only. An earlier report there
    is replaced, in one step; a folder that holds anything else is refused. ``keep`` names files
    that must not change: the inputs.
    """
    out, figures = Path(out), draw_figures(audit)
    texts = {f"figures/{figure.name}.svg": figure.file for figure in figures}
    texts |= {
        "summary.json": to_json(audit),
        "model-card.md": write_card(audit),
        "report.html": render_page(audit, figures),
    }
    with report_folder(out, keep) as folder:
        make = partial(record_table, index=audit.labels)
        write_private(folder / "leakage.parquet", audit.records.writer(make))
        for name, text in texts.items():
            write_private(folder / name, partial(write_text, text))
    return out / "report.html"


@contextmanager
def report_folder(out: Path, keep: Sequence[Path]) -> Iterator[Path]:
    """Give a folder to fill with a report, which replaces ``out`` when everything is written."""
    try:
        with whole_folder(out, "report", keep) as folder:
            yield folder
    except OSError as error:
        raise InputError(
            f"The report cannot be written to {out.name!r}: {error.strerror or error}; nothing was "
            "left behind."
        ) from error


def write_text(text: str, file: BinaryIO) -> None:
    """Write a text whatever it holds."""
    file.write(text.encode("utf-8", "replace"))


def record_table(records: SomeRecords, index: np.ndarray | None = None) -> pa.Table:
    """Return one row per record; ``error of <column>`` for every sensitive attribute.

    ``index`` has the labels of a pandas table, which become a column of text.
    """
    columns: dict[str, Any] = {"row": np.asarray(records.row, np.int64)}
    if index is not None:
        columns["index"] = [plain(label) for label in index[records.row]]
    columns |= {name: np.asarray(values, float) for name, values in records.numbers.items()}
    for name, errors in records.errors.items():
        columns[_unused(f"error of {plain(name)}", columns)] = np.asarray(errors, float)
    return pa.table(columns).replace_schema_metadata({"schema": SCHEMA, "notice": NOTICE})


def _unused(name: str, taken: Container[str]) -> str:
    """Return the name, numbered if another column prints the same."""
    candidates = (name if k == 1 else f"{name} ({k})" for k in counting(1))
    return next(candidate for candidate in candidates if candidate not in taken)


def summarise(audit: Audit) -> dict[str, Any]:
    """Return the summary of an audit as plain JSON values; ``docs/report.md`` has the schema.

    An infinite error (no unbiased attack exists) and an unknown number are ``None``.
    """
    verdict, limit, records = judge(audit), find_limit(audit), audit.records
    summary = {
        "schema": SCHEMA,
        "notice": NOTICE,
        "source": audit.source,
        **judged(verdict),
        "model": {
            "kind": audit.model,
            "target": audit.target,
            "l2": audit.l2,
            "intercept": audit.intercept,
            "classes": list(audit.classes),
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
        "records": {
            "count": records.count,
            "limit": limit.eta,
            "over_limit": count_over(audit),
            "worst_row": records.worst()[0],
            **{name: _quantiles(records, name) for name in NUMBERS},
        },
        "attributes": [
            asdict(a) | {"protection": protection(a), "spread_kept": spread_kept_of(a)}
            for a in audit.attributes
        ],
        "groupings": [asdict(grouping) for grouping in audit.groupings],
        "dataset_eta": audit.dataset_eta,
        "curve": asdict(audit.curve),
        "remedies": [
            asdict(r) | {"useless": r.useless, "change": name_change(audit, r), "text": text}
            for r, (_, text) in zip(audit.remedies, verdict.advice, strict=True)
        ],
        "guarantees": _guarantees(audit),
        "risks": None if audit.risks is None else _risks(audit.risks),
        "risks_reason": audit.risks_reason or None,
        "disclosures": None if audit.disclosures is None else asdict(audit.disclosures),
        "ledger": None if audit.ledger is None else asdict(audit.ledger),
        "usefulness": None if audit.usefulness is None else asdict(audit.usefulness),
        "versions": dict(audit.versions),
    }
    plain: dict[str, Any] = to_plain(summary)
    return plain


def judged(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict and the gates it rests on, each with its sentence beside its numbers."""
    return {
        "verdict": {"tone": verdict.tone, "label": verdict.label, "headline": verdict.headline},
        "gates": [asdict(gate) | {"text": text} for gate, text in verdict.gates],
        "passed": all(gate.passed for gate, _ in verdict.gates),
    }


def _risks(risks: RiskFinding) -> dict[str, Any]:
    """Return the risks with what follows from them: who is recognised, and what a guess gains."""
    guesses = [asdict(guess) | {"gain": guess.gain} for guess in risks.guesses]
    recognised = {"recognised": risks.recognised, "recognised_row": risks.recognised_row}
    return asdict(risks) | recognised | {"guesses": guesses}


def to_json(audit: Audit) -> str:
    """Return the summary as JSON text."""
    return json_text(summarise(audit))


def json_text(summary: dict[str, Any]) -> str:
    """Return plain JSON values as text that ends in a newline."""
    return json.dumps(summary, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _guarantees(audit: Audit) -> list[dict[str, Any]]:
    """Return the bounds on the most exposed record, without saying which record that is."""
    lines = () if audit.guarantees is None else audit.guarantees.rows
    return [
        {
            "bound": line.name,
            "adversary": line.adversary,
            "unit": line.unit,
            "value": line.value,
            "guarantee": line.guarantee,
            "assumptions": list(line.assumptions),
            "reason": line.reason,
        }
        for line in lines
    ]


def _quantiles(records: RecordLeakage, name: str) -> dict[str, float]:
    found = records.quantiles(name, SHARES)
    return {f"{q:g}": float(value) for q, value in zip(SHARES, found, strict=True)}


def to_plain(value: Any) -> Any:
    """Return plain JSON values: what is not finite becomes ``None``."""
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_card(audit: Audit) -> str:
    """Return the page as Markdown."""
    return "\n".join(
        [
            "# Privacy of the training data",
            "",
            "<!-- Figures below that depend on the training data are given in coarse bands, errors "
            "on held-out",
            f"records to two digits, and groups of fewer than {SMALLEST_GROUP} records not at all. "
            "What may be published with a model is made by",
            "`seepage release`, which also checks what such figures disclose. -->",
            "",
            _what(audit),
            "",
            _protection(audit),
            "",
            *_card_attributes(audit),
            *_groups(audit),
            *_gates(audit),
            *_usefulness(audit),
            "**What this does and does not cover.** The bounds hold for an attacker who sees the "
            "released numbers once, knows the model family, the penalty and the noise, and every "
            "other record, and whose estimates are unbiased. They do not cover attackers who trade "
            "bias for precision or bring knowledge about similar records, nor membership "
            "inference, nor anything else that leaves (predictions, logs, further releases: "
            "leakages of several releases add up). They are not a differential-privacy guarantee.",
            "",
            f"*Measured with {_versions(audit)}; Fisher information loss (Hannun, Guo and van "
            "der Maaten, 2021).*",
            "",
        ]
    )


def _what(audit: Audit) -> str:
    article = {"linear": "A linear", "poisson": "A Poisson"}.get(audit.model, f"A {audit.model}")
    least = round_down(audit.records.count, COARSER)
    return (
        f"**Release.** {article} regression of “{markdown(audit.target)}”, fitted to "
        f"{least:,.0f} records or more of “{markdown(audit.source)}” with L2 penalty "
        f"λ = {number(audit.l2)}; {counted(audit.released, 'number')} released, each with "
        f"independent Gaussian noise of standard deviation σ = {number(audit.sigma)}."
    )


def _protection(audit: Audit) -> str:
    limit, worst = find_limit(audit), audit.records.largest("eta")
    who = "Some records exceed" if count_over(audit) else "No record exceeds"
    told = f"**Protection.** Fisher information loss η of a record: at most {_at_most(worst)}, "
    return told + (
        f"for half of them at most {_at_most(audit.records.median())}. {who} {limit.words} of "
        f"η = {number(limit.eta)}."
    )


def _card_attributes(audit: Audit) -> list[str]:
    sensitive = tuple(a for a in audit.attributes if a.sensitive)
    ranked = most_exposed(sensitive or audit.attributes)[:_SHOWN]
    if not ranked:
        return []
    lines = ["| column | no unbiased attack errs by less than | it varies by up to |", "|-|-|-|"]
    for a in ranked:
        error, spread = f"±{_at_least(a.smallest_error)}", f"±{_at_most(a.spread)}"
        if a.kind != "numeric":
            error, spread = f"{error} of a level", "a whole level"
        lines.append(f"| {markdown(a.name)} | {error} | {spread} |")
    return [*lines, ""]


def _groups(audit: Audit) -> list[str]:
    """Compare the groups that are large enough to be named."""
    told = []
    for grouping in audit.groupings:
        large = [g for g in grouping.groups if g.count >= SMALLEST_GROUP and g.mean_eta > 0]
        if len(large) < 2:
            continue
        least, most = (pick(large, key=lambda g: g.mean_eta) for pick in (min, max))
        told.append(
            f"by “{markdown(grouping.column)}” up to {_at_most(most.mean_eta / least.mean_eta)} "
            f"(most for “{markdown(most.label)}”, least for “{markdown(least.label)}”)"
        )
    if not told:
        return []
    words = (
        "**Groups.** Largest over smallest mean leakage of a group, groups of fewer than "
        f"{SMALLEST_GROUP} records left out: {'; '.join(told)}."
    )
    return [words, ""]


def _gates(audit: Audit) -> list[str]:
    if not audit.gates:
        return []
    told = "; ".join(
        f"{gate.name} {number(gate.limit)}: {'met' if gate.passed else 'not met'}"
        for gate in audit.gates
    )
    return [f"**Limits set beforehand.** {told}.", ""]


def _usefulness(audit: Audit) -> list[str]:
    error, curve = error_at(audit, audit.sigma), audit.curve
    if error is None:
        return []
    errors = (float(f"{e:.2g}") for e in (error, curve.trivial_error, curve.noiseless_error))
    released, constant, noiseless = (
        f"{number(100 * e)}%" if audit.classes else number(e) for e in errors
    )
    worse = " It is no better than a constant prediction." if warn_of_constant(audit) else ""
    return [
        f"**Usefulness.** The model's {markdown(curve.error_name, 80)} on held-out records is "
        f"{released}, a constant prediction's {constant}; without noise it would be {noiseless}."
        f"{worse}",
        "",
    ]


def _versions(audit: Audit) -> str:
    named = [f"{name} {version}" for name, version in audit.versions.items()]
    return markdown(named[0]) if named else "seepage"


def _at_most(value: float) -> str:
    """Write a figure that depends on the data as the next point of the coarse grid above it."""
    return number(round_up(value)) if np.isfinite(value) and value > 0 else number(value)


def _at_least(value: float) -> str:
    """Write it as the next point of the coarse grid below it."""
    return number(round_down(value)) if np.isfinite(value) and value > 0 else number(value)
