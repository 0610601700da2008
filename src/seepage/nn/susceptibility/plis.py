"""Computes each record's privacy loss and PLIS, its gradient with respect to the attributes.

A step releases ``Σ_i g̃_i + N(0, s² I)``, where ``g̃_i`` is the clipped gradient of record i and
``s = σC``. The privacy loss of record i is ``PL = ‖g̃_i‖²/s²`` (Mueller et al. 2022, equation 4).
The gradient of ``PL`` with respect to the record's attributes is the privacy loss-input
susceptibility (equations 6 and 7):

    PLIS = ∇_z PL = (2/s²) J̃ᵀg̃,     J̃ = ∂g̃/∂z
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from seepage.errors import InputError, accepts_other_names
from seepage.nn.jacobian.engine import Engine
from seepage.nn.jacobian.finite_changes import over_steps
from seepage.nn.measures.gradient_leakage import check_batch, check_view
from seepage.nn.privacy.individual_loss import IndividualLoss
from seepage.nn.problem.arrays import as_tensors
from seepage.nn.problem.clipping import Clip, NoClip, choose_clip
from seepage.nn.problem.own_loss import labels_of
from seepage.nn.problem.problem import Loss, cross_entropy
from seepage.nn.problem.views import Input, View
from seepage.nn.susceptibility.attribution import Attribution
from seepage.nn.susceptibility.comparison import Comparison
from seepage.nn.susceptibility.comparison import compare as compare_measures
from seepage.support.number_check import check_positive
from seepage.tables.names import counted
from seepage.tables.source import Table, as_numpy, build_frame, check_length, read_table


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Susceptibility(Attribution):
    """The privacy loss-input susceptibility (PLIS) of the records in one batch.

    ``values`` contains the PLIS, in the shape of the records. :meth:`records`, :meth:`attributes`,
    :meth:`patches` and :meth:`superpixels` return its norms.

    Parameters
    ----------
    privacy_loss
        The privacy loss ``PL = ‖g̃‖²/s²`` of every record; without noise, the gradient signal
        ``‖g‖²``.
    norms, losses
        The norm of every record's gradient before clipping, and the record's loss.
    pulls
        ``Jᵀg`` of every record before clipping, with ``J = ∂g/∂z``, from which PLIS is computed.
    clip
        The clip that is applied to the gradients.
    comparison
        JacSens and FIL of the same gradients, if requested.
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
            f"<PLIS of {counted(len(self), 'record')} about {self.about}: "
            f"{what} median {middle:.4g}, largest {largest:.4g}>"
        )

    def signal(self) -> Susceptibility:
        """Return PLIS for the gradient signal (no noise, no clipping), ``∇‖g‖² = 2Jᵀg``."""
        return replace(
            self,
            values=2 * self.pulls,
            noise=None,
            privacy_loss=self.norms.square(),
            clip=NoClip(),
            comparison=None,
        )

    def individual(self) -> IndividualLoss:
        """Return the privacy loss of each record in this release, as ε, μ and Rényi divergence."""
        if self.noise is None:
            raise InputError("Without noise, the privacy loss is infinite; give noise_multiplier.")
        return IndividualLoss(self.privacy_loss.double().cpu().numpy())

    def compare(self) -> Comparison:
        """Return the comparison of PLIS, JacSens and FIL."""
        if self.comparison is None:
            raise InputError(
                "JacSens and FIL were not computed; call sp.nn.plis(..., compare='auto') before "
                "the network changes."
            )
        return self.comparison

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per record, including JacSens and FIL if computed."""
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


def susceptibility(engine: Engine, x: Any, y: Tensor, noise: float | None) -> Susceptibility:
    """Return PLIS from ``Jᵀg`` or, where derivatives cannot be used, from finite steps.

    ``‖g̃‖² = n²/φ²`` has the derivative ``2nρ/φ²`` with respect to ``n``, so
    ``PLIS = (2/s²)(ρ/φ²) Jᵀg`` with ``ρ = 1 − nφ′/φ`` (see ``clipping``). With steps of size
    ``h``, the entry of PLIS for unknown j is ``(PL(z + h e_j) − PL(z − h e_j))/(2h)``.
    """
    clip, about = engine.clip, engine.view.describe()
    s = 1.0 if noise is None else noise

    def loss_of(n: Tensor) -> Tensor:
        return (n / (clip.phi(n) * s)).square()

    found = engine.radial_pull_if_possible(x, y)
    if found is not None:
        pulls, norms, losses = found
        factor = 2 * clip.radial(norms) / (clip.phi(norms) * s) ** 2
        values = pulls * factor.reshape(-1, *[1] * (pulls.dim() - 1))
    else:
        steps = engine.over_steps_of(engine.scale)
        h = steps.step_size(x, y)
        about = over_steps(about, h)
        beside, norms, losses = steps.norms_beside(x, y)
        ahead, behind = beside.unbind(1)
        pulls = (ahead.square() - behind.square()) / (4 * h)
        values = (loss_of(ahead) - loss_of(behind)) / (2 * h)
    return Susceptibility(
        values,
        noise,
        about,
        privacy_loss=loss_of(norms),
        norms=norms,
        losses=losses,
        pulls=pulls,
        clip=clip,
    )


@accepts_other_names
def plis(
    net: Any,
    loss: str | nn.Module | Loss | Mapping[str, Tensor] | None,
    x: Any = None,
    y: Any = None,
    *,
    noise_multiplier: float | None = None,
    max_grad_norm: float | None = None,
    clip: str | Clip = "smooth",
    view: View | None = None,
    compare: str | None = None,
    probes: int = 64,
    chunk_size: int | str = "auto",
    seed: int = 0,
) -> Susceptibility:
    """Attribute the privacy loss of each record to the record's attributes.

    If torch cannot differentiate the gradients, or the code detaches part of the computation
    (``.detach()``), PLIS is measured over finite steps of one unknown at a time. A warning and the
    attribute ``about`` state this.

    Parameters
    ----------
    net, loss
        The network and its loss: ``"cross_entropy"``, ``"mse"``, a torch loss module, or a function
        of output and target that returns one loss per record. For a model that computes its own
        loss, give the data collator's batch in place of the loss. Instead of a network, a model
        fitted with :mod:`seepage.glm`, scikit-learn or statsmodels is also accepted; then give
        ``loss=None`` to use the model's own loss.
    x, y
        The batch, with records along the first axis. Tables may be data frames, whose column names
        are then used.
    noise_multiplier
        The noise multiplier ``σ``. The noise on the sum of the gradients has the standard deviation
        ``s = σC``, or ``σ`` without clipping. Without noise (``None``), the *gradient signal*
        ``‖g‖²`` is measured instead of the privacy loss (``s = 1``).
    max_grad_norm
        The clipping threshold ``C``; ``None`` for no clipping.
    clip
        ``"smooth"`` (the GELU clip of Guo et al. 2022, as in Mueller et al. 2022), or ``"hard"``,
        under which the privacy loss of a clipped record is constant and its PLIS is zero. A
        :mod:`seepage.nn` clip, which has its own threshold, is also accepted; then leave out
        ``max_grad_norm``.
    view
        The view that selects the attributes: ``sp.nn.Input()`` (the default, or a part of it with
        ``mask=``), ``sp.nn.Label()`` or ``sp.nn.Embedding("module")``.
    compare
        How to measure JacSens and FIL of the same gradients, if at all: ``"exact"`` computes every
        column of the Jacobian, ``"estimate"`` uses probes, and ``"auto"`` is exact for up to 128
        attributes.
    probes
        The number of probes for an estimate.
    chunk_size, seed
        As for :func:`seepage.nn.leakage`.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> x, y = torch.randn(10, 4), torch.randint(0, 2, (10,))
    >>> found = sp.nn.plis(net, "cross_entropy", x, y, noise_multiplier=1.0, max_grad_norm=1.0)
    >>> found.values.shape, found.privacy_loss.shape
    (torch.Size([10, 4]), torch.Size([10]))
    >>> found.attributes({"first two": slice(0, 2), "third": 2}).shape
    (10, 2)
    """
    check_view(view)
    noise, chosen = _release(noise_multiplier, max_grad_norm, clip)
    table: Table | None = None
    if isinstance(loss, Mapping):
        x, y, loss = dict(loss), labels_of(loss), "own"
    elif x is None or y is None:
        raise InputError(
            "Give network, loss, inputs and targets, or a Hugging Face model and a batch with its "
            "labels: sp.nn.plis(model, batch, noise_multiplier=…)."
        )
    elif isinstance(net, nn.Module):
        if loss is None:
            raise InputError(
                "loss is missing; a network requires a loss, such as 'cross_entropy' or 'mse'."
            )
        x, y, table = as_tensors(net, x, y)
    elif loss is not None:
        raise InputError(
            f"The model ({type(net).__name__}) has its own loss; pass loss=None, or pass a torch "
            "module instead of the model."
        )
    else:
        net, loss, table, x, y = as_network(net, x, y)
    check_batch(x, y)
    engine = Engine(net, loss, clip=chosen, view=view, chunk_size=chunk_size, seed=seed)
    result = named(susceptibility(engine, x, y, noise), table, engine.view)
    if compare is not None:
        beside = compare_measures(engine, x, y, result.values, noise, compare, probes)
        result = replace(result, comparison=beside)
    return result


def _release(
    noise_multiplier: float | None, max_grad_norm: float | None, clip: str | Clip
) -> tuple[float | None, Clip]:
    """Return the standard deviation of the noise (None without noise) and the clip."""
    chosen = choose_clip(clip, max_grad_norm)
    if noise_multiplier is None:
        if not isinstance(chosen, NoClip):
            raise InputError(
                "Clipping without noise is not private; give noise_multiplier too, or leave out "
                "max_grad_norm and clip to measure the gradient signal."
            )
        return None, chosen
    check_positive(noise_multiplier, "noise_multiplier")
    return float(noise_multiplier) * chosen.max_grad_norm, chosen


def named(result: Susceptibility, table: Table | None, view: View) -> Susceptibility:
    """Return PLIS with a table's row names and, if its columns are the attributes, their names."""
    if table is None:
        return result
    about = isinstance(view, Input) and result.values.shape[1:] == (len(table.names),)
    names = table.names if about else None
    return replace(result, index=table.index, names=names, library=table.library)


def as_network(model: Any, X: Any, y: Any) -> tuple[nn.Module, Loss, Table, Tensor, Tensor]:
    """Return the network, loss, table, inputs and targets of a fitted linear model, in float64.

    A record's released gradient is the gradient of its own loss, ``∂ℓ(wᵀx + w₀, y)/∂(w, w₀)``. The
    model's penalty does not depend on any record and is left out.
    """
    from seepage.glm.adapters.registry import describe
    from seepage.glm.losses import Categorical

    table = read_table(X)
    check_length(y, table, "y")
    fitted = describe(model, table, y)
    if fitted.sample_weight is not None:
        raise InputError(
            "The model was fitted with sample or class weights, which scale its records' "
            "gradients; for PLIS, pass a torch module and a loss that applies the weights."
        )
    coef = np.atleast_2d(as_numpy(fitted.coef).T)
    net = nn.Linear(coef.shape[1], coef.shape[0], bias=fitted.intercept is not None).double()
    with torch.no_grad():
        net.weight.copy_(torch.as_tensor(coef))
        if fitted.intercept is not None:
            net.bias.copy_(torch.as_tensor(np.atleast_1d(as_numpy(fitted.intercept))))
    loss = cross_entropy if isinstance(fitted.family, Categorical) else _of_margin(fitted.family)
    # Copies, since the arrays of data frames may be read-only.
    x = torch.tensor(as_numpy(table.values), dtype=torch.float64)
    target = torch.tensor(as_numpy(fitted.target), dtype=torch.float64)
    return net, loss, table, x, target


def _of_margin(family: Any) -> Loss:
    """Return the loss function of a model family with a single linear predictor."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if family.name == "bernoulli":  # smooth at zero, where the family's formula has a kink
            return functional.binary_cross_entropy_with_logits(
                output[:, 0], target, reduction="none"
            )
        losses: Tensor = family.loss(output[:, 0], target)
        return losses

    return loss
