"""A Lightning callback that trains privately and accounts for leakage about every record.

Lightning's own loop, optimiser, schedule and checkpoints are kept. The callback draws the batches,
and replaces the gradient before every optimiser step by that of
:class:`~seepage.nn.PrivateGradients`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from torch import nn
from torch.utils.data import default_collate

from seepage.errors import InputError
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.nn.problem.problem import Loss
from seepage.nn.training.numbered_batches import Collate
from seepage.nn.training.private_gradients import PrivateGradients
from seepage.tables.names import counted

if find_spec("lightning") is not None:
    from lightning.pytorch import Callback
elif find_spec("pytorch_lightning") is not None:
    from pytorch_lightning import Callback
else:  # the class is documented all the same
    Callback = object


class PrivateCallback(Callback):  # type: ignore[misc]
    """Makes a Lightning run private, and accounts for the leakage about every record.

    The network is the ``LightningModule``, which is called with a batch's inputs and runs without
    dropout. The module's ``training_step`` still runs, but only for the log. Checkpoints include
    the account, so ``fit(…, ckpt_path=…)`` draws the same batches and noise as an uninterrupted
    run. If there are several processes, they share every batch.

    Parameters
    ----------
    loss
        The loss of a record, as for :class:`~seepage.nn.FisherAccountant`.
    settings
        Arguments of :class:`~seepage.nn.PrivateGradients`: ``sample_rate`` and ``expected_batch``,
        ``noise_multiplier``, ``max_grad_norm`` and so on. Without a ``seed``, the key from which
        batches and noise are drawn is stored as ``_noise-….key`` in the trainer's
        ``default_root_dir``; delete it after the run.

    Attributes
    ----------
    accountant_
        The :class:`~seepage.nn.FisherAccountant` of the run.
    """

    def __init__(self, loss: str | nn.Module | Loss, **settings: Any) -> None:
        if Callback is object:
            raise ImportError(
                "PrivateCallback needs Lightning, which is not installed; run: pip install "
                "lightning"
            )
        self.loss, self.settings = loss, settings
        self._batches: _Epoch | None = None
        self._private: PrivateGradients | None = None
        self._batch: Any = None

    def loader(self, records: Any, collate: Collate = default_collate, **options: Any) -> _Epoch:
        """Return an epoch's batches, to pass to ``fit``; see :meth:`PrivateGradients.loader`."""
        self._batches = _Epoch(self, records, collate, options)
        return self._batches

    @property
    def private_gradients(self) -> PrivateGradients:
        """The object that computes the gradients and the account of the run."""
        if self._private is None:
            raise InputError("There is no account before training; call fit() first.")
        return self._private

    @property
    def accountant_(self) -> FisherAccountant:
        """The accountant of the run."""
        return self.private_gradients.accountant_

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Begin the run, after Lightning has connected its processes."""
        if stage != "fit":
            return
        if self._private is not None:
            raise InputError(
                "This callback has already trained a model; the account of a second run would not "
                "include the first. Create a new callback with a new model."
            )
        if self._batches is None:
            raise InputError(
                "Give fit() the batches of this callback: fit(module, callback.loader(data))."
            )
        _check(trainer, pl_module)
        settings = {"key_folder": trainer.default_root_dir} | self.settings
        n = len(self._batches.dataset)
        self._private = PrivateGradients(
            pl_module, self.loss, n=n, steps=self._steps(trainer, n), **settings
        )

    def _steps(self, trainer: Any, n: int) -> int | None:
        """Return the number of steps of the run, if it is known."""
        if trainer.max_steps > 0:
            return int(trainer.max_steps)
        rate, size = (self.settings.get(name) for name in ("sample_rate", "batch_size"))
        if rate is None and size:
            rate = min(1.0, size / n)
        if not rate or trainer.max_epochs is None or trainer.max_epochs < 0:
            return None
        epoch: int = math.ceil(round(1 / rate, 6))
        return int(trainer.max_epochs) * epoch

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Raise an error unless the account has as many steps as the model has taken."""
        if trainer.global_step != self.private_gradients.steps:
            raise InputError(
                f"The model has taken {counted(trainer.global_step, 'step')}, but the account "
                f"contains {self.private_gradients.steps}; resume from a checkpoint of a run with "
                "PrivateCallback."
            )

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Store the batch for the step that uses it."""
        self._batch = batch

    def on_before_optimizer_step(self, *_: Any) -> None:
        """Account for the batch, and replace its gradient by a noisy one."""
        self.private_gradients.backward(self._batch)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Combine the accounts of all processes, in every process."""
        self.private_gradients.gather()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run, for Lightning's checkpoints."""
        return {} if self._private is None else self._private.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume the run that a checkpoint stores."""
        self.private_gradients.load_state_dict(state_dict)


class _Epoch:
    """The batches of one epoch, which are drawn once the run has begun."""

    def __init__(
        self, callback: PrivateCallback, records: Any, collate: Collate, options: Mapping[str, Any]
    ) -> None:
        self.callback, self.dataset = callback, records
        self.collate, self.options = collate, options

    def __len__(self) -> int:
        return self.callback.private_gradients.epoch_steps

    def __iter__(self) -> Iterator[Any]:
        private = self.callback.private_gradients
        return iter(private.loader(self.dataset, self.collate, **self.options))

    # Tells Lightning that an epoch can be resumed in its middle: the account knows the next step.

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.callback.private_gradients.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing, because the callback restores the number of steps."""


def _check(trainer: Any, module: Any) -> None:
    """Raise an error if a setting of Lightning's trainer would change the gradients."""
    if not module.automatic_optimization:
        raise InputError(
            "In manual optimization the module calls the optimiser itself; use "
            "sp.nn.PrivateGradients in its training_step."
        )
    if trainer.accumulate_grad_batches != 1:
        raise InputError(
            "accumulate_grad_batches must be 1 in private training; leave it out, because a batch "
            "that is too large is processed in parts anyway."
        )
    if trainer.gradient_clip_val:
        raise InputError(
            "gradient_clip_val would clip the noisy gradient; leave it out, and give the threshold "
            "for each record's gradient as max_grad_norm of PrivateCallback."
        )
    if str(trainer.precision).startswith("16"):
        raise InputError(
            "In 16-bit precision, gradient scaling would rescale noisy gradients; set "
            "precision='bf16-mixed' or '32-true'."
        )
