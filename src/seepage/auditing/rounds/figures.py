"""Figures on recorded rounds: leakage by layer and round, and outlying clients."""

from __future__ import annotations

from typing import Any

import numpy as np

from seepage.auditing.report.figures import (
    BLUE,
    INK,
    MUTED,
    VERMILLION,
    Drawing,
    name_rows,
    render,
    word_ticks,
)
from seepage.auditing.report.words import number, short
from seepage.layers.measures.independence_test import LEVEL
from seepage.layers.recording_audit import RecordingAudit
from seepage.tables.names import counted


def draw_recording(audit: RecordingAudit) -> tuple[Drawing, ...]:
    """Return the figures of a recording."""
    drawn = [draw_information(audit), draw_since(audit), draw_clients(audit)]
    return tuple(figure for figure in drawn if figure is not None)


def shown_layers(audit: RecordingAudit) -> list[int]:
    """Return the positions of the layers to draw, in network order."""
    information = audit.layers.v_information
    first = information.ranking()[:24]
    return [k for k, name in enumerate(information.layers) if name in first]


def draw_information(audit: RecordingAudit) -> Drawing:
    """Draw how much each layer leaks about the property, with intervals."""
    by_layer, telling = audit.layers.v_information, set(audit.telling())
    kept = shown_layers(audit)
    entropy = float(by_layer.columns["entropy"][0])
    values = np.maximum(by_layer.values[kept], 0)
    ends = np.maximum(np.stack([by_layer.low[kept], by_layer.high[kept]]), 0)
    names = [by_layer.layers[k] for k in kept]
    places = np.arange(len(kept))

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        for shown, colour, words in (
            ([name in telling for name in names], VERMILLION, "reveals it (5 % level)"),
            ([name not in telling for name in names], BLUE, "not significant"),
        ):
            if any(shown):
                mask = np.array(shown)
                axes.barh(places[mask], values[mask], 0.6, color=colour, label=words)
        axes.hlines(places, ends[0], ends[1], color=INK, lw=1.4)
        axes.axvline(entropy, color=INK, lw=1.4, ls=(0, (4, 3)))
        axes.set_xlim(0, max(entropy, float(ends.max())) * 1.06)
        name_rows(axes, names, narrow)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(
            f"V-information ({by_layer.unit})"
            if narrow
            else f"V-information about the property ({by_layer.unit}; dashed: the entropy)"
        )
        figure.legend(loc="outside upper left", ncols=2, columnspacing=1.2)

    most = by_layer.ranking()[0]
    caption = (
        "Bars are estimates on the updates of clients that were not used to train the attack; "
        "lines are 95 % intervals. With few clients, the intervals are wide."
    )
    alternative = (
        f"V-information of {counted(len(kept), 'layer')} about the property. The V-information is "
        f"largest at {short(most)}, {number(max(by_layer[most], 0))} of {number(entropy)} "
        f"{by_layer.unit}, and significant at the 5 % level in {counted(len(telling), 'layer')}."
    )
    height = 1.25 + 0.33 * len(kept)
    return render("layers", alternative, caption, draw, (height, height))


def draw_since(audit: RecordingAudit) -> Drawing | None:
    """Draw after which rounds each layer reveals the property; ``None`` without several rounds."""
    over = audit.over_rounds
    if over is None or len(over.rounds) < 2:
        return None
    kept = shown_layers(audit)
    names = [over.layers[k] for k in kept]
    sure = over.p_values[:, kept].T <= LEVEL
    places = np.arange(len(over.rounds))

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        rows, columns = np.nonzero(sure)
        size = 34 if narrow or len(places) > 14 else 80
        hollow = np.nonzero(~sure)
        axes.scatter(
            hollow[1],
            hollow[0],
            s=size,
            marker="s",
            facecolors="none",
            edgecolors=MUTED,
            lw=1,
            label="not significant (5 % level)",
        )
        axes.scatter(columns, rows, s=size, marker="s", color=VERMILLION, label="reveals it")
        axes.set_xlim(-0.6, len(places) - 0.4)
        name_rows(axes, names, narrow)
        step = max(1, len(places) // (6 if narrow else 12))
        axes.set_xticks(places[::step], [str(over.rounds[k]) for k in places[::step]])
        axes.grid(visible=False)
        axes.set_xlabel("last round of the updates used")
        figure.legend(loc="outside upper left", ncols=2, handletextpad=0.2, columnspacing=1.2)

    first = over.first()
    caption = (
        "A filled square means that an observer of the updates up to that round can infer the "
        "property from that layer (P at most 0.05, adjusted for all rounds and layers)."
    )
    alternative = (
        f"The first of {counted(len(over.rounds), 'round')} after which each of "
        f"{counted(len(kept), 'layer')} reveals the property: "
        + (
            "none at the 5 % level."
            if first is None
            else "; ".join(
                f"{short(name, 24)} since round {over.first(name)}"
                for name in names
                if over.first(name) is not None
            )
            + "."
        )
    )
    height = 1.3 + 0.33 * len(kept)
    return render("since", alternative, caption, draw, (height, height))


def draw_clients(audit: RecordingAudit) -> Drawing:
    """Draw how far each client's updates lie from those of the others."""
    who, kept = audit.clients, audit.clients.order()[:30]
    named = set(map(str, who.named()))
    times = who.times[kept]
    apart = np.array([str(who.clients[k]) in named for k in kept])
    places = np.arange(len(kept))

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        axes.hlines(places, 1, times, color=MUTED, lw=1.5)
        for mask, colour, marker, words in (
            (apart, VERMILLION, "o", "stands out (5 % level)"),
            (~apart, BLUE, "s", "not significant" if who.reference else "client"),
        ):
            if mask.any():
                axes.scatter(
                    times[mask],
                    places[mask],
                    s=46,
                    color=colour,
                    marker=marker,
                    zorder=3,
                    label=words,
                )
        axes.axvline(1, color=INK, lw=1.4, ls=(0, (4, 3)))
        axes.set_xscale("log")
        axes.set_xlim(min(1.0, float(times.min())) / 1.2, max(2.0, float(times.max())) * 1.2)
        name_rows(axes, [str(who.clients[k]) for k in kept], narrow, 24)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(
            "× the median client"
            if narrow
            else "distance from the middle ÷ that of the median client"
        )
        word_ticks(axes.xaxis)
        figure.legend(loc="outside upper left", ncols=2, handletextpad=0.2, columnspacing=1.2)

    caption = (
        "Each client is shown at the layer where it lies furthest from the others. One "
        "client is always the furthest: without simulated clients, this is no evidence that it "
        "differs."
        if not who.reference
        else f"Each client is compared with {who.reference:,} simulated clients, at the layer in "
        "which it lies furthest from the others."
    )
    alternative = (
        f"Distance of {counted(len(kept), 'client')} from the middle, relative to the median "
        f"client: from {number(float(times.min()))} to {number(float(times.max()))}; "
        + (
            f"{counted(len(named), 'client stands', 'clients stand')} out at the 5 % level."
            if who.reference
            else "no client was tested."
        )
    )
    height = 1.25 + 0.31 * len(kept)
    return render("clients", alternative, caption, draw, (height, height))
