"""Switches torch to implementations that can be differentiated twice, for the time of a pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from seepage.nn.gradients.rules.recurrent import PlainRecurrence


@contextmanager
def differentiable_backends(net: nn.Module) -> Iterator[None]:
    """Use plain attention and plain recurrent layers: the fused ones lack second derivatives.

    The fused attention kernels have no forward-mode rule, the fused encoder layer has no gradient
    at all, and fused recurrent layers cannot be differentiated twice. Gradients are switched on:
    where they are off, torch takes formulas for SiLU and GroupNorm that end there.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_without_fast_path())
        if any(isinstance(module, nn.RNNBase) for module in net.modules()):
            stack.enter_context(PlainRecurrence())
        yield


@contextmanager
def _without_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
