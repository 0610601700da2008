"""Compares PLIS, Jacobian sensitivity and Fisher information loss of one gradient.

``J̃ = ∂g̃/∂z`` is the Jacobian of a record's released gradient, and ``s`` the standard deviation of
the noise (Mueller et al. 2022, equations 7 and 8):

    PLIS      (2/s²) J̃ᵀg̃       how the privacy loss responds to each attribute
    JacSens   ‖J̃‖₂ or ‖J̃‖_F     how the gradient responds to all attributes together
    FIL       ‖J̃‖₂/s            what an adversary can learn about the attributes

Mueller et al. define JacSens as the largest singular value of ``J̃``, and Mo et al. (2020) as its
Frobenius norm. For one attribute, JacSens is the norm of that attribute's column of ``J̃``. The
largest singular value is FIL times ``s``, so both rank records in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.core.noise import Gaussian
from seepage.nn.jacobian.engine import Engine
from seepage.nn.measures.estimate import Estimate
from seepage.nn.measures.gradient_leakage import GradientLeakage
from seepage.nn.problem.views import Inputs
from seepage.support.number_check import check_choice
from seepage.tables.names import counted
from seepage.tables.result_table import BLUE, ResultTable, new_axes
from seepage.tables.source import build_frame

METHODS = ("auto", "exact", "estimate")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(ResultTable):
    """The PLIS, JacSens and FIL of the same gradients.

    Parameters
    ----------
    plis
        The norm of every record's PLIS, ``(B,)``.
    jacsens
        The largest singular value of every record's ``J̃``, or a lower bound if the iteration was
        stopped early (kind ``estimate``).
    jacsens_frobenius
        The Frobenius norm of every record's ``J̃``, or an estimate with a standard error if probes
        were used.
    fil
        The Fisher information loss of every record; ``None`` without noise, because it is infinite.
    plis_cells, jacsens_cells
        PLIS and JacSens of each attribute, ``(B, d)``: ``|PLIS_j|`` and ``‖∂g̃/∂z_j‖``. The FIL of
        one attribute is ``jacsens_cells/s``.
    """

    plis: np.ndarray
    jacsens: Estimate
    jacsens_frobenius: Estimate
    fil: Estimate | None
    plis_cells: np.ndarray
    jacsens_cells: Estimate

    value_column = "plis"

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with a row for every record and a column for every measure."""
        columns = {"row": self.jacsens.labels(), "plis": self.plis, **self.columns()}
        return build_frame(columns, library or "pyarrow")

    def plot(self, ax: Any = None) -> Any:
        """Plot every record's JacSens against its PLIS, and return the matplotlib axes."""
        ax = new_axes(ax, figsize=(4.6, 4.4))
        ax.plot(self.plis, np.asarray(self.jacsens), ".", color=BLUE)
        ax.set_xlabel("PLIS")
        ax.set_ylabel("JacSens")
        return ax

    def __repr__(self) -> str:
        ranks = ", ".join(f"{name}: {value:.2f}" for name, value in self.spearman().items())
        count = counted(len(self.plis), "record")
        return f"<PLIS, JacSens and FIL of {count}; rank correlations {ranks}>"

    def spearman(self) -> dict[str, float]:
        """Return rank correlations of PLIS with the other measures, over the records.

        The last correlation, ``"plis, jacsens by attribute"``, is computed over the attributes of
        each record and averaged over the records. A correlation is NaN if either measure is
        constant; the average leaves out records whose correlation is NaN.
        """
        correlations = {
            "plis, jacsens": rank_correlation(self.plis, np.asarray(self.jacsens)),
            "plis, jacsens_frobenius": rank_correlation(
                self.plis, np.asarray(self.jacsens_frobenius)
            ),
        }
        if self.fil is not None:
            correlations["plis, fil"] = rank_correlation(self.plis, np.asarray(self.fil))
        each = [
            rank_correlation(a, b)
            for a, b in zip(self.plis_cells, np.asarray(self.jacsens_cells), strict=True)
        ]
        known = [value for value in each if np.isfinite(value)]
        correlations["plis, jacsens by attribute"] = (
            float(np.mean(known)) if known else float("nan")
        )
        return correlations

    def columns(self) -> dict[str, Any]:
        """Return every record's JacSens (for ``‖J̃‖_F`` with standard error) and FIL as columns."""
        columns: dict[str, Any] = {
            "jacsens": np.asarray(self.jacsens),
            "jacsens_frobenius": np.asarray(self.jacsens_frobenius),
            "jacsens_frobenius_error": np.asarray(self.jacsens_frobenius.standard_errors),
        }
        if self.fil is not None:
            columns["fil"] = np.asarray(self.fil)
        return columns


def compare(
    engine: Engine,
    x: Inputs,
    y: Tensor,
    values: Tensor,
    noise: float | None,
    method: str,
    probes: int,
) -> Comparison:
    """Measure JacSens and FIL of the gradients whose PLIS is ``values``; return a comparison."""
    check_choice(method, "compare", METHODS)
    leak = GradientLeakage(engine, x, y, 1.0)
    # Up to 128 unknowns, "auto" takes every column of the Jacobian.
    exact = method == "exact" or (method == "auto" and engine.unknowns(x, y) <= 128)
    cells = leak.cells(method="exact") if exact else leak.cells(probes)
    flat = torch.as_tensor(cells.values)
    total = flat.square().sum(1)
    frobenius = replace(
        cells, values=total.sqrt(), view="rows", names=None, standard_errors=torch.zeros_like(total)
    )
    if not exact:
        unknowns = engine.unknowns(x, y)
        mean = leak.records("dfil", probes=probes)  # the root mean square over the unknowns
        frobenius = replace(
            mean,
            values=mean.values * unknowns**0.5,
            standard_errors=mean.standard_errors * unknowns**0.5,
        )
    largest, kind = _largest(leak, engine.unknowns(x, y), flat.dtype)
    spectral = replace(
        frobenius, values=largest, kind=kind, standard_errors=torch.zeros_like(largest)
    )
    fil = None
    if noise is not None:
        fil = replace(spectral, values=largest / noise, measure="fil", noise=(Gaussian(noise),))
    flat_plis = values.flatten(1)
    return Comparison(
        flat_plis.norm(dim=1).cpu().numpy(),
        _renamed(spectral),
        _renamed(frobenius),
        fil,
        flat_plis.abs().cpu().numpy(),
        _renamed(cells),
    )


def _largest(leak: GradientLeakage, unknowns: int, dtype: torch.dtype) -> tuple[Tensor, str]:
    """Return the largest singular values, or lower bounds if stopped early, and their kind."""
    most = 200  # steps of Lanczos' method
    largest = leak.spectrum(1e-7 if dtype == torch.float64 else 1e-4, most)
    settled = largest.steps < most or unknowns <= most
    return largest.lower.sqrt(), "exact" if settled else "estimate"


def _renamed(estimate: Estimate) -> Estimate:
    return replace(estimate, measure="jacsens", noise=())


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's rank correlation; nan if either variable is constant."""
    from scipy.stats import spearmanr

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(a, b).statistic)
