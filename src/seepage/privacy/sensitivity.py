"""The sensitivity of a release to one record, and the privacy guarantee that its noise provides.

Let two tables differ in one record, and let ``w`` and ``w'`` be the minimisers of their objectives.
The first table's objective is strongly convex with constant nλ, and its gradient at the second
minimiser is the difference between the gradients of two losses::

    nλ ‖w − w'‖ ≤ ‖∇F(w')‖ = ‖∇ℓ(w'; z) − ∇ℓ(w'; z')‖ ≤ 2L,    L = sup ω |∂ℓ/∂m| ‖x‖

(Chaudhuri, Monteleoni and Sarwate 2011), so the sensitivity is at most ``2L/(nλ)``. Here ``F`` is
the first table's objective; ``ℓ`` is the loss of a record with features ``x``, linear predictor
``m`` and sample weight ``ω``; and ``z`` and ``z'`` are the two records. ``L`` must hold for every
record that could be in the table, but only at minimisers, where ``|∂ℓ/∂m|`` is bounded as follows:

* logistic: it is at most 1; softmax: its norm, over the classes, is at most √2;
* least squares with ``|y| ≤ Y``: ``(nλ/2)‖w‖² ≤ F(0) ≤ nY²/2`` bounds ``w``, and therefore the
  residual;
* Poisson with ``0 ≤ y ≤ Y``: the same argument, with a far larger constant.

The intercept is not penalised, so its change is unbounded; a model with an intercept raises an
error. If the release itself bounds every record's contribution, as a sum of clipped gradients does,
that bound is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.core.leakage import Leakage
from seepage.core.noise import Gaussian, Laplace
from seepage.core.result import CLASS_WEIGHTS
from seepage.errors import InputError
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.losses import Categorical
from seepage.privacy.statements import DifferentialPrivacy, GaussianDP, PrivacyStatement
from seepage.support.number_check import check_positive
from seepage.tables.source import Array, Chunk, as_numpy, read_table

_LABELLED = ("gaussian", "poisson")  # families whose slope grows with the label
_FROM_THE_DATA = (
    "The bound on {} was computed from the data, so this is not a guarantee for other data."
)


@dataclass(frozen=True)
class Sensitivity:
    """The L2 sensitivity of a release to replacing one record.

    Parameters
    ----------
    value
        ``2L/(nλ)`` for a penalised model, ``2L`` for a sum of clipped gradients.
    lipschitz
        ``L``: the largest norm of a record's gradient, after any clipping.
    guarantee
        Whether the value depends only on stated bounds; a value computed from the data is only
        indicative.
    assumptions
        The assumptions behind the value.
    """

    value: float
    lipschitz: float
    guarantee: bool
    assumptions: tuple[str, ...]


def output_sensitivity(
    leak: Leakage[Any],
    *,
    row_norm: float | None = None,
    label_bound: float | None = None,
    lipschitz: float | None = None,
) -> Sensitivity:
    """Return the sensitivity of a release to replacing one record.

    For a penalised model's parameters, the sensitivity is at most ``2L/(nλ)``. For a sum of clipped
    gradients, it is twice the largest norm of a clipped gradient, for any data.

    Parameters
    ----------
    leak
        The leakage of one release, about records in memory or read in chunks. A linear model must
        have a penalty and no intercept.
    row_norm
        A bound on the norm ``‖x‖`` of every possible record, which :func:`clip_rows` enforces. The
        default is the largest norm in the data, which does not provide a guarantee.
    label_bound
        A bound on the absolute value of every label, for least squares and Poisson. The default is
        the largest absolute value in the data, which does not provide a guarantee.
    lipschitz
        The constant ``L`` itself; needed for families other than logistic, softmax, least squares
        and Poisson.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> from seepage.privacy import clip_rows, output_sensitivity
    >>> X = clip_rows(np.random.default_rng(0).standard_normal((100, 3)), 1.0)
    >>> y = (X[:, 0] > 0).astype(int)
    >>> model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.1))
    >>> output_sensitivity(leak, row_norm=1.0).value
    0.2
    """
    known = leak.release.sensitivity
    if known is not None and len(leak.noise) == 1:
        clipped = f"No record's contribution to the release has a norm above {known / 2:g}."
        return Sensitivity(known, known / 2, True, (clipped,))
    fit = _penalised_fit(leak)
    assumptions: tuple[str, ...]
    if lipschitz is not None:
        check_positive(lipschitz, "lipschitz")
        L, assumptions, stated = lipschitz, (f"Every loss is {lipschitz:g}-Lipschitz.",), True
    else:
        for value, name in ((row_norm, "row_norm"), (label_bound, "label_bound")):
            if value is not None:
                check_positive(value, name)
        seen = leak.source.total(partial(_largest_in, fit=fit), "largest records")
        B, stated_rows, about_rows = _row_norm(seen, row_norm)
        slope, stated_labels, about_labels = _slope(fit, seen, B, label_bound)
        L, stated = seen.weight * slope * B, stated_rows and stated_labels
        assumptions = (*about_rows, *about_labels)
    if fit.sample_weight is not None or leak.source.weighted:
        assumptions = (*assumptions, "The sample weights do not depend on the data.")
    return Sensitivity(2 * L / fit.ridge, L, stated, assumptions)


def output_perturbation(
    leak: Leakage[Any],
    *,
    row_norm: float | None = None,
    label_bound: float | None = None,
    lipschitz: float | None = None,
) -> PrivacyStatement:
    """Return the privacy guarantee of a release's noise, from :func:`output_sensitivity`.

    Gaussian noise provides :class:`GaussianDP` with ``μ = sensitivity/σ`` (σ is the smallest
    standard deviation in any direction), so ``ε(2) = 4L²/(nλσ)²``. Laplace noise provides pure
    differential privacy with ``ε = √P · sensitivity/b`` for P released numbers.
    """
    sensitivity = output_sensitivity(
        leak, row_norm=row_norm, label_bound=label_bound, lipschitz=lipschitz
    )
    (noise,) = leak.noise
    size = leak.release.template.size
    what = (
        "gradient of one step is published"
        if leak.release.model is None
        else "parameters are published"
    )
    what = "answers to these queries are published" if noise.on else what
    assumptions = (f"Only the noisy {what}.", *sensitivity.assumptions)
    if isinstance(noise, Gaussian):
        information = np.asarray(noise.information(size))
        worst = np.linalg.eigvalsh(information)[-1] if information.ndim == 2 else information.max()
        mu = sensitivity.value * math.sqrt(float(worst))
        return GaussianDP(mu, assumptions=assumptions, guarantee=sensitivity.guarantee)
    if isinstance(noise, Laplace):
        epsilon = math.sqrt(size) * sensitivity.value / float(np.min(noise.scale))
        return DifferentialPrivacy(
            epsilon, assumptions=assumptions, guarantee=sensitivity.guarantee
        )
    raise InputError(f"No privacy guarantee is known for {noise!r}; use sp.Gaussian or sp.Laplace.")


def clip_rows(X: Any, norm: float) -> Array:
    """Return the table as an array, with rows longer than ``norm`` scaled down to this norm.

    If you clip every table before the fit, ``norm`` bounds every possible record's norm, whatever
    the data. Pass it as ``row_norm`` to :func:`output_sensitivity`.
    """
    check_positive(norm, "norm")
    values = read_table(X).values
    xp = array_namespace(values)
    lengths = xp.sqrt(xp.sum(values * values, axis=1))
    longer = lengths > norm
    # A hair below the norm, so that rounding lifts no row above it.
    scale = xp.where(longer, norm * (1 - 1e-14) / xp.where(longer, lengths, 1.0), 1.0)
    return values * scale[:, None]


def epsilon_printed_by_guo_2022(n: int, l2: float, sigma: float) -> float:
    """Return ``2/(nλσ)``, which Guo et al. 2022 print as ε at order 2 (section 7.1).

    This value is only for comparison with Figure 2 of that paper. The actual Rényi divergence of
    output perturbation is ``4L²/(nλσ)²``.
    """
    return 2 / (n * l2 * sigma)


def _penalised_fit(leak: Leakage[Any]) -> FittedGLM:
    fit: FittedGLM | None = leak.release.model
    if CLASS_WEIGHTS in leak.held:
        raise InputError(
            "class_weight='balanced' computes the weights from the labels, so one record changes "
            "the weights of other records, and no bound on the sensitivity is known. Fit with "
            "fixed class weights, as class_weight={class: weight}."
        )
    if fit is None or len(leak.noise) != 1:
        raise InputError(
            "The sensitivity is known only for a single release, of a linear model or of clipped "
            "gradients; for any other, state the privacy guarantee with sp.guarantees(…, dp=…)."
        )
    if fit.ridge == 0:
        raise InputError(
            "Without a penalty, the sensitivity to one record is unbounded; fit with a penalty."
        )
    if fit.intercept is not None:
        raise InputError(
            "The intercept is not penalised, so its sensitivity is unbounded; fit without an "
            "intercept, or replace it with a column of ones in the table, which is penalised."
        )
    return fit


@dataclass(frozen=True)
class LargestSeen:
    """The largest norm, absolute label and weight in some records, and the sum of the weights."""

    norm: float
    row: int
    label: float
    weight: float
    total: float

    def __add__(self, other: LargestSeen) -> LargestSeen:
        longer = self if self.norm >= other.norm else other
        return LargestSeen(
            longer.norm,
            longer.row,
            max(self.label, other.label),
            max(self.weight, other.weight),
            self.total + other.total,
        )


def _largest_in(chunk: Chunk, fit: FittedGLM) -> LargestSeen:
    xp = array_namespace(chunk.X)
    lengths = xp.sqrt(xp.sum(chunk.X * chunk.X, axis=1))
    row = int(xp.argmax(lengths))
    # For a table in memory, labels and weights are those of the fit; a chunk brings its own.
    weight = chunk.weight if fit.sample_weight is None else fit.sample_weight
    label = 0.0
    if fit.family.name in _LABELLED:
        target = fit.target if fit.target.shape[0] else chunk.y
        label = float(np.max(np.abs(as_numpy(target))))
    return LargestSeen(
        float(lengths[row]),
        chunk.start + row,
        label,
        1.0 if weight is None else float(np.max(as_numpy(weight))),
        float(len(chunk)) if weight is None else float(as_numpy(weight).sum()),
    )


def _row_norm(seen: LargestSeen, stated: float | None) -> tuple[float, bool, tuple[str, ...]]:
    if stated is None:
        return seen.norm, False, (_FROM_THE_DATA.format(f"‖x‖, {seen.norm:.4g},"),)
    if seen.norm > stated:
        raise InputError(
            f"Row {seen.row} has norm {seen.norm:.4g}, above the stated row_norm {stated:g}; fit "
            f"on sp.privacy.clip_rows(X, {stated:g}), or state a larger row_norm."
        )
    return float(stated), True, (f"No record's norm exceeds {stated:g}.",)


def _slope(
    fit: FittedGLM, seen: LargestSeen, row_norm: float, label_bound: float | None
) -> tuple[float, bool, tuple[str, ...]]:
    """Return a bound on ``|∂ℓ/∂m|`` at any minimiser.

    Also return whether the bound is independent of the data, and the assumptions behind it.
    """
    if isinstance(fit.family, Categorical):
        return math.sqrt(2.0), True, ()
    if fit.family.name == "bernoulli":
        return 1.0, True, ()
    if fit.family.name not in _LABELLED:
        raise InputError(
            f"No Lipschitz constant is known for the family {fit.family.name!r}; pass lipschitz=."
        )
    if label_bound is None:
        Y, stated, about = seen.label, False, _FROM_THE_DATA.format(f"|y|, {seen.label:.4g},")
    else:
        if seen.label > label_bound:
            raise InputError(
                f"A label has absolute value {seen.label:.4g}, above the stated label_bound "
                f"{label_bound:g}; clip the labels and fit again, or state a larger bound."
            )
        Y, stated, about = (
            float(label_bound),
            True,
            f"No label's absolute value exceeds {label_bound:g}.",
        )
    n = seen.total
    if fit.family.name == "gaussian":
        return Y + row_norm * Y * math.sqrt(n / fit.ridge), stated, (about,)
    # F(0) = Σω, and e^m − y m ≥ y − y log y, which is least at one end of 0 ≤ y ≤ Y.
    excess = max(0.0, Y * math.log(Y) - Y) if Y > 0 else 0.0
    margin = row_norm * math.sqrt(2 * (n / fit.ridge) * (1 + excess))
    return max(math.exp(min(margin, 700.0)), Y), stated, (about,)
