"""summary.json: the audit for machines, in a documented and versioned form without records."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np

from seepage.auditing.findings import Audit
from seepage.report.exposure import error_at, find_limit, find_over, protection
from seepage.report.verdict import judge
from seepage.result import NOTICE

SCHEMA = "seepage-audit/1"

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


def summarise(audit: Audit) -> dict[str, Any]:
    """Return the summary of an audit as plain JSON values; ``docs/report.md`` has the schema.

    An infinite error (no unbiased attack exists) and a number that is not known are ``None``.
    """
    verdict, limit, over = judge(audit), find_limit(audit), find_over(audit)
    worst = int(np.argmax(audit.eta))
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
            "count": len(audit.eta),
            "limit": limit.eta,
            "over_limit": int(over.sum()),
            "worst_row": int(audit.row_index[worst]),
            "eta": _quantiles(audit.eta),
            "eta_features": _quantiles(audit.eta_features),
            "eta_label": _quantiles(audit.eta_label),
            "exact_error": _quantiles(audit.exact_error),
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


def to_json(audit: Audit) -> str:
    """Return the summary as JSON text that ends in a newline."""
    return json.dumps(summarise(audit), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


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


def _quantiles(values: np.ndarray) -> dict[str, float]:
    # The lower observation, not a mix of two: next to an infinite error a mix would mean nothing.
    found = np.quantile(np.asarray(values, float), _QUANTILES, method="lower")
    return {f"{q:g}": float(value) for q, value in zip(_QUANTILES, found, strict=True)}


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_to_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
