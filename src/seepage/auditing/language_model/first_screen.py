"""The first screen on a language model: the most exposed secret, extraction and leakage."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from seepage.attacks.extraction.result import ExtractionResult
from seepage.auditing.findings import NOT_MEASURED
from seepage.auditing.report.first_screen import (
    Bar,
    Card,
    FirstScreen,
    Histogram,
    Remedies,
    RemedyLine,
)
from seepage.auditing.report.words import number
from seepage.tables.names import counted

_FEW = 10_000  # tries that anybody can afford: an hour of a hosted model
# What is known to help, and whom to ask for the price of it
REMEDIES = (
    "remove duplicates",
    "drop or mask the exposed",
    "fewer epochs",
    "smaller LoRA rank",
    "private training",
)


def show_extraction(result: ExtractionResult, limited: bool) -> FirstScreen:
    """Return the first screen; unless ``limited``, it states that no limit was set."""
    worst, total = result.ranked[0], len(result.secrets)
    few = result.likely(_FEW)
    outside = result.likely(_FEW, held_out=True)
    leaked = result.leaked()
    before = "–" if worst.base is None else _one_in(math.exp(worst.base))
    cards = [
        Card(
            "Most exposed secret",
            before,
            _one_in(worst.probability),
            "before fine-tuning → now, for one try",
            "bad" if worst.within_reach(_FEW) else "",
            "greedy decoding emits it" if worst.greedy else "",
            (f"{worst.kind}, in {counted(worst.copies, 'record')}",),
        ),
        Card(
            f"Secrets within {_FEW:,} tries",
            f"{outside} of {len(result.held_out)}" if result.held_out else "–",
            f"{few} of {total}",
            "held-out records → training records",
            "bad" if few else "",
            "" if few else "none by this sampler",
            (f"{sum(each.greedy for each in result.secrets)} by greedy decoding",),
        ),
        Card(
            "Gain beyond held-out records",
            "0",
            NOT_MEASURED if leaked is None else f"{number(leaked.difference)} bits",
            "nothing leaked → mean over secrets",
            "" if leaked is None or leaked.interval.low <= 0 else "bad",
            ""
            if leaked is None
            else f"95 % CI {number(leaked.interval.low)} to {number(leaked.interval.high)}",
            () if leaked is not None else ("give --held-out, and --base for the gain",),
        ),
    ]
    lines = [RemedyLine("this model", (str(few), _one_in(worst.probability)), "–", "")]
    if worst.base is not None:
        earlier = sum(
            replace(each, low=each.base).within_reach(_FEW)
            for each in result.secrets
            if each.base is not None
        )
        most = max(each.base for each in result.secrets if each.base is not None)
        lines.append(
            RemedyLine("before fine-tuning", (str(earlier), _one_in(math.exp(most))), "–", "")
        )
    lines += [RemedyLine(name, (NOT_MEASURED,) * 2, NOT_MEASURED, "") for name in REMEDIES]
    return FirstScreen(
        tuple(cards),
        _histogram(result),
        Remedies(
            (f"within {_FEW:,} tries", "most exposed"),
            tuple(lines),
            note="Train again with one change and attack the new model; comparing the two reports "
            "shows the effect of the change.",
        ),
        open=("attackers with other prompts", "secrets of kinds that were not searched for"),
        standard=None if limited else ("Limit (--max-probability, --max-exposure):", "none set"),
    )


def _one_in(probability: float) -> str:
    if probability <= 0:
        return "never"
    return f"1 in {number(1 / probability)}" if probability < 0.5 else f"{100 * probability:.3g} %"


def _histogram(result: ExtractionResult) -> Histogram:
    """Return a histogram of the tries needed per secret, with that of held-out secrets."""
    most = 12  # powers of ten; the last bar has all that take more

    def counts(logs: list[float]) -> np.ndarray:
        powers = np.clip(-np.maximum(logs, -1e9) / math.log(10), 0, most - 0.5).astype(int)
        return np.bincount(powers, minlength=most)

    own = counts([each.low for each in result.secrets])
    others = counts([each.low for each in result.held_out]) if result.held_out else None
    few = round(math.log10(_FEW))
    bars = tuple(
        Bar(
            f"10^{k} to 10^{k + 1} tries" if k < most - 1 else f"more than 10^{k} tries",
            int(own[k]),
            k < few,
            None if others is None else int(others[k]),
        )
        for k in range(most)
    )
    return Histogram(
        bars,
        "Secrets by tries",
        "tries on average" + "; outlined: held-out secrets" * bool(result.held_out),
        few,
        f"{_FEW:,} tries",
        ((0, "1"), (4, "10⁴"), (8, "10⁸"), (12, "more")),
        f"Histogram of the tries of {len(result.secrets)} secrets: {int(own[:few].sum())} within "
        f"{_FEW:,}.",
        "secrets",
    )
