"""What ``sp.nn.plis`` returns: privacy loss, PLIS and gradient signal of every record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.privacy.individual_loss import IndividualLoss
from seepage.nn.problem.clipping import Clip, NoClip
from seepage.nn.susceptibility.attribution import Attribution
from seepage.nn.susceptibility.comparison import Comparison
from seepage.tables.source import build_frame


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Susceptibility(Attribution):
    """The privacy loss-input susceptibility of the records of one batch.

    ``values`` is the PLIS, an array like the records; :meth:`records`, :meth:`attributes`,
    :meth:`patches` and :meth:`superpixels` give its norms.

    Parameters
    ----------
    privacy_loss
        ``PL = ‖g̃‖²/s²`` of every record; without noise the gradient signal ``‖g‖²``.
    norms, losses
        The norm of every record's gradient before clipping, and its loss.
    pulls
        ``Jᵀg`` of every record, before clipping, from which everything follows.
    clip
        What divides the gradients.
    comparison
        JacSens and FIL of the same gradients, if they were asked for.
    """

    privacy_loss: Tensor
    norms: Tensor
    losses: Tensor
    pulls: Tensor
    clip: Clip
    comparison: Comparison | None = None

    def __repr__(self) -> str:
        what = "gradient signal" if self.noise is None else "privacy loss"
        middle, largest = float(self.privacy_loss.median()), float(self.privacy_loss.max())
        return (
            f"<PLIS of {len(self)} records about {self.about}: {what} median {middle:.4g}, "
            f"largest {largest:.4g}>"
        )

    def signal(self) -> Susceptibility:
        """Return the non-private variant: no noise, no clip, ``∇‖g‖² = 2Jᵀg``."""
        return replace(
            self,
            values=2 * self.pulls,
            noise=None,
            privacy_loss=self.norms.square(),
            clip=NoClip(),
            comparison=None,
        )

    def individual(self) -> IndividualLoss:
        """Return ε, μ and Rényi divergence of each record for this one release."""
        if self.noise is None:
            raise InputError("Without noise the privacy loss is infinite; give noise_multiplier.")
        return IndividualLoss(self.privacy_loss.double().cpu().numpy())

    def compare(self) -> Comparison:
        """Return PLIS, JacSens and FIL side by side."""
        if self.comparison is None:
            raise InputError(
                "JacSens and FIL were not asked for; call sp.nn.plis(..., compare='auto'), while "
                "the network is as it is now."
            )
        return self.comparison

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with a row for every record; the other measures beside, if known."""
        loss = "gradient_signal" if self.noise is None else "privacy_loss"
        labels = np.arange(len(self)) if self.index is None else self.index
        columns: dict[str, Any] = {
            "row": labels,
            loss: self.privacy_loss.cpu().numpy(),
            "plis": np.asarray(self.records()),
            "gradient_norm": self.norms.cpu().numpy(),
            "loss": self.losses.cpu().numpy(),
        }
        if self.comparison is not None:
            columns |= self.comparison.columns()
        return build_frame(columns, library or self.library)


def susceptibility(
    pulls: Tensor, norms: Tensor, losses: Tensor, clip: Clip, noise: float | None, about: str
) -> Susceptibility:
    """Return PLIS from ``Jᵀg``.

    ``‖g̃‖² = n²/φ²`` has the derivative ``2nρ/φ²`` over ``n``, so that
    ``PLIS = (2/s²)(ρ/φ²) Jᵀg``, with ``ρ = 1 − nφ′/φ`` (see ``clipping``).
    """
    s = 1.0 if noise is None else noise
    phi = clip.phi(norms)
    factor = 2 * clip.radial(norms) / (phi * s) ** 2
    return Susceptibility(
        pulls * factor.reshape(-1, *[1] * (pulls.dim() - 1)),
        noise,
        about,
        privacy_loss=(norms / (phi * s)).square(),
        norms=norms,
        losses=losses,
        pulls=pulls,
        clip=clip,
    )
