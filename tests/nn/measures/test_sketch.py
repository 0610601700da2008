"""Sketches of information matrices: never above, exact with all unknowns, for few unknowns too."""

from __future__ import annotations

import pytest
import torch
from gradient_oracle import dense
from torch import Tensor, nn

import seepage as sp
import seepage.nn as snn
from sampled import sampled
from seepage.nn.measures.information_matrices import _factor

torch.set_num_threads(1)


class Recurrent(nn.Module):
    """A sequence of 4 steps with 3 numbers each, read by an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0].mean(1))


def problem(d: int, dtype: torch.dtype = torch.float64) -> tuple:
    torch.manual_seed(d)
    net = nn.Sequential(nn.Linear(d, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
    return net, torch.randn(3, d, dtype=dtype), torch.randint(0, 3, (3,))


def leak_of(net: nn.Module, x: Tensor, y: Tensor, **options: object) -> snn.GradientLeakage:
    given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "clip": "smooth"} | options
    return snn.leakage(net, "cross_entropy", x, y, **given)


def information(net: nn.Module, x: Tensor, y: Tensor, view: snn.View | None = None) -> Tensor:
    J = dense(net, "cross_entropy", view or snn.Input(), x, y).clipped(snn.SmoothClip(1.0))[1]
    return J.mT @ J


def check(sketched: Tensor, true: Tensor, *, whole: bool, slack: float = 1e-9) -> None:
    """The sketch is below the matrix, and the matrix itself if it is whole."""
    size = torch.linalg.matrix_norm(true, 2)
    gap = torch.linalg.eigvalsh(true - sketched)
    assert bool((gap[:, 0] >= -slack * size).all())
    if whole:
        assert bool((gap[:, -1] <= slack * size).all())


@pytest.mark.parametrize("d", sampled(range(1, 13), [1, 8]))
def test_few_unknowns(d: int) -> None:
    net, x, y = problem(d)
    true = information(net, x, y)
    for seed, rank in enumerate(sorted({1, (d + 1) // 2, max(1, d - 1), d, d + 5})):
        sketch = leak_of(net, x, y, seed=seed).sketch(rank)
        assert sketch.factor.shape == (3, min(rank, d), d)
        check(sketch.factor.mT @ sketch.factor, true, whole=rank >= d)
        torch.testing.assert_close(
            sketch.eigenvalues(), torch.linalg.eigvalsh(sketch.factor @ sketch.factor.mT).flip(1)
        )


@pytest.mark.slow
def test_a_short_sequence() -> None:
    torch.manual_seed(0)
    net, x = Recurrent().double(), torch.randn(3, 4, 3, dtype=torch.float64)
    y = torch.arange(3)
    true = information(net, x, y)
    for rank in (5, 12):
        sketch = leak_of(net, x, y).sketch(rank)
        check(sketch.factor.mT @ sketch.factor, true, whole=rank == 12)
    assert sketch.diagonal().shape == x.shape


def test_known_entries_stay_out() -> None:
    net, x, y = problem(9)
    view = snn.Input.features([2, 3, 5, 8], 9)
    true = information(net, x, y, view)
    for rank in (2, 4, 7):
        factor = leak_of(net, x, y, view=view).sketch(rank).factor
        few = factor[:, :, [2, 3, 5, 8]]
        check(few.mT @ few, true, whole=rank >= 4)
        assert float(factor[:, :, [0, 1, 4, 6, 7]].abs().max()) == 0


def test_rank_deficient_information() -> None:
    """Two columns that the network does not see, a copied one, and single precision."""
    net, x, y = problem(8, torch.float32)
    with torch.no_grad():
        net[0].weight[:, :2] = 0.0
        net[0].weight[:, 3] = net[0].weight[:, 2]
    double = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    double.load_state_dict(net.state_dict())
    true = information(double, x.double(), y)
    for rank in (4, 7, 8):
        factor = leak_of(net, x, y).sketch(rank).factor
        assert factor.dtype == torch.float32
        check((factor.mT @ factor).double(), true, whole=rank == 8, slack=2e-4)


@pytest.mark.parametrize("spread", [0.0, 6.0, 14.0, 30.0])
def test_the_factor_of_any_matrix(spread: float) -> None:
    """Eigenvalues over up to 30 powers of ten, some zero, and a matrix of zeros."""
    generator = torch.Generator().manual_seed(3)
    normal = torch.randn(40, 10, 10, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(normal)[0]
    values = 10 ** (-spread * torch.rand(40, 10, generator=generator, dtype=torch.float64))
    values[10:20, 4:] = 0.0
    values[0] = 0.0
    true = turn @ torch.diag_embed(values) @ turn.mT
    for rank in (1, 5, 9, 10):
        basis = torch.eye(10, dtype=torch.float64) if rank == 10 else normal[0, :, :rank]
        basis = torch.linalg.qr(basis)[0]
        found = _factor(basis, true @ basis, torch.finfo(torch.float64).eps)
        check(found.mT @ found, true, whole=rank == 10)


def test_chunks_do_not_change_a_sketch() -> None:
    net, x, y = problem(10)
    whole, cut = (leak_of(net, x, y, seed=4, chunk_size=n).sketch(4) for n in (3, 1))
    other = leak_of(net, x, y, seed=5).sketch(4)
    for i in range(3):
        torch.testing.assert_close(whole.matrix(i), cut.matrix(i), rtol=1e-9, atol=1e-12)
        assert not torch.allclose(whole.matrix(i), other.matrix(i), rtol=1e-3)


@pytest.mark.parametrize("rank", [0, -1, 2.5, True])
def test_ranks_that_cannot_be(rank: object) -> None:
    with pytest.raises(sp.InputError, match="rank must be at least 1 and a whole number"):
        leak_of(*problem(4)).sketch(rank)
