"""The kept study of the whole gradient inversion, on which Table 1's verdict rests.

``benchmarks/inversion_study.py`` runs the attack of Geiping et al. 2020 on 256 X-rays, with two
networks and two seeds each, until its cost no longer falls.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.plis.chest import Correlation
from reproduction.provenance import kept_by

KEPT = Path(__file__).parents[2] / "benchmarks" / "results" / "inversion_study.json"
ATTACKS = ("deep-0", "deep-1", "strided-0", "strided-1")
# Attacks of a quarter or of twice the steps, and those they are compared with.
OTHER_LENGTHS = {
    "deep-0-times0.25": "deep-0",
    "deep-1-times0.25": "deep-1",
    "strided-0-times2": "strided-0",
}
CLASSES = ("normal", "pneumonia")


@dataclass(frozen=True, eq=False)
class WholeAttacks:
    """The kept numbers, by attack."""

    record: dict[str, Any]

    def extremes(self, measure: str) -> np.ndarray:
        """Return the quality at the lowest and the highest PLIS, (attacks, 2)."""
        name = "at the lowest and the highest PLIS"
        return np.array([self.record[attack][name][measure] for attack in ATTACKS])

    def better(self) -> int:
        """Return in how many attacks the highest PLIS goes with the higher SSIM."""
        low, high = self.extremes("SSIM").T
        return int(np.sum(high > low))

    def correlation(self, score: str, measure: str, among: str = "") -> Correlation:
        """Return the mean rank correlation of a score and a measure of quality.

        It is over all records, or over those of one of the :data:`CLASSES`.
        """
        name = f"{score}, {among}" if among else score
        return Correlation(*self.record["mean over attacks"][name][measure])

    def fall(self) -> float:
        """Return by how much the cost fell over the last eighth, the largest median."""
        name = "curve, fall over the last eighth, median"
        return max(float(self.record[attack][name]) for attack in ATTACKS)

    def curves(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return steps and median cost of every attack, over the end of that of usual length."""
        name, found = "curve, median over records", {}
        for attack in (*ATTACKS, *OTHER_LENGTHS):
            cost = np.array(self.record[attack][name])
            last = int(self.record[attack]["steps"])
            steps = last * np.arange(1, len(cost) + 1) / len(cost)
            found[attack] = steps, cost / self.record[OTHER_LENGTHS.get(attack, attack)][name][-1]
        return found

    def settled(self) -> tuple[float, float]:
        """Return how little other lengths change.

        First the least rank correlation of the records' errors, then the largest change of the
        median SSIM.
        """
        ranks = self.record["rank correlation of errors between attacks"]
        alike, changes = [], []
        for other, usual in OTHER_LENGTHS.items():
            (rank,) = (ranks[p] for p in (f"{other}, {usual}", f"{usual}, {other}") if p in ranks)
            alike.append(float(rank[0]))
            a, b = (self.record[n]["least and quartiles"]["SSIM"][2] for n in (other, usual))
            changes.append(abs(a - b))
        return min(alike), max(changes)

    def extremes_settled(self) -> float:
        """Return by how much other lengths change the SSIM at the lowest and the highest PLIS."""
        name = "at the lowest and the highest PLIS"
        changes = [
            np.subtract(self.record[other][name]["SSIM"], self.record[usual][name]["SSIM"])
            for other, usual in OTHER_LENGTHS.items()
        ]
        return float(np.max(np.abs(changes)))

    def steps(self) -> int:
        """Return the steps of an attack."""
        return int(self.record[ATTACKS[0]]["steps"])

    def records(self) -> int:
        """Return how many records were attacked."""
        return int(self.record[ATTACKS[0]]["records"])

    def kept(self) -> tuple[str, ...]:
        """Return where the results come from: the attacks' commands, then that of the figures."""
        made, device = self.record["made"], self.record["attacked on"]
        by_starts: dict[int, list[str]] = {}
        for attack in (*ATTACKS, *OTHER_LENGTHS):
            by_starts.setdefault(int(self.record[attack]["starting points"]), []).append(attack)
        attacks = [
            f"attacked by `python benchmarks/inversion_study.py --attack IMAGES OUT --restarts "
            f"{starts} --pieces {','.join(names)}`; {device}."
            for starts, names in sorted(by_starts.items())
        ]
        return (kept_by(KEPT.name, made | {"machine": device}), *attacks)


@cache
def whole_attacks() -> WholeAttacks:
    """Return the kept study."""
    return WholeAttacks(json.loads(KEPT.read_text(encoding="utf-8")))
