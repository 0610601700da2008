"""Implementation of ``seepage layers``."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from seepage.attacks.property_inference import attack_recording
from seepage.auditing.audit import find_versions
from seepage.auditing.findings import Gate
from seepage.auditing.intake.property_file import ClientProperty, read_client_property
from seepage.auditing.questions import RecordingQuestion
from seepage.auditing.rounds.report import RecordingReport
from seepage.errors import InputError
from seepage.layers import FewGroupsWarning, RecordingAudit, audit_recording
from seepage.layers.federated.gradients import JOINED
from seepage.support.files import check_folder, check_input
from seepage.support.number_check import check_positive


def run_layers(question: RecordingQuestion, *, out: Path | None, as_json: bool) -> bool:
    """Audit a recording, and write and print the report; return whether every gate was passed."""
    bits, area = question.max_bits, question.max_auc
    if bits is not None:
        check_positive(bits, "--max-bits")
    if area is not None and not 0.5 < area < 1:
        raise InputError(f"--max-auc must be an area above 0.5 (chance) and below 1, not {area:g}.")
    inputs = (question.recording, question.property)
    if out is not None:
        check_folder(out, "report", inputs)
    known = read_client_property(question.property, question.column)
    report = _report(question, known)
    page = None if out is None else report.write(out, inputs)
    private = "the property of each client" if question.show_values else None
    return report.tell(page, as_json=as_json, private=private)


def _report(question: RecordingQuestion, known: ClientProperty) -> RecordingReport:
    check_input(question.recording)
    if not question.recording.exists():
        raise InputError(f"There is no file or folder {question.recording}; check the path.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewGroupsWarning)  # the report's notes say the same
        audit = audit_recording(
            question.recording,
            known.values,
            family=question.family,
            unit="bits",
            seed=question.seed,
        )
    gates = []
    if question.max_bits is not None:
        gates.append(_max_bits(audit, question.max_bits))
    if question.max_auc is not None:
        gates.append(_max_auc(question, known, question.max_auc))
    by_client = all(isinstance(key, str) for key in known.values)
    return RecordingReport(
        audit=audit,
        source=question.recording.name,
        property=known.name,
        gates=tuple(gates),
        values=dict(known.values) if question.show_values and by_client else None,
        versions=find_versions(),
    )


def _max_auc(question: RecordingQuestion, known: ClientProperty, limit: float) -> Gate:
    by_layer = attack_recording(
        question.recording, known.values, classifier=question.family, seed=question.seed
    )
    layer, measured = by_layer.ranking()[0], float(np.max(by_layer.values))
    k = by_layer.layers.index(layer)
    low, high = float(by_layer.low[k]), float(by_layer.high[k])
    return Gate("--max-auc", limit, measured, measured <= limit, where=layer, low=low, high=high)


def _max_bits(audit: RecordingAudit, limit: float) -> Gate:
    by_layer, whole = audit.layers.v_information, audit.layers.remedies[0]
    where, measured = by_layer.ranking()[0], float(np.max(by_layer.values))
    k = by_layer.layers.index(where)
    low, high = float(by_layer.low[k]), float(by_layer.high[k])
    if whole.value > measured:
        where, measured, low, high = JOINED, whole.value, whole.low, whole.high
    return Gate("--max-bits", limit, measured, measured <= limit, where=where, low=low, high=high)
