"""Figures 1 and 2 of Mueller et al. 2022: on made-up data, and what figure 1 must show."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from reproduction import find_experiment
from reproduction.plis import figure1 as plis_figure1
from reproduction.plis import figure2 as plis_figure2
from seepage.data.structures import Images, ImageSet
from seepage.nn import SmoothClip
from seepage.privacy.gaussian_mechanism import gaussian_delta

torch.set_num_threads(1)


@pytest.mark.slow
def test_informative_features_rank_above_the_others():
    outcome = find_experiment("plis-figure1").reproduce(quick=True)
    found = {q.name: q.measured for q in outcome.quantities}
    for name in ("FIL", "PLIS"):
        assert found[f"least informative over largest uninformative feature, {name}"] > 1
    assert found["rank correlation of FIL and PLIS over the features"] > 0.9
    assert "every informative feature" in outcome.seen
    assert len(outcome.figure.png) > 1000


def test_the_noise_of_all_steps_is_just_enough():
    sigma = plis_figure1.noise_multiplier(100, 1.1152)
    mu = math.sqrt(100) * 1.1152 / sigma
    assert gaussian_delta(0.2, mu) == pytest.approx(1e-3)


@pytest.fixture
def small(monkeypatch):
    """A few made-up images in place of both sets: bars for digits, noise for X-rays."""
    rng = np.random.default_rng(0)

    def bars(count):
        labels = np.arange(count) % 10
        pixels = rng.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(pixels, labels, strict=True):
            image[2 * label + 3 : 2 * label + 6, 4:24] = 250
        return Images(pixels, labels)

    def noise(count):
        return Images(rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), np.arange(count) % 2)

    digits = ImageSet("mnist", bars(200), bars(50), classes=tuple("0123456789"))
    chest = ImageSet("chest", noise(10), noise(30), classes=("normal", "pneumonia"))
    monkeypatch.setattr(plis_figure2, "load_mnist", lambda: digits)
    monkeypatch.setattr(plis_figure2, "load_pneumoniamnist", lambda: chest)


@pytest.mark.slow
def test_figure_2_in_miniature(small):
    outcome = find_experiment("plis-figure2").reproduce(quick=True)
    found = {q.name: q.measured for q in outcome.quantities}
    assert len(found) == len(outcome.quantities)
    for title in ("with DP", "with DP, before the clip", "without DP"):
        area = found[f"{title}: X-rays among digits, area under the curve"]
        low = found[f"{title}: lower end of its 95 % interval"]
        assert 0 <= low <= area <= found[f"{title}: upper end of its 95 % interval"] <= 1
    assert outcome.seen.endswith(".")
    assert len(outcome.figure.png) > 1000


def test_an_image_unlike_the_others_of_its_class_is_the_farthest():
    rng = np.random.default_rng(2)
    images = rng.random((60, 4, 4)) * 0.1
    labels = np.arange(60) % 2
    images[labels == 1] += 1.0
    images[7] += 0.5  # odd for its class, though no farther from the other one than its fellows
    found = plis_figure2.distance_to_class(images, labels)
    assert found.argmax() == 7
    own = np.linalg.norm((images[labels == 0] - images[0]).reshape(30, -1), axis=1)
    assert found[0] == pytest.approx(np.sort(own)[10])


def test_private_training_spends_what_it_says():
    torch.manual_seed(0)
    x, y = torch.rand(30, 1, 28, 28), torch.arange(30) % 10
    trained = plis_figure2.train_privately(x, y, epochs=4)
    mu = math.sqrt(4) * SmoothClip(1.0).sensitivity / trained.noise_multiplier
    assert gaussian_delta(plis_figure2.EPSILON, mu) == pytest.approx(plis_figure2.DELTA)
    assert plis_figure2.train_plainly(x, y, epochs=1).noise_multiplier is None
