"""One call for each model of Hugging Face, against differences of plain gradients."""

from __future__ import annotations

import copy
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hf_models import (
    NAMES,
    TOKENS,
    VOCABULARY,
    WIDTH,
    collated,
    model,
    of_type,
    record,
    with_adapters,
)
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import seepage as sp
from sampled import sampled

torch.set_num_threads(1)

HOW = {"noise_multiplier": 0.5, "max_grad_norm": 1.5}
PAIRS = [(name, adapters) for name in NAMES for adapters in (False, True)]
NAMED = [f"{name}-{'LoRA' if adapters else 'full'}" for name, adapters in PAIRS]
TURNS = PAIRS[::4] + PAIRS[3::4]  # every model once, every other one with adapters
FOUND = {
    "gpt2": "the token embeddings ('transformer.wte')",
    "bert": "the token embeddings ('bert.embeddings.word_embeddings')",
    "llama": "the token embeddings ('model.embed_tokens')",
    "qwen2": "the token embeddings ('model.embed_tokens')",
    "vit": "the input 'pixel_values'",
    "t5": "the token embeddings ('encoder.embed_tokens')",
}


class Uncast(TorchFunctionMode):
    """Lifts the library's own casts of logits and norms to float32."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        kwargs = kwargs or {}
        if function is Tensor.float:
            return args[0].double()
        if function is not torch.Tensor.dtype.__get__:
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            kwargs = {k: torch.float64 if a is torch.float32 else a for k, a in kwargs.items()}
        return function(*args, **kwargs)


def clipped(net: nn.Module, one: dict[str, Tensor], place: str, shift: Tensor) -> Tensor:
    """Return a record's clipped gradient by a plain backward pass, its input shifted."""
    hook = None
    if place == "pixel_values":
        one = {**one, place: one[place] + shift}
    else:
        module = net.get_submodule(place)
        hook = module.register_forward_hook(lambda module, args, output: output + shift)
    released = [p for p in net.parameters() if p.requires_grad]
    try:
        with Uncast():
            loss = net(**one).loss
    finally:
        if hook is not None:
            hook.remove()
    found = torch.autograd.grad(loss, released, materialize_grads=True)
    flat = torch.cat([part.flatten() for part in found])
    return flat * min(1.0, HOW["max_grad_norm"] / float(flat.norm()))


def column(net: nn.Module, one: dict[str, Tensor], place: str, unit: Tensor) -> Tensor:
    """Return a column of the Jacobian: central differences, extrapolated to the sixth order."""

    def at(h: float) -> Tensor:
        return (clipped(net, one, place, h * unit) - clipped(net, one, place, -h * unit)) / (2 * h)

    found = [at(4e-4), at(2e-4), at(1e-4)]
    for order in (4, 16):
        found = [(order * fine - coarse) / (order - 1) for coarse, fine in pairwise(found)]
    return found[0]


def truth(net: nn.Module, batch: dict[str, Tensor], place: str) -> np.ndarray:
    """Return the dFIL of every record, one at a time."""
    out = []
    for k in range(3):
        one = record(batch, k)
        shape = (1, 1, 4, 4) if place == "pixel_values" else (1, TOKENS, WIDTH)
        units = torch.eye(int(np.prod(shape)), dtype=torch.float64).reshape(-1, *shape)
        total = sum(float(column(net, one, place, unit).square().sum()) for unit in units)
        counted = int(one["attention_mask"].sum()) * WIDTH if "attention_mask" in one else 16
        out.append((total / counted) ** 0.5 / (HOW["noise_multiplier"] * HOW["max_grad_norm"]))
    return np.array(out)


@pytest.mark.parametrize(("name", "adapters"), sampled(PAIRS, [("gpt2", True)], TURNS), ids=NAMED)
def test_one_call_is_right_against_finite_differences(name: str, adapters: bool) -> None:
    net, batch = model(name).double(), of_type(collated(name), torch.float64)
    about = FOUND[name]
    if adapters:
        net = with_adapters(net, name)
        about = about.replace("('", "('base_model.model.")
    found = sp.nn.leakage(net, batch, **HOW).records("dfil", method="exact")
    assert about in repr(found)
    place = about.split("'")[1]
    np.testing.assert_allclose(np.asarray(found), truth(net, batch, place), rtol=1e-8)


@pytest.mark.parametrize(("name", "adapters"), sampled(PAIRS, 0, TURNS[::2]), ids=NAMED)
def test_in_bfloat16_it_is_that_of_float32_on_the_same_weights(name: str, adapters: bool) -> None:
    short = model(name).bfloat16()
    if adapters:  # whose own numbers stay in float32
        short = with_adapters(short, name)
        assert {p.dtype for p in short.parameters()} == {torch.bfloat16, torch.float32}
    batch = of_type(collated(name), torch.bfloat16)
    whole = copy.deepcopy(short).float(), of_type(batch, torch.float32)
    for how in ({"probes": 8}, {"method": "exact"}):
        told = [
            np.asarray(sp.nn.leakage(net, records, **HOW).records("dfil", **how))
            for net, records in ((short, batch), whole)
        ]
        np.testing.assert_allclose(*((each**2).mean() ** 0.5 for each in told), rtol=0.02)


def test_embeddings_and_other_inputs_can_be_given_and_named() -> None:
    net = model("gpt2")
    embeds = torch.randn(3, TOKENS, WIDTH)
    batch = {"inputs_embeds": embeds, "labels": collated("gpt2")["labels"]}
    found = sp.nn.leakage(net, batch, **HOW).records("dfil", probes=2)
    assert "the input 'inputs_embeds'" in repr(found)
    image = collated("vit")
    part = torch.zeros(4, 4, dtype=torch.bool)
    part[:2] = True
    view = sp.nn.Input(part, key="pixel_values")
    assert "a part of the input" in repr(
        sp.nn.leakage(model("vit"), image, view=view, **HOW).records("dfil", probes=2)
    )
    with pytest.raises(sp.InputError, match="has no input 'pixels'"):
        sp.nn.leakage(model("vit"), image, view=sp.nn.Input(key="pixels"), **HOW)


HEADS = ["classes", "tokens", "spans", "several", "number", *NAMES]


@cache
def heads() -> dict[str, tuple[nn.Module, dict[str, Tensor]]]:
    """Return models with every kind of loss that they take themselves."""
    import transformers

    torch.manual_seed(6)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    text = {k: v for k, v in collated("bert").items() if k != "labels"}
    places = torch.tensor([0, 1, 2])
    kinds = {
        "classes": (transformers.BertForSequenceClassification, {"labels": places % 2}),
        "tokens": (
            transformers.BertForTokenClassification,
            {"labels": places[:, None] % 2 * text["attention_mask"]},
        ),
        "spans": (
            transformers.BertForQuestionAnswering,
            {"start_positions": places % 2, "end_positions": places % 2 + 1},
        ),
    }
    found = {kind: (made(config).eval(), text | more) for kind, (made, more) in kinds.items()}
    several = copy.deepcopy(config)
    several.num_labels, several.problem_type = 3, "multi_label_classification"
    several_labels = torch.rand(3, 3).round()
    made = transformers.BertForSequenceClassification(several).eval()
    found["several"] = made, text | {"labels": several_labels}
    number = copy.deepcopy(config)
    number.num_labels = 1
    made = transformers.BertForSequenceClassification(number).eval()
    found["number"] = made, text | {"labels": torch.randn(3)}
    found |= {name: (model(name), collated(name)) for name in NAMES}
    return found


@pytest.mark.parametrize("kind", HEADS)
def test_the_loss_of_a_record_is_what_the_model_takes_of_it_alone(kind: str) -> None:
    if kind == "t5" and version("transformers").startswith("4."):
        pytest.skip("T5 of transformers 4 runs its embedding twice, which is refused")
    net, batch = heads()[kind]
    labels = batch["labels"] if "labels" in batch else batch["start_positions"]
    engine = sp.nn.Engine(net, "own", clip=sp.nn.NoClip())
    found = engine.step(batch, labels, probes=0).losses
    alone = [float(net(**record(batch, k)).loss.detach()) for k in range(3)]
    np.testing.assert_allclose(found.numpy(), alone, rtol=1e-5)


def test_a_batch_without_labels_is_refused() -> None:
    batch = collated("gpt2")
    del batch["labels"]
    with pytest.raises(sp.InputError, match="because the batch has no labels"):
        sp.nn.leakage(model("gpt2"), batch, **HOW)
