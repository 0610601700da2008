"""summary.json: the audit for machines, in a documented and versioned form without records."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np

from seepage.auditing.measures.findings import Findings
from seepage.auditing.measures.records import NUMBERS, SHARES, Records
from seepage.auditing.report.exposure import count_over, error_at, find_limit, protection
from seepage.auditing.report.verdict import judge
from seepage.core.result import NOTICE

SCHEMA = "seepage-audit/1"


def summarise(audit: Findings) -> dict[str, Any]:
    """Return the summary of an audit as plain JSON values; ``docs/report.md`` has the schema.

    An infinite error (no unbiased attack exists) and a number that is not known are ``None``.
    """
    verdict, limit, records = judge(audit), find_limit(audit), audit.records
    summary = {
        "schema": SCHEMA,
        "notice": NOTICE,
        "source": audit.source,
        "verdict": {"tone": verdict.tone, "label": verdict.label, "headline": verdict.headline},
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
            "sigma_reason": audit.sigma_reason,
            "test_error": error_at(audit, audit.sigma),
        },
        "target": {"eta": audit.target_eta, "sigma": audit.calibrated_sigma},
        "steps": list(audit.steps),
        "records": {
            "count": records.count,
            "limit": limit.eta,
            "over_limit": count_over(audit),
            "worst_row": records.worst()[0],
            **{name: _quantiles(records, name) for name in NUMBERS},
        },
        "attributes": [asdict(a) | {"protection": protection(a)} for a in audit.attributes],
        "groupings": [asdict(grouping) for grouping in audit.groupings],
        "dataset_eta": audit.dataset_eta,
        "curve": asdict(audit.curve),
        "remedies": [asdict(remedy) for remedy in audit.remedies],
        "guarantees": _guarantees(audit),
        "gates": [asdict(gate) for gate in audit.gates],
        "passed": all(gate.passed for gate in audit.gates),
        "versions": dict(audit.versions),
    }
    plain: dict[str, Any] = _to_plain(summary)
    return plain


def to_json(audit: Findings) -> str:
    """Return the summary as JSON text that ends in a newline."""
    return json.dumps(summarise(audit), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _guarantees(audit: Findings) -> list[dict[str, Any]]:
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


def _quantiles(records: Records, name: str) -> dict[str, float]:
    found = records.quantiles(name, SHARES)
    return {f"{q:g}": float(value) for q, value in zip(SHARES, found, strict=True)}


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_to_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
