"""``sp.explain``, which returns limits on attacks under a differential-privacy guarantee."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seepage.auditing.decision.presets import PRESETS
from seepage.auditing.explaining.picture import draw_picture
from seepage.auditing.findings import FALSE_POSITIVES
from seepage.auditing.report.rendering import json_text, render
from seepage.auditing.report.words import percent
from seepage.bounds.from_privacy import two_point
from seepage.errors import InputError
from seepage.privacy.sampled_gaussian import SampledGaussianDP
from seepage.privacy.statements import DifferentialPrivacy, GaussianDP
from seepage.privacy.trade_off import TradeOff, check_prior
from seepage.tables.result_table import PlottedNumbers, ResultTable
from seepage.tables.source import build_frame

SCHEMA = "seepage-explanation/1"
Explained = DifferentialPrivacy | GaussianDP | SampledGaussianDP


@dataclass(frozen=True)
class Meaning:
    """Limits on an attacker who knows all other records, under one reading of a guarantee.

    Parameters
    ----------
    reading
        The assumption about the mechanism: ``"any mechanism"``, ``"Gaussian noise"``,
        ``"this run"`` or ``"its (ε, δ) alone"``.
    membership, at_prior
        The largest success rate of membership inference at even odds, and at the base rate.
    tpr, tpr_strict
        The largest true positive rate of membership inference at false positive rates of 1 % and
        0.1 %.
    closest
        The minimum root mean squared error of any estimate of a number, as a fraction of the
        number's known range (0.5 without a release). The squared error is averaged over records at
        the two ends of that range.
    trade_off
        The trade-off between false positives and false negatives.
    """

    reading: str
    membership: float
    at_prior: float
    tpr: float
    tpr_strict: float
    closest: float
    trade_off: TradeOff = field(compare=False, repr=False)


@dataclass(frozen=True, repr=False)
class Explanation(ResultTable):
    """The explanation of a privacy budget.

    Parameters
    ----------
    promise
        The guarantee in words.
    epsilon, delta
        The budget; ε is unknown for a run without a δ.
    neighbours
        The neighbouring relation: ``"add-or-remove"`` one record, or ``"replace"`` one.
    prior
        The base rate: the prior probability that a person is in the data.
    meanings
        The limits under each reading of the guarantee.
    """

    promise: str
    epsilon: float | None
    delta: float
    neighbours: str
    prior: float
    meanings: tuple[Meaning, ...]

    value_column = "membership"
    sensitive = False

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per reading of the guarantee."""
        names = ("reading", "membership", "at_prior", "tpr", "tpr_strict", "closest")
        columns = {name: [getattr(one, name) for one in self.meanings] for name in names}
        return build_frame(columns, library or "pyarrow")

    def drawing(self) -> PlottedNumbers:
        """Return the data of :meth:`plot`: the largest success rate of membership inference."""
        values = np.array([one.membership for one in self.meanings])
        names, name = [one.reading for one in self.meanings], "membership inference: success rate"
        return PlottedNumbers(values, names, name, "readings", mark=(0.5, "chance"), ranked=False)

    @property
    def baseline(self) -> float:
        """The success rate of a guess at the base rate without the release."""
        return max(self.prior, 1 - self.prior)

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets whose limit on membership inference is met under the first reading."""
        allowed = self.meanings[0].membership
        return tuple(name for name, one in PRESETS.items() if allowed <= one.max_membership)

    def __str__(self) -> str:
        bars = [("chance", 0.5), *((one.reading, one.membership) for one in self.meanings)]
        wide = max(len(name) for name, _ in bars)
        return render(
            "explanation.txt.j2",
            it=self,
            bars=[f"{name:<{wide}}  {_bar(share)}  {percent(share)}" for name, share in bars],
            heads=("", *(one.reading for one in self.meanings), "no release"),
            rows=list(self._rows()),
        ).rstrip("\n")

    __repr__ = __str__

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the rows of the table: a number under each reading, and one without a release."""
        shares = [
            ("membership inference succeeds", "membership", 0.5),
            (f"at a base rate of {percent(self.prior)}", "at_prior", self.baseline),
            ("true positives, 1 % false positives", "tpr", FALSE_POSITIVES[0]),
            ("the same, 0.1 % false positives", "tpr_strict", FALSE_POSITIVES[1]),
        ]
        for words, name, alone in shares:
            if name != "at_prior" or self.prior != 0.5:
                values = (getattr(one, name) for one in self.meanings)
                yield (words, *(percent(value) for value in values), percent(alone))
        least = (f"±{percent(one.closest)}" for one in self.meanings)
        yield ("least error, share of the range", *least, "±50 %")

    def summary(self) -> dict[str, Any]:
        """Return the explanation as plain values, as printed by ``--json``.

        The number in ``schema`` increases when a key changes its meaning or is removed.
        ``promise``, ``epsilon`` (``None`` for a run without ``delta``), ``delta``, ``neighbours``
        and ``prior`` repeat the arguments; ``baseline`` is the success rate of a guess without the
        release. ``meanings`` contains the fields of every :class:`Meaning`, and ``presets`` lists
        the presets whose limit on membership inference is met under the first reading.
        """
        names = ("reading", "membership", "at_prior", "tpr", "tpr_strict", "closest")
        return {
            "schema": SCHEMA,
            **{
                name: getattr(self, name)
                for name in ("promise", "epsilon", "delta", "neighbours", "prior", "baseline")
            },
            "meanings": [{name: getattr(one, name) for name in names} for one in self.meanings],
            "presets": self.presets,
        }

    def to_json(self) -> str:
        """Return the summary as JSON text."""
        return json_text(self.summary())

    def picture(self, path: str | os.PathLike[str]) -> Path:
        """Draw the ROC curve of every reading into an SVG or PNG file; return its path."""
        return draw_picture(
            Path(path), self.promise, [(m.reading, m.trade_off) for m in self.meanings]
        )


def explain(
    epsilon: float | None = None,
    delta: float | None = None,
    *,
    noise_multiplier: float | None = None,
    sample_rate: float = 1.0,
    steps: int = 1,
    neighbours: str = "add-or-remove",
    prior: float = 0.5,
) -> Explanation:
    """Return upper bounds on the success of an informed attacker, under a privacy budget.

    The informed attacker knows all other records. All limits follow from the trade-off between true
    and false positives under the guarantee. For (ε, δ), the trade-off is ``TPR = min(1, δ +
    e^ε·FPR, 1 − e^−ε (1 − δ − FPR))``: membership inference succeeds at most ``1 − (1 − δ)/(1 +
    e^ε)`` of the time. For a training run, the trade-off follows from its steps.

    A guarantee covers the worst-case record of any table. ``leak.membership()`` of
    :func:`seepage.leakage`, or of a measured run, returns the success rate for each of your
    records.

    Parameters
    ----------
    epsilon, delta
        The budget. For a training run, omit ε; it is computed if δ is given.
    noise_multiplier, sample_rate, steps
        Settings of private SGD: the ratio of noise to clipping norm, the probability that a record
        takes part in a step, and the number of steps.
    neighbours
        The neighbouring relation of ε: ``"add-or-remove"`` one record, as in Opacus and most
        accountants, or ``"replace"`` one.
    prior
        The base rate: the probability that a person is in the data, before the release.

    Examples
    --------
    >>> import seepage as sp
    >>> found = sp.explain(epsilon=1.0, delta=1e-5)
    >>> round(found.meanings[0].membership, 3), round(found.meanings[0].tpr, 3)
    (0.731, 0.027)
    >>> found.presets
    ('partners', 'internal')
    """
    check_prior(prior)
    if noise_multiplier is None:
        if epsilon is None:
            raise InputError(
                "Give a budget, sp.explain(epsilon=8, delta=1e-5), or the settings of private SGD, "
                "sp.explain(noise_multiplier=1.0, sample_rate=0.01, steps=1000, delta=1e-5)."
            )
        if sample_rate != 1 or steps != 1:
            raise InputError(
                "sample_rate and steps need a noise_multiplier; with epsilon, leave them out."
            )
        given = DifferentialPrivacy(epsilon, 0.0 if delta is None else delta, neighbours)
        readings: list[tuple[str, Explained]] = [("any mechanism", given)]
        if given.delta > 0:
            gaussian = GaussianDP.meeting(given.epsilon, given.delta, neighbours)
            readings.append(("Gaussian noise", gaussian))
        return _explained(given.words, given, readings, prior)
    if epsilon is not None:
        raise InputError(
            "Give epsilon or noise_multiplier, not both: the ε of a run follows from its steps."
        )
    run = SampledGaussianDP(noise_multiplier, sample_rate, steps, neighbours)
    readings = [("this run", run)]
    if delta is None:
        return _explained(run.words, None, readings, prior)
    budget = DifferentialPrivacy(run.epsilon(delta), delta, neighbours)
    readings.append(("its (ε, δ) alone", budget))
    return _explained(run.words, budget, readings, prior)


def _bar(share: float) -> str:
    """Return a bar of 30 characters, filled in proportion to a fraction; only 1 fills it."""
    filled = min(round(30 * share), 29 if share < 1 else 30)
    return "█" * filled + "░" * (30 - filled)


def _explained(
    words: str,
    budget: DifferentialPrivacy | None,
    readings: list[tuple[str, Explained]],
    prior: float,
) -> Explanation:
    return Explanation(
        promise=words,
        epsilon=None if budget is None else budget.epsilon,
        delta=0.0 if budget is None else budget.delta,
        neighbours=readings[0][1].neighbours,
        prior=prior,
        meanings=tuple(_meaning(reading, promise, prior) for reading, promise in readings),
    )


def _meaning(reading: str, promise: Explained, prior: float) -> Meaning:
    curve = promise.trade_off()
    tpr, strict = curve.tpr(FALSE_POSITIVES).tolist()
    # An estimate of a number is about replacing it, whatever the promise is about.
    closest = math.sqrt(float(two_point(promise, 1.0)))
    return Meaning(
        reading, curve.accuracy(), curve.accuracy(prior), tpr, strict, closest, trade_off=curve
    )
