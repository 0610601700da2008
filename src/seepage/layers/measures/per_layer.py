"""One number per layer with its interval: the result that all per-layer measures return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seepage.errors import InputError, nearest
from seepage.tables.source import build_frame

NOTICE = "These numbers depend on the data and are themselves sensitive: do not publish them."
_BAR, _WORST, _INK = (
    "#0072b2",
    "#d55e00",
    "#1c2530",
)  # distinguishable to every kind of colour vision


@dataclass(frozen=True, eq=False, repr=False)
class PerLayer:
    """A measure of every layer, with a confidence interval, a table and a figure.

    ``numpy.asarray`` gives the numbers; ``result["fc1"]`` that of one layer.

    Parameters
    ----------
    measure
        What was measured, in words.
    layers
        The names of the layers, in the order of the network.
    values
        One number per layer.
    low, high
        The ends of the 95 % confidence intervals.
    sizes
        How many numbers each layer's gradient has.
    kind
        ``exact``, ``estimate`` or ``attack``.
    unit
        Their unit; empty if they have none.
    columns
        Further columns of the table.
    notes
        What a reader of the numbers must know.
    by_record
        The numbers of each record, ``(n, layers)``, if the measure is a mean over records.
    errors
        For estimates, the standard error of every entry of ``by_record``; zero where it is exact.
    negligible
        Numbers up to this count as zero in the ranking.
    """

    measure: str
    layers: tuple[str, ...]
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    sizes: tuple[int, ...]
    kind: str = "estimate"
    unit: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    by_record: np.ndarray | None = None
    errors: np.ndarray | None = None
    negligible: float = 0.0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: str) -> float:
        if layer not in self.layers:
            raise InputError(
                f"There is no layer {layer!r}{nearest(layer, self.layers)}; there are "
                f"{', '.join(self.layers)}."
            )
        return float(self.values[self.layers.index(layer)])

    def ranking(self) -> list[str]:
        """Return the layers, the one that gives most away first; those without a number last.

        Layers that are equal in four significant digits stand in the order of the network, and so
        do those whose number is below zero or ``negligible``: further digits depend on the
        processor.
        """
        return [self.layers[k] for k in np.argsort(-self._rounded(), kind="stable")]

    def _rounded(self) -> np.ndarray:
        """Return the numbers that the ranking compares; minus infinity where there is none."""
        some = np.where(self.values > self.negligible, self.values, 0.0)
        rounded = np.array([float(f"{value:.4g}") for value in some])
        return np.where(np.isnan(self.values), -np.inf, rounded)

    def foremost(self) -> list[str]:
        """Return the first layer of the ranking, and those whose interval overlaps its own."""
        first = self.layers.index(self.ranking()[0])
        reach = dict(zip(self.layers, self.high, strict=True))
        return [name for name in self.ranking() if reach[name] >= self.low[first]]

    def relative(self) -> np.ndarray:
        """Return the numbers divided by the largest of them (Figure 3 of paper 003)."""
        return np.asarray(self.values / np.nanmax(self.values))

    def correlation(self, other: PerLayer | np.ndarray) -> tuple[float, float]:
        """Return Pearson's correlation with another measure over the layers, and its p-value."""
        from scipy.stats import pearsonr

        if isinstance(other, PerLayer) and other.layers != self.layers:
            raise InputError(
                "The two results are about different layers; measure the same layers twice."
            )
        found = pearsonr(self.values, np.asarray(other))
        return float(found.statistic), float(found.pvalue)

    def table(self, library: str = "pyarrow") -> Any:
        """Return a data frame with one row per layer: ``pandas``, ``polars`` or ``pyarrow``."""
        columns = {
            "layer": list(self.layers),
            "size": list(self.sizes),
            "value": self.values,
            "low": self.low,
            "high": self.high,
        }
        return build_frame(columns | dict(self.columns), library)

    def figure(self) -> Any:
        """Return a matplotlib figure: a bar for every layer, with its interval."""
        return draw_layers([self])

    def __repr__(self) -> str:
        first = self.ranking()[0]
        place = self.layers.index(first)
        unit = f" {self.unit}" if self.unit else ""
        count = f"{len(self)} layer{'s' if len(self) != 1 else ''}"
        return (
            f"<{count}: {self.measure}, {self.kind}: highest at {first}, "
            f"{self.values[place]:.4g}{unit} "
            f"(95 % interval {self.low[place]:.4g} to {self.high[place]:.4g})>"
        )


def mean_interval(each: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean over the first axis with the ends of Student's 95 % interval.

    A single number has no interval: its ends are nan. Entries that are nan are left out.
    """
    from scipy.special import stdtrit

    counts = np.sum(~np.isnan(each), axis=0)
    filled = np.where(np.isnan(each), 0.0, each)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = filled.sum(axis=0) / counts
        spread = np.where(np.isnan(each), 0.0, (each - mean) ** 2).sum(axis=0)
        deviation = np.sqrt(spread / (counts - 1) / counts)
        reach = stdtrit(np.maximum(counts - 1, 1), 0.975) * deviation
    reach = np.where(counts > 1, reach, np.nan)
    return mean, mean - reach, mean + reach


def draw_layers(results: Sequence[PerLayer]) -> Any:
    """Return a matplotlib figure with one panel per result, the highest layer in another colour."""
    from matplotlib.figure import Figure

    width = max(4.5, 1.5 + 0.55 * len(results[0].layers))
    figure = Figure(figsize=(width, 2.6 * len(results)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(results), 1, sharex=True))
    for panel, result in zip(panels, results, strict=True):
        highest = result.ranking()[0]
        places = np.arange(len(result.layers))
        colours = [_WORST if name == highest else _BAR for name in result.layers]
        panel.bar(places, result.values, color=colours, width=0.7)
        reach = np.abs(np.stack([result.values - result.low, result.high - result.values]))
        panel.errorbar(
            places, result.values, yerr=np.nan_to_num(reach), fmt="none", ecolor=_INK, capsize=3
        )
        panel.set_xticks(places, result.layers, rotation=45, ha="right")
        panel.set_ylabel(result.unit)
        panel.set_title(result.measure, loc="left", fontsize="medium")
        panel.spines[["top", "right"]].set_visible(False)
    return figure
