"""What is said of batches that cannot be used, and losses that count positions of their own."""

from __future__ import annotations

import warnings
from collections import UserDict

import pytest
import torch
from torch import Tensor, nn

import seepage as sp
import seepage.nn as snn
from seepage.nn.problem.problem import per_record

torch.set_num_threads(1)

X = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(10) % 3


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


def rows(net: nn.Module, x: object = X, y: object = Y, loss: object = "cross_entropy", **options):
    leak = snn.leakage(
        net, loss, x, y, noise_multiplier=1.0, max_grad_norm=1.0, clip="smooth", **options
    )
    return leak.records("dfil", probes=4)


def changed(tensor: Tensor, row: int, value: float) -> Tensor:
    out = tensor.clone()
    out.reshape(len(out), -1)[row, 0] = value
    return out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"x": changed(X, 7, torch.nan)}, "Record 7 of this batch has a number in x"),
        ({"x": changed(X, 9, -torch.inf)}, "Record 9 of this batch has a number in x"),
        (
            {"y": changed(Y, 8, 7)},
            "class numbers must be from 0 to 2, but y contains numbers from 0 to 7",
        ),
        (
            {"y": changed(Y, 8, -100)},
            "class numbers must be from 0 to 2, but y contains numbers from -100 to 2",
        ),
        ({"x": X.double()}, "whose records have shape .4,. and type float64 "),
        ({"x": X[:, :3]}, "whose records have shape .3,. and type float32 "),
        ({"y": Y.float(), "loss": "mse"}, "the same number of entries per record"),
        ({"y": changed(torch.zeros(10, 3), 6, torch.nan), "loss": "mse"}, "Record 6 .* in y"),
        ({"y": Y[:4]}, "records is 10, but y has 4 labels"),
        ({"y": torch.tensor(1)}, "records is 10, but y has no labels"),
        ({"x": ()}, "x has no records"),
        ({"x": torch.tensor(1.0)}, "x has no records"),
        (
            {"y": torch.zeros(10, 2)},
            r"Soft targets must have the shape .* \(\d+, 3\), not \(\d+, 2\)",
        ),
        (
            {"y": Y[:, None]},
            r"Class numbers for outputs of shape \(\d+, 3\) must have the shape",
        ),
        ({"x": (X, None)}, "x must be a torch tensor, .* contains a value of type NoneType"),
    ],
)
def test_what_cannot_be_used_is_named(options, complaint):
    with pytest.raises(sp.InputError, match=complaint):
        rows(network(), **options)


class Outspoken(nn.Module):
    """Says of itself what torch says of a processor without bf16; writes into a buffer if told."""

    def __init__(self, words: str = "mkldnn_matmul failed", counts: bool = False, times: int = 9):
        super().__init__()
        self.inner, self.words, self.times = network(), words, times
        if counts:
            self.register_buffer("runs", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "runs"):
            self.runs.add_(1)
        if self.times > 0:
            self.times -= 1
            warnings.warn(self.words, UserWarning, stacklevel=1)
        return self.inner(x)


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("times", [1, 9])
def test_a_warning_that_a_filter_raises_leaves_as_itself(counts, times):
    """The network runs; only a filter of the caller's makes an error of what it says.

    Swallowed where the buffers are watched, a warning that comes once would leave the buffer that
    the network writes into unnoticed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="mkldnn_matmul failed"):
            rows(Outspoken(counts=counts, times=times))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "mkldnn_matmul failed")
        told = rows(Outspoken(counts=counts))
    torch.testing.assert_close(torch.as_tensor(told), torch.as_tensor(rows(network())))


def test_later_batches_are_checked_too():
    engine = snn.Engine(network(), "cross_entropy", clip=snn.SmoothClip(1.0))
    engine.norms(X, Y)
    with pytest.raises(sp.InputError, match="not finite"):
        engine.norms(changed(X, 4, torch.nan), Y)
    with pytest.raises(sp.InputError, match="class numbers must be from 0 to 2"):
        engine.norms(X, changed(Y, 4, 3))


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8])
def test_class_numbers_may_be_of_any_whole_type(kind):
    assert rows(network(), y=Y.to(kind)).values.tolist() == rows(network()).values.tolist()


def test_one_output_needs_no_axis():
    flat = nn.Sequential(network(1), nn.Flatten(0))
    y = torch.linspace(-1, 1, 10)
    expected = rows(network(1), y=y[:, None], loss="mse").values.tolist()
    assert rows(flat, y=y, loss="mse").values.tolist() == pytest.approx(expected)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, features: Tensor) -> Tensor:
        return self.inner(features)


def test_any_mapping_will_do():
    view = snn.Embedding("inner.0")
    expected = rows(Named(), {"features": X}, view=view).values.tolist()
    assert rows(Named(), UserDict(features=X), view=view).values.tolist() == expected


class Pair(nn.Module):
    """A network of two inputs, which returns its output in one of several ways."""

    def __init__(self, returned: object = lambda output: output) -> None:
        super().__init__()
        self.inner, self.returned = network(), returned

    def forward(self, first: Tensor, second: Tensor) -> object:
        return self.returned(self.inner(first + second))


def test_inputs_may_be_a_tuple():
    view = snn.Embedding("inner.0")
    found = rows(Pair(), (X / 4, 3 * X / 4), view=view).values.tolist()
    assert found == pytest.approx(rows(Named(), {"features": X}, view=view).values.tolist())


def test_an_output_that_is_no_tensor_needs_a_loss_of_its_own():
    net = Pair(lambda output: {"scores": output})
    with pytest.raises(sp.InputError, match="of type dict, is not a tensor and has"):
        rows(net, (X, X), view=snn.Embedding("inner.0"))
    with pytest.raises(sp.InputError, match="number of classes cannot be read"):
        snn.Label().variable(net, (X, X), Y)


def test_labels_without_an_output_have_no_probability():
    with pytest.raises(sp.InputError, match="from 0 to 2, but y contains numbers from 0 to 3"):
        snn.Label().variable(network(), X, changed(Y, 4, 3))


def test_a_module_that_runs_twice_is_no_embedding():
    once = nn.Linear(4, 4)
    net = nn.Sequential(once, nn.Tanh(), once, nn.Linear(4, 3))
    with pytest.raises(
        sp.InputError, match="'0' runs more than once; name a module that runs once"
    ):
        rows(net, view=snn.Embedding("0"))


class Scaled(nn.Module):
    """A network with a parameter that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.temperature


class Stepped(nn.Module):
    """A module without a rule, one of whose outputs is computed from the other, used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.cell, self.last = nn.LSTMCell(4, 5), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for k in range(x.shape[1]):
            state = self.cell(x[:, k], state)
        return self.last(torch.cat(state, -1))


def alone(net: nn.Module, loss: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient norms of records one at a time, as torch takes them."""
    out = []
    for k in range(len(x)):
        value = loss(net(x[k : k + 1]), y[k : k + 1])
        parts = torch.autograd.grad(value, list(net.parameters()))
        out.append(torch.cat([part.flatten() for part in parts]).norm())
    return torch.stack(out)


@pytest.mark.parametrize(
    ("net", "x"), [(Scaled(), X), (Stepped(), X[:, None, :].expand(10, 2, 4) * 1.0)]
)
@pytest.mark.filterwarnings("ignore::seepage.nn.gradients.network_checks.FallbackWarning")
def test_norms_are_those_of_single_records(net, x):
    net, x = net.double(), x.double()
    found = snn.Engine(net, "cross_entropy", clip=snn.SmoothClip(1.0)).norms(x, Y)
    torch.testing.assert_close(found, alone(net, nn.CrossEntropyLoss(), x, Y))


WEIGHTS = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(ignore_index=2),
        nn.CrossEntropyLoss(ignore_index=2, weight=WEIGHTS),
        nn.CrossEntropyLoss(ignore_index=2, reduction="sum"),
    ],
)
def test_a_sequence_counts_as_torch_counts_it_alone(loss):
    source = torch.Generator().manual_seed(0)
    output = torch.randn(6, 3, 5, dtype=torch.float64, generator=source)
    target = torch.randint(0, 3, (6, 5), generator=source)
    expected = torch.stack([loss(output[k : k + 1], target[k : k + 1]) for k in range(6)])
    torch.testing.assert_close(per_record(loss)(output, target), expected)


def test_batchmean_is_a_sum_over_the_entries():
    source = torch.Generator().manual_seed(0)
    output = torch.log_softmax(torch.randn(6, 3, generator=source), -1)
    target = torch.softmax(torch.randn(6, 3, generator=source), -1)
    loss = nn.KLDivLoss(reduction="batchmean")
    torch.testing.assert_close(per_record(loss)(output, target).mean(), loss(output, target))


def test_the_label_of_a_sequence_needs_classes_that_come_last():
    net = nn.Conv1d(4, 3, 1)
    x, y = torch.randn(2, 4, 5), torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(sp.InputError, match="classes along the last axis"):
        rows(net, x, y, nn.CrossEntropyLoss(), view=snn.Label())
