"""The figure of a guarantee: the ROC curves that it allows, as SVG or PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from seepage.auditing.report.figures import BLUE, MUTED, ORANGE, house_style
from seepage.errors import InputError
from seepage.privacy.trade_off import TradeOff
from seepage.support.files import check_path, write_private
from seepage.tables.names import shown


def draw_picture(path: Path, title: str, curves: Sequence[tuple[str, TradeOff]]) -> Path:
    """Draw each reading's ROC curve and the chance line, for false positive rates from 0.01 %."""
    from matplotlib.figure import Figure

    check_path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("svg", "png"):
        raise InputError(f"A picture must be an .svg or .png file, not {shown(path.name)}.")
    rates = np.geomspace(1e-4, 1.0, 81)
    buffer = io.BytesIO()
    with house_style("explanation"):
        figure = Figure(figsize=(6.4, 4.8), layout="constrained")
        axes = figure.add_subplot()
        for (name, curve), colour, style in zip(curves, (BLUE, ORANGE), ("-", "--"), strict=False):
            axes.plot(rates, curve.tpr(rates), color=colour, linestyle=style, label=name)
        axes.plot(rates, rates, color=MUTED, linestyle=":", label="no release")
        axes.set(xscale="log", xlim=(1e-4, 1), ylim=(0, 1.02), title=title)
        ticks = ("0.01 %", "0.1 %", "1 %", "10 %", "100 %")
        axes.set_xticks(np.geomspace(1e-4, 1.0, len(ticks)), ticks)
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("true positive rate, at most")
        figure.legend(loc="outside lower left", ncols=3)
        details = {"Title": title} | ({"Date": None, "Creator": None} if kind == "svg" else {})
        figure.savefig(buffer, format=kind, metadata=details, dpi=150)
    try:
        write_private(path, lambda file: file.write(buffer.getvalue()))
    except OSError as error:
        raise InputError(
            f"The picture cannot be written to {shown(path.name)}: {error.strerror or error}. "
            "Choose another path."
        ) from error
    return path
