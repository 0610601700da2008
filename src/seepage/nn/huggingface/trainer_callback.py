"""A Hugging Face trainer callback that measures leakage about chosen records during training.

A trainer passes its callbacks the step number, but not the records of the batch. This callback
therefore measures how much a noisy gradient at the current parameters *would* leak about records of
your choice. To measure the leakage of a private run about every record, use an accountant
(:class:`~seepage.nn.accounting.accountant.FisherAccountant`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import TrainerCallback

from seepage.nn.measures.estimate import Estimate
from seepage.nn.measures.gradient_leakage import leakage
from seepage.nn.problem.views import evaluating
from seepage.support.number_check import check_count
from seepage.tables.names import counted
from seepage.tables.result_table import BLUE, ORANGE, ResultTable, new_axes
from seepage.tables.source import build_frame


class LeakageCallback(TrainerCallback, ResultTable):  # type: ignore[misc]
    """Measures the dFIL about chosen records at the start of training and every few steps.

    The results depend on the data, so they are stored by step in ``history_`` and are not written
    to the trainer's log.

    Parameters
    ----------
    batch
        The records to measure, as a batch from the data collator.
    noise_multiplier, max_grad_norm
        The settings of private training, as for ``sp.nn.leakage``.
    every
        The number of steps between measurements.
    probes
        The number of probes per measurement.
    **options
        Further options of ``sp.nn.leakage``.

    Examples
    --------
    >>> import seepage as sp
    >>> callback = sp.nn.LeakageCallback({}, noise_multiplier=1.0, max_grad_norm=1.0, every=50)
    >>> callback.history_
    {}
    """

    def __init__(
        self,
        batch: Mapping[str, Tensor],
        *,
        noise_multiplier: float,
        max_grad_norm: float | None = None,
        every: int = 100,
        probes: int = 8,
        **options: Any,
    ) -> None:
        check_count(every, "every")
        self.batch, self.every, self.probes = batch, every, probes
        self.options = {
            "noise_multiplier": noise_multiplier,
            "max_grad_norm": max_grad_norm,
            **options,
        }
        self.history_: dict[int, Estimate] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the initial model."""
        self._measure(state.global_step, kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the leakage if a measurement is due at this step."""
        if state.global_step % self.every == 0:
            self._measure(state.global_step, kwargs["model"])

    value_column = "worst"

    def __repr__(self) -> str:
        times = counted(len(self.history_), "time")
        return f"<leakage of a batch, measured {times}, every {counted(self.every, 'step')}>"

    def plot(self, ax: Any = None) -> Any:
        """Plot the median and highest leakage against the step, and return the matplotlib axes."""
        ax, frame = new_axes(ax, figsize=(6.4, 4.0)), self.table(library="pyarrow")
        for name, colour in (("worst", ORANGE), ("median", BLUE)):
            ax.plot(frame["step"], frame[name], marker=".", color=colour, label=name)
        ax.set_xlabel("step")
        ax.set_ylabel("dFIL η̄")
        ax.legend(frameon=False)
        return ax

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with the median and the highest leakage at every measurement."""
        steps = np.array(list(self.history_), dtype=int)
        measurements = [np.asarray(each) for each in self.history_.values()]
        columns = {
            "step": steps,
            "median": np.array([np.median(each) for each in measurements]),
            "worst": np.array([each.max() for each in measurements]),
        }
        return build_frame(columns, library or "pyarrow")

    def _measure(self, step: int, model: nn.Module) -> None:
        device = next(model.parameters()).device
        batch = {name: value.to(device) for name, value in self.batch.items()}
        with evaluating(model):
            leak = leakage(model, batch, **self.options)
            self.history_[step] = leak.records("dfil", probes=self.probes)
