"""Sums the privacy loss and PLIS of every record over the steps of a training run.

The privacy losses of steps with independent noise can be added (``individual_loss``), and so can
their gradients with respect to a record's attributes. Mueller et al. (2022) require full-batch
gradients, because amplification by subsampling cannot be attributed to one record. This module
therefore counts no amplification.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.jacobian.engine import Engine
from seepage.nn.measures.gradient_leakage import check_batch, check_view
from seepage.nn.privacy.individual_loss import CONDITIONS, IndividualLoss
from seepage.nn.privacy.randomness import (
    UNSTATED,
    check_randomness,
    conditions_of,
    mark_of,
)
from seepage.nn.problem.arrays import as_tensors
from seepage.nn.problem.clipping import Clip, choose_clip
from seepage.nn.problem.problem import Loss
from seepage.nn.problem.views import View
from seepage.nn.sampling.batch_check import checked_index
from seepage.nn.susceptibility.attribution import Attribution
from seepage.nn.susceptibility.plis import Susceptibility, named, susceptibility
from seepage.support.number_check import check_count, check_positive
from seepage.tables.names import counted
from seepage.tables.source import build_frame


class SampledBatchWarning(UserWarning):
    """Warns that a step used only some records; no amplification by subsampling is counted."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RunSusceptibility(Attribution):
    """The PLIS of every record, summed over a run, with norms as for a single step.

    Parameters
    ----------
    privacy_loss
        The sum ``Σ_t PL_t`` of every record.
    steps
        The number of steps.
    uses
        The number of steps in which each record took part.
    conditions
        The assumptions behind the results, in words.
    """

    privacy_loss: Tensor
    steps: int
    uses: Tensor
    conditions: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"<PLIS of {counted(len(self), 'record')} over {counted(self.steps, 'step')}: "
            f"{self.individual()!r}; no amplification by subsampling>"
        )

    def individual(self) -> IndividualLoss:
        """Return the privacy loss of each record over the run, as ε, μ and Rényi divergence."""
        return IndividualLoss(self.privacy_loss.double().cpu().numpy(), self.conditions)

    def table(  # type: ignore[override]
        self, delta: float = 1e-5, library: str | None = None
    ) -> Any:
        """Return a data frame with a row for every record."""
        loss = self.individual()
        columns: dict[str, Any] = {
            "row": np.arange(len(self)) if self.index is None else self.index,
            "privacy_loss": loss.privacy_loss,
            "plis": np.asarray(self.records()),
            "steps": self.uses.cpu().numpy(),
            "mu": loss.mu(),
            "rdp_2": loss.rdp(2),
            "epsilon": loss.epsilon(delta),
        }
        if mark := mark_of(self.conditions):
            columns["condition"] = [mark] * len(self)
        return build_frame(columns, library or self.library)


class PlisOverTraining:
    """Sums the privacy loss and PLIS of every record over the steps of a run.

    Call :meth:`observe` with the records of every step before the update. Every step should use the
    gradients of all records, because PLIS cannot be combined with amplification by subsampling
    (Mueller et al. 2022). A batch that leaves out records raises a warning and is counted without
    amplification.

    Parameters
    ----------
    net, loss
        The network in training and its loss, as for :func:`plis`.
    n
        The number of records.
    noise_multiplier
        The noise multiplier ``σ``, which may be changed between steps.
    max_grad_norm
        The clipping threshold ``C``.
    clip
        ``"smooth"`` or ``"hard"``, as for :func:`plis`.
    view
        The view that selects the attributes.
    chunk_size
        The number of records to process at once.
    randomness
        The origin of the loop's noise, as for :class:`~seepage.nn.FisherAccountant`.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> x, y = torch.randn(20, 4), torch.randint(0, 2, (20,))
    >>> watch = sp.nn.PlisOverTraining(
    ...     net, "cross_entropy", n=20, noise_multiplier=10.0, max_grad_norm=1.0
    ... )
    >>> for step in range(3):
    ...     seen = watch.observe(range(20), x, y)  # then clip, add noise, update
    >>> run = watch.result()
    >>> run.values.shape, run.individual().mu().shape
    (torch.Size([20, 4]), (20,))
    """

    _kept = (
        "about",
        "steps",
        "privacy_loss",
        "uses",
        "seen",
        "values",
        "names",
        "library",
        "labels",
    )

    def __init__(
        self,
        net: nn.Module,
        loss: str | nn.Module | Loss,
        *,
        n: int,
        noise_multiplier: float,
        max_grad_norm: float,
        clip: str | Clip = "smooth",
        view: View | None = None,
        chunk_size: int | str = "auto",
        randomness: str = UNSTATED,
    ) -> None:
        check_randomness(randomness)
        self.randomness = randomness
        check_count(n, "n, the number of training records,")
        check_view(view)
        check_positive(max_grad_norm, "max_grad_norm")
        self.records, self.noise_multiplier = n, noise_multiplier
        self.engine = Engine(
            net, loss, clip=choose_clip(clip, max_grad_norm), view=view, chunk_size=chunk_size
        )
        self.about = self.engine.view.describe()
        self.steps = 0
        self.privacy_loss = torch.zeros(n, dtype=torch.float64)
        self.uses = torch.zeros(n, dtype=torch.int64)
        self.values: Tensor | None = None  # of the shape of the first batch's attributes
        self.names: tuple[str, ...] | None = None  # of the columns, once a data frame was seen
        self.library = "torch"
        self.labels: dict[int, Any] = {}  # of the records that came with those of a pandas index
        self.seen = torch.zeros(n, dtype=torch.bool)  # the records of the present step
        self._warned = False

    def observe(self, index: Any, x: Any, y: Any, *, more: bool = False) -> Susceptibility:
        """Add a step and return the PLIS of its records; call this before the update.

        Parameters
        ----------
        index
            The records' numbers, ``(B,)``, from 0 to ``n − 1``.
        x, y
            The records' inputs and targets, as for :func:`plis`: tensors, NumPy arrays or data
            frames, whose column names are then used.
        more
            Whether more records of the same step follow, if the full batch is passed in several
            parts.
        """
        x, y, table = as_tensors(self.engine.net, x, y)
        check_batch(x, y)
        chosen = checked_index(index, len(y), self.records, self.seen.nonzero().flatten())
        check_positive(self.noise_multiplier, "noise_multiplier")
        noise = float(self.noise_multiplier) * self.engine.clip.max_grad_norm
        step = named(susceptibility(self.engine, x, y, noise), table, self.engine.view)
        self.about = step.about
        self._refuse_other_attributes(step)
        labels = (
            {}
            if step.index is None
            else dict(zip(chosen.tolist(), step.index.tolist(), strict=True))
        )
        for row, label in labels.items():  # its number, or its row, would be another record's
            if self.labels.get(row, label) != label:
                raise InputError(
                    f"Record {row} is labelled {label!r} in the index of x, but was labelled "
                    f"{self.labels[row]!r} in an earlier step; give the record numbers of these "
                    "rows in index."
                )
        self.labels |= labels
        if step.names is not None:
            self.names, self.library = step.names, step.library
        self.seen[chosen] = True
        self.uses[chosen] += 1
        self.privacy_loss[chosen] += step.privacy_loss.double().cpu()
        values = step.values.cpu()
        if self.values is None:
            self.values = torch.zeros(self.records, *values.shape[1:], dtype=values.dtype)
        self.values[chosen] += values
        if not more:
            self._close_step()
        return step

    def result(self) -> RunSusceptibility:
        """Return the sums over all steps so far."""
        if self.values is None:
            raise InputError("No step has been observed yet; call observe() before every update.")
        sampled = int((self.uses < self.steps).sum())
        conditions = (*CONDITIONS, *conditions_of([self.randomness]))
        if sampled:
            conditions += (
                f"Some steps left out records, {sampled} of {self.records} in all. Each of them is "
                "charged only for the steps in which it took part, as if the attacker knew these "
                "steps.",
            )
        index = None
        if self.labels:  # a record's number where no label came with it
            index = np.empty(self.records, dtype=object)
            index[:] = [self.labels.get(row, row) for row in range(self.records)]
        return RunSusceptibility(
            self.values.clone(),
            None,
            self.about,
            index=index,
            names=self.names,
            library=self.library,
            privacy_loss=self.privacy_loss.clone(),
            steps=self.steps,
            uses=self.uses.clone(),
            conditions=conditions,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all sums, from which a run can resume later."""
        return copy.deepcopy({name: getattr(self, name) for name in self._kept})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state_dict` returned."""
        if len(state["uses"]) != self.records:
            raise InputError(
                f"The state has {counted(len(state['uses']), 'record')}, but n is {self.records}; "
                "use the n of the run that the state is from."
            )
        for name in self._kept:
            setattr(self, name, copy.deepcopy(state[name]))

    def _close_step(self) -> None:
        missing = int((~self.seen).sum())
        self.steps += 1
        self.seen.zero_()
        if missing and not self._warned:
            self._warned = True
            warnings.warn(
                f"A step left out {missing} of {self.records} records. PLIS cannot be combined "
                "with amplification by subsampling, so the results assume that the attacker knows "
                "which records took part in which step. To avoid this assumption, observe all "
                "records in every step.",
                SampledBatchWarning,
                stacklevel=3,
            )

    def _refuse_other_attributes(self, found: Susceptibility) -> None:
        """Raise an error if the attributes differ from those of earlier steps."""
        if self.values is not None and self.values.shape[1:] != found.values.shape[1:]:
            raise InputError(
                f"The records have attributes of shape {tuple(found.values.shape[1:])}, but in "
                f"earlier steps their shape was {tuple(self.values.shape[1:])}; use the same shape "
                "in all steps."
            )
        if None not in (self.names, found.names) and self.names != found.names:
            raise InputError(
                "The columns of x differ from those of earlier steps; give the same columns in the "
                "same order."
            )
