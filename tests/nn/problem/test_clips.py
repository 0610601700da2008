"""Clips: values, slopes, the promises about norms and about the conservative bound."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import seepage as sp
from seepage.nn.problem.clipping import Clip, HardClip, NoClip, SmoothClip

NORMS = torch.cat([torch.zeros(1), torch.logspace(-3, 3, 400)]).double()
CLIPS: list[Clip] = [NoClip(), HardClip(0.7), SmoothClip(0.7), SmoothClip(13.0)]


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
def test_slopes_are_derivatives(clip: Clip) -> None:
    away = NORMS[(NORMS - clip.max_grad_norm).abs() > 1e-4]
    step = 1e-6
    difference = (clip.phi(away + step) - clip.phi(away - step)) / (2 * step)
    torch.testing.assert_close(clip.slope(away), difference, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("clip", CLIPS[1:], ids=repr)
def test_clipped_norms_stay_below_the_sensitivity(clip: Clip) -> None:
    assert float((NORMS * clip.factor(NORMS)).max()) <= clip.sensitivity * (1 + 1e-15)


def test_the_smooth_clip_is_the_papers() -> None:
    n = torch.tensor([0.0, 1.0, 3.0]).double()
    gelu = torch.nn.functional.gelu(n / 2 - 1)
    torch.testing.assert_close(SmoothClip(2.0).factor(n), 1 / (gelu + 1))
    fine = torch.linspace(1, 2.5, 300_001).double()
    largest = float((fine * SmoothClip(1.0).factor(fine)).max())
    assert largest == pytest.approx(1.115, abs=5e-4)  # what the paper prints
    assert float(SmoothClip(1.0).radial(torch.linspace(0, 60, 600_001)).abs().max()) <= 1.0072


@settings(max_examples=60, deadline=None)
@given(
    n=st.floats(1e-3, 50),
    gd=st.floats(-1, 1),
    dd=st.floats(1e-3, 10),
    which=st.sampled_from(CLIPS),
)
def test_three_scalars_equal_the_formula_of_the_notes(
    n: float, gd: float, dd: float, which: Clip
) -> None:
    norm, change = torch.tensor([[n], [dd]], dtype=torch.float64)
    along = gd * n * dd**0.5  # within the bound of Cauchy and Schwarz
    phi, slope = float(which.phi(norm)), float(which.slope(norm))
    wanted = dd / phi**2 - 2 * slope * along**2 / (n * phi**3) + slope**2 * along**2 / phi**4
    found = which.squared(norm, norm**2, torch.tensor([along], dtype=torch.float64), change)
    assert float(found) == pytest.approx(max(wanted, 0.0), rel=1e-9, abs=1e-12)
    assert float(found) <= float(which.conservative(norm)) * dd * (1 + 1e-12)


def test_an_estimate_below_zero_is_not_cut() -> None:
    # gd = 1 is estimated twice, independently; the mean of the products is 1.
    chance = torch.Generator().manual_seed(0)
    gd, again = 1 + 2 * torch.randn(2, 100_000, generator=chance).double()
    norm, dd = torch.tensor([2.0]).double(), torch.tensor([0.3]).double()
    found = HardClip(1.0).squared(norm, norm**2, gd, dd, again)
    assert bool((found < 0).any())
    assert float(found.mean()) == pytest.approx((0.3 - 1 / 4) / 4, abs=0.004)
    exact = HardClip(1.0).squared(norm, norm**2, torch.tensor([1.0]).double(), dd)
    assert float(exact) == pytest.approx((0.3 - 1 / 4) / 4)


def test_a_gradient_of_zero_is_no_trouble() -> None:
    zero = torch.zeros(1).double()
    found = SmoothClip(1.0).squared(zero, zero, zero, torch.ones(1).double())
    assert float(found) == pytest.approx(1 / float(SmoothClip(1.0).phi(zero)) ** 2)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_thresholds_must_be_positive(value: float) -> None:
    for clip in (HardClip, SmoothClip):
        with pytest.raises(sp.InputError, match="max_grad_norm"):
            clip(value)
