"""Figure 1: FIL and PLIS of informative and uninformative features, side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.drawing import Figure, draw_figure, power_ticks
from reproduction.outcome import Outcome, Quantity
from seepage.auditing.report.figures import BLUE, INK, VERMILLION
from seepage.privacy.gaussian_mechanism import gaussian_mu

Numbers = NDArray[np.float64]

EPSILON, DELTA = 0.2, 1e-3
RECORDS, FEATURES, STEPS, RATE, THRESHOLD = 10_000, 20, 100, 0.5, 1.0
INFORMATIVE = (1, 4, 9, 13, 17)
SHOWN = (8, 9, 12)  # those of the paper
LABEL_NOISE = 0.05
_SETTING = (
    f"{RECORDS:,} synthetic records with {FEATURES} standard normal features, five of them "
    f"({', '.join(map(str, INFORMATIVE))}) with weights of 0.5 to 1.5 in absolute value, the "
    f"others with weight zero; label noise of standard deviation {LABEL_NOISE}. Linear regression "
    f"by {STEPS} full-batch steps (rate {RATE}), gradients smoothly clipped at {THRESHOLD:g}, "
    f"({EPSILON}, {DELTA:g})-differential privacy in total. FIL and the absolute PLIS of every "
    "feature are from one more step, averaged over the records."
)


@dataclass(frozen=True, eq=False)
class FeatureLeakage:
    """Averages over the records for every feature, and the numbers of each whole record."""

    fil: Numbers
    plis: Numbers
    record_fil: Numbers
    record_plis: Numbers
    informative: NDArray[np.bool_]
    explained: float
    noise_multiplier: float


def reproduce(quick: bool) -> Outcome:
    """Train privately, and measure both at the end."""
    found = measure(2_000 if quick else RECORDS)
    inside, outside = found.informative, ~found.informative
    quantities = [
        Quantity("noise multiplier σ of a step", found.noise_multiplier),
        Quantity("share of the labels' variance explained", found.explained),
    ]
    for j in SHOWN:
        word = "informative" if found.informative[j] else "uninformative"
        quantities += [
            Quantity(f"feature {j} ({word}): mean FIL", float(found.fil[j])),
            Quantity(f"feature {j} ({word}): mean PLIS", float(found.plis[j])),
        ]
    quantities += [
        Quantity(
            f"least informative over largest uninformative feature, {name}",
            float(values[inside].min() / values[outside].max()),
        )
        for name, values in (("FIL", found.fil), ("PLIS", found.plis))
    ]
    over_features = spearman(found.fil, found.plis)
    over_records = spearman(found.record_fil, found.record_plis)
    quantities += [
        Quantity("rank correlation of FIL and PLIS over the features", over_features),
        Quantity("rank correlation of FIL and PLIS over the records", over_records),
    ]
    return Outcome(_SETTING, tuple(quantities), _seen(found, over_features), _draw(found))


def measure(records: int, seed: int = 0) -> FeatureLeakage:
    """Return both measures of every feature after private training."""
    import torch

    from seepage.nn import Engine, SmoothClip, plis

    X, y, weights = make_data(records, seed)
    clip = SmoothClip(THRESHOLD)
    sigma = noise_multiplier(STEPS, clip.sensitivity / THRESHOLD)
    net = torch.nn.Linear(FEATURES, 1, bias=False).double()
    torch.nn.init.zeros_(net.weight)
    engine = Engine(net, "mse", clip=clip)
    x, target = torch.tensor(X), torch.tensor(y)[:, None]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        total = engine.clipped_gradient(x, target).gradient["weight"]
        noise = torch.randn(total.shape, generator=generator, dtype=total.dtype)
        net.weight.data -= RATE * (total + sigma * THRESHOLD * noise) / records
    found = plis(
        net,
        "mse",
        x,
        target,
        noise_multiplier=sigma,
        max_grad_norm=THRESHOLD,
        clip="smooth",
        compare="exact",
    )
    beside = found.compare()
    s = sigma * THRESHOLD
    residual = y - X @ net.weight.detach().numpy()[0]
    return FeatureLeakage(
        np.asarray(beside.jacsens_cells).mean(0) / s,
        beside.plis_cells.mean(0),
        np.asarray(beside.fil),
        beside.plis,
        weights != 0,
        1 - float(residual.var() / y.var()),
        sigma,
    )


def make_data(records: int, seed: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return features, labels and the weights that made them."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((records, FEATURES))
    weights = np.zeros(FEATURES)
    weights[list(INFORMATIVE)] = rng.uniform(0.5, 1.5, 5) * rng.choice([-1, 1], 5)
    return X, X @ weights + LABEL_NOISE * rng.standard_normal(records), weights


def noise_multiplier(steps: int, sensitivity: float) -> float:
    """Return the σ with which this many full-batch steps are jointly (ε, δ)-private, exactly.

    Gaussian differential privacy of the steps composes to ``μ = √T·sensitivity/σ``; it is about
    adding or removing one record.
    """
    return math.sqrt(steps) * sensitivity / gaussian_mu(EPSILON, DELTA)


def spearman(a: Numbers, b: Numbers) -> float:
    """Return the rank correlation."""
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


def _seen(found: FeatureLeakage, ranks: float) -> str:
    inside, outside = found.informative, ~found.informative
    apart = all(v[inside].min() > v[outside].max() for v in (found.fil, found.plis))
    words = (
        "every informative feature is above every uninformative one"
        if apart
        else ("informative and uninformative features overlap")
    )
    return (
        f"By both measures, {words}; they rank the {FEATURES} features almost identically "
        f"(Spearman correlation {ranks:.3f})."
    )


def _plain(value: float) -> str:
    """Write a small number without a power of ten."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _draw(found: FeatureLeakage) -> Figure:
    colours = np.where(found.informative, VERMILLION, BLUE)

    def draw(canvas: Any) -> None:
        from matplotlib.ticker import FuncFormatter

        first, second, third = canvas.subplots(1, 3, width_ratios=(1, 1, 1.5))
        for axes, name, values in ((first, "FIL", found.fil), (second, "PLIS", found.plis)):
            places = range(len(SHOWN))
            axes.bar(places, values[list(SHOWN)], color=colours[list(SHOWN)], width=0.6)
            axes.set_xticks(places, [str(j) for j in SHOWN])
            axes.set_xlabel("feature")
            axes.set_title(f"mean {name}")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
        third.set(xscale="log", yscale="log", xlabel="mean FIL", ylabel="mean PLIS")
        for chosen, colour, words in (
            (found.informative, VERMILLION, "informative"),
            (~found.informative, BLUE, "uninformative"),
        ):
            third.scatter(found.fil[chosen], found.plis[chosen], color=colour, s=26, label=words)
        for j, side in zip(SHOWN, (-14, 7, 7), strict=True):
            third.annotate(
                str(j),
                (found.fil[j], found.plis[j]),
                (side, -4),
                textcoords="offset points",
                color=INK,
            )
        third.set_title(f"all {FEATURES} features")
        third.legend(loc="upper left")
        power_ticks(third.xaxis)
        power_ticks(third.yaxis)

    shown = "; ".join(f"feature {j}: {found.fil[j]:.2g} and {found.plis[j]:.2g}" for j in SHOWN)
    alternative = (
        f"Mean FIL and mean PLIS of three features as bars ({shown}) and of all {FEATURES} as "
        f"points, which rank alike (Spearman {spearman(found.fil, found.plis):.3f})."
    )
    return draw_figure("plis-figure1", alternative, draw, (12, 3.9))
