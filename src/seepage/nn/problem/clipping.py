"""Clips a gradient before release: a hard clip, a smooth clip with GELU, or no clip.

A clipped gradient is ``g̃ = g/φ(n)`` with ``n = ‖g‖``. A change ``∂g`` of the gradient becomes

    ∂g̃ = (∂g − (1 − ρ) ĝ ĝᵀ∂g)/φ,     ρ(n) = 1 − nφ′/φ,     ĝ = g/n

so the component of ``∂g`` orthogonal to ``g`` is scaled by ``1/φ``, and the component along ``g``
by ``ρ/φ``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.support.number_check import check_choice, check_positive


class Clip(ABC):
    """Divides a gradient of norm ``n`` by ``φ(n)`` before gradients are summed and released."""

    max_grad_norm: float

    @abstractmethod
    def phi(self, norms: Tensor) -> Tensor:
        """Return ``φ(n)``, by which the gradient is divided."""

    @abstractmethod
    def slope(self, norms: Tensor) -> Tensor:
        """Return ``φ′(n)``."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """The largest norm that a clipped gradient can have."""

    def factor(self, norms: Tensor) -> Tensor:
        """Return ``1/φ(n)``, by which the gradient is multiplied."""
        return 1 / self.phi(norms)

    def radial(self, norms: Tensor) -> Tensor:
        """Return ``ρ = 1 − nφ′/φ``; a change along the gradient is scaled by ``ρ/φ``."""
        return 1 - norms * self.slope(norms) / self.phi(norms)

    def conservative(self, norms: Tensor) -> Tensor:
        """Return ``max(1, ρ²)/φ²``, for which ``‖∂g̃‖_F² ≤ max(1, ρ²)/φ² · ‖∂g‖_F²``."""
        return torch.clamp(self.radial(norms) ** 2, min=1.0) / self.phi(norms) ** 2

    def squared(
        self, norms: Tensor, gg: Tensor, gd: Tensor, dd: Tensor, again: Tensor | None = None
    ) -> Tensor:
        """Return ``‖∂g̃‖²`` of one change from ``gg = g·g``, ``gd = g·∂g`` and ``dd = ∂g·∂g``.

        The result is ``(dd − (1 − ρ²) gd²/n²)/φ²`` or, in the form of Guo et al. (2022),
        ``dd/φ² − 2φ′gd²/(nφ³) + φ′²gd²/φ⁴``. If ``gd`` is an estimate, ``again`` is a second,
        independent estimate, so that the estimate of ``gd²`` is unbiased. The result may then be
        negative: truncating it at zero would bias sums over steps upwards.
        """
        square = gd * (gd if again is None else again)
        along = torch.where(gg > 0, square / torch.where(gg > 0, gg, 1.0), 0.0)
        value = (dd - (1 - self.radial(norms) ** 2) * along) / self.phi(norms) ** 2
        return value if again is not None else torch.clamp(value, min=0.0)


@dataclass(frozen=True)
class NoClip(Clip):
    """No clipping, ``φ = 1``. The sensitivity of the release is unbounded.

    Examples
    --------
    >>> from seepage.nn import NoClip
    >>> NoClip().sensitivity
    inf
    """

    @property
    def max_grad_norm(self) -> float:  # type: ignore[override]
        """Always one, so that the noise multiplier is the standard deviation of the noise."""
        return 1.0

    @property
    def sensitivity(self) -> float:
        """Infinite: gradients of any norm are released."""
        return math.inf

    def phi(self, norms: Tensor) -> Tensor:
        """Return one."""
        return torch.ones_like(norms)

    def slope(self, norms: Tensor) -> Tensor:
        """Return zero."""
        return torch.zeros_like(norms)


@dataclass(frozen=True)
class _ThresholdClip(Clip):
    max_grad_norm: float

    def __post_init__(self) -> None:
        check_positive(self.max_grad_norm, "max_grad_norm")


@dataclass(frozen=True)
class HardClip(_ThresholdClip):
    """``φ = max(1, n/C)``: the usual clip, which has a kink at ``n = C``.

    Parameters
    ----------
    max_grad_norm
        The threshold ``C``.

    Examples
    --------
    >>> import torch
    >>> from seepage.nn import HardClip
    >>> HardClip(2.0).factor(torch.tensor([1.0, 8.0]))
    tensor([1.0000, 0.2500])
    """

    @property
    def sensitivity(self) -> float:
        """The threshold ``C``."""
        return self.max_grad_norm

    def phi(self, norms: Tensor) -> Tensor:
        """Return ``max(1, n/C)``."""
        return torch.clamp(norms / self.max_grad_norm, min=1.0)

    def slope(self, norms: Tensor) -> Tensor:
        """Return ``1/C`` beyond the threshold, zero up to it."""
        return (norms > self.max_grad_norm).to(norms.dtype) / self.max_grad_norm

    def radial(self, norms: Tensor) -> Tensor:
        """Return exactly one up to the threshold and exactly zero beyond it."""
        return (norms <= self.max_grad_norm).to(norms.dtype)


@dataclass(frozen=True)
class SmoothClip(_ThresholdClip):
    """``φ = GELU(n/C − 1) + 1``, the smooth clip of Guo et al. 2022, section 6.2.

    ``‖g̃‖ ≤ 1.11522 C`` (the paper prints 1.115) and ``|ρ| ≤ 1.0072``. The upper bound on
    ``‖∂g̃‖_F²`` from :meth:`Clip.conservative` therefore exceeds ``‖∂g‖_F²/φ²`` by at most 1.5 %.

    Parameters
    ----------
    max_grad_norm
        The threshold ``C``.

    Examples
    --------
    >>> import torch
    >>> from seepage.nn import SmoothClip
    >>> SmoothClip(1.0).factor(torch.tensor([0.0, 1.0, 8.0]))
    tensor([1.1886, 1.0000, 0.1250])
    """

    @property
    def sensitivity(self) -> float:
        """``1.11522 C``, an upper bound on ``n/φ(n)`` (Guo et al. 2022, appendix C: 1.115)."""
        return 1.11522 * self.max_grad_norm

    def phi(self, norms: Tensor) -> Tensor:
        """Return ``GELU(n/C − 1) + 1``."""
        return torch.nn.functional.gelu(norms / self.max_grad_norm - 1) + 1

    def slope(self, norms: Tensor) -> Tensor:
        """Return ``GELU′(n/C − 1)/C``, with ``GELU′(m) = Φ(m) + m·Φ′(m)``."""
        m = norms / self.max_grad_norm - 1
        normal = torch.special.ndtr(m)
        return (normal + m * _density(m)) / self.max_grad_norm

    def radial(self, norms: Tensor) -> Tensor:
        """Return ``ρ = (Φ(−m) − m(m + 1)Φ′(m))/φ``, ``m = n/C − 1``.

        The formula equals ``1 − nφ′/φ`` but avoids subtracting two numbers near one. For a gradient
        far beyond the threshold, rounding would dominate that difference.
        """
        m = norms / self.max_grad_norm - 1
        beyond = torch.erfc(m / math.sqrt(2)) / 2
        return (beyond - m * (m + 1) * _density(m)) / self.phi(norms)


def _density(m: Tensor) -> Tensor:
    return torch.exp(-m * m / 2) / math.sqrt(2 * math.pi)


_NAMED: dict[str, type[HardClip | SmoothClip]] = {"hard": HardClip, "smooth": SmoothClip}


def make_clip(clip: str | Clip, max_grad_norm: float) -> Clip:
    """Return the clip with this name and threshold; a clip object is returned unchanged."""
    if isinstance(clip, Clip):
        return clip
    check_choice(clip, "clip", (*_NAMED, "none"))
    return NoClip() if clip == "none" else _NAMED[clip](max_grad_norm)


def choose_clip(clip: str | Clip, max_grad_norm: float | None) -> Clip:
    """Return the named clip or, without a threshold, no clip; return a clip object unchanged."""
    if max_grad_norm is not None:
        check_positive(max_grad_norm, "max_grad_norm")
    if isinstance(clip, Clip):
        if max_grad_norm not in (None, clip.max_grad_norm):
            raise InputError(
                f"max_grad_norm={max_grad_norm!r} contradicts clip={clip!r}; give the clip by its "
                "name, or the same threshold in both."
            )
        return clip
    named = make_clip(clip, 1.0 if max_grad_norm is None else max_grad_norm)
    return NoClip() if max_grad_norm is None else named
