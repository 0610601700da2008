"""Ranks records by their exposure, using only the trained network and no reference models.

Let ``g_i`` be the gradient of record i's loss at the trained parameters. The scores, with sums over
members, are:

- *loss* and *gradient norm* ``‖g_i‖``;
- *leverage* ``(g_i − ḡ)ᵀ(G + λI)⁻¹(g_i − ḡ)``, where ``ḡ`` and ``G = Σ_j (g_j − ḡ)(g_j − ḡ)ᵀ`` are
  the mean and scatter of the *other* members' gradients. Leverage is large if the gradient lies in
  directions in which other members' gradients vary little. Leverage is computed for the last
  layer's parameters and for all parameters, through a sketch if there are many;
- *own shift*, the change of a record's log-odds by the last layer's Newton step for that record:
  ``(1 − p_y)aᵀBa`` with ``B = (I ⊗ φ)ᵀ(H₋ᵢ + λI)⁻¹(I ⊗ φ)`` and ``a = (e_y − p)/(1 − p_y)``. Here,
  ``p`` are the class probabilities, ``e_y`` is one-hot at the label, ``φ`` are the inputs of the
  last layer, and ``H`` is the last layer's Hessian. The own shift is the record's generalised
  leverage (Dorseuil, Atif and Cappé 2026, arXiv 2602.15919) for the last layer.

For linear models, the success of membership inference follows from leverage (``sp.Attacker``). For
networks, leverage only ranks records. With more parameters than records, every leverage without
damping would be infinite, so ``λ`` is ``damping`` times the mean eigenvalue of ``G`` (or ``H``).

The sketch multiplies each entry of a gradient by a random sign and adds up entries whose positions
are equal modulo the sketch's size, which preserves inner products on average (Charikar, Chen and
Farach-Colton 2002). Gradients with no more entries than the sketch's size are not reduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn import functional

from seepage.errors import InputError, accepts_other_names
from seepage.nn.jacobian.engine import Engine
from seepage.nn.problem.own_loss import labels_of
from seepage.nn.problem.problem import Loss, cross_entropy, per_record
from seepage.nn.problem.views import batch_size, evaluating, numbers_of, on_device, rows_of, run
from seepage.support.number_check import check_choice, check_count, check_positive
from seepage.tables.names import counted
from seepage.tables.source import as_numpy, build_frame

_SCORES = ("loss", "gradient_norm", "last_layer_leverage", "sketched_leverage", "own_shift")


@dataclass(frozen=True, eq=False, repr=False)
class ExposureScores:
    """Exposure scores of every record for each model, ``(M, n)``; higher scores mean more exposure.

    The scores rank records; they are not probabilities. ``benchmarks/membership_networks.py``
    measures the scores' rank correlations with LiRA. The scores depend on the data and are
    themselves sensitive.

    Parameters
    ----------
    loss, gradient_norm
        The loss and the gradient norm of each record at the trained parameters.
    last_layer_leverage, sketched_leverage
        The leverage of a record's last-layer gradient, and of its sketched gradient over all
        parameters, among the other members' gradients.
    own_shift
        The change of a record's log-odds by the last layer's Newton step for that record. The score
        is None unless the loss is ``"cross_entropy"`` with one class number per record, and the
        last layer is a ``torch.nn.Linear`` with at most 8,000 weights.
    damping, sketch
        The damping ``λ``, divided by the mean eigenvalue of the matrix to which it is added, and
        the size of the sketch.
    kind
        ``estimate``: the scores estimate how attacks would rank the records.
    """

    loss: np.ndarray
    gradient_norm: np.ndarray
    last_layer_leverage: np.ndarray
    sketched_leverage: np.ndarray
    own_shift: np.ndarray | None
    damping: float
    sketch: int
    kind: str = "estimate"

    def ranks(self, score: str | None = None) -> np.ndarray:
        """Return each record's mean rank over the models, from 0 to 1 (most exposed).

        Mean ranks over 8 models agree better with LiRA than ranks from one model
        (``benchmarks/membership_networks.py``). By default, records are ranked by ``own_shift``, or
        by ``last_layer_leverage`` if ``own_shift`` is None.
        """
        name = score or ("last_layer_leverage" if self.own_shift is None else "own_shift")
        check_choice(name, "score", _SCORES)
        values = getattr(self, name)
        if values is None:
            raise InputError(
                "own_shift is not available for this loss or last layer; choose another score."
            )
        n = values.shape[1]
        return np.asarray(np.mean([(rankdata(v) - 0.5) / n for v in values], axis=0))

    def exposed(self, count: int = 10, score: str | None = None) -> list[int]:
        """Return the positions of the most exposed records in descending order of exposure."""
        check_count(count, "count")
        return [int(row) for row in np.argsort(-self.ranks(score), kind="stable")[:count]]

    def table(self, library: str = "pyarrow") -> Any:
        """Return a data frame with each record's mean rank by every score."""
        names = [name for name in _SCORES if getattr(self, name) is not None]
        columns = {"row": np.arange(self.loss.shape[1])}
        return build_frame(columns | {name: self.ranks(name) for name in names}, library)

    def __repr__(self) -> str:
        models, records = self.loss.shape
        return (
            f"<exposure of {counted(records, 'record')} from {counted(models, 'model')}, "
            f"a ranking: most exposed {', '.join(map(str, self.exposed(3)))}>"
        )


@accepts_other_names
def exposure_scores(
    model: nn.Module | Sequence[nn.Module],
    X: Any,
    y: Any = None,
    *,
    loss: str | nn.Module | Loss | None = None,
    members: Any = None,
    last: str | None = None,
    sketch: int = 2048,
    damping: float = 1e-3,
    seed: int = 0,
) -> ExposureScores:
    """Rank the records of a trained network by their exposure, without reference models.

    Parameters
    ----------
    model
        The trained network, or several networks with the same architecture, over which the
        ranks are averaged.
    X, y
        The records, along the first axis, and their labels. For a model with its own loss (Hugging
        Face), ``X`` is the batch with its labels, and ``y`` is left out.
    loss
        The loss, as for :func:`seepage.nn.leakage`; by default the cross-entropy or the model's
        own loss.
    members
        Whether each record was in a network's training data, ``(n,)``, or ``(M, n)`` for several
        networks. None means all records.
    last
        The name of the last layer; by default the last trained ``torch.nn.Linear``.
    sketch
        The size of the sketch.
    damping
        The damping ``λ``, divided by the mean eigenvalue of the matrix to which it is added.
    seed
        The seed for the sketch's signs.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> x, y = torch.randn(50, 4), torch.randint(0, 2, (50,))
    >>> scores = sp.nn.exposure_scores(net, x, y)
    >>> scores.own_shift.shape, len(scores.exposed(5))
    ((1, 50), 5)
    """
    check_count(sketch, "sketch")
    check_positive(damping, "damping")
    models = [model] if isinstance(model, nn.Module) else list(model)
    if not models:
        raise InputError("No model was given; give at least one.")
    if y is None:
        if not isinstance(X, Mapping):
            raise InputError(
                "y is missing; give labels, or a batch with labels if the model has its own loss."
            )
        y, loss = labels_of(X), "own" if loss is None else loss
    target = y if isinstance(y, Tensor) else torch.as_tensor(np.ascontiguousarray(as_numpy(y)))
    x = X if isinstance(X, Tensor | Mapping | tuple) else torch.as_tensor(as_numpy(X)).float()
    n = batch_size(x)
    every = np.ones(n) if members is None else as_numpy(members)
    inside = np.broadcast_to(every.astype(bool), (len(models), n))
    if (inside.sum(axis=1) < 3).any():
        raise InputError(
            "Leverage requires at least three members per model; give more records, or select more "
            "of them with members=."
        )
    one = _Scoring("cross_entropy" if loss is None else loss, last, sketch, damping, seed)
    found = [one.of(net, x, target, row) for net, row in zip(models, inside, strict=True)]
    losses, norms, last_leverages, sketched, shifts = zip(*found, strict=True)
    return ExposureScores(
        _stacked(losses),
        _stacked(norms),
        _stacked(last_leverages),
        _stacked(sketched),
        None if any(shift is None for shift in shifts) else _stacked(shifts),
        damping,
        sketch,
    )


def _stacked(values: Sequence[Tensor]) -> np.ndarray:
    return np.stack([one.double().cpu().numpy() for one in values])


@dataclass(frozen=True)
class _Scoring:
    """Computes the exposure scores of one network at a time."""

    loss: str | nn.Module | Loss
    last: str | None
    sketch: int
    damping: float
    seed: int

    def of(self, net: nn.Module, x: Any, y: Tensor, members: np.ndarray) -> list[Any]:
        """Return the loss, gradient norm, both leverages and own shift of every record."""
        layer = self._last_layer(net)
        released = {key: p for key, p in net.named_parameters() if p.requires_grad}
        sizes = [p.numel() for p in released.values()]
        starts = dict(zip(released, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        device = next(iter(released.values())).device
        generator = torch.Generator().manual_seed(self.seed)
        signs = {
            key: (2 * torch.randint(0, 2, (p.numel(),), generator=generator) - 1).to(device)
            for key, p in released.items()
        }
        n, width = batch_size(x), min(self.sketch, sum(sizes))
        # By identity: the weight of a language model's last layer is often its embedding's
        parts = {id(p) for p in layer.parameters(recurse=False)}
        own = {key for key, p in released.items() if id(p) in parts}
        squares = torch.zeros(n, dtype=torch.float64, device=device)
        whole = torch.zeros(n, width, dtype=torch.float64, device=device)
        size_of_last = sum(released[key].numel() for key in own)
        thin = min(self.sketch, size_of_last)
        tail = torch.zeros(n, thin, dtype=torch.float64, device=device)
        tails, place = {}, 0
        for key in sorted(own):
            tails[key], place = place, place + released[key].numel()

        def take(rows: slice, key: tuple[str, int], gradients: Tensor) -> None:
            parameter, first = key
            offset = first * (released[parameter].numel() // len(released[parameter]))
            values = gradients.flatten(1).double()
            squares[rows] += values.square().sum(1)
            values = values * signs[parameter][offset : offset + values.shape[1]]
            whole[rows] += _folded(values, starts[parameter] + offset, width)
            if parameter in own:
                tail[rows] += _folded(values, tails[parameter] + offset, thin)

        # The gradients of the largest parameter, a few times, in at most a quarter of a gibibyte
        chunk = max(1, min(512, (1 << 25) // max(sizes)))
        engine = Engine(net, self.loss, chunk_size=chunk)
        with evaluating(net):
            losses = engine.over_parameters(on_device(x, device), y.to(device), take)
            inside = torch.as_tensor(members.copy(), device=device)
            leverages = [_leverage(part, inside, self.damping) for part in (tail, whole)]
            shift = self._own_shift(net, layer, x, y, inside)
        return [losses, squares.sqrt(), *leverages, shift]

    def _last_layer(self, net: nn.Module) -> nn.Module:
        layers = {
            name: module
            for name, module in net.named_modules()
            if isinstance(module, nn.Linear) and module.weight.requires_grad
        }
        if self.last is not None:
            layers = {name: m for name, m in net.named_modules() if name == self.last}
        if not layers:
            raise InputError(
                f"There is no layer {self.last!r}; name a module of the network."
                if self.last
                else "This network has no trained torch.nn.Linear; name its last layer with last=…."
            )
        name = list(layers)[-1]
        if not any(p.requires_grad for p in layers[name].parameters(recurse=False)):
            raise InputError(
                f"The layer {name!r} has no trainable parameters; name another layer with last=…."
            )
        return layers[name]

    def _own_shift(
        self, net: nn.Module, layer: nn.Module, x: Any, y: Tensor, inside: Tensor
    ) -> Tensor | None:
        """Return the own shift, or ``None`` if it is not available for this loss and layer."""
        if per_record(self.loss) is not cross_entropy or not isinstance(layer, nn.Linear):
            return None
        if y.is_floating_point() or layer.in_features * layer.out_features > 8000:
            return None  # the Hessian of the last layer would not fit into memory
        seen: list[Tensor] = []
        outputs: list[Tensor] = []
        hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].double()))
        try:
            with torch.no_grad():
                for start in range(0, batch_size(x), 512):
                    some = on_device(rows_of(x, slice(start, start + 512)), inside.device)
                    outputs.append(numbers_of(run(net, some)).double())
        finally:
            hook.remove()
        logits, phi = torch.cat(outputs), torch.cat(seen)
        if logits.dim() != 2 or phi.dim() != 2:
            return None
        if layer.bias is not None:
            phi = functional.pad(phi, (0, 1), value=1.0)
        return own_shift(phi, logits, y.to(inside.device), inside, self.damping)


def _folded(values: Tensor, start: int, width: int) -> Tensor:
    """Sum the entries whose positions, counted from ``start``, are equal modulo ``width``."""
    before = start % width
    padded = functional.pad(values, (before, -(before + values.shape[1]) % width))
    return padded.unflatten(1, (-1, width)).sum(1)


def _leverage(gradients: Tensor, inside: Tensor, damping: float) -> Tensor:
    """Return the leverage of each record's gradient among the other members' gradients.

    Let ``c = g − ḡ`` over all n members and ``h = cᵀ(G + λI)⁻¹c``. Leaving a member out changes the
    mean to ``ḡ − c/(n − 1)`` and the scatter to ``G − n/(n − 1) ccᵀ``, so the member's leverage is
    ``(n/(n − 1))² h/(1 − nh/(n − 1))`` (Sherman and Morrison); ``λ`` is unchanged.
    """
    n = int(inside.sum())
    centred = gradients - gradients[inside].mean(0)
    scatter = centred[inside].mT @ centred[inside]
    # Where all gradients are zero, so are the leverages
    tiny = torch.finfo(scatter.dtype).tiny
    scatter.diagonal().add_((damping * scatter.diagonal().mean()).clamp(min=tiny))
    root = torch.linalg.cholesky(scatter)
    h = torch.linalg.solve_triangular(root, centred.mT, upper=False).square().sum(0)
    left = (1 - h * n / (n - 1)).clamp(min=torch.finfo(h.dtype).eps)
    return torch.where(inside, (n / (n - 1)) ** 2 * h / left, h)


def own_shift(phi: Tensor, logits: Tensor, y: Tensor, inside: Tensor, damping: float) -> Tensor:
    """Return ``(1 − p)aᵀBa`` of every record, from the last layer's inputs and logits.

    ``B₋ᵢ = (I − B_i S_i)⁻¹B_i`` removes a member's own ``S = diag(p) − ppᵀ`` from the Hessian
    ``Σ_j S_j ⊗ φ_jφ_jᵀ`` (Woodbury); ``λ`` is unchanged.
    """
    p = logits.softmax(1)
    (n, d), c = phi.shape, p.shape[1]
    spread = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    some, member_spread = phi[inside], spread[inside]
    hessian = phi.new_zeros(c, d, c, d)
    for a in range(c):
        for b in range(a + 1):
            hessian[a, :, b] = some.mT @ (some * member_spread[:, a, b, None])
            hessian[b, :, a] = hessian[a, :, b]
    flat = hessian.view(c * d, c * d)
    flat.diagonal().add_(damping * flat.diagonal().mean())
    rows = torch.linalg.inv(flat).view(c, d, c, d).permute(1, 0, 2, 3).reshape(d, -1)
    blocks = torch.cat(
        [((part @ rows).view(-1, c, c, d) * part[:, None, None]).sum(-1) for part in phi.split(256)]
    )
    eye = torch.eye(c, dtype=phi.dtype, device=phi.device).expand(n, c, c)
    without = torch.linalg.solve(eye - blocks @ spread, blocks)
    blocks = torch.where(inside[:, None, None], without, blocks)
    own = functional.one_hot(y.long(), c).to(p)
    gap = (own * (own - p)).sum(1).clamp(min=torch.finfo(p.dtype).tiny)
    direction = (own - p) / gap[:, None]
    return gap * torch.einsum("na,nab,nb->n", direction, blocks, direction)
