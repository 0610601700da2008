"""Checks a network and its records before gradients are measured, to prevent silent errors.

Records must not influence one another, and the network must not be random. Per-record gradients
computed by rules must equal gradients computed one record at a time.
"""

from __future__ import annotations

import copy
import random
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from seepage.errors import InputError
from seepage.nn.gradients.first_look import look_over, small_batch
from seepage.nn.gradients.norms import norms, record_gradients
from seepage.nn.gradients.per_record_gradients import record_lengths
from seepage.nn.gradients.watching import WatchedNetwork, differentiable_backends
from seepage.nn.problem.problem import Batch, NetworkProblem, class_axis, without_output
from seepage.nn.problem.sharding import is_sharded
from seepage.nn.problem.views import (
    Inputs,
    Label,
    call,
    check_labels,
    leaves,
    numbers_of,
    rows_of,
)
from seepage.support.library_classes import library_of
from seepage.tables.names import counted

_NORMS = nn.modules.batchnorm._BatchNorm
_SMOOTH = "tanh, SiLU or GELU as activations, and average pooling instead of max pooling"
_UNTOLD = (
    "Derivatives of the gradients ignore the jumps at kinks, so they understate the leakage. "
    "By default, dFIL is therefore measured over a finite step, as the result states. To use "
    f"derivatives, build the network with {_SMOOTH}."
)
_WITHOUT_GRADIENT = (Tensor.detach, Tensor.data.__get__, Tensor.grad.__get__)
_LAYOUT_FREE = {
    *(nn.Sequential, nn.Conv2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.MaxPool2d, nn.Flatten),
    *(nn.Linear, nn.Identity, nn.Dropout),
    *(nn.Tanh, nn.Sigmoid, nn.ReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus),
}


class KinkWarning(UserWarning):
    """Warns that the network has kinks, at which gradients jump."""


class FallbackWarning(UserWarning):
    """Warns that a slower method or finite steps are used, or that dropout is switched off."""


def unwrapped(net: nn.Module) -> nn.Module:
    """Return the network without the wrappers of ``torch.compile``, data parallelism and Opacus."""
    if not isinstance(net, nn.Module):
        raise InputError(f"net must be a torch.nn.Module, not {type(net).__name__}.")
    parallel = isinstance(net, nn.parallel.DistributedDataParallel | nn.DataParallel)
    names = ["_orig_mod"]
    if parallel or library_of(type(net)) == "opacus":
        names += ["module", "_module"]
    inside = next((getattr(net, name) for name in names if hasattr(net, name)), None)
    return net if inside is None else unwrapped(inside)


class Validator:
    """Checks a problem once for each kind of batch, module modes and released parameters."""

    def __init__(self, problem: NetworkProblem) -> None:
        self.problem = problem
        self._plans: dict[Any, WatchedNetwork] = {}
        self._compared: set[Any] = set()
        self._unwatched: set[Any] = set()
        self._sound: dict[Any, tuple[Batch, int | None]] = {}  # a small batch, and the classes
        self._warned_of: set[str] = set()
        self._accepted: list[tuple[Any, int]] = []  # the tensors checked last, and their versions

    def watched(self, x: Inputs, y: Tensor, rules: bool = True) -> WatchedNetwork:
        """Return the plan for batches like this one, which is made and checked only once.

        Without ``rules``, per-record gradients computed by rules are neither used nor checked.
        """
        key, batch = self._checked(x, y)
        if key in self._plans and (key in self._compared or not rules):
            return self._plans[key]
        try:
            network = self._plans[key] = look_over(self.problem, batch)
            self._tell(network, rules)
            if rules:
                self._compare(network, batch)
                self._compared.add(key)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            _refuse_untrainable(self.problem, batch)
            raise
        return network

    def watched_if_possible(
        self, x: Inputs, y: Tensor, rules: bool = True
    ) -> WatchedNetwork | None:
        """Return the plan, or ``None`` if each record must be run on its own."""
        key, _ = self._checked(x, y)
        if key in self._unwatched:
            return None
        try:
            return self.watched(x, y, rules)
        except (InputError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            _refuse_untrainable(self.problem, self._checked(x, y)[1])
            self._unwatched.add(key)
            self._once(
                "The network runs on the records one by one, which is slow "
                f"({_first_line(error).rstrip('.')}).",
                FallbackWarning,
            )
            return None

    def key(self, x: Inputs, y: Tensor) -> Any:
        """Return the key of a plan: kinds of tensors, modes of modules, and released parameters."""
        # Structure, shapes but for the first axis, types
        structure = tuple(x) if isinstance(x, Mapping) else isinstance(x, Tensor)
        kinds = tuple((t.shape[1:], t.dtype, t.device) for t in (*leaves(x), y))
        modes = tuple(module.training for module in self.problem.modules())
        return (structure, kinds, modes, tuple(self.problem.released()))

    def _checked(self, x: Inputs, y: Tensor) -> tuple[Any, Batch]:
        """Return the key and a small batch; raise an error if no method can measure the network."""
        given = [*leaves(x), y]
        # Every check waits for the device, so the very tensors checked last are not checked again.
        known = len(given) == len(self._accepted) and all(
            ref() is value and value._version == version
            for value, (ref, version) in zip(given, self._accepted, strict=True)
        )
        if not known:
            _refuse_values(x, y)
        key = self.key(x, y)
        if key in self._sound:
            batch, classes = self._sound[key]
            if not known:
                _refuse_classes(self.problem, y, classes)
                readable = not any(value.is_inference() for value in given)  # others lack a version
                self._accepted = [(weakref.ref(v), v._version) for v in given] if readable else []
            return key, batch
        _refuse_parameters(self.problem)
        refuse_modes(self.problem.net)
        self.problem.changing = _changing_buffers(self.problem.net, rows_of(x, slice(0, 1)))
        classes = _count_classes(self.problem, x)
        _refuse_classes(self.problem, y, classes)
        self.problem.channels_last = False
        batch = small_batch(self.problem.batch(rows_of(x, slice(0, 3)), y[:3]), 3)
        _refuse_randomness(self.problem, batch)
        if _likes_channels_last(self.problem.net):
            self.problem.channels_last = True
            batch = self.problem.batch(batch.x, batch.y)
        self._sound[key] = batch, classes
        return key, batch

    def tell_of_kinks(self, network: WatchedNetwork) -> None:
        """Warn of kinks, with the names of the functions that may have them."""
        kinks = sorted(network.kinks)
        if kinks:
            named = " and ".join([", ".join(kinks[:-1]), kinks[-1]][len(kinks) == 1 :])
            text = f"The network uses {named}, whose second derivatives vanish or jump."
        else:
            text = "The network has kinks: the slope of the loss jumps between records or near one."
        self._once(f"{text} {_UNTOLD}", KinkWarning)

    def tell_of_finite_steps(self, reason: Exception) -> None:
        """Warn that leakage is measured over finite steps, as derivatives cannot be used."""
        text = _first_line(reason).split(". ")[0].rstrip(".")
        self._once(
            "The leakage is measured over finite steps, because derivatives cannot be used: "
            f"{text}.",
            FallbackWarning,
        )

    def _tell(self, network: WatchedNetwork, rules: bool) -> None:
        for unruled in network.unruled if rules else ():
            self._once(
                f"{type(unruled.module).__name__} has no closed form for the per-record gradients "
                f"of {', '.join(unruled.names)} (used by {', '.join(unruled.functions)}); for this "
                "module, torch's vmap computes them, which is slower.",
                FallbackWarning,
            )

    def _once(self, text: str, category: type[Warning]) -> None:
        if text not in self._warned_of:
            self._warned_of.add(text)
            warnings.warn(text, category, stacklevel=6)

    def _compare(self, network: WatchedNetwork, batch: Batch) -> None:
        """Raise an error if norms from rules differ from norms computed one record at a time.

        In 16-bit precision, rounding alone causes differences of about 1 %.
        """
        by_rules, _ = norms(network, batch)
        two = batch.records(torch.arange(2, device=batch.z.device))
        alone = record_lengths(record_gradients(self.problem, two))
        # Products on a GPU may be rounded to ten bits.
        rough = 3e-2 if alone.is_cuda or batch.z.dtype.itemsize < 4 else 1e-3
        tolerance = 1e-9 if batch.z.dtype == torch.float64 else rough
        by_rules, alone = by_rules[:2].double(), alone.double()
        if not torch.allclose(by_rules, alone, rtol=tolerance, atol=tolerance * float(alone.max())):
            worst = int((by_rules - alone).abs().nan_to_num(torch.inf).argmax())
            raise InputError(
                "Per-record gradients computed by rules differ from those of single records ("
                f"record {worst} of the batch: norm {float(by_rules[worst]):.6g} by rules, "
                f"{float(alone[worst]):.6g} alone): the network uses a parameter, or overwrites a "
                "tensor, in a way that cannot be traced. Rewrite in-place operations, or measure "
                "with method='finite'."
            )


def _refuse_parameters(problem: NetworkProblem) -> None:
    """Raise an error if no parameter is trainable, or if a trainable parameter is complex."""
    if not problem.released():
        raise InputError(
            "The network has no parameter with requires_grad, so no gradient is released; unfreeze "
            "at least one parameter."
        )
    for name, parameter in problem.released().items():
        if parameter.is_complex():
            raise InputError(
                f"The parameter {name!r} contains complex numbers, for which clipping and noise "
                "are not defined; store its real and imaginary parts as real parameters "
                "(torch.view_as_complex in the forward pass)."
            )


def _changing_buffers(net: nn.Module, x: Inputs) -> tuple[str, ...]:
    """Return the names of the buffers that a run of the network changes or replaces."""
    copies: dict[str, Tensor] = {name: buffer.clone() for name, buffer in net.named_buffers()}
    replaced: list[str] = []

    def look(module: nn.Module, args: Any, output: Any) -> None:
        now = dict(net.named_buffers())
        for name, kept in copies.items():
            if kept._version > 0 or now.get(name) is not kept:
                replaced.append(name)

    if not copies:
        return ()
    handle = net.register_forward_hook(look)
    try:
        with torch.no_grad():
            call(net, x, copies)
    except Warning:  # raised by a filter, perhaps for this run only: the next may not report it
        raise
    except Exception:  # the run that follows reports the error itself
        return ()
    finally:
        handle.remove()
    return tuple(replaced)


def _random_states() -> tuple[Any, ...]:
    """Return the states of all global random generators that the network may use."""
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    states = [torch.get_rng_state(), *on_devices]
    drawn = np.random.get_state(legacy=False)  # noqa: NPY002 - read, not drawn from
    return (*(bytes(s.numpy()) for s in states), random.getstate(), repr(drawn["state"]))


def _refuse_values(x: Inputs, y: Any) -> None:
    """Raise an error unless inputs and targets are finite tensors with equal numbers of records."""
    tensors = leaves(x)
    if not isinstance(y, Tensor):
        raise InputError(
            f"y must be a torch tensor, but its type is {type(y).__name__}; use torch.as_tensor(y)."
        )
    check_labels(x, y)
    for name, value in (*(("x", value) for value in tensors), ("y", y)):
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            bad = torch.isfinite(value).reshape(len(value), -1).all(1).logical_not().nonzero()
            raise InputError(
                f"Record {int(bad[0])} of this batch has a number in {name} that is not finite; "
                "fill in missing values, or leave out the record."
            )


def _count_classes(problem: NetworkProblem, x: Inputs) -> int | None:
    """Run the network on one record; return its number of classes, or ``None`` without classes."""
    try:
        buffers = dict(problem.net.named_buffers())
        copies = {name: buffers[name].clone() for name in problem.changing}
        with torch.no_grad():
            output = call(problem.net, rows_of(x, slice(0, 1)), copies)
    except (InputError, Warning):  # the network runs where no filter makes a warning an error
        raise
    except Exception as error:
        shapes = ", ".join(
            f"shape {tuple(value.shape[1:])} and type {str(value.dtype).removeprefix('torch.')}"
            for value in leaves(x)
        )
        raise InputError(
            f"The network does not run on these inputs, whose records have {shapes} "
            f"({_first_line(error)}); pass inputs of the shape and type that the network accepts."
        ) from error
    axis, output = class_axis(problem.loss), numbers_of(output)
    if axis is None or not isinstance(output, Tensor) or output.dim() < 2:
        return None
    if axis == 1 and output.dim() > 2 and isinstance(problem.view, Label):
        raise InputError(
            "For sequences, the label can be the view only with loss='cross_entropy', which "
            "expects the classes along the last axis of the output."
        )
    return int(output.shape[axis])


def _refuse_classes(problem: NetworkProblem, y: Tensor, classes: int | None) -> None:
    """Raise an error if a class number has no corresponding output."""
    if classes is None or y.is_floating_point() or not y.numel():
        return
    if bool(without_output(problem.loss, y, classes).any()):
        raise InputError(
            f"The network has {counted(classes, 'output')}, so class numbers must be from 0 to "
            f"{classes - 1}, but y contains numbers from {int(y.min())} to {int(y.max())}; "
            "renumber the classes."
        )


def _refuse_untrainable(problem: NetworkProblem, batch: Batch) -> None:
    """Raise an error if torch cannot compute even a single record's gradient."""
    try:
        record_gradients(problem, batch.records(torch.tensor([0], device=batch.z.device)))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        raise InputError(
            "torch cannot compute the gradients of this network's parameters, so nothing can be "
            f"trained or measured ({_first_line(error)}); replace the function that torch names."
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _likes_channels_last(net: nn.Module) -> bool:
    """Return whether a network is a plain convolutional stack, which runs faster channels-last.

    Other networks may create views of their images, or use layers (GroupNorm) for which torch has
    second derivatives only in the usual layout.
    """
    modules = list(net.modules())
    images = any(isinstance(module, nn.Conv2d) for module in modules)
    return images and all(type(module) in _LAYOUT_FREE for module in modules)


def module_label(name: str, module: nn.Module) -> str:
    """Return a module's class and its name in the network, for messages."""
    return f"{type(module).__name__} {name!r}" if name else type(module).__name__


def refuse_modes(net: nn.Module) -> None:
    """Raise an error if a module mixes records or draws random numbers in its current mode."""
    for name, module in net.named_modules():
        label = module_label(name, module)
        if isinstance(module, _NORMS) and (module.training or module.running_mean is None):
            raise InputError(
                f"{label} mixes the records of a batch, so per-record gradients are not defined; "
                "use GroupNorm or LayerNorm, or running statistics and .eval() on the module."
            )
        if _drops_values(module):
            raise InputError(
                f"{label} drops values at random in training mode; call .eval() on the module, or "
                "set its probability to 0."
            )


def without_dropout(net: nn.Module) -> tuple[nn.Module, str]:
    """Return the network with dropout off, and a sentence that says so (empty if none was on).

    The caller's network keeps its mode. The returned network has its own modules, which share all
    parameters and buffers with the caller's network. A network that is sharded or cannot be copied
    is returned unchanged.
    """
    net = unwrapped(net)
    names = [name for name, module in net.named_modules() if _drops_values(module)]
    if not names or is_sharded(net):
        return net, ""
    shared: dict[int, Any] = {id(t): t for t in (*net.parameters(), *net.buffers())}
    try:
        own = copy.deepcopy(net, shared)
    except Exception:  # a network need not allow copies; its dropout is then refused by name
        return net, ""
    for name in names:
        own.get_submodule(name).training = False
    labels = [module_label(name, own.get_submodule(name)) for name in names]
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return own, (
        f"Dropout is off ({labels[0]}{more}): the numbers are for gradients without random masks."
    )


def _drops_values(module: nn.Module) -> bool:
    """Return whether a module in its current mode sets random values to zero."""
    random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    within = isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
    return module.training and (random or within)


def _refuse_randomness(problem: NetworkProblem, batch: Batch) -> None:
    """Raise an error if losses are random, depend on other records, fail or are not finite."""
    parameters, strays = problem.detached(), _Strays(problem)
    with torch.no_grad(), differentiable_backends(problem.net):
        before = _random_states()
        try:
            with problem.in_place(parameters, batch, batch.z) as losses, strays:
                first = losses()
        except InputError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            kind = str(batch.y.dtype).removeprefix("torch.")
            raise InputError(
                f"The loss cannot be computed for targets of shape {tuple(batch.y.shape)} and type "
                f"{kind} ({_first_line(error)}); pass targets that this loss accepts, or another "
                "loss."
            ) from error
        again = [problem.losses(parameters, batch, batch.z)]
        if _random_states() != before:  # a rare draw shows only in many runs of many records
            many = small_batch(batch, 16)
            again += [problem.losses(parameters, many, many.z) for _ in range(16)]
        ones = [batch.records(torch.tensor([k], device=batch.z.device)) for k in range(len(batch))]
        alone = torch.cat([problem.losses(parameters, one, one.z) for one in ones])
    if not bool(torch.isfinite(first).all()):
        raise InputError(
            "The losses are not finite; check the data for very large values, and the parameters "
            "for NaN."
        )
    # Products on a GPU may be rounded to ten bits, differently for other batch sizes.
    rough = 1e-2 if first.is_cuda or first.dtype.itemsize < 4 else 1e-4
    tolerance = 1e-8 if first.dtype == torch.float64 else rough
    repeated = first.repeat(16)
    if not all(
        torch.allclose(repeated[: len(a)], a, rtol=tolerance, atol=tolerance) for a in again
    ):
        raise InputError(
            "Two runs on the same data differ, so the network draws random numbers; switch off the "
            "randomness (net.eval(), or a fixed generator) while leakage is measured."
        )
    if not torch.allclose(first, alone, rtol=tolerance, atol=tolerance):
        raise InputError(
            "The loss of a record depends on the other records of its batch, so per-record "
            "gradients are not defined; remove layers or losses that use batch statistics."
        )


class _Strays(TorchFunctionMode):  # type: ignore[misc]
    """Raises an error if a network uses a parameter through a reference outside its module.

    Gradients are computed with other tensors in place of the parameters, but such a reference still
    points to the original parameter.
    """

    def __init__(self, problem: NetworkProblem) -> None:
        super().__init__()
        self._names = {id(p): name for name, p in problem.released().items()}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        made = any(isinstance(leaf, Tensor) for leaf in tree_leaves(output))
        if made and function not in _WITHOUT_GRADIENT:
            for leaf in tree_leaves((args, kwargs)):
                if id(leaf) in self._names:
                    raise InputError(
                        f"The network stores the parameter {self._names[id(leaf)]!r} in a list or "
                        "similar container, where its gradient cannot be traced; use it as an "
                        "attribute of its module."
                    )
        return output
