"""A model's own loss, split into those of its records, and the input that a model declares."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import seepage as sp
import seepage.nn as snn
from seepage.nn.problem.views import ModelInput, TokenEmbeddings

torch.set_num_threads(1)

CLASSES = torch.tensor([0, 2, 1, 1])
Loss = Callable[[Tensor, Tensor], Any]


class Model(nn.Module):
    """A model that takes its inputs by name and returns what ``answer`` makes of its output."""

    def __init__(self, answer: Loss) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.answer, self.inner = answer, nn.Linear(4, 3)

    def forward(self, features: Tensor, labels: Tensor) -> Any:
        return self.answer(self.inner(features), labels)


def named(loss: Loss) -> Loss:
    return lambda output, labels: SimpleNamespace(loss=loss(output, labels), logits=output)


def batch(labels: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"features": torch.randn(4, 4), "labels": labels}


def shares() -> Tensor:
    torch.manual_seed(2)
    return torch.rand(4, 3).softmax(1)


def divergence(output: Tensor, labels: Tensor) -> Tensor:
    return functional.kl_div(output.log_softmax(1), labels, reduction="batchmean")


def squares(output: Tensor, labels: Tensor) -> Tensor:
    return functional.mse_loss(output, labels, reduction="sum")


def weighted(output: Tensor, labels: Tensor) -> Tensor:
    weight = torch.tensor([1.0, 5.0, 0.2])
    return functional.cross_entropy(output, labels, weight=weight)


def losses(answer: Loss, labels: Tensor) -> Tensor:
    given = batch(labels)
    engine = snn.Engine(Model(answer), "own", view=snn.Input(key="features"), clip=snn.NoClip())
    return engine.step(given, labels, probes=0).losses


@pytest.mark.parametrize(
    ("answer", "labels"),
    [
        (named(divergence), shares()),
        (named(squares), shares()),
        (named(weighted), CLASSES),
        (lambda output, labels: (weighted(output, labels), output), CLASSES),
        (
            named(lambda output, y: functional.mse_loss(output, y, reduction="none").mean(1)),
            shares(),
        ),
    ],
    ids=["batchmean", "sum", "weighted", "tuple", "reduced by hand"],
)
def test_a_record_s_loss_is_that_of_the_record_alone(answer: Loss, labels: Tensor) -> None:
    net, given = Model(answer), batch(labels)
    alone = []
    for k in range(4):
        found = net(**{name: value[k : k + 1] for name, value in given.items()})
        alone.append(float((found[0] if isinstance(found, tuple) else found.loss).detach()))
    assert losses(answer, labels).tolist() == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda output, labels: {"logits": output}, "The model returns no loss for this batch"),
        (
            named(lambda output, y: functional.mse_loss(output, y, reduction="none")),
            r"own loss has the shape \(\d, 3\) and cannot be split into losses of \d records",
        ),
    ],
)
def test_a_loss_that_is_not_there_or_cannot_be_split(answer: Loss, complaint: str) -> None:
    with pytest.raises(sp.InputError, match=complaint):
        losses(answer, shares())


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        (weighted, "its loss is not the plain cross-entropy of one row of logits per label"),
        (
            lambda output, labels: functional.cross_entropy(output, (labels + 1) % 3),
            "the rows of its loss cannot be matched to labels",
        ),
    ],
)
def test_labels_that_cannot_be_asked_about(loss: Loss, complaint: str) -> None:
    leak = snn.leakage(Model(named(loss)), batch(CLASSES), noise_multiplier=1.0, view=snn.Label())
    with pytest.raises(sp.InputError, match=complaint):
        leak.records("dfil", method="exact")


def test_real_labels_leak_what_the_derivative_says() -> None:
    # For the mean of squares of k outputs, ∂g/∂y_j is −(2/k)(x, 1) in row j and zero elsewhere.
    given = batch(shares())
    leak = snn.leakage(
        Model(named(functional.mse_loss)), given, noise_multiplier=0.5, view=snn.Label()
    )
    wanted = 2 / 3 * (given["features"].square().sum(1) + 1).sqrt() / 0.5
    found = leak.records("dfil", method="exact").values
    torch.testing.assert_close(found.float(), wanted, rtol=1e-5, atol=0)


class Text(nn.Module):
    """A model of tokens that says which module embeds them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(9, 2), nn.Linear(2, 3)

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.table(input_ids).mean(1))


IDS = torch.arange(12).reshape(4, 3) % 9


@pytest.mark.parametrize(
    ("mask", "unknowns"),
    [
        (None, [6, 6, 6, 6]),
        (torch.ones(4, 1, 3), [6, 6, 6, 6]),
        (torch.ones(4, 5), [6, 6, 6, 6]),
        (torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]]), [6, 4, 2, 0]),
    ],
    ids=["none", "of another kind", "of another length", "of the tokens"],
)
def test_only_a_mask_of_the_tokens_leaves_padding_out(
    mask: Tensor | None, unknowns: list[int]
) -> None:
    x = {"input_ids": IDS} if mask is None else {"input_ids": IDS, "attention_mask": mask}
    assert TokenEmbeddings("table").unknowns_each(Text(), x, CLASSES).tolist() == unknowns


def test_the_input_of_a_model_that_takes_one_tensor_is_that_tensor() -> None:
    x, view = torch.randn(4, 4), ModelInput()
    assert torch.equal(view.variable(nn.Linear(4, 3), x, CLASSES), x)


def test_an_input_that_nothing_declares_must_be_named() -> None:
    with pytest.raises(sp.InputError, match=r"which input to measure \(inputs: tokens, others"):
        ModelInput().variable(nn.Linear(4, 3), {"tokens": IDS, "others": IDS}, CLASSES)
