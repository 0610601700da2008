"""Recovers the labels of a batch from the gradient of the last layer.

With cross-entropy loss, the gradient of the last bias is the mean of ``p − e_y`` over the batch:
the predicted probabilities minus the one-hot label. For a single record, only the entry of the true
class is therefore negative (Zhao, Mopuri and Bilen 2020, "iDLG").
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.attacks.gradient.releases import GradientReleases
from seepage.errors import InputError
from seepage.nn.gradients.network_checks import unwrapped
from seepage.nn.problem.problem import Loss, cross_entropy
from seepage.tables.names import counted

_GIVE = "give the labels instead (labels=…)"


def recover_labels(net: nn.Module, releases: GradientReleases, outputs: Tensor) -> Tensor:
    """Return the labels of every release, (releases, batch size), in ascending order.

    For one record, the label is the class with the lowest entry in the bias's gradient. Without a
    bias, the label is the class whose row of the weight's gradient has negative inner products with
    all other rows. In a batch of b records with the bias's gradient ``g``, class c has ``b(p̄_c −
    g_c)`` records. The network's mean probabilities ``p̄`` are approximated from the adversary's
    own records. Labels are assigned to match these numbers most closely, with at least one record
    for every class c with ``g_c < 0``.

    Parameters
    ----------
    net
        The network, whose last linear layer outputs one value per class.
    releases
        The observed gradients. Clipping shrinks ``g``, noise perturbs it, and local steps change
        it; the labels are then estimates.
    outputs
        The network's outputs for several of the adversary's own records, (m, classes).

    Examples
    --------
    >>> import torch, seepage as sp
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    >>> y = torch.tensor([2, 0, 1])
    >>> seen = sp.attacks.release_gradients(net, "cross_entropy", torch.rand(3, 4), y)
    >>> sp.attacks.recover_labels(net, seen, net(torch.rand(5, 4))).flatten()
    tensor([2, 0, 1])
    """
    name, classes = _last_layer(net)
    if outputs.dim() != 2 or outputs.shape[1] != classes:
        raise InputError(
            f"The last linear layer has {counted(classes, 'output')}, but the network's output for "
            f"a record has the shape {tuple(outputs.shape[1:])}; {_GIVE}."
        )
    b = releases.batch_size
    bias = releases.gradients.get(f"{name}bias")
    if bias is not None:
        if b == 1:
            return bias.argmin(1)[:, None]
        if releases.training is not None:
            bias = bias / _reach(releases)
        likely = torch.softmax(outputs.detach().to(bias), 1).mean(0)
        return torch.stack([_given_out(row, likely, b) for row in bias])
    if b > 1 or classes < 3:
        raise InputError(
            "Without the gradient of a bias, labels can be recovered only for single records and "
            f"at least three classes; {_GIVE}."
        )
    rows = releases.gradients[f"{name}weight"]
    across = rows @ rows.transpose(1, 2)
    against = across.sum(2) - torch.diagonal(across, dim1=1, dim2=2)
    return against.argmin(1)[:, None]


def _reach(releases: GradientReleases) -> float:
    """Return the divisor that converts an update to the mean gradient over its steps."""
    try:
        return releases.training.reach(releases.batch_size) if releases.training else 1.0
    except InputError as error:
        raise InputError(f"{error} Otherwise, {_GIVE}.") from None


def _given_out(entries: Tensor, likely: Tensor, b: int) -> Tensor:
    wanted = b * (likely - entries)
    counts = torch.zeros_like(entries, dtype=torch.long)
    present = torch.argsort(entries)[:b]
    counts[present[entries[present] < 0]] = 1
    while int(counts.sum()) < b:
        counts[torch.argmax(wanted - counts)] += 1
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


def is_plain_cross_entropy(loss: str | nn.Module | Loss) -> bool:
    """Return whether the gradient of the loss with respect to the outputs is ``p − e_y``.

    Class weights, label smoothing and ignored labels change this gradient, so recovered labels
    would be wrong.
    """
    if isinstance(loss, nn.CrossEntropyLoss):
        usual = nn.CrossEntropyLoss()
        options = ("weight", "label_smoothing", "ignore_index", "reduction")
        return type(loss) is nn.CrossEntropyLoss and all(
            getattr(loss, option) == getattr(usual, option) for option in options
        )
    return loss is cross_entropy or (isinstance(loss, str) and loss == "cross_entropy")


def _last_layer(net: nn.Module) -> tuple[str, int]:
    """Return the prefix of the last layer's parameter names, and its number of outputs."""
    linear_layers = [
        (name, module)
        for name, module in unwrapped(net).named_modules()
        if isinstance(module, nn.Linear) and module.weight.requires_grad
    ]
    if not linear_layers:
        raise InputError(f"The network has no linear layer from which to recover labels; {_GIVE}.")
    name, module = linear_layers[-1]
    return f"{name}." if name else "", module.out_features
