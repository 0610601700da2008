"""The accountant for private SGD, which sums the leakage of every step about each record.

By theorem 3 of Guo et al. (2022), the information of a whole run about a record is at most the
expected sum of the information of the run's steps. Quantities computed from the noisy gradients
(momentum, averages, the model itself) add no information. For each step and record, ``I = κ
J̃ᵀJ̃/(σC)²``, where ``J̃ = ∂g̃/∂z`` and κ is the amplification factor for hidden batches
(``sampling/amplification``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from seepage.errors import InputError, accepts_other_names
from seepage.nn.accounting.measured_run import MeasuredRun, read_facts
from seepage.nn.accounting.processes import own_part, world_size
from seepage.nn.accounting.radial_part import RadialSample
from seepage.nn.accounting.run_identity import describe_measurement
from seepage.nn.accounting.spectrum_sketch import SpectrumSketch
from seepage.nn.accounting.survey import Survey
from seepage.nn.jacobian.engine import Engine, Step
from seepage.nn.jacobian.finite_changes import StepErrors
from seepage.nn.jacobian.parameter_steps import ParameterStep
from seepage.nn.privacy.randomness import UNSTATED, check_randomness
from seepage.nn.privacy.run_privacy import Entry
from seepage.nn.problem.clipping import Clip, NoClip, make_clip
from seepage.nn.problem.problem import Loss
from seepage.nn.problem.views import View, rows_of, sent_to
from seepage.nn.sampling.amplification import Amplification, FailureBudget
from seepage.nn.sampling.batch_check import SamplerCheck, checked_index
from seepage.nn.sampling.samplers import OTHER, POISSON, SAMPLERS, check_rate
from seepage.support.number_check import check_choice, check_count, check_noise


@accepts_other_names
class FisherAccountant(MeasuredRun):
    """Accounts for the leakage of a training run, record by record.

    Call :meth:`observe` with every batch before the update. Results are available at any time, at
    little cost, from :meth:`records`, :meth:`privacy`, :meth:`individual_privacy` and ``ledger``.
    An accountant is a :class:`~seepage.nn.MeasuredRun` that also stores the network in training.

    Parameters
    ----------
    net
        The network in training. The gradients of its parameters with ``requires_grad`` are
        released.
    loss
        ``"cross_entropy"``, ``"mse"``, a torch loss module, or a function of output and target that
        returns one loss per record.
    n
        The number of training records.
    batch_size, sample_rate
        The (mean) batch size, or the probability that a record is in a batch; give one of the two.
        A sampling rate is *declared*: neither the rate nor the number by which the loop divides the
        sums may depend on ``n``. Guarantees then cover adding or removing a record. With a batch
        size, the rate is ``batch_size/n``, ``n`` counts as public, and guarantees cover replacing a
        record.
    noise_multiplier
        The noise multiplier σ. The noise added to the *sum* of clipped gradients has the standard
        deviation σC. σ may be changed between steps.
    max_grad_norm
        The clipping threshold C.
    clip
        ``"hard"`` as in most loops, ``"smooth"`` as in Guo et al. 2022, ``"none"``, or a clip from
        :mod:`seepage.nn.problem.clipping`.
    sampler
        How batches are drawn: ``"poisson"``, ``"fixed"`` (independent sets of equal size), or
        ``"other"`` (for instance, shuffled epochs), for which there is no amplification.
    amplification
        The kind of amplification factor κ: ``"mixture"``, ``"theorem4"`` or ``"none"``; see
        :mod:`seepage.nn.sampling.amplification`. With ``clip="smooth"``,
        ``directions="coordinates"`` and ``probes=50``, ``"algorithm1"`` is algorithm 1 of Guo et
        al. 2022 exactly as printed; its result is not an upper bound.
    delta, steps
        For ``"theorem4"``, the probability that its factor fails over the whole run (by default
        ``1/n``), and the number of steps, if known, over which that probability is divided. For
        ``"algorithm1"``, ``delta`` is the δ of that algorithm.
    view
        The unknowns of a record; by default the whole input.
    probes
        The number of random probes per step. With two or more probes, standard errors are computed
        from the differences between a step's probes.
    clip_derivative
        How the clip factor's dependence on the record is computed: ``"exact"``, ``"conservative"``
        (a cheaper upper bound) or ``"sampled"``. ``"sampled"`` measures the dependence at one in 32
        steps, more often at first, and predicts it at all other steps (``radial_part.py``); the sum
        over a run is unbiased.
    method, scale
        How changes of the gradients are measured, as for :func:`~seepage.nn.leakage`: by
        derivatives or over finite steps of size ``scale``. By default, the first batch determines
        the scale; :class:`~seepage.nn.PrivateSGD` uses the first records of its data. Sketches
        always use derivatives. ``"parameters"``, the fastest method, perturbs the parameters of a
        smooth network; :class:`~seepage.nn.Engine` states when this method is the default.
    directions
        ``"signs"``, or ``"coordinates"`` for probes along single unknowns.
    individual
        Whether to account for the differential privacy of each record.
    sketch, sketch_records
        The number of leading directions of the information to store, and the records for which to
        store them (by default all), to bound the FIL of these records over the run.
    survey_every
        On average, one step in ``survey_every``, chosen at random, is preceded by a pass over all
        records (:meth:`survey`). The result for every record is then the mean leakage over batches
        redrawn at the run's iterates, not the leakage of the batches actually drawn. A pass costs
        as much as measuring ``n/batch_size`` steps.
    measure_every
        Measure each record at every ``measure_every``-th step in which it takes part, from a random
        start. A value of 4, for example, costs a quarter as much time for measuring as a value of
        1, and gives wider intervals. Gradient norms and the differential-privacy accounting still
        cover every step.
    chunk_size
        The number of records to process at once; ``"auto"`` chooses a number that fits in memory.
    seed
        The seed for the probes, not for the noise.
    randomness
        The origin of the loop's noise and batches, which the accountant cannot detect: ``"secure"``
        (cannot be regenerated), ``"seed"``, ``"fast"`` (a generator open to brute force, such as
        torch's), ``"seed and fast"``, or ``"unstated"``. Every statement about the run includes the
        resulting condition.

    Examples
    --------
    >>> import torch
    >>> import seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    >>> x, y = torch.randn(60, 4), torch.randint(3, (60,))
    >>> accountant = sp.nn.FisherAccountant(
    ...     net, "cross_entropy", n=60, batch_size=30, noise_multiplier=2.0, max_grad_norm=1.0
    ... )
    >>> for step in range(5):
    ...     index = torch.nonzero(torch.rand(60) < 0.5).flatten()  # Poisson batches of rate 1/2
    ...     seen = accountant.observe(index, x[index], y[index])  # then clip, add noise, update
    >>> accountant.records("dfil").shape, accountant.steps
    ((60,), 5)
    """

    def __init__(
        self,
        net: nn.Module,
        loss: str | nn.Module | Loss,
        *,
        n: int,
        batch_size: float | None = None,
        sample_rate: float | None = None,
        noise_multiplier: float,
        max_grad_norm: float = 1.0,
        clip: str | Clip = "hard",
        sampler: str = POISSON,
        amplification: str = "mixture",
        delta: float | None = None,
        steps: int | None = None,
        view: View | None = None,
        probes: int = 2,
        clip_derivative: str = "exact",
        method: str = "auto",
        scale: float | None = None,
        directions: str = "signs",
        individual: bool = True,
        sketch: int = 0,
        sketch_records: Sequence[int] | None = None,
        survey_every: int | None = None,
        measure_every: int = 1,
        chunk_size: int | str = "auto",
        seed: int = 0,
        randomness: str = UNSTATED,
    ) -> None:
        check_count(n, "n, the number of training records,")
        check_count(probes, "probes")
        check_count(measure_every, "measure_every")
        if sketch and probes < 2:
            raise InputError(
                f"A sketch requires at least two probes per step, not {probes}; give probes=2, or "
                "leave out sketch."
            )
        check_choice(sampler, "sampler", SAMPLERS)
        check_choice(clip_derivative, "clip_derivative", ("exact", "conservative", "sampled"))
        sampled = clip_derivative == "sampled"
        if sampled and (sketch or survey_every is not None or measure_every > 1):
            raise InputError(
                "clip_derivative='sampled' cannot be combined with sketch, survey_every or "
                "measure_every; choose 'exact' or 'conservative'."
            )
        if measure_every > 1 and (sketch or survey_every is not None):
            raise InputError(
                "Sketches and surveys need every step measured; leave out measure_every, or leave "
                "out sketch and survey_every."
            )
        passes = None
        if survey_every is not None:
            passes = Survey(int(n), survey_every, int(probes), seed, steps)
        if passes is not None and sampler == OTHER:
            raise InputError(
                "A survey estimates the mean over redrawn batches, so the sampling must be known; "
                "set sampler to 'poisson' or 'fixed', not 'other'."
            )
        check_noise(noise_multiplier)
        check_randomness(randomness)
        self.randomness = randomness
        self.filtered = False  # whether a record takes part only while its budget lasts
        self.sampler = sampler
        if (batch_size is None) == (sample_rate is None):
            raise InputError("Give exactly one of batch_size and sample_rate.")
        self.declared = batch_size is None and sampler == POISSON
        if batch_size is not None:
            sample_rate = batch_size / n
        assert sample_rate is not None  # noqa: S101 - one of the two was given
        self.sample_rate = float(sample_rate)
        check_rate(self.sample_rate)
        self.noise_multiplier = noise_multiplier
        self.engine = Engine(
            net,
            loss,
            clip=make_clip(clip, max_grad_norm),
            view=view,
            clip_derivative="conservative" if sampled else clip_derivative,
            method=method,
            scale=scale,
            directions=directions,
            chunk_size=chunk_size,
            seed=seed,
        )
        # The failure probability of theorem 4: by default 1/n, refused for a single record.
        budget = None
        if delta is not None or n > 1:
            budget = FailureBudget(1 / n if delta is None else delta, steps)
        self.amplification = Amplification(
            amplification, sampler, self.sample_rate, budget, self.clip.max_grad_norm
        )
        followed = range(n) if sketch_records is None else sketch_records
        super().__init__(
            int(n),
            int(probes),
            self.engine.view.describe(),
            individual=individual,
            sketch=SpectrumSketch(followed, sketch, n) if sketch else None,
            passes=passes,
            measure_every=measure_every,
            radial=RadialSample(int(n)) if sampled else None,
            measurement=describe_measurement(self.engine, method, scale, self.amplification)
            | ({"clip_derivative": clip_derivative} if sampled else {}),
        )
        share = n / world_size()
        self.check = SamplerCheck(sampler, self.sample_rate * share, share, shared=share < n)
        self._open = torch.zeros(0, dtype=torch.int64)  # records of an incomplete step
        self._repeats = 0
        self._surveyed = -1  # the step before which all records were last measured

    @property
    def clip(self) -> Clip:
        """The clip applied to the gradients."""
        return self.engine.clip

    @property
    def run(self) -> MeasuredRun:
        """The accountant itself, which is a measured run."""
        return self

    def observe(
        self,
        index: Sequence[int] | Tensor | Any,
        x: Any,
        y: Tensor,
        *,
        update: bool = False,
        more: bool = False,
    ) -> Step:
        """Account for a batch; call this before the update that uses the batch.

        Parameters
        ----------
        index
            The positions of the batch's records in the training data, ``(B,)``; may be empty.
        x, y
            The records' inputs and targets, in the form that the network and the loss expect.
        update
            Whether to return the sum of clipped gradients (``.gradient``) too, so that the loop
            need not compute it again.
        more
            Whether further parts of the same batch follow, if a large batch is passed in several
            parts.

        Returns
        -------
        Step
            The losses, gradient norms and traces of the batch.
        """
        chosen = checked_index(index, len(y), self.n, self._open)
        if self.passes is not None and self._survey_is_due(self.passes):
            raise InputError(
                f"With survey_every, all records must be measured before step {self.steps}; call "
                "survey(everyone) before every observe(). The call has an effect only at the steps "
                "chosen for a survey."
            )
        check_noise(self.noise_multiplier)
        entry, engine = self._entry(), self.engine
        company = engine.in_company(x, y)
        if len(company[1]):
            self._get_to_know(*company)
        shared = self.measure_every > 1 and len(chosen) > 0
        due = self.sums.due(chosen, engine.seed) if shared else None
        how = {"probes": self.probes, "key": self.ledger.steps, "index": chosen, "measured": due}
        sketched = self.sketch is not None and len(chosen) > 0
        # Sketches use derivatives even if the rest does not.
        apart = sketched and self.step_size > 0
        pulls = engine.step(x, y, pulls=True, **how).pulls if apart else None
        step = engine.step(x, y, update=update, pulls=sketched and not apart, **how)
        if apart:
            step = replace(step, pulls=pulls)
        if len(chosen):
            # Finite steps clip exactly.
            unclipped = isinstance(self.clip, NoClip) or self.radial is None
            sampled = not unclipped and engine.way(x, y) != "finite"
            if sampled:
                step = self._clipped_by_sample(
                    sent_to(chosen, step.norms.device), step, entry, x, y
                )
            self._account(chosen, step, entry, due)
        self._open = torch.cat((self._open, chosen))
        if not more:
            self.close_step()
        return step

    def survey(self, everyone: Iterable[tuple[Any, Any, Tensor]]) -> bool:
        """Measure all records if the next step was chosen for a survey; otherwise do nothing.

        With several processes, each process measures a part of the records.

        Parameters
        ----------
        everyone
            Batches of positions, inputs and targets that contain every record once, for instance a
            ``DataLoader`` of the training data. The batches are read only at the chosen steps.

        Returns
        -------
        bool
            Whether all records were measured.
        """
        if self.passes is None:
            raise InputError(
                "The accountant was created without survey_every; create it with survey_every=…."
            )
        if not self._survey_is_due(self.passes):
            return False
        shape = (2, 2, self.n)  # with and without κ, means and variances
        moments = torch.zeros(shape, dtype=torch.float64)
        seen = torch.zeros(self.n, dtype=torch.int64)
        for batch in everyone:
            if not isinstance(batch, tuple | list) or len(batch) != 3:
                raise InputError(
                    "survey takes an iterable of batches (positions, inputs, targets); for a "
                    "single batch, call survey([(index, x, y)])."
                )
            index, x, y = batch
            chosen = checked_index(index, len(y), self.n)
            seen[chosen] += 1
            mine = own_part(chosen)
            if len(mine) < len(chosen):  # other processes measure the rest
                rows = torch.isin(chosen, mine)
                x, y = rows_of(x, rows), y[rows.to(y.device)]
            company = self.engine.in_company(x, y)
            if not len(company[1]):
                continue
            self._get_to_know(*company)
            moments[:, :, mine] = self._mean_over_batches(x, y, mine).cpu()
        if not bool((seen == 1).all()):
            odd = int(torch.nonzero(seen != 1)[0])
            raise InputError(
                f"A survey must contain every record once, but record {odd} occurs "
                f"{int(seen[odd])} times; give each record once."
            )
        device = self.sums.uses.device
        amplified, plain = moments.to(device)
        self.passes.add(self.steps, (amplified[0], amplified[1]), (plain[0], plain[1]))
        self._surveyed = self.steps
        return True

    def _get_to_know(self, x: Any, y: Tensor) -> None:
        """Set the number of unknowns and the size of finite steps from the first records."""
        engine = self.engine
        if self.unknowns:
            if engine.measured_kinks and not self.step_size and engine.takes_finite_steps(x, y):
                self.step_size, self.finite_from = engine.step_size(x, y), self.steps
            return
        if engine.moves_parameters(x, y):
            self.doubt = engine.step_of_parameters(x, y).doubt
        elif engine.takes_finite_steps(x, y):
            if engine.scale is None and world_size() > 1:
                raise InputError(
                    "All processes must use finite steps of the same size; give them the same "
                    f"scale, for instance scale={engine.step_size(x, y):g}."
                )
            self.step_size, self.doubt = engine.step_size(x, y), engine.doubt
        self.unknowns = engine.unknowns(x, y)
        self.about = engine.view.describe()  # a model's own input is named once it has been seen

    def _mean_over_batches(self, x: Any, y: Tensor, index: Tensor) -> Tensor:
        """Return each record's expected leakage in a step, and its variance, with and without κ."""
        check_noise(self.noise_multiplier)
        noise, clip, key = self._entry().noise, self.clip, ("survey", self.steps)
        step = self.engine.step(x, y, probes=self.probes, key=key, index=index)
        lengths = step.norms * clip.factor(step.norms)
        factors = self.amplification.factors(lengths, noise, clip.sensitivity, self.steps + 1)
        traces = self.sample_rate * step.traces.double() / noise**2
        mean = traces.mean(1)
        variance = traces.var(1) / self.probes if self.probes > 1 else torch.zeros_like(mean)
        return torch.stack(
            (torch.stack((factors * mean, factors**2 * variance)), torch.stack((mean, variance)))
        )

    def _survey_is_due(self, passes: Survey) -> bool:
        if self._surveyed == self.steps or len(self._open):
            return False
        return passes.due(self.steps)

    def close_step(self) -> None:
        """Count the observed step as taken."""
        self.ledger.add(self._entry())
        self.check.step(len(self._open), self._repeats)
        self._open = self._open[:0]

    def facts(self) -> dict[str, Any]:
        """Return everything except the sums, in a form that can be stored in a file."""
        return super().facts() | {
            "check": self.check.facts(),
            "repeats": self._repeats,
            "surveyed": self._surveyed,
            "measured_kinks": self.engine.measured_kinks,  # decides the method of the steps to come
            # The errors of thin steps, as measured last, and when they will be again
            "errors": None if self.engine.errors is None else asdict(self.engine.errors),
            "parameter_step": self.engine.parameter_step and self.engine.parameter_step.facts(),
            "passes": self.engine.passes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that :meth:`state_dict` returned for a run with the same settings."""
        super().load_state_dict(state)
        if self.step_size:
            self.engine.scale, self.engine.doubt = self.step_size, self.doubt
        facts = read_facts(state)
        self.check.take(facts["check"])
        self._repeats = facts["repeats"]
        self._surveyed = facts["surveyed"]
        self.engine.measured_kinks = facts.get("measured_kinks")
        errors = facts.get("errors")
        self.engine.errors = None if errors is None else StepErrors(**errors)
        moved = facts.get("parameter_step")
        self.engine.parameter_step = None if moved is None else ParameterStep.of(moved)
        self.engine.passes = facts.get("passes", 0)
        self._open = self._open[:0]

    def _entry(self) -> Entry:
        """Return a ledger entry for one step with the current settings."""
        clip = self.engine.clip
        return Entry(
            steps=1,
            sampler=self.sampler,
            sample_rate=self.sample_rate,
            noise_multiplier=float(self.noise_multiplier),
            max_grad_norm=float(clip.max_grad_norm),
            sensitivity=float(clip.sensitivity),
            records=self.n,
            randomness=self.randomness,
            declared=self.declared,
            filtered=self.filtered,
        )

    def _factors(self, step: Step, entry: Entry) -> tuple[Tensor, Tensor]:
        """Return each record's κ, and the norm of its clipped gradient."""
        lengths = step.norms * self.clip.factor(step.norms)
        noise, sensitivity = entry.noise, entry.sensitivity
        steps = self.ledger.steps + 1
        return self.amplification.factors(lengths, noise, sensitivity, steps), lengths

    def _clipped_by_sample(
        self, chosen: Tensor, step: Step, entry: Entry, x: Any, y: Tensor
    ) -> Step:
        """Return the step with traces ``S/φ²``, and add its radial part to the sample."""
        sample, clip, norms = self.radial, self.clip, step.norms.double()
        if sample is None:
            return step
        if sample.pooled.device != chosen.device:
            self.to(chosen.device)
        inside, lost = 1 / clip.phi(norms) ** 2, 1 - clip.radial(norms) ** 2
        whole = step.traces.double() * (inside / clip.conservative(norms))[:, None]  # S/φ²
        possible, radial = lost * whole.mean(1) / entry.noise**2, None
        probability = sample.probability(self.steps)
        if sample.due(self.steps, self.engine.seed):
            pull, sizes, _ = self.engine.radial_pull(x, y)
            along = pull.flatten(1).double().square().sum(1) / sizes.double().clamp(min=1e-150) ** 2
            radial = lost * along * inside / entry.noise**2
        sample.add(chosen, possible, radial, self._factors(step, entry)[0], probability)
        return replace(step, traces=whole)

    def _account(self, index: Tensor, step: Step, entry: Entry, due: Tensor | None) -> None:
        chosen = sent_to(index, step.norms.device)
        if self.sums.uses.device != chosen.device:
            self.to(chosen.device)
        if self.check.watching:  # only then, since the sum waits for an accelerator
            self._repeats += int((self.sums.uses[chosen] > 0).sum())
        noise, sensitivity = entry.noise, entry.sensitivity
        factors, lengths = self._factors(step, entry)
        self.sums.add(index, step.traces, factors, lengths, noise, due)
        if self.individual is not None and self.sampler == POISSON and sensitivity < math.inf:
            self.individual.add(chosen, self.sample_rate, lengths / noise)
        if self.sketch is not None and step.pulls is not None:
            self.sketch.add(chosen, step.pulls, factors, noise)
