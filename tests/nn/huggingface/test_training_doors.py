"""What people switch on to fine-tune (short numbers, checkpoints, …) changes no number."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch
from hf_models import adapted, collated, model
from torch import Tensor, nn

import seepage as sp
from sampled import sampled

torch.set_num_threads(1)

HOW = {"noise_multiplier": 0.5, "max_grad_norm": 1.5, "scale": 0.01}


def dfil(net: nn.Module, **how: Any) -> np.ndarray:
    return np.asarray(sp.nn.leakage(net, collated("gpt2"), **HOW | how).records("dfil", probes=4))


def training() -> nn.Module:
    """Return a model in training mode, without dropout."""
    net = model("gpt2").train()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for layer in net.transformer.h:
        layer.attn.attn_dropout.p = 0.0
    return net


def checkpointed() -> nn.Module:
    net = training()
    net.gradient_checkpointing_enable()
    net.enable_input_require_grads()
    return net


def compiled_inside() -> nn.Module:
    net = model("gpt2")
    net.compile()
    net.transformer.h[0].compile()
    return net


def other_attention() -> nn.Module:
    net = model("gpt2")
    net.set_attn_implementation("eager")
    return net


DOORS: dict[str, Callable[[], nn.Module]] = {
    "checkpoints": checkpointed,
    "compile()": compiled_inside,
    "torch.compile": lambda: torch.compile(model("gpt2")),
    "attention": other_attention,
}


@pytest.mark.parametrize(
    "method", sampled(["derivative", "finite", "thin"], 0, ["derivative", "thin"])
)
@pytest.mark.parametrize("door", list(DOORS))
def test_what_is_there_for_speed_changes_nothing(door: str, method: str) -> None:
    net = DOORS[door]()
    np.testing.assert_allclose(
        dfil(net, method=method), dfil(model("gpt2"), method=method), rtol=1e-4
    )


@pytest.mark.skipif(
    version("transformers").startswith("4."), reason="transformers 4 has its flag elsewhere"
)
def test_the_model_is_left_as_it_was() -> None:
    net = checkpointed()
    hooks = dict(net.get_input_embeddings()._forward_hooks)
    dfil(net)
    assert dict(net.get_input_embeddings()._forward_hooks) == hooks
    assert all(layer.gradient_checkpointing for layer in net.transformer.h)
    assert net.config.use_cache
    net(**collated("gpt2")).loss.backward()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_short_numbers_and_autocast(kind: torch.dtype) -> None:
    short = model("gpt2").to(kind)
    whole = dfil(copy.deepcopy(short).float())
    np.testing.assert_allclose(dfil(short), whole, rtol=1e-6)
    with torch.autocast("cpu", kind):
        found = dfil(model("gpt2"))
    np.testing.assert_allclose(found, dfil(model("gpt2")), rtol=0.02)


@pytest.mark.slow
def test_accelerate_with_its_own_autocast() -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    # It keeps one state for the whole process, which other tests may have begun otherwise.
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        net = Accelerator(cpu=True, mixed_precision="bf16").prepare(model("gpt2"))
        np.testing.assert_allclose(dfil(net), dfil(model("gpt2")), rtol=0.03)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


class EightBits(nn.Module):
    """A linear layer whose weight is held in whole numbers, as quantised bases have it."""

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__()
        self.scale = float(whole.weight.detach().abs().max()) / 127
        self.register_buffer("weight", (whole.weight / self.scale).round().to(torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return _Dequantised.apply(x, self.weight, self.scale)


class _Dequantised(torch.autograd.Function):
    """A way back of its own, which cannot be differentiated again: that of a fast kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.scale = scale
        return x @ (weight.to(x.dtype).T * scale)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, delta: Tensor) -> Any:
        return delta @ (ctx.saved_tensors[0].to(delta.dtype) * ctx.scale), None, None


@pytest.mark.slow
def test_adapters_on_a_base_of_eight_bits() -> None:
    net = model("llama")
    for layer in net.model.layers:
        layer.mlp.gate_proj = EightBits(layer.mlp.gate_proj)
    net.requires_grad_(False)
    net = adapted(net, ["v_proj"], init_lora_weights=False).eval()
    batch = collated("llama")
    refused = "torch cannot differentiate|hides the gradient's dependence|_Dequantised"
    with pytest.raises(sp.InputError, match=refused):
        sp.nn.leakage(net, batch, **HOW, method="derivative").records("dfil", probes=2)
    plain = copy.deepcopy(net)
    for layer in plain.base_model.model.model.layers:
        held = layer.mlp.gate_proj
        layer.mlp.gate_proj = nn.Linear(4, 8, bias=False)
        layer.mlp.gate_proj.weight = nn.Parameter(held.weight.float() * held.scale, False)
    found = [
        np.asarray(sp.nn.leakage(each, batch, **HOW, method="finite").records("dfil", probes=4))
        for each in (net, plain)
    ]
    np.testing.assert_allclose(*found, rtol=1e-4)


@pytest.mark.slow
def test_bfloat16_where_statistics_of_norms_are_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a graphics card the means and deviations of a LayerNorm of bfloat16 are float32."""
    plain = torch.native_layer_norm
    asked = []

    def longer(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        asked.append(args[0].dtype)
        out, mean, scale = plain(*args)
        return out, mean.float(), scale.float()

    back = torch.ops.aten.native_layer_norm_backward

    def takes_longer(delta: Tensor, x: Tensor, shape: Any, *others: Any) -> Any:
        return back(delta, x, shape, *(each.to(x.dtype) for each in others[:2]), *others[2:])

    def no_tangents(*args: Any) -> Tensor:
        raise AssertionError("its tangents would be float32 there")

    short = model("gpt2").bfloat16()
    engine, reference = (
        sp.nn.Engine(net, "own", clip=sp.nn.SmoothClip(1.5))
        for net in (short, copy.deepcopy(short).float())
    )
    engine.problem.wider = None  # as for a network too large for float32
    batch = collated("gpt2")
    labels = batch["labels"]
    with monkeypatch.context() as patched:
        patched.setattr(torch, "native_layer_norm", longer)
        patched.setattr(torch.ops.aten, "native_layer_norm_backward", takes_longer)
        pull, norms, _ = engine.radial_pull(batch, labels)
    assert pull.dtype == torch.bfloat16
    assert torch.bfloat16 in asked
    truth, sizes, _ = reference.radial_pull(batch, labels)
    np.testing.assert_allclose(norms.float(), sizes, rtol=0.02)
    assert float((pull.float() - truth).norm() / truth.norm()) < 0.05
    engine.step(batch, labels, probes=4)  # with all that is looked over when it is new
    monkeypatch.setattr(torch, "layer_norm", no_tangents)
    found = engine.step(batch, labels, probes=4).traces.mean(1).sqrt()
    monkeypatch.undo()
    whole = reference.step(batch, labels, probes=4).traces.mean(1).sqrt()
    np.testing.assert_allclose(found, whole, rtol=0.05)
