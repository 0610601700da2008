"""The first screen on recorded rounds: leakage of updates, outlying clients, remedies."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from seepage.auditing.findings import NOT_MEASURED
from seepage.auditing.report.first_screen import (
    Bar,
    Card,
    FirstScreen,
    Histogram,
    Remedies,
    RemedyLine,
)
from seepage.auditing.report.words import bits, called, interval, number, short
from seepage.auditing.rounds.words import PropertyAttack
from seepage.layers.federated.gradients import JOINED
from seepage.layers.measures.independence_test import LEVEL
from seepage.layers.recording_audit import RecordingAudit


def show_recording(
    audit: RecordingAudit, name: str, limited: bool, attacks: tuple[PropertyAttack, ...] = ()
) -> FirstScreen:
    """Return the first screen of an audit of recorded rounds, for the property ``name``.

    If ``limited`` is false, the screen states that no limit was set.
    """
    found, told, apart = audit.layers.v_information, audit.telling(), audit.clients.named()
    ranking = found.ranking()
    best = next((layer for layer in ranking if layer in told), ranking[0])
    k = found.layers.index(best)
    unit, entropy = found.unit, float(found.columns["entropy"][0])
    since = None if audit.over_rounds is None else audit.over_rounds.first()
    who = audit.clients
    furthest, count = int(who.order()[0]), len(who.clients)
    first = attacks[0] if attacks and audit.auxiliary is not None else None
    cards = (
        Card(
            f"“{short(name, 24)}” inferred with auxiliary data (AUC)",
            "0.5",
            f"{first.auc:.3f}",
            "chance → "
            + ("whole updates" if first.layer == JOINED else called(first.layer, "layer", 24)),
            "bad" if audit.told_to_auxiliary() else "",
            "beyond chance" if audit.told_to_auxiliary() else "not beyond chance (5 % level)",
            (f"P {number(first.p_value or 0.0)}, 95 % CI {first.low:.3f} to {first.high:.3f}",),
        )
        if first is not None
        else Card(
            f"“{short(name, 24)}” revealed by a layer",
            "0",
            f"{bits(float(found.values[k]))} {unit}",
            f"nothing → {called(best, 'layer', 24)}, of {number(entropy)} in total",
            "bad" if best in told else "",
            "beyond chance" if best in told else "not beyond chance (5 % level)",
            (
                f"P {number(float(found.columns['p_value'][k]))}, 95 % CI "
                f"{bits(float(found.low[k]))} to {bits(float(found.high[k]))}",
            ),
        ),
        Card(
            "Layers that reveal it",
            "0",
            f"{len(told)} of {len(found)}",
            "none → in this recording",
            "bad" if told else "",
            "none at the 5 % level" if not told else "",
            () if since is None else (f"since round {since}",),
        ),
        Card(
            "Clients who stand out",
            "0",
            f"{len(apart)} of {count}",
            f"none → P ≤ 0.05 among {who.reference:,} simulated clients",
            "bad" if apart else "",
            "" if apart else "none",
            tuple(f"client {short(str(client), 24)}" for client in apart[:3]),
        )
        if who.reference
        else Card(
            f"Furthest of {count} clients",
            "1",
            f"{number(float(who.times[furthest]))} ×",
            "median → furthest",
            "",
            "not tested",
            (f"client {short(str(who.clients[furthest]), 24)}",),
        ),
    )
    return FirstScreen(
        cards,
        _clients(audit),
        _left(audit),
        open=(
            "stronger attackers" if first else "an attacker with auxiliary data (--auxiliary)",
            "accuracy after a change",
            "other properties",
        ),
        standard=None if limited else ("Preset or limit (--max-bits, --max-auc):", "none set"),
    )


def _clients(audit: RecordingAudit) -> Histogram:
    """Return the histogram of clients by their distance from the others."""
    times = np.asarray(audit.clients.times, float)
    edges = np.linspace(0, max(2.0, float(times.max())), 21)
    counts = np.histogram(times, edges)[0]
    named = set(map(str, audit.clients.named()))
    apart = [t for t, who in zip(times, audit.clients.clients, strict=True) if str(who) in named]
    median = int(np.searchsorted(edges, 1.0))
    return Histogram(
        tuple(
            Bar(f"{a:.2f} to {b:.2f} times", int(count), any(a <= t <= b for t in apart))
            for (a, b), count in zip(pairwise(edges), counts, strict=True)
        ),
        "Clients by distance",
        "largest distance in any layer ÷ that layer's median",
        median,
        "median",
        ((0, "0"), (20, number(float(edges[-1])))),
        f"Histogram of the distances of {len(times)} clients, as multiples of the median client's: "
        f"from {number(float(times.min()))} to {number(float(times.max()))}.",
        "clients",
    )


def _left(audit: RecordingAudit) -> Remedies:
    """Return an update's leakage as recorded, then with each remedy, the smallest first."""
    first, *others = audit.layers.remedies
    lines = [
        RemedyLine(
            short(r.name, 60),
            (
                # A test that finds nothing does not show that nothing leaks.
                "yes" if r.p_value <= LEVEL or (r is first and audit.telling()) else "not shown",
                interval(r.value, r.low, r.high),
                f"{r.auc:.3f}",
            ),
            NOT_MEASURED if r is not first else "–",
            "",
        )
        for r in [first, *sorted(others, key=lambda r: r.value)]
    ]
    unit, entropy = audit.layers.v_information.unit, audit.layers.v_information.columns["entropy"]
    # Remedies are tried on the recording alone, by the attacker without auxiliary data.
    told = "still revealed" if audit.auxiliary is None else "inferred without auxiliary data"
    return Remedies(
        (told, f"{unit} left (95 % CI)", "AUC left"),
        tuple(lines),
        "accuracy lost",
        legend=(
            (
                unit,
                "V-information of the whole update or a layer (the entropy of the property: "
                f"{number(float(entropy[0]))})",
            ),
            ("AUC", "area under the ROC curve of property inference (chance: 0.5)"),
        ),
    )
