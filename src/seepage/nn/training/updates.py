"""How a private step uses the noisy gradient: by the step of a torch optimiser.

It sees nothing but the noisy gradients and the resulting parameters, so it adds no leakage
(post-processing of a release gives nothing more away).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.problem.sharding import put_together, spread_like

Released = Mapping[str, nn.Parameter]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class PrivateUpdate:
    """Changes the parameters by a noisy gradient; its state can be stored and resumed.

    ``make`` creates the optimiser for the released parameters.
    """

    def __init__(self, released: Released, make: MakeOptimizer) -> None:
        self.released = released
        self.optimizer = make(list(released.values()))
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise InputError(
                "optimizer must be a function of the parameters that returns an optimiser of "
                "torch, for instance functools.partial(torch.optim.AdamW, lr=1e-3), not of "
                f"{type(self.optimizer).__name__}."
            )
        owned = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if owned != {id(p) for p in released.values()}:
            raise InputError(
                "The optimiser must hold exactly the parameters with requires_grad; give it all "
                "of them and no others."
            )

    def take(self, gradient: Mapping[str, Tensor]) -> None:
        """Take a step along the noisy mean gradient of every parameter."""
        for name, parameter in self.released.items():
            parameter.grad = spread_like(parameter, gradient[name].to(parameter.dtype))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def settings(self) -> dict[str, Any]:
        """Return the optimiser's class and the settings of its groups."""
        groups = [
            {name: repr(value) for name, value in group.items() if name != "params"}
            for group in self.optimizer.param_groups
        ]
        return {"optimizer": type(self.optimizer).__qualname__, "optimizer groups": groups}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the optimiser's state, by the numbers of its parameters."""
        tensors: dict[str, Tensor] = {}
        facts: dict[str, Any] = {}
        for number, kept in self.optimizer.state_dict()["state"].items():
            for name, value in kept.items():
                place = f"{number}.{name}"
                if isinstance(value, Tensor):
                    tensors[place] = put_together(value)
                elif value is None or isinstance(value, bool | int | float | str):
                    facts[place] = value
                else:
                    raise InputError(
                        f"The optimiser keeps a {type(value).__name__} ({name}) between steps, "
                        "which a checkpoint cannot hold; use another optimiser, or no checkpoint."
                    )
        return tensors, facts

    def go_on(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Resume from such a state; the groups are unchanged."""
        state: dict[int, dict[str, Any]] = {}
        owners = [p for group in self.optimizer.param_groups for p in group["params"]]
        for place, value in (dict(facts) | dict(tensors)).items():
            number, _, name = place.partition(".")
            owner = owners[int(number)]
            if isinstance(value, Tensor) and value.shape == owner.shape:
                value = spread_like(owner, value)
            state.setdefault(int(number), {})[name] = value
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": state})
