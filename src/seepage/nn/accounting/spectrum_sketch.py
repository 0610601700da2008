"""Sketches the accumulated information about some records, for their FIL over a run.

The norm of a sum of information matrices may be less than the sum of their norms, so the FIL of a
run does not follow from the FIL of its steps. Every probe ``u`` gives a vector ``y = sqrt(κ)J̃ᵀu/s``
with ``E[yyᵀ] = κJ̃ᵀJ̃/s²``, where ``s`` is the standard deviation of the noise. The sum of ``yyᵀ``
over steps, averaged over probes, estimates the whole matrix, whose leading directions are stored
for each record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.privacy.randomness import marked
from seepage.support.number_check import check_count
from seepage.tables.names import counted
from seepage.tables.result_table import PlottedNumbers, RecordResult
from seepage.tables.source import build_frame

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class SpectrumBracket(RecordResult):
    """Lower and upper bounds on the FIL of some records over a run.

    Both bounds are NaN for a record that was in no batch, because it was not measured.

    Parameters
    ----------
    index
        The positions of the records.
    lower
        Lower bounds, measured by one half of the probes along the leading direction of the other
        half. The expectation of their square over the probes is at most the square of FIL.
    upper
        Upper bounds, from the leading eigenvalue of all probes plus the information that the sketch
        discarded. The expectation of their square is at least the square of FIL.
    conditions
        Conditions on the origin of noise and batches.
    """

    index: NDArray[np.int64]
    lower: Numbers
    upper: Numbers
    conditions: tuple[str, ...] = ()

    value_column = "upper"

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with the lower and upper bounds on each record's FIL."""
        columns = {"row": self.index, "lower": self.lower, "upper": self.upper}
        return build_frame(columns, library or "pyarrow")

    def labels(self) -> NDArray[np.int64]:
        """Return the records' positions."""
        return self.index

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: upper bounds in descending order, and lower bounds."""
        worst = self.sort()
        ends = (worst.lower, worst.upper)
        return PlottedNumbers(worst.upper, worst.index, "FIL η", "records", *ends)

    def html_notes(self) -> tuple[str, ...]:
        """Return the conditions, for display in a notebook."""
        return self.conditions

    def __repr__(self) -> str:
        lower, upper = (ends[~np.isnan(ends)] for ends in (self.lower, self.upper))
        unknown = len(self.index) - len(upper)
        if not len(upper):
            return f"<FIL of {counted(unknown, 'record')}, not measured>"
        words = (
            f"<FIL of {counted(len(self.index), 'record')}: median between "
            f"{np.median(lower):.4g} and {np.median(upper):.4g}"
            f"{f'; {unknown} not measured' if unknown else ''}>"
        )
        return marked(words, self.conditions)

    def of_run(self, measured: Tensor, conditions: tuple[str, ...]) -> SpectrumBracket:
        """Return the bounds with NaN for unmeasured records, and with the run's conditions.

        ``measured`` states for all records of the run whether they were measured.
        """
        known = measured.cpu().numpy()[self.index]
        return replace(
            self,
            lower=np.where(known, self.lower, np.nan),
            upper=np.where(known, self.upper, np.nan),
            conditions=conditions,
        )


class SpectrumSketch:
    """Stores the leading directions of the information about some records.

    Each record has two sketches, one for each half of the probes. An update appends the new vectors
    and keeps only the ``rank`` leading directions. If ``S`` is the sum of ``yyᵀ`` over steps,
    averaged over a half of the probes, and ``B`` contains the rows stored for that half, all
    eigenvalues of ``S − BᵀB`` are between 0 and ``lost``.
    """

    kept: ClassVar[tuple[str, ...]] = ("rows", "lost")

    def __init__(self, index: Sequence[int], rank: int, records: int) -> None:
        chosen = torch.unique(torch.as_tensor(index, dtype=torch.int64))
        if not len(chosen) or int(chosen[0]) < 0 or int(chosen[-1]) >= records:
            raise InputError(f"sketch_records must contain record numbers from 0 to {records - 1}.")
        check_count(rank, "sketch, the number of directions,")
        self.rank = rank
        self.chosen = chosen
        self._place = torch.full((records,), -1, dtype=torch.int64)
        self._place[chosen] = torch.arange(len(chosen))
        self.rows = torch.zeros(2, len(chosen), rank, 0)
        self.lost = torch.zeros(2, len(chosen), dtype=torch.float64)

    def add(self, index: Tensor, pulls: Tensor, factors: Tensor, noise: float) -> None:
        """Add a step; ``pulls`` contains ``J̃ᵀu`` of the records ``index``, ``(B, probes, …)``."""
        if pulls.shape[1] < 2:
            raise InputError("A sketch needs at least two probes per step; give probes=2.")
        place = self._place.to(index.device)[index]
        mine = torch.nonzero(place >= 0).flatten()
        if not len(mine):
            return
        place = place[mine].to(self.rows.device)
        scale = torch.sqrt(factors[mine]).to(pulls.dtype) / noise
        vectors = (pulls[mine].flatten(2) * scale[:, None, None]).to(self.rows.device)
        if self.rows.shape[3] == 0:
            self.rows = vectors.new_zeros(*self.rows.shape[:3], vectors.shape[2])
        for half in (0, 1):
            part = vectors[:, half::2]
            self._append(half, place, part / part.shape[1] ** 0.5)

    def _append(self, half: int, place: Tensor, vectors: Tensor) -> None:
        stacked = torch.cat((self.rows[half, place], vectors), 1)
        self.rows[half, place], lost = _leading(stacked, self.rank)
        self.lost[half, place] += lost

    def bracket(self) -> SpectrumBracket:
        """Return lower and upper bounds on the FIL of every sketched record."""
        if self.rows.shape[3] == 0:
            nothing = np.zeros(len(self.chosen))
            return SpectrumBracket(self.chosen.numpy(), nothing, nothing)
        both = self.rows.double()
        together = torch.cat((both[0], both[1]), 1) / 2**0.5
        upper = torch.linalg.eigvalsh(_gram(together))[:, -1] + self.lost.mean(0)
        across = []
        for half in (0, 1):
            values, vectors = torch.linalg.eigh(_gram(both[half]))
            direction = (both[half].transpose(1, 2) @ vectors[:, :, -1:]).squeeze(2)
            direction = direction / values[:, -1:].clamp(min=1e-300).sqrt()
            across.append((both[1 - half] @ direction[:, :, None]).square().sum((1, 2)))
        lower = torch.stack(across).mean(0)
        return SpectrumBracket(
            self.chosen.cpu().numpy(),
            lower.clamp(min=0.0).sqrt().cpu().numpy(),
            upper.clamp(min=0.0).sqrt().cpu().numpy(),
        )

    def absorb(self, other: SpectrumSketch, share: float = 1.0) -> None:
        """Add another sketch of the same records, with its information multiplied by ``share``."""
        if not torch.equal(self.chosen, other.chosen.to(self.chosen.device)):
            raise InputError(
                "The sketches are of different records and cannot be added; use the same "
                "sketch_records."
            )
        if other.rows.shape[3] == 0:
            return
        if self.rows.shape[3] == 0:
            self.rows = torch.zeros_like(other.rows, device=self.rows.device)
        everyone = torch.arange(len(self.chosen), device=self.rows.device)
        for half in (0, 1):
            self._append(half, everyone, other.rows[half].to(self.rows.device) * share**0.5)
        self.lost += share * other.lost.to(self.lost.device)

    def emptied(self) -> SpectrumSketch:
        """Return an empty sketch of the same records and rank."""
        return SpectrumSketch(self.chosen.tolist(), self.rank, len(self._place))


def _gram(rows: Tensor) -> Tensor:
    return rows @ rows.transpose(1, 2)


def _leading(rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return ``rank`` rows with the leading part of ``rowsᵀrows``, and the remainder's norm."""
    values, vectors = torch.linalg.eigh(_gram(rows.double()))
    kept = (vectors[:, :, -rank:].transpose(1, 2) @ rows.double()).to(rows.dtype)
    rest = values[:, -rank - 1] if values.shape[1] > rank else torch.zeros_like(values[:, 0])
    return kept, rest.clamp(min=0.0)
