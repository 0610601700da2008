"""The local training of a FedAvg client: its optimiser, epochs and batches.

The optimisers are written as plain arithmetic on tensors, so that a whole local run is a
differentiable map from the client's records to its update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seepage.errors import InputError, accepts_other_names
from seepage.support.number_check import check_count, check_not_negative, check_positive

Parameters = dict[str, Tensor]
Gradient = Callable[
    [Parameters, Tensor], Mapping[str, Tensor]
]  # of some records, at given parameters
_OPTIMISERS = ("sgd", "adam", "adamw")


@accepts_other_names
@dataclass(frozen=True)
class LocalTraining:
    """Describes a client's local steps, which match those of torch's optimisers.

    Every step uses the mean loss over its batch, and every client starts with a new optimiser.

    Parameters
    ----------
    lr
        The learning rate.
    epochs
        The number of passes over the client's records.
    batch_size
        The number of records per batch; records are reshuffled every epoch. By default, a batch
        contains all records, which means one step per epoch.
    optimizer
        ``"sgd"``, ``"adam"`` or ``"adamw"``.
    momentum
        The momentum of ``"sgd"``; other optimisers do not accept it.
    weight_decay
        The weight decay λ, as in torch: λθ is added to the gradient or, with ``"adamw"``, ``lr``·λθ
        is subtracted from the parameters θ.
    betas, eps
        The coefficients of ``"adam"`` and ``"adamw"``.
    batches
        The positions of the records used in every step, instead of ``epochs`` and ``batch_size``.
    seed
        The seed of the shuffling.

    Examples
    --------
    >>> import seepage as sp
    >>> training = sp.layers.LocalTraining(lr=0.1, epochs=2, batch_size=3, momentum=0.9)
    >>> [len(rows) for rows in training.rows_of_steps(5)]
    [3, 2, 3, 2]
    >>> sp.layers.LocalTraining(lr=0.1, batches=[[0, 1], [1, 2]]).rows_of_steps(3)
    [tensor([0, 1]), tensor([1, 2])]
    """

    lr: float
    epochs: int = 1
    batch_size: int | None = None
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    batches: Sequence[Sequence[int]] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(self.lr, "lr")
        check_positive(self.eps, "eps")
        if self.optimizer not in _OPTIMISERS:
            raise InputError(
                f"optimizer must be 'sgd', 'adam' or 'adamw', not {self.optimizer!r}; for other "
                "optimisers, record the updates and audit them (sp.layers.audit_updates)."
            )
        for name in ("momentum", "weight_decay"):
            check_not_negative(getattr(self, name), name)
        if self.momentum and self.optimizer != "sgd":
            raise InputError(
                f"momentum is supported only for 'sgd'; for {self.optimizer!r}, set betas."
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"betas must be at least 0 and below 1, not {self.betas!r}.")
        check_count(self.epochs, "epochs")
        if self.batch_size is not None:
            check_count(self.batch_size, "batch_size")
        if self.batches is not None and (self.epochs != 1 or self.batch_size is not None):
            raise InputError("Give either batches, or epochs and batch_size, not both.")
        if self.batches is not None and not (self.batches and all(map(len, self.batches))):
            raise InputError(
                "batches must contain at least one step, and every step at least one record."
            )

    def rows_of_steps(self, records: int) -> list[Tensor]:
        """Return the records used in each local step of a client with this many records."""
        if self.batches is not None:
            steps = [torch.as_tensor(rows) for rows in self.batches]
            for number, rows in enumerate(steps):
                if int(rows.min()) < 0 or int(rows.max()) >= records:
                    raise InputError(
                        f"Local step {number} uses a record that does not exist; number the "
                        f"client's records from 0 to {records - 1}."
                    )
            return steps
        if self.batch_size is None or self.batch_size >= records:
            return [torch.arange(records)] * self.epochs
        draw = torch.Generator().manual_seed(self.seed)
        orders = [torch.randperm(records, generator=draw) for _ in range(self.epochs)]
        return [rows for order in orders for rows in order.split(self.batch_size)]

    def reach(self, records: int) -> float:
        """Return the total change of a parameter whose gradient is always one.

        For plain SGD, this is ``lr`` times the number of steps; with momentum, it is larger.
        Dividing an update by this number yields the gradient, if the gradient is constant. With
        Adam, the change does not depend on the size of a constant gradient, so no divisor exists.

        Examples
        --------
        >>> import seepage as sp
        >>> round(sp.layers.LocalTraining(lr=0.1, epochs=3, momentum=0.5).reach(8), 3)
        0.425
        """
        if self.optimizer != "sgd":
            raise InputError(
                f"An update by {self.optimizer!r} does not grow with the gradient, so the gradient "
                "cannot be computed from the update; use optimizer='sgd'."
            )
        rest = {"": torch.zeros(1, dtype=torch.float64)}
        steps = self.rows_of_steps(records)
        return float(self.update(rest, lambda *_: {"": torch.ones_like(rest[""])}, steps))

    def update(self, parameters: Parameters, gradient: Gradient, steps: Sequence[Tensor]) -> Tensor:
        """Return ``θ_sent − θ_returned`` after these steps, as one vector.

        Parameters
        ----------
        parameters
            The parameters sent to the client.
        gradient
            A function that returns the gradient of the mean loss over the given records at given
            parameters. If this function is differentiable, so is the update.
        steps
            The records of every step.
        """
        now = dict(parameters)
        memory: dict[str, Any] = {}
        for number, rows in enumerate(steps, start=1):
            slopes = gradient(now, rows)
            moves = {}
            for name, value in now.items():
                moves[name], memory[name] = self._move(
                    value, slopes[name], memory.get(name), number
                )
            now = {name: value - moves[name] for name, value in now.items()}
        return torch.cat([(parameters[name] - now[name]).flatten() for name in parameters])

    def _move(self, value: Tensor, slope: Tensor, memory: Any, number: int) -> tuple[Tensor, Any]:
        """Return the change of a parameter in one step, and the optimiser's new state."""
        if self.weight_decay and self.optimizer != "adamw":
            slope = slope + self.weight_decay * value
        if self.optimizer == "sgd":
            if self.momentum and memory is not None:
                slope = self.momentum * memory + slope
            return self.lr * slope, slope
        first, second = self.betas
        mean, square = (0.0, 0.0) if memory is None else memory
        mean = first * mean + (1 - first) * slope
        square = second * square + (1 - second) * slope.square()
        spread = _root(square / (1 - second**number)) + self.eps
        move = self.lr * (mean / (1 - first**number)) / spread
        if self.optimizer == "adamw":
            move = move + self.lr * self.weight_decay * value
        return move, (mean, square)


def _root(squares: Tensor) -> Tensor:
    """Return square roots, with a derivative of zero instead of infinity at zero."""
    moved = squares > 0
    return torch.where(moved, torch.where(moved, squares, 1.0).sqrt(), 0.0)


def check_training(training: Any) -> None:
    """Raise an error unless ``training`` is a :class:`LocalTraining`."""
    if not isinstance(training, LocalTraining):
        raise InputError(
            "training must describe the client's training as sp.layers.LocalTraining(lr=…, …), "
            f"but is of type {type(training).__name__}."
        )
