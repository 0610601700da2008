"""PLIS over a training run: a callback that adds up what every step costs every record.

The privacy losses of steps with independent noise add (``individual_loss``), and so do their
gradients with respect to a record's attributes. Paper 002 asks for full-batch gradients: what
hidden batches hide cannot be assigned to one record, so no amplification is claimed here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.accountant import make_clip
from seepage.nn.attribution import Attribution
from seepage.nn.engine import Engine
from seepage.nn.individual_loss import CONDITIONS, IndividualLoss
from seepage.nn.losses import Loss
from seepage.nn.susceptibility import Susceptibility, susceptibility
from seepage.nn.views import View
from seepage.tables import build_frame


class SampledBatchWarning(UserWarning):
    """A step was taken with some of the records only; PLIS claims nothing from their sampling."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RunSusceptibility(Attribution):
    """The sum over a run of every record's PLIS; its norms as for a single step.

    Parameters
    ----------
    privacy_loss
        ``Σ_t PL_t`` of every record.
    steps
        How many steps there were.
    uses
        In how many of them each record took part.
    conditions
        What the numbers assume, in words.
    """

    privacy_loss: Tensor
    steps: int
    uses: Tensor
    conditions: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"<PLIS of {len(self)} records over {self.steps} steps: "
            f"{self.individual()!r}; no amplification by subsampling>"
        )

    def individual(self) -> IndividualLoss:
        """Return ε, μ and Rényi divergence of each record over the run."""
        return IndividualLoss(self.privacy_loss.double().cpu().numpy(), self.conditions)

    def table(self, delta: float = 1e-5, library: str | None = None) -> Any:
        """Return a data frame with a row for every record."""
        loss = self.individual()
        columns = {
            "row": np.arange(len(self)) if self.index is None else self.index,
            "privacy_loss": loss.privacy_loss,
            "plis": np.asarray(self.subjects()),
            "steps": self.uses.cpu().numpy(),
            "mu": loss.mu(),
            "rdp_2": loss.rdp(2),
            "epsilon": loss.epsilon(delta),
        }
        return build_frame(columns, library or self.library)


class PlisOverTraining:
    """Adds up privacy loss and PLIS of every record over the steps of a run.

    Call :meth:`observe` with the records of every step before its update. The gradients are
    to be of all records in every step: PLIS cannot be combined with amplification by subsampling
    (paper 002), and batches that leave records out are warned about and counted without it.

    Parameters
    ----------
    net, loss
        The network under training and its loss, as for :func:`plis`.
    n
        How many records there are.
    noise_multiplier
        ``σ``; may be changed between steps.
    max_grad_norm
        The clipping threshold ``C``.
    clip
        ``"smooth"`` or ``"hard"``.
    view
        What the attributes are.
    chunk_size
        Examples worked on at a time.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
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

    def __init__(
        self,
        net: nn.Module,
        loss: str | nn.Module | Loss,
        *,
        n: int,
        noise_multiplier: float,
        max_grad_norm: float,
        clip: str = "smooth",
        view: View | None = None,
        chunk_size: int | str = "auto",
    ) -> None:
        if n < 1:
            raise InputError(f"n must be the number of training records, not {n}.")
        self.records, self.noise_multiplier = n, noise_multiplier
        self.engine = Engine(
            net, loss, clip=make_clip(clip, max_grad_norm), view=view, chunk_size=chunk_size
        )
        self.steps = 0
        self.privacy_loss = torch.zeros(n, dtype=torch.float64)
        self.uses = torch.zeros(n, dtype=torch.int64)
        self.values: Tensor | None = None  # of the shape of the first batch's attributes
        self._seen = torch.zeros(n, dtype=torch.bool)
        self._warned = False

    def observe(
        self, index: Sequence[int] | Tensor | Any, x: Any, y: Tensor, *, more: bool = False
    ) -> Susceptibility:
        """Add a step, before its update; return the PLIS of its records.

        Parameters
        ----------
        index
            Which records these are, ``(B,)``.
        x, y
            Their inputs and targets.
        more
            Whether more records of the same step follow (a full batch in several parts).
        """
        chosen = self._checked(index, y)
        noise = float(self.noise_multiplier) * self.engine.clip.max_grad_norm
        if not 0 < noise < float("inf"):
            raise InputError(
                f"noise_multiplier must be a finite number above zero, not "
                f"{self.noise_multiplier!r}."
            )
        found = susceptibility(
            *self.engine.radial_pull(x, y), self.engine.clip, noise, self.engine.view.describe()
        )
        self._seen[chosen] = True
        self.uses[chosen] += 1
        self.privacy_loss[chosen] += found.privacy_loss.double().cpu()
        values = found.values.cpu()
        if self.values is None:
            self.values = torch.zeros(self.records, *values.shape[1:], dtype=values.dtype)
        self.values[chosen] += values
        if not more:
            self._close_step()
        return found

    def result(self) -> RunSusceptibility:
        """Return the sums over all steps so far."""
        if self.values is None:
            raise InputError("Nothing has been observed yet; call observe before every update.")
        sampled = int((self.uses < self.steps).sum())
        conditions: tuple[str, ...] = CONDITIONS
        if sampled:
            conditions += (
                f"{sampled} of {self.records} records were left out of some steps; they are "
                "charged for the steps they took part in, as if it were known which.",
            )
        return RunSusceptibility(
            self.values.clone(),
            None,
            self.engine.view.describe(),
            privacy_loss=self.privacy_loss.clone(),
            steps=self.steps,
            uses=self.uses.clone(),
            conditions=conditions,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that was added up, to go on from later."""
        kept = {} if self.values is None else {"values": self.values.clone()}
        return kept | {
            "steps": self.steps,
            "privacy_loss": self.privacy_loss.clone(),
            "uses": self.uses.clone(),
            "seen": self._seen.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        if len(state["uses"]) != self.records:
            raise InputError(
                f"The state is about {len(state['uses'])} records, but n is {self.records}."
            )
        self.steps = int(state["steps"])
        self.privacy_loss, self.uses = state["privacy_loss"].clone(), state["uses"].clone()
        self._seen = state["seen"].clone()
        self.values = state["values"].clone() if "values" in state else None

    def _close_step(self) -> None:
        missing = int((~self._seen).sum())
        self.steps += 1
        self._seen.zero_()
        if missing and not self._warned:
            self._warned = True
            warnings.warn(
                f"A step left out {missing} of {self.records} records. PLIS assigns its values to "
                "persons and cannot be combined with amplification by subsampling: the numbers "
                "hold as if everybody knew who took part in which step.",
                SampledBatchWarning,
                stacklevel=3,
            )

    def _checked(self, index: Any, y: Tensor) -> Tensor:
        chosen = torch.as_tensor(index, dtype=torch.int64).flatten().cpu()
        if len(chosen) != len(y) or not len(chosen):
            raise InputError(f"index names {len(chosen)} records, but the batch has {len(y)}.")
        if int(chosen.min()) < 0 or int(chosen.max()) >= self.records:
            odd = int(chosen.min()) if int(chosen.min()) < 0 else int(chosen.max())
            raise InputError(f"There is no record {odd}: n is {self.records}.")
        if len(torch.unique(chosen)) < len(chosen) or bool(self._seen[chosen].any()):
            raise InputError("A record is in the same step twice; each may take part once.")
        return chosen
