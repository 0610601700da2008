"""Renders the page on recorded rounds: one self-contained file that runs no script."""

from __future__ import annotations

from typing import Any

from seepage.auditing.report.figures import Drawing, find_drawing
from seepage.auditing.report.page import render_template
from seepage.auditing.report.rounds.figures import ranked_clients
from seepage.auditing.report.rounds.words import (
    SCHEMA,
    RecordingReport,
    interval,
    judge_recording,
    untestable,
)
from seepage.auditing.report.words import number, short

LISTED_LAYERS = 200
LISTED_CLIENTS = 200


def render_recording(report: RecordingReport, figures: tuple[Drawing, ...]) -> str:
    """Return the page of a recording."""
    audit = report.audit
    return render_template(
        "rounds.html.j2",
        report=report,
        audit=audit,
        verdict=judge_recording(report),
        facts=_pick_facts(report),
        layers=_list_layers(report)[:LISTED_LAYERS],
        clients=_list_clients(report)[:LISTED_CLIENTS],
        remedies=[
            {"name": r.name, "left": interval(r.value, r.low, r.high), "p_value": r.p_value}
            for r in audit.layers.remedies
        ],
        untestable=untestable(audit),
        unit=audit.layers.v_information.unit,
        measure=audit.layers.v_information.measure,
        information=find_drawing(figures, "layers"),
        since=find_drawing(figures, "since"),
        apart=find_drawing(figures, "clients"),
        schema=SCHEMA,
    )


def _pick_facts(report: RecordingReport) -> list[dict[str, str]]:
    audit = report.audit
    found, told = audit.layers.v_information, audit.telling()
    entropy = float(found.columns["entropy"][0])
    facts = [
        {
            "name": "Layers that tell",
            "value": f"{len(told)} of {len(found)}",
            "note": f"most: {short(told[0], 30)}" if told else "none at the 5 % level",
        }
    ]
    if audit.over_rounds is not None:
        since = audit.over_rounds.first()
        facts.append(
            {
                "name": "Shows since",
                "value": "–" if since is None else f"round {since}",
                "note": f"of rounds {audit.over_rounds.rounds[0]} to "
                f"{audit.over_rounds.rounds[-1]}, all tests allowed for",
            }
        )
    most = found.ranking()[0]
    facts.append(
        {
            "name": "Most given away by a layer",
            "value": f"{number(round(max(found[most], 0.0), 3))} {found.unit}",
            "note": f"{short(most, 30)}; all there is to know: {number(entropy)}",
        }
    )
    named = audit.clients.named()
    facts.append(
        {
            "name": "Clients who stand out",
            "value": f"{len(named)} of {len(audit.clients.clients)}",
            "note": short(named[0], 30) if len(named) == 1 else "by all that they send",
        }
    )
    return facts


def _list_layers(report: RecordingReport) -> list[dict[str, Any]]:
    audit = report.audit
    found, over, told = audit.layers.v_information, audit.over_rounds, set(audit.telling())
    return [
        {
            "name": found.layers[k],
            "size": found.sizes[k],
            "found": interval(found.values[k], found.low[k], found.high[k]),
            "p_value": found.columns["p_value"][k],
            "since": None if over is None else over.first(found.layers[k]),
            "tells": found.layers[k] in told,
        }
        for k in (found.layers.index(name) for name in found.ranking())
    ]


def _list_clients(report: RecordingReport) -> list[dict[str, Any]]:
    who = report.audit.clients
    named = set(map(str, who.named()))
    return [
        {
            "name": str(who.clients[k]),
            "updates": int(who.updates[k]),
            "layer": who.layer[k],
            "times": float(who.times[k]),
            "p_value": float(who.p_value[k]),
            "apart": str(who.clients[k]) in named,
            "value": None if report.values is None else report.values.get(str(who.clients[k])),
        }
        for k in ranked_clients(report)
    ]
