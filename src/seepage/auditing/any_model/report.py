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
from seepage.auditing.report.first_screen import (
    Bar,
    Card,
    FirstScreen,
    Histogram,
    Remedies,
    RemedyLine,
)
from seepage.auditing.report.rendering import Report, render, tell, to_plain
from seepage.auditing.report.words import Verdict, number, percent
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
        screen = show_attack(self.audit)
        return render("attack.html.j2", verdict=self.verdict, screen=screen, **self.about())

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


def show_attack(audit: AttackAudit) -> FirstScreen:
    """Return the first screen: what attacks achieved, beside what chance would."""
    best = audit.strongest
    rate, ends = best.tpr(0.01), best.interval
    # How many numbers a model has learnt is about all records alike: the others first
    risks = sorted(audit.structure, key=lambda r: (r.parameters is None, r.records), reverse=True)
    found = next((risk for risk in risks if risk.found), None)
    beyond = "the attack beats chance"
    cards = (
        Card(
            "Member told from outsider",
            "50 %",
            percent(best.auc),
            f"chance → {best.method}",
            "bad" if ends.low > 0.5 else "",
            beyond if ends.low > 0.5 else "not surely above chance",
            (f"95 % CI {percent(ends.low)} to {percent(ends.high)}",),
        ),
        Card(
            "Members found at 1 % false alarms",
            "1 %",
            percent(rate.rate),
            f"chance → {best.method}",
            "bad" if rate.interval.low > 0.01 else "",
            beyond if rate.interval.low > 0.01 else "not surely above chance",
            (f"95 % CI {percent(rate.interval.low)} to {percent(rate.interval.high)}",),
        ),
        Card(
            "Records exposed by construction",
            "0",
            f"{0 if found is None else found.records:,} of {audit.records:,}",
            "none → " + ("none found" if found is None else found.name),
            "" if found is None else "bad",
            "none of those looked for" if found is None else "needs no attack",
        ),
    )
    return FirstScreen(
        cards,
        _members(best),
        _changes(audit),
        open=("sensitive values", "usefulness", "stronger attacks"),
    )


def _members(attack: MembershipInferenceResult) -> Histogram | None:
    """Return how sure the attack is of the members and the outsiders of one attacked model."""
    scores, inside = attack.scores[0], attack.members[0]
    inside, scores = inside[np.isfinite(scores)], scores[np.isfinite(scores)]
    if not (inside.any() and (~inside).any() and np.ptp(scores) > 0):
        return None
    line = float(np.quantile(scores[~inside], 0.99, method="higher"))
    low, high = np.quantile(scores, [0.005, 0.995])
    width = max(float(max(high, line) - min(low, line)) / 20, 1e-12 * abs(line), 1e-300)
    below = max(1, round((line - low) / width))
    above = max(1, round((high - line) / width))
    # Whoever lies beyond the ends counts there; who is at the line has not crossed it.
    bins = np.clip(np.ceil((scores - line) / width).astype(int) + below - 1, 0, below + above - 1)
    bins = np.where((scores <= line) & (bins >= below), below - 1, bins)
    members, outsiders = (
        np.bincount(bins[who], minlength=below + above) for who in (inside, ~inside)
    )
    edges = [line + (k - below) * width for k in range(below + above + 1)]
    bars = tuple(
        Bar(f"{number(edges[k])} to {number(edges[k + 1])}", int(count), k >= below, int(others))
        for k, (count, others) in enumerate(zip(members, outsiders, strict=True))
    )
    found = int(members[below:].sum())
    total = int(inside.sum())
    return Histogram(
        bars,
        "Members of one model (outlined: outsiders)",
        "evidence of membership (heights: logarithmic)",
        below,
        "1 % of outsiders beyond",
        ((0, number(edges[0])), (below + above, number(edges[-1]))),
        f"Histogram of the evidence that {total:,} members of one attacked model were in the data: "
        f"{found:,} lie beyond the line that 1 % of outsiders cross.",
    )


def _changes(audit: AttackAudit) -> Remedies:
    """Return what would change the structure, none of which was tried."""
    best = audit.strongest
    now = (percent(best.auc), percent(best.tpr(0.01).rate))
    lines = [RemedyLine("as it is", now, "", "")]
    found = [risk for risk in audit.structure if risk.found]
    if any(risk.trees is not None for risk in found):
        lines.append(RemedyLine("a larger min_samples_leaf", ("–", "–"), "", ""))
    if any(risk.keeper is not None for risk in found):
        lines.append(RemedyLine("a model that keeps no records", ("–", "–"), "", ""))
    lines.append(RemedyLine("a linear model with noise", ("–", "–"), "", ""))
    note = "–: not tried"
    return Remedies(("told from outsider", "found at 1 %"), tuple(lines), "", note)


def judge_attack(audit: AttackAudit) -> Verdict:
    """Return the verdict: what the attacks told, never that no more can be told."""
    best = audit.strongest
    ends, rate = best.interval, best.tpr(0.01)
    # Certainly far above a coin toss, or certainly finding five times as many members as outsiders
    if ends.low > 0.6 or rate.interval.low > 0.05:
        tone, label = "bad", "Members can be recognised"
        headline = "Do not release: an attack tells which rows were in the data."
    elif ends.low > 0.5:
        tone, label = "caution", "Some members can be recognised"
        headline = "An attack tells better than a coin toss which rows were in the data."
    else:
        tone, label = "caution", "Nothing was found"
        headline = "No attack tried beats a coin toss; another might."
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
