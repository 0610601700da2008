"""The report on recorded rounds: its page, summary, screen and table of clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from seepage.auditing.findings import Gate
from seepage.auditing.report.figures import Drawing
from seepage.auditing.report.rendering import Report, render, to_plain
from seepage.auditing.report.words import Verdict, interval, number
from seepage.auditing.rounds.figures import draw_recording
from seepage.auditing.rounds.first_screen import show_recording
from seepage.auditing.rounds.words import PropertyAttack, advise, judge_recording
from seepage.core.result import NOTICE
from seepage.layers.federated.gradients import JOINED
from seepage.layers.recording_audit import RecordingAudit
from seepage.support.files import write_private
from seepage.tables.names import shown

SCHEMA = "seepage-rounds/3"


@dataclass(frozen=True, eq=False)
class RecordingReport(Report):
    """The report of an audit of a recording."""

    audit: RecordingAudit
    # The names of the recording and of the property
    source: str
    property: str
    gates: tuple[Gate, ...] = ()  # the limits that were set, and whether they were met
    values: Mapping[str, str] | None = None  # the property's value by client, if it is shown
    versions: Mapping[str, str] = field(default_factory=dict)  # of the software that computed it
    attacks: tuple[PropertyAttack, ...] = ()  # the best layer of every attacker

    screen = "rounds.txt.j2"

    @cached_property
    def verdict(self) -> Verdict:  # type: ignore[override]
        """The verdict: leaking layers, the first round that leaks, outlying clients, and advice."""
        return judge_recording(self.audit, self.property, self.gates, self.attacks)

    def figures(self) -> tuple[Drawing, ...]:
        """Return the figures of the page."""
        return draw_recording(self.audit)

    def about(self) -> dict[str, Any]:
        """Return the context of the templates; layers that reveal the property come first."""
        audit, who = self.audit, self.audit.clients
        by_name = {layer["name"]: layer for layer in self._layers()}
        ranking = audit.layers.v_information.ranking()
        # An estimate that is not significant may be large: the layers that reveal it come first.
        layers = sorted((by_name[name] for name in ranking), key=lambda layer: not layer["tells"])
        named, known = set(map(str, who.named())), self.values or {}
        clients = [
            {
                "name": str(who.clients[k]),
                "updates": int(who.updates[k]),
                "layer": who.layer[k],
                "times": float(who.times[k]),
                "p_value": float(who.p_value[k]),
                "apart": str(who.clients[k]) in named,
                "place": place,
                "value": known.get(str(who.clients[k])),
            }
            for place, k in enumerate(who.order().tolist(), start=1)
        ]
        return {
            "report": self,
            "audit": audit,
            "layers": layers,
            "clients": clients,
            "entropy": float(audit.layers.v_information.columns["entropy"][0]),
            "unit": audit.layers.v_information.unit,
            "layer_lines": [
                (
                    shown(layer["name"])[1:-1],
                    interval(layer["value"], layer["low"], layer["high"]),
                    number(float(layer["p_value"])),
                    "-" if layer["since"] is None else str(layer["since"]),
                    "reveals it" if layer["tells"] else "",
                )
                for layer in layers[:12]
            ],
            # Three if nobody stands out
            "client_lines": [
                (
                    c["name"],
                    f"{c['times']:.3g}",
                    shown(c["layer"])[1:-1],
                    f"{c['p_value']:.3g}" if who.reference else f"{c['place']} of {len(clients)}",
                    "stands out" if c["apart"] else "",
                )
                for c in clients[: max(3, min(len(named), 12))]
            ],
        }

    def _layers(self) -> list[dict[str, Any]]:
        """Return the results of each layer, in the order of the network."""
        information, over = self.audit.layers.v_information, self.audit.over_rounds
        telling, auxiliary = set(self.audit.telling()), self.audit.auxiliary
        areas: dict[str, float] = {}
        p_values: dict[str, float] = {}
        if auxiliary is not None:
            areas = dict(zip(auxiliary.layers, auxiliary.auc.tolist(), strict=True))
            p_values = dict(zip(auxiliary.layers, auxiliary.p_values.tolist(), strict=True))
        return [
            {
                "name": name,
                "size": information.sizes[k],
                "value": float(information.values[k]),
                # Information is never negative; only its held-out estimate may be.
                "low": max(0.0, float(information.low[k])),
                "high": max(0.0, float(information.high[k])),
                "p_value": information.columns["p_value"][k],
                "tells": name in telling,
                "since": None if over is None else over.first(name),
                "auc": None if auxiliary is None else areas.get(name),
                "auc_p_value": None if auxiliary is None else p_values.get(name),
            }
            for k, name in enumerate(information.layers)
        ]

    def page(self, figures: tuple[Drawing, ...]) -> str:
        """Return the page, one self-contained file that runs no script."""
        drawings = {figure.name: figure for figure in figures}
        values = self.about() | {
            "verdict": self.verdict,
            "drawings": drawings,
            "schema": SCHEMA,
            "joined": JOINED,
        }
        screen = show_recording(self.audit, self.property, bool(self.gates), self.attacks)
        return render("rounds.html.j2", screen=screen, **values)

    def write_records(self, folder: Path) -> None:
        """Write the table of clients."""
        table = self.audit.clients.table("pyarrow")
        table = table.replace_schema_metadata({"schema": SCHEMA, "notice": NOTICE})
        write_private(folder / "clients.parquet", lambda file: pq.write_table(table, file))

    def summary(self) -> dict[str, Any]:
        """Return the summary as JSON values, without any client; see ``docs/report.md``."""
        audit, over = self.audit, self.audit.over_rounds
        known_as = {"name": "layer", "value": "v_information", "since": "since_round"}
        summary = {
            "schema": SCHEMA,
            "notice": NOTICE,
            "source": self.source,
            "property": self.property,
            **self.verdict.summary(),
            "recording": {
                "updates": audit.updates,
                "clients": len(audit.clients.clients),
                "rounds": audit.rounds,
                "runs": audit.runs,
                "set_aside": audit.set_aside or None,
                "metrics": audit.metrics,
            },
            "attacks": [asdict(attack) for attack in self.attacks],
            "unit": audit.layers.v_information.unit,
            "entropy": audit.layers.v_information.columns["entropy"][0],
            "layers": [
                {known_as.get(key, key): value for key, value in layer.items()}
                for layer in self._layers()
            ],
            "rounds": over
            and {key: getattr(over, key) for key in ("rounds", "layers", "p_values")},
            "least_p_value": over and audit.least_p_value(),
            "clients_standing_out": len(audit.clients.named()) if audit.clients.reference else None,
            "remedies": [
                asdict(replace(remedy, low=max(0.0, remedy.low), high=max(0.0, remedy.high)))
                for remedy in audit.layers.remedies
            ],
            "advice": [
                asdict(advice) | {"text": text}
                for advice, (_, text) in zip(advise(audit), self.verdict.advice, strict=True)
            ],
            "notes": [*audit.notes, *audit.layers.notes],
            "versions": self.versions,
        }
        plain: dict[str, Any] = to_plain(summary)
        return plain
