"""Canaries in one run of private SGD, for an attacker who observes every noisy gradient.

A step releases ``ĝ = (Σ_i b_i g̃_i + Σ_j c_j g̃_j + N(0, s²))/D``: the noisy sum of the clipped
gradients ``g̃`` of the sampled records and canaries, divided by ``D``. ``b_i`` and ``c_j`` are 1
for the records and canaries in the batch and 0 for all others; ``s`` is the standard deviation of
the noise. The attacker knows all records, canaries and parameters, and therefore all clipped
gradients, but not which records were sampled. The attacker subtracts the expected sum of the
clipped gradients and estimates the ``c_j`` by the best linear predictor. The rows of ``G`` are the
canaries' gradients, ``q`` is the sampling rate, and ``p = q/2`` is the rate at which a canary takes
part in a step::

    ĉ = (G Gᵀ + s²/(p(1 − p)) I)⁻¹ G (D ĝ − q Σ_i g̃_i − p Σ_j g̃_j)

The score of a canary is the sum of ``ĉ`` over the steps. The cost of a step is proportional to the
number of parameters times the square of the number of canaries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.attacks.canaries.coins import Canaries, CanaryAudit
from seepage.errors import InputError, accepts_other_names
from seepage.nn.accounting.processes import world_size
from seepage.nn.gradients.norms import record_gradients
from seepage.nn.jacobian.engine import Engine
from seepage.nn.privacy.randomness import mark_of
from seepage.nn.problem.clipping import Clip, HardClip
from seepage.nn.problem.problem import Loss
from seepage.nn.training.private_sgd import PrivateSGD
from seepage.support.keyed_stream import KeyedStream

Records = tuple[Tensor, Tensor]  # inputs and targets
Follow = Callable[[Any, nn.Module, Any], None]  # of an optimiser, its network and its loader


@dataclass(frozen=True)
class StepFacts:
    """The attacker's knowledge about the next training step.

    Parameters
    ----------
    clip
        How each gradient is clipped.
    noise
        The standard deviation of the noise added to the sum of clipped gradients.
    sample_rate
        The probability that a record is sampled into the batch.
    divisor
        The divisor of the noisy sum.
    """

    clip: Clip
    noise: float
    sample_rate: float
    divisor: float


class GradientScores:
    """Scores canaries from the noisy gradients of an optimiser's steps.

    ``scores`` contains, for each canary, the sum of its estimated contributions ``ĉ`` to the steps
    so far (see the module).
    """

    def __init__(self, loss: str | nn.Module | Loss, known: Records, canaries: Records) -> None:
        self.loss, self.known, self.canaries = loss, known, canaries
        self.scores = np.zeros(len(canaries[1]))
        self.steps = 0

    def follow(
        self, optimizer: torch.optim.Optimizer, net: nn.Module, facts: Callable[[], StepFacts]
    ) -> None:
        """Score the canaries at every subsequent step, before the parameters are updated."""
        engine = Engine(net, self.loss)
        optimizer.register_step_pre_hook(lambda *_: self._see(engine, facts()))

    def _see(self, engine: Engine, facts: StepFacts) -> None:
        problem, device = engine.problem, engine.problem.device()
        engine.clip = facts.clip
        noisy = torch.cat([_flat(p.grad, p) for p in problem.released().values()])
        (x, y), (known_x, known_y) = (
            (part[0].to(device), part[1].to(device)) for part in (self.canaries, self.known)
        )
        gradients = record_gradients(problem, problem.batch(x, y)).double()
        norms = gradients.norm(dim=1)
        gradients *= facts.clip.factor(norms)[:, None]
        others = engine.flat_gradient(known_x, known_y).double()
        share = facts.sample_rate / 2
        rest = facts.divisor * noisy.double() - facts.sample_rate * others
        pull = gradients @ (rest - share * gradients.sum(0))
        spread = facts.noise**2 / (share * (1 - share))
        gram = gradients @ gradients.T
        gram.diagonal().add_(spread)
        self.scores += torch.linalg.solve(gram, pull).cpu().numpy()
        self.steps += 1


@accepts_other_names
def audit_private_sgd(
    trainer: PrivateSGD,
    X: Any,
    y: Any,
    *,
    canaries: int | Records = 1000,
    delta: float,
    guesses: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
) -> CanaryAudit:
    """Train once with canaries among the records; return the lower bound on ε and the promised ε.

    Do not release the network, because canaries are among its training records.

    Parameters
    ----------
    trainer
        A trainer that has not been fitted, with a ``sample_rate`` and no checkpoint.
    X, y
        The records, as tensors.
    canaries
        The inputs and targets of canaries, or their number. The entries of generated canaries are
        random signs times the largest absolute input; their labels are random.
    delta
        The δ at which the promised ε and the bound are compared.
    guesses, confidence, seed
        As for :func:`audit_training`; ``seed`` determines the canaries and coin flips, not the
        trainer's noise.

    Examples
    --------
    >>> import torch
    >>> import seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> X, y = torch.randn(60, 20), torch.randint(2, (60,))
    >>> trainer = sp.nn.PrivateSGD(
    ...     torch.nn.Linear(20, 2), "cross_entropy", steps=2, sample_rate=0.5, expected_batch=30
    ... )
    >>> audit = sp.attacks.audit_private_sgd(trainer, X, y, canaries=20, delta=1e-5)
    >>> audit.canaries, audit.refuted
    (20, False)
    """
    divisor = trainer.expected_batch
    if divisor is None:
        raise InputError(
            "Canaries test a guarantee for adding or removing a record, which a fixed batch_size "
            "does not provide; audit a trainer with sample_rate and expected_batch."
        )
    if trainer.checkpoint is not None or world_size() > 1:
        raise InputError(
            "Canaries are scored during one complete run in a single process; leave out the "
            "checkpoint, and do not train in parallel processes."
        )
    known, made, coins = _prepared(X, y, canaries, guesses, seed)
    scores = GradientScores(trainer.loss, known, made)
    rates = {"momentum": trainer.momentum, "weight_decay": trainer.weight_decay}
    own = trainer.optimizer or partial(torch.optim.SGD, lr=trainer.lr, **rates)

    def facts() -> StepFacts:
        accountant = trainer.accountant_
        noise = trainer.noise_multiplier * accountant.clip.max_grad_norm
        return StepFacts(accountant.clip, noise, accountant.sample_rate, divisor)

    def followed(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = own(parameters)
        scores.follow(optimizer, trainer.net, facts)
        return optimizer

    given, trainer.optimizer = trainer.optimizer, followed
    try:
        trainer.fit(*_joined(known, made, coins))
    finally:
        trainer.optimizer = given
    promise = trainer.accountant_.privacy(delta, method="pld")
    budgets = trainer.budgets_
    promised = promise.epsilon if budgets is None else min(promise.epsilon, budgets.epsilon(delta))
    return coins.audit(
        scores.scores,
        delta=delta,
        confidence=confidence,
        promised=promised,
        experiment=mark_of(promise.conditions),
    )


@accepts_other_names
def audit_opacus(
    train: Callable[[Tensor, Tensor, Follow], float | None],
    loss: str | nn.Module | Loss,
    X: Any,
    y: Any,
    *,
    canaries: int | Records = 1000,
    delta: float,
    guesses: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
) -> CanaryAudit:
    """Return a lower bound on ε from an Opacus training loop with canaries among its records.

    Opacus's sampling rate is the batch size divided by the number of records. Adding a canary
    changes this rate for every record, which Opacus's ε does not account for. With few records and
    large batches, a promised ε may therefore be refuted even if the training is correct.

    Parameters
    ----------
    train
        Your training loop: a function with the arguments inputs, targets and ``follow``. Call
        ``follow(optimizer, net, loader)`` with the objects returned by ``make_private``, then train
        and return the ε guaranteed at this δ (``engine.get_epsilon(delta)``), or ``None``.
    loss
        The loss function of the training loop.
    X, y, canaries, delta, guesses, confidence, seed
        As for :func:`audit_private_sgd`.
    """
    known, made, coins = _prepared(X, y, canaries, guesses, seed)
    scores = GradientScores(loss, known, made)

    def follow(optimizer: Any, net: nn.Module, loader: Any) -> None:
        rate = getattr(loader, "sample_rate", None)
        if rate is None or not hasattr(optimizer, "original_optimizer"):
            raise InputError(
                "follow needs the optimizer, the network and the loader that Opacus's "
                "make_private() returned with poisson_sampling=True; pass these objects."
            )

        def facts() -> StepFacts:
            clip = HardClip(float(optimizer.max_grad_norm))
            noise = float(optimizer.noise_multiplier) * clip.max_grad_norm
            mean = optimizer.loss_reduction == "mean"
            return StepFacts(clip, noise, rate, optimizer.expected_batch_size if mean else 1.0)

        scores.follow(optimizer.original_optimizer, net, facts)

    promised = train(*_joined(known, made, coins), follow)
    if not scores.steps:
        raise InputError(
            "No training step was observed; call follow(optimizer, net, loader) in the training "
            "function, before the first step."
        )
    return coins.audit(scores.scores, delta=delta, confidence=confidence, promised=promised)


def _prepared(
    X: Any, y: Any, canaries: int | Records, guesses: int | None, seed: int | None
) -> tuple[Records, Records, Canaries]:
    """Return the records, the canaries and the coin flips."""
    known = torch.as_tensor(X), torch.as_tensor(y)
    if isinstance(canaries, int):
        coins = Canaries(canaries, guesses=guesses, seed=seed)
        return known, _crafted(*known, canaries, seed), coins
    made = torch.as_tensor(canaries[0]), torch.as_tensor(canaries[1])
    if len(made[0]) != len(made[1]) or made[0].shape[1:] != known[0].shape[1:]:
        raise InputError(
            "canaries must contain as many inputs as targets, and each input must have the shape "
            "of a record's input."
        )
    return known, made, Canaries(len(made[1]), guesses=guesses, seed=seed)


def _crafted(X: Tensor, y: Tensor, count: int, seed: int | None) -> Records:
    if not X.is_floating_point() or y.is_floating_point() or y.dim() != 1:
        raise InputError(
            "Canaries can be generated only for real-valued inputs with one integer class label "
            "each; pass your own canaries as canaries=(inputs, targets)."
        )
    stream = (KeyedStream.fresh() if seed is None else KeyedStream.of_seed(seed)).child("inputs")
    source = torch.Generator().manual_seed(stream.number())
    signs = torch.randint(2, (count, *X.shape[1:]), generator=source) * 2 - 1
    classes = torch.unique(y)
    labels = classes[torch.randint(len(classes), (count,), generator=source)]
    return (signs * X.abs().max()).to(X.dtype), labels


def _joined(known: Records, canaries: Records, coins: Canaries) -> Records:
    """Return the training data: all records and the included canaries."""
    included = torch.from_numpy(coins.included)
    inputs, targets = (
        torch.cat([old, new[included].to(old)]) for old, new in zip(known, canaries, strict=True)
    )
    return inputs, targets


def _flat(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like).flatten() if gradient is None else gradient.detach().flatten()
