"""What the engine refuses, what it warns of, and what it finds its way through."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import seepage as sp
import seepage.nn as snn
from seepage.nn.jacobian.engine import Engine

torch.set_num_threads(1)

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1])


def small(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Linear(6, 3))


class Odd(nn.Module):
    """A network with one oddity, chosen by name."""

    def __init__(self, oddity: str) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.oddity = oddity
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.table = nn.Embedding(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if self.oddity == "random":
            h = h + 0.1 * torch.randn_like(h)
        if self.oddity == "mixes records":
            h = h - h.mean(0)
        if self.oddity == "in place":
            h = h.clone()
            out = self.last(h)
            h *= 2
            return out + h[:, :3]
        if self.oddity == "relu":
            h = torch.relu(h)
        if self.oddity == "square":  # the batch is as long as a row: shapes alone cannot tell
            h = h + self.table(torch.arange(4)).sum(0)
        return self.last(h)


def norms_alone(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = []
    for i in range(len(y)):
        loss = nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, [p for p in net.parameters() if p.requires_grad])
        out.append(torch.stack([g.square().sum() for g in grads]).sum().sqrt())
    return torch.stack(out)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (small(nn.BatchNorm1d(6)), "BatchNorm1d '1' mixes the records"),
        (small(nn.BatchNorm1d(6, track_running_stats=False)).eval(), "mixes the records"),
        (small(nn.Dropout(0.1)), "Dropout '1' drops values at random"),
        (Odd("random"), "draws random numbers"),
        (Odd("mixes records"), "depends on the other records"),
        (Odd("in place"), "overwritten later"),
        (small().requires_grad_(False), "so no gradient is released"),
        (nn.LSTM(4, 6, 2, dropout=0.5), "drops values at random"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(net: nn.Module, message: str) -> None:
    with pytest.raises(sp.InputError, match=message):
        Engine(net, "cross_entropy").norms(X, Y)


def test_a_loss_per_batch_is_refused() -> None:
    with pytest.raises(sp.InputError, match="one number per record"):
        Engine(small(), lambda out, y: nn.functional.cross_entropy(out, y)).norms(X, Y)


def test_losses_of_torch_keep_their_options() -> None:
    net, smooth = small(nn.Tanh()), nn.CrossEntropyLoss(label_smoothing=0.3)
    found = Engine(net, smooth).step(X, Y, probes=0).losses
    wanted = nn.functional.cross_entropy(net(X), Y, reduction="none", label_smoothing=0.3)
    torch.testing.assert_close(found, wanted.detach())
    assert smooth.reduction == "mean"


@pytest.mark.parametrize("loss", ["cross_entropi", 3])
def test_unknown_losses(loss: object) -> None:
    with pytest.raises(sp.InputError):
        Engine(small(), loss)


def test_losses_that_are_not_finite() -> None:
    with pytest.raises(sp.InputError, match="not finite"):
        Engine(small(), "cross_entropy").norms(X * float("nan"), Y)


@pytest.mark.parametrize(("y", "labels"), [(Y[:2], "2"), (Y[0], "no")])
def test_every_record_needs_a_label(y: Tensor, labels: str) -> None:
    with pytest.raises(sp.InputError, match=f"records is 5, but y has {labels} labels"):
        Engine(small(), "cross_entropy").norms(X, y)


def test_losses_that_overflow() -> None:
    def endless(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, reduction="none") / 0.0

    with pytest.raises(sp.InputError, match="The losses are not finite; check the data"):
        Engine(small(), endless).norms(X, Y)


def test_frozen_parameters_are_not_released() -> None:
    net = small(nn.Tanh())
    net[0].requires_grad_(False)
    engine = Engine(net, "cross_entropy")
    torch.testing.assert_close(engine.norms(X, Y), norms_alone(net, X, Y))
    assert set(engine.step(X, Y, probes=0, update=True).gradient) == {"2.weight", "2.bias"}


def test_an_unfrozen_parameter_is_noticed() -> None:
    net = small(nn.Tanh())
    net[0].requires_grad_(False)
    engine = Engine(net, "cross_entropy")
    engine.norms(X, Y)
    net.requires_grad_(True)
    torch.testing.assert_close(engine.norms(X, Y), norms_alone(net, X, Y))


@pytest.mark.slow
def test_a_compiled_network_is_unwrapped() -> None:
    net = small(nn.Tanh())
    engine = Engine(torch.compile(net), "cross_entropy")
    assert engine.net is net
    with pytest.raises(sp.InputError, match="must be a torch"):
        Engine(lambda x: x, "cross_entropy")


def test_kinks_are_named_once() -> None:
    for net, kink in ((small(nn.ReLU()), "ReLU"), (Odd("relu"), "ReLU")):
        engine = Engine(net, "cross_entropy")
        with pytest.warns(snn.KinkWarning, match=f"{kink}.*tanh, SiLU or GELU"):
            engine.step(X, Y)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine.step(X[:3], Y[:3])


def test_the_fallback_is_named_once() -> None:
    net = nn.Sequential(nn.ConvTranspose1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(10, 3))
    engine = Engine(net, "cross_entropy")
    with pytest.warns(snn.FallbackWarning, match=r"ConvTranspose1d.*0\.weight"):
        engine.norms(X[:, None], Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.norms(X[:, None], Y)


def test_without_clipping_no_rule_is_needed() -> None:
    net = nn.Sequential(nn.ConvTranspose1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(10, 3))
    engine = Engine(net, "cross_entropy", clip=snn.NoClip())
    with warnings.catch_warnings():
        warnings.simplefilter("error", snn.FallbackWarning)
        step = engine.step(X[:, None], Y, probes=2, update=True)
    assert bool(torch.isnan(step.norms).all())
    loss = nn.functional.cross_entropy(net(X[:, None]), Y, reduction="sum")
    wanted = torch.autograd.grad(loss, list(net.parameters()))
    for found, true in zip(step.gradient.values(), wanted, strict=True):
        torch.testing.assert_close(found, true)


def test_a_batch_as_long_as_a_sequence() -> None:
    net = Odd("square")
    engine = Engine(net, "cross_entropy")
    with pytest.warns(snn.FallbackWarning):  # a row that all records share, summed: no rule
        found = engine.norms(X[:4], Y[:4])
    torch.testing.assert_close(found, norms_alone(net, X[:4], Y[:4]))


def test_integer_inputs_are_sent_to_embeddings() -> None:
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    tokens = torch.randint(0, 9, (5, 3))
    with pytest.raises(sp.InputError, match="measure their embedding"):
        Engine(net, "cross_entropy").norms(tokens, Y)
    engine = Engine(net, "cross_entropy", view=snn.Embedding("0"))
    assert engine.unknowns(tokens, Y) == 12
    for name, message in (("nought", "no module"), ("", "no module")):
        with pytest.raises(sp.InputError, match=message):
            Engine(net, "cross_entropy", view=snn.Embedding(name)).norms(tokens, Y)


def test_inputs_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            return self.head((self.table(tokens) * mask[..., None]).sum(1))

    tokens = torch.randint(0, 9, (5, 3), generator=torch.Generator().manual_seed(0))
    x = {"tokens": tokens, "mask": (tokens > 2).float()}
    engine = Engine(Named(), "cross_entropy", view=snn.Embedding("table"), chunk_size=2)
    step = engine.step(x, Y, probes=2, pulls=True)
    hidden = step.pulls[(tokens <= 2)[:, None, :].expand(-1, 2, -1)]
    assert bool((hidden == 0).all())
    assert float(step.traces.min()) > 0
    with pytest.raises(sp.InputError, match=r"a mapping \(tokens, mask\).*key='mask'"):
        Engine(Named(), "cross_entropy").norms(x, Y)


def test_masks() -> None:
    engine = Engine(small(nn.Tanh()), "cross_entropy", view=snn.Input.features([0, -1], 4))
    assert engine.unknowns(X, Y) == 2
    pulls = engine.step(X, Y, probes=1, pulls=True).pulls
    assert bool((pulls[..., 1:3] == 0).all())
    assert float(pulls[..., 0].abs().min()) > 0
    patch = snn.Input.patch(slice(0, 2), slice(1, 2), 3, 3)
    assert int(patch.mask.sum()) == 2
    for mask, message in (
        (torch.ones(3, dtype=torch.bool), "cannot have the shape"),
        (torch.zeros(4, dtype=torch.bool), "selects no entries"),
        (torch.ones(4), "must be boolean"),
    ):
        with pytest.raises(sp.InputError, match=message):
            Engine(small(), "cross_entropy", view=snn.Input(mask)).step(X, Y)
    with pytest.raises(sp.InputError, match="no column 4"):
        snn.Input.features([4], 4)


def test_chunks_ranks_and_order_change_nothing() -> None:
    net, index = small(nn.Tanh()), torch.tensor([7, 3, 11, 0, 5])
    whole = Engine(net, "cross_entropy", chunk_size=5).step(X, Y, probes=3, key=1, index=index)
    for size in (1, 2, 3):
        part = Engine(net, "cross_entropy", chunk_size=size)
        again = part.step(X, Y, probes=3, key=1, index=index)
        torch.testing.assert_close(again.traces, whole.traces)
    order = torch.tensor([4, 2, 0, 1, 3])
    moved = Engine(net, "cross_entropy").step(
        X[order], Y[order], probes=3, key=1, index=index[order]
    )
    torch.testing.assert_close(moved.traces, whole.traces[order])
    other = Engine(net, "cross_entropy", seed=1).step(X, Y, probes=3, key=1, index=index)
    assert not torch.allclose(other.traces, whole.traces)


def test_empty_batches() -> None:
    step = Engine(small(), "cross_entropy").step(X[:0], Y[:0], probes=2, update=True, pulls=True)
    assert step.traces.shape == (0, 2)
    assert step.pulls.shape == (0, 2, 4)
    assert all(float(g.abs().sum()) == 0 for g in step.gradient.values())


def test_options_are_checked() -> None:
    for options in ({"clip_derivative": "roughly"}, {"chunk_size": 0}, {"chunk_size": "many"}):
        with pytest.raises(sp.InputError):
            Engine(small(), "cross_entropy", **options)
    with pytest.raises(sp.InputError, match="one number for each"):
        Engine(small(), "cross_entropy").step(X, Y, index=torch.arange(3))


def test_running_out_of_memory_halves_the_chunks() -> None:
    from seepage.nn.problem.problem import Chunks

    seen = []

    def work(rows: slice) -> int:
        seen.append(rows.stop - rows.start)
        if rows.stop - rows.start > 3:
            raise torch.OutOfMemoryError
        return rows.stop - rows.start

    assert sum(Chunks().run(work, 10, 1, torch.device("cpu"))) == 10
    assert seen[:2] == [10, 5]
    assert max(seen[2:]) <= 3
    with pytest.raises(torch.OutOfMemoryError):
        Chunks(8).run(work, 10, 1, torch.device("cpu"))
