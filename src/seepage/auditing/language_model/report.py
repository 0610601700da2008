"""The report on a language model: its page, summary, screen and table of secrets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from seepage.attacks.extraction.result import ExtractionResult, once_in
from seepage.attacks.extraction.shading import shaded_words
from seepage.auditing.findings import Gate
from seepage.auditing.language_model.first_screen import REMEDIES, show_extraction
from seepage.auditing.report.figures import Drawing
from seepage.auditing.report.rendering import Report, render, to_plain
from seepage.auditing.report.words import Verdict, number
from seepage.core.result import NOTICE
from seepage.support.files import write_private
from seepage.tables.names import counted

SCHEMA = "seepage-extraction/1"
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

    result: ExtractionResult  # what was found
    # The names of the model's folder and of the file of records
    source: str
    records: str
    gates: tuple[Gate, ...] = ()  # the limits that were set, and whether they were met
    shows_values: bool = False  # whether the secrets are on the page and in the table
    versions: Mapping[str, str] = field(default_factory=dict)  # of the software that computed it

    screen = "extraction.txt.j2"

    @cached_property
    def verdict(self) -> Verdict:  # type: ignore[override]
        """The verdict: which secrets can be extracted, what fine-tuning leaked, and remedies."""
        result = self.result
        few, total, leaked = result.likely(10_000), len(result.secrets), result.leaked()
        outside = result.likely(10_000, held_out=True)
        beside = f" (held-out: {outside:,} of {len(result.held_out):,})" * bool(result.held_out)
        tone, label = "caution", "No secret is within reach"
        headline = (
            f"None of {counted(total, 'secret')} is extracted within 10,000 tries and ten times as "
            "often as by a blind guess; another attack might extract more."
        )
        if few:
            tone, label = "bad", "Secrets can be extracted"
            headline = (
                f"{few:,} of {counted(total, 'secret')} {'is' if few == 1 else 'are'} extracted "
                f"within 10,000 tries and ten times as often as by a blind guess{beside}; the most "
                f"exposed {once_in(result.ranked[0].probability)}."
            )
        if few and leaked is not None and leaked.interval.low <= 0:
            tone, label = "caution", "No more than held-out records"
        if any(not gate.passed for gate in self.gates):
            tone, label = "bad", "Over the limit"
        return Verdict(
            tone,
            label,
            headline,
            tuple(filter(None, (*self._sentences(), *_compared(leaked), result.conditions[-1]))),
            gates=tuple((gate, _said(gate)) for gate in self.gates),
            advice=tuple(
                zip(("Training text", "Training", "Guarantee"), _not_measured(), strict=True)
            ),
        )

    def _sentences(self) -> list[str]:
        result = self.result
        greedy = sum(each.greedy for each in result.secrets)
        shown = sum(each.within_top(20) for each in result.secrets)
        lines = [
            f"Most exposed: {result.ranked[0].said} (record {result.ranked[0].record}, "
            f"{result.ranked[0].kind}), by {result.sampler}.",
            f"Greedy decoding emits {counted(greedy, 'secret')}; an API that shows the 20 best "
            f"log-probabilities shows every token of {counted(shown, 'secret')}.",
        ]
        repeated = [copies for copies in result.by_copies() if copies > 1]
        if repeated:
            groups = result.by_copies()
            most = max(repeated)
            lines.append(
                f"{counted(sum(groups[c][0] for c in repeated), 'secret')} in several records, up "
                f"to {most}: these need {number(groups[most][1])} tries (median)"
                + (f", secrets in one record {number(groups[1][1])}." if 1 in groups else ".")
            )
        exposed = [each.exposure for each in result.secrets if each.exposure is not None]
        if exposed:
            best = max(exposed, key=lambda each: each.bits)
            how = "all ranked" if best.enumerated else f"{best.compared:,} drawn"
            lines.append(
                f"Largest exposure: {number(best.bits)} bits among {number(best.candidates)} "
                f"candidates ({how}); the mean for an unseen secret is 1.4."
            )
        near = [each for each in result.secrets if each.near is not None and each.near.hits]
        if near:
            most_near = max(near, key=lambda each: each.near.rate if each.near else 0.0)
            if most_near.near is not None:
                low, high = most_near.near.interval
                lines.append(
                    f"Near-verbatim copies of {counted(len(near), 'secret')} were drawn, most "
                    f"often in {100 * most_near.near.rate:.3g} % of tries (95 % CI "
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
        }

    def page(self, figures: tuple[Drawing, ...]) -> str:
        """Return the page, one self-contained file that runs no script."""
        screen = show_extraction(self.result, bool(self.gates))
        values = self.about() | {"verdict": self.verdict, "schema": SCHEMA, "remedies": REMEDIES}
        return render("extraction.html.j2", screen=screen, **values)

    def write_records(self, folder: Path) -> None:
        """Write the table of secrets, with their text only if it may be shown."""
        table = self.result.table("pyarrow", values=self.shows_values)
        table = table.replace_schema_metadata({"schema": SCHEMA, "notice": NOTICE})
        write_private(folder / "secrets.parquet", lambda file: pq.write_table(table, file))

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
                "remedies_measured": ["before fine-tuning"] * self.result.has_base,
                "remedies_not_measured": list(REMEDIES),
                "versions": dict(self.versions),
            }
        )
        return plain


def _not_measured() -> tuple[str, ...]:
    return tuple(f"{sentence} Not measured in this audit." for sentence in _ADVICE)


def _compared(leaked: Any) -> list[str]:
    if leaked is None:
        return ["Held-out records of the same kind would show how much of this is generalisation."]
    what = "gain" if leaked.of_base else "log-probability"
    sure = "beyond" if leaked.interval.low > 0 else "not shown to be beyond"
    return [
        f"Mean {what} of training secrets {number(leaked.members)} bits, of held-out secrets "
        f"{number(leaked.held_out)}: {sure} generalisation by {number(leaked.difference)} (95 % CI "
        f"{number(leaked.interval.low)} to {number(leaked.interval.high)}, rank test P "
        f"{number(leaked.p_value)})."
    ]


def _said(gate: Gate) -> str:
    """Return a sentence that compares a measured number with a limit."""
    if gate.measured is None:
        return "No secret's exposure could be measured."
    end = f"{'within' if gate.passed else 'over'} the limit of {gate.limit:g}"
    if gate.name == "--max-probability":
        what = "One try emits the most exposed secret with probability"
        return f"{what} {number(gate.measured)}, {end}."
    return f"The largest exposure is {number(gate.measured)} bits, {end}."
