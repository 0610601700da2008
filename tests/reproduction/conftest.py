"""A small experiment to stand in for those that need data sets."""

from __future__ import annotations

import sys
import types
from functools import cache

import pytest

import reproduction
from reproduction import Experiment, reproducing
from reproduction.drawing import Figure, draw_figure
from reproduction.outcome import Outcome, Quantity

NAME = "fake-figure1"


@cache
def fake_figure() -> Figure:
    return draw_figure(
        NAME, "A line from 0 to 1", lambda canvas: canvas.subplots().plot([0, 1]), (3, 2)
    )


def fake_outcome(quick: bool) -> Outcome:
    trials = 2 if quick else 100
    quantities = (Quantity("mean | η", 0.0405, "0.040"), Quantity("trials", trials))
    return Outcome("Two *made-up* points.", quantities, "The line rises.", fake_figure())


@pytest.fixture
def fake(monkeypatch):
    """Register one experiment and no other; return it."""
    experiment = Experiment(NAME, "Hannun et al. 2021", "Figure 1", "A rising line")
    module = types.SimpleNamespace(reproduce=fake_outcome)
    monkeypatch.setitem(sys.modules, "reproduction.fake.figure1", module)
    for owner in (reproduction, reproducing):
        monkeypatch.setattr(owner, "EXPERIMENTS", {NAME: experiment})
    return experiment


@pytest.fixture
def draw_anew():
    """Return what makes its figure be drawn again, as it is once for all tests."""
    return fake_figure.cache_clear
