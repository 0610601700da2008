"""Prior distributions of a record, and the van Trees bound, which depends on them.

With the information ``I`` of the release and ``I_prior`` of the prior about d unknowns, any
estimate, biased or not, has on average over the prior (Gill and Levit 1995)::

    MSE per unknown  ≥  Tr[(E I + I_prior)⁻¹]/d  ≥  d/Tr(E I + I_prior)

The expectation is over the prior: the information is averaged over draws, and the model is refitted
for each draw as if the record had the drawn values. The information at the true record alone yields
a different value, which is not a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import cosine

from seepage.bounds.cramer_rao import square
from seepage.core.leakage import Columns, Leakage
from seepage.core.result import UNBIASED, Result
from seepage.errors import InputError, accepts_other_names
from seepage.support.chunks import progress, row_slices
from seepage.support.number_check import check_count
from seepage.tables.source import Chunk, RowSource, Table, as_numpy, check_column


@dataclass(frozen=True, eq=False)
class Domain:
    """The lower and upper limits of every column.

    Parameters
    ----------
    lower, upper
        The limits: two arrays with one number per column.
    stated
        Whether the limits were stated in advance; limits taken from the data provide no guarantee.
    """

    lower: np.ndarray
    upper: np.ndarray
    stated: bool

    @property
    def diameters(self) -> np.ndarray:
        """The largest difference between records in each column (Guo et al. 2022, theorem 1)."""
        return np.asarray(self.upper - self.lower)

    @property
    def row_norm(self) -> float:
        """The largest Euclidean norm of a record within the limits."""
        return float(np.linalg.norm(np.maximum(np.abs(self.lower), np.abs(self.upper))))

    @property
    def words(self) -> str:
        """A sentence that states where the limits come from."""
        if self.stated:
            return "Every column lies within the stated limits."
        return (
            "Every column lies within its range in the data; that range depends on the data, so "
            "this is not a guarantee."
        )

    @classmethod
    def of(cls, domain: Any, data: RowSource | Table) -> Domain:
        """Return the domain of a table, from the caller's argument.

        The argument is a pair ``(lower, upper)``, each of them one number or one per column; a
        mapping from every column's name to such a pair; or ``None`` for the columns' ranges in the
        data.
        """
        return cls.within(domain, data.names, ColumnSpread.of(data))

    @classmethod
    def of_column(cls, domain: Any, data: RowSource | Table, column: int) -> Domain:
        """Return the domain of one column, from limits for this column or for all columns."""
        name, one = data.names[column], slice(column, column + 1)
        if isinstance(domain, Domain):
            domain = cls(domain.lower[one], domain.upper[one], domain.stated)
        elif isinstance(domain, Mapping):
            domain = {key: pair for key, pair in domain.items() if key == name} or domain
        elif domain is not None:
            domain = [side if np.ndim(side) == 0 else np.asarray(side)[column] for side in domain]
        every = ColumnSpread.of(data)
        parts = (every.least, every.most, every.mean, every.squares)
        spread = ColumnSpread(every.count, *(part[one] for part in parts))
        return cls.within(domain, (name,), spread)

    @classmethod
    def within(cls, domain: Any, names: tuple[str, ...], spread: ColumnSpread) -> Domain:
        """Return the stated domain, checked against the data, or by default the data's ranges."""
        if domain is None:
            return cls(spread.least, spread.most, False)
        if isinstance(domain, Domain):
            limits = domain
        else:
            lower, upper = _read_limits(domain, names)
            limits = cls(lower, upper, True)
        if limits.lower.shape != (len(names),) or limits.upper.shape != limits.lower.shape:
            raise InputError(f"The domain must have limits for every column ({len(names)} in all).")
        for name, low, high in zip(names, limits.lower, limits.upper, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise InputError(
                    f"The limits of column {name!r} must be finite, with the lower limit first."
                )
        outside = np.flatnonzero((spread.least < limits.lower) | (spread.most > limits.upper))
        if outside.size:
            j = int(outside[0])
            raise InputError(
                f"Column {names[j]!r} ranges from {spread.least[j]:.4g} to {spread.most[j]:.4g} in "
                f"the data, outside the stated domain from {limits.lower[j]:.4g} to "
                f"{limits.upper[j]:.4g}; widen the domain."
            )
        return limits


@dataclass(frozen=True, eq=False)
class ColumnSpread:
    """The range, mean and variance of every column; ``+`` combines two chunks."""

    count: int
    least: np.ndarray
    most: np.ndarray
    mean: np.ndarray
    squares: np.ndarray  # the sum of (x − mean)²

    @classmethod
    def of(cls, data: RowSource | Table) -> ColumnSpread:
        """Compute the ranges, means and variances in one pass over the records."""
        return data.total(_spread_of_chunk, "ranges of the columns")

    @property
    def variance(self) -> np.ndarray:
        """The variance of every column."""
        return self.squares / self.count

    def __add__(self, other: ColumnSpread) -> ColumnSpread:
        count, gap = self.count + other.count, other.mean - self.mean
        share = other.count / count
        return ColumnSpread(
            count,
            np.minimum(self.least, other.least),
            np.maximum(self.most, other.most),
            self.mean + share * gap,
            self.squares + other.squares + self.count * share * gap**2,
        )


def _spread_of_chunk(chunk: Chunk) -> ColumnSpread:
    X = as_numpy(chunk.X).astype(float, copy=False)
    mean, squares = X.mean(axis=0), np.zeros(X.shape[1])
    for rows in row_slices(*X.shape):
        squares += np.sum((X[rows] - mean) ** 2, axis=0)
    return ColumnSpread(len(X), X.min(axis=0), X.max(axis=0), mean, squares)


def _read_limits(domain: Any, names: tuple[str, ...]) -> list[np.ndarray]:
    d = len(names)
    if isinstance(domain, Mapping):
        return list(_by_name(domain, names).T)
    try:
        lower, upper = domain
        sides = [np.asarray(side, dtype=float) for side in (lower, upper)]
        return [np.array(np.broadcast_to(side, (d,))) for side in sides]
    except (TypeError, ValueError):
        raise InputError(
            f"domain must be (lower, upper), each one number or one per column ({d} in all), or a "
            "mapping from column names to such pairs."
        ) from None


def _by_name(domain: Mapping[Any, Any], names: tuple[str, ...]) -> np.ndarray:
    for name in domain:
        check_column(name, names)
    missing = [name for name in names if name not in domain]
    if missing:
        raise InputError(
            f"The domain has no limits for the column {missing[0]!r}; give limits for every "
            "column, or omit domain= to use the ranges in the data."
        )
    try:
        pairs = [[float(end) for end in domain[name]] for name in names]
        return np.array(pairs).reshape(len(names), 2)
    except (TypeError, ValueError):
        raise InputError("domain must map every column to its limits (lower, upper).") from None


@dataclass(frozen=True, eq=False)
class GaussianPrior:
    """A Gaussian prior on the unknowns.

    Parameters
    ----------
    std
        The standard deviation of the unknowns: one number, or one per unknown; or their covariance
        matrix.
    mean
        The mean of the unknowns: one number, or one per unknown.
    """

    std: Any
    mean: Any = 0.0

    def information(self, size: int) -> np.ndarray:
        """Return the prior's information: ``1/std²`` per unknown, or the inverse covariance."""
        std = np.asarray(self.std, dtype=float)
        if std.ndim == 2:
            return np.asarray(np.linalg.inv(self.covariance(size)))
        return np.asarray(np.diagonal(self.covariance(size)) ** -1.0)

    def covariance(self, size: int) -> np.ndarray:
        """Return the covariance matrix of ``size`` unknowns."""
        std = np.asarray(self.std, dtype=float)
        if std.ndim < 2:
            std = _spread(std, size, "standard deviations")
            if not np.all(std > 0):
                raise InputError("A prior's standard deviations must be above zero.")
            return np.diag(std**2)
        if std.shape != (size, size):
            raise InputError(
                f"The prior's covariance has shape {std.shape}; pass a matrix of shape ({size}, "
                f"{size}), with one row and one column for each unknown."
            )
        if not np.allclose(std, std.T) or np.linalg.eigvalsh(std)[0] <= 0:
            raise InputError("A prior's covariance must be symmetric and positive definite.")
        return std

    def centre(self, size: int) -> np.ndarray:
        """Return the mean of ``size`` unknowns."""
        return _spread(np.asarray(self.mean, dtype=float), size, "means")

    def draw(self, count: int, size: int, generator: np.random.Generator) -> np.ndarray:
        """Draw ``count`` records of ``size`` unknowns."""
        root = np.linalg.cholesky(self.covariance(size))
        return np.asarray(self.centre(size) + generator.standard_normal((count, size)) @ root.T)

    @property
    def words(self) -> str:
        """A sentence that describes the prior."""
        mean, spread = (
            f"{what} {_short(value)}" if np.ndim(value) == 0 else f"a {what} for each unknown"
            for value, what in ((self.mean, "mean"), (self.std, "standard deviation"))
        )
        spread = "a known covariance" if np.ndim(self.std) == 2 else spread
        return (
            f"Before the release, the adversary's prior on the unknowns is Gaussian with {mean} "
            f"and {spread}."
        )

    def __repr__(self) -> str:
        return f"GaussianPrior(std={_short(self.std)}, mean={_short(self.mean)})"


@dataclass(frozen=True, eq=False)
class BoundedPrior:
    """A prior under which each unknown is between two limits.

    Among all densities that vanish at the limits, ``(2/width) cos²(π (z − centre)/width)`` has the
    smallest Fisher information, ``(2π/width)²``. The van Trees bound with this prior is valid on
    average over that density, and therefore also for the worst-case record between the limits.
    """

    lower: Any
    upper: Any

    def information(self, size: int) -> np.ndarray:
        """Return the prior's Fisher information about each unknown, ``(2π/width)²``."""
        lower, upper = self._limits(size)
        return np.asarray((2 * np.pi / (upper - lower)) ** 2)

    def draw(self, count: int, size: int, generator: np.random.Generator) -> np.ndarray:
        """Draw ``count`` records of ``size`` unknowns from the squared-cosine density."""
        lower, upper = self._limits(size)
        # (1 + cos x)/2π on −π to π is the same density.
        x = cosine.ppf(generator.random((count, size)))
        return np.asarray((lower + upper) / 2 + x / (2 * np.pi) * (upper - lower))

    def _limits(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        lower = _spread(np.asarray(self.lower, dtype=float), size, "lower limits")
        upper = _spread(np.asarray(self.upper, dtype=float), size, "upper limits")
        if not np.all(upper > lower):
            raise InputError("The upper limits of a bounded prior must be above the lower limits.")
        return lower, upper

    @property
    def words(self) -> str:
        """A sentence that describes the prior."""
        limits = "its own limits"
        if np.ndim(self.lower) == np.ndim(self.upper) == 0:
            limits = f"{_short(self.lower)} and {_short(self.upper)}"
        return (
            f"Before the release, the adversary knows that each unknown is between {limits}, and "
            "more likely near the middle than near an end."
        )

    def __repr__(self) -> str:
        return f"BoundedPrior(lower={_short(self.lower)}, upper={_short(self.upper)})"


@dataclass(frozen=True, eq=False)
class EmpiricalPrior:
    """A discrete prior: the record is one of the given records, with the given probabilities.

    A discrete prior has no density, so there is no van Trees bound.
    :class:`seepage.attacks.LinearisedAdversary` uses this prior.

    Parameters
    ----------
    points
        The candidate records, (m, d), such as other people's records or a public sample.
    weights
        Weights proportional to the records' probabilities; equal by default.
    """

    points: Any
    weights: Any = None

    def records(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the records, (m, size), and their probabilities, (m,)."""
        points = np.asarray(self.points, dtype=float)
        if points.ndim != 2 or points.shape[1] != size or len(points) == 0:
            raise InputError(
                f"An empirical prior needs an array of shape (records, {size}), with one column "
                f"per unknown, not of shape {points.shape}."
            )
        weights = np.ones(len(points)) if self.weights is None else np.asarray(self.weights, float)
        if weights.shape != (len(points),) or np.any(weights < 0) or not weights.sum() > 0:
            raise InputError(
                "An empirical prior needs one non-negative weight for each record, not all zero."
            )
        return points, weights / weights.sum()

    def __repr__(self) -> str:
        return f"EmpiricalPrior({len(np.asarray(self.points))} records)"


def _spread(values: np.ndarray, size: int, what: str) -> np.ndarray:
    if values.ndim > 1 or (values.ndim == 1 and values.shape[0] != size):
        raise InputError(
            f"The prior's {what} have shape {values.shape}; pass one number, or one per unknown "
            f"({size} in all)."
        )
    if not np.all(np.isfinite(values)):
        raise InputError(f"The prior's {what} must be finite.")
    return np.broadcast_to(values, (size,))


def _short(value: Any) -> str:
    numbers = np.asarray(value, dtype=float)
    if numbers.ndim == 0:
        return f"{float(numbers):.4g}"
    return "<covariance>" if numbers.ndim == 2 else f"<{numbers.shape[0]} numbers>"


Prior = GaussianPrior | BoundedPrior


def van_trees(information: Any, prior: Prior) -> Result:
    """Return the van Trees bound, which is valid for every estimate, biased or not.

    The bound is ``Tr[(E I + I_prior)⁻¹]/d``, on the mean squared error per unknown, averaged over
    the prior. ``I`` and ``I_prior`` are the information of release and prior about the d unknowns.

    Parameters
    ----------
    information
        The information matrices at draws from the prior, ``(draws, d, d)``, which are averaged; or
        their mean, ``(d, d)``. The information at the true record alone is sufficient only if it
        does not depend on the record.
    prior
        The adversary's prior on the unknowns.
    """
    _check_prior(prior)
    matrices = as_numpy(information).astype(float)
    expected = square(matrices.mean(axis=0) if matrices.ndim == 3 else matrices, "information")
    inverse = _inverse(expected, prior)
    value = np.asarray(np.trace(inverse) / expected.shape[0])
    assumptions = _assumptions(prior)
    return Result(value, "subset", "mse", kind="bound", assumptions=assumptions)


@accepts_other_names
def van_trees_rows(
    leak: Leakage,
    prior: Prior,
    rows: Any,
    columns: Columns = None,
    *,
    draws: int = 128,
    seed: int = 0,
) -> Result:
    """Return the van Trees bound for each of the given records, computed by refits.

    Each row is replaced by draws from the prior, the model is refitted for each draw, and the
    information from these refits is averaged. The adversary knows all other rows, the label and, if
    ``columns`` is given, the row's other columns.

    Parameters
    ----------
    leak
        The leakage of one release.
    prior
        The adversary's prior on the row's unknown columns.
    rows
        The positions of the rows, or a mask. Each row needs ``draws`` refits.
    columns
        The unknown columns; by default, all columns.
    draws
        The number of draws from the prior. The result's ``assumptions`` state the standard error
        due to sampling.
    seed
        The seed of the draws, which are the same for every row.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((50, 2)), rng.standard_normal(50)
    >>> model = sp.glm.LinearRegression(l2=0.1).fit(X, y)
    >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.01))
    >>> bound = sp.bounds.van_trees_rows(leak, sp.bounds.GaussianPrior(std=1.0), rows=[0])
    >>> bool(0 < bound[0] < 1)
    True
    """
    _check_prior(prior)
    check_count(draws, "draws", 2)
    refits, noise = leak.refits(), leak.noise[0]
    unknowns, about = leak.unknowns(columns, False)
    everything = range(len(leak.source.names))
    which = list(everything if unknowns.columns is None else unknowns.columns)
    size = len(which)
    drawn = prior.draw(draws, size, np.random.default_rng(seed))
    positions = as_numpy(leak.row_positions(rows))
    values, errors, means = [], [], []
    for row in progress(positions.tolist(), "averaging over the prior"):
        features = np.repeat(refits.X[row][None, :], draws, axis=0)
        features[:, which] = drawn
        theta = refits.parameters(row, features)
        if not np.all(np.isfinite(theta)):
            raise InputError(
                f"With some values that the prior allows for row {row}, the model has no "
                "minimiser; set a penalty (l2 above 0), or use a narrower prior."
            )
        label = refits.target[row, ...]
        each = (
            refits.jacobian(row, z, label, w, noise) for z, w in zip(features, theta, strict=True)
        )
        information = np.stack(
            [as_numpy(at.row_information(unknowns)(slice(0, 1))[0]).astype(float) for at in each]
        )
        means.append(information.mean(axis=0))
        inverse = _inverse(means[-1], prior)
        values.append(np.trace(inverse) / size)
        # To first order, each draw's effect on the bound.
        pulls = np.einsum("ij,kjl,li->k", inverse, information, inverse) / size
        errors.append(pulls.std(ddof=1) / np.sqrt(draws))
    off = max(error / value for error, value in zip(errors, values, strict=True))
    sampled = (
        f"The expectation over the prior is an average over {draws} draws, with one refit each; "
        f"the bound's relative standard error is at most {off:.1%}."
    )
    index = None if leak.source.index is None else leak.source.index[positions]
    result = Result(
        np.asarray(values),
        "rows",
        "mse",
        kind="bound",
        about=about,
        index=positions if index is None else index,
        assumptions=(*_assumptions(prior), *leak.assumptions(unknowns.label), sampled),
        library=leak.source.library,
        noise=leak.noise,
        held=leak.held_about(unknowns.label),
    )

    def rescaled(factor: float) -> Result:
        """Return the bound with the noise scaled by this factor and the same prior."""
        traces = [np.trace(_inverse(mean / factor**2, prior)) / size for mean in means]
        return replace(result, values=np.asarray(traces))

    return replace(result, rescaled=rescaled)


def _check_prior(prior: Any) -> None:
    if isinstance(prior, EmpiricalPrior):
        raise InputError(
            "An empirical prior has no density, so there is no van Trees bound; use a "
            "GaussianPrior or a BoundedPrior."
        )
    if not isinstance(prior, GaussianPrior | BoundedPrior):
        raise InputError("prior must be a GaussianPrior or a BoundedPrior.")


def _inverse(expected: np.ndarray, prior: Prior) -> np.ndarray:
    known = prior.information(expected.shape[0])
    return np.asarray(np.linalg.inv(expected + (known if known.ndim == 2 else np.diag(known))))


def _assumptions(prior: Prior) -> tuple[str, ...]:
    return (
        prior.words,
        "The error is averaged over this prior.",
        *UNBIASED[1:],
    )
