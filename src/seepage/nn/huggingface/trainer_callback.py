"""Leakage beside the trainer of Hugging Face: chosen records, measured as training goes on.

A trainer tells its callbacks which step it is at, not which records are in its batches. So this
measures what a noisy gradient *would* tell about records of your choice with the parameters of that
moment; what a private run has told about every record is an accountant's to say
(:class:`~seepage.nn.accounting.accountant.FisherAccountant`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import TrainerCallback

from seepage.errors import InputError
from seepage.nn.measures.estimate import Estimate
from seepage.nn.measures.gradient_leakage import leakage
from seepage.tables.source import build_frame


class LeakageCallback(TrainerCallback):  # type: ignore[misc]
    """Measures the dFIL of some records at the beginning of training and every so many steps.

    Nothing goes into the trainer's own log, since the numbers depend on the data; they are in
    ``history_``, by step.

    Parameters
    ----------
    batch
        The records, as a data collator makes a batch of them.
    noise_multiplier, max_grad_norm
        Of the private training that is asked about, as for ``sp.nn.leakage``.
    every
        Steps from one measurement to the next.
    probes
        How many probes to spend on each.
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
        if every < 1:
            raise InputError(f"every must be a number of steps above zero, not {every!r}.")
        self.batch, self.every, self.probes = batch, every, probes
        self.options = {
            "noise_multiplier": noise_multiplier,
            "max_grad_norm": max_grad_norm,
            **options,
        }
        self.history_: dict[int, Estimate] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the model that training begins with."""
        self._measure(state.global_step, kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure, where it is time."""
        if state.global_step % self.every == 0:
            self._measure(state.global_step, kwargs["model"])

    def table(self, library: str = "pyarrow") -> Any:
        """Return a data frame with the median and the worst record of every measurement."""
        steps = np.array(list(self.history_), dtype=int)
        found = [np.asarray(each) for each in self.history_.values()]
        columns = {
            "step": steps,
            "median": np.array([np.median(each) for each in found]),
            "worst": np.array([each.max() for each in found]),
        }
        return build_frame(columns, library)

    def _measure(self, step: int, model: nn.Module) -> None:
        device = next(model.parameters()).device
        batch = {name: value.to(device) for name, value in self.batch.items()}
        with _evaluated(model):
            leak = leakage(model, batch, **self.options)
            self.history_[step] = leak.records("dfil", probes=self.probes)


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    """Leave dropout out while inside; every module gets its mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
