"""Additive noise, and the attacker's knowledge of other records.

The noise classes compute the Fisher information of a release and draw the noise. For an attacker
who does not know the other records, a release is random even without noise. The formulas use the
share of that randomness that remains given the attacker's knowledge (:meth:`Attacker.unknown`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from seepage.errors import InputError, accepts_other_names
from seepage.support.keyed_stream import KeyedStream, grid_of
from seepage.support.number_check import check_count, check_number
from seepage.tables.names import counted
from seepage.tables.source import row_labels

Source = KeyedStream | np.random.Generator


class Noise(ABC):
    """Additive noise with mean zero.

    The Fisher information of a release ``r(D) + noise`` about the data ``D`` is ``Jᵀ Φ J`` with
    ``J = ∂r/∂D``, where :meth:`information` returns ``Φ``, the location information of the noise.
    """

    on: ClassVar[str] = ""
    """The quantity to which the noise is added, if not the released parameters."""

    @abstractmethod
    def information(self, size: int) -> np.ndarray:
        """Return ``Φ`` for a release of ``size`` numbers, as a scalar, a diagonal or a matrix."""

    def root(self, size: int) -> np.ndarray:
        """Return a factor ``F`` with ``FᵀF = Φ``, as a scalar, a diagonal or a matrix."""
        information = self.information(size)
        if information.ndim < 2:
            return np.asarray(np.sqrt(information))
        return np.asarray(np.linalg.cholesky(information).T)

    @abstractmethod
    def scaled(self, factor: float) -> Noise:
        """Return the same noise, ``factor`` times as large."""

    @abstractmethod
    def _draw(self, shape: tuple[int, ...], source: Source) -> np.ndarray: ...

    @accepts_other_names
    def draw(self, shape: int | tuple[int, ...], seed: int | None = None) -> np.ndarray:
        """Draw noise; the last axis of ``shape`` runs over the released numbers.

        Without a seed, the numbers come from ChaCha20 with a new 256-bit key from the operating
        system, so nobody can reproduce them. A real release must be drawn without a seed. A fixed
        ``seed`` makes an experiment repeatable but leaves a release unprotected: anybody who knows
        the seed can subtract the noise.
        """
        wanted = (shape,) if isinstance(shape, int) else tuple(shape)
        return self._draw(
            wanted, KeyedStream.fresh() if seed is None else np.random.default_rng(seed)
        )

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Return noisy numbers rounded to a grid.

        Further digits could leak the noiseless value. The grid step is at most 1/4096 of the
        noise's standard deviation (:func:`~seepage.support.keyed_stream.grid_of`). The last axis of
        ``values`` runs over the released numbers.
        """
        scales = np.broadcast_to(self._scales(), values.shape[-1:])
        grid = np.asarray([grid_of(float(scale)) for scale in scales])
        return np.asarray(np.round(values / grid) * grid)

    @abstractmethod
    def _scales(self) -> np.ndarray:
        """Return the standard deviation, or the scale, of the noise on each released number."""


@dataclass(frozen=True, eq=False)
class Gaussian(Noise):
    """Gaussian noise: ``Φ = Σ⁻¹``, which is ``I/σ²`` for a scalar standard deviation.

    Parameters
    ----------
    sigma
        A standard deviation, a vector of standard deviations (one per released number), or a
        covariance matrix.
    """

    sigma: Any

    def __post_init__(self) -> None:
        sigma = np.asarray(self.sigma, dtype=float)
        if sigma.ndim > 2 or (sigma.ndim == 2 and sigma.shape[0] != sigma.shape[1]):
            raise InputError(
                f"sigma must be a number, a vector or a square covariance matrix, not an array of "
                f"shape {sigma.shape}."
            )
        if sigma.ndim == 2:
            _check_covariance(sigma)
        else:
            _check_positive(sigma, "sigma")
        object.__setattr__(self, "sigma", float(sigma) if sigma.ndim == 0 else sigma)

    def information(self, size: int) -> np.ndarray:
        """Return ``1/σ²`` (scalar), ``1/σ_k²`` (vector) or ``Σ⁻¹`` (matrix)."""
        sigma = np.asarray(self.sigma)
        _check_size(sigma, size)
        if sigma.ndim == 2:
            root = self.root(size)
            return np.asarray(root.T @ root)
        return np.asarray(sigma**-2.0)

    def root(self, size: int) -> np.ndarray:
        """Return ``1/σ``, ``1/σ_k``, or ``L⁻¹`` of the covariance ``LLᵀ``."""
        sigma = np.asarray(self.sigma)
        if sigma.ndim:
            _check_size(sigma, size)
        if sigma.ndim < 2:
            return np.asarray(1 / sigma)
        # Scaled to correlations first, so that very different variances cost no digits.
        deviations = np.sqrt(np.diagonal(sigma))
        lower = np.linalg.cholesky(sigma / np.outer(deviations, deviations))
        return np.asarray(np.linalg.solve(lower, np.diag(1 / deviations)))

    def scaled(self, factor: float) -> Gaussian:
        """Return noise whose standard deviations are ``factor`` times as large."""
        _check_positive(np.asarray(factor), "the factor")
        return replace(self, sigma=self.sigma * (factor**2 if np.ndim(self.sigma) == 2 else factor))

    def _draw(self, shape: tuple[int, ...], source: Source) -> np.ndarray:
        _check_size(np.asarray(self.sigma), shape[-1])
        standard = source.standard_normal(shape)
        if np.ndim(self.sigma) == 2:
            return np.asarray(standard @ np.linalg.cholesky(self.sigma).T)
        return np.asarray(standard * self.sigma)

    def _scales(self) -> np.ndarray:
        sigma = np.asarray(self.sigma)
        return np.sqrt(np.diag(sigma)) if sigma.ndim == 2 else sigma

    def __repr__(self) -> str:
        return f"Gaussian({_short(self.sigma)})"


@dataclass(frozen=True, eq=False)
class Laplace(Noise):
    """Independent Laplace noise of scale ``b``, with variance ``2b²`` and ``Φ = I/b²``.

    Parameters
    ----------
    scale
        The scale ``b``, one number or one per released number.
    """

    scale: Any

    def __post_init__(self) -> None:
        scale = np.asarray(self.scale, dtype=float)
        if scale.ndim > 1:
            raise InputError(
                f"scale must be a number or a vector, not an array of shape {scale.shape}."
            )
        _check_positive(scale, "scale")
        object.__setattr__(self, "scale", float(scale) if scale.ndim == 0 else scale)

    def information(self, size: int) -> np.ndarray:
        """Return ``1/b²`` (scalar or vector)."""
        scale = np.asarray(self.scale)
        _check_size(scale, size)
        return np.asarray(scale**-2.0)

    def scaled(self, factor: float) -> Laplace:
        """Return noise whose scale is ``factor`` times as large."""
        _check_positive(np.asarray(factor), "the factor")
        return Laplace(self.scale * factor)

    def _draw(self, shape: tuple[int, ...], source: Source) -> np.ndarray:
        _check_size(np.asarray(self.scale), shape[-1])
        return np.asarray(source.laplace(size=shape) * self.scale)

    def _scales(self) -> np.ndarray:
        return np.asarray(self.scale)

    def __repr__(self) -> str:
        return f"Laplace({_short(self.scale)})"


@dataclass(frozen=True, eq=False)
class Attacker:
    """The attacker's background knowledge in membership inference.

    Parameters
    ----------
    knows
        The share of the other records (or people) that the attacker knows: 1 for all of them, 0 for
        an outsider, who knows only the population. Alternatively, the known records, as a mask or
        positions: only the other records then vary and are measured. (A share means a random
        subset: results are averages over such subsets.)
    reference
        The number of reference records from which the attacker estimates the population. By
        default, the attacker is assumed to know the population exactly, which overstates the risk.
    fraction
        The share of the population that is in the data. Sampling without replacement reduces the
        variance of the other records by the factor ``1 − fraction``.

    Examples
    --------
    >>> import seepage as sp
    >>> sp.Attacker(knows=0.9).unknown(500)
    0.1
    """

    knows: Any = 1.0
    reference: int | None = None
    fraction: float = 0.0
    # The row labels of a mask that is a pandas series, until they meet those of the table
    labels: np.ndarray | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.names_records:
            labels = row_labels(self.knows)
            object.__setattr__(self, "knows", _checked_records(self.knows))
            object.__setattr__(self, "labels", labels if self.knows.dtype == bool else None)
        shares = {"knows": self._share, "fraction": self.fraction}
        for name, value in shares.items():
            check_number(value, name)
            if isinstance(value, bool) or not 0 <= value <= 1:
                raise InputError(f"{name} must be a share from 0 to 1, not {value!r}.")
        if self.fraction == 1:
            raise InputError(
                "With fraction=1 the data are the whole population, so an attacker who knows the "
                "population knows every record; use a fraction below 1."
            )
        if self.reference is not None:
            check_count(self.reference, "reference")

    @property
    def names_records(self) -> bool:
        """Whether ``knows`` lists records instead of stating a share."""
        return not isinstance(self.knows, str) and np.ndim(self.knows) > 0

    @property
    def _share(self) -> float:
        """The share of the other records that the attacker knows; 0 if ``knows`` lists records."""
        share: float = 0.0 if self.names_records else self.knows
        return share

    @property
    def knows_all(self) -> bool:
        """Whether the attacker knows all other records."""
        return bool(self._share == 1)

    def unknown(self, people: int) -> float:
        """Return ``(1 − f)(u + u²n/m)``: the share of the other records' variance that remains.

        ``u = 1 − knows`` is the share of the other records that the attacker does not know, ``n``
        the number of people, ``m`` the number of reference records and ``f`` the fraction. The
        sampling error of the reference records adds to the variance of the other records. If
        ``knows`` lists records, ``people`` counts only people whom the attacker does not know, and
        u is 1.
        """
        u = round(1 - self._share, 12)  # so that knows=0.9 leaves 0.1, not 0.09999…
        learnt = 0.0 if self.reference is None else u**2 * people / self.reference
        return (1 - self.fraction) * (u + learnt)

    def __str__(self) -> str:
        if self.knows_all:
            return "an attacker who knows all other records"
        if self.names_records:
            known = self.knows.sum() if self.knows.dtype == bool else len(np.unique(self.knows))
            what = "one of the records" if known == 1 else f"{known:,} of the records"
            return f"an attacker who knows {what}"
        learnt = ""
        if self.reference is not None:
            learnt = f", and the population from {self.reference:,} records"
        if self.knows == 0:
            return f"an outsider, who knows none of the other records{learnt}"
        return f"an attacker who knows {100 * self.knows:.3g} % of the other records{learnt}"


def _checked_records(knows: Any) -> np.ndarray:
    """Return the records that an attacker knows, as a mask or positions."""
    known = np.array(knows)
    if not (known.any() if known.dtype == bool else known.size):
        raise InputError("knows= lists no record; for an attacker who knows none, pass knows=0.0.")
    if known.ndim != 1 or known.dtype.kind not in "biu":
        raise InputError(
            "knows must be a share from 0 to 1, or the known records: a boolean mask, or row "
            "positions (whole numbers)."
        )
    return known


def check_noise_kind(noise: Any) -> None:
    """Raise an error unless this is a noise object."""
    if not isinstance(noise, Noise):
        raise InputError(
            "noise must be sp.Gaussian(sigma) or sp.Laplace(scale), not a value of type "
            f"{type(noise).__name__}."
        )
    if noise.on:
        raise InputError(
            f"This noise is on {noise.on}, not on the parameters: pass "
            "release=sp.Predictions(queries) with it to sp.leakage, or measure the parameters "
            "with another noise."
        )


def _check_positive(value: np.ndarray, what: str) -> None:
    wrong = ~(np.isfinite(value) & (value > 0))
    if np.any(wrong):
        first = float(value[wrong][0])
        shown = f"{first:g}" if value.ndim == 0 else f"a vector with {first:g} in it"
        raise InputError(f"{what} must be a finite number above zero, not {shown}.")


def _check_covariance(sigma: np.ndarray) -> None:
    if not np.all(np.isfinite(sigma)) or not np.allclose(sigma, sigma.T, rtol=1e-10, atol=0):
        raise InputError(
            "A covariance matrix must be finite and symmetric, but this sigma is not; "
            "check its entries."
        )
    variances = np.diagonal(sigma)
    smallest = float(np.min(variances))
    if smallest > 0:
        # Of the correlations, so that very different variances do not look like a lack of noise.
        deviations = np.sqrt(variances)
        smallest = float(np.linalg.eigvalsh(sigma / np.outer(deviations, deviations))[0])
    if smallest <= 1e-15 * len(sigma):
        raise InputError(
            "A covariance matrix must be positive definite, but this sigma leaves some direction "
            "of the release without noise (smallest eigenvalue of the correlation matrix "
            f"{smallest:g}). Add a multiple of the identity matrix to sigma."
        )


def _check_size(parameter: np.ndarray, size: int) -> None:
    if np.ndim(parameter) > 0 and np.shape(parameter)[0] != size:
        raise InputError(
            f"The release has {counted(size, 'number')} (including any intercept), but the noise "
            f"has {np.shape(parameter)[0]}; pass one number, or one entry per released number."
        )


def _short(value: Any) -> str:
    if np.ndim(value) == 0:
        return f"{float(value):.6g}"
    kind = "covariance" if np.ndim(value) == 2 else "vector"
    return f"<{kind} of {np.shape(value)[0]}>"
