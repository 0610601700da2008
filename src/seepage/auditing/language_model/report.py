"""The report on a language model: its page, summary, screen and table of secrets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seepage.attacks.extraction.result import ExtractionResult, once_in
from seepage.attacks.extraction.shading import shaded_words
from seepage.auditing.findings import Gate
from seepage.auditing.language_model.comparison import FPR, TRIES, AttackedModel
from seepage.auditing.language_model.first_screen import (
    not_compared,
    price_of,
    protection_of,
    show_extraction,
)
from seepage.auditing.report.figures import Drawing
from seepage.auditing.report.rendering import Report, render, to_plain
from seepage.auditing.report.words import Verdict, number
from seepage.core.result import NOTICE
from seepage.support.files import write_private
from seepage.tables.names import counted

SCHEMA = "seepage-extraction/2"
_ADVICE = (
    "Repeated secrets are extracted first: remove duplicates, mask or drop the exposed ones, and "
    "train again.",
    "Fewer epochs and a smaller LoRA rank reduce memorisation, at a cost in accuracy.",
    "Only differential privacy (sp.nn.PrivateSGD, Opacus) bounds every attack, including unknown "
    "ones.",
)


@dataclass(frozen=True, eq=False)
class ExtractionReport(Report):
    """The report of an attack on a language model."""

    result: ExtractionResult
    # The names of the model's folder and of the file of records
    source: str
    records: str
    models: tuple[AttackedModel, ...]  # this model first, then those trained with one change
    before: AttackedModel | None = None  # the model before fine-tuning
    repeated: int = 0  # held-out records that are training records too, left out
    gates: tuple[Gate, ...] = ()  # the limits that were set, and whether they were met
    shows_values: bool = False  # whether the secrets are on the page and in the table
    versions: Mapping[str, str] = field(default_factory=dict)  # of the software that computed it

    screen = "extraction.txt.j2"

    @cached_property
    def verdict(self) -> Verdict:  # type: ignore[override]
        """The verdict: extractable secrets, recognised records, and remedies."""
        result = self.result
        few, total, leaked = self.models[0].within, len(result.secrets), result.leaked()
        outside = result.likely(TRIES, held_out=True)
        recognised = self._recognised()
        beside = f" (held-out: {outside:,} of {len(result.held_out):,})" * bool(result.held_out)
        tone, label = "caution", "No secret is within reach"
        headline = (
            f"None of {counted(total, 'secret')} is within reach (10,000 tries, each at least ten "
            "times as likely to succeed as a blind guess); another attack might find more."
        )
        if few:
            tone, label = "bad", "Secrets can be extracted"
            headline = (
                f"{few:,} of {counted(total, 'secret')} {'is' if few == 1 else 'are'} within "
                f"reach{beside}: 10,000 tries suffice, each at least ten times as likely to "
                f"succeed as a blind guess. "
                f"The most exposed secret is emitted {once_in(result.ranked[0].probability)}."
            )
        if few and leaked is not None and leaked.interval.low <= 0:
            tone, label = "caution", "Not significantly more exposed than held-out secrets"
        if recognised is not None:
            headline = f"{recognised} {headline}"
            if tone != "bad":
                tone, label = "bad", "Training records can be recognised"
        if any(not gate.passed for gate in self.gates):
            tone, label = "bad", "Over the limit"
        return Verdict(
            tone,
            label,
            headline,
            (
                *self._membership_sentences(),
                *self._sentences(),
                *_compared(leaked),
                result.conditions[-1],
            ),
            gates=tuple((gate, _said(gate)) for gate in self.gates),
            advice=tuple(
                zip(("Training text", "Training", "Guarantee"), self._advice(), strict=True)
            ),
        )

    def _recognised(self) -> str | None:
        """Return how many members are recognised, if significantly more than by chance."""
        attack = self.models[0].membership
        if attack is None or attack.tpr(FPR).interval.low <= FPR:
            return None
        rate = 100 * attack.tpr(FPR).rate
        return (
            f"Membership inference recognises {rate:.3g} % of training records at a false positive "
            "rate of 1 %."
        )

    def _membership_sentences(self) -> list[str]:
        attack = self.models[0].membership
        if attack is None:
            return ["Membership inference was not tried: it needs held-out records (--held-out)."]
        found, ends = attack.tpr(FPR), attack.interval
        count = attack.references
        compared = f", {counted(count, 'reference model')}" if count else ""
        lines = [
            f"Membership inference recognises {100 * found.rate:.3g} % of training records at a "
            f"false positive rate of 1 % (95 % CI {100 * found.interval.low:.2g} to "
            f"{100 * found.interval.high:.3g} %); AUC {attack.auc:.2f} ({ends.low:.2f} to "
            f"{ends.high:.2f}), {attack.method}{compared}. Most recognisable: records "
            f"{', '.join(str(each.record) for each in attack.exposed(5))}."
        ]
        earlier = None if self.before is None else self.before.membership
        if earlier is not None and not earlier.interval.low <= 0.5 <= earlier.interval.high:
            low, high = earlier.interval
            lines.append(
                "Caution: the model before fine-tuning already separates training from held-out "
                f"records (AUC {earlier.auc:.2f}, {low:.2f} to {high:.2f}). The two sets differ "
                "in kind, so part of the success is not memorisation."
            )
        if self.repeated:
            lines.append(
                f"{counted(self.repeated, 'held-out record is', 'held-out records are')} also in "
                f"the training text, and {'was' if self.repeated == 1 else 'were'} left out."
            )
        return lines

    def _advice(self) -> tuple[str, ...]:
        return tuple(
            f"{sentence} {'' if self.models[1:] else 'Not measured here.'}".rstrip()
            for sentence in _ADVICE
        )

    def _sentences(self) -> list[str]:
        result = self.result
        greedy = sum(each.greedy for each in result.secrets)
        shown = sum(each.within_top(20) for each in result.secrets)
        lines = [
            f"Most exposed: {result.ranked[0].said} (record {result.ranked[0].record}, "
            f"{result.ranked[0].kind}), by {result.sampler}.",
            f"Greedy decoding emits {counted(greedy, 'secret')}. For {counted(shown, 'secret')}, "
            "every token is among the 20 most probable: an API that returns 20 log-probabilities "
            "reveals the secret's probability without sampling.",
        ]
        repeated = [copies for copies in result.by_copies() if copies > 1]
        if repeated:
            groups = result.by_copies()
            most = max(repeated)
            lines.append(
                f"{counted(sum(groups[c][0] for c in repeated), 'secret is', 'secrets are')} in "
                f"several records. Secrets in {most} records need a median of "
                f"{number(groups[most][1])} tries"
                + (f", and secrets in one record {number(groups[1][1])}." if 1 in groups else ".")
            )
        exposed = [each.exposure for each in result.secrets if each.exposure is not None]
        if exposed:
            best = max(exposed, key=lambda each: each.bits)
            how = "all ranked" if best.enumerated else f"{best.compared:,} drawn"
            lines.append(
                f"Largest exposure: {number(best.bits)} bits among {number(best.candidates)} "
                f"candidates ({how}); the mean for an unseen secret is 1.4 bits."
            )
        near = [each for each in result.secrets if each.near is not None and each.near.hits]
        if near:
            most_near = max(near, key=lambda each: each.near.rate if each.near else 0.0)
            if most_near.near is not None:
                low, high = most_near.near.interval
                lines.append(
                    f"Near-verbatim copies of {counted(len(near), 'secret')} were drawn: of the "
                    f"most frequent, in {100 * most_near.near.rate:.3g} % of tries (95 % CI "
                    f"{100 * low:.3g} to {100 * high:.3g} %)."
                )
        return lines

    def about(self) -> dict[str, Any]:
        """Return the context of the templates: secrets, the most exposed first."""
        rows = [
            {
                "record": each.record,
                "kind": each.kind,
                "copies": each.copies,
                "now": once_in(each.probability),
                "before": None if each.base is None else once_in(math.exp(each.base)),
                "gain": None if each.gain is None else number(each.gain),
                "exposure": None if each.exposure is None else number(each.exposure.bits),
                "greedy": each.greedy,
                "given": each.given[-200:],
                "words": shaded_words(each.tokens, each.token_probability),
            }
            for each in self.result.ranked[:200]
        ]
        return {
            "report": self,
            "result": self.result,
            "secrets": rows,
            "lines": [
                (str(r["record"]), r["kind"], str(r["copies"]), r["now"], r["before"] or "-")
                for r in rows[:8]
            ],
            "leaked": self.result.leaked(),
            "groups": self.result.by_copies(),
            "compared": [
                (each.name, *protection_of(each), price_of(each)) for each in self._measured
            ],
        }

    def page(self, figures: tuple[Drawing, ...]) -> str:
        """Return the page, one self-contained file that runs no script."""
        screen = show_extraction(self.result, self.models, self.before, bool(self.gates))
        values = self.about() | {
            "verdict": self.verdict,
            "schema": SCHEMA,
            "remedies": not_compared(self.models),
            "measured": [each.name for each in self._measured[1:]],
        }
        return render("extraction.html.j2", screen=screen, **values)

    @property
    def _measured(self) -> tuple[AttackedModel, ...]:
        return (self.models[0], *filter(None, [self.before]), *self.models[1:])

    def write_records(self, folder: Path) -> None:
        """Write tables of secrets (their text only if it may be shown) and membership scores."""
        table = self.result.table("pyarrow", values=self.shows_values)
        table = table.replace_schema_metadata({"schema": SCHEMA, "notice": NOTICE})
        write_private(folder / "secrets.parquet", lambda file: pq.write_table(table, file))
        attack = self.models[0].membership
        if attack is None:
            return
        own = attack.scores[0, attack.members[0]]
        columns = {"record": np.arange(len(own)), "membership_score": own}
        scores = pa.table(columns).replace_schema_metadata({"schema": SCHEMA, "notice": NOTICE})
        write_private(folder / "records.parquet", lambda file: pq.write_table(scores, file))

    def summary(self) -> dict[str, Any]:
        """Return the summary as JSON values, without the secrets."""
        plain: dict[str, Any] = to_plain(
            {
                "schema": SCHEMA,
                "notice": NOTICE,
                "source": self.source,
                "records_file": self.records,
                **self.verdict.summary(),
                **self.result.summary(),
                "models": [each.summary() for each in self._measured],
                "held_out_left_out": self.repeated,
                "remedies_measured": [each.name for each in self._measured[1:]],
                "remedies_not_measured": list(not_compared(self.models)),
                "versions": dict(self.versions),
            }
        )
        return plain


def _compared(leaked: Any) -> list[str]:
    if leaked is None:
        return [
            "Held-out records of the same kind would show how much of this leakage is "
            "generalisation."
        ]
    what = "gain" if leaked.of_base else "log-probability"
    sure = "more than" if leaked.interval.low > 0 else "not significantly more than"
    return [
        f"The mean {what} is {number(leaked.members)} bits for training secrets and "
        f"{number(leaked.held_out)} for held-out secrets, {sure} generalisation explains. The "
        f"difference is {number(leaked.difference)} bits (95 % CI {number(leaked.interval.low)} to "
        f"{number(leaked.interval.high)}; rank test, P = {number(leaked.p_value)})."
    ]


def _said(gate: Gate) -> str:
    """Return a sentence that compares a measured number with a limit."""
    if gate.measured is None:
        return "No secret's exposure could be measured."
    end = f"{'within' if gate.passed else 'over'} the limit of {gate.limit:g}"
    if gate.name == "--max-probability":
        what = "In one try, the model emits the most exposed secret with probability"
        return f"{what} {number(gate.measured)}, {end}."
    if gate.name == "--max-tpr":
        what = "Membership inference recognises"
        return (
            f"{what} {100 * gate.measured:.3g} % of training records at a false positive rate of "
            f"1 %, {end}."
        )
    return f"The largest exposure is {number(gate.measured)} bits, {end}."
