"""The inputs of a gradient inversion attack: gradients or updates released in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.gradient.simulation import SimulatedGradients, SimulatedUpdates
from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.local_training import LocalTraining, check_training
from seepage.nn.problem.arrays import as_tensors
from seepage.nn.problem.clipping import Clip, NoClip
from seepage.nn.problem.problem import Loss
from seepage.support.chunks import ACCELERATOR_CHUNK, row_slices
from seepage.support.number_check import check_count, check_not_negative
from seepage.tables.names import counted
from seepage.tables.source import as_numpy


@dataclass(frozen=True, eq=False, repr=False)
class GradientReleases:
    """Released gradients, each the mean over one batch, with their clipping and noise.

    A release is ``(Σ_i g_i/φ(‖g_i‖) + N(0, (σC)² I))/b``, with the gradients ``g_i`` of b records,
    the clipping function ``φ``, its threshold C and the noise multiplier σ. A release is the
    gradient of a single record (b = 1), the update of a federated client, or a step of private SGD.
    You can also construct this class directly from recorded gradients. With ``training``, the
    releases are FedAvg updates, ``θ_sent − θ_returned``, after local steps that the adversary
    knows.

    Parameters
    ----------
    gradients
        The gradients (or updates) of every released parameter, by its name in
        ``net.named_parameters()``: tensors or NumPy arrays (releases, …), where … is the
        parameter's shape.
    batch_size
        The number of records in each release, which the adversary knows.
    clip
        How the gradient of each record was clipped, which the adversary also knows.
    noise
        The standard deviation of the noise added to every entry of the release.
    training
        How each client trained on its ``batch_size`` records; only for updates.
    """

    gradients: Mapping[str, Tensor]
    batch_size: int = 1
    clip: Clip = field(default_factory=NoClip)
    noise: float = 0.0
    training: LocalTraining | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.gradients, Mapping) or not self.gradients:
            raise InputError(
                "There are no gradients, or they have no names; give a mapping with one array for "
                "every parameter, by parameter name."
            )
        gradients = {name: _tensor(name, values) for name, values in self.gradients.items()}
        object.__setattr__(self, "gradients", gradients)
        _check_clip(self.clip)
        if self.training is not None:
            check_training(self.training)
            if not isinstance(self.clip, NoClip):
                raise InputError(
                    "Local steps cannot be simulated with per-record clipping; leave out clip or "
                    "training."
                )
        check_count(self.batch_size, "batch_size")
        check_not_negative(self.noise, "noise")
        counts = {len(values) if values.dim() else 0 for values in self.gradients.values()}
        if len(counts) > 1:
            raise InputError(
                f"The parameters have different numbers of gradients: {sorted(counts)}; put the "
                "releases along the first axis."
            )
        for name, values in self.gradients.items():
            if not bool(torch.isfinite(values).all()):
                raise InputError(
                    f"The gradients of {name!r} contain NaN or infinity; drop those releases."
                )

    def __len__(self) -> int:
        return len(next(iter(self.gradients.values())))

    def rows(self, which: Any) -> GradientReleases:
        """Return a subset of the releases."""
        return replace(self, gradients={k: v[which] for k, v in self.gradients.items()})

    def flat(self, like: Mapping[str, Tensor]) -> Tensor:
        """Return the gradients as one row per release, in the order of the parameters ``like``."""
        missing = [name for name in like if name not in self.gradients]
        if missing:
            raise InputError(
                f"The release lacks the gradient of {missing[0]!r}; freeze parameters whose "
                "gradients are not released (requires_grad=False)."
            )
        pieces = []
        for name, parameter in like.items():
            values = self.gradients[name]
            if values.shape[1:] != parameter.shape:
                raise InputError(
                    f"The gradients of {name!r} must have the shape (releases, "
                    f"{', '.join(map(str, parameter.shape))}), not {tuple(values.shape)}."
                )
            pieces.append(values.detach().to(parameter).flatten(1))
        return torch.cat(pieces, 1)

    def __repr__(self) -> str:
        each = f" of {self.batch_size} records each" if self.batch_size > 1 else ""
        noise = f", noise {self.noise:.4g}" if self.noise else ""
        if self.training is not None:
            steps = len(self.training.rows_of_steps(self.batch_size))
            after = f"after {steps} local step{'s' if steps != 1 else ''}"
            return f"<{len(self):,} released updates{each}, {after}{noise}>"
        return f"<{len(self):,} released gradients{each}, {self.clip}{noise}>"

    def simulated(self, net: nn.Module, loss: str | nn.Module | Loss) -> SimulatedGradients:
        """Return an object that simulates these releases for candidate records."""
        if self.training is not None:
            return SimulatedUpdates(net, loss, self.training, self.batch_size)
        return SimulatedGradients(net, loss, self.clip, self.batch_size)


def _tensor(name: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    array = as_numpy(values)
    if array.dtype.kind not in "iuf":
        raise InputError(
            f"The gradients of {name!r} must be an array of numbers, not {type(values).__name__}."
        )
    return torch.tensor(array)


def _check_clip(clip: Any) -> None:
    if not isinstance(clip, Clip):
        raise InputError(
            "clip must be a clipping rule with its threshold, such as sp.nn.HardClip(1.0) or "
            f"sp.nn.SmoothClip(1.0), not {clip!r}."
        )


@accepts_other_names
def release_gradients(
    net: nn.Module,
    loss: str | nn.Module | Loss,
    x: Any,
    y: Any,
    *,
    batch_size: int = 1,
    clip: Clip | None = None,
    noise_multiplier: float = 0.0,
    seed: int = 0,
) -> GradientReleases:
    """Return the gradients that training on the records would release, in batches.

    Parameters
    ----------
    net, loss
        The network, whose parameters with ``requires_grad`` are released, and its loss, as for
        :class:`seepage.nn.Engine`.
    x, y
        The records in order, as tensors, NumPy arrays or data frames; every ``batch_size``
        consecutive records form a release. The labels True and False become the classes 1 and 0.
    batch_size
        The number of records in each release.
    clip
        How each record's gradient is clipped; by default, gradients are not clipped.
    noise_multiplier
        The standard deviation of the noise added to the sum, divided by the clipping threshold.
    seed
        The seed of the noise: the same seed produces the same noise. Keep the seed of a real
        release secret.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> x, y = torch.rand(6, 4), torch.tensor([0, 1, 0, 1, 0, 1])
    >>> sp.attacks.release_gradients(net, "cross_entropy", x, y, batch_size=2)
    <3 released gradients of 2 records each, NoClip()>
    """
    used = NoClip() if clip is None else clip
    _check_clip(used)
    check_not_negative(noise_multiplier, "noise_multiplier")
    x, y = _records(net, x, y, batch_size)
    noise = noise_multiplier * used.max_grad_norm / batch_size
    simulated = SimulatedGradients(net, loss, used, batch_size)
    return GradientReleases(_seen(simulated, x, y, noise, seed), batch_size, used, noise)


@accepts_other_names
def release_updates(
    net: nn.Module,
    loss: str | nn.Module | Loss,
    x: Any,
    y: Any,
    *,
    training: LocalTraining,
    batch_size: int = 1,
    noise: float = 0.0,
    seed: int = 0,
) -> GradientReleases:
    """Return the updates that clients would send after training on their records.

    Parameters
    ----------
    net, loss
        The network that clients receive, and its loss, as for :class:`seepage.nn.Engine`.
    x, y
        The records, client by client, as for :func:`release_gradients`.
    training
        How every client trains.
    batch_size
        The number of records per client; ``training`` may split them into smaller batches.
    noise, seed
        The standard deviation of the noise added to every entry of an update, and the seed, as for
        :func:`release_gradients`.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> net, x = torch.nn.Linear(4, 2), torch.rand(6, 4)
    >>> training = sp.layers.LocalTraining(lr=0.1, epochs=5)
    >>> y = [0, 1, 0, 1, 0, 1]
    >>> sp.attacks.release_updates(net, "cross_entropy", x, y, training=training, batch_size=2)
    <3 released updates of 2 records each, after 5 local steps>
    """
    check_training(training)
    check_not_negative(noise, "noise")
    x, y = _records(net, x, y, batch_size)
    simulated = SimulatedUpdates(net, loss, training, batch_size)
    seen = _seen(simulated, x, y, noise, seed)
    return GradientReleases(seen, batch_size, noise=noise, training=training)


def _records(net: nn.Module, x: Any, y: Any, batch_size: Any) -> tuple[Tensor, Tensor]:
    """Return the records of the releases as tensors, or raise an error if they are invalid."""
    x, y, _ = as_tensors(net, x, y)
    if not isinstance(x, Tensor):
        raise InputError(
            f"x must be one tensor, array or data frame of records, not {type(x).__name__}."
        )
    if len(x) == 0:
        raise InputError("x contains no records; give at least one.")
    if not isinstance(batch_size, int) or batch_size < 1 or len(x) % batch_size:
        raise InputError(
            f"The number of records, {len(x)}, cannot be divided into batches of {batch_size!r}; "
            f"choose a batch_size that divides {len(x)}."
        )
    if len(x) != len(y):
        raise InputError(
            f"x has {counted(len(x), 'record')}, but y has {counted(len(y), 'label')}; give one "
            "label for each record."
        )
    return x, y.long() if y.dtype == torch.bool else y


def _seen(
    simulated: SimulatedGradients, x: Tensor, y: Tensor, noise: float, seed: int
) -> dict[str, Tensor]:
    """Return the noisy releases, one for every ``batch_size`` records, by parameter name."""
    simulated.prepare(x, y)
    b = simulated.batch_size
    rows = []
    for piece in row_slices(
        len(x) // b, simulated.held(), chunk=ACCELERATOR_CHUNK, what="releasing gradients"
    ):
        records = slice(piece.start * b, piece.stop * b)
        rows.append(simulated.flat(x[records], y[records]))
    values = torch.cat(rows)
    if noise:
        # Drawn on the CPU, so that a seed means the same noise on every device.
        draw = torch.Generator().manual_seed(seed)
        values += noise * torch.randn(values.shape, generator=draw, dtype=values.dtype).to(values)
    parameters = simulated.parameters()
    sizes = [parameter.numel() for parameter in parameters.values()]
    return {
        name: part.reshape(-1, *parameter.shape)
        for (name, parameter), part in zip(
            parameters.items(), values.split(sizes, dim=1), strict=True
        )
    }
