"""Privacy guarantees for any two data sets that differ in one record.

Reconstruction bounds use two properties of a guarantee, both for *replacing* one record by another:

* the Rényi divergence of order 2, ``log(1 + χ²)``, which bounds the error of unbiased adversaries
  (Guo et al. 2022, theorem 1);
* the total variation, the largest change in the probability of any event, which bounds the
  success of membership inference and, through two-point arguments, the error of every adversary.

Guarantees for adding or removing a record are converted: a replacement is a removal followed by an
addition.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seepage.errors import InputError
from seepage.privacy.gaussian_mechanism import gaussian_delta, gaussian_mu
from seepage.privacy.trade_off import (
    GaussianTradeOff,
    PromisedTradeOff,
    replacement_renyi,
)
from seepage.support.number_check import (
    check_choice,
    check_not_negative,
    check_number,
    check_share,
)

NEIGHBOURS = ("replace", "add-or-remove")  # the changes of one record that a promise is about

# In D₂(P‖R) ≤ (2 − 1/p) D_{2p}(P‖Q) + D_{q(2 − 1/p)}(Q‖R), 1/p + 1/q = 1: p = 3/2 (orders 3 and 4)
# is exact for the Gaussian mechanism; for other curves another p may do better. Each line: the
# weight 2 − 1/p, and both orders.
_BY_WAY_OF_REMOVAL = tuple(
    (2 - 1 / p, 2 * p, (2 - 1 / p) * p / (p - 1)) for p in (1.2, 1.5, 2.0, 3.0)
)


class PrivacyStatement(ABC):
    """The base class of differential privacy guarantees."""

    neighbours: str
    assumptions: tuple[str, ...]
    guarantee: bool

    @property
    @abstractmethod
    def words(self) -> str:
        """A short description of the guarantee."""

    @abstractmethod
    def renyi(self) -> float:
        """Return an upper bound, or infinity, on the order-2 Rényi divergence under replacement."""

    @abstractmethod
    def total_variation(self) -> float:
        """Return an upper bound on the total variation under replacement."""


@dataclass(frozen=True)
class DifferentialPrivacy(PrivacyStatement):
    """(ε, δ)-differential privacy; pure if δ = 0.

    Pure ε-differential privacy implies ``χ² ≤ e^ε + e^−ε − 2`` (Bun and Steinke 2016, proposition
    3.3, at order 2), a bound that randomised response attains. With δ > 0, there is no bound on χ²,
    because everything may be revealed with probability δ. The total variation is at most ``(e^ε − 1
    + 2δ)/(e^ε + 1)`` (Kairouz, Oh and Viswanath 2015). If the guarantee is for adding or removing a
    record, the total variation under a replacement is at most ``1 − e^−ε (1 − 2δ)``.

    Parameters
    ----------
    epsilon, delta
        The parameters of the guarantee.
    neighbours
        The neighbouring relation: ``"replace"`` or ``"add-or-remove"`` one record. For a
        replacement, a guarantee for ``"add-or-remove"`` implies (2ε, (1 + e^ε)δ)-differential
        privacy, and a total variation slightly below that of the latter.

    Examples
    --------
    >>> from seepage.privacy import DifferentialPrivacy
    >>> round(DifferentialPrivacy(0.1).total_variation(), 3)
    0.05
    """

    epsilon: float
    delta: float = 0.0
    neighbours: str = "replace"
    assumptions: tuple[str, ...] = ()
    guarantee: bool = True

    def __post_init__(self) -> None:
        check_not_negative(self.epsilon, "epsilon")
        check_number(self.delta, "delta")
        if not 0 <= self.delta < 1:
            raise InputError(
                f"delta must be at least 0 and below 1, but is {self.delta!r}: it is the "
                "probability that the guarantee fails. Choose a value far below 1 divided by the "
                "number of people."
            )
        check_choice(self.neighbours, "neighbours", NEIGHBOURS)

    @property
    def words(self) -> str:
        """A short description of the guarantee."""
        kind = f"({self.epsilon:.4g}, {self.delta:.2g})" if self.delta else f"{self.epsilon:.4g}"
        return f"{kind}-differential privacy ({self.neighbours})"

    def renyi(self) -> float:
        """Return ``log(e^ε + e^−ε − 1)``, with 2ε in place of ε for add-or-remove; ∞ if δ > 0."""
        epsilon, delta = self._replacing()
        if delta > 0:
            return math.inf
        return epsilon + math.log1p(math.exp(-2 * epsilon) - math.exp(-epsilon))

    def total_variation(self) -> float:
        """Return ``(e^ε − 1 + 2δ)/(e^ε + 1)``; for add-or-remove ``1 − e^−ε (1 − 2δ)``."""
        if self.neighbours != "replace":
            return self.trade_off().replaced()
        small = math.exp(-self.epsilon)
        return min(1.0, math.tanh(self.epsilon / 2) + 2 * self.delta * (small / (1 + small)))

    def trade_off(self) -> PromisedTradeOff:
        """Return the best membership test under this guarantee."""
        return PromisedTradeOff(self.epsilon, self.delta)

    def _replacing(self) -> tuple[float, float]:
        if self.neighbours == "replace":
            return self.epsilon, self.delta
        twice = self.delta * (1 + math.exp(min(self.epsilon, 700.0)))
        return 2 * self.epsilon, min(1.0, twice)


@dataclass(frozen=True)
class GaussianDP(PrivacyStatement):
    """Gaussian DP: neighbours are at least as hard to distinguish as N(0, 1) and N(μ, 1).

    For neighbouring data sets, the Rényi divergence of order α is ``αμ²/2``, and the total
    variation is ``2Φ(μ/2) − 1``; both are exact for Gaussian noise.

    Parameters
    ----------
    mu
        The sensitivity divided by σ: the largest distance between the noiseless results for two
        neighbouring data sets, in standard deviations of the noise.
    neighbours
        ``"replace"`` or ``"add-or-remove"`` one record; with ``"add-or-remove"``, a replacement
        doubles μ.

    Examples
    --------
    >>> from seepage.privacy import GaussianDP
    >>> GaussianDP(0.5).renyi()
    0.25
    >>> round(GaussianDP.meeting(epsilon=1.0, delta=1e-5).mu, 3)
    0.268
    """

    mu: float
    neighbours: str = "replace"
    assumptions: tuple[str, ...] = ()
    guarantee: bool = True

    def __post_init__(self) -> None:
        check_not_negative(self.mu, "mu")
        check_choice(self.neighbours, "neighbours", NEIGHBOURS)

    @classmethod
    def meeting(cls, epsilon: float, delta: float, neighbours: str = "replace") -> GaussianDP:
        """Return the Gaussian mechanism with exactly enough noise for (ε, δ).

        Use this method if (ε, δ) is known and Gaussian noise was calibrated to it exactly. Unlike
        (ε, δ) alone, the mechanism has a finite Rényi divergence.
        """
        check_not_negative(epsilon, "epsilon")
        check_share(delta, "delta")
        return cls(gaussian_mu(epsilon, delta), neighbours)

    @property
    def words(self) -> str:
        """A short description of the guarantee."""
        return f"the Gaussian mechanism with μ = {self.mu:.4g} ({self.neighbours})"

    def delta(self, epsilon: float) -> float:
        """Return the smallest δ at this ε, under replacement."""
        return gaussian_delta(epsilon, self._replacing())

    def renyi(self) -> float:
        """Return ``μ²``, or ``4μ²`` for add-or-remove."""
        return self._replacing() ** 2

    def total_variation(self) -> float:
        """Return ``2Φ(μ/2) − 1``, or ``2Φ(μ) − 1`` for add-or-remove."""
        return math.erf(self._replacing() / math.sqrt(8))

    def trade_off(self) -> GaussianTradeOff:
        """Return the best membership test under this guarantee."""
        return GaussianTradeOff(self.mu)

    def _replacing(self) -> float:
        return self.mu if self.neighbours == "replace" else 2 * self.mu


@dataclass(frozen=True)
class RenyiDP(PrivacyStatement):
    """Rényi differential privacy: bounds ε(α) on the Rényi divergence at one or more orders α.

    ``(α − 1) D_α`` is convex in α and zero at α = 1, so the given bounds imply bounds at other
    orders. ε(2) follows from one order of at least 2, or more tightly from two orders, one on
    either side of 2.

    Parameters
    ----------
    curve
        The value of ε at every order: ``{2: 0.5}``, or pairs ``[(1.5, 0.3), (4, 1.1)]``.
    neighbours
        ``"replace"`` or ``"add-or-remove"`` one record. For ``"add-or-remove"``, ε(2) under a
        replacement follows only if some order is at least 4:
        ``D₂(P‖R) ≤ (2 − 1/p) D_{2p}(P‖Q) + D_{q(2 − 1/p)}(Q‖R)`` with 1/p + 1/q = 1, where the
        data set of Q lacks the record that those of P and R have.

    Examples
    --------
    >>> from seepage.privacy import RenyiDP
    >>> RenyiDP({2: 1.58}).renyi()
    1.58
    """

    curve: Mapping[float, float] | Sequence[tuple[float, float]]
    neighbours: str = "replace"
    assumptions: tuple[str, ...] = ()
    guarantee: bool = True

    def __post_init__(self) -> None:
        pairs = self.curve.items() if isinstance(self.curve, Mapping) else self.curve
        points = sorted((float(order), float(epsilon)) for order, epsilon in pairs)
        if not points:
            raise InputError("The Rényi curve is empty; give ε for at least one order.")
        for order, epsilon in points:
            if not 1 < order < math.inf:
                raise InputError(f"Rényi orders must be above 1, but one of them is {order:g}.")
            if not epsilon >= 0:
                raise InputError(f"ε at order {order:g} must not be negative, but is {epsilon:g}.")
        check_choice(self.neighbours, "neighbours", NEIGHBOURS)
        object.__setattr__(self, "curve", tuple(points))

    @property
    def words(self) -> str:
        """A short description of the guarantee."""
        order, epsilon = min(self.points, key=lambda point: abs(point[0] - 2))
        return f"({order:g}, {epsilon:.4g})-Rényi differential privacy ({self.neighbours})"

    def at(self, order: float) -> float:
        """Return the implied bound on the divergence of this order, or infinity."""
        scaled = [(1.0, 0.0), *((a, (a - 1) * epsilon) for a, epsilon in self.points)]
        best = math.inf
        for low, at_low in (point for point in scaled if point[0] <= order):
            for high, at_high in (point for point in scaled if point[0] >= order):
                share = 0.0 if high == low else (order - low) / (high - low)
                value = at_low + share * (at_high - at_low) if share else at_low
                best = min(best, value / (order - 1))
        return best

    def renyi(self) -> float:
        """Return ε(2) under replacement; infinite if the given orders do not imply it."""
        if self.neighbours == "replace":
            return self.at(2.0)
        return min(
            weight * self.at(first) + self.at(second)
            for weight, first, second in _BY_WAY_OF_REMOVAL
        )

    def total_variation(self) -> float:
        """Return ``√χ²/2`` if χ² ≤ 1, otherwise ``χ²/(1 + χ²)``, for ``χ² = exp(ε(2)) − 1``."""
        epsilon = self.renyi()
        if epsilon <= math.log(2):
            return math.sqrt(math.expm1(epsilon)) / 2
        return -math.expm1(-epsilon)

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """The orders and their ε, in ascending order."""
        return tuple(self.curve)  # type: ignore[arg-type]


def renyi_of_event(event: Any, neighbours: str = "add-or-remove") -> RenyiDP:
    """Return the Rényi differential privacy of a ``dp_accounting`` event.

    Parameters
    ----------
    event
        Any event that ``dp_accounting``'s RDP accountant supports: Gaussian, Laplace, Poisson
        sampling, compositions, and others.
    neighbours
        The neighbouring relation for the event's noise multiplier: ``"add-or-remove"`` one record
        (as for private SGD) or ``"replace"`` one. Sampling without replacement requires
        ``"replace"``, and Poisson sampling requires ``"add-or-remove"``; other combinations raise
        an error. For Gaussian steps on Poisson batches, the result is the guarantee for replacing a
        record, computed exactly at order 2.

    Examples
    --------
    >>> import dp_accounting
    >>> from seepage.privacy import renyi_of_event
    >>> round(renyi_of_event(dp_accounting.GaussianDpEvent(2.0)).renyi(), 6)
    1.0
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    if not isinstance(event, dp_accounting.DpEvent):
        raise InputError(
            "dp must be a dp_accounting event or a guarantee from seepage.privacy, not "
            f"{type(event).__name__}."
        )
    check_choice(neighbours, "neighbours", NEIGHBOURS)
    about = (f"The mechanism ran as its event states: {event!r}.",)
    steps = list(_sampled_gaussians(event)) if neighbours == "add-or-remove" else [None]
    known = [step for step in steps if step is not None]
    if len(known) == len(steps):
        costs = (
            count * float(replacement_renyi(1 / noise, rate, [2.0])[0])
            for noise, rate, count in known
        )
        return RenyiDP({2.0: math.fsum(costs)}, "replace", about)
    relation = dp_accounting.NeighboringRelation
    if neighbours == "replace":
        accountant = RdpAccountant([2.0], relation.REPLACE_ONE)
    else:
        orders = {round(order, 9) for line in _BY_WAY_OF_REMOVAL for order in line[1:]}
        accountant = RdpAccountant(sorted(orders), relation.ADD_OR_REMOVE_ONE)
    try:
        accountant.compose(event)
    except dp_accounting.UnsupportedEventError as error:
        raise InputError(
            f"The Rényi accountant of dp_accounting does not support this event ({error}); give a "
            "guarantee from seepage.privacy instead, such as sp.privacy.DifferentialPrivacy(1.0)."
        ) from None
    pairs = zip(accountant.orders.tolist(), accountant.rdp.tolist(), strict=True)
    curve = [(order, epsilon) for order, epsilon in pairs if math.isfinite(epsilon)]
    if not curve:
        raise InputError(
            "The event has no finite Rényi divergence, so it provides no guarantee; add noise to "
            "the release."
        )
    return RenyiDP(curve, neighbours, about)


def _sampled_gaussians(event: Any, count: int = 1) -> Iterator[tuple[float, float, int] | None]:
    """Yield the noise, the rate and the number of Gaussian steps; ``None`` for other events."""
    import dp_accounting as dp

    if isinstance(event, dp.SelfComposedDpEvent):
        yield from _sampled_gaussians(event.event, count * event.count)
    elif isinstance(event, dp.ComposedDpEvent):
        for part in event.events:
            yield from _sampled_gaussians(part, count)
    elif isinstance(event, dp.PoissonSampledDpEvent):
        inner = event.event
        gaussian = isinstance(inner, dp.GaussianDpEvent) and inner.noise_multiplier > 0
        rate = float(event.sampling_probability)
        yield (float(inner.noise_multiplier), rate, count) if gaussian and rate > 0 else None
    else:
        gaussian = isinstance(event, dp.GaussianDpEvent) and event.noise_multiplier > 0
        yield (float(event.noise_multiplier), 1.0, count) if gaussian else None
