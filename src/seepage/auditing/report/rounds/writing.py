"""Writes the report on recorded rounds: all files appear together, readable by their owner only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from seepage.auditing.report.rounds.figures import draw_recording
from seepage.auditing.report.rounds.page import render_recording
from seepage.auditing.report.rounds.words import (
    SCHEMA,
    RecordingReport,
    advise,
    judge_recording,
)
from seepage.auditing.report.writing import (
    json_text,
    judged,
    report_folder,
    to_plain,
    write_text,
)
from seepage.core.result import NOTICE
from seepage.support.files import write_private


def write_recording_report(report: RecordingReport, out: Path, keep: Sequence[Path] = ()) -> Path:
    """Write the report into the folder ``out`` and return the path of its page.

    ``report.html``, ``clients.parquet``, ``summary.json``, ``figures/*.svg`` and ``manifest.json``,
    which lists them. An earlier report there is replaced, in one step; a folder that holds anything
    else is refused. ``keep`` names files that must not change: the inputs.
    """
    figures = draw_recording(report)
    texts = {f"figures/{figure.name}.svg": figure.file for figure in figures}
    texts |= {
        "summary.json": recording_to_json(report),
        "report.html": render_recording(report, figures),
    }
    with report_folder(out, keep) as folder:
        write_private(folder / "clients.parquet", partial(_write_clients, report))
        for name, text in texts.items():
            write_private(folder / name, partial(write_text, text))
    return out / "report.html"


def _write_clients(report: RecordingReport, file: BinaryIO) -> None:
    import pyarrow.parquet as pq

    table = report.audit.clients.table("pyarrow")
    pq.write_table(table.replace_schema_metadata({"schema": SCHEMA, "notice": NOTICE}), file)


def summarise_recording(report: RecordingReport) -> dict[str, Any]:
    """Return the summary as plain JSON values, without any client; ``docs/report.md`` has it."""
    audit, verdict = report.audit, judge_recording(report)
    found, over, told = audit.layers.v_information, audit.over_rounds, audit.telling()
    summary = {
        "schema": SCHEMA,
        "notice": NOTICE,
        "source": report.source,
        "property": report.property,
        **judged(verdict),
        "recording": {
            "updates": audit.updates,
            "clients": len(audit.clients.clients),
            "rounds": audit.rounds,
            "metrics": audit.metrics,
        },
        "unit": found.unit,
        "entropy": found.columns["entropy"][0],
        "layers": [
            {
                "layer": name,
                "size": found.sizes[k],
                "v_information": found.values[k],
                "low": found.low[k],
                "high": found.high[k],
                "p_value": found.columns["p_value"][k],
                "tells": name in told,
                "since_round": None if over is None else over.first(name),
            }
            for k, name in enumerate(found.layers)
        ],
        "rounds": None
        if over is None
        else {"rounds": over.rounds, "layers": over.layers, "p_values": over.p_values},
        "least_p_value": None if over is None else audit.least_p_value(),
        "clients_standing_out": len(audit.clients.named()),
        "remedies": [asdict(remedy) for remedy in audit.layers.remedies],
        "advice": [
            asdict(advice) | {"text": text}
            for advice, (_, text) in zip(advise(report), verdict.advice, strict=True)
        ],
        "notes": [*audit.notes, *audit.layers.notes],
        "versions": dict(report.versions),
    }
    plain: dict[str, Any] = to_plain(summary)
    return plain


def recording_to_json(report: RecordingReport) -> str:
    """Return the summary as JSON text."""
    return json_text(summarise_recording(report))
