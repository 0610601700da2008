"""Parameters in calls that few networks make: the gradients of single records, or a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from elusive_networks import dfil, jacobians
from torch import Tensor, nn
from torch.nn import functional

import seepage as sp
import seepage.nn as snn
from seepage.nn.gradients import network_checks
from seepage.nn.jacobian.random_directions import random_direction

torch.set_num_threads(1)

RECORDS, PLACES, WIDTH = 4, 3, 4
Use = Callable[["Uses", Tensor], Tensor]


class Uses(nn.Module):
    """Sequences (B, S, F) through one use of parameters, then a linear layer."""

    def __init__(self, use: Use, parts: dict[str, nn.Module], shapes: dict[str, tuple]) -> None:
        super().__init__()
        self.use = use
        for name, module in parts.items():
            self.add_module(name, module)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.rand(shape) + 0.5))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.use(self, x)).reshape(len(x), -1, WIDTH).mean(1))


def uses(use: Use, *frozen: str, of: dict[str, nn.Module] | None = None, **shapes: tuple) -> Uses:
    torch.manual_seed(0)
    net = Uses(use, of or {}, shapes).double()
    for name in frozen:
        net.get_parameter(name).requires_grad_(False)
    return net


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(RECORDS, PLACES, WIDTH, dtype=torch.float64), torch.tensor([0, 2, 1, 1])


def entropy(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, reduction="none")


def norms_alone(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    released = [p for p in net.parameters() if p.requires_grad]
    out = []
    for k in range(len(y)):
        parts = torch.autograd.grad(entropy(net(x[k : k + 1]), y[k : k + 1]).sum(), released)
        out.append(torch.cat([part.flatten() for part in parts]).norm())
    return torch.stack(out)


def tokens(x: Tensor) -> Tensor:
    """Class numbers that do not depend on the numbers in a record."""
    return (torch.arange(PLACES) % 5).expand(len(x), PLACES)


def attention(net: Uses, x: Tensor, mask: Tensor | None, padding: Tensor | None) -> Tensor:
    """Attention by torch's function, which takes masks of true and false as they are."""
    own = net.inner
    rows = x.transpose(0, 1)
    out, _ = functional.multi_head_attention_forward(
        *(rows, rows, rows, WIDTH, 2, own.in_proj_weight, own.in_proj_bias, None, None, False),
        *(0.0, own.out_proj.weight, own.out_proj.bias),
        attn_mask=mask,
        key_padding_mask=padding,
    )
    return out.transpose(0, 1)


class Bent(torch.autograd.Function):
    """A product with a matrix, with a backward pass of its own that torch can batch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight):
        return x @ weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, delta):
        x, weight = ctx.saved_tensors
        rows = x.flatten(0, -2)
        return delta @ weight.T, rows.T @ delta.flatten(0, -2)


LATER = torch.ones(PLACES, PLACES, dtype=torch.bool).triu(1)


def last(x: Tensor) -> Tensor:
    return (torch.arange(PLACES) == PLACES - 1).expand(len(x), PLACES)


def heads() -> dict[str, nn.Module]:
    return {"inner": nn.MultiheadAttention(WIDTH, 2)}


def moments(net: Uses, x: Tensor) -> Tensor:
    flat = functional.batch_norm(net.table, None, None, net.scale, net.shift, training=True)
    return x * flat.sum(0)


def by_running(net: Uses, x: Tensor) -> Tensor:
    mean, var = torch.zeros(PLACES).double(), torch.ones(PLACES).double()
    return functional.instance_norm(x, mean, var, net.scale, net.shift, use_input_stats=True)


class Longer(nn.Module):
    """A row before all records, taken off again: an axis that does not grow with them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.cat([torch.ones_like(x[:1]), x]))[1:]


class Squeezed(nn.Module):
    """An output whose number of axes depends on the number of records."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x if len(x) == 2 else x[:, None]).reshape(x.shape)


RARE: dict[str, Callable[[], Uses]] = {
    "instance norm": lambda: uses(
        lambda net, x: net.norm(x), of={"norm": nn.InstanceNorm1d(PLACES, affine=True)}
    ),
    "instance norm, fixed statistics": lambda: uses(
        lambda net, x: net.norm(x),
        of={"norm": nn.InstanceNorm1d(PLACES, affine=True, track_running_stats=True).eval()},
    ),
    "instance norm, statistics handed over": lambda: uses(
        by_running, scale=(PLACES,), shift=(PLACES,)
    ),
    "layer norm without a shift": lambda: uses(
        lambda net, x: net.norm(x), of={"norm": nn.LayerNorm(WIDTH, bias=False)}
    ),
    "layer norm, only its shift": lambda: uses(
        lambda net, x: net.norm(x), "norm.weight", of={"norm": nn.LayerNorm(WIDTH)}
    ),
    "layer norm of what no record touches": lambda: uses(
        lambda net, x: (
            x * net.norm(torch.arange(WIDTH, dtype=x.dtype).expand(len(x), WIDTH))[:, None]
        ),
        of={"norm": nn.LayerNorm(WIDTH)},
    ),
    "group norm of what no record touches": lambda: uses(
        lambda net, x: (
            x * net.norm(torch.arange(WIDTH, dtype=x.dtype).square().expand(len(x), WIDTH))[:, None]
        ),
        of={"norm": nn.GroupNorm(2, WIDTH)},
    ),
    "batch norm of a table": lambda: uses(
        moments, table=(5, WIDTH), scale=(WIDTH,), shift=(WIDTH,)
    ),
    "convolution, only its shift": lambda: uses(
        lambda net, x: net.conv(x), "conv.weight", of={"conv": nn.Conv1d(PLACES, 2, 1)}
    ),
    "convolution without padding, by name": lambda: uses(
        lambda net, x: net.conv(functional.pad(x, (1, 1))),
        of={"conv": nn.Conv1d(PLACES, 2, 3, padding="valid")},
    ),
    "attention, keys left out": lambda: uses(
        lambda net, x: attention(net, x, None, last(x)), of=heads()
    ),
    "attention, both masks": lambda: uses(
        lambda net, x: attention(net, x, LATER, last(x)), of=heads()
    ),
    "attention, added mask": lambda: uses(
        lambda net, x: attention(net, x, LATER.double() * -3.0, None), of=heads()
    ),
    "attention, a mask for each head": lambda: uses(
        lambda net, x: attention(net, x, LATER.expand(2 * len(x), -1, -1), None), of=heads()
    ),
    "attention with a further key": lambda: uses(
        lambda net, x: net.inner(x, x, x)[0],
        of={"inner": nn.MultiheadAttention(WIDTH, 2, batch_first=True, add_bias_kv=True)},
    ),
    "twice a shift in one call": lambda: uses(
        lambda net, x: torch.add(x, net.shift, alpha=2), shift=(WIDTH,)
    ),
    "a shift of folded records": lambda: uses(
        lambda net, x: (x.reshape(-1, WIDTH) + net.shift).reshape(x.shape), shift=(WIDTH,)
    ),
    "a product with a vector": lambda: uses(
        lambda net, x: x * (x @ net.vector)[..., None], vector=(WIDTH,)
    ),
    "an added product with a shift of two axes": lambda: uses(
        lambda net, x: torch.addmm(net.shift, x.reshape(-1, WIDTH), net.matrix),
        shift=(1, WIDTH),
        matrix=(WIDTH, WIDTH),
    ),
    "embedding scaled by frequency": lambda: uses(
        lambda net, x: x * net.table(tokens(x)),
        of={"table": nn.Embedding(5, WIDTH, scale_grad_by_freq=True)},
    ),
    "embedding, padding from the end": lambda: uses(
        lambda net, x: x * functional.embedding(tokens(x) + 2, net.table, padding_idx=-1),
        table=(5, WIDTH),
    ),
    "one row more than records": lambda: uses(lambda net, x: net.inner(x), of={"inner": Longer()}),
    "one axis more for three records": lambda: uses(
        lambda net, x: net.inner(x), of={"inner": Squeezed()}
    ),
    "projected states": lambda: uses(
        lambda net, x: net.inner(x)[0],
        of={"inner": nn.LSTM(WIDTH, 6, proj_size=WIDTH, batch_first=True)},
    ),
}


@pytest.mark.parametrize("name", RARE)
@pytest.mark.filterwarnings("ignore::seepage.nn.gradients.network_checks.FallbackWarning")
def test_gradients_and_leakage_are_those_of_single_records(name: str) -> None:
    net, (x, y) = RARE[name](), batch()
    clip = 0.5 * float(norms_alone(net, x, y).min())  # every record is clipped
    engine = snn.Engine(net, "cross_entropy", clip=snn.HardClip(clip))
    torch.testing.assert_close(engine.norms(x, y), norms_alone(net, x, y))
    leak = sp.nn.leakage(
        net, "cross_entropy", x, y, noise_multiplier=1.0, max_grad_norm=clip, method="derivative"
    )
    truth = jacobians(net, entropy, x[:2], y[:2], clip=clip)
    found = leak.records("dfil", method="exact").values[:2]
    assert found.tolist() == pytest.approx(dfil(truth), rel=1e-6)
    drawn = random_direction(engine.problem, engine.seed, 0, 0)
    parameters = engine.problem.detached().items()
    u = torch.cat([drawn[part].dense(p.shape).flatten() for part, p in parameters])
    pulled = engine.step(x, y, probes=1, key=0, pulls=True).pulls[:2, 0].flatten(1)
    wanted = torch.einsum("bpd,p->bd", clip * torch.from_numpy(truth), u)
    torch.testing.assert_close(pulled, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def test_a_backward_pass_of_its_own_is_left_to_torch() -> None:
    net, (x, y) = uses(lambda net, x: Bent.apply(x, net.matrix), matrix=(WIDTH, WIDTH)), batch()
    engine = snn.Engine(net, "cross_entropy", clip=snn.HardClip(0.1))
    with pytest.warns(snn.FallbackWarning, match="no closed form .* of matrix"):
        found = engine.norms(x, y)
    torch.testing.assert_close(found, norms_alone(net, x, y))


@pytest.mark.filterwarnings("ignore::seepage.nn.gradients.network_checks.FallbackWarning")
def test_running_statistics_are_neither_used_nor_changed() -> None:
    norm = nn.InstanceNorm1d(PLACES, affine=True, track_running_stats=True)
    net, (x, y) = uses(lambda net, x: net.norm(x), of={"norm": norm}), batch()
    engine = snn.Engine(net, "cross_entropy", clip=snn.HardClip(0.1))
    found = engine.norms(x, y)
    assert torch.equal(norm.running_mean, torch.zeros(PLACES).double())
    assert torch.equal(norm.running_var, torch.ones(PLACES).double())
    assert int(norm.num_batches_tracked) == 0
    torch.testing.assert_close(found, norms_alone(net, x, y))


class Fickle(nn.Module):
    """A network whose use of its parameters depends on the number of records."""

    def __init__(self, times: Callable[[int], int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.times, self.inner, self.head = times, nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x)
        times = self.times(len(x))
        for _ in range(times):
            h = h + self.inner(x) / times
        return self.head(torch.tanh(h))


class Elsewhere(nn.Module):
    """A parameter of one module, used inside another in a way that no rule covers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.powers, self.head = nn.Linear(4, 4), Borrowing()
        self.head.lent.append(self.powers)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.powers(x)))


class Borrowing(nn.Module):
    """The module that uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.lent = nn.Linear(4, 3), []

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * torch.exp(self.lent[0].bias))


class Piled(nn.Module):
    """Records stacked beside one another with a row of their own, in the network itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.power = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> list[Tensor]:
        return list((x[:, :3] * torch.exp(self.power)).unbind(0))


class Product(torch.autograd.Function):
    """A product with a matrix, in the old style, which torch cannot batch."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, delta):
        x, weight = ctx.saved_tensors
        return delta @ weight.T, x.T @ delta


class Unseen(nn.Module):
    """A weight used where no rule can follow, beside an ordinary layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.head = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(Product.apply(x, self.weight)))


class Kept(nn.Module):
    """A parameter that is used from a list, where nothing can be put in its place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.kept = [self.inner.bias]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)) * torch.exp(self.kept[0]))


class Hooked(nn.Module):
    """A layer whose gradient a hook on its output doubles."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        if h.requires_grad:
            h.register_hook(lambda delta: 2 * delta)
        return self.head(torch.tanh(h))


def stacked(output: list[Tensor], target: Tensor) -> Tensor:
    return entropy(torch.stack(list(output)), target)


@pytest.mark.parametrize(
    ("net", "loss", "complaint"),
    [
        (Fickle(lambda n: n), "cross_entropy", "differently for two and for three records"),
        (Fickle(lambda n: 1 + (n > 3)), "cross_entropy", "more often than in its first run"),
        (Fickle(lambda n: 2 - (n > 3)), "cross_entropy", "less often than in its first run"),
        (
            Elsewhere(),
            "cross_entropy",
            "a parameter of another module .*, and no rule covers this use",
        ),
        (Piled(), stacked, "use of 'power' by exp, .* axis could not be identified"),
        (Unseen(), "cross_entropy", "no rule for per-record gradients"),
        (Kept(), "cross_entropy", "stores the parameter 'inner.bias' in a list"),
        (Hooked(), "cross_entropy", "computed by rules differ from those of single records"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore::seepage.nn.gradients.network_checks.FallbackWarning")
def test_uses_that_cannot_be_followed_are_named(
    net: nn.Module, loss: object, complaint: str
) -> None:
    torch.manual_seed(1)
    with pytest.raises(sp.InputError, match=complaint):
        snn.Engine(net, loss, clip=snn.HardClip(1.0)).norms(torch.randn(5, 4), torch.arange(5) % 3)


def test_too_little_memory_is_not_taken_for_a_network_without_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look_over(*given: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(network_checks, "look_over", look_over)
    net, (x, y) = RARE["layer norm without a shift"](), batch()
    engine = snn.Engine(net, "cross_entropy", clip=snn.HardClip(1.0), method="finite", scale=0.01)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        engine.squared_changes(x, y, torch.ones(1, *x.shape, dtype=x.dtype))


def test_a_data_parallel_wrapper_is_unwrapped() -> None:
    net = RARE["layer norm without a shift"]()
    assert snn.Engine(nn.DataParallel(net), "cross_entropy").net is net
