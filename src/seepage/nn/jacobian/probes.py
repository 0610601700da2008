"""Engine 1, probes of the release: ``Jᵀu`` for random directions ``u`` of the parameters.

``g_i·u`` is the derivative of example i's loss along ``u``, so that ``∇_z Σ_i g_i·u`` gives
``J_iᵀu`` of every example at once, with one direction for the whole batch and no rule per layer.
Since ``E[uuᵀ] = I``, ``E‖Jᵀu‖² = ‖J‖_F²`` and ``E[(Jᵀu)_j²] = (JᵀJ)_jj``.

The pass is forward mode over the parameters of the gradient with respect to ``z``. The other order,
a backward pass through a forward-mode one, costs the same but is silently wrong for the weights of
LayerNorm and InstanceNorm (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from seepage.nn.gradients.backends import differentiable_backends
from seepage.nn.jacobian.directions import Directions
from seepage.nn.problem.problem import Batch, Problem


@dataclass(frozen=True)
class Probes:
    """What K probes of one batch gave.

    Parameters
    ----------
    pulls
        ``J_iᵀu_k``, ``(K, B, …)``.
    along
        ``g_i·u_k``, ``(K, B)``.
    losses
        ``(B,)``.
    """

    pulls: Tensor
    along: Tensor
    losses: Tensor


def probe(problem: Problem, batch: Batch, us: Sequence[Directions]) -> Probes:
    """Return ``Jᵀu`` and ``g·u`` for every direction, all of them in one pass."""
    parameters = problem.detached()

    def pulled(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        constants = {id(values[name]): constant for name, constant in parameters.items()}

        def total(z: Tensor) -> tuple[Tensor, Tensor]:
            with _ConstantPadding(constants):
                losses = problem.losses(values, batch, z)
            return losses.sum(), losses

        return grad(total, has_aux=True)(batch.z)  # type: ignore[no-any-return]

    def one(direction: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        (_, losses), (pull, slopes) = jvp(pulled, (parameters,), (direction,))
        return pull, slopes, losses

    with differentiable_backends(problem.net):
        dense = [
            {n: us[k][n].dense(p.shape) for n, p in parameters.items()} for k in range(len(us))
        ]
        if len(us) == 1:
            pull, slopes, losses = one(dense[0])
            return Probes(pull[None], slopes[None], losses)
        # The primal values carry no probe axis, so vmap computes them once for all probes.
        stacked = {name: torch.stack([u[name] for u in dense]) for name in parameters}
        pulls, slopes, losses = vmap(one, out_dims=(0, 0, None))(stacked)
        return Probes(pulls, slopes, losses)


class _ConstantPadding(TorchFunctionMode):  # type: ignore[misc]
    """Holds the padding of embeddings fixed: torch gives its row no gradient, so none is released.

    Forward mode knows nothing of that custom; here the padding is looked up in constants instead.
    """

    def __init__(self, constants: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.constants = constants

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is not functional.embedding:
            return function(*args, **kwargs)
        out = function(*args, **kwargs)
        tokens, table, padding = _lookup(*args, **kwargs)
        if padding is None or id(table) not in self.constants:
            return out
        fixed = functional.embedding(tokens, self.constants[id(table)])
        return torch.where((tokens == padding)[..., None], fixed, out)


def _lookup(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, *others: Any, **options: Any
) -> tuple[Tensor, Tensor, int | None]:
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    return input, weight, padding_idx
