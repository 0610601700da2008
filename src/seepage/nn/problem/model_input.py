"""The view of a model that declares its own input: pixels, or the embeddings of tokens.

Models of Hugging Face take their inputs by name and say which module embeds their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.problem.views import Embedding, Input, Inputs, Placed, View

_TOKENS = "input_ids"
_SIZES = "attention_mask"  # one for every token of a record, zero for its padding


@dataclass(frozen=True, eq=False)
class TokenEmbeddings(Embedding):
    """The embeddings of a record's tokens, as the model looks them up.

    Padding, where the attention mask is zero, does not count as unknown.
    """

    def unknowns_each(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return the number of unknowns of each record, without padding."""
        every = super().unknowns_each(net, x, y)
        sizes = x.get(_SIZES) if isinstance(x, Mapping) else None
        if not isinstance(sizes, Tensor) or sizes.dim() != 2:
            return every
        z = self.variable(net, x, y)
        if z.dim() != 3 or z.shape[:2] != sizes.shape:
            return every
        mask = self.mask_for(z)
        of_token = torch.ones(z.shape[1:]) if mask is None else mask
        return (sizes != 0).double().cpu() @ of_token.double().cpu().sum(1)

    def describe(self) -> str:
        """Return what the view is about, in words."""
        part = "a part of " if self.mask is not None else ""
        return f"{part}the token embeddings ({self.module!r})"


class ModelInput(View):
    """The input of a model, as the model declares it.

    This is a batch's first input of real numbers (``pixel_values``, ``inputs_embeds``), or else the
    embeddings of its tokens: those of the encoder, if there is a decoder too. It is found at the
    first batch and then fixed.
    """

    mask = None

    def __init__(self) -> None:
        self.found: View | None = None

    def variable(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return the variable's present value."""
        return self._view(net, x).variable(net, x, y)

    def placed(self, net: nn.Module, x: Inputs, y: Tensor, z: Tensor) -> Placed:
        """Return a context in which the network sees ``z``."""
        return self._view(net, x).placed(net, x, y, z)

    def scale(self, net: nn.Module, x: Inputs, y: Tensor) -> float:
        """Return the size of the unknowns."""
        return self._view(net, x).scale(net, x, y)

    def unknowns_each(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return the number of unknowns of each record."""
        return self._view(net, x).unknowns_each(net, x, y)

    def describe(self) -> str:
        """Return what the view is about, in words."""
        return "the model's input" if self.found is None else self.found.describe()

    def _view(self, net: nn.Module, x: Inputs) -> View:
        if self.found is None:
            self.found = view_of_input(net, x)
        return self.found


def view_of_input(net: nn.Module, x: Inputs) -> View:
    """Return the view of a model's input."""
    if not isinstance(x, Mapping):
        return Input()
    main = getattr(net, "main_input_name", None)
    names = [main, *(name for name in x if name != main)]
    for name in names:
        value = x.get(name)
        if isinstance(value, Tensor) and value.is_floating_point() and _is_data(name):
            return Input(key=name)
    module = _embedding(net)
    if module is None:
        raise InputError(
            f"It is not clear which of the inputs {', '.join(map(str, x))} the question is about; "
            "name it with view=sp.nn.Input(key='name of an input') or view=sp.nn.Embedding('name "
            "of the embedding module')."
        )
    return TokenEmbeddings(module)


def _is_data(name: Any) -> bool:
    return not any(word in str(name) for word in ("mask", "label", "bias", "weight"))


def _embedding(net: nn.Module) -> str | None:
    """Return the name of the module that embeds the tokens of a model's input."""
    names = {id(module): name for name, module in net.named_modules()}
    for asked in (_encoder(net), net):
        find = getattr(asked, "get_input_embeddings", None)
        try:
            module = find() if callable(find) else None
        except (NotImplementedError, AttributeError):
            continue
        if id(module) in names:
            found: str = names[id(module)]
            return found
    return None


def _encoder(net: nn.Module) -> Any:
    """Return the encoder of a model that also has a decoder."""
    if not getattr(getattr(net, "config", None), "is_encoder_decoder", False):
        return None
    find = getattr(net, "get_encoder", None)
    return find() if callable(find) else None
