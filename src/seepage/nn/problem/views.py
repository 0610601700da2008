"""Views select the unknown part of a record: its input or part of it, its label, or an embedding.

A view selects a variable ``z`` with one row per record. The leakage about ``z`` follows from
``J = ∂g̃/∂z``, the Jacobian of the released gradient, with all other inputs held fixed.

The network is run without features that only save time or memory. These features do not change the
output, but prevent tracing the network or differentiating its gradients. Compiled modules hide
their functions. Hooks of FSDP replace the traced parameters, and hooks of Opacus store tensors at
every pass. A key–value cache is useful only for generating text. A hook that makes the output of an
embedding require a gradient (Hugging Face's ``enable_input_require_grads``) is needed only by
reentrant checkpointing, which is replaced here by the non-reentrant kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as checkpointing
from torch.utils._pytree import tree_map_only

from seepage.errors import InputError, nearest
from seepage.nn.problem.own_loss import IGNORED
from seepage.nn.problem.sharding import gathered
from seepage.tables.names import counted, listed

Placed = AbstractContextManager[tuple[Any, Tensor]]  # yields inputs and target
Inputs = Any  # a tensor, or a tuple or dict of tensors, records along the first axis

_SIZES = "attention_mask"  # of Hugging Face: one for every token of a record, zero for padding
_HOOKS = ("make_inputs_require_grads", "make_inputs_require_grad")  # Hugging Face's and PEFT's
_CASTS = {
    *(Tensor.to, Tensor.type, Tensor.softmax, Tensor.log_softmax, Tensor.sum, Tensor.mean),
    *(torch.softmax, torch.log_softmax, torch.sum, torch.mean),
    *(functional.softmax, functional.log_softmax),
}


class View(ABC):
    """Selects which values of every record are unknown.

    ``mask`` marks the unknown entries of the variable: a boolean array in the shape of one record's
    variable, or ``None`` if all entries are unknown.
    """

    mask: Any

    @abstractmethod
    def variable(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return the variable's current value, ``(B, …)``."""

    @abstractmethod
    def placed(self, net: nn.Module, x: Inputs, y: Tensor, z: Tensor) -> Placed:
        """Return a context that sets the variable to ``z`` and yields inputs and target."""

    @abstractmethod
    def describe(self) -> str:
        """Return a description of the view's unknowns."""

    def mask_for(self, z: Tensor) -> Tensor | None:
        """Return the mask as a tensor in the shape of one record's variable, or ``None``."""
        if self.mask is None:
            return None
        mask = torch.as_tensor(self.mask, device=z.device)
        if mask.dtype != torch.bool:
            raise InputError(
                "A mask must be boolean, not numeric; convert it, for instance with mask > 0."
            )
        try:
            mask = mask.expand(z.shape[1:])
        except RuntimeError:
            raise InputError(
                f"A mask for records of shape {tuple(z.shape[1:])} cannot have the shape "
                f"{tuple(mask.shape)}; use the shape of one record."
            ) from None
        if not bool(mask.any()):
            raise InputError("The mask selects no entries; set at least one entry to True.")
        return mask

    def entries(self, z: Tensor) -> Tensor:
        """Return the positions of the unknown entries in one record's flattened variable."""
        mask = self.mask_for(z)
        if mask is None:
            return torch.arange(z[0].numel(), device=z.device)
        return torch.nonzero(mask.flatten()).flatten()

    def scale(self, net: nn.Module, x: Inputs, y: Tensor) -> float:
        """Return the root mean square of the unknowns, or one if it is zero."""
        return _root_mean_square(self.variable(net, x, y), self)

    def unknowns(self, z: Tensor) -> int:
        """Return the number of unknowns of one record."""
        return len(self.entries(z))

    def unknowns_each(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return the number of unknowns of each record, ``(B,)``."""
        count = self.unknowns(self.variable(net, rows_of(x, slice(0, 1)), y[:1]))
        return torch.full((len(y),), count, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Input(View):
    """The network's input, or the part of it that ``mask`` selects.

    Parameters
    ----------
    mask
        A boolean array that marks the unknown entries of a record; ``None`` selects all entries.
    key
        The input's name if the network has several, for example ``"pixel_values"``; for inputs
        in a tuple, its position.

    Examples
    --------
    >>> from seepage.nn.problem.views import Input
    >>> Input().describe()
    'the input'
    """

    mask: Any = None
    key: str | int | None = None

    @staticmethod
    def features(columns: Sequence[int | str], width: int | Sequence[str]) -> Input:
        """Return a view that selects columns of a table.

        Parameters
        ----------
        columns
            The columns' positions or names.
        width
            The number of columns in the table or, to select by name, all names
            (``frame.columns``).

        Examples
        --------
        >>> from seepage.nn.problem.views import Input
        >>> Input.features(["age", "sex"], ["age", "weight", "sex"]).mask
        tensor([ True, False,  True])
        """
        names = [] if isinstance(width, int) else list(width)
        count = width if isinstance(width, int) else len(names)
        mask = torch.zeros(count, dtype=torch.bool)
        for column in columns:
            if isinstance(column, str) and column not in names:
                choice = f"choose from {listed(names)}"
                if not names:
                    choice = f"pass all names: sp.nn.Input.features([{column!r}], frame.columns)"
                raise InputError(
                    f"There is no column {column!r}{nearest(column, names)}; {choice}."
                )
            place = names.index(column) if isinstance(column, str) else column
            if not -count <= place < count:
                raise InputError(f"There is no column {place}; choose from 0 to {count - 1}.")
            mask[place] = True
        return Input(mask)

    @staticmethod
    def patch(rows: slice, columns: slice, height: int, width: int) -> Input:
        """Return a view of the pixels in ``rows`` and ``columns`` of an image, in all channels."""
        mask = torch.zeros(height, width, dtype=torch.bool)
        mask[rows, columns] = True
        return Input(mask)

    def variable(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return the input, which must be a single tensor of real numbers."""
        if self.key is not None:
            keys = list(x if isinstance(x, Mapping) else range(len(x) if _is_tuple(x) else 0))
            if self.key not in keys:
                near = nearest(self.key, keys) if isinstance(x, Mapping) else ""
                raise InputError(
                    f"The batch has no input {self.key!r}{near}; "
                    + (f"choose from {', '.join(map(repr, keys))}." if keys else "leave out key=.")
                )
            x = x[self.key]
        if isinstance(x, Mapping):
            names = [n for n, v in x.items() if isinstance(v, Tensor) and v.is_floating_point()]
            choice = f"view=sp.nn.Input(key={names[0]!r}), or " if names else ""
            raise InputError(
                f"The input is a mapping ({', '.join(map(str, x))}); select the unknown tensor "
                f"with {choice}view=sp.nn.Embedding('name of a module')."
            )
        if not isinstance(x, Tensor):
            real = [k for k, v in enumerate(x) if isinstance(v, Tensor) and v.is_floating_point()]
            choice = f"view=sp.nn.Input(key={real[0]}), or " if real else ""
            raise InputError(
                f"The input is a tuple of {counted(len(x), 'tensor')}; select the unknown tensor "
                f"with {choice}view=sp.nn.Embedding('name of a module')."
            )
        if not x.is_floating_point():
            raise InputError(
                f"The input contains {str(x.dtype).removeprefix('torch.')} numbers, which have no "
                "derivative; measure their embedding with view=sp.nn.Embedding('name of the "
                "embedding module')."
            )
        return x.detach()

    def placed(self, net: nn.Module, x: Inputs, y: Tensor, z: Tensor) -> Placed:
        """Return a context that uses ``z`` as the input."""
        if self.key is None:
            placed: Inputs = z
        elif isinstance(x, Mapping):
            placed = {**x, self.key: z}
        else:
            placed = tuple(z if k == self.key else value for k, value in enumerate(x))
        return nullcontext((placed, y))

    def describe(self) -> str:
        """Return a description of the view's unknowns."""
        at = " at position" if isinstance(self.key, int) else ""
        named = "the input" if self.key is None else f"the input{at} {self.key!r}"
        return named if self.mask is None else f"a part of {named}"


@dataclass(frozen=True, eq=False)
class Label(View):
    """The label, as a soft target: class numbers become probabilities, one per class.

    Parameters
    ----------
    mask
        A boolean array that marks the classes whose probabilities are unknown; ``None`` selects all
        classes.

    Examples
    --------
    >>> import torch
    >>> from seepage.nn import Label
    >>> net, x = torch.nn.Linear(4, 3), torch.zeros(2, 4)
    >>> Label().variable(net, x, torch.tensor([0, 2]))
    tensor([[1., 0., 0.],
            [0., 0., 1.]])
    """

    mask: Any = None

    def variable(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return the target as real numbers; class numbers become one-hot vectors."""
        if y.is_floating_point():
            return y.detach()
        with torch.no_grad():
            output = numbers_of(call(net, rows_of(x, slice(0, 1))))
        if not isinstance(output, Tensor):
            raise InputError(
                "The number of classes cannot be read from the network's output; give y as one-hot "
                "soft targets."
            )
        classes = output.shape[-1]
        counted = y != IGNORED  # ignored targets have no probabilities
        y = torch.where(counted, y, 0)
        if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < classes:
            raise InputError(
                f"The network has {classes} {'output' if classes == 1 else 'outputs'}, so class "
                f"numbers must be from 0 to {classes - 1}, but y contains numbers from "
                f"{int(y.min())} to {int(y.max())}; renumber the classes."
            )
        one_hot = functional.one_hot(y.long(), classes).to(output.dtype)
        return one_hot * counted[..., None]

    def placed(self, net: nn.Module, x: Inputs, y: Tensor, z: Tensor) -> Placed:
        """Return a context that uses ``z`` as the target."""
        return nullcontext((x, z))

    def describe(self) -> str:
        """Return a description of the view's unknowns."""
        return "the label"


@dataclass(frozen=True, eq=False)
class Embedding(View):
    """The output of one of the network's modules, such as the token embeddings of a text.

    The unknown is a change added to that output. The gradients of parameters before the module are
    released too, but their direct dependence on the tokens is not part of this view.

    Parameters
    ----------
    module
        The module's name in ``net.named_modules()``; the module must run once per forward pass.
    mask
        A boolean array that marks the unknown entries of the module's output; ``None`` selects all
        entries.

    Examples
    --------
    >>> import torch
    >>> from seepage.nn import Embedding
    >>> net = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 2))
    >>> Embedding("0").variable(net, torch.tensor([[1, 5, 2]]), torch.tensor([0])).shape
    torch.Size([1, 3, 4])
    """

    module: str
    mask: Any = None

    def variable(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return zeros (no change) in the shape of the module's output."""
        return torch.zeros_like(self._output(net, x))

    def scale(self, net: nn.Module, x: Inputs, y: Tensor) -> float:
        """Return the root mean square of the module's output, or one if it is zero."""
        return _root_mean_square(self._output(net, x), self)

    def _output(self, net: nn.Module, x: Inputs) -> Tensor:
        """Run the network up to the module, and return the module's output."""

        def stop(module: nn.Module, args: Any, output: Any) -> None:
            raise _ReachedError(output)

        handle = self._find(net).register_forward_hook(stop)
        try:
            with torch.no_grad():
                call(net, x)
            raise InputError(
                f"The network does not use its module {self.module!r} in a forward pass; name a "
                "module that it uses."
            )
        except _ReachedError as reached:
            out = reached.output
        finally:
            handle.remove()
        if not isinstance(out, Tensor) or out.dim() == 0 or out.shape[0] != batch_size(x):
            raise InputError(
                f"The module {self.module!r} must return one tensor with the records along its "
                "first axis; name another module."
            )
        return out

    @contextmanager
    def placed(
        self, net: nn.Module, x: Inputs, y: Tensor, z: Tensor
    ) -> Iterator[tuple[Inputs, Tensor]]:
        """Open a context in which ``z`` is added to the module's output."""
        runs = []

        def shifted(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            runs.append(module)
            if len(runs) > 1:
                raise InputError(
                    f"The module {self.module!r} runs more than once; name a module that runs once."
                )
            return output + z

        handle = self._find(net).register_forward_hook(shifted)
        try:
            yield x, y
        finally:
            handle.remove()

    def describe(self) -> str:
        """Return a description of the view's unknowns."""
        part = "a part of " if self.mask is not None else ""
        return f"{part}the output of {self.module!r}"

    def _find(self, net: nn.Module) -> nn.Module:
        try:
            if self.module:
                return net.get_submodule(self.module)
        except AttributeError:
            pass
        others = nearest(self.module, dict(net.named_modules()))
        raise InputError(
            f"The network has no module {self.module!r}{others}; use a name from "
            "net.named_modules()."
        )


@dataclass(frozen=True, eq=False)
class TokenEmbeddings(Embedding):
    """The embeddings that the model looks up for a record's tokens.

    Padding (attention mask zero) is not counted among the unknowns.
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
        """Return a description of the view's unknowns."""
        part = "a part of " if self.mask is not None else ""
        return f"{part}the token embeddings ({self.module!r})"


class ModelInput(View):
    """The model's main input.

    This view selects the input that the model declares as its main input, if that is real-valued.
    Otherwise it selects the batch's first real-valued input (``pixel_values``, ``inputs_embeds``;
    not masks, labels, biases or weights) or, if there is none, the token embeddings. An
    encoder–decoder model's token embeddings are those of the encoder. The first batch determines
    the choice for all later batches.
    """

    mask = None

    def __init__(self) -> None:
        self.found: View | None = None

    def variable(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return the variable's current value."""
        return self._view(net, x).variable(net, x, y)

    def placed(self, net: nn.Module, x: Inputs, y: Tensor, z: Tensor) -> Placed:
        """Return a context that sets the variable to ``z``."""
        return self._view(net, x).placed(net, x, y, z)

    def scale(self, net: nn.Module, x: Inputs, y: Tensor) -> float:
        """Return the root mean square of the unknowns."""
        return self._view(net, x).scale(net, x, y)

    def unknowns_each(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return the number of unknowns of each record."""
        return self._view(net, x).unknowns_each(net, x, y)

    def describe(self) -> str:
        """Return a description of the view's unknowns."""
        return "the model's input" if self.found is None else self.found.describe()

    def _view(self, net: nn.Module, x: Inputs) -> View:
        if self.found is None:
            self.found = view_of_input(net, x)
        return self.found


def view_of_input(net: nn.Module, x: Inputs) -> View:
    """Return the view that selects a model's main input."""
    if not isinstance(x, Mapping):
        return Input()
    main = getattr(net, "main_input_name", None)
    for name in (main, *(name for name in x if name != main)):
        value = x.get(name)
        beside = any(word in str(name) for word in ("mask", "label", "bias", "weight"))
        if isinstance(value, Tensor) and value.is_floating_point() and not beside:
            return Input(key=name)
    module = _embedding(net)
    if module is None:
        raise InputError(
            f"seepage cannot tell which input to measure (inputs: {', '.join(map(str, x))}); "
            "select one with view=sp.nn.Input(key='name of an input') or "
            "view=sp.nn.Embedding('name of the embedding module')."
        )
    return TokenEmbeddings(module)


def _embedding(net: nn.Module) -> str | None:
    """Return the name of the module that embeds a model's input tokens."""
    names = {id(module): name for name, module in net.named_modules()}
    asked = [net]
    if getattr(getattr(net, "config", None), "is_encoder_decoder", False):
        encoder = getattr(net, "get_encoder", None)
        asked.insert(0, encoder() if callable(encoder) else None)
    for model in asked:
        find = getattr(model, "get_input_embeddings", None)
        try:
            module = find() if callable(find) else None
        except (NotImplementedError, AttributeError):
            continue
        if id(module) in names:
            found: str = names[id(module)]
            return found
    return None


def _root_mean_square(values: Tensor, view: View) -> float:
    """Return the root mean square of the unknowns; if no step size suits all, raise an error."""
    mask = view.mask_for(values)
    unknown = values if mask is None else values[:, mask]
    each = unknown.double().flatten(1).square().mean(1).sqrt()
    typical, largest = float(each.median()), float(each.max())
    if largest > 1e6 * typical > 0:
        raise InputError(
            f"The unknowns of record {int(each.argmax())} have a root mean square of "
            f"{largest:.0e}, more than a million times the median over the records "
            f"({typical:.0e}), so no step size suits all records. Leave the record out, or rescale "
            "its unknowns."
        )
    return float(each.square().mean().sqrt()) or 1.0


class _ReachedError(Exception):
    """Ends a forward pass once the required module has run."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


def call(net: nn.Module, x: Inputs, held: Mapping[str, Tensor] | None = None) -> Any:
    """Call :func:`run` for a network whose parameters may be sharded across processes."""
    with gathered(net), plain_run(net):
        return run(net, x, held)


def run(net: nn.Module, x: Inputs, held: Mapping[str, Tensor] | None = None) -> Any:
    """Run a network on a tensor, on a tuple of arguments, or on named arguments.

    Tensors in ``held`` replace the network's parameters and buffers.
    """
    named = dict(x) if isinstance(x, Mapping) else {}
    given = () if named else tuple(x) if isinstance(x, tuple | list) else (x,)
    if held is None:
        return net(*given, **named)
    return functional_call(net, dict(held), given, named, tie_weights=False)


def _is_tuple(x: Inputs) -> bool:
    return isinstance(x, tuple | list)


def numbers_of(output: Any) -> Any:
    """Return the tensor in a network's output; for Hugging Face models, the logits."""
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


def leaves(x: Inputs) -> list[Tensor]:
    """Return all tensors in the inputs; raise an error if the inputs contain anything else."""
    if isinstance(x, Tensor):
        tensors = [x]
    elif isinstance(x, Mapping):
        tensors = list(x.values())
    else:
        tensors = list(x) if isinstance(x, tuple | list) else [x]
    for value in tensors:
        if not isinstance(value, Tensor):
            raise InputError(
                "x must be a torch tensor, or a tuple or mapping of tensors, but it contains a "
                f"value of type {type(value).__name__}; use torch.as_tensor, and leave out "
                "missing entries."
            )
    if not tensors or any(value.dim() == 0 for value in tensors):
        raise InputError("x has no records; give tensors with the records along the first axis.")
    return tensors


def check_labels(x: Inputs, y: Any) -> None:
    """Raise an error unless there is one label for each record."""
    counts = {len(value) for value in leaves(x)}
    labels = "no" if isinstance(y, Tensor) and y.dim() == 0 else len(y)
    if counts != {labels}:
        raise InputError(
            f"The number of records is {' and '.join(map(str, sorted(counts)))}, but y has "
            f"{labels} {'label' if labels == 1 else 'labels'}; give one label for each record."
        )


def batch_size(x: Inputs) -> int:
    """Return the number of records."""
    return int(leaves(x)[0].shape[0])


def rows_of(x: Inputs, rows: Any) -> Inputs:
    """Return the records in a slice or at given positions."""
    if isinstance(x, Mapping):
        return {name: value[rows] for name, value in x.items()}
    if isinstance(x, tuple | list):
        return type(x)(value[rows] for value in x)
    return x[rows]


def on_device(x: Any, device: torch.device) -> Any:
    """Return inputs, or a batch of inputs and targets, on a device."""
    plain = dict(x) if isinstance(x, Mapping) else x
    return tree_map_only(Tensor, lambda value: value.to(device), plain)


def sent_to(positions: Tensor, device: torch.device) -> Tensor:
    """Return positions on a device, without waiting for the work that the device has queued."""
    if device.type != "cuda" or positions.is_cuda or not len(positions):
        return positions.to(device)
    return positions.pin_memory().to(device, non_blocking=True)


# Running a network --------------------------------------------------------------------------------


@contextmanager
def plain_run(net: nn.Module) -> Iterator[None]:
    """Open a context in which the network runs without features that only save time or memory.

    Reentrant checkpointing runs a part of the network under ``torch.no_grad()`` and fails with
    ``torch.autograd.grad``. It is replaced by the non-reentrant kind, which saves as much memory.
    """
    with ExitStack() as stack:
        switch_off(stack, checkpointing, "CheckpointFunction", _NotReentrant)
        for module in net.modules():
            switch_off(stack, module, "_compiled_call_impl", None)  # of ``module.compile()``
            switch_off(stack, module.__dict__.get("config"), "use_cache", False)
            for hooks in (
                *(module._forward_hooks, module._forward_pre_hooks),
                *(module._backward_hooks, module._backward_pre_hooks),
            ):
                if hooks:
                    _unhook(stack, hooks)
        yield


class _NotReentrant:
    """Replaces reentrant checkpointing by the non-reentrant kind."""

    @staticmethod
    def apply(function: Any, preserve: bool, *args: Any) -> Any:
        """Checkpoint a function without reentering autograd."""
        how = {"use_reentrant": False, "preserve_rng_state": preserve}
        return checkpointing.checkpoint(function, *args, **how)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Open a context with the network in evaluation mode, and restore all modes afterwards."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def switch_off(stack: ExitStack, owner: Any, name: str, off: Any) -> None:
    """Replace an attribute, unless it is false, by ``off`` until the exit stack closes."""
    value = getattr(owner, "__dict__", {}).get(name)
    if value:
        object.__setattr__(owner, name, off)
        stack.callback(object.__setattr__, owner, name, value)


def _unhook(stack: ExitStack, hooks: Any) -> None:
    """Remove obstructing hooks until the exit stack closes; then restore the order of all hooks."""
    before = dict(hooks)
    for key, hook in before.items():
        if _obstructs(hook):
            del hooks[key]

    def put_back() -> None:
        now = dict(hooks)  # without those that removed themselves, with those added meanwhile
        kept = {k: hook for k, hook in before.items() if k in now or _obstructs(hook)}
        hooks.clear()
        hooks.update(kept | now)

    if len(hooks) < len(before):
        stack.callback(put_back)


def _obstructs(hook: Any) -> bool:
    """Return whether a hook makes outputs require gradients, or belongs to FSDP or Opacus."""
    function = getattr(hook, "func", hook)  # Opacus registers partial functions
    home = str(getattr(function, "__module__", ""))
    asks = getattr(function, "__name__", "") in _HOOKS
    return asks or home.startswith(("torch.distributed.fsdp.", "opacus."))


def runs_in_double(net: nn.Module) -> bool:
    """Return whether all floating-point parameters of a network are float64."""
    return all(p.dtype == torch.float64 for p in net.parameters() if p.is_floating_point())


class StaysInDouble(TorchFunctionMode):  # type: ignore[misc]
    """Keeps a float64 network in float64 where its code casts to float32.

    Networks cast 16-bit numbers to float32 for some operations (Hugging Face models for logits and
    norms). The same casts would reduce float64 to float32, and rounding errors would dominate
    differences between gradients.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is Tensor.float:
            return args[0].double()
        if function in _CASTS:
            args = tuple(_whole(value) for value in args)
            kwargs = {name: _whole(value) for name, value in kwargs.items()}
        return function(*args, **kwargs)


def _whole(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
