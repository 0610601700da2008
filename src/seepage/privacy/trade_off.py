"""The trade-off between true and false positive rates under differential privacy.

A guarantee compares two data sets that differ in one record. ``P`` and ``Q`` are the worst-case
distributions of the release for these two data sets. The function ``δ(ε) = sup_S P(S) − e^ε Q(S)``,
for all real ε, determines the best test: no test has a true positive rate above ``min_ε δ(ε) +
e^ε·FPR``, and the best test attains it (Dong, Roth and Su 2022, proposition 2.12).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.privacy.gaussian_mechanism import gaussian_delta
from seepage.risks import guessing
from seepage.tables.result_table import ResultTable, draw_curve
from seepage.tables.source import build_frame


class TradeOff(ResultTable):
    """The best test to decide which of two distributions generated a release."""

    value_column = "tpr"
    sensitive = False

    @cached_property
    def _curve(self) -> tuple[np.ndarray, np.ndarray]:
        """False and true positive rates, cached because computing them can take seconds."""
        rates = np.array([0.0, 0.001, 0.01, *np.arange(1, 21) / 20])
        return rates, self.tpr(rates)

    def table(self, library: str | None = None) -> Any:
        """Return a data frame: the largest true positive rate at several false positive rates."""
        rates, found = self._curve
        return build_frame({"fpr": rates, "tpr": found}, library or "pyarrow")

    def plot(self, ax: Any = None) -> Any:
        """Draw the ROC curve of the best test, with the chance line."""
        return draw_curve(ax, *self._curve, f"success rate at most {self.accuracy():.1%}")

    @abstractmethod
    def excess(self, epsilon: Any) -> np.ndarray:
        """Return ``δ(ε) = sup_S P(S) − e^ε Q(S)`` at any real ε."""

    @abstractmethod
    def tpr(self, fpr: Any = 0.01) -> np.ndarray:
        """Return the largest true positive rate at each false positive rate."""

    def advantage(self) -> float:
        """Return the largest difference between true and false positive rates."""
        return float(self.excess(0.0))

    def accuracy(self, prior: float = 0.5) -> float:
        """Return the success rate of the best test at this prior probability of membership.

        With the prior p, the rate is ``1 − p + p δ(log((1 − p)/p))``.
        """
        check_prior(prior)
        odds = math.log1p(-prior) - math.log(prior)
        return 1 - prior + prior * float(self.excess(odds))

    def replaced(self) -> float:
        """Return a bound on the difference of true and false positive rates for a replacement.

        Replacing a record means removing it and adding another. The data sets before and after the
        replacement are compared with the data set that has neither record: if a test is positive
        with probability α on the latter, it is positive with probability at most ``δ(ε) + e^ε α``
        on the former two. Applied to the test and to its complement, this bounds the difference by
        ``min_ε 2δ(ε) + e^ε − 1``. For Gaussian noise, the bound is ``2Φ(μ) − 1``, because the
        replacement doubles the distance μ.
        """
        from scipy.optimize import minimize_scalar

        def line(epsilon: float) -> float:
            return 2 * float(self.excess(epsilon)) + math.expm1(epsilon)

        # It is convex in e^ε, and at ε = 0 twice the advantage; beyond 0 it only grows.
        found = minimize_scalar(line, bounds=(-40.0, 0.0), method="bounded")
        return float(np.clip(min(line(0.0), found.fun), 0.0, 1.0))


@dataclass(frozen=True)
class PromisedTradeOff(TradeOff):
    """The trade-off of (ε, δ)-differential privacy (Wasserman and Zhou 2010; Kairouz et al. 2015).

    ``TPR = min(1, δ + e^ε·FPR, 1 − e^−ε (1 − δ − FPR))``. The curve consists of line
    segments: in the worst case, the record is revealed with probability δ, and the release is
    randomised response otherwise. At the middle corner, the false positive rate and the false
    negative rate are both ``c = (1 − δ)/(1 + e^ε)``.

    Examples
    --------
    >>> from seepage.privacy.trade_off import PromisedTradeOff
    >>> round(PromisedTradeOff(1.0, 1e-5).accuracy(), 4)
    0.7311
    >>> PromisedTradeOff(1.0, 1e-5).tpr([0.01, 0.001]).round(4).tolist()
    [0.0272, 0.0027]
    """

    epsilon: float
    delta: float = 0.0

    @property
    def corner(self) -> float:
        """The middle corner's false positive rate, ``(1 − δ)/(1 + e^ε)``."""
        small = math.exp(-self.epsilon)
        return (1 - self.delta) * small / (1 + small)

    def excess(self, epsilon: Any) -> np.ndarray:
        """Return ``δ(ε')``: the largest of the three corners' ``TPR − e^ε'·FPR``."""
        with np.errstate(over="ignore", invalid="ignore"):
            weight = np.exp(np.asarray(epsilon, dtype=float))
            middle = 1 - self.corner * (1 + weight) if self.corner else np.ones_like(weight)
            last = 1 - weight * (1 - self.delta)
        return np.asarray(np.clip(np.maximum(np.maximum(middle, last), self.delta), 0.0, 1.0))

    def accuracy(self, prior: float = 0.5) -> float:
        """Return the success rate of the best test: ``max(1 − c, 1 − p + pδ, p + (1 − p)δ)``.

        p is the prior and c the middle corner's false positive rate. The first term is the success
        rate against randomised response; the other two are those of always guessing the same
        hypothesis unless the record is revealed.
        """
        check_prior(prior)
        rest = 1 - prior
        return max(1 - self.corner, rest + prior * self.delta, prior + rest * self.delta)

    def replaced(self) -> float:
        """Return ``1 − e^−ε (1 − 2δ)``, since the minimum over ε' is at −ε.

        This is below ``(e^2ε − 1 + 2δ')/(e^2ε + 1)``, the value for (2ε, δ')-differential privacy
        with ``δ' = (1 + e^ε)δ``.
        """
        return float(np.clip(1 - math.exp(-self.epsilon) * (1 - 2 * self.delta), 0.0, 1.0))

    def tpr(self, fpr: Any = 0.01) -> np.ndarray:
        """Return the largest true positive rate at each false positive rate."""
        rate = checked_rates(fpr)
        steep = math.exp(min(self.epsilon, 700.0))  # beyond, e^ε is no number
        flat = 1 - (1 - self.delta - rate) / steep
        return np.asarray(np.clip(np.minimum(self.delta + steep * rate, flat), rate, 1.0))


@dataclass(frozen=True)
class GaussianTradeOff(TradeOff):
    """The trade-off of Gaussian noise at distance ``μ``: ``TPR = Φ(Φ⁻¹(FPR) + μ)``."""

    mu: float

    def excess(self, epsilon: Any) -> np.ndarray:
        """Return ``Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)``."""
        return np.asarray(np.vectorize(self._at, otypes=[float])(epsilon))

    def _at(self, epsilon: float) -> float:
        if epsilon >= 0:
            return gaussian_delta(epsilon, self.mu)
        # The same about the complement of S, with the two distributions exchanged
        return 1 - math.exp(epsilon) * (1 - gaussian_delta(-epsilon, self.mu))

    def accuracy(self, prior: float = 0.5) -> float:
        """Return the success rate of the best test."""
        check_prior(prior)
        return float(guessing.accuracy(self.mu, prior))

    def replaced(self) -> float:
        """Return ``2Φ(μ) − 1``, the advantage when a record is replaced, which doubles μ."""
        return float(guessing.advantage(2 * self.mu))

    def tpr(self, fpr: Any = 0.01) -> np.ndarray:
        """Return ``Φ(Φ⁻¹(FPR) + μ)``."""
        return guessing.true_positive_rate(self.mu, checked_rates(fpr))


@dataclass(frozen=True, eq=False, repr=False)
class LossTradeOff(TradeOff):
    """The trade-off from dp-accounting's privacy loss distributions, rounded pessimistically.

    ``removed`` contains the privacy losses of the release with the record relative to the release
    without it; ``added`` contains the reverse. Every value is an upper bound, accurate to the grid
    step of the losses.
    """

    removed: Any
    added: Any

    def __repr__(self) -> str:
        return (
            "<trade-off of privacy losses: membership inference succeeds at most "
            f"{100 * self.accuracy():.1f} % of the time (chance: 50 %), advantage at most "
            f"{self.advantage():.4g}>"
        )

    def excess(self, epsilon: Any) -> np.ndarray:
        """Return ``δ(ε) = sup_S P(S) − e^ε Q(S)`` at any real ε."""

        def at(one: float) -> float:
            if one >= 0:
                return float(self.removed.get_delta_for_epsilon(one))
            # P(S) − e^ε Q(S) on S is 1 − e^ε + e^ε [Q − e^{−ε} P] on the complement of S.
            return 1 - math.exp(one) * (1 - float(self.added.get_delta_for_epsilon(-one)))

        # One by one: dp-accounting sums at once for a single ε, and loops over the losses for more.
        return np.asarray(np.clip(np.vectorize(at, otypes=[float])(epsilon), 0.0, 1.0))

    def tpr(self, fpr: Any = 0.01) -> np.ndarray:
        """Return the largest true positive rate at each false positive rate."""
        rate = checked_rates(fpr)
        # Lines δ(ε) + e^ε·FPR of 4,001 values of ε. Those with a smaller δ than 1e-12 no longer
        # matter; up to ε = 700, e^ε is still a number, and fewer lines bound as well.
        far = min(max(self.removed.get_epsilon_for_delta(1e-12), 1.0), 700.0)
        epsilon = np.linspace(-far, far, 4001)
        height = cache(lambda k: float(self.excess(epsilon[k])))
        lowest = [_lowest(height, epsilon, each) for each in rate.ravel()]
        return np.asarray(np.clip(np.reshape(lowest, rate.shape), rate, 1.0))


def gaussian_losses(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    *,
    replace: bool = False,
    group: int = 1,
    grid: float = 1e-4,
) -> Any:
    """Return dp-accounting's composed privacy losses of Gaussian steps on Poisson batches.

    The two data sets differ by adding or removing one record, by replacing one record, or by adding
    or removing a group of several records. Each step is dominated by one pair of distributions, so
    the composed pair dominates the run (Zhu, Dong and Wang 2022, theorem 10). With ``μ`` the
    clipping norm divided by the noise's standard deviation, ``q`` the sample rate, and ``N(m)`` the
    normal distribution of mean m and variance 1, the pairs are::

        add or remove   (1 − q) N(0) + q N(μ)   and   N(0)
        replace         (1 − q) N(0) + q N(μ)   and   (1 − q) N(0) + q N(−μ)
        group of k      Σ_j Bin(k, q)_j N(jμ)   and   N(0)

    Proof for replacing a gradient ``g`` by ``g'``, both of norm at most ``μ`` in units of the
    noise: for any test φ with ``N_0(φ) = y``, the Neyman–Pearson lemma implies ``N_g(φ) ≤ Φ(Φ⁻¹(y)
    + μ)`` and ``N_g'(φ) ≥ Φ(Φ⁻¹(y) − μ)``. For the pair above, the half-line with probability y
    attains both bounds at once, so ``P(φ) − e^ε Q(φ)`` never exceeds the pair's value, at any ε. In
    general, the worst case of one step cannot be composed (Lebeda et al. 2024); this pair can,
    because it is the worst case at every ε. For a group, the mixture of Ganesh 2024 is used. Losses
    are rounded pessimistically to multiples of ``grid`` (of ten times ``grid`` for a group).
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as losses

    if group > 1:
        from scipy.stats import binom

        taking_part = np.arange(group + 1)
        step = losses.from_mixture_gaussian_mechanism(
            noise_multiplier,
            taking_part,
            binom.pmf(taking_part, group, sample_rate),
            value_discretization_interval=10 * grid,  # since mixtures of many take longer
        )
    else:
        relation = NeighboringRelation.REPLACE_ONE if replace else None
        step = losses.from_gaussian_mechanism(
            noise_multiplier,
            value_discretization_interval=grid,
            sampling_prob=sample_rate,
            neighboring_relation=relation or NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
    return step.self_compose(steps)


def fixed_size_losses(noise_multiplier: float, sample_rate: float, steps: int) -> Any:
    """Return dp-accounting's composed losses of replacing a record in fixed-size batches.

    If a record is not sampled, another record takes its place in the batch, so the sums differ by
    at most twice the clipping norm. Let ``P = N(2μ)`` and ``Q = N(0)``, with μ and q as in
    :func:`gaussian_losses`. For ε ≥ 0, one step's ``δ(ε)`` is at most that of ``(1 − q) Q + q P``
    against Q; for ε < 0, at most that of P against ``(1 − q) P + q Q`` (Zhu, Dong and Wang 2022,
    theorem 11). Each bound is attained for some data. The pair of distributions with this ``δ(ε)``
    dominates each step, and this pair is composed.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    step = GaussianPrivacyLoss(noise_multiplier, sensitivity=2, sampling_prob=sample_rate)
    grid, apart = 1e-4, 2 / noise_multiplier
    farthest = apart * (apart + 10) - apart**2 / 2  # where P has 1e-23 of its mass
    largest = math.log(1 - sample_rate + sample_rate * math.exp(min(farthest, 700.0)))
    count = math.ceil(largest / grid)
    above = np.asarray(step.get_delta_for_epsilon(grid * np.arange(count + 1)))
    below = 1 - np.exp(-grid * np.arange(count, 0, -1)) * (1 - above[:0:-1])
    deltas = np.clip(np.concatenate((below, above)), 0.0, 1.0)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, -count, count, deltas)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf).self_compose(steps)


def replacement_renyi(shift: float, sample_rate: float, orders: Sequence[float]) -> np.ndarray:
    """Return the Rényi divergence of replacing a record in one step, at each order.

    The divergence of order α, ``(1/(α − 1)) log ∫ P^α Q^{1−α}``, is that of the dominating pair P,
    Q (:func:`gaussian_losses`), by the trapezoid rule; ``shift`` is μ, the clipping norm divided by
    σ, and ``sample_rate`` is q. At order 2, the divergence is below ``log(1 + q²/((1 − q)/A +
    q/B))`` with ``A = 2(e^{μ²} − e^{−μ²})`` and ``B = e^{4μ²} − 1``.

    Examples
    --------
    >>> from seepage.privacy.trade_off import replacement_renyi
    >>> replacement_renyi(0.5, 1.0, [2.0]).round(6).tolist()
    [1.0]
    """
    return np.array([_replacement_renyi(shift, sample_rate, float(order)) for order in orders])


def _replacement_renyi(shift: float, rate: float, order: float) -> float:
    plain = 2 * order * shift**2  # without sampling: the Gaussian mechanism, 2μ apart
    # The integrand is φ(x) times at most e^{(2α − 1)μx}, and analytic within π/μ of the real line:
    # at this spacing the rule is exact to rounding.
    spacing = min(0.25, 0.5 / max(shift, 1e-12))
    right = (2 * order - 1) * shift + 40
    if rate == 1 or right > 2**20 * spacing:  # there, sampling is worth nothing that matters
        return plain
    x = np.arange(-40.0, right, spacing)
    # log P and log Q, relative to the normal density
    upper, lower = (
        np.logaddexp(math.log1p(-rate), math.log(rate) + s * shift * x - shift**2 / 2)
        for s in (1, -1)
    )
    normal = -(x**2) / 2 - math.log(2 * math.pi) / 2
    ratio = upper - lower
    if order * float(np.max(ratio)) > 30:
        whole = normal + lower + order * ratio
        total = float(np.logaddexp.reduce(whole)) + math.log(spacing)
    else:  # the same less one, without cancellation: ∫ Q ((P/Q)^α − 1 − α(P/Q − 1))
        rest = np.exp(normal + lower) * (np.expm1(order * ratio) - order * np.expm1(ratio))
        total = math.log1p(spacing * float(rest.sum()))
    return min(plain, max(total, 0.0) / (order - 1))


def both_ways(losses: Any) -> tuple[Any, Any]:
    """Return the privacy losses of removing a record and of adding one."""
    # Their public methods take the larger of both directions at each ε, which mixes two curves.
    return losses._pmf_remove, losses._pmf_add


def check_prior(prior: Any) -> None:
    """Raise an error if a prior probability is not strictly between 0 and 1."""
    if isinstance(prior, str) or not 0 < prior < 1:
        raise InputError(
            "The prior must be a probability above 0 and below 1; give, for example, 0.5."
        )


def checked_rates(fpr: Any) -> np.ndarray:
    """Return false positive rates as an array; invalid rates raise an error."""
    rate = np.asarray(fpr, dtype=float)
    if not np.all((rate >= 0) & (rate <= 1)):
        raise InputError("A false positive rate must be between 0 and 1; give, for example, 0.01.")
    return rate


def _lowest(height: Callable[[int], float], epsilon: np.ndarray, rate: float) -> float:
    """Return the smallest ``δ(ε) + e^ε·FPR`` on a grid of ε, by bisection.

    The sum is convex in ``e^ε``. Of two equal values, the one at the larger ε counts as lower,
    because for very negative ε the values agree to the last digit.
    """

    def line(k: int) -> float:
        return height(k) + math.exp(epsilon[k]) * rate

    low, high = 0, len(epsilon) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if line(middle + 1) <= line(middle) else (low, middle)
    return line(low)
