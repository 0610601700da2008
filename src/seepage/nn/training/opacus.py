"""Attaches the accountant to a training loop with Opacus, beside Opacus's own accountant."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.nn.jacobian.engine import Step
from seepage.nn.privacy.individual_privacy import IndividualPrivacy
from seepage.nn.privacy.run_privacy import ADD_OR_REMOVE, Ledger, PrivacyGuarantee
from seepage.nn.problem.clipping import HardClip
from seepage.nn.problem.problem import Loss
from seepage.nn.sampling.batch_check import SamplerWarning
from seepage.nn.sampling.samplers import OTHER, POISSON

_FLAT = "Opacus's flat clipping (the default), plain or ghost"
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class OpacusAccountant(FisherAccountant):
    """A :class:`~seepage.nn.FisherAccountant` that follows an optimiser of Opacus.

    Call :meth:`observe` with every batch that the loader gives, also an empty one, before
    ``optimizer.step()``. The noise multiplier and the clipping threshold are read from the
    optimiser at every batch, so schedules are followed; a batch in several parts (Opacus's
    ``BatchMemoryManager``) is one step. Made by :func:`attach`.
    """

    def __init__(self, source: _Source, net: nn.Module, *args: Any, **options: Any) -> None:
        self._source = source
        self._original = net
        super().__init__(
            without_opacus(net), *args, noise_multiplier=source.noise_multiplier(), **options
        )
        # The threshold follows the optimiser; the ledger has that of every step.
        self.run.measurement = (self.run.measurement or {}) | {"clip": HardClip.__name__}
        self._observed = 0
        self._unhook = source.chain(self._after_step)

    def observe(  # type: ignore[override]  # whether more follows, Opacus tells
        self,
        index: Sequence[int] | Tensor | Any,
        x: Any,
        y: Tensor,
        *,
        update: bool = False,
    ) -> Step:
        """Account for a batch or a part of it; the step is counted when Opacus takes it."""
        self.noise_multiplier = self._source.noise_multiplier()
        threshold = self._source.max_grad_norm()
        if threshold != self.clip.max_grad_norm:
            self.engine.clip = HardClip(threshold)
        for mine, theirs in zip(self.engine.net.modules(), self._modules(), strict=True):
            mine.training = theirs.training
        step = super().observe(index, x, y, update=update, more=True)
        self._observed += 1
        return step

    def detach(self) -> None:
        """Let go of the optimiser: its hook is again what it was."""
        self._unhook()

    def privacy(
        self,
        delta: float | None = None,
        *,
        method: str | None = None,
        orders: Sequence[float] | None = None,
    ) -> PrivacyGuarantee:
        """Return the (ε, δ) of the run.

        By default Opacus's own method is applied to this accountant's ledger, which gives Opacus's
        own ε; ``"rdp"`` and ``"pld"`` are those of dp-accounting.
        """
        theirs = self._source.accountant()
        if method is not None or theirs is None or self.sampler != POISSON:
            return super().privacy(delta, method=method or "rdp", orders=orders)
        delta = self.default_delta() if delta is None else delta
        epsilon = _opacus_epsilon(type(theirs), self.ledger, delta)
        return PrivacyGuarantee(epsilon, delta, ADD_OR_REMOVE, f"opacus {theirs.mechanism()}")

    def individual_privacy(self) -> IndividualPrivacy:
        """Return the Rényi differential privacy of every record by itself, none above Opacus's."""
        theirs = self._source.accountant()
        if theirs is None or self.sampler != POISSON:
            return super().individual_privacy()
        return self.run.individual_privacy(partial(_opacus_epsilon, type(theirs)))

    def _modules(self) -> Any:
        return innermost(self._original).modules()

    def _after_step(self) -> None:
        if self._observed:
            self.close_step()
        else:
            self.run.unobserved += 1
            self._count_step()
        self._observed = 0


def _opacus_epsilon(kind: Any, ledger: Ledger, delta: float) -> float:
    """Return the ε that an accountant of Opacus gives to the steps of a ledger."""
    again = kind()
    again.history = [(e.noise_multiplier, e.sample_rate, e.steps) for e in ledger]
    return float(again.get_epsilon(delta)) if ledger.steps else 0.0


class _Source:
    """An optimiser of Opacus: where noise and clipping are read, and whose hook is chained."""

    def __init__(self, optimizer: Any) -> None:
        from opacus.optimizers import AdaClipDPOptimizer, DPPerLayerOptimizer

        if isinstance(optimizer, AdaClipDPOptimizer | DPPerLayerOptimizer):
            raise InputError(
                f"{type(optimizer).__name__} clips in a way that is not followed; use {_FLAT}."
            )
        self.optimizer = optimizer
        self._before = optimizer.step_hook

    def noise_multiplier(self) -> float:
        return float(self.optimizer.noise_multiplier)

    def max_grad_norm(self) -> float:
        return float(self.optimizer.max_grad_norm)

    def accountant(self) -> Any:
        """Return the accountant of Opacus whose hook the optimiser had, if that can be seen."""
        cells = getattr(self._before, "__closure__", None) or ()
        owners = [cell.cell_contents for cell in cells]
        return next((owner for owner in owners if hasattr(owner, "mechanism")), None)

    def chain(self, after: Any) -> Any:
        before = self._before

        def hook(optimizer: Any) -> None:
            if before is not None:
                before(optimizer)
            after()

        self.optimizer.attach_step_hook(hook)
        return lambda: self.optimizer.attach_step_hook(before)


class _EngineSource(_Source):
    """A privacy engine: it knows no optimiser, so noise and threshold are given once."""

    def __init__(self, engine: Any, noise_multiplier: float, max_grad_norm: float) -> None:
        self.engine = engine
        self._noise_multiplier = noise_multiplier
        self._max_grad_norm = max_grad_norm

    def noise_multiplier(self) -> float:
        return self._noise_multiplier

    def max_grad_norm(self) -> float:
        return self._max_grad_norm

    def accountant(self) -> Any:
        return self.engine.accountant

    def chain(self, after: Any) -> Any:
        accountant = self.engine.accountant
        before = accountant.step

        def step(*, noise_multiplier: float, sample_rate: float) -> None:
            before(noise_multiplier=noise_multiplier, sample_rate=sample_rate)
            if noise_multiplier != self._noise_multiplier:
                raise InputError(
                    f"Opacus took a step with the noise multiplier {noise_multiplier:.6g}, not "
                    f"{self._noise_multiplier:.6g}; attach to the optimiser, which knows its own."
                )
            after()

        accountant.step = step
        return lambda: setattr(accountant, "step", before)


def attach(
    target: Any,
    net: nn.Module,
    loss: str | nn.Module | Loss,
    data_loader: Any,
    *,
    noise_multiplier: float | None = None,
    max_grad_norm: float | None = None,
    **accounting: Any,
) -> OpacusAccountant:
    """Attach a leakage accountant to a run with Opacus.

    Opacus's own hook keeps running, so its accountant goes on as before. Plain (``"hooks"``) and
    ghost clipping both work. The data set must give the number of each record beside it, for
    instance ``TensorDataset(torch.arange(n), X, y)``.

    Parameters
    ----------
    target
        The optimiser that ``make_private`` returned, or the ``PrivacyEngine`` itself.
    net
        The network, as ``make_private`` returned it or as it was before.
    loss
        The loss of one record: ``"cross_entropy"``, or the criterion, as it was before
        ``make_private`` or as that returned it for ghost clipping.
    data_loader
        The loader that ``make_private`` returned.
    noise_multiplier, max_grad_norm
        For a ``PrivacyEngine``, which does not keep them: what ``make_private`` was given. An
        optimiser has its own, and others are refused.
    accounting
        More arguments for :class:`~seepage.nn.FisherAccountant`: ``view``, ``probes`` and so on.

    Returns
    -------
    OpacusAccountant
        Call ``observe(index, x, y)`` with every batch before ``optimizer.step()``.
    """
    if hasattr(target, "attach_step_hook"):
        source = _Source(target)
        _check_own("noise_multiplier", noise_multiplier, source.noise_multiplier())
        _check_own("max_grad_norm", max_grad_norm, source.max_grad_norm())
    elif hasattr(target, "make_private"):
        if noise_multiplier is None or max_grad_norm is None:
            raise InputError(
                "A PrivacyEngine does not keep the noise multiplier and the clipping threshold; "
                "attach to the optimiser that make_private returned, or give both."
            )
        source = _EngineSource(target, noise_multiplier, max_grad_norm)
    else:
        raise InputError(
            f"attach() takes an optimiser or a PrivacyEngine of Opacus, not a "
            f"{type(target).__name__}."
        )
    rate = getattr(data_loader.batch_sampler, "sample_rate", None)
    if rate is None:
        warnings.warn(
            "The loader does not draw Poisson batches: nothing is claimed from sampling, neither "
            "for the leakage (κ = 1) nor for (ε, δ), while Opacus's own ε assumes that they are.",
            SamplerWarning,
            stacklevel=2,
        )
    return OpacusAccountant(
        source,
        net,
        _own_criterion(loss),
        n=len(data_loader.dataset),
        sample_rate=1.0 if rate is None else rate,
        max_grad_norm=source.max_grad_norm(),
        clip="hard",
        sampler=OTHER if rate is None else POISSON,
        **accounting,
    )


def _check_own(name: str, given: float | None, own: float) -> None:
    if given is not None and given != own:
        raise InputError(
            f"The optimiser has {name} = {own!r}, not {given!r}; leave it out: it is read from the "
            "optimiser at every batch."
        )


def _own_criterion(loss: Any) -> Any:
    """Return the criterion inside the wrapper that Opacus's ghost clipping puts around it."""
    wrapped = type(loss).__module__.split(".")[0] == "opacus"
    return loss.criterion if wrapped and hasattr(loss, "criterion") else loss


def innermost(net: nn.Module) -> nn.Module:
    """Return the user's network inside the wrappers of Opacus and of data parallelism."""
    while True:
        inner = getattr(net, "_module", None) or getattr(net, "module", None)
        if not isinstance(inner, nn.Module) or type(net).__module__.split(".")[0] not in (
            "opacus",
            "torch",
        ):
            return net
        net = inner


def without_opacus(net: nn.Module) -> nn.Module:
    """Return a copy of the network inside, without the hooks that Opacus has put there.

    They would take part in the accountant's own passes and store per-record gradients of them. The
    copy has modules of its own, but the same parameters and buffers.
    """
    inner = innermost(net)
    handles = getattr(inner, "autograd_grad_sample_hooks", ())
    theirs = {(id(handle.hooks_dict_ref()), handle.id) for handle in handles}
    return _copied(inner, theirs, {})


def _copied(
    module: nn.Module, dropped: set[tuple[int, int]], done: dict[int, nn.Module]
) -> nn.Module:
    if id(module) in done:  # a module used twice stays one module
        return done[id(module)]
    copy = module.__class__.__new__(module.__class__)
    copy.__dict__ = dict(module.__dict__)
    done[id(module)] = copy
    for name in _HOOKS:
        hooks: OrderedDict[int, Any] = module.__dict__.get(name, OrderedDict())
        kept = ((key, hook) for key, hook in hooks.items() if (id(hooks), key) not in dropped)
        copy.__dict__[name] = OrderedDict(kept)
    copy.__dict__["_modules"] = {
        name: None if child is None else _copied(child, dropped, done)
        for name, child in module._modules.items()
    }
    return copy
