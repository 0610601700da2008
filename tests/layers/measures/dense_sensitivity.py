"""The plain truth about sensitivity: every sample's Jacobian written out, one sample at a time."""

from __future__ import annotations

import math

import torch
from torch.func import functional_call, grad, jacfwd

from seepage.nn.problem.problem import per_record


def dense_sensitivity(net, loss, x, y, wrt, norm, layout):
    losses = per_record(loss)
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    out = []
    for k in range(len(x)):

        def gradient(values, k=k):
            def one(weights):
                inputs, target = (
                    (x[k : k + 1], values) if wrt == "target" else (values, y[k : k + 1])
                )
                return losses(functional_call(net, weights, (inputs,)), target).sum()

            return grad(one)(parameters)

        values = soft(net, x, y)[k : k + 1] if wrt == "target" else x[k : k + 1]
        g, J = gradient(values), jacfwd(gradient)(values)
        row = []
        for names in layout.values():
            flat = torch.cat([g[name].flatten() for name in names])
            jacobian = torch.cat([J[name].reshape(g[name].numel(), -1) for name in names])
            size = len(flat)
            value = {
                "fro": lambda j, s: j.norm() / math.sqrt(s),
                1: lambda j, s: j.abs().sum() / s,
                "inf": lambda j, s: j.abs().max(),
            }[norm](jacobian, size)
            spread = flat.max() - flat.min()
            row.append(float(value / spread) if spread > 0 else 0.0)
        out.append(row)
    return torch.tensor(out, dtype=torch.float64)


def soft(net, x, y):
    if y.is_floating_point():
        return y
    return torch.nn.functional.one_hot(y, net(x[:1]).shape[-1]).to(x.dtype)
