"""A Hugging Face ``Trainer`` that trains privately and accounts for leakage about every record.

The trainer's own loop, optimiser, schedule, evaluation and checkpoints are kept. Only its loader
and its ``training_step`` change: batches are Poisson samples, and the gradients are those of
:class:`~seepage.nn.PrivateGradients`.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from seepage.errors import InputError, check_options
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.nn.accounting.processes import process_rank
from seepage.nn.problem.problem import Loss
from seepage.nn.training.checkpoints import read_checkpoint, write_checkpoint
from seepage.nn.training.numbered_batches import StepBatches, numbered_loader
from seepage.nn.training.private_gradients import PrivateGradients

_RECORDS = "_records"  # the key of the records' numbers in a batch
_FILE = "private_run.safetensors"  # in a checkpoint's folder
# Arguments of PrivateGradients that TrainingArguments and the data set give
_FROM_ARGS = (
    "n",
    "steps",
    "batch_size",
    "expected_batch",
    "max_grad_norm",
    "sampler",
    "key_folder",
)
# Settings of TrainingArguments that would change the gradients, the value at which they do not, and
# what to do instead
_REFUSED: dict[str, tuple[Any, str]] = {
    "gradient_accumulation_steps": (1, "leave it out; large batches are processed in parts anyway"),
    "fp16": (False, "its gradient scaling would rescale noisy gradients; set bf16=True"),
    "label_smoothing_factor": (0.0, "pass a loss= that smooths the labels of each record"),
    "neftune_noise_alpha": (None, "noise on embeddings is not accounted for; leave it out"),
    "auto_find_batch_size": (False, "leave it out; large batches are processed in parts anyway"),
    "deepspeed": (None, "start the script with torchrun instead"),
    "fsdp": ([], "start the script with torchrun instead; for a sharded model use PrivateSGD"),
}


class PrivateTrainer(Trainer):  # type: ignore[misc]
    """A ``Trainer`` for private SGD that accounts for the leakage about every record.

    The class takes the arguments of ``transformers.Trainer`` and those below. ``TrainingArguments``
    specify the optimiser, the schedule, the number of steps, the clipping threshold C of each
    record's gradient (``max_grad_norm``), and the divisor B (the batch size per device times the
    number of processes). Batches are Poisson samples. The model runs without dropout. Checkpoints
    include the account: ``train(resume_from_checkpoint=True)`` draws the same batches and noise as
    an uninterrupted run. If there are several processes (``torchrun``), they share every batch.

    The logged training loss and the files in the checkpoints depend on the data without noise: do
    not publish them.

    Parameters
    ----------
    loss
        The loss of a record; by default the model's own loss.
    sample_rate
        The declared probability that a record is in a batch. By default it is B divided by the
        number of records, which then counts as public.
    options
        Arguments of ``Trainer``, and of :class:`~seepage.nn.PrivateGradients`: ``noise_multiplier``
        (or ``target_epsilon`` and ``target_delta``), ``clip``, ``view``, ``probes``, ``seed`` and
        so on. Without a ``seed``, the key from which batches and noise are drawn is stored as
        ``_noise-….key`` in the output folder; delete it after the run.

    Attributes
    ----------
    accountant_
        The :class:`~seepage.nn.FisherAccountant` of the run.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        *others: Any,
        loss: str | nn.Module | Loss = "own",
        sample_rate: float | None = None,
        **options: Any,
    ) -> None:
        args = TrainingArguments(output_dir="trainer_output") if args is None else args
        _check(args, options)
        own = inspect.signature(Trainer).parameters
        self._settings = {name: value for name, value in options.items() if name not in own}
        takers = (PrivateGradients, FisherAccountant)
        known = [name for taker in takers for name in inspect.signature(taker).parameters]
        check_options(self._settings, (*known, *own), "PrivateTrainer")
        self._settings["max_grad_norm"] = args.max_grad_norm
        self._rate, self._loss = sample_rate, loss
        self._private: PrivateGradients | None = None
        self._resumed_from: Path | None = None
        args = copy.copy(args)
        args.max_grad_norm = 0.0  # the threshold of each record; the noisy sum is not clipped
        super().__init__(
            model, args, *others, **{n: value for n, value in options.items() if n in own}
        )
        if self.args.n_gpu > 1:
            raise InputError(
                "The Trainer splits batches over several GPUs in one process, without clipping; "
                "start one process per GPU with torchrun."
            )
        self.add_callback(_Account(self))

    @property
    def private_gradients(self) -> PrivateGradients:
        """The object that computes the gradients and the account of the run."""
        if self._private is None:
            raise InputError("There is no account before training; call train() first.")
        return self._private

    @property
    def accountant_(self) -> FisherAccountant:
        """The accountant of the run."""
        return self.private_gradients.accountant_

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *more: Any, **options: Any
    ) -> Any:
        """Train as ``Trainer`` does; resuming from a checkpoint also restores its account."""
        found: str | bool | None = resume_from_checkpoint or None
        if found is True:
            found = get_last_checkpoint(self.args.output_dir)
        if found is None and self._private is not None:
            raise InputError(
                "This trainer has already trained its model; the account of a second run would not "
                "include the first. Resume from a checkpoint, or create a new trainer with a new "
                "model."
            )
        self._resumed_from = None if found is None else Path(str(found))
        return super().train(resume_from_checkpoint, *more, **options)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Begin or resume the run, and return a loader of its batches."""
        plain = super().get_train_dataloader()  # with the columns and the collator of the model
        records, collate = plain.dataset, plain.collate_fn
        private = self._private = self._begin(len(records))
        private.look(records, collate)
        if self._resumed_from is not None:
            private.load_state_dict(_read(self._resumed_from / _FILE))
        length = private.epoch_steps
        # From the start of the epoch: the Trainer itself skips the steps that were taken.
        batches = StepBatches(private.own_records, lambda: private.steps // length * length, length)
        options = {"num_workers": plain.num_workers, "pin_memory": plain.pin_memory}
        return numbered_loader(records, batches, collate, _RECORDS, **options)

    def _begin(self, n: int) -> PrivateGradients:
        """Return the object that draws the batches and computes the gradients of the run."""
        divisor, rate = self.args.per_device_train_batch_size * self.args.world_size, self._rate
        drawn: dict[str, Any] = {"batch_size": divisor}
        if rate is not None:
            drawn = {"sample_rate": rate, "expected_batch": divisor}
        epoch = math.ceil(round(n / divisor if rate is None else 1 / rate, 6))
        steps = self.args.max_steps
        if steps <= 0:
            steps = math.ceil(self.args.num_train_epochs * epoch)
        folder = self.args.output_dir
        if self._resumed_from is not None:
            folder = self._resumed_from.parent
        return PrivateGradients(
            self.model, self._loss, n=n, steps=steps, key_folder=folder, **drawn, **self._settings
        )

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *_: Any) -> Tensor:
        """Account for the batch, and write its noisy gradient; return the mean loss."""
        batch = self._prepare_inputs(inputs)
        index = batch.pop(_RECORDS)
        losses = self.private_gradients.backward(batch, index=index).losses.detach()
        return (losses.sum() / max(1, len(losses))).float()


class _Account(TrainerCallback):  # type: ignore[misc]
    """Stores the account in every checkpoint, and joins the processes' accounts at the end."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self.trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the account into the checkpoint's folder."""
        held = self.trainer.private_gradients.state_dict()
        if process_rank() == 0:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            write_checkpoint(folder / _FILE, held, {"facts": held.pop("facts")})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give every process the account of all processes."""
        self.trainer.private_gradients.gather()


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise InputError(
            f"{path.parent} contains no account ({path.name}); resume from an earlier checkpoint "
            "of this run."
        )
    tensors, facts = read_checkpoint(path)
    return {**tensors, **facts}


def _check(args: Any, options: Mapping[str, Any]) -> None:
    """Raise an error if a setting is not supported or would publish secret values."""
    for name, (neutral, instead) in _REFUSED.items():
        value = getattr(args, name, neutral)
        if value != neutral and value:
            raise InputError(f"{name}={value!r} is not supported in private training: {instead}.")
    for name in _FROM_ARGS:
        if name in options:
            raise InputError(
                f"{name} is set by PrivateTrainer, TrainingArguments or the data; leave it out."
            )
    if options.get("compute_loss_func") is not None:
        raise InputError(
            "compute_loss_func returns a mean over the batch; pass loss=, a function of output and "
            "labels that returns one loss per record."
        )
    if not args.max_grad_norm or args.max_grad_norm <= 0:
        raise InputError(
            "max_grad_norm in TrainingArguments is the clipping threshold of each record's "
            "gradient; it must be above zero."
        )
    if args.push_to_hub and "checkpoint" in str(getattr(args.hub_strategy, "value", "")):
        raise InputError(
            f"hub_strategy={args.hub_strategy.value!r} would publish the leakage about single "
            "records; use 'end' or 'every_save'."
        )
