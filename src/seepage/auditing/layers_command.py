"""What ``seepage layers`` does between the command line and the report on recorded rounds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer

from seepage.attacks.property_inference import attack_recording
from seepage.auditing.audit import find_versions
from seepage.auditing.command import all_passed, tell_advice, tell_gates, tell_table
from seepage.auditing.findings import Gate
from seepage.auditing.intake.property_file import ClientProperty, read_client_property
from seepage.auditing.report.rounds import RecordingReport, write_recording_report
from seepage.auditing.report.rounds.figures import ranked_clients
from seepage.auditing.report.rounds.words import interval, judge_recording
from seepage.auditing.report.rounds.writing import recording_to_json
from seepage.core.result import NOTICE
from seepage.errors import InputError
from seepage.layers import FewGroupsWarning, RecordingAudit, audit_recording
from seepage.layers.federated.gradients import JOINED
from seepage.support.files import check_folder, check_input
from seepage.support.number_check import check_positive
from seepage.tables.names import shown

_SHOWN = 12  # the most layers that are printed
_CLIENTS = 3  # clients that are printed if nobody stands out


@dataclass(frozen=True, kw_only=True)
class RecordingQuestion:
    """A recording and the questions about it.

    Parameters
    ----------
    recording
        Its file.
    property, column
        The file that says what is known about the clients, and its column.
    family
        The family of the adversary's predictors.
    max_bits, max_auc
        The most bits that any layer, or a whole update, may give away, and the highest AUC at which
        clients with the property may be told from the others.
    show_values
        Whether the report shows the property of each client.
    seed
        Of all draws.
    """

    recording: Path
    property: Path
    column: str | None = None
    family: str = "random_forest"
    max_bits: float | None = None
    max_auc: float | None = None
    show_values: bool = False
    seed: int = 0


def run_layers(question: RecordingQuestion, *, out: Path | None, as_json: bool) -> bool:
    """Audit a recording, write the report, print it; return whether every gate was passed."""
    bits, area = question.max_bits, question.max_auc
    if bits is not None:
        check_positive(bits, "--max-bits")
    if area is not None and not 0.5 < area < 1:
        raise InputError(f"--max-auc is an area above 0.5, a coin toss, and below 1, not {area:g}.")
    inputs = (question.recording, question.property)
    if out is not None:
        check_folder(out, "report", inputs)
    known = read_client_property(question.property, question.column)
    report = _report(question, known)
    page = None if out is None else write_recording_report(report, out, inputs)
    if as_json:
        typer.echo(recording_to_json(report), nl=False)
    else:
        tell_layers(report, page)
    values = "what is known of each client" if question.show_values else None
    return all_passed(judge_recording(report), as_json=as_json, values=values)


def _report(question: RecordingQuestion, known: ClientProperty) -> RecordingReport:
    check_input(question.recording)
    if not question.recording.is_file():
        raise InputError(f"There is no file {question.recording}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewGroupsWarning)  # the report's notes say the same
        audit = audit_recording(
            question.recording,
            known.values,
            family=question.family,
            unit="bits",
            seed=question.seed,
        )
    values = None
    if question.show_values:
        by_client = all(isinstance(key, str) for key in known.values)
        values = dict(known.values) if by_client else None
    return RecordingReport(
        audit=audit,
        source=question.recording.name,
        property=known.name,
        gates=tuple(_gates(question, known, audit)),
        values=values,
        versions=find_versions(),
    )


def _gates(
    question: RecordingQuestion, known: ClientProperty, audit: RecordingAudit
) -> Iterator[Gate]:
    if question.max_bits is not None:
        yield _max_bits(audit, question.max_bits)
    if question.max_auc is not None:
        yield _max_auc(question, known, question.max_auc)


def _max_auc(question: RecordingQuestion, known: ClientProperty, limit: float) -> Gate:
    found = attack_recording(
        question.recording, known.values, classifier=question.family, seed=question.seed
    )
    layer, measured = found.ranking()[0], float(np.max(found.values))
    k = found.layers.index(layer)
    low, high = float(found.low[k]), float(found.high[k])
    return Gate("--max-auc", limit, measured, measured <= limit, where=layer, low=low, high=high)


def _max_bits(audit: RecordingAudit, limit: float) -> Gate:
    found, whole = audit.layers.v_information, audit.layers.remedies[0]
    where, measured = found.ranking()[0], float(np.max(found.values))
    low, high = (float(ends[found.layers.index(where)]) for ends in (found.low, found.high))
    if whole.value > measured:
        where, measured, low, high = JOINED, whole.value, whole.low, whole.high
    return Gate("--max-bits", limit, measured, measured <= limit, where=where, low=low, high=high)


def tell_layers(report: RecordingReport, page: Path | None) -> None:
    """Print what matters on one screen; the report has the rest."""
    audit, verdict, say = report.audit, judge_recording(report), typer.echo
    found, over, told = audit.layers.v_information, audit.over_rounds, audit.telling()
    say(f"{shown(report.source)}, about {shown(report.property)} of the clients.")
    say(f"\n{verdict.label}: {verdict.headline}")
    for sentence in verdict.sentences:
        say(f"  {sentence}")
    say("\nLayers, those that tell most first:")
    lines: list[tuple[str, ...]] = [("layer", "V-information (bits)", "told since round", "")]
    for name in found.ranking()[:_SHOWN]:
        k = found.layers.index(name)
        since = None if over is None else over.first(name)
        lines.append(
            (
                shown(name)[1:-1],
                interval(found.values[k], found.low[k], found.high[k]),
                "-" if since is None else str(since),
                "tells it" if name in told else "",
            )
        )
    tell_table(lines)
    who = audit.clients
    named = who.named()
    say("\nClients, those who stand out most first (P is approximate):")
    lines = [("client", "× the median", "most at", "P", "")]
    for k in ranked_clients(report)[: max(_CLIENTS, min(len(named), _SHOWN))]:
        mark = "stands out" if who.clients[k] in named else ""
        p_value = f"{who.p_value[k]:.3g}"
        where = shown(who.layer[k])[1:-1]
        lines.append((str(who.clients[k]), f"{who.times[k]:.3g}", where, p_value, mark))
    tell_table(lines)
    tell_advice(verdict)
    tell_gates(verdict)
    if page is not None:
        say(f"\nReport: {page}")
    say(NOTICE)
