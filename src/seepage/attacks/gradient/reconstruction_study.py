"""Tests which scores predict how well gradient inversion reconstructs a record.

A score of a record (PLIS, FIL, the norm of its gradient) is cheap to compute; an attack is not.
This study computes scores and attacks for the same records and network, and the rank correlation of
each score with the reconstruction error. A score predicts reconstruction if its correlation with
the error is negative and the correlation's interval excludes zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from seepage.attacks.gradient.inversion import GradientInversion, GradientReconstruction
from seepage.attacks.gradient.releases import release_gradients
from seepage.attacks.intervals import RankCorrelation, rank_correlation
from seepage.errors import InputError, accepts_other_names
from seepage.nn.problem.arrays import as_tensors
from seepage.nn.problem.problem import Loss
from seepage.nn.susceptibility.plis import plis
from seepage.tables.result_table import SummaryTable
from seepage.tables.source import as_numpy


@dataclass(frozen=True, eq=False, repr=False)
class ReconstructionStudy(SummaryTable):
    """Scores of records, their reconstruction errors, and the rank correlations of the two.

    Parameters
    ----------
    scores
        The scores of every record by name, (n,) each.
    errors
        The mean squared error of every record's reconstruction, ``‖x̂ − x‖²/d``, (n,).
    baseline
        The mean squared error of the mean of the other records: a reconstruction that ignores the
        gradient, (n,).
    reconstruction
        The reconstructed records, with the curve of the attack's cost.
    """

    scores: Mapping[str, np.ndarray]
    errors: np.ndarray
    baseline: np.ndarray
    reconstruction: GradientReconstruction

    mark = (0.0, "no relation")

    def correlations(self, quality: Any = None) -> dict[str, RankCorrelation]:
        """Return each score's rank correlation with the errors, and its 95 % interval.

        Parameters
        ----------
        quality
            One number per record to use instead of the error, (n,), such as
            ``study.reconstruction.quality(x).ssim``.
        """
        against = self.errors if quality is None else _numbers(quality, "quality", len(self.errors))
        return {name: rank_correlation(score, against) for name, score in self.scores.items()}

    def spans(self) -> Mapping[str, tuple[float, float, float]]:
        """Return each score's rank correlation with the errors, and the ends of its interval."""
        return {name: (r.value, *r.interval) for name, r in self.correlations().items()}

    def __repr__(self) -> str:
        ranks = ", ".join(f"{name} {found}" for name, found in self.correlations().items())
        better = int((self.errors < self.baseline).sum())
        return (
            f"<{len(self.errors)} records attacked, {better} reconstructed better than by the mean "
            f"of the others; rank correlations with the error: {ranks}>"
        )


@accepts_other_names
def reconstruction_study(
    net: nn.Module,
    loss: str | nn.Module | Loss,
    x: Any,
    y: Any,
    *,
    attack: GradientInversion | None = None,
    scores: Mapping[str, Any] | None = None,
) -> ReconstructionStudy:
    """Attack each record's gradient, and report which scores predict the reconstruction error.

    Each record's gradient, without noise or clipping, is inverted on its own, with a known label.
    The scores are ``plis`` (norm of the gradient signal's PLIS), ``fil`` and ``dfil`` (of one
    gradient with unit noise), ``gradient_norm`` and ``loss``.

    Parameters
    ----------
    net, loss
        The network and its loss, as for :class:`seepage.nn.Engine`.
    x, y
        The records and their labels; at least four records, and a hundred for useful intervals.
    attack
        The attack; by default, that of Geiping et al. 2020, with the range of ``x`` as bounds and,
        for images, with total variation. Check that the ``curve`` of its result is flat at the end.
    scores
        Further scores of every record, by name.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> x, y = torch.rand(12, 4), torch.arange(12) % 2
    >>> attack = sp.attacks.GradientInversion(net, shape=(4,), total_variation=0, steps=200)
    >>> study = sp.attacks.reconstruction_study(net, "cross_entropy", x, y, attack=attack)
    >>> list(study.correlations()), study.errors.shape
    (['plis', 'fil', 'dfil', 'gradient_norm', 'loss'], (12,))
    """
    x, y, _ = as_tensors(net, x, y)
    if len(x) < 4:
        raise InputError(
            f"A rank correlation needs at least 4 records, but got {len(x)}; give more records."
        )
    shape = tuple(x.shape[1:])
    if attack is None:
        image = len(shape) > 1 and min(shape[-2:]) > 1
        attack = GradientInversion(
            net,
            loss,
            shape=shape,
            bounds=(float(x.min()), float(x.max())),
            total_variation=1e-4 if image else 0.0,
        )
    given = {name: _numbers(v, f"scores[{name!r}]", len(x)) for name, v in (scores or {}).items()}
    found = attack.reconstruct(release_gradients(net, loss, x, y), labels=y)
    return ReconstructionStudy(
        record_scores(net, loss, x, y) | given,
        *squared_errors(found, x),
        found,
    )


def squared_errors(found: GradientReconstruction, x: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return each reconstruction's mean squared error, and that of the other records' mean."""
    truth = as_numpy(x).reshape(len(x), -1).astype(float)
    guesses = as_numpy(found.records).reshape(len(x), -1).astype(float)
    others = (truth.sum(axis=0) - truth) / (len(truth) - 1)
    return np.mean((guesses - truth) ** 2, axis=1), np.mean((others - truth) ** 2, axis=1)


def record_scores(
    net: nn.Module, loss: str | nn.Module | Loss, x: Any, y: Any
) -> dict[str, np.ndarray]:
    """Return the scores of every record from one gradient without clipping, at unit noise."""
    signal = plis(net, loss, x, y, compare="auto")
    beside = signal.compare()
    unknowns = signal.values[0].numel()
    return {
        "plis": beside.plis.astype(float),
        "fil": as_numpy(beside.jacsens.values).astype(float),
        "dfil": as_numpy(beside.jacsens_frobenius.values).astype(float) / unknowns**0.5,
        "gradient_norm": as_numpy(signal.norms).astype(float),
        "loss": as_numpy(signal.losses).astype(float),
    }


def _numbers(values: Any, name: str, count: int) -> np.ndarray:
    numbers = as_numpy(values).astype(float)
    if numbers.shape != (count,) or not np.isfinite(numbers).all():
        raise InputError(f"{name} must contain {count} finite numbers, one for each record.")
    return numbers
