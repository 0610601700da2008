"""Private gradients for any training loop: Poisson batches, clipping, noise and the account.

A step's gradient is ``(Σ g̃ + N(0, (σC)²))/B``. Nothing that a loop's optimiser does with this
gradient adds leakage (post-processing). The clip and the noise multiplier are read from the
accountant.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from seepage.errors import InputError, accepts_other_names, check_options
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.nn.accounting.joining import keep_one_share, whole_state
from seepage.nn.accounting.processes import (
    own_part,
    process_rank,
    shared_stream,
    start_alike,
    summed,
    world_size,
)
from seepage.nn.accounting.run_identity import data_fingerprint
from seepage.nn.jacobian.engine import Step
from seepage.nn.privacy.randomness import FAST, SECURE, SEED, SEEDED_AND_FAST
from seepage.nn.privacy.run_privacy import Entry, least_noise
from seepage.nn.problem.clipping import Clip, make_clip
from seepage.nn.problem.own_loss import labels_of
from seepage.nn.problem.problem import Loss
from seepage.nn.problem.sharding import spread_like
from seepage.nn.problem.views import Inputs, evaluating, on_device
from seepage.nn.sampling.samplers import check_rate, make_sampler
from seepage.nn.training.checkpoints import read_key, write_key
from seepage.nn.training.numbered_batches import Collate, StepBatches, numbered_loader
from seepage.nn.training.secure_noise import quick_noise, secure_noise
from seepage.support.keyed_stream import KeyedStream
from seepage.support.number_check import (
    check_choice,
    check_noise,
    check_number,
    check_positive,
    check_share,
)
from seepage.tables.names import counted

AT_A_TIME = 1000  # records processed together outside of batches
OWN = ("n", "sampler")  # arguments of the accountant that are set for it
Everyone = Callable[[], Iterable[tuple[Any, Any, Tensor]]]


@accepts_other_names
class PrivateGradients:
    """Draws batches, and writes noisy gradients for the optimiser of any training loop.

    Three lines of a training loop change: this object is created, :meth:`loader` replaces the
    loader, and :meth:`backward` replaces ``loss.backward()``. The network runs without dropout. If
    there are several processes (``torchrun``), they share every batch, and all of them receive the
    same gradient.

    Parameters
    ----------
    net, loss
        As for :class:`~seepage.nn.FisherAccountant`.
    n
        The number of training records.
    steps
        The number of steps; required with ``target_epsilon``. With ``amplification="theorem4"``,
        the failure probability is divided equally among these steps.
    sample_rate, expected_batch, batch_size, sampling
        As for :class:`~seepage.nn.PrivateSGD`: either the declared rate and divisor, or a batch
        size. With a batch size, ``n`` counts as public.
    noise_multiplier, max_grad_norm, clip
        The noise multiplier σ (1 by default), the clipping threshold C, and how gradients are
        clipped.
    target_epsilon, target_delta
        A privacy budget (ε, δ) for ``steps`` steps, instead of ``noise_multiplier``.
    seed, randomness
        As for :class:`~seepage.nn.PrivateSGD`. By default, batches and noise come from a 256-bit
        key. The noise also depends on the sum to which it is added. No noise is therefore used
        twice if a run is resumed with other data or settings.
    key_folder
        The folder in which :meth:`state_dict` stores that key, which is needed to resume the run.
        Keep the key file secret, and delete it after the run.
    accounting
        Further arguments of :class:`~seepage.nn.FisherAccountant`.

    Attributes
    ----------
    accountant_
        The :class:`~seepage.nn.FisherAccountant` of the run.

    Examples
    --------
    >>> import torch
    >>> import seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> X, y = torch.randn(200, 5), torch.randint(2, (200,))
    >>> data = torch.utils.data.TensorDataset(X, y)
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    >>> private = sp.nn.PrivateGradients(
    ...     net, "cross_entropy", n=200, sample_rate=0.25, expected_batch=50
    ... )
    >>> for x, target in private.loader(data):
    ...     seen = private.backward(x, target)
    ...     optimizer.step()
    >>> print(private.accountant_.privacy(1e-5))
    (ε = 4.871, δ = 1e-05), to add or remove one record
    """

    def __init__(
        self,
        net: nn.Module,
        loss: str | nn.Module | Loss,
        *,
        n: int,
        steps: int | None = None,
        sample_rate: float | None = None,
        expected_batch: float | None = None,
        batch_size: int | None = None,
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        max_grad_norm: float = 1.0,
        clip: str | Clip = "hard",
        sampling: str = "poisson",
        seed: int | KeyedStream | None = None,
        randomness: str = "secure",
        key_folder: str | os.PathLike[str] | None = None,
        **accounting: Any,
    ) -> None:
        takers = (type(self), FisherAccountant)
        known = [name for taker in takers for name in inspect.signature(taker).parameters]
        check_options(accounting, [name for name in known if name not in OWN], "PrivateGradients")
        check_choice(randomness, "randomness", ("secure", "fast"))
        check_declared(sample_rate, expected_batch, batch_size, sampling)
        check_target(target_epsilon, target_delta, noise_multiplier)
        check_number(max_grad_norm, "max_grad_norm")
        if target_epsilon is not None and target_delta is not None:
            if steps is None:
                raise InputError(
                    "target_epsilon is a budget for the whole run; also give steps=, the number of "
                    "batches."
                )
            rate = min(1.0, batch_size / n) if batch_size is not None else sample_rate
            assert rate is not None  # noqa: S101 - one of the two was given
            noise_multiplier = noise_for_target(
                (target_epsilon, target_delta),
                make_clip(clip, max_grad_norm),
                steps=steps,
                sampling=sampling,
                rate=rate,
                declared=batch_size is None,
                n=n,
            )
        noise_multiplier = 1.0 if noise_multiplier is None else noise_multiplier
        check_noise(noise_multiplier)
        self.net, self.randomness = net, randomness
        self.divisor = batch_size if expected_batch is None else expected_batch
        self._sampling, self._batch_size, self._rate = sampling, batch_size, sample_rate
        self._seeded = isinstance(seed, int)
        # A caller that passes a stream checks by itself that a resumed run is the same run.
        self._tied = seed is None
        self._key_folder = None if key_folder is None else Path(key_folder)
        self.released = {name: p for name, p in net.named_parameters() if p.requires_grad}
        start_alike(net)
        if isinstance(seed, KeyedStream):
            stream = seed
        else:
            stream = shared_stream() if seed is None else KeyedStream.of_seed(seed)
        self.accountant_ = FisherAccountant(
            net,
            loss,
            n=n,
            batch_size=batch_size,
            sample_rate=sample_rate,
            noise_multiplier=float(noise_multiplier),
            max_grad_norm=float(max_grad_norm),
            clip=clip,
            sampler=sampling,
            seed=stream.child("probes").number(),
            randomness=origin_of(self._seeded, randomness),
            **{"steps": steps} | accounting,
        )
        self.accountant_.target_delta = target_delta
        self.accountant_.check.trust()
        self._follow(stream)
        self._served: deque[tuple[int, Tensor]] = deque()  # batches that were read, in order
        self._everyone: Everyone | None = None
        self._data: str | None = None

    def _follow(self, stream: KeyedStream) -> None:
        """Set the stream from which batches, noise and probes are drawn."""
        self.stream = stream
        self.sampler = make_sampler(
            self._sampling, self.accountant_.n, self._batch_size, stream, self._rate
        )
        self.accountant_.engine.seed = stream.child("probes").number()

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return self.accountant_.steps

    @property
    def epoch_steps(self) -> int:
        """The number of steps in which every record is drawn once on average."""
        return math.ceil(round(1 / self.sampler.sample_rate, 6))

    def __repr__(self) -> str:
        planned = self.accountant_.ledger if self.steps else "no step taken"
        return f"<PrivateGradients of {counted(self.accountant_.n, 'record')}: {planned}>"

    def loader(self, records: Any, collate: Collate = default_collate, **options: Any) -> Loader:
        """Return a loader for the batches of one epoch, which ``collate`` makes from records.

        Iterate over the loader once per epoch. After :meth:`load_state_dict`, the loader continues
        with the next step. Do not shard the loader: each process already reads its own part of
        every batch.

        Parameters
        ----------
        records
            The training data, such as a torch ``Dataset`` with a length; record k is
            ``records[k]``, counted from 0.
        collate
            A function that makes a batch from a list of records.
        options
            Further arguments of torch's ``DataLoader``, for instance ``num_workers``.
        """
        self.look(records, collate)
        return Loader(self, records, collate, options)

    def look(self, records: Any, collate: Collate) -> None:
        """Check for kinks at the first records of the data, and set the size of finite steps."""
        if len(records) != self.accountant_.n:
            raise InputError(
                f"The data set has {counted(len(records), 'record')}, but n is "
                f"{self.accountant_.n}; give n=len(data)."
            )
        count = min(len(records), math.ceil(self.sampler.batch_size))
        first = records_and_targets(collate([records[k] for k in range(count)]))
        mark = data_fingerprint(*first)
        if self._data not in (None, mark):
            raise InputError(
                "The data are not those of the run that is resumed; resume with the same data."
            )
        self._data = mark
        device = self.device()
        with evaluating(self.net):
            self.look_at(*on_device(first, device))
        whole = {"batch_size": min(AT_A_TIME, len(records)), "collate_fn": collate}

        def everyone() -> Iterator[tuple[Any, Any, Tensor]]:
            start = 0
            for batch in DataLoader(records, **whole):
                x, y = on_device(records_and_targets(batch), device)
                yield torch.arange(start, start + len(y)), x, y
                start += len(y)

        self._everyone = everyone

    def look_at(self, x: Inputs, y: Tensor) -> None:
        """Check for kinks at these records, and set the size of finite steps.

        All processes use the same records here, although they later measure different records.
        """
        engine = self.accountant_.engine
        if engine.moves_parameters(x, y):
            engine.step_of_parameters(x, y)
        else:
            engine.takes_finite_steps(x, y)
            engine.step_size(x, y)

    def own_records(self, step: int) -> Tensor:
        """Return the records of a step's batch that this process observes."""
        return own_part(self.sampler.batch(step))

    def device(self) -> torch.device:
        """Return the device of the network."""
        return next(self.net.parameters()).device

    def serve(self, step: int, index: Tensor) -> None:
        """Store which records are in a step's batch, for :meth:`backward`."""
        self._served.append((step, index))

    def forget_served(self) -> None:
        """Discard batches that were read but not used."""
        self._served.clear()

    def backward(self, x: Any, y: Tensor | None = None, *, index: Tensor | None = None) -> Step:
        """Account for the batch, and write the noisy gradient into the parameters' ``.grad``.

        Parameters
        ----------
        x, y
            The batch as the loader returned it. The targets of a mapping are its ``labels``.
        index
            The numbers of the records; omit them for batches from :meth:`loader`.

        Returns
        -------
        Step
            The losses, norms and traces of the batch. Keep them secret: no noise protects them.
        """
        if index is None:
            index = self._next_served()
        x, y = on_device(records_and_targets(x if y is None else (x, y)), self.device())
        with evaluating(self.net):
            seen, gradient = self.noisy_mean(index, x, y, self._everyone)
        write_gradients(self.released, gradient)
        return seen

    def _next_served(self) -> Tensor:
        while self._served:
            step, index = self._served.popleft()
            if step == self.steps:
                return index
            if step > self.steps:
                raise InputError(
                    f"The batch of step {step} was given for step {self.steps}; call backward() "
                    "for every batch of the loader, in order."
                )
        raise InputError(
            "backward() was called for a batch that the loader did not draw. "
            "Take the batches from loader(data), and call backward() once for each."
        )

    def noisy_mean(
        self, index: Tensor, x: Inputs, y: Tensor, everyone: Everyone | None = None
    ) -> tuple[Step, dict[str, Tensor]]:
        """Account for a step; return its measurements and the noisy mean of clipped gradients."""
        accountant, step = self.accountant_, self.steps
        if accountant.passes is not None and everyone is not None:
            accountant.survey(everyone())
        seen = accountant.observe(index, x, y, update=True)
        if len(y):  # collators pad to the longest record of a batch; the longest of all counts
            accountant.unknowns = max(accountant.unknowns, accountant.engine.unknowns(x, y))
        gradient = summed(seen.gradient)
        deviation = accountant.noise_multiplier * accountant.clip.max_grad_norm
        kind = secure_noise if self.randomness == "secure" else quick_noise
        stream = self.stream
        if self._tied:  # a run that is continued in two ways must not use a noise twice
            marks = torch.stack([_checksum(total) for total in gradient.values()])
            stream = stream.child("sum", *marks.tolist())
        add_noise = kind(stream, step)
        noisy = {n: add_noise(n, total, deviation) / self.divisor for n, total in gradient.items()}
        return seen, noisy

    def gather(self) -> None:
        """Combine the accounts of all processes, in every process, at the end of training."""
        if world_size() > 1:
            self.accountant_.load_state_dict(whole_state(self.accountant_))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run, without its key, as tensors and as text under ``"facts"``.

        Every process must call this method. The training loop itself must store the network and the
        optimiser.
        """
        if not self._seeded:
            if self._key_folder is None:
                raise InputError(
                    "A run can be resumed only with its key; give key_folder=, the folder in which "
                    "to store the key."
                )
            if process_rank() == 0:
                write_key(self._key_file(self.stream.fingerprint()), self.stream)
        state = whole_state(self.accountant_)
        facts = {
            "accountant": state.pop("facts"),
            "seed or key": self.stream.fingerprint(),
            "divisor": float(self.divisor or 0),
            "randomness": self.randomness,
            "data": self._data,
            "chunk": self.accountant_.engine.chunks.found,
        }
        return state | {"facts": json.dumps(facts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that :meth:`state_dict` returned, with the same data and settings."""
        facts = json.loads(state["facts"])
        mark = facts["seed or key"]
        if mark != self.stream.fingerprint() and not self._seeded:
            if self._key_folder is None:
                raise InputError(
                    "The state belongs to a run with another key; give key_folder=, the folder "
                    "with that key."
                )
            self._follow(read_key(self._key_file(mark)))
        mine = {
            "seed or key": self.stream.fingerprint(),
            "divisor": float(self.divisor or 0),
            "randomness": self.randomness,
            "data": self._data if self._data is not None else facts["data"],
        }
        for name, value in mine.items():
            if facts[name] != value:
                raise InputError(
                    f"The state belongs to another run: its {name} is {facts[name]!r}, not "
                    f"{value!r}; resume with the same data and settings."
                )
        self._data = facts["data"]
        sums = {name: value for name, value in state.items() if name != "facts"}
        self.accountant_.load_state_dict(sums | {"facts": facts["accountant"]})
        keep_one_share(self.accountant_)
        # Chunk sizes depend on free memory; keep those of the run, for the same rounding.
        self.accountant_.engine.chunks.found = facts["chunk"]
        self.forget_served()

    def _key_file(self, mark: str) -> Path:
        # Hugging Face uploads no file whose name begins with an underscore.
        assert self._key_folder is not None  # noqa: S101 - asked before
        return self._key_folder / f"_noise-{mark}"


class Loader:
    """One epoch of batches, from the next step on; made by :meth:`PrivateGradients.loader`.

    This class is not a torch ``DataLoader``, so that no library shards or shuffles it.
    """

    def __init__(
        self, private: PrivateGradients, records: Any, collate: Collate, options: Mapping[str, Any]
    ) -> None:
        self.private, self.dataset = private, records
        batches = StepBatches(private.own_records, lambda: self.private.steps, private.epoch_steps)
        self._batches = numbered_loader(records, batches, collate, **options)

    def __len__(self) -> int:
        return self.private.epoch_steps

    def __iter__(self) -> Iterator[Any]:
        self.private.forget_served()
        start = self.private.steps
        for step, (index, batch) in enumerate(self._batches, start):
            self.private.serve(step, index)
            yield batch


def write_gradients(released: Mapping[str, nn.Parameter], gradient: Mapping[str, Tensor]) -> None:
    """Set the ``.grad`` of every parameter, sharded like the parameter."""
    for name, parameter in released.items():
        parameter.grad = spread_like(parameter, gradient[name].to(parameter.dtype))


def records_and_targets(batch: Any) -> tuple[Inputs, Tensor]:
    """Return the inputs and the targets of a batch, which is a pair or a mapping with labels."""
    if isinstance(batch, Mapping):
        x = dict(batch)
        return x, labels_of(x)
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise InputError(
        "A batch must be a pair of inputs and targets, or a mapping with labels. Set collate= to a "
        "function that makes such a batch from a list of records."
    )


def _checksum(total: Tensor) -> Tensor:
    """Return a checksum of a tensor's bits, computed on its device, in exact integer arithmetic."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = total.detach().contiguous().flatten().view(kinds[total.dtype.itemsize]).long()
    # A sum with pseudo-random odd weights (mixed as in SplitMix64), modulo 2⁶⁴
    odd = -7046029254386353131
    weights = (torch.arange(len(bits), device=bits.device) + 1) * odd
    weights = ((weights ^ (weights >> 30)) * odd) | 1
    return (bits * weights).sum()


def origin_of(seeded: bool, randomness: str) -> str:
    """Return the ledger's name for the source of noise and batches."""
    if not seeded:
        return SECURE if randomness == "secure" else FAST
    return SEED if randomness == "secure" else SEEDED_AND_FAST


def noise_for_target(
    target: tuple[float, float],
    clip: Clip,
    *,
    steps: int,
    sampling: str,
    rate: float,
    declared: bool,
    n: int,
) -> float:
    """Return the smallest noise multiplier with which a run is within a target (ε, δ)."""
    length = (clip.max_grad_norm, clip.sensitivity)
    planned = Entry(steps, sampling, rate, 1.0, *length, n, SECURE, declared)
    return least_noise(planned, *target)


def check_declared(rate: Any, expected: Any, batch_size: Any, sampling: str) -> None:
    """Raise an error unless batches are declared by sampling rate and divisor, or by size alone."""
    if batch_size is not None:
        if rate is not None or expected is not None:
            raise InputError(
                "Give either sample_rate and expected_batch, or batch_size alone. With batch_size "
                "the rate depends on the number of records, which then counts as public."
            )
        return
    if rate is None or expected is None:
        raise InputError(
            "Declare sample_rate and expected_batch, for instance sample_rate=0.01, "
            "expected_batch=600: the probability that a record is in a batch, and the number by "
            "which sums are divided. With batch_size=600 instead, the number of records counts as "
            "public."
        )
    if sampling != "poisson":
        raise InputError(
            "A declared sample_rate implies Poisson batches; leave out sampling, or give "
            "batch_size for batches of equal size."
        )
    check_number(rate, "sample_rate")
    check_rate(rate)
    check_positive(expected, "expected_batch")


def check_target(epsilon: Any, delta: Any, noise: Any, budget: Any = None) -> None:
    """Raise an error unless a privacy target has both ε and δ, without other noise settings."""
    if epsilon is None and delta is None:
        return
    if epsilon is None or delta is None:
        raise InputError(
            "target_epsilon and target_delta form one guarantee: give both, for instance "
            "target_epsilon=8.0, target_delta=1e-5, with δ far below 1/(number of records)."
        )
    if noise is not None or budget is not None:
        raise InputError(
            "target_epsilon determines the noise; leave out noise_multiplier and budget, or leave "
            "out target_epsilon and target_delta."
        )
    check_positive(epsilon, "target_epsilon")
    check_share(delta, "target_delta")
