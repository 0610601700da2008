"""Noise for parameters: the same on every device, rounded to a grid, with its deviation."""

import math

import pytest
import torch
from scipy import stats

from seepage.nn.training.secure_noise import noisy, secure_normal
from seepage.support.keyed_stream import KeyedStream, grid_of

CPU = torch.device("cpu")


def test_torch_and_numpy_draw_the_same():
    stream = KeyedStream.of_seed(5)
    drawn = torch.from_numpy(stream.standard_normal((7, 11)))
    assert torch.equal(secure_normal((7, 11), stream, CPU), drawn)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("count", [1, 9, 100_003])
def test_the_accelerator_draws_the_same(count):
    stream = KeyedStream.fresh()
    there = secure_normal((count,), stream, torch.device("cuda")).cpu()
    torch.testing.assert_close(there, secure_normal((count,), stream, CPU), rtol=0, atol=1e-12)


@pytest.mark.parametrize("deviation", [1e-6, 0.3, 1.0, 700.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noisy_sums_lie_on_the_grid(deviation, dtype):
    total = torch.randn(1000, dtype=dtype, generator=torch.Generator().manual_seed(0))
    found = noisy(total * deviation, deviation, KeyedStream.of_seed(0))
    assert found.dtype == dtype
    steps = found.double() / grid_of(deviation)
    assert torch.equal(steps, steps.round())
    assert deviation / 8192 < grid_of(deviation) <= deviation / 4096
    assert math.log2(grid_of(deviation)).is_integer()


def test_noise_has_its_deviation():
    found = noisy(torch.zeros(100_000), 0.37, KeyedStream.of_seed(4)) / 0.37
    assert stats.kstest(found.double().numpy(), stats.norm.cdf).pvalue > 1e-3


def test_without_noise_nothing_is_rounded():
    total = torch.randn(10)
    assert torch.equal(noisy(total, 0.0, KeyedStream.of_seed(0)), total)
