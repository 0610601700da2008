"""The report on a model without an exact bound: attack results in sentences and files."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seepage.attacks.attribute.any_model import ColumnGuesses
from seepage.attacks.intervals import ConfidenceInterval
from seepage.attacks.membership.inference import MembershipInferenceResult
from seepage.auditing.any_model.findings import AttackAudit
from seepage.auditing.any_model.held_out import HeldOutFinding
from seepage.auditing.decision.presets import PRESETS
from seepage.auditing.findings import FEW, StructuralRisk
from seepage.auditing.report.figures import Drawing
from seepage.auditing.report.first_screen import (
    TONES,
    Bar,
    Card,
    FirstScreen,
    Histogram,
    Remedies,
    RemedyLine,
)
from seepage.auditing.report.rendering import Report, render, tell, to_plain
from seepage.auditing.report.words import Verdict, number, percent, short
from seepage.core.result import NOTICE
from seepage.support.files import write_private
from seepage.tables.names import counted, shown

SCHEMA = "seepage-attack-audit/3"
_RATES = (0.001, 0.01)  # the false positive rates at which members found are stated


class AttackReport(Report):
    """The report of an audit by attack."""

    screen = "attack.txt.j2"

    def __init__(self, audit: AttackAudit, verbose: bool = True) -> None:
        self.audit, self.verbose = audit, verbose

    @cached_property
    def verdict(self) -> Verdict:  # type: ignore[override]
        """The verdict on the attacks, which give lower bounds on leakage."""
        return judge_attack(self.audit)

    def about(self) -> dict[str, Any]:
        """Return the context of the templates."""
        audit = self.audit
        structure = [(risk, tell_risk(risk, audit.held_out)) for risk in audit.structure]
        guesses = sorted(audit.guesses, key=lambda one: -one.with_model.difference)
        return {
            "audit": audit,
            "structure": structure,
            "guesses": guesses,
            "lines": _lines(audit),
            "verbose": self.verbose,
        }

    def page(self, figures: tuple[Drawing, ...]) -> str:
        """Return the page; ``figures`` is not used."""
        screen = show_attack(self.audit)
        return render("attack.html.j2", verdict=self.verdict, screen=screen, **self.about())

    def write_records(self, folder: Path) -> None:
        """Write each record's membership score under the best attack, and its structural risks."""
        audit = self.audit
        scores = np.full(audit.records, np.nan)
        scores[audit.attacked] = audit.strongest.record_scores()
        columns = {"row": np.arange(audit.records), **audit.by_record}
        table = pa.table(columns | {"evidence": pa.array(scores, mask=np.isnan(scores))})
        table = table.replace_schema_metadata({"schema": SCHEMA, "notice": NOTICE})
        write_private(folder / "records.parquet", lambda file: pq.write_table(table, file))

    def summary(self) -> dict[str, Any]:
        """Return the audit as plain JSON values, without per-record results."""
        audit = self.audit
        plain: dict[str, Any] = to_plain(
            {
                "schema": SCHEMA,
                "notice": NOTICE,
                "source": audit.source,
                "model": {"kind": audit.model, "target": audit.target, "records": audit.records},
                **self.verdict.summary(),
                "preset": audit.preset,
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
                "guesses": [summary_of_guesses(one) for one in audit.guesses],
                "groups": [
                    {
                        "column": column,
                        "group": str(group),
                        "guesses": [
                            summary_of_guesses(one.by(labels)[group])
                            for one in audit.guesses
                            if group in one.by(labels)
                        ],
                    }
                    for column, labels in audit.groups.items()
                    for group in np.unique(labels).tolist()
                ],
                "held_out": asdict(audit.held_out),
                "structure": [
                    asdict(risk) | {"text": tell_risk(risk, audit.held_out)}
                    for risk in audit.structure
                ],
                "steps": audit.steps,
                "versions": audit.versions,
            }
        )
        return plain


def summary_of_guesses(one: ColumnGuesses) -> dict[str, Any]:
    """Return the attribute inference results for a column, without per-record results."""
    found, gained = one.with_model, one.gained
    return {
        "name": one.name,
        "kind": one.kind,
        "guess": one.guess,
        "levels": one.levels,
        "records": len(one.rows),
        "baseline": one.baseline,
        "baseline_interval": tuple(one.baseline_interval),
        "members": found.inside,
        "outsiders": found.outside,
        "difference": found.difference,
        "difference_interval": tuple(found.interval("difference")),
        "gain": gained.inside,
        "gain_interval": tuple(gained.interval("inside")),
    }


def all_columns(audit: AttackAudit) -> float:
    """Return the level of each interval for 95 % simultaneous coverage of all columns (Bonferroni).

    Simultaneous coverage is needed because the column shown was selected among all columns.
    """
    return 1 - 0.05 / max(1, len(audit.guesses))


def surely_leaked(audit: AttackAudit) -> tuple[ColumnGuesses, ...]:
    """Return the columns that are guessed significantly better for members than for non-members.

    The 95 % intervals hold for all columns at once, because one of many columns may differ by
    chance.
    """
    level = all_columns(audit)
    found = (one for one in audit.guesses if one.with_model.interval("difference", level).low > 0)
    return tuple(sorted(found, key=lambda one: -one.with_model.difference))


def show_attack(audit: AttackAudit) -> FirstScreen:
    """Return the first screen, which compares attack results with chance."""
    best = audit.strongest
    rate, ends = best.tpr(0.01), best.interval
    sure = ends.low > 0.5 or rate.interval.low > 0.01
    cards = [
        Card(
            "Member vs non-member",
            "50 %",
            percent(best.auc),
            f"chance → {best.method}",
            "bad" if sure else "",
            "the attack beats chance" if sure else "not significantly above chance",
            (f"95 % CI {percent(ends.low)} to {percent(ends.high)}", *_most_surely(audit)),
        )
    ]
    if (most := audit.most_guessed) is not None:
        found, leaked = most.with_model, surely_leaked(audit)
        most = leaked[0] if leaked else most
        found = most.with_model
        more = found.interval("difference", all_columns(audit))
        cards.append(
            Card(
                f"“{short(most.name, 24)}” guessed",
                percent(found.outside),
                percent(found.inside),
                "non-members → members",
                "bad" if leaked else "",
                "the model leaks it" if leaked else "not significant",
                (
                    f"{_points(more.low)} to {_points(more.high)} percentage points (95 % CI, "
                    "simultaneous for all columns)",
                    f"{percent(most.baseline)} without the model",
                ),
            )
        )
    held = audit.held_out
    cards.append(
        Card(
            f"{held.error_name.capitalize()}, new records",
            _error(held, held.constant),
            _error(held, held.error),
            "constant → model",
            TONES[held.compared],
            held.compared,
            (f"95 % CI {_error(held, held.low)} to {_error(held, held.high)}",),
        )
    )
    return FirstScreen(
        tuple(cards),
        _members(best),
        _changes(audit),
        open=("stronger attacks",),
        standard=_standard(audit),
    )


def _standard(audit: AttackAudit) -> tuple[str, str] | None:
    """Return the preset of the limits, and whether an attack exceeds one of them."""
    if audit.preset is None:
        return None if audit.gates else ("Preset or limit:", "none set")
    exceeded = not all(gate.passed for gate in audit.gates)
    words = f"Preset “{audit.preset}” ({PRESETS[audit.preset].audience}):"
    return words, "not met" if exceeded else "not exceeded"


def _most_surely(audit: AttackAudit) -> tuple[str, ...]:
    """Return a phrase with up to three rows that have the strongest evidence of membership."""
    scores = audit.strongest.record_scores()
    first = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")[:3]
    rows = [f"{audit.attacked[k]}" for k in first if scores[k] > 0]
    what = "row" if len(rows) == 1 else "rows"
    return (f"strongest evidence: {what} {', '.join(rows)}",) if rows else ()


def _lines(audit: AttackAudit) -> list[tuple[str, str, str, str]]:
    """Return the first lines for the terminal: numbers with their intervals and baselines."""
    best, held = audit.strongest, audit.held_out
    rate = best.tpr(0.01)
    lines = [
        ("member vs non-member", percent(best.auc), *_between(best.interval), "50 %, chance"),
        ("members found, 1 % false positives", percent(rate.rate), *_between(rate.interval), "1 %"),
    ]
    most = next(iter(surely_leaked(audit)), audit.most_guessed)
    if most is not None:
        found = most.with_model
        ends = found.interval("inside", all_columns(audit))
        name = f"{shown(short(most.name, 16))} of a member guessed"
        ends = ConfidenceInterval(max(ends.low, 0.0), min(ends.high, 1.0))
        beside = f"{percent(found.outside)}, non-members"
        lines.append((name, percent(found.inside), *_between(ends), beside))
    between = f"{_error(held, held.low)} to {_error(held, held.high)}"
    beside = f"{_error(held, held.constant)}, constant"
    lines.append(("error, new records", _error(held, held.error), between, beside))
    lines.append(("structural risks", "{} of {}".format(*_counts(audit)), "–", "none"))
    return lines


def _between(ends: ConfidenceInterval) -> tuple[str]:
    return (f"{percent(ends.low)} to {percent(ends.high)}",)


def _points(difference: float) -> str:
    return f"{100 * difference:.1f}".replace("-", "−")


def _error(held: HeldOutFinding, error: float) -> str:
    return percent(max(error, 0.0)) if held.error_name == "error rate" else number(error)


def _members(attack: MembershipInferenceResult) -> Histogram | None:
    """Return a histogram of one attacked model's scores for members and for non-members."""
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
        "Members (outlined: non-members)",
        "evidence of membership (heights: logarithmic)",
        below,
        "exceeded by 1 % of non-members",
        ((0, number(edges[0])), (below + above, number(edges[-1]))),
        f"Histogram of the evidence of membership for {total:,} members of one attacked model. "
        f"Above the threshold that 1 % of non-members exceed: {found:,}.",
    )


def _changes(audit: AttackAudit) -> Remedies:
    """Return lines for the model, for untried remedies, and for a constant prediction."""
    best, held = audit.strongest, audit.held_out
    now = (percent(best.auc), percent(best.tpr(0.01).rate))
    lines = [
        RemedyLine("as it is", now, _error(held, held.error), held.compared, TONES[held.compared])
    ]
    found = [risk for risk in audit.structure if risk.found]
    if any(risk.trees is not None for risk in found):
        lines.append(RemedyLine("a larger min_samples_leaf", ("–", "–"), "–", ""))
    if any(risk.keeper is not None for risk in found):
        lines.append(RemedyLine("a model that stores no records", ("–", "–"), "–", ""))
    lines.append(RemedyLine("a linear model with noise", ("–", "–"), "–", ""))
    lines.append(RemedyLine("constant prediction", ("–", "–"), _error(held, held.constant), ""))
    note = "–: not tried. Structural risks: {} of {}.".format(*_counts(audit))
    return Remedies(("vs non-member", "found at 1 %"), tuple(lines), note=note)


def _counts(audit: AttackAudit) -> tuple[int, int]:
    """Return how many structural risks were found, and how many apply."""
    known = [risk.found for risk in audit.structure if risk.found is not None]
    return sum(known), len(known)


def judge_attack(audit: AttackAudit) -> Verdict:
    """Return the verdict on the attacks, which give lower bounds on leakage."""
    best = audit.strongest
    ends, rate = best.interval, best.tpr(0.01)
    found = [risk for risk in audit.structure if risk.found]
    kept = next((risk for risk in found if risk.keeper is not None), None)
    leaked = surely_leaked(audit)
    tone = "bad"
    if not all(gate.passed for gate in audit.gates):
        label, headline = "Over the limit", "Do not release: an attack exceeds a limit you set."
    # Certainly far above a coin toss, or certainly finding five times as many members as outsiders
    elif ends.low > 0.6 or rate.interval.low > 0.05:
        label = "Members can be recognised"
        headline = "Do not release: membership inference succeeds."
    elif kept is not None:
        label = "Records are in the model"
        headline = (
            f"Do not release the model file: it contains {counted(kept.records, 'record')} "
            "verbatim."
        )
    elif ends.low > 0.5 or leaked:
        tone = "caution"
        label = "Some members can be recognised" if ends.low > 0.5 else "Values of members leak"
        headline = (
            "Membership inference succeeds more often than by chance."
            if ends.low > 0.5
            else f"An attack guesses “{short(leaked[0].name)}” correctly more often for members "
            "than for non-members."
        )
    else:
        tone, label = "caution", "No attack succeeded" if found else "Nothing was found"
        headline = "No attack that was tried beats chance; another attack might."
    names = f" ({', '.join(risk.name for risk in found)})" if found else ""
    risky, looked = _counts(audit)
    sentences = (
        tell("picks", best, of="attack.j2"),
        tell("members", [_found(best, fpr) for fpr in _RATES], of="attack.j2"),
        *(() if not audit.guesses else (_tell_guesses(audit, leaked),)),
        tell("useful", audit.held_out, of="attack.j2"),
        f"Checks without an attack found {risky or 'none'} of "
        f"{counted(looked, 'structural risk')}{names}.",
        "Results of attacks are lower bounds on leakage: a stronger attack may reveal more. For "
        "linear models released with noise, seepage computes upper bounds on leakage.",
    )
    gates = tuple((gate, tell("gate", gate, of="attack.j2")) for gate in audit.gates)
    return Verdict(tone, label, headline, sentences, gates=gates)


def verdict_in_words(audit: AttackAudit) -> str:
    """Return the verdict in one line, as at the top of the report."""
    verdict = judge_attack(audit)
    return f"{verdict.label}: {verdict.headline}"


def _tell_guesses(audit: AttackAudit, leaked: tuple[ColumnGuesses, ...]) -> str:
    most = leaked[0] if leaked else audit.most_guessed
    more = None if most is None else most.with_model.interval("difference", all_columns(audit))
    return tell("guessed", most, more, len(leaked), len(audit.guesses), of="attack.j2")


def _found(attack: MembershipInferenceResult, fpr: float) -> dict[str, Any]:
    """Return an attack's true positive rate, and whether it significantly exceeds chance."""
    found = attack.tpr(fpr)
    low, high = found.interval.low, found.interval.high
    return {"fpr": fpr, "rate": found.rate, "low": low, "high": high, "sure": low > fpr}


def tell_risk(risk: StructuralRisk, held_out: HeldOutFinding | None = None) -> str:
    """Return a sentence about a structural risk of a model and the number of records affected."""
    return tell("risk", risk, FEW, held_out, of="attack.j2")
