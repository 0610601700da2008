"""The report on a model without an exact limit: what attacks achieved, in words and files."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seepage.attacks.membership.inference import MembershipInferenceResult
from seepage.auditing.any_model.attack_audit import AttackAudit
from seepage.auditing.any_model.structure import FEW, StructuralRisk
from seepage.auditing.report.figures import Drawing
from seepage.auditing.report.rendering import Report, render, tell, to_plain
from seepage.auditing.report.words import Verdict
from seepage.core.result import NOTICE
from seepage.support.files import write_private
from seepage.tables.names import counted

SCHEMA = "seepage-attack-audit/2"
_RATES = (0.001, 0.01)  # the false positive rates at which members found are stated


class AttackReport(Report):
    """An audit by attack as people and machines read it."""

    screen = "attack.txt.j2"

    def __init__(self, audit: AttackAudit, verbose: bool = True) -> None:
        self.audit, self.verbose = audit, verbose

    @cached_property
    def verdict(self) -> Verdict:  # type: ignore[override]
        """What the attacks told, never that no more can be told."""
        return judge_attack(self.audit)

    def about(self) -> dict[str, Any]:
        """Return what the templates are about."""
        structure = [(risk, tell_risk(risk)) for risk in self.audit.structure]
        return {"audit": self.audit, "structure": structure, "verbose": self.verbose}

    def page(self, figures: tuple[Drawing, ...]) -> str:
        """Return the page; it has no figures."""
        return render("attack.html.j2", verdict=self.verdict, **self.about())

    def write_records(self, folder: Path) -> None:
        """Write how strongly the best attack takes each record for a member."""
        scores = self.audit.strongest.record_scores()
        evidence = pa.array(scores, mask=np.isnan(scores))
        table = pa.table({"row": self.audit.attacked, "evidence": evidence})
        table = table.replace_schema_metadata({"schema": SCHEMA, "notice": NOTICE})
        write_private(folder / "records.parquet", lambda file: pq.write_table(table, file))

    def summary(self) -> dict[str, Any]:
        """Return the audit as plain JSON values, without anything about single records."""
        audit = self.audit
        plain: dict[str, Any] = to_plain(
            {
                "schema": SCHEMA,
                "notice": NOTICE,
                "source": audit.source,
                "model": {"kind": audit.model, "target": audit.target, "records": audit.records},
                "verdict": self.verdict.summary()["verdict"],
                "attacked": len(audit.attacked),
                "shadows": audit.shadows,
                "targets": audit.targets,
                "strongest": audit.strongest.method,
                "attacks": [
                    {
                        "method": attack.method,
                        "kind": attack.kind,
                        "auc": attack.auc,
                        "auc_interval": tuple(attack.interval),
                        "tpr": {
                            str(fpr): {"rate": rate.rate, "interval": tuple(rate.interval)}
                            for fpr, rate in ((fpr, attack.tpr(fpr)) for fpr in _RATES)
                        },
                    }
                    for attack in audit.attacks
                ],
                "structure": [asdict(risk) | {"text": tell_risk(risk)} for risk in audit.structure],
                "steps": audit.steps,
                "versions": audit.versions,
            }
        )
        return plain


def judge_attack(audit: AttackAudit) -> Verdict:
    """Return the verdict: what the attacks told, never that no more can be told."""
    best = audit.strongest
    ends, rate = best.interval, best.tpr(0.01)
    # Certainly far above a coin toss, or certainly finding five times as many members as outsiders
    if ends.low > 0.6 or rate.interval.low > 0.05:
        tone, label = "bad", "Members can be recognised"
        headline = (
            "An attack can tell which rows were in the data: do not release this model as it is."
        )
    elif ends.low > 0.5:
        tone, label = "caution", "Some members can be recognised"
        headline = "An attack tells which rows were in the data better than a coin toss."
    else:
        tone, label = "caution", "Nothing was found"
        headline = (
            "The attacks tried tell which rows were in the data no better than a coin toss; "
            "another might."
        )
    found = [risk for risk in audit.structure if risk.found]
    sentences = (
        tell("picks", best, of="attack.j2"),
        tell("members", [_found(best, fpr) for fpr in _RATES], of="attack.j2"),
        f"{counted(len(found), 'structural risk')} that "
        f"{'needs' if len(found) == 1 else 'need'} no attack: "
        f"{', '.join(risk.name for risk in found) or 'none of those looked for'}.",
        "This is what an attack did, not a bound: a stronger one may tell more. For linear models "
        "released with noise seepage knows the limit.",
    )
    return Verdict(tone, label, headline, sentences)


def _found(attack: MembershipInferenceResult, fpr: float) -> dict[str, Any]:
    """Return the share of members that an attack finds, and whether it is sure of some."""
    found = attack.tpr(fpr)
    low, high = found.interval.low, found.interval.high
    return {"fpr": fpr, "rate": found.rate, "low": low, "high": high, "sure": low > fpr}


def tell_risk(risk: StructuralRisk) -> str:
    """Say what a model gives away by its construction, and about how many records."""
    return tell("risk", risk, FEW, of="attack.j2")
