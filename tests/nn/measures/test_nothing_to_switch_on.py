"""What used to need a flag, or was refused for a reason that was not the cause."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from elusive_networks import clipped_gradient, dfil, entropy, finite_dfil, jacobians, made
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import seepage as sp

NOISE = {"noise_multiplier": 1.0, "max_grad_norm": 0.5}


class Checkpointed(nn.Module):
    """A network whose middle runs again in the backward pass."""

    def __init__(self, reentrant: bool, saves: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.middle = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.reentrant, self.saves = reentrant, saves

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if not self.saves:
            return self.last(self.middle(h))
        return self.last(checkpoint(self.middle, h, use_reentrant=self.reentrant))


def batch(count: int = 5) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, 4, dtype=torch.float64), torch.arange(count) % 3


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_of_either_kind_is_measured_as_without_it(reentrant: bool) -> None:
    net, plain = (Checkpointed(reentrant, saves).double() for saves in (True, False))
    x, y = batch()
    leak = sp.nn.leakage(net, "cross_entropy", x, y, **NOISE)
    jacobian = jacobians(plain, entropy, x, y)
    np.testing.assert_allclose(leak.records("dfil", method="exact"), dfil(jacobian), rtol=1e-6)
    largest = np.linalg.norm(jacobian, 2, axis=(1, 2))
    np.testing.assert_allclose(leak.records("fil"), largest, rtol=1e-4)
    finite = sp.nn.leakage(net, "cross_entropy", x, y, **NOISE, method="finite", scale=0.1)
    truth = finite_dfil(plain, entropy, x, y, 0.1)
    np.testing.assert_allclose(finite.records("dfil", method="exact"), truth, rtol=1e-9)
    run = sp.nn.FisherAccountant(net, "cross_entropy", n=5, sample_rate=1.0, probes=400, **NOISE)
    run.observe(range(5), x, y)
    found = run.records("dfil", amplified=False)
    errors = np.asarray(found.standard_errors)
    assert (np.abs(np.asarray(found) - dfil(jacobian)) < 5 * errors).all()


@pytest.mark.parametrize("reentrant", [True, False])
def test_plis_of_a_checkpointed_network(reentrant: bool) -> None:
    net, plain = (Checkpointed(reentrant, saves).double() for saves in (True, False))
    x, y = batch()
    found = np.asarray(sp.nn.plis(net, "cross_entropy", x, y, noise_multiplier=2.0))
    gradient, h = clipped_gradient(plain, entropy, None), 1e-5

    def loss(record: Tensor, target: Tensor) -> float:
        return float(gradient(record, target).square().sum()) / 4

    moves = h * torch.eye(4, dtype=torch.float64)
    truth = [
        [(loss(r + m, t) - loss(r - m, t)) / (2 * h) for m in moves]
        for r, t in zip(x, y, strict=True)
    ]
    np.testing.assert_allclose(found, truth, rtol=1e-5, atol=1e-8)


LOSSES: dict[str, tuple[nn.Module, Callable[..., Tensor]]] = {
    "Huber": (nn.HuberLoss(delta=0.3), lambda o, t: functional.huber_loss(o, t, delta=0.3)),
    "soft margin": (nn.SoftMarginLoss(), functional.soft_margin_loss),
    "multi-margin": (nn.MultiMarginLoss(), functional.multi_margin_loss),
}


@pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore::seepage.nn.FallbackWarning"
)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_without_second_derivatives_are_measured_over_finite_steps(name: str) -> None:
    loss, function = LOSSES[name]
    net, x, _ = made(torch.tanh, 4, 6, 3, records=4)
    net, x = net.double(), x.double()
    y: Tensor = torch.arange(4) % 3
    if name != "multi-margin":
        y = torch.randn(4, 3, dtype=torch.float64).sign()
    leak = sp.nn.leakage(net, loss, x, y, **NOISE)
    said = "derivatives cannot be used: torch cannot|slope of the loss jumps"
    with pytest.warns((sp.nn.FallbackWarning, sp.nn.KinkWarning), match=said):
        found = leak.records("dfil", method="exact")
    h = leak.engine.step_size(x, y)
    assert found.about == f"the input, over steps of {h:g}"
    np.testing.assert_allclose(np.asarray(found), finite_dfil(net, function, x, y, h), rtol=1e-9)
    assert leak.cells().shape == (4, 4)


def test_a_record_of_another_size_is_named() -> None:
    net, x, y = made(torch.tanh, 5, 8, 3, records=12)
    x[7] = 1e30
    leak = sp.nn.leakage(net, "cross_entropy", x, y, **NOISE)
    with pytest.raises(
        sp.InputError, match=r"record 7 have a root mean square of 1e\+30.*Leave the record out"
    ):
        leak.records("dfil")
    x[7] = 1e3
    assert leak.records("dfil").about == "the input"


def test_several_inputs_are_told_their_own_names() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = made(torch.tanh, 4, 6, 3)[0].double()

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.inner(left + right)

    x, y = batch()
    both = {"left": x, "right": x}
    with pytest.raises(sp.InputError, match=r"\(left, right\).*Input\(key='left'\)"):
        sp.nn.leakage(Sum(), "cross_entropy", both, y, **NOISE).records("dfil")
    with pytest.raises(sp.InputError, match=r"a tuple of 2 tensors.*Input\(key=0\)"):
        sp.nn.leakage(Sum(), "cross_entropy", (x, x), y, **NOISE).records("dfil")
    truth = dfil(jacobians(Sum().inner, entropy, 2 * x, y))
    for given, key in ((both, "left"), ((x, x), 1), ([x, x], 0)):
        view = sp.nn.Input(key=key)
        found = sp.nn.leakage(Sum(), "cross_entropy", given, y, view=view, **NOISE)
        np.testing.assert_allclose(found.records("dfil", method="exact"), truth, rtol=1e-6)
    with pytest.raises(sp.InputError, match="no input 2; choose from 0, 1"):
        sp.nn.plis(Sum(), "cross_entropy", (x, x), y, view=sp.nn.Input(key=2), **NOISE)


def test_a_data_frame_keeps_its_names() -> None:
    pandas = pytest.importorskip("pandas")
    net, x, y = made(torch.tanh, 4, 6, 3, records=3)
    frame = pandas.DataFrame(x.numpy(), columns=["age", "dose", "sex", "size"], index=list("abc"))
    apart = sp.nn.leakage(net, "cross_entropy", x, y, **NOISE)
    for given in (
        sp.nn.leakage(net, "cross_entropy", frame, y.numpy(), **NOISE),
        sp.leakage(net, frame, y.numpy(), **NOISE),
    ):
        records = given.records("dfil", method="exact")
        np.testing.assert_allclose(records, apart.records("dfil", method="exact"), rtol=1e-6)
        assert records.labels().tolist() == ["a", "b", "c"]
        assert given.columns().labels().tolist() == list(frame.columns)
        assert list(given.cells().table())[1:5] == list(frame.columns)
        named = given.records("dfil", columns=["dose", "size"])
        np.testing.assert_allclose(named, apart.records("dfil", columns=[1, 3]), rtol=1e-6)
    view = sp.nn.Input.features(["dose", "size"], frame.columns)
    part = sp.nn.leakage(net, "cross_entropy", frame, y.numpy(), view=view, **NOISE)
    np.testing.assert_allclose(part.records("dfil", method="exact"), named, rtol=1e-6)
    assert part.columns().labels().tolist() == ["dose", "size"]
    with pytest.raises(sp.InputError, match=r"no column 'doze' \(did you mean 'dose'"):
        sp.nn.Input.features(["doze"], frame.columns)
    with pytest.raises(sp.InputError, match=r"features\(\['dose'\], frame.columns\)"):
        sp.nn.Input.features(["dose"], 4)


def weighed_by_a_constant(output: Tensor, target: Tensor) -> Tensor:
    """A loss that hides from torch a part of how it depends on its record."""
    entropies = functional.cross_entropy(output, target, reduction="none")
    return entropies * output.detach().norm(dim=1)


UNSEEN: dict[str, tuple[Any, Callable[..., Tensor]]] = {
    "multi-margin": (nn.MultiMarginLoss(), functional.multi_margin_loss),
    "detached": (weighed_by_a_constant, weighed_by_a_constant),
}


@pytest.mark.filterwarnings("ignore::seepage.nn.KinkWarning")
@pytest.mark.parametrize("clip", ["smooth", None])
@pytest.mark.parametrize("name", UNSEEN)
def test_plis_without_derivatives_is_that_of_finite_steps(name: str, clip: str | None) -> None:
    loss, function = UNSEEN[name]
    net, x, y = made(torch.tanh, 4, 6, 3, records=3)
    net, x = net.double(), x.double()
    gradient = clipped_gradient(net, function, None)
    how = {"noise_multiplier": 2.0} | ({"max_grad_norm": 0.8, "clip": clip} if clip else {})

    def privacy_loss(record: Tensor, target: Tensor) -> float:
        size, threshold = float(gradient(record, target).norm()), 0.8 if clip else 1.0
        if clip:
            over = size / threshold - 1
            size /= 1 + over * 0.5 * (1 + math.erf(over / math.sqrt(2)))
        return (size / (2 * threshold)) ** 2

    with pytest.warns(sp.nn.FallbackWarning, match="measured over finite steps") as said:
        found = sp.nn.plis(net, loss, x, y, **how)
    assert len([each for each in said if each.category is sp.nn.FallbackWarning]) == 1
    h = float(found.about.removeprefix("the input, over steps of "))
    moves = h * torch.eye(4, dtype=torch.float64)
    truth = [
        [(privacy_loss(r + m, t) - privacy_loss(r - m, t)) / (2 * h) for m in moves]
        for r, t in zip(x, y, strict=True)
    ]
    np.testing.assert_allclose(found, truth, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(
        found.privacy_loss, [privacy_loss(r, t) for r, t in zip(x, y, strict=True)], rtol=1e-12
    )


def test_a_network_that_torch_cannot_train_is_refused_for_that() -> None:
    class Step(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h * torch.heaviside(h, torch.zeros_like(h))

    x, y = batch(3)
    net = nn.Sequential(nn.Linear(4, 6), Step(), nn.Linear(6, 3)).double()
    for measure in (sp.nn.leakage, sp.nn.plis):
        with pytest.raises(sp.InputError, match=r"nothing can be trained.*heaviside"):
            measure(net, "cross_entropy", x, y, **NOISE).records()


def test_the_measure_and_the_clip_have_defaults() -> None:
    net, x, y = made(torch.tanh, 4, 6, 3, records=5)
    net, x = net.double(), x.double()
    leak = sp.nn.leakage(net, "cross_entropy", x, y, **NOISE)
    largest = np.linalg.norm(jacobians(net, entropy, x, y), 2, axis=(1, 2))
    assert leak.records().measure == "fil"
    np.testing.assert_allclose(leak.records(), largest, rtol=1e-4)
    tight = {"noise_multiplier": 1.0, "max_grad_norm": 0.05}  # which clips every record
    gradient, h = clipped_gradient(net, entropy, None), 1e-5

    def loss(record: Tensor, target: Tensor) -> float:
        size = float(gradient(record, target).norm()) / 0.05
        gelu = (size - 1) * 0.5 * (1 + math.erf((size - 1) / math.sqrt(2)))
        return (size / (gelu + 1)) ** 2

    moves = h * torch.eye(4, dtype=torch.float64)
    truth = [
        [(loss(r + m, t) - loss(r - m, t)) / (2 * h) for m in moves]
        for r, t in zip(x, y, strict=True)
    ]
    found = np.asarray(sp.nn.plis(net, "cross_entropy", x, y, **tight))
    np.testing.assert_allclose(found, truth, rtol=1e-3, atol=1e-6)
    assert np.abs(found).max() > 0


class OwnLoss(nn.Module):
    """A model in the manner of Hugging Face's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = made(torch.tanh, 4, 6, 3)[0].double()

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.inner(pixel_values)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def test_plis_takes_a_model_and_a_batch() -> None:
    model, (x, y) = OwnLoss(), batch()
    found = sp.nn.plis(model, {"pixel_values": x, "labels": y}, **NOISE)
    apart = sp.nn.plis(model.inner, "cross_entropy", x, y, **NOISE)
    np.testing.assert_allclose(np.asarray(found), np.asarray(apart), rtol=1e-9)
    with pytest.raises(sp.InputError, match=r"sp\.nn\.plis\(model, batch, noise_multiplier=…\)"):
        sp.nn.plis(model, "cross_entropy", x)


def adapted(kind: str) -> nn.Module:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 20}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**sizes, **ends, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    chosen = {
        "DoRA": lambda: peft.LoraConfig(
            r=2,
            use_dora=True,
            target_modules=["c_attn"],
            fan_in_fan_out=True,
            task_type="CAUSAL_LM",
        ),
        "prompt tuning": lambda: peft.PromptTuningConfig(
            num_virtual_tokens=2, task_type="CAUSAL_LM"
        ),
    }[kind]()
    model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), chosen).double()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p += 0.1 * torch.randn_like(p)
    return model


@pytest.mark.parametrize(
    ("kind", "table"),
    [("DoRA", "base_model.model.transformer.wte"), ("prompt tuning", "base_model.transformer.wte")],
)
def test_adapters_that_cannot_be_traced_are_measured_over_finite_steps(
    kind: str, table: str
) -> None:
    model = adapted(kind)
    ids = torch.randint(1, 20, (2, 4), generator=torch.Generator().manual_seed(0))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[1, :2] = True
    view, h = sp.nn.Embedding(table, mask), 0.05
    leak = sp.nn.leakage(model, given, view=view, scale=h, **NOISE)
    with pytest.warns(sp.nn.FallbackWarning):
        found = leak.records("dfil", method="exact")
    assert f"over steps of {h:g}" in found.about
    released = [p for p in model.parameters() if p.requires_grad]

    def gradient(row: int, move: Tensor) -> Tensor:
        def moved(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            return output + torch.zeros(1, 4, 8, dtype=output.dtype).masked_scatter(mask, move)

        handle = model.get_submodule(table).register_forward_hook(moved)
        one = {name: value[row : row + 1] for name, value in given.items()}
        parts = torch.autograd.grad(model(**one).loss, released)
        handle.remove()
        g = torch.cat([part.flatten() for part in parts])
        return g / max(1.0, float(g.norm()) / 0.5)

    corners = h * torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    for row, value in enumerate(np.asarray(found)):
        own = gradient(row, torch.zeros(2, dtype=torch.float64))
        squares = [float((gradient(row, c) - own).square().sum()) for c in corners]
        assert value == pytest.approx(math.sqrt(np.mean(squares) / 2) / h / 0.5, rel=1e-7)
