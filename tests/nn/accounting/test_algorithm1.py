"""Algorithm 1 of Guo et al. 2022 as printed, against a loop written from the paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.nn.jacobian.random_directions import key_of, row_coordinates

SIGMA, DELTA, RECORDS, BATCH, STEPS, COORDINATES = 1.5, 1e-5, 12, 4, 3, 50


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def printed(net: nn.Module, x: torch.Tensor, y: torch.Tensor, batches: list) -> torch.Tensor:
    """Return ``I(z)`` of every record after lines 2 to 15, with C = 1, by dense Jacobians."""
    q = BATCH / RECORDS
    epsilon = 1.115 * 2 * math.sqrt(2 * math.log(1.25 / DELTA)) / SIGMA
    kappa = q / (q + (1 - q) * math.exp(-epsilon))
    parameters = dict(net.named_parameters())
    information = torch.zeros(len(x), 5, 5, dtype=torch.float64)

    def clipped(z: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        def loss(p: dict) -> torch.Tensor:
            out = torch.func.functional_call(net, p, (z[None],))
            return nn.functional.cross_entropy(out, label[None])

        g = torch.cat([part.flatten() for part in torch.func.grad(loss)(parameters).values()])
        return g / (nn.functional.gelu(g.norm() - 1) + 1)

    for batch in batches:
        for i in batch.tolist():
            J = torch.func.jacrev(clipped)(x[i], y[i])
            information[i] += kappa / SIGMA**2 * J.detach().T @ J.detach()
    return information


@pytest.fixture(scope="module")
def run() -> tuple:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(RECORDS, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (RECORDS,), generator=generator)
    batches = [torch.randperm(RECORDS, generator=generator)[:BATCH] for _ in range(STEPS)]
    return x, y, batches


def accountant(**more: object) -> sp.nn.FisherAccountant:
    return sp.nn.FisherAccountant(
        network(),
        "cross_entropy",
        n=RECORDS,
        batch_size=BATCH,
        noise_multiplier=SIGMA,
        clip="smooth",
        sampler="fixed",
        amplification="algorithm1",
        delta=DELTA,
        directions="coordinates",
        probes=COORDINATES,
        **more,
    )


def test_the_accountant_sums_the_printed_algorithm(run: tuple) -> None:
    x, y, batches = run
    run_of = accountant()
    wanted = torch.zeros(RECORDS, dtype=torch.float64)
    for t, batch in enumerate(batches):
        run_of.observe(batch, x[batch], y[batch])
        one = printed(network(), x, y, [batch])
        unknown = torch.ones(len(batch), 5, dtype=torch.bool)
        for k in range(COORDINATES):  # equation 5 at the sampled coordinates
            v = row_coordinates(key_of(0, t, k), batch, unknown)
            assert torch.equal((v != 0).sum(1), torch.ones(len(batch), dtype=torch.int64))
            wanted[batch] += torch.einsum("bi,bij,bj->b", v, one[batch], v) / COORDINATES
    dfil = torch.as_tensor(run_of.records("dfil").values)
    drawn = torch.cat(batches).unique()
    assert torch.allclose(dfil[drawn], (wanted[drawn] / 5).sqrt(), rtol=1e-9)
    # All coordinates equally often give the printed trace itself.
    trace = torch.einsum("bii->b", printed(network(), x, y, batches))
    assert torch.allclose(wanted, trace, rtol=0.5)
    assert run_of.failure_probability == 1.0
    assert any("not an upper bound" in c for c in run_of.records("dfil").conditions)


def test_coordinates_are_drawn_evenly_among_the_unknowns() -> None:
    unknown = torch.tensor([[True, False, True, True]]).expand(20_000, 4)
    v = row_coordinates(key_of(3), torch.arange(20_000), unknown)
    assert torch.allclose((v**2).mean(0), torch.tensor([1.0, 0, 1, 1]).double(), atol=0.05)
    assert not v[:, 1].any()


def test_what_coordinates_cannot_measure_is_refused(run: tuple) -> None:
    x, y, batches = run
    batch = batches[0]
    kinked = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    engine = sp.nn.Engine(kinked, "cross_entropy", directions="coordinates", method="finite")
    with pytest.raises(sp.InputError, match="give directions='signs'"):
        engine.step(x, y)
    with pytest.raises(sp.InputError, match="or leave out sketch"):
        accountant(sketch=2).observe(batch, x[batch], y[batch])
    with pytest.raises(sp.InputError, match="directions must be"):
        sp.nn.Engine(kinked, "cross_entropy", directions="axes")
