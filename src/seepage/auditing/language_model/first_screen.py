"""The first screen on a language model: recognised records, exposed secrets, and what helps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from seepage.attacks.extraction.result import ExtractionResult
from seepage.auditing.findings import NOT_MEASURED
from seepage.auditing.language_model.comparison import FPR, TRIES, AttackedModel
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

# Changes that are known to help; their price is measured on a model trained with the change
REMEDIES = (
    "remove duplicates",
    "drop or mask exposed secrets",
    "fewer epochs",
    "smaller LoRA rank",
    "private training",
)


def show_extraction(
    result: ExtractionResult,
    models: Sequence[AttackedModel],
    before: AttackedModel | None,
    limited: bool,
) -> FirstScreen:
    """Return the first screen on ``models[0]``; the other models were each trained with one change.

    If ``limited`` is false, the screen states that no limit was set.
    """
    worst, total, own = result.ranked[0], len(result.secrets), models[0]
    outside = result.likely(TRIES, held_out=True)
    earlier = "–" if worst.base is None else _one_in(math.exp(worst.base))
    cards = [
        _recognised_card(own),
        Card(
            "Most exposed secret",
            earlier,
            _one_in(worst.probability),
            "before fine-tuning → now, for one try",
            "bad" if worst.within_reach(TRIES) else "",
            "greedy decoding emits it" if worst.greedy else "",
            (f"{worst.kind}, in {counted(worst.copies, 'record')}",),
        ),
        Card(
            "Secrets within reach",
            f"{outside} of {len(result.held_out)}" if result.held_out else "–",
            f"{own.within} of {total}",
            "held-out records → training records",
            "bad" if own.within else "",
            "" if own.within else "none by this sampler",
            (f"{TRIES:,} tries, each at least 10 times as likely to succeed as a blind guess",),
        ),
    ]
    measured = [*models[:1], *([] if before is None else [before]), *models[1:]]
    lines = [RemedyLine(each.name, protection_of(each), price_of(each), "") for each in measured]
    left = not_compared(models)
    return FirstScreen(
        tuple(cards),
        _histogram(result),
        Remedies(
            ("within reach", "most exposed", "recognised"),
            tuple(lines),
            error="held-out loss",
            note=f"Not measured: {', '.join(left)} (--compare)." if left else "",
        ),
        open=("attackers with other prompts", "secrets of kinds that were not searched for"),
        standard=None
        if limited
        else ("Limit (--max-probability, --max-exposure, --max-tpr):", "none set"),
    )


def not_compared(models: Sequence[AttackedModel]) -> tuple[str, ...]:
    """Return the known remedies that were not tried in any of the models."""
    return tuple(name for name in REMEDIES if name not in {each.name for each in models})


def _recognised_card(own: AttackedModel) -> Card:
    """Return how many training records membership inference recognises."""
    title = "Training records recognised"
    if own.membership is None:
        meaning = "false positive rate → true positive rate"
        return Card(title, "1 %", NOT_MEASURED, meaning, "", "", ("--held-out",))
    found = own.membership.tpr(FPR)
    low, high = found.interval
    return Card(
        title,
        "1 %",
        f"{100 * found.rate:.3g} %",
        "false positive rate → true positive rate",
        "bad" if low > FPR else "",
        f"95 % CI {100 * low:.2g} to {100 * high:.3g} %",
        (f"AUC {own.membership.auc:.2f}, {own.membership.method}",),
    )


def protection_of(each: AttackedModel) -> tuple[str, ...]:
    """Return as text: secrets within reach, the largest probability, and recognised members."""
    found = each.membership
    recognised = NOT_MEASURED if found is None else f"{100 * found.tpr(FPR).rate:.3g} %"
    return str(each.within), _one_in(each.most_exposed), recognised


def price_of(each: AttackedModel) -> str:
    """Return the loss on held-out records, as text."""
    bits = each.held_out_bits
    return NOT_MEASURED if bits is None else f"{number(bits)} bits/token"


def _one_in(probability: float) -> str:
    if probability <= 0:
        return "never"
    return f"1 in {number(1 / probability)}" if probability < 0.5 else f"{100 * probability:.3g} %"


def _histogram(result: ExtractionResult) -> Histogram:
    """Return a histogram of the tries needed per secret, for training and held-out secrets."""
    most = 12  # powers of ten; the last bar has all that take more

    def counts(logs: list[float]) -> np.ndarray:
        powers = np.clip(-np.maximum(logs, -1e9) / math.log(10), 0, most - 0.5).astype(int)
        return np.bincount(powers, minlength=most)

    # A bar is marked if most of its secrets are within reach: short codes are guessed without any
    # model, so few tries alone do not count.

    own = counts([each.low for each in result.secrets])
    reached = counts([each.low for each in result.secrets if each.within_reach(TRIES)])
    others = counts([each.low for each in result.held_out]) if result.held_out else None
    few = round(math.log10(TRIES))
    bars = tuple(
        Bar(
            f"10^{k} to 10^{k + 1} tries" if k < most - 1 else f"more than 10^{k} tries",
            int(own[k]),
            bool(2 * reached[k] > own[k]),
            None if others is None else int(others[k]),
        )
        for k in range(most)
    )
    return Histogram(
        bars,
        "Secrets by tries",
        "mean number of tries" + " (outlined: held-out secrets)" * bool(result.held_out),
        few,
        f"{TRIES:,} tries",
        ((0, "1"), (4, "10⁴"), (8, "10⁸"), (12, "more")),
        f"Histogram of the tries needed to extract {counted(len(result.secrets), 'secret')}. At "
        f"most {TRIES:,} tries: {int(own[:few].sum())}. Within reach: {int(reached.sum())}.",
        "secrets",
    )
