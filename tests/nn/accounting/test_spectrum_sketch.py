"""Sketches of the accumulated information: what they keep, and FIL over a run between bounds."""

import numpy as np
import pytest
import torch
from gradient_oracle import dense
from torch import nn

from seepage.errors import InputError
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.nn.accounting.spectrum_sketch import SpectrumSketch
from seepage.nn.problem.clipping import HardClip
from seepage.nn.problem.views import Input

D = 6


def _pulls(seed, steps, probes=2, rank=D):
    source = torch.Generator().manual_seed(seed)
    return torch.randn(steps, 3, probes, rank, generator=source, dtype=torch.float64)


@pytest.mark.parametrize("rank", [1, 2, 4, 12])
def test_the_sketch_lies_below_the_sum_and_within_what_it_lost(rank):
    sketch = SpectrumSketch([0, 2, 4], rank, 5)
    pulls = _pulls(0, 7)
    for step in pulls:
        sketch.add(torch.tensor([4, 1, 0]), step, torch.full((3,), 0.25), 2.0)
    for record, place, column in ((0, 0, 2), (4, 2, 0)):
        for half in (0, 1):
            # κ/s² = 1/16; each half has one probe a step.
            whole = torch.einsum("ti,tj->ij", *[pulls[:, column, half]] * 2) / 16
            kept = sketch.rows[half, place].T @ sketch.rows[half, place]
            rest = torch.linalg.eigvalsh(whole - kept)
            assert float(rest[0]) > -1e-12
            assert float(rest[-1]) <= float(sketch.lost[half, place]) + 1e-12, record
            if rank >= 7:
                assert torch.allclose(whole, kept)
    assert float(sketch.rows[:, 1].abs().max()) == 0.0  # record 2 was never there


def test_sketches_join():
    parts = [SpectrumSketch([0, 1, 2], 30, 3) for _ in range(3)]
    for k, step in enumerate(_pulls(1, 10)):
        for sketch in (parts[0], parts[1 + k % 2]):
            sketch.add(torch.tensor([0, 1, 2]), step, torch.ones(3), 1.0)
    joined = SpectrumSketch([0, 1, 2], 30, 3)
    joined.absorb(parts[1])
    joined.absorb(parts[2])
    assert joined.bracket().upper == pytest.approx(parts[0].bracket().upper, rel=1e-9)
    halved = SpectrumSketch([0, 1, 2], 30, 3)
    halved.absorb(parts[0], 0.25)
    assert halved.bracket().upper == pytest.approx(parts[0].bracket().upper / 2, rel=1e-9)
    with pytest.raises(InputError, match="different records"):
        joined.absorb(SpectrumSketch([0, 1], 30, 3))


def _run(seed, steps, probes):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(8, D, dtype=torch.float64), torch.randint(3, (8,))
    accountant = FisherAccountant(
        net,
        "cross_entropy",
        n=8,
        sample_rate=1.0,
        noise_multiplier=1.0,
        max_grad_norm=0.5,
        probes=probes,
        sketch=D,
        sketch_records=[1, 3, 6],
        seed=seed,
    )
    total = torch.zeros(8, D, D, dtype=torch.float64)
    for _ in range(steps):
        accountant.observe(range(8), x, y)
        if seed == 0:  # the parameters do not depend on the seed of the probes
            _, J = dense(net, "cross_entropy", Input(), x, y).clipped(HardClip(0.5))
            total += J.transpose(1, 2) @ J / 0.25
        with torch.no_grad():
            for p in net.parameters():  # each step at other parameters
                p.mul_(0.9)
    return accountant.fil(), torch.linalg.matrix_norm(total, 2).sqrt()[[1, 3, 6]].numpy()


@pytest.mark.slow
def test_fil_over_a_run_lies_between_the_bounds_on_average():
    brackets, truth = zip(*[_run(seed, 5, 2) for seed in range(12)], strict=True)
    lower = np.mean([b.lower**2 for b in brackets], axis=0)
    upper = np.mean([b.upper**2 for b in brackets], axis=0)
    assert np.all(lower < truth[0] ** 2)
    assert np.all(truth[0] ** 2 < upper)
    assert brackets[0].index.tolist() == [1, 3, 6]


def test_many_probes_close_the_bracket():
    bracket, truth = _run(0, 3, 400)
    assert bracket.lower == pytest.approx(truth, rel=0.1)
    assert bracket.upper == pytest.approx(truth, rel=0.1)
    assert "FIL of 3 records" in repr(bracket)


def test_nothing_seen_is_nothing_leaked():
    bracket = SpectrumSketch([0, 1], 2, 2).bracket()
    assert bracket.upper.tolist() == [0.0, 0.0]


def test_a_sketch_needs_two_probes_and_a_rank():
    with pytest.raises(InputError, match="two probes"):
        SpectrumSketch([0], 2, 1).add(torch.tensor([0]), torch.ones(1, 1, 3), torch.ones(1), 1.0)
    with pytest.raises(InputError, match="number of directions, must be at least 1"):
        SpectrumSketch([0], 0, 1)


def test_an_empty_sketch_adds_nothing_and_says_so():
    empty, full = (SpectrumSketch([0, 1, 2], 4, 3) for _ in range(2))
    full.add(torch.tensor([0, 1, 2]), _pulls(1, 1)[0], torch.ones(3), 1.0)
    before = full.bracket().upper
    full.absorb(empty)
    assert full.bracket().upper == pytest.approx(before, rel=1e-12)
    unseen = full.bracket().of_run(torch.zeros(3, dtype=torch.bool), ())
    assert repr(unseen) == "<FIL of 3 records, not measured>"
