"""The result of all per-layer measures: one value per layer with its confidence interval."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from seepage.core.result import Result
from seepage.errors import InputError, nearest
from seepage.tables.result_table import BLUE, INK, ORANGE, new_axes
from seepage.tables.source import build_frame


class Span(NamedTuple):
    """A value with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, eq=False, repr=False)
class PerLayer(Result):
    """A measure of every layer: a result with confidence intervals and a figure.

    ``result["fc1"]`` returns the value of one layer.

    Parameters
    ----------
    low, high
        The ends of the 95 % confidence intervals.
    sizes
        The number of entries in each layer's gradient.
    unit
        The unit of the values; empty if they have none.
    columns
        Additional columns of the table.
    notes
        Caveats, as sentences.
    by_record
        The values for each record, ``(n, layers)``, if the measure is a mean over records.
    errors
        The standard error of every entry of ``by_record`` if estimated; zero if exact.
    negligible
        The largest value that counts as zero in the ranking.
    """

    low: Any = None
    high: Any = None
    sizes: tuple[int, ...] = ()
    unit: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    by_record: np.ndarray | None = None
    errors: np.ndarray | None = None
    negligible: float = 0.0

    @staticmethod
    def of(
        measure: str, layers: Sequence[str], spans: Any, sizes: Sequence[int], **rest: Any
    ) -> PerLayer:
        """Return the result for these layers; ``spans`` holds values, lower and upper ends."""
        values, low, high = (np.asarray(part) for part in spans)
        ends: dict[str, Any] = {"low": low, "high": high, "sizes": tuple(sizes)}
        named = np.array(layers, dtype=object)
        return PerLayer(values, "layers", measure, index=named, library="pyarrow", **ends, **rest)

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers, in the order of the network."""
        return tuple(self.labels().tolist())

    def __getitem__(self, layer: str) -> float:
        return self.span(layer).value

    def span(self, layer: str) -> Span:
        """Return the value of one layer with its interval."""
        if layer not in self.layers:
            raise InputError(
                f"There is no layer {layer!r}{nearest(layer, self.layers)}; the layers are "
                f"{', '.join(self.layers)}."
            )
        k = self.layers.index(layer)
        return Span(*(float(part[k]) for part in (self.values, self.low, self.high)))

    def select(self, positions: Any) -> Self:
        """Return the layers at the given positions, in that order."""
        order = np.asarray(positions)
        of_layers = {name: getattr(self, name) for name in ("low", "high", "by_record", "errors")}
        picked = {k: None if v is None else v[..., order] for k, v in of_layers.items()}
        return replace(
            self,
            values=self.values[order],
            index=self.labels()[order],
            sizes=tuple(self.sizes[k] for k in order),
            columns={name: np.asarray(column)[order] for name, column in self.columns.items()},
            **picked,  # type: ignore[arg-type]
        )

    def ranking(self) -> list[str]:
        """Return the layers from the most to the least leakage; layers without a value are last.

        Layers whose values agree to four significant digits are listed in the order of the network,
        because further digits depend on the processor. Layers whose value is negative or
        ``negligible`` are also listed in the order of the network.
        """
        return [self.layers[k] for k in self.worst_first()]

    def worst_first(self) -> np.ndarray:
        """Return the positions of the layers from the most to the least leakage."""
        some = np.where(self.values > self.negligible, self.values, 0.0)
        rounded = np.array([float(f"{value:.4g}") for value in some])
        return np.argsort(np.where(np.isnan(self.values), np.inf, -rounded), kind="stable")

    def foremost(self) -> list[str]:
        """Return the highest layer, and all layers whose intervals overlap the highest layer's."""
        first = self.span(self.ranking()[0])
        return [name for name in self.ranking() if self.span(name).high >= first.low]

    def relative(self) -> np.ndarray:
        """Return the values divided by their maximum (Mo et al. 2021, figure 3)."""
        return np.asarray(self.values / np.nanmax(self.values))

    def correlation(self, other: PerLayer | np.ndarray) -> tuple[float, float]:
        """Return Pearson's correlation with another measure over the layers, and its P-value."""
        from scipy.stats import pearsonr

        if isinstance(other, PerLayer) and other.layers != self.layers:
            raise InputError(
                "The two results cover different layers; measure the same layers in both."
            )
        correlated = pearsonr(self.values, np.asarray(other))
        return float(correlated.statistic), float(correlated.pvalue)

    def table(self, library: str | None = None) -> Any:
        """Return a ``pandas``, ``polars`` or ``pyarrow`` data frame with one row per layer."""
        columns = {
            "layer": list(self.layers),
            "size": list(self.sizes),
            "value": self.values,
            "low": self.low,
            "high": self.high,
        }
        return build_frame(columns | dict(self.columns), library or self.library)

    def plot(self, ax: Any = None) -> Any:
        """Plot a bar with an interval for every layer, and return the matplotlib axes."""
        return draw_layers([self], ax)[0]

    def __repr__(self) -> str:
        first = self.ranking()[0]
        value, low, high = self.span(first)
        count = f"{len(self)} layer{'s' if len(self) != 1 else ''}"
        return (
            f"<{count}: {self.measure}, {self.kind}: highest at {first}, "
            f"{f'{value:.4g} {self.unit}'.rstrip()} (95 % interval {low:.4g} to {high:.4g})>"
        )


def mean_interval(each: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean over the first axis with the ends of Student's 95 % interval.

    A single value has no interval, so its ends are NaN. Entries that are NaN are left out.
    """
    from scipy.special import stdtrit

    counts = np.sum(~np.isnan(each), axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of an entry without numbers, or with one
        mean, deviation = np.nanmean(each, axis=0), np.nanstd(each, axis=0, ddof=1)
        reach = stdtrit(np.maximum(counts - 1, 1), 0.975) * deviation / np.sqrt(counts)
    return mean, mean - reach, mean + reach


def draw_layers(results: Sequence[PerLayer], axes: Any = None) -> np.ndarray:
    """Plot one panel per result, with the highest layer in another colour; return the axes."""
    width = max(4.5, 1.5 + 0.55 * len(results[0].layers))
    size = (width, 2.6 * len(results))
    panels = np.atleast_1d(new_axes(axes, nrows=len(results), sharex=True, figsize=size))
    for panel, result in zip(panels, results, strict=True):
        highest = result.ranking()[0]
        places = np.arange(len(result.layers))
        colours = [ORANGE if name == highest else BLUE for name in result.layers]
        panel.bar(places, result.values, color=colours, width=0.7)
        reach = np.abs(np.stack([result.values - result.low, result.high - result.values]))
        panel.errorbar(
            places, result.values, yerr=np.nan_to_num(reach), fmt="none", ecolor=INK, capsize=3
        )
        panel.set_xticks(places, result.layers, rotation=45, ha="right")
        panel.set_ylabel(result.unit)
        panel.set_title(result.measure, loc="left", fontsize="medium")
        panel.spines[["top", "right"]].set_visible(False)
    return panels
