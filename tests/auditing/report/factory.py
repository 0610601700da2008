"""Made-up audits for the tests of the report: of any size, with any names, and hostile ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seepage.auditing.findings import (
    NUMBERS,
    AttributeFinding,
    Audit,
    Disclosure,
    DisclosureCheck,
    Gate,
    GroupFinding,
    GroupingFinding,
    LedgerFinding,
    NoiseChoice,
    RecordLeakage,
    Remedy,
    RemedyKind,
    RiskFinding,
    TradeoffCurve,
    UsefulnessFinding,
)
from seepage.auditing.report.showing import ReportRendering
from seepage.bounds.guarantees import Guarantee, Guarantees

NAMES = ("age", "body mass index", "smoker", "marital-status", "blood pressure", "hours per week")
KINDS = ("numeric", "numeric", "boolean", "categorical", "numeric", "numeric")
SPREADS = (13.6, 4.4, 0.4, 1.0, 17.2, 12.3)


def make_audit(rows: int = 569, **changes) -> Audit:
    """Return an audit of ``rows`` records, some above the limit; ``changes`` replace fields."""
    rng = np.random.default_rng(3)
    features = np.exp(rng.normal(-1.6, 0.8, rows))
    label = np.exp(rng.normal(-2.0, 0.9, rows))
    eta = np.sqrt(features**2 + label**2)
    index = np.arange(rows) + 4  # the first records of the file were dropped
    sigma = np.geomspace(0.01, 3, 15)
    error, useful = 0.05 + 0.32 * sigma**2 / (sigma**2 + 0.6), UsefulnessFinding(0.3, 0.28, 0.32, 5)
    return changed(
        Audit(
            source="patients.csv",
            target="readmitted",
            model="logistic",
            l2=1e-3,
            intercept=True,
            sigma=0.1,
            noise=NoiseChoice("given"),
            released=9,
            steps=(
                "4 rows without a value of “age” were left out, as told with --missing drop.",
                "Column “patient id” is an identifier and was left out.",
                "6 columns became 8 features; each was standardised.",
            ),
            records=RecordLeakage(
                index,
                {
                    "eta": eta,
                    "eta_features": features,
                    "eta_label": label,
                    "exact_error": np.where(rng.random(rows) < 0.05, np.inf, 4 / features),
                },
                {"age": 13.6 * 1.3 / features, "marital-status": 0.6 / features},
            ),
            attributes=tuple(
                AttributeFinding(
                    name=name,
                    kind=kind,
                    eta=float(3.1 / (place + 1)),
                    smallest_error=float(spread * 0.22 * 1.7**place),
                    easiest_row=int(index[(7 * place) % rows]),
                    median_error=float(spread * 1.9 * 1.7**place),
                    spread=spread,
                    sensitive=name in {"age", "marital-status"},
                )
                for place, (name, kind, spread) in enumerate(
                    zip(NAMES, KINDS, SPREADS, strict=True)
                )
            ),
            dataset_eta=41.0,
            rendering=ReportRendering(),
            curve=TradeoffCurve(
                sigma=sigma,
                error=error,
                median_eta=0.022 / sigma,
                worst_eta=0.27 / sigma,
                error_name="error rate",
                noiseless_error=0.048,
                trivial_error=0.373,
                usefulness=tuple(
                    UsefulnessFinding(0.373 - e, 0.36 - e, 0.386 - e, 5) for e in error.tolist()
                ),
            ),
            groupings=(
                GroupingFinding(
                    column="race",
                    groups=(
                        GroupFinding("White", rows // 2, 0.21, 1.4, 7.1),
                        GroupFinding("Black", rows // 4, 0.26, 2.2, 6.0),
                        GroupFinding("Amer-Indian-Eskimo", rows // 8, 0.41, 2.7, 3.3),
                        GroupFinding("Asian-Pac-Islander", rows // 8, 0.33, 1.2, 4.4),
                    ),
                    ratio=1.95,
                    most_protected="White",
                    least_protected="Amer-Indian-Eskimo",
                ),
            ),
            classes=("no", "yes"),
            remedies=(
                Remedy(
                    kind=RemedyKind.NOISE,
                    sigma=0.271,
                    eta=0.98,
                    error=0.085,
                    constant=0.373,
                    usefulness=useful,
                    reaches_target=True,
                ),
                Remedy(
                    kind=RemedyKind.PENALTY,
                    sigma=0.1,
                    l2=0.031,
                    eta=0.97,
                    error=0.061,
                    constant=0.373,
                    usefulness=useful,
                    reaches_target=True,
                ),
            ),
            guarantees=make_guarantees(),
            risks=RiskFinding(0.6, int(index[1 % rows]), 0.51, 0.507, rows, True),
            versions={"seepage": "0.1.0", "numpy": "2.4.6", "Python": "3.12.1"},
        ),
        **changes,
    )


def judged(audit: Audit, low: float, high: float) -> Audit:
    """Return an audit whose model is so much better than a constant prediction, at any noise."""
    found = UsefulnessFinding((low + high) / 2, low, high, 5)
    curve = replace(audit.curve, usefulness=(found,) * len(audit.curve.sigma))
    return replace(audit, curve=curve)


def changed(audit: Audit, **changes) -> Audit:
    """Return an audit with other fields, or other numbers of its records."""
    every = audit.records.every
    row = changes.pop("row_index", every.row)
    numbers = {name: changes.pop(name, every.numbers[name]) for name in NUMBERS}
    errors = changes.pop("cell_errors", every.errors)
    return replace(audit, records=RecordLeakage(row, numbers, errors), **changes)


def make_guarantees(name: str = "age") -> Guarantees:
    """Return bounds of every sort: guarantees, indications, and one that does not apply."""
    known = "Everything outside the view is known to the adversary."
    ranges = "Every column lies within the range it has in the data."
    rows = (
        Guarantee("FIL, 1/η²", 0.3, "an unbiased adversary", ("It is unbiased.", known)),
        Guarantee("Cramér–Rao", 4.0, "an unbiased adversary", ("It is unbiased.", known)),
        Guarantee(
            "Rényi differential privacy",
            None,
            "an unbiased adversary",
            (),
            reason="The intercept is not penalised.",
        ),
        Guarantee("van Trees", 0.8, "every adversary", (known, ranges), guarantee=False),
        Guarantee(f"Cramér–Rao, {name}", 0.4, "an unbiased adversary, one cell", (known,)),
        Guarantee(
            "advantage, any record", 0.31, "membership inference", (ranges,), unit="advantage"
        ),
    )
    return Guarantees(rows, 3, "7", False, 569, "all columns", 8, 1.0)


def make_gated(passed: bool, **changes) -> Audit:
    """Return an audit with gates, all met or the first of them not."""
    audit = make_audit(**changes)
    worst = float(audit.eta.max())
    limit = worst * 2 if passed else 0.5
    return replace(
        audit,
        gates=(
            Gate(
                "--max-eta",
                limit,
                worst,
                passed,
                None if passed else 0.7,
                int(np.sum(audit.eta > limit)),
                () if passed else (17, 23, 42),
            ),
            Gate("--max-group-ratio", 3.0, 1.95, True, where="race"),
        ),
    )


def make_hostile(text: str, rows: int = 60) -> Audit:
    """Return an audit in which every name, label, value and sentence is ``text``."""
    audit = make_gated(False, rows=rows)
    names = [text, text + " ", text + "2", text + "3", text + "4", text + "5"]
    attributes = tuple(
        replace(a, name=name) for a, name in zip(audit.attributes, names, strict=True)
    )
    grouping = audit.groupings[0]
    return changed(
        audit,
        source=text,
        target=text,
        steps=(text, text),
        attributes=attributes,
        groupings=(
            replace(
                grouping,
                column=text,
                groups=tuple(replace(group, label=text) for group in grouping.groups),
                most_protected=text,
                least_protected=text,
            ),
        ),
        curve=replace(audit.curve, error_name=text),
        cell_errors=dict(zip(names, audit.cell_errors.values(), strict=False)),
        classes=(text, text),
        remedies=(Remedy(kind=RemedyKind.REFITS, reason="failed", problem=text),),
        gates=tuple(replace(gate, where=text) for gate in audit.gates),
        risks_reason=text,
        ledger=LedgerFinding(2, 7, 0.4, 0.5, (text,)),
        disclosures=DisclosureCheck(50, (Disclosure(17, text, (text,)),), True),
        values={name: [text] * rows for name in names},
        guarantees=make_guarantees(text),
        versions={text: text},
    )
