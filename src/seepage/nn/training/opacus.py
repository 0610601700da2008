"""Attaches seepage's accountant to an Opacus training loop, alongside Opacus's accountant."""

from __future__ import annotations

import copy
import gc
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.nn.gradients.network_checks import unwrapped
from seepage.nn.jacobian.engine import Step
from seepage.nn.privacy.randomness import FAST, SECURE
from seepage.nn.privacy.run_privacy import (
    ZERO_OUT,
    Ledger,
    PrivacyGuarantee,
    conditions_of_relation,
)
from seepage.nn.problem.clipping import Clip, HardClip
from seepage.nn.problem.own_loss import target_weights
from seepage.nn.problem.problem import Loss, UnreducedLoss
from seepage.nn.problem.views import Label
from seepage.nn.sampling.batch_check import SamplerWarning
from seepage.nn.sampling.samplers import OTHER, POISSON

_FLAT = "Opacus's flat clipping (the default), plain or ghost"


class ReleaseWarning(UserWarning):
    """Warns that Opacus's release does not satisfy the assumptions of its guarantee."""


class SumCheck:
    """Compares an optimiser's sum of clipped gradients with the accountant's.

    If the sums differ (because of another clip, loss reduction, set of parameters or batch), the
    measured leakage is not that of the release. The sums are compared in the first two steps, in
    every 64th step, and after each of the first eight changes of settings (a schedule may change
    the settings at every step).
    """

    def __init__(self) -> None:
        self._settings: object = None
        self._changes = 0
        self._due = False
        self._ours: dict[str, Tensor] = {}
        self._lengths = 0.0
        self._clip = math.inf

    def begin(self, step: int, settings: object) -> None:
        """Begin a step (counted from zero), and decide whether to compare its sums."""
        changed = settings != self._settings
        self._settings = settings
        self._changes += changed
        self._due = step < 2 or step % 64 == 0 or (changed and self._changes <= 8)
        self._ours, self._lengths = {}, 0.0

    @property
    def due(self) -> bool:
        """Whether the sums of the current step are compared."""
        return self._due

    def add(self, part: Step, clip: Clip) -> None:
        """Add the sum of clipped gradients and the norms of one part of the step's batch."""
        for name, tensor in part.gradient.items():
            before = self._ours.get(name)
            self._ours[name] = tensor.clone() if before is None else before + tensor
        lengths = part.norms * clip.factor(part.norms)
        self._lengths += float(lengths.sum())
        self._clip = clip.max_grad_norm

    def compare(self, theirs: Mapping[str, Tensor | None]) -> None:
        """Raise an error unless the optimiser's sum equals the accountant's for every parameter."""
        self._due = False
        sums = {}
        for name, own in self._ours.items():
            their = theirs.get(name)
            if their is None:
                raise InputError(
                    f"The parameter {name!r} is counted as released, but the optimiser has no "
                    "gradient sum for it; add it to the optimiser, or freeze it with "
                    "requires_grad_(False) before make_private()."
                )
            sums[name] = their.detach().reshape(own.shape).to(own)
        apart = {name: float((sums[name] - own).norm()) for name, own in self._ours.items()}
        away = math.hypot(*apart.values())
        if away <= self._tolerance() * self._lengths + 1e-30:
            return
        worst = max(apart, key=lambda name: apart[name])
        raise InputError(
            "The optimiser does not release what the accountant measures: the sums of clipped "
            f"gradients differ by {away / max(self._lengths, 1e-30):.2g} times the sum of the "
            f"clipped gradients' norms. {self._guess(sums, worst)}"
        )

    def _tolerance(self) -> float:
        """Return the largest acceptable difference, relative to the sum of clipped norms.

        Rounding errors are about 1e-6 in float32, and up to 1e-3 with TF32 or bfloat16 products.
        """
        some = next(iter(self._ours.values()))
        rounding = 1e-6 / self._clip  # Opacus divides by the norm plus 1e-6
        if some.dtype.itemsize < 4:
            return 5e-2
        return rounding + (3e-3 if some.device.type == "cpu" else 1e-2)

    def _guess(self, theirs: Mapping[str, Tensor], worst: str) -> str:
        """Return a description of the difference between the sums and of how to remove it."""
        square = sum(float(own.double().square().sum()) for own in self._ours.values())
        product = sum(float((theirs[n] * own).double().sum()) for n, own in self._ours.items())
        ratio = product / square if square else math.nan
        rest = math.hypot(
            *(float((theirs[n] - ratio * own).norm()) for n, own in self._ours.items())
        )
        if math.isfinite(ratio) and rest <= self._tolerance() * abs(ratio) * self._lengths:
            return (
                f"The optimiser's sum is {ratio:.4g} times the accountant's in every entry: the "
                "training loop uses another loss or another reduction. Pass attach() the criterion "
                "used in training, or a function of output and target that returns each record's "
                "loss as weighted in the loop."
            )
        return (
            f"The difference is largest in {worst!r}. Call observe() with the step's batch before "
            "the step, in the mode (train or eval) used in training, and pass attach() the "
            "criterion used in training. "
            "If you already do, Opacus and seepage differentiate this parameter's module "
            "differently; do not rely on the measured leakage."
        )


class BatchMeanLoss:
    """The loss of each record, times ``N/Σ_j w_j`` for the batch given to :meth:`take`.

    Opacus multiplies the gradient of a mean by the number of records N, which recovers each
    record's gradient if the mean divides by N. With class weights or ignored targets, torch's mean
    is ``Σ_j w_j ℓ_j / Σ_j w_j`` (over all positions of all records). For record i, Opacus then
    clips and releases the gradient of ``N/Σ_j w_j · w_i ℓ_i``. The factor depends on the batch:
    removing a record changes the factor for all other records, and clipping does not bound this
    effect.

    The module is a ``CrossEntropyLoss`` or ``NLLLoss`` with ``reduction="mean"``. ``loss`` returns
    ``w_i ℓ_i``, summed over the positions of each record, and ``factor`` is ``N/Σ_j w_j``.
    """

    def __init__(self, module: nn.CrossEntropyLoss | nn.NLLLoss) -> None:
        summed = copy.copy(module)
        summed.reduction = "sum"
        self.module = summed
        self.loss = UnreducedLoss(summed)
        self.factor: Tensor | float = 1.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return one loss per record."""
        return self.factor * self.loss(output, target)

    def take(self, target: Tensor) -> bool:
        """Set the factor for a batch with these targets; return whether its mean is weighted."""
        if target.is_floating_point():  # for probabilities torch takes the plain mean
            self.factor = target.shape[1] * len(target) / max(1, target.numel())
            return False
        weight, ignored = self.module.weight, self.module.ignore_index
        shares = target_weights(target, weight, ignored, torch.float64)
        if weight is None and bool(shares.all()):
            self.factor = len(target) / max(1, target.numel())
            return False
        self.factor = len(target) / float(shares.sum()) if len(target) else 1.0
        return True


def divides_by_the_batch(loss: object) -> bool:
    """Return whether a loss is a torch module that may use a weighted batch mean."""
    classes = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    return classes and getattr(loss, "reduction", "") == "mean"


class OpacusAccountant(FisherAccountant):
    """A :class:`~seepage.nn.FisherAccountant` for an Opacus optimiser.

    Call :meth:`observe` with every batch of the loader, even an empty one, before
    ``optimizer.step()``. The noise and the clipping threshold are read from Opacus at every batch,
    so schedules are accounted for. A batch that is processed in several parts (Opacus's
    ``BatchMemoryManager``) counts as one step. Opacus's sum of clipped gradients is compared with
    the accountant's sum in the first steps, after changes of settings, and periodically.
    Accountants of this class are created by :func:`attach`.
    """

    def __init__(
        self, source: _Source, net: nn.Module, loss: Any, *args: Any, **options: Any
    ) -> None:
        self._source = source
        per_batch = not source.ghost and divides_by_the_batch(loss)
        self._mean = BatchMeanLoss(loss) if per_batch else None
        super().__init__(
            net,
            self._mean or loss,
            *args,
            noise_multiplier=source.settings().noise_multiplier,
            **options,
        )
        # Opacus's rate and divisor follow from the length of the data set.
        self.declared = False
        # The threshold follows Opacus; the ledger records it for every step.
        self.measurement = (self.measurement or {}) | {"clip": HardClip.__name__}
        self._settings: _OpacusSettings | None = None  # of the step whose batch is being observed
        self._observed = False
        self._warned_of: _OpacusSettings | None = None
        self._sums = SumCheck()
        self._warned_of_mean = False
        if getattr(loss, "weight", None) is not None and self._mean is not None:
            self._warn_of_mean()
        self._unhook = source.chain(self._after_step)

    def observe(  # type: ignore[override]  # whether more follows, Opacus tells
        self,
        index: Sequence[int] | Tensor | Any,
        x: Any,
        y: Tensor | None = None,
        *,
        update: bool = False,
    ) -> Step:
        """Account for a batch or part of a batch; the step is counted when Opacus takes it."""
        if y is None:
            raise InputError(
                "observe(index, x, y) requires the positions of the batch's records in the "
                "training data; make the loader return them with TensorDataset(torch.arange(n), X, "
                "y)."
            )
        self._follow()
        if self._mean is not None and self._mean.take(y):
            self._warn_of_mean()
        step = super().observe(index, x, y, update=update or self._sums.due, more=True)
        if self._sums.due:
            self._sums.add(step, self.clip)
        self._observed = True
        return step

    def survey(self, everyone: Iterable[tuple[Any, Any, Tensor]]) -> bool:
        """Measure all records if the next step was chosen for a survey; otherwise do nothing."""
        self._follow()
        return super().survey(everyone)

    def _mean_over_batches(self, x: Any, y: Tensor, index: Tensor) -> Tensor:
        if self._mean is not None and self._mean.take(y):
            raise InputError(
                "The loss is a weighted mean over the batch, so a record's leakage depends on the "
                "other records in the batch, and a survey cannot estimate the mean over batches. "
                "Use reduction='none' and the mean over records, in the loop and in attach()."
            )
        return super()._mean_over_batches(x, y, index)

    def detach(self) -> None:
        """Detach from the optimiser, and restore its original hook."""
        self._unhook()

    def privacy(
        self,
        delta: float | None = None,
        *,
        method: str | None = None,
        orders: Sequence[float] | None = None,
        neighbours: str | None = None,
        group: int = 1,
    ) -> PrivacyGuarantee:
        """Return the (ε, δ) guarantee of the run.

        Opacus's sampling rate, ``1/len(data_loader)``, and the batch size by which Opacus divides
        follow from the number of records. The number of records therefore counts as public, and by
        default ε is for replacing a record. For Opacus's own ε, use ``neighbours="zero-out"``. This
        ε is computed by Opacus's own method unless ``"rdp"`` or ``"pld"`` is given, and it is for
        replacing a record by one with zero gradient, not for adding or removing a record.
        """
        theirs = self._source.accountant()
        plain = method is None and group == 1 and neighbours == "zero-out"
        if not plain or theirs is None or self.sampler != POISSON:
            return super().privacy(
                delta, method=method or "rdp", orders=orders, neighbours=neighbours, group=group
            )
        delta = self.default_delta() if delta is None else delta
        epsilon = _opacus_epsilon(type(theirs), self.ledger, delta)
        method = f"opacus {theirs.mechanism()}"
        conditions = (*conditions_of_relation(self.ledger), *self.ledger.conditions)
        return PrivacyGuarantee(epsilon, delta, ZERO_OUT, method, conditions=conditions)

    def run_epsilon(self, ledger: Ledger, delta: float) -> float:
        """Return the ε of a ledger's steps at δ, computed by Opacus's own method if available."""
        theirs = self._source.accountant()
        if theirs is None or self.sampler != POISSON:
            return super().run_epsilon(ledger, delta)
        return _opacus_epsilon(type(theirs), ledger, delta)

    def _follow(self) -> None:
        """Read Opacus's clipping and noise settings, once per step."""
        now = self._source.settings()
        if self._settings is not None:
            if now != self._settings:
                raise InputError(
                    "Opacus's noise or clipping changed within a step, after its batch was "
                    "observed (as adaptive clipping does inside backward()), so the measurement "
                    "does not describe the release. Change them between optimizer.step() and the "
                    "next observe()."
                )
            return
        self._settings = now
        if now.max_grad_norm != self.clip.max_grad_norm:
            self.engine.clip = HardClip(now.max_grad_norm)
        if now.noise_multiplier != now.stated and now != self._warned_of:
            self._warned_of = now
            warnings.warn(
                f"Opacus's module clips at {now.max_grad_norm:.6g}, but its optimiser adds noise "
                f"for a threshold of {now.noise_for:.6g}: in ghost mode optimizer.max_grad_norm "
                "changes only the noise. This accountant uses both values, with a noise multiplier "
                f"of {now.noise_multiplier:.6g}; Opacus's own ε uses {now.stated:.6g} and is "
                "wrong. Also set max_grad_norm on the module that make_private() returned.",
                ReleaseWarning,
                stacklevel=3,
            )
        self.noise_multiplier = now.noise_multiplier
        self._sums.begin(self.ledger.steps, now)

    def _warn_of_mean(self) -> None:
        if self._warned_of_mean:
            return
        self._warned_of_mean = True
        warnings.warn(
            "The loss is a weighted mean over the batch (class weights or ignored targets): adding "
            "or removing a record rescales the gradients of all other records, which clipping does "
            "not bound. The leakage is that of Opacus's release, but the true sensitivity and the "
            "true ε are larger than Opacus and this accountant state. Use reduction='none' "
            "and the mean over records, in the loop and in attach().",
            ReleaseWarning,
            stacklevel=4,
        )

    def _after_step(self) -> None:
        """Check and count the step that Opacus is taking."""
        self._follow()
        observed, self._observed, self._settings = self._observed, False, None
        if not observed:
            self.unobserved += 1
            self.ledger.add(self._entry())
            return
        if self._sums.due:
            sums = self._source.sums(self.engine.problem.released())
            if sums is not None:
                self._sums.compare(sums)
        self.close_step()


def _opacus_epsilon(kind: Any, ledger: Ledger, delta: float) -> float:
    """Return the ε that an Opacus accountant of this class computes for a ledger's steps."""
    again = kind()
    again.history = [(e.noise_multiplier, e.sample_rate, e.steps) for e in ledger]
    return float(again.get_epsilon(delta)) if ledger.steps else 0.0


@dataclass(frozen=True)
class _OpacusSettings:
    """The current clipping and noise settings of Opacus."""

    max_grad_norm: float  # the threshold at which gradients are clipped
    stated: float  # the noise multiplier that Opacus states and computes its ε from
    noise_for: float  # the threshold that the noise is scaled by
    deviation: float  # the standard deviation of the noise on the sum

    @property
    def noise_multiplier(self) -> float:
        """The noise's standard deviation divided by the actual clipping threshold."""
        if self.deviation == self.stated * self.max_grad_norm:
            return self.stated
        return self.deviation / self.max_grad_norm


class _Source:
    """Reads noise, clipping and sums from an Opacus optimiser, and adds a hook to its steps.

    In hooks mode the optimiser clips. In ghost mode the module clips, at its own threshold, and the
    optimiser adds the noise. ``named`` contains the noise multiplier and threshold that were given
    with a privacy engine; Opacus must use exactly these values.
    """

    def __init__(
        self, optimizer: Any, net: nn.Module, named: tuple[float, float] | None = None
    ) -> None:
        from opacus.optimizers import AdaClipDPOptimizer, DPPerLayerOptimizer

        if isinstance(optimizer, AdaClipDPOptimizer | DPPerLayerOptimizer):
            raise InputError(
                f"{type(optimizer).__name__} uses a clipping method that is not supported; use "
                f"{_FLAT}."
            )
        self.optimizer, self._named = optimizer, named
        self._before = optimizer.step_hook
        self._clipping_module = _clipping_module(net)
        known = {id(p) for p in unwrapped(net).parameters()}
        if any(id(p) not in known for p in optimizer.params):
            raise InputError(
                "The optimiser also trains parameters outside this network, which would not be "
                "accounted for; pass the whole network to attach()."
            )

    @property
    def ghost(self) -> bool:
        """Whether the module clips, not the optimiser (ghost clipping)."""
        return self._clipping_module is not None

    def settings(self) -> _OpacusSettings:
        """Return the current clipping and noise."""
        stated, noise_for = (
            float(getattr(self.optimizer, name)) for name in ("noise_multiplier", "max_grad_norm")
        )
        # With adaptive clipping Opacus adds more noise than it states, to account for the quantile
        # it releases.
        added = float(getattr(self.optimizer, "_adjusted_noise_multiplier", stated))
        owner = self.optimizer if self._clipping_module is None else self._clipping_module
        clipped_at = float(owner.max_grad_norm)
        changed = (stated, clipped_at, noise_for) != (*(self._named or ()), clipped_at)
        if self._named is not None and changed:
            raise InputError(
                f"Opacus uses the noise multiplier {stated:.6g} and clips at {clipped_at:.6g}, "
                f"with noise for the threshold {noise_for:.6g}, but the multiplier "
                f"{self._named[0]:.6g} and the threshold {self._named[1]:.6g} were given. Pass "
                "attach() the optimiser, so that its schedule is read."
            )
        return _OpacusSettings(clipped_at, stated, noise_for, added * noise_for)

    def sums(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor | None] | None:
        """Return Opacus's sum of clipped gradients for each parameter, without noise.

        Returns ``None`` if the sums are no longer available: with several processes, all but the
        first divide their sums in place before the hook runs. The first process compares the sums
        for all processes.
        """
        sums: dict[str, Tensor | None] = {}
        for name, parameter in parameters.items():
            summed, mean = getattr(parameter, "summed_grad", None), parameter.grad
            if summed is not None and mean is not None and mean.data_ptr() == summed.data_ptr():
                return None
            sums[name] = summed
        return sums

    def accountant(self) -> Any:
        """Return the Opacus accountant that the optimiser's own hook reports to, or ``None``."""
        return _hooked_accountant(self._before)

    def chain(self, after: Any) -> Any:
        before = self._before

        def hook(optimizer: Any) -> None:
            if before is not None:
                before(optimizer)
            after()

        self.optimizer.attach_step_hook(hook)
        return lambda: self.optimizer.attach_step_hook(before)


def _optimizer_of(engine: Any) -> Any:
    """Find and return a privacy engine's optimiser, to which the engine has no reference."""
    from opacus.optimizers import DPOptimizer

    for thing in gc.get_objects():
        known = issubclass(type(thing), DPOptimizer) and _hooked_accountant(thing.step_hook)
        if known is engine.accountant:
            return thing
    raise InputError(
        "No optimiser was found for this PrivacyEngine; pass attach() the optimiser that "
        "make_private() returned."
    )


def _hooked_accountant(hook: Any) -> Any:
    """Return the Opacus accountant that a hook reports to, or ``None``."""
    owners = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or ()]
    return next((owner for owner in owners if hasattr(owner, "mechanism")), None)


def _clipping_module(net: nn.Module) -> Any:
    """Return the Opacus object that clips in ghost mode, or ``None``; it is found by its hooks."""
    for module in unwrapped(net).modules():
        for hook in module._forward_hooks.values():
            owner = getattr(hook, "__self__", None)
            if hasattr(owner, "get_clipping_coef"):
                return owner
    return None


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
    """Attach a leakage accountant to an Opacus run.

    Opacus's hook still runs, so Opacus's own accountant works as before. Plain (``"hooks"``) and
    ghost clipping are supported. The data set must return each record with its position, for
    instance ``TensorDataset(torch.arange(n), X, y)``.

    Parameters
    ----------
    target
        The optimiser that ``make_private`` returned, or the ``PrivacyEngine`` itself.
    net
        The network, either the original or the one that ``make_private`` returned.
    loss
        The per-record loss: ``"cross_entropy"`` or the criterion. With ghost clipping, the
        criterion that ``make_private`` returned is also accepted.
    data_loader
        The loader that ``make_private`` returned.
    noise_multiplier, max_grad_norm
        The arguments of ``make_private``, required if ``target`` is a ``PrivacyEngine``, which does
        not store them. If ``target`` is an optimiser, leave them out; values that differ from the
        optimiser's raise an error.
    accounting
        Further arguments of :class:`~seepage.nn.FisherAccountant`: ``view``, ``probes`` and so on.

    Returns
    -------
    OpacusAccountant
        The accountant. Call its ``observe(index, x, y)`` with every batch before
        ``optimizer.step()``.
    """
    if hasattr(target, "attach_step_hook"):
        source = _Source(target, net)
        _check_own("noise_multiplier", noise_multiplier, float(target.noise_multiplier))
        _check_own("max_grad_norm", max_grad_norm, float(target.max_grad_norm))
    elif hasattr(target, "make_private"):
        if noise_multiplier is None or max_grad_norm is None:
            raise InputError(
                "A PrivacyEngine does not store the noise multiplier and the clipping threshold; "
                "pass attach() the optimiser that make_private returned, or give both values."
            )
        source = _Source(_optimizer_of(target), net, (noise_multiplier, max_grad_norm))
    else:
        raise InputError(
            "attach() requires an Opacus optimiser or PrivacyEngine, not an object of type "
            f"{type(target).__name__}; pass the optimiser that make_private() returned."
        )
    secure = bool(getattr(source.optimizer, "secure_mode", False))
    if not secure:
        warnings.warn(
            "Opacus is not in secure mode: its noise comes from torch's generator, which uses only "
            "32 bits of a seed on the CPU. An attacker who sees the models of a run can therefore "
            "find the noise by brute force. For a release, use PrivacyEngine(secure_mode=True) or "
            "sp.nn.PrivateSGD.",
            ReleaseWarning,
            stacklevel=2,
        )
    rate = getattr(data_loader.batch_sampler, "sample_rate", None)
    if rate is None:
        warnings.warn(
            "The loader does not draw Poisson batches, so no amplification by sampling is claimed "
            "for the leakage (κ = 1) or for (ε, δ). Opacus's own ε assumes Poisson batches; draw "
            "them with make_private(poisson_sampling=True).",
            SamplerWarning,
            stacklevel=2,
        )
    # Opacus's ghost clipping puts a wrapper around the criterion.
    wrapped = type(loss).__module__.split(".")[0] == "opacus" and hasattr(loss, "criterion")
    criterion: Any = loss.criterion if wrapped else loss  # type: ignore[union-attr]
    of_batch = not source.ghost and divides_by_the_batch(criterion)
    if of_batch and isinstance(accounting.get("view"), Label) and criterion.weight is not None:
        raise InputError(
            "With class weights, the batch's loss is divided by the sum of its labels' weights. A "
            "label then affects the gradients of all other records, which the accountant does not "
            "measure. Use reduction='none' and the mean over records, in the loop and in attach()."
        )
    return OpacusAccountant(
        source,
        net,
        criterion,
        n=len(data_loader.dataset),
        sample_rate=1.0 if rate is None else rate,
        max_grad_norm=source.settings().max_grad_norm,
        clip="hard",
        sampler=OTHER if rate is None else POISSON,
        randomness=SECURE if secure else FAST,
        **accounting,
    )


def _check_own(name: str, given: float | None, own: float) -> None:
    if given is not None and given != own:
        raise InputError(
            f"The optimiser has {name} = {own!r}, not {given!r}; leave out the argument, because "
            "it is read from the optimiser at every batch."
        )
