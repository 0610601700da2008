"""PLIS, JacSens and FIL against dense automatic differentiation, over the case table."""

from __future__ import annotations

import warnings

import pytest
import torch
from gradient_oracle import Dense, dense
from modules import CASES, SMALL, Case

import seepage.nn as snn
from sampled import sampled
from seepage.nn.gradients.rules.convolution import Geometry, squared_norms_of_convolution

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")

NOISE = 1.3
CLIPS = {"smooth": snn.SmoothClip, "hard": snn.HardClip}
# These take longest; every run asks the engine about their gradients, from which PLIS is made.
LONGEST = {
    "attention",
    "conv2d many channels",
    "conv2d strided",
    "conv3d",
    "rnn without bias",
    "tied text",
    "transposed convolution",
}


@pytest.fixture(
    scope="module",
    params=sampled(list(CASES), [name for name in SMALL if name not in LONGEST][::2], 16),
)
def case(request: pytest.FixtureRequest) -> tuple[Case, tuple, Dense, float]:
    chosen = CASES[request.param]
    net, x, y = chosen.build()
    truth = dense(net, chosen.loss, chosen.view, x, y)
    norms = truth.g.norm(dim=1)
    # Between the norms, so that some are clipped and some are not.
    return chosen, (net, x, y), truth, float(norms.min() + norms.max()) / 2


def measured(case: Case, built: tuple, **options: object) -> snn.Susceptibility:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snn.FallbackWarning)
        return snn.plis(built[0], case.loss, *built[1:], view=case.view, **options)


def close(found: object, wanted: torch.Tensor) -> None:
    scale = float(wanted.abs().max())
    torch.testing.assert_close(
        torch.as_tensor(found), wanted, rtol=1e-8, atol=1e-8 * scale, check_dtype=True
    )


@pytest.mark.parametrize("clip", sampled(list(CLIPS), ["smooth"]))
def test_plis_is_twice_the_jacobian_times_the_gradient(case: tuple, clip: str) -> None:
    chosen, built, truth, threshold = case
    g, J = truth.clipped(CLIPS[clip](threshold))
    s = NOISE * threshold
    found = measured(chosen, built, noise_multiplier=NOISE, max_grad_norm=threshold, clip=clip)
    wanted = 2 / s**2 * torch.einsum("bpd,bp->bd", J, g)
    if clip == "hard":
        beyond = truth.g.norm(dim=1) > threshold
        assert beyond.any()
        assert not found.values[beyond].any()  # not even rounding
    close(found.values.flatten(1), wanted)
    close(found.privacy_loss, g.square().sum(1) / s**2)
    close(found.norms, truth.g.norm(dim=1))
    close(found.records().values, wanted.norm(dim=1))
    chunked = measured(
        chosen, built, noise_multiplier=NOISE, max_grad_norm=threshold, clip=clip, chunk_size=2
    )
    close(chunked.values, found.values)


def test_gradient_signal(case: tuple) -> None:
    chosen, built, truth, threshold = case
    wanted = 2 * torch.einsum("bpd,bp->bd", truth.J, truth.g)
    found = measured(chosen, built)
    close(found.values.flatten(1), wanted)
    close(found.privacy_loss, truth.g.square().sum(1))
    beside = measured(chosen, built, noise_multiplier=NOISE, max_grad_norm=threshold).signal()
    close(beside.values, found.values)
    close(beside.privacy_loss, found.privacy_loss)


def test_jacobian_sensitivity_and_fil(case: tuple) -> None:
    chosen, built, truth, threshold = case
    J = truth.clipped(snn.SmoothClip(threshold))[1]
    found = measured(
        chosen,
        built,
        noise_multiplier=NOISE,
        max_grad_norm=threshold,
        clip="smooth",
        compare="exact",
    ).compare()
    largest = torch.linalg.matrix_norm(J, 2)
    close(found.jacsens.values, largest)
    close(found.fil.values, largest / (NOISE * threshold))
    close(found.jacsens_frobenius.values, torch.linalg.matrix_norm(J))
    close(found.jacsens_cells.values, J.norm(dim=1))
    assert {found.jacsens.kind, found.jacsens_frobenius.kind, found.fil.kind} == {"exact"}


@pytest.mark.parametrize("size", [7, 2], ids=["written out", "gram"])
@pytest.mark.parametrize("multiple", [1, 2])
@pytest.mark.parametrize("padding", [(0, 0), (3, 2)])
@pytest.mark.parametrize("groups", [2, 1])
def test_squared_norms_of_a_convolution(
    size: int, multiple: int, padding: tuple, groups: int
) -> None:
    torch.manual_seed(0)
    stride, dilation = (2, 1), (1, 2)
    channels = 4 if size == 7 else 96
    weight = torch.randn(channels, channels // groups, 2, 2, dtype=torch.float64)
    x = torch.randn(4, channels, size + 1, size + 2, dtype=torch.float64)
    if groups == 1:
        x = x.to(memory_format=torch.channels_last)
    padded = torch.nn.functional.pad(
        x,
        (
            padding[1] // 2,
            padding[1] - padding[1] // 2,
            padding[0] // 2,
            padding[0] - padding[0] // 2,
        ),
    )
    out = torch.conv2d(padded, weight, None, stride, 0, dilation, groups)
    delta = torch.randn_like(out)
    if groups == 1:
        delta = delta.to(memory_format=torch.channels_last)
    delta.requires_grad_()
    x.requires_grad_()
    geometry = Geometry((2, 2), stride, padding, dilation, groups, out.shape[2:], multiple)
    found = squared_norms_of_convolution(delta, x, geometry=geometry)
    wanted = []
    for i in range(0, 4, multiple):
        w = weight.clone().requires_grad_()
        value = torch.conv2d(padded[i : i + multiple], w, None, stride, 0, dilation, groups)
        (g,) = torch.autograd.grad(value, w, delta.detach()[i : i + multiple])
        wanted.append(g.square().sum())
    torch.testing.assert_close(found, torch.stack(wanted))
    places, m, r = out[0, 0].numel() * multiple, channels // groups, 4 * channels // groups
    assert (places * (m + r) > m * r) == (size == 7)  # both forms are met
    assert torch.autograd.gradcheck(
        lambda d, t: squared_norms_of_convolution(d, t, geometry=geometry),
        (delta, x),
        fast_mode=True,
    )
