"""Private SGD with a built-in accountant, for users without their own training loop.

Training runs in one process or, under ``torchrun``, in several processes that share every batch.

A step of the default optimiser is ``w ← w − ρ v`` with ``v ← m v + (Σ g̃ + N(0, (σC)²))/B + λ w``
(Guo et al. 2022, section 6.1, plus momentum m and weight decay λ; ρ is the learning rate). Any
other optimiser receives the gradient ``(Σ g̃ + N(0, (σC)²))/B``. Unless the divisor ``B`` is
declared, the number of records counts as public, because an attacker who sees the noise of a step
learns ``σC/B``.
"""

from __future__ import annotations

import inspect
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from seepage.errors import InputError, accepts_other_names, check_options
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.nn.accounting.joining import gather_shares, keep_one_share, whole_state
from seepage.nn.accounting.processes import (
    check_agreement,
    process_rank,
    shared_stream,
    world_size,
)
from seepage.nn.accounting.run_identity import data_fingerprint, loss_name, plain_setting
from seepage.nn.privacy.randomness import (
    conditions_of,
    mark_of,
    marked,
)
from seepage.nn.privacy.run_membership import GUARANTEED
from seepage.nn.privacy.run_privacy import ADD_OR_REMOVE, REPLACE
from seepage.nn.problem.clipping import Clip, make_clip
from seepage.nn.problem.own_loss import labels_of
from seepage.nn.problem.problem import Loss
from seepage.nn.problem.sharding import put_together, spread_like
from seepage.nn.problem.views import (
    Inputs,
    batch_size,
    evaluating,
    leaves,
    numbers_of,
    on_device,
    rows_of,
)
from seepage.nn.training.budgets import Budget, RecordBudgets, checked_budget
from seepage.nn.training.checkpoints import (
    check_same_run,
    read_checkpoint,
    read_key,
    write_checkpoint,
    write_key,
)
from seepage.nn.training.private_gradients import (
    AT_A_TIME,
    OWN,
    PrivateGradients,
    check_declared,
    check_target,
    noise_for_target,
    origin_of,
    write_gradients,
)
from seepage.privacy.filters import CONDITIONS
from seepage.support.files import remove_half_written
from seepage.support.keyed_stream import KeyedStream
from seepage.support.number_check import check_choice, check_noise, check_number, check_positive
from seepage.tables.names import counted

Released = Mapping[str, nn.Parameter]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
_SETTINGS = (  # that identify a run
    "batch_size sample_rate expected_batch lr momentum weight_decay noise_multiplier "
    "max_grad_norm clip sampling randomness evaluate_every"
)


class PrivateUpdate:
    """Updates the parameters with noisy gradients; stores and restores the optimiser's state.

    ``make`` creates the optimiser from the released parameters. The optimiser uses only the noisy
    gradients and these parameters, so it adds no leakage (post-processing).
    """

    def __init__(self, released: Released, make: MakeOptimizer) -> None:
        self.released = released
        self.optimizer = make(list(released.values()))
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise InputError(
                "optimizer must be a function that takes the parameters and returns a torch "
                "optimiser, for instance functools.partial(torch.optim.AdamW, lr=1e-3), not "
                f"{type(self.optimizer).__name__}."
            )
        owned = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if owned != {id(p) for p in released.values()}:
            raise InputError(
                "The optimiser must update all parameters with requires_grad and no other "
                "parameters; in optimizer=, create it from exactly the parameters received."
            )

    def take(self, gradient: Mapping[str, Tensor]) -> None:
        """Take an optimiser step with each parameter's noisy mean gradient."""
        write_gradients(self.released, gradient)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def settings(self) -> dict[str, Any]:
        """Return the optimiser's class and the settings of its parameter groups."""
        groups = [
            {name: repr(value) for name, value in group.items() if name != "params"}
            for group in self.optimizer.param_groups
        ]
        return {"optimizer": type(self.optimizer).__qualname__, "optimizer groups": groups}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the optimiser's state, keyed by parameter number."""
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
                        f"The optimiser's state {name!r} is of type {type(value).__name__}, "
                        "which a checkpoint cannot store; use another optimiser, or no checkpoint."
                    )
        return tensors, facts

    def go_on(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore a stored state, without changing the parameter groups."""
        state: dict[int, dict[str, Any]] = {}
        owners = [p for group in self.optimizer.param_groups for p in group["params"]]
        for place, value in (dict(facts) | dict(tensors)).items():
            number, _, name = place.partition(".")
            owner = owners[int(number)]
            if isinstance(value, Tensor) and value.shape == owner.shape:
                value = spread_like(owner, value)
            state.setdefault(int(number), {})[name] = value
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": state})


@dataclass(frozen=True)
class Progress:
    """The state of a run after a step.

    Parameters
    ----------
    step
        The number of steps taken so far.
    accuracy
        The accuracy on the test data; ``None`` without test data, or if the targets are not
        classes.
    worst_dfil
        The largest dFIL of any record.
    worst_mu
        The largest μ of any record, or NaN without clipping. μ is the Gaussian DP parameter of
        membership inference by an adversary who knows all other records and the batches.
    condition
        The condition under which dFIL and μ are valid, if the noise can be regenerated; otherwise
        empty.
    """

    step: int
    accuracy: float | None
    worst_dfil: float
    worst_mu: float
    condition: str = ""


@accepts_other_names
class PrivateSGD:
    """Trains a network with private SGD and accounts for its leakage.

    If :mod:`torch.distributed` has been initialised, the processes train together. Each process
    computes the clipped gradients of its share of a batch, and the results are summed. All
    processes end with the same network and the same account, which covers the whole run. A network
    that does not fit on one device may be sharded (``torch.distributed.fsdp.fully_shard``).

    Parameters
    ----------
    net
        The network; it is trained in place, on its own device.
    loss
        As for :class:`~seepage.nn.FisherAccountant`.
    steps
        The number of steps to take.
    epochs
        The number of passes over the data, instead of ``steps``. A pass is ``1/sample_rate`` steps,
        in which every record is drawn once on average.
    sample_rate, expected_batch
        The probability that a record is in a Poisson batch, and the number ``B`` by which the noisy
        sums are divided. Both are declared before the data are seen, so guarantees cover adding or
        removing a record. Batches have ``sample_rate · n`` records on average. An inaccurate ``B``
        only rescales the learning rate.
    batch_size
        The batch size (for Poisson batches, its mean), instead of the two settings above. The
        sampling rate and the divisor then follow from ``n``, which counts as public, and guarantees
        cover replacing a record.
    lr, momentum, weight_decay
        The learning rate ρ (0.1 by default), the momentum m and the weight decay λ (both 0 by
        default).
    optimizer
        A function that creates any torch optimiser from the parameters, instead of ``lr``,
        ``momentum`` and ``weight_decay``, for example
        ``functools.partial(torch.optim.AdamW, lr=1e-3)``.
    noise_multiplier, max_grad_norm, clip
        The noise multiplier σ (1 by default), the clipping threshold C, and how gradients are
        clipped: ``"hard"``, ``"smooth"`` as in Guo et al. 2022, ``"none"``, or a clip from
        :mod:`seepage.nn.problem.clipping`, which has its own C.
    target_epsilon, target_delta
        A privacy budget (ε, δ) for the whole run, instead of ``noise_multiplier``. σ is then the
        smallest multiple of 0.001 for which ``accountant_.privacy()`` is within the budget. σ
        depends only on the declared settings and, with ``batch_size``, on ``n``.
    sampling
        ``"poisson"``, or ``"fixed"`` for batches of equal size. A batch that is too large for
        memory is processed in parts (``chunk_size``) but still counts as one batch.
    seed
        A seed for batches, noise and probes, for experiments only. Anyone who knows or guesses the
        seed can regenerate and subtract the noise; every statement about the run mentions this. By
        default, batches, noise and probes are derived from a 256-bit key drawn by the operating
        system and from the step number. With a checkpoint, the key is stored in the same folder, in
        a file with the checkpoint's name plus ``.key``. This file is needed to resume the run. Keep
        it secret, and delete it after the run: anyone who knows the key can remove the noise.
    randomness
        With ``"secure"``, noise and batches come from ChaCha20, and noisy sums are rounded to a
        grid with steps of at most 1/4096 of the noise's standard deviation. With ``"fast"``, noise
        comes from torch's generator. Use ``"fast"`` only for experiments, because the generator may
        use as few as 32 bits of a seed; statements about the run mention this.
    budget
        The privacy budget of each record, for adding or removing that record:
        ``sp.privacy.DifferentialPrivacy(8.0, 1e-5, "add-or-remove")``, ``GaussianDP`` or
        ``RenyiDP``. A record whose budget is spent takes no further part in the training. With a
        Gaussian budget, only the drawn records are charged. With the other budgets, every record is
        charged, so all gradients are computed at every step. A budget requires a declared
        ``sample_rate``, clipping and a single process. For the resulting guarantee, see
        :meth:`promise`; the leakage η̄ is then not available.
    checkpoint
        The file that stores the state of the run. If the file exists, :meth:`fit` resumes from it,
        with the same results as an uninterrupted run. With ``amplification="theorem4"``, the number
        of steps must not change, because the theorem's failure probability is divided among the
        steps.
    checkpoint_every
        The number of steps between checkpoints.
    evaluate_every
        The number of steps between evaluations of the accuracy; by default a twentieth of all
        steps.
    accounting
        Further arguments of :class:`~seepage.nn.FisherAccountant`: ``view``, ``probes``,
        ``amplification``, ``clip_derivative``, ``method``, ``scale``, ``individual``, ``sketch``,
        ``survey_every`` and so on.

    Attributes
    ----------
    accountant_
        The :class:`~seepage.nn.FisherAccountant` of the run.
    budgets_
        The budget that each record has spent, and the records that no longer take part
        (:class:`~seepage.nn.training.budgets.RecordBudgets`); ``None`` without ``budget``. Keep
        this secret: the budgets do not protect the fact that a record no longer takes part.
    history_
        A :class:`~seepage.nn.training.private_sgd.Progress` for every evaluation.

    Examples
    --------
    >>> import torch
    >>> import seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> X = torch.randn(200, 5)
    >>> y = (X[:, 0] > 0).long()
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> trainer = sp.nn.PrivateSGD(
    ...     net,
    ...     "cross_entropy",
    ...     steps=30,
    ...     sample_rate=0.25,
    ...     expected_batch=50,
    ...     lr=1.0,
    ... )
    >>> print(trainer.fit(X, y).accountant_.privacy(1e-5))
    (ε = 10.96, δ = 1e-05), to add or remove one record
    >>> trainer.accountant_.records("dfil").shape
    (200,)

    With a privacy budget instead of a noise multiplier, and epochs instead of steps:

    >>> declared = {"sample_rate": 0.25, "expected_batch": 50, "epochs": 5}
    >>> trainer = sp.nn.PrivateSGD(
    ...     net, "cross_entropy", lr=1.0, target_epsilon=8.0, target_delta=1e-5, **declared
    ... )
    >>> trainer  # doctest: +NORMALIZE_WHITESPACE
    <PrivateSGD: 20 steps, sample_rate=0.25, expected_batch=50, noise_multiplier=1.08,
    max_grad_norm=1, (ε = 8, δ = 1e-05) to add or remove one record; not fitted>
    """

    def __init__(
        self,
        net: nn.Module,
        loss: str | nn.Module | Loss,
        *,
        steps: int | None = None,
        epochs: float | None = None,
        sample_rate: float | None = None,
        expected_batch: float | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        optimizer: MakeOptimizer | None = None,
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        max_grad_norm: float = 1.0,
        clip: str | Clip = "hard",
        sampling: str = "poisson",
        seed: int | None = None,
        randomness: str = "secure",
        budget: Budget | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 100,
        evaluate_every: int | None = None,
        **accounting: Any,
    ) -> None:
        takers = (PrivateSGD, FisherAccountant)
        options = (name for taker in takers for name in inspect.signature(taker).parameters)
        known = [name for name in options if name not in OWN]
        check_options(accounting, known, "PrivateSGD")
        if (steps is None) == (epochs is None):
            raise InputError(
                "Give either steps=, the number of batches, or epochs=, the number of passes over "
                "the data."
            )
        if epochs is not None:
            check_positive(epochs, "epochs")
        counts = (steps, checkpoint_every, evaluate_every)
        if any(count is not None and count < 1 for count in counts):
            raise InputError("steps, checkpoint_every and evaluate_every must be at least one.")
        check_choice(randomness, "randomness", ("secure", "fast"))
        check_declared(sample_rate, expected_batch, batch_size, sampling)
        check_target(target_epsilon, target_delta, noise_multiplier, budget)
        own = (lr, momentum, weight_decay)
        if optimizer is not None and own != (None, None, None):
            raise InputError(
                "lr, momentum and weight_decay apply only to the trainer's own update; pass them "
                "to the optimizer instead: functools.partial(torch.optim.AdamW, lr=1e-3)."
            )
        lr = 0.1 if lr is None else lr
        momentum, weight_decay = (0.0 if each is None else each for each in own[1:])
        if noise_multiplier is None and target_epsilon is None:
            noise_multiplier = 1.0
        if noise_multiplier is not None:
            check_noise(noise_multiplier)
        rates = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        for name, value in (rates | {"max_grad_norm": max_grad_norm}).items():
            check_number(value, name)
        if not (lr > 0 and 0 <= momentum < 1 and weight_decay >= 0):
            raise InputError(
                "lr must be above zero, momentum in [0, 1), and weight_decay at least zero."
            )
        self.net = net
        self.loss = loss
        # Plain numbers from here on, since a checkpoint holds no others.
        self.epochs = None if epochs is None else float(epochs)
        self.batch_size = plain_setting(batch_size)
        self.sample_rate = None if sample_rate is None else float(sample_rate)
        self.expected_batch = None if expected_batch is None else float(expected_batch)
        self.lr = float(lr)
        self.momentum = float(momentum)
        self.weight_decay = float(weight_decay)
        self.optimizer = optimizer
        self.target_epsilon = None if target_epsilon is None else float(target_epsilon)
        self.target_delta = None if target_delta is None else float(target_delta)
        self.max_grad_norm = float(max_grad_norm)
        self.clip = clip
        self.sampling = sampling
        self.seed = plain_setting(seed)
        self.randomness = randomness
        self.budget = None if budget is None else checked_budget(budget)
        if budget is not None and batch_size is not None:
            raise InputError(
                "With batch_size, the sampling rate depends on the number of records, but budget= "
                "requires a rate that does not change when a record is added or removed. Declare "
                "sample_rate and expected_batch instead."
            )
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.checkpoint_every = int(checkpoint_every)
        self.accounting = accounting
        # Nothing is left open, or what epochs and a target mean for a batch size is set by fit()
        self.steps = int(steps or 0)
        self.noise_multiplier = math.nan if noise_multiplier is None else float(noise_multiplier)
        self.evaluate_every = int(evaluate_every or 0)
        if self.sample_rate is not None:
            self._settle(self.sample_rate, 1)

    def _settle(self, rate: float, records: int) -> None:
        """Derive the number of steps from the epochs, and the noise from the target."""
        if not self.steps:
            # Rounded first, so that 5 passes at a rate of 0.2 are 25 steps on every processor.
            self.steps = math.ceil(round((self.epochs or 0) / rate, 6))
        self.evaluate_every = self.evaluate_every or max(1, self.steps // 20)
        if math.isnan(self.noise_multiplier):
            self.noise_multiplier = noise_for_target(
                (self.target_epsilon or 0.0, self.target_delta or 0.0),
                make_clip(self.clip, self.max_grad_norm),
                steps=self.steps,
                sampling=self.sampling,
                rate=rate,
                declared=self.batch_size is None,
                n=records,
            )

    def __repr__(self) -> str:
        steps = counted(self.steps, "step") if self.steps else f"epochs={self.epochs:g}"
        names = ("sample_rate", "expected_batch", "batch_size", "noise_multiplier", "max_grad_norm")
        known = [(name, getattr(self, name)) for name in names]
        said = [f"{n}={v:.4g}" for n, v in known if v is not None and not math.isnan(v)]
        if self.target_epsilon is not None:
            change = ADD_OR_REMOVE if self.batch_size is None else REPLACE
            promised = f"(ε = {self.target_epsilon:.4g}, δ = {self.target_delta:.3g})"
            said.append(f"{promised} to {change}")
        if self.budget is not None:
            said.append(f"budget {self.budget}")
        done = getattr(self, "_step", None)
        state = "not fitted" if done is None else f"{counted(done, 'step')} taken"
        words = f"{', '.join([steps, *said])}; {state}"
        return f"<PrivateSGD: {marked(words, conditions_of([self._randomness()]))}>"

    def fit(self, X: Any, y: Any = None, X_test: Any = None, y_test: Any = None) -> PrivateSGD:
        """Train on the records ``X`` with targets ``y``; test data serve only to measure accuracy.

        ``X`` may be a mapping from the names of the network's arguments to tensors with one row per
        record, as a data collator returns it. The ``labels`` in ``X`` are then the targets.
        """
        X, y = _records(X, y, "X", "y")
        test = None if X_test is None and y_test is None else _test_data(X_test, y_test)
        if self.batch_size is not None:
            self._settle(min(1.0, self.batch_size / len(y)), len(y))
        self._begin(X, y)
        device = next(self.net.parameters()).device
        bar = tqdm(
            total=self.steps,
            initial=self._step,
            desc="private SGD",
            unit="step",
            delay=2,
            disable=True if process_rank() > 0 else None,
            leave=False,
        )
        with bar:
            while self._step < self.steps:
                self._take_step(X, y, device)
                bar.update()
                last = self._step == self.steps
                if last or self._step % self.evaluate_every == 0:
                    self._evaluate(test, bar)
                if self.checkpoint and (last or self._step % self.checkpoint_every == 0):
                    self._write()
        self._gradients.gather()
        return self

    def promise(self) -> Budget:
        """Return the guarantee for every record in a run with ``budget``, and its conditions.

        The budget that a single record has spent is secret and is not a guarantee.
        """
        if self.budget is None:
            raise InputError(
                "promise() applies only to runs with budget=; for this run, use "
                "accountant_.privacy(delta)."
            )
        origin = conditions_of([self._randomness()])
        said = (*self.budget.assumptions, GUARANTEED[0], *CONDITIONS, *origin)
        return replace(self.budget, assumptions=said, guarantee=not mark_of(origin))

    def _begin(self, X: Inputs, y: Tensor) -> None:
        """Set up a new run, or resume the run in the checkpoint."""
        stored = None
        if self.checkpoint and self.checkpoint.exists():
            remove_half_written(self.checkpoint)
            stored = read_checkpoint(self.checkpoint)
        self._stream = self._own_stream(resumed=stored is not None)
        released = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        rates = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        own = partial(torch.optim.SGD, lr=self.lr, **rates)
        self._update = PrivateUpdate(released, self.optimizer or own)
        self._facts = self._settings() | {"data": data_fingerprint(X, y)}
        check_agreement((self._facts, self.steps, stored and stored[1]["step"]))
        self._step = 0
        self.history_: list[Progress] = []
        self._gradients = PrivateGradients(
            self.net,
            self.loss,
            n=len(y),
            steps=self.steps,
            batch_size=self.batch_size,
            sample_rate=self.sample_rate,
            expected_batch=self.expected_batch,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.max_grad_norm,
            clip=self.clip,
            sampling=self.sampling,
            seed=self._stream if self.seed is None else self.seed,
            randomness=self.randomness,
            **self.accounting,
        )
        self._sampler = self._gradients.sampler
        self.accountant_ = self._gradients.accountant_
        self.accountant_.target_delta = self.target_delta
        self.budgets_ = self._budgets(len(y))
        if stored:
            self._resume(*stored)
        self.accountant_.check.trust()
        some = slice(math.ceil(self._sampler.batch_size))
        device = next(self.net.parameters()).device
        self._gradients.look_at(*_taken(X, y, some, device))

    def _budgets(self, records: int) -> RecordBudgets | None:
        """Return the records' budgets, or ``None`` if the run has no ``budget``."""
        if self.budget is None:
            return None
        if world_size() > 1:
            raise InputError(
                "Budgets are supported only in a single process; train without torchrun."
            )
        clip = self.accountant_.clip
        self.accountant_.filtered = True
        return RecordBudgets(
            self.budget,
            records=records,
            sample_rate=self.accountant_.sample_rate,
            noise=self.noise_multiplier * clip.max_grad_norm,
            sensitivity=clip.sensitivity,
        )

    def _own_stream(self, resumed: bool) -> KeyedStream:
        """Return the random stream for the batches, noise and probes of this run."""
        if self.seed is not None:
            return KeyedStream.of_seed(self.seed)
        if self.checkpoint is None:
            return shared_stream()
        if resumed:
            return read_key(self.checkpoint)
        stream = shared_stream()
        if process_rank() == 0:
            write_key(self.checkpoint, stream)
        return stream

    def _randomness(self) -> str:
        """Return the ledger's name for the source of noise and batches."""
        return origin_of(self.seed is not None, self.randomness)

    def _take_step(self, X: Inputs, y: Tensor, device: torch.device) -> None:
        index = self._gradients.own_records(self._step)
        if self.budgets_ is not None:
            # The sum is still divided by the declared size of a batch, whoever takes part.
            index = self.budgets_.taking_part(index, partial(self._lengths, X, y, device))

        def everyone() -> Iterator[tuple[Tensor, Inputs, Tensor]]:
            for rows in torch.arange(len(y)).split(AT_A_TIME):
                yield rows, *_taken(X, y, rows, device)

        batch = _taken(X, y, index, device)
        self._update.take(self._gradients.noisy_mean(index, *batch, everyone)[1])
        self._step += 1

    def _lengths(self, X: Inputs, y: Tensor, device: torch.device, rows: Tensor) -> Tensor:
        """Return the norms of the selected records' clipped gradients at the current parameters."""
        engine = self.accountant_.engine
        parts = [
            engine.norms(*_taken(X, y, part, device)) for part in rows.split(AT_A_TIME) if len(part)
        ]
        norms = torch.cat(parts) if parts else torch.zeros(0)
        return norms * engine.clip.factor(norms)

    def _evaluate(self, test: tuple[Inputs, Tensor] | None, bar: Any) -> None:
        accuracy = None
        if test is not None and not test[1].is_floating_point():
            accuracy = measure_accuracy(self.net, *test)
        whole = self.accountant_ if world_size() == 1 else gather_shares(self.accountant_)
        mu = float(np.max(whole.individual_loss().mu()))
        condition = mark_of(conditions_of([self._randomness()]))
        now = Progress(self._step, accuracy, whole.worst(), mu, condition)
        self.history_.append(now)
        if not bar.disable:
            shown = {} if accuracy is None else {"accuracy": f"{100 * accuracy:.2f} %"}
            # Few orders are enough for a progress bar.
            so_far = self.accountant_.privacy(1e-5, orders=(2, 3, 4, 6, 8, 12, 16, 24, 32, 64))
            shown["ε at δ = 1e-5"] = f"{so_far.epsilon:.3g}"
            if condition:
                shown["ε at δ = 1e-5"] += f" ({condition.partition(':')[0]})"
            shown["worst dFIL"] = f"{now.worst_dfil:.3g}"
            shown["worst μ"] = f"{now.worst_mu:.3g}"
            bar.set_postfix(shown)

    def _settings(self) -> dict[str, Any]:
        """Return the settings that must equal those in a checkpoint, for the run to resume."""
        own = {name: plain_setting(getattr(self, name)) for name in _SETTINGS.split()}
        own |= self._update.settings() | {"loss": loss_name(self.loss)}
        own["budget"] = None if self.budget is None else repr(self.budget)
        more = {name: plain_setting(value) for name, value in sorted(self.accounting.items())}
        return own | {"accounting": more, "seed or key": self._stream.fingerprint()}

    def _write(self) -> None:
        assert self.checkpoint is not None  # noqa: S101 - asked before
        state = whole_state(self.accountant_)
        kept, update_facts = self._update.state()
        network = {name: put_together(held) for name, held in self.net.state_dict().items()}
        if process_rank() > 0:
            return
        budget = self.accountant_.amplification.budget
        facts = self._facts | {
            "theorem4_steps": None if budget is None else budget.steps,
            "step": self._step,
            "update": update_facts,
            "accountant": state.pop("facts"),
            "history": [asdict(now) for now in self.history_],
            "chunk": self.accountant_.engine.chunks.found,
        }
        tensors = {f"accountant.{name}": tensor for name, tensor in state.items()}
        tensors |= {f"net.{name}": tensor for name, tensor in network.items()}
        tensors |= {f"update.{name}": tensor for name, tensor in kept.items()}
        if self.budgets_ is not None:
            tensors |= {f"budgets.{name}": held for name, held in self.budgets_.state().items()}
        write_checkpoint(self.checkpoint, tensors, facts)

    def _resume(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        assert self.checkpoint is not None  # noqa: S101 - it was read
        check_same_run(self.checkpoint, facts, self._facts, self.steps)
        parts: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            parts[kind][rest] = tensor
        held = self.net.state_dict()
        if {n: t.shape for n, t in parts["net"].items()} != {n: t.shape for n, t in held.items()}:
            raise InputError(
                f"{self.checkpoint} contains a network with different parameters; name another "
                "checkpoint, or delete this one."
            )
        self.net.load_state_dict({n: spread_like(held[n], t) for n, t in parts["net"].items()})
        self._update.go_on(parts["update"], facts["update"])
        if self.budgets_ is not None:
            self.budgets_.go_on(parts["budgets"])
        self.accountant_.load_state_dict(parts["accountant"] | {"facts": facts["accountant"]})
        # The settings are the same for all steps, so a checkpoint that did not say so can be told.
        self.accountant_.ledger.declare(self._randomness())
        keep_one_share(self.accountant_)
        # Chunk sizes depend on free memory; keep those of the checkpoint, for the same rounding.
        self.accountant_.engine.chunks.found = facts["chunk"]
        self._step = facts["step"]
        condition = mark_of(conditions_of([self._randomness()]))
        self.history_ = [Progress(**now | {"condition": condition}) for now in facts["history"]]


def _records(X: Any, y: Any, name: str, target: str) -> tuple[Inputs, Tensor]:
    """Return records and targets as tensors, after checking that each record has one target."""
    if isinstance(X, Mapping):
        X = {key: torch.as_tensor(value) for key, value in X.items()}
        y = labels_of(X) if y is None else y
    elif y is None:
        raise InputError(f"{target} is missing; give one target for each record of {name}.")
    X, y = X if isinstance(X, Mapping) else torch.as_tensor(X), torch.as_tensor(y)
    count = batch_size(X)
    if any(len(value) != count for value in leaves(X)):
        raise InputError(
            f"The tensors in {name} have different numbers of records; make their first axes equal."
        )
    if count != len(y):
        raise InputError(
            f"{name} has {counted(count, 'record')}, but {target} has {counted(len(y), 'target')}; "
            "give one target for each record."
        )
    return X, y


def _test_data(X: Any, y: Any) -> tuple[Inputs, Tensor]:
    if X is None or (y is None and not isinstance(X, Mapping)):
        missing = "X_test" if X is None else "y_test"
        raise InputError(f"Test data require both X_test and y_test; also give {missing}.")
    X, y = _records(X, y, "X_test", "y_test")
    if isinstance(X, Mapping) and y.dim() > 1:
        raise InputError(
            "Accuracy is not measured for a model with one label per token; leave out the test "
            "data, and compute the test loss after fit()."
        )
    return X, y


def _taken(X: Inputs, y: Tensor, rows: Any, device: torch.device) -> tuple[Inputs, Tensor]:
    """Return the selected records, moved to a device."""
    return on_device(rows_of(X, rows), device), y[rows].to(device)


def measure_accuracy(net: nn.Module, X: Inputs, y: Tensor) -> float:
    """Return a network's accuracy; classes are along the last axis of its output.

    Examples
    --------
    >>> import torch
    >>> from seepage.nn.training.private_sgd import measure_accuracy
    >>> measure_accuracy(torch.nn.Identity(), torch.eye(4), torch.tensor([0, 1, 2, 0]))
    0.75
    """
    device = next((p.device for p in net.parameters()), y.device)
    right = 0
    with torch.no_grad(), evaluating(net):
        for rows in torch.arange(len(y)).split(AT_A_TIME):
            records, labels = _taken(X, y, rows, device)
            output = net(**records) if isinstance(records, Mapping) else net(records)
            right += int((numbers_of(output).argmax(-1) == labels).sum())
    return right / len(y)
