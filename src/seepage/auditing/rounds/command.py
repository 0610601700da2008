"""Implementation of ``seepage layers``."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from seepage.attacks.property_inference import attack_recording
from seepage.attacks.shadow_clients import ShadowClients, area_by_layer
from seepage.auditing.audit import find_versions
from seepage.auditing.findings import Gate
from seepage.auditing.intake.auxiliary_file import load_network, read_auxiliary
from seepage.auditing.intake.property_file import ClientProperty, read_client_property
from seepage.auditing.questions import RecordingQuestion
from seepage.auditing.rounds.report import RecordingReport
from seepage.auditing.rounds.words import WITH_CLIENTS, WITH_DATA, PropertyAttack
from seepage.errors import InputError
from seepage.layers import ClientScores, FewGroupsWarning, RecordingAudit, audit_recording
from seepage.layers.federated.gradients import JOINED
from seepage.layers.recording_audit import KnownUpdates
from seepage.support.files import check_folder, check_input
from seepage.support.number_check import check_positive


def run_layers(question: RecordingQuestion, *, out: Path | None, as_json: bool) -> bool:
    """Audit a recording, and write and print the report; return whether every gate was passed."""
    bits, area = question.max_bits, question.max_auc
    if bits is not None:
        check_positive(bits, "--max-bits")
    if area is not None and not 0.5 < area < 1:
        raise InputError(f"--max-auc must be an area above 0.5 (chance) and below 1, not {area:g}.")
    inputs = (question.recording, question.property, *filter(None, [question.auxiliary]))
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
    scores = _scores(question, known.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewGroupsWarning)  # the report's notes say the same
        audit = audit_recording(
            question.recording,
            known.values,
            family=question.family,
            unit="bits",
            scores=scores,
            seed=question.seed,
        )
    attacks = _attacks(question, known, audit, scores)
    gates = []
    if question.max_bits is not None:
        gates.append(_max_bits(audit, question.max_bits))
    if question.max_auc is not None:
        gates.append(_max_auc(attacks, question.max_auc))
    by_client = all(isinstance(key, str) for key in known.values)
    return RecordingReport(
        audit=audit,
        source=question.recording.name,
        property=known.name,
        gates=tuple(gates),
        attacks=attacks,
        values=dict(known.values) if question.show_values and by_client else None,
        versions=find_versions(),
    )


def _scores(question: RecordingQuestion, name: str) -> ClientScores | None:
    """Return the scores of the attacker with auxiliary data, if there is one."""
    if question.auxiliary is None:
        if question.network is not None:
            raise InputError(
                "--network is used with --auxiliary, the attacker's own records; add --auxiliary, "
                "or leave --network out."
            )
        return None
    if question.network is None:
        raise InputError(
            "With --auxiliary, give --network file.py:function, which returns the clients' network."
        )
    data = read_auxiliary(question.auxiliary, name)
    attacker = ShadowClients(
        load_network(question.network),
        question.loss,
        (data.x, data.y),
        data.property,
        lr=question.learning_rate,
        batch_size=question.batch_size,
        local_epochs=question.local_epochs,
        optimizer=question.optimizer,
        records=question.client_size,
        clients=question.shadow_clients,
        seed=question.seed,
    )
    return attacker.scores(question.recording)


def _attacks(
    question: RecordingQuestion,
    known: ClientProperty,
    audit: RecordingAudit,
    scores: ClientScores | None,
) -> tuple[PropertyAttack, ...]:
    """Return the best layer of every attacker that was run, the one with auxiliary data first."""
    found = []
    if scores is not None and audit.auxiliary is not None:
        read = KnownUpdates.read(question.recording, known.values, 2)
        test = audit.auxiliary
        name = test.layers[test.best]
        span = area_by_layer(scores, read, permutations=1).span(name)
        p_value = float(test.p_values[test.best])
        found.append(PropertyAttack(WITH_DATA, name, *span, p_value, test.chance, test.shadows))
    if scores is not None or question.max_auc is not None:
        by_layer = attack_recording(
            question.recording, known.values, classifier=question.family, seed=question.seed
        )
        name = by_layer.ranking()[0]
        over = audit.over_rounds
        least = None if over is None else float(over.p_values.min())
        found.append(PropertyAttack(WITH_CLIENTS, name, *by_layer.span(name), least))
    return tuple(found)


def _max_auc(attacks: tuple[PropertyAttack, ...], limit: float) -> Gate:
    best = max(attacks, key=lambda attack: attack.auc)
    return Gate(
        "--max-auc",
        limit,
        best.auc,
        best.auc <= limit,
        where=best.layer,
        low=best.low,
        high=best.high,
        attacker=best.attacker,
    )


def _max_bits(audit: RecordingAudit, limit: float) -> Gate:
    by_layer, whole = audit.layers.v_information, audit.layers.remedies[0]
    where, measured = by_layer.ranking()[0], float(np.max(by_layer.values))
    k = by_layer.layers.index(where)
    low, high = float(by_layer.low[k]), float(by_layer.high[k])
    if whole.value > measured:
        where, measured, low, high = JOINED, whole.value, whole.low, whole.high
    return Gate("--max-bits", limit, measured, measured <= limit, where=where, low=low, high=high)
