"""What a step of private training releases about one number of each record, by finite differences.

Nothing of the package is used: the gradient of one record's loss by a plain backward pass of a copy
of the network in float64, clipped by hand, at two values of the number.
"""

import copy

import torch

STEP = 1e-5


def clipped_gradient(net, loss, x, y, threshold):
    """Return one record's clipped gradient, flat; ``loss`` maps output and target to a number."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    parts = torch.autograd.grad(loss(net(x[None]), y[None]), parameters, allow_unused=True)
    flat = torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).flatten()
            for p, g in zip(parameters, parts, strict=True)
        ]
    )
    return flat * min(1.0, threshold / max(float(flat.norm()), 1e-300))


def squared_changes(net, loss, X, y, threshold, column):
    """Return ‖∂g̃/∂x_column‖² of every record, by central differences."""
    net = copy.deepcopy(net).double()
    found = []
    for record, target in zip(X.double(), y, strict=True):
        ends = []
        for sign in (1, -1):
            moved = record.clone()
            moved[column] += sign * STEP
            ends.append(clipped_gradient(net, loss, moved, target, threshold))
        found.append(((ends[0] - ends[1]) / (2 * STEP)).square().sum())
    return torch.stack(found)
