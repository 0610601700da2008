"""Membership and label guesses of all records, against X·H⁻¹ and against refitting them all.

Claims, all measured in this run after the fit (in processor time, which other work on the machine
disturbs least; the best of five runs for products and of three for intervals), for logistic
regression on MNIST's digits 0/1 (n = 12,665, d = 784) and on UCI Adult (n = 30,162, d = 86):

- at λ = 1e-2 intervals for the membership of all records within 20 products and for a guess of
  their labels within 60, no wider than ±5 % of the distance for 99 % of the records;
- each at least 100 times faster than refitting for every record, in batches, warm-started at the
  fitted parameters (extrapolated from a sample; refits started from the expansion are shown as
  well);
- at λ = 1e-4 the 200 records with the largest distances are refitted exactly, and all of these
  refits lie inside their intervals; the shares of records by the width of their intervals are
  printed.

With the real data sets in SEEPAGE_DATA; otherwise random tables of the same sizes. The figures of
the real ones are kept in ``results/finite_changes.json``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import seepage as sp
from glm_rows import adult, mnist, table
from keeping import keep
from measuring import show
from seepage.core.finite_changes import (
    Alternatives,
    Moves,
)
from seepage.glm.changes.batched_refits import Change
from seepage.glm.changes.changed_records import ChangedRecords
from seepage.glm.changes.local_model import LocalModel

WIDTHS = (56, 10, 10)
REFITTED, SAMPLE = 200, 100
KEPT = Path(__file__).parent / "results" / "finite_changes.json"


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return an answer and the seconds of processor time it took."""
    start = time.process_time()
    answer = work()
    return answer, time.process_time() - start


def half_widths(moves: Moves) -> np.ndarray:
    """Return the relative uncertainty of each record's largest distance; 1 if unknown."""
    least, most = (ends.max(axis=1) for ends in moves.distances())
    return np.where(np.isfinite(most), (most - least) / np.maximum(most + least, 1e-300), 1.0)


def shares(widths: np.ndarray) -> str:
    """Return how many records are known to what precision."""
    known = [f"{100 * np.mean(widths <= w):.2f} % to ±{100 * w:g} %" for w in (0.01, 0.05, 0.25)]
    ends = f"{100 * np.mean(widths < 1):.2f} % with a lower end above zero"
    return f"{', '.join(known)}, {ends}; largest half width {100 * widths.max():.3g} %"


class Question:
    """The question about every record: what if it were left out, or had another label."""

    def __init__(self, name: str, changes: Callable[[], ChangedRecords], flips: bool) -> None:
        self.name, self.changes, self.flips = name, changes, flips

    def certified(self) -> Moves:
        """Answer for all records without a refit."""
        changes = self.changes()
        rows = np.arange(changes.records)
        if not self.flips:
            return changes.moves(rows)
        return changes.moves(rows, Alternatives(labels=changes.class_labels()))

    def warm_started(self, rows: np.ndarray) -> None:
        """Refit for some records, starting at the fitted parameters."""
        changes = self.changes()
        if self.flips:
            flipped = [(changes.model.X[i], 1 - changes.target[i]) for i in rows]
            every = [Change(np.array([i]), x, y) for i, (x, y) in zip(rows, flipped, strict=True)]
        else:
            every = [Change(np.array([i])) for i in rows]
        changes.refits.moves(every)

    def refitted(self, rows: np.ndarray) -> Moves:
        """Answer for some records by refits started from the expansion."""
        changes = self.changes()
        if not self.flips:
            return changes.moves_exactly(np.asarray(rows))
        return changes.moves_exactly(rows, Alternatives(labels=changes.class_labels()))


def compare(name: str, X: np.ndarray, y: np.ndarray, l2: float) -> dict[str, float]:
    """Ask both questions about one table; print and return the findings."""
    n, d = X.shape
    model = sp.glm.LogisticRegression(l2=l2).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1e-2))
    inverse = np.linalg.inv(np.linalg.inv(leak.jacobian.whitener))
    product = min(timed(lambda: X @ inverse)[1] for _ in range(5))
    print(f"\n{name}: n = {n:,}, d = {d}, logistic regression, λ = {l2:g}, σ = 0.01")
    show("", "seconds", "products", widths=WIDTHS)

    def line(what: str, seconds: float) -> None:
        show(what, f"{seconds:.3g}", f"{seconds / product:.4g}", widths=WIDTHS)

    line("the product X·H⁻¹", product)
    found: dict[str, float] = {}
    release = leak.release

    def changes() -> ChangedRecords:  # fresh, with nothing cached
        return ChangedRecords(LocalModel(release.optimum, release.template.X, release.noise))

    questions = [Question("membership", changes, False), Question("label", changes, True)]
    for question in questions:
        moves, taken = min((timed(question.certified) for _ in range(3)), key=lambda run: run[1])
        widths = half_widths(moves)
        line(f"{question.name} of all records, certified", taken)
        print(f"  {shares(widths)}")
        some = np.random.default_rng(0).choice(n, SAMPLE, replace=False)
        _, for_some = timed(lambda some=some, ask=question: ask.warm_started(some))
        every = for_some / SAMPLE * n
        line(f"{question.name} of all records, warm-started refits ({SAMPLE} timed)", every)
        _, for_some = timed(lambda some=some, ask=question: ask.refitted(some))
        line(f"the same, started by the expansion ({SAMPLE} timed)", for_some / SAMPLE * n)
        least, most = (ends.max(axis=1) for ends in moves.distances())
        top = np.argsort(-moves.expected().max(axis=1), kind="stable")[:REFITTED]
        exact, for_top = timed(lambda top=top, ask=question: ask.refitted(top))
        truth = exact.distances()[1].max(axis=1)
        inside = bool(np.all((least[top] <= 1.0000001 * truth) & (truth <= 1.0000001 * most[top])))
        line(
            f"the {REFITTED} most exposed, refits, all {'in' if inside else 'NOT IN'}side", for_top
        )
        quantiles = ", ".join(f"{np.quantile(truth, q):.3g}" for q in (0.0, 0.5, 1.0))
        print(f"  their distances, least, median and largest: {quantiles}")
        found |= {
            f"{question.name} products": taken / product,
            f"{question.name} share": float(np.mean(widths <= 0.05)),
            f"{question.name} lower ends above zero": float(np.mean(widths < 1)),
            f"{question.name} refits, products": every / product,
            f"{question.name} ratio": every / taken,
            f"{question.name} ratio with top": every / (taken + for_top),
            f"{question.name} inside": float(inside),
        }
    return found


def main() -> int:
    """Measure, print, compare with the claims, and keep the figures."""
    tables = {
        "MNIST 0/1": table(lambda: mnist(False), 12_665, 784),
        "UCI Adult": table(adult, 30_162, 86),
    }
    good, lines = True, []
    figures: dict[str, dict[str, Any]] = {name: {} for name in tables}
    for name, (X, y, what) in tables.items():
        for l2 in (1e-2, 1e-4):
            found = compare(f"{name} ({what})", X, y, l2)
            figures[name][f"λ = {l2:g}"] = found
            claims: list[tuple[str, float, str, float]] = []
            for ask, limit in (("membership", 20), ("label", 60)):
                inside, ratio = found[f"{ask} inside"], found[f"{ask} ratio"]
                claims += [
                    (f"{ask}: refits inside the intervals", inside, "≥", 1),
                    (f"{ask}: intervals 100 times faster than refits", ratio, "≥", 100),
                ]
                if l2 == 1e-2:
                    claims += [
                        (f"{ask} within {limit} products", found[f"{ask} products"], "≤", limit),
                        (f"{ask} to ±5 % for 99 %", found[f"{ask} share"], "≥", 0.99),
                    ]
                both = found[f"{ask} ratio with top"]
                lines.append(
                    f"        {name}, λ = {l2:g}, {ask}: with the {REFITTED} most exposed "
                    f"refitted, {both:,.4g} times faster (at most {len(X) / REFITTED:.4g} if those "
                    "refits took as long as others)"
                )
            for claim, value, sign, limit in claims:
                met = value <= limit if sign == "≤" else value >= limit
                good &= met
                lines.append(
                    f"{'kept' if met else 'MISSED':<7} {name}, λ = {l2:g}, {claim}: {value:,.4g}"
                )
    print("", *lines, sep="\n")
    if all(what == "real data" for _, _, what in tables.values()):
        keep({"refitted": REFITTED, **figures}, KEPT)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
