"""The first thing a newcomer runs: an audit of the breast-cancer data that scikit-learn ships."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from seepage.calibration import calibrate
from seepage.data import load_bundled
from seepage.files import write_private
from seepage.glm import LogisticRegression
from seepage.leak import leakage
from seepage.noise import Gaussian, Noise
from seepage.result import NOTICE

L2 = 1e-2
SIGMA = 0.1
SHOWN = 5
TRIALS = 200


def run(out: Path) -> None:
    """Audit a logistic regression on 569 patients; print what leaks; write a figure and a JSON."""
    audit = measure()
    figure, summary = out / "leakage.png", out / "leakage.json"
    _draw(audit, figure)
    text = json.dumps(_for_machines(audit), indent=2) + "\n"
    write_private(summary, lambda file: file.write(text.encode()))
    _tell(audit, figure, summary)


def measure() -> dict[str, Any]:
    """Fit, measure and calibrate; return everything the demo shows."""
    patients = load_bundled("breast_cancer")
    spread = patients.X.std(axis=0)
    X, y = (patients.X - patients.X.mean(axis=0)) / spread, patients.y
    model = LogisticRegression(l2=L2).fit(X, y)
    noise = Gaussian(SIGMA)
    leak = leakage(model, X, y, noise=noise)
    enough = calibrate(leak, mse=1.0, view=leak.cells())
    return {
        "columns": list(patients.names),
        "spread": spread,
        "accuracy": float(model.score(X, y)),
        "noisy_accuracy": _noisy_accuracy(model, X, y, noise),
        "rows": leak.rows(),
        "measurements": leak.rows(label=False),
        "diagnosis": leak.labels(),
        "attributes": leak.columns(),
        "cells": np.asarray(leak.cells().std_bound()) * spread,  # in the units of each column
        "dataset": float(leak.dataset()),
        "enough": enough,
        "enough_accuracy": _noisy_accuracy(model, X, y, enough),
    }


def _noisy_accuracy(model: Any, X: np.ndarray, y: np.ndarray, noise: Noise) -> float:
    """Return the mean accuracy of the released model over many draws of the noise."""
    draws = noise.draw((TRIALS, X.shape[1]), seed=0)
    guesses = X @ (np.ravel(model.coef_) + draws).T > 0
    return float(np.mean(guesses == (y == model.classes_[1])[:, None]))


def _tell(audit: dict[str, Any], figure: Path, summary: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"\n[bold]A logistic regression on {len(audit['rows'])} patients[/bold] "
        f"({len(audit['columns'])} standardised columns, L2 {L2:g}), released with Gaussian noise "
        f"σ = {SIGMA:g} on its coefficients: accuracy {audit['accuracy']:.1%} before the noise, "
        f"{audit['noisy_accuracy']:.1%} after it.\n"
    )
    records = Table(
        "patient", "η", "easiest measurement", "no unbiased attack beats", "spread in the data",
        title="Most leaked records",
    )  # fmt: skip
    worst, columns = audit["measurements"].top(SHOWN), audit["columns"]
    for row, eta in zip(worst.labels(), worst, strict=True):
        j = int((audit["cells"][row] / audit["spread"]).argmin())
        records.add_row(
            str(row), f"{eta:.2f}", columns[j], f"±{audit['cells'][row, j]:.3g}",
            f"±{audit['spread'][j]:.3g}",
        )  # fmt: skip
    console.print(records)
    told = audit["diagnosis"].top(1)
    given_away = int(np.sum(np.asarray(audit["diagnosis"].std_bound()) < 0.5))
    console.print(
        "η says how much the release tells about a patient's 30 measurements together; the error "
        "of the best unbiased attacker, who knows everything else, stands beside the measurement "
        "it is smallest for, in its own units. The diagnosis leaks more: for "
        f"{given_away} patients the error on it (0 or 1) can be below ±0.5, down to "
        f"±{1 / float(told[0]):.2f} for patient {told.labels()[0]}.\n"
    )
    attributes = Table(
        "attribute", "η over all patients", "easiest patient", "no unbiased attack beats",
        "spread in the data", title="Most leaked attributes",
    )  # fmt: skip
    values = np.asarray(audit["attributes"])
    for j in np.argsort(-values)[:SHOWN]:
        row = int(audit["cells"][:, j].argmin())
        attributes.add_row(
            columns[j], f"{values[j]:.2f}", str(row), f"±{audit['cells'][row, j]:.3g}",
            f"±{audit['spread'][j]:.3g}",
        )  # fmt: skip
    console.print(attributes)
    console.print(
        f"\n[bold]What to do:[/bold] with σ = {audit['enough'].sigma:.3g} instead, no single "
        "measurement of anyone can be reconstructed to better than one standard deviation of its "
        f"column by an unbiased attack; the accuracy is then {audit['enough_accuracy']:.1%}.\n\n"
        f"Figure: {figure}\nNumbers: {summary}\n[italic]{NOTICE}[/italic]"
    )


def _for_machines(audit: dict[str, Any]) -> dict[str, Any]:
    return {
        "notice": NOTICE,
        "model": {"family": "bernoulli", "l2": L2, "accuracy": audit["accuracy"]},
        "release": {
            "noise": "gaussian",
            "sigma": SIGMA,
            "accuracy": audit["noisy_accuracy"],
            "sigma_for_one_standard_deviation": audit["enough"].sigma,
        },
        "dataset": {"fil": audit["dataset"]},
        "attributes": [
            {"name": name, "fil": float(eta), "smallest_cell_error": float(error)}
            for name, eta, error in zip(
                audit["columns"], audit["attributes"], audit["cells"].min(axis=0), strict=True
            )
        ],
        "records": [
            {
                "row": row,
                "fil": float(both),
                "fil_measurements": float(x),
                "fil_diagnosis": float(y),
            }
            for row, (both, x, y) in enumerate(
                zip(audit["rows"], audit["measurements"], audit["diagnosis"], strict=True)
            )
        ],
    }


def _draw(audit: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    series = {"diagnosis": "#E69F00", "measurements": "#0072B2"}
    bins = np.geomspace(1e-4, float(np.max(audit["rows"])), 50)
    for name, colour in series.items():
        left.hist(np.clip(audit[name], bins[0], None), bins, color=colour, alpha=0.75, label=name)
    left.legend(frameon=False, title="leakage about the")
    left.set_xscale("log")
    left.set(
        xlabel="leakage η of a patient (log scale; below 10⁻⁴ at the edge)",
        ylabel="patients",
        title="Who leaks how much",
    )
    values = np.asarray(audit["attributes"])
    order = np.argsort(values)[-10:]
    right.barh([audit["columns"][j] for j in order], values[order], color="#D55E00")
    right.set(xlabel="leakage η of the attribute over all patients", title="What leaks most")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    write_private(path, lambda file: figure.savefig(file, format="png", dpi=150))
