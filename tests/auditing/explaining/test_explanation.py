"""What a budget means: the numbers, the words, the picture and the command."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.decision.presets import PRESETS
from seepage.cli import app


@pytest.fixture(scope="module")
def blank_figures():
    """Pictures are drawn here."""


def test_the_numbers_of_epsilon_eight():
    found = sp.explain(epsilon=8.0, delta=1e-5)
    most, gaussian = found.meanings
    e, d = math.exp(8.0), 1e-5
    assert most.membership == pytest.approx((e + d) / (1 + e), rel=1e-14)
    assert most.tpr == pytest.approx(1 - (1 - d - 0.01) / e, rel=1e-14)
    assert most.tpr_strict == pytest.approx(1 - (1 - d - 0.001) / e, rel=1e-14)
    # Replacing is removing and adding: the error is that of two ends told apart 1 − e^−ε(1 − 2δ)
    assert most.closest == pytest.approx(math.sqrt((1 - 2 * d) / e) / 2, rel=1e-9)
    mu = sp.privacy.GaussianDP.meeting(8.0, 1e-5).mu
    assert gaussian.membership == pytest.approx(norm.cdf(mu / 2), rel=1e-12)
    assert gaussian.tpr == pytest.approx(norm.cdf(norm.ppf(0.01) + mu), rel=1e-9)
    assert gaussian.closest == pytest.approx(math.sqrt(2 * norm.sf(mu)) / 2, rel=1e-9)
    assert found.presets == ()


@pytest.mark.parametrize(
    ("budget", "right"),
    [({"epsilon": 0.0}, 0.5), ({"epsilon": 0.0, "delta": 0.3}, 0.65), ({"epsilon": 1e6}, 1.0)],
)
def test_the_ends(budget, right):
    found = sp.explain(**budget)
    assert found.meanings[0].membership == pytest.approx(right, abs=1e-15)
    for one in found.meanings:
        assert 0 <= one.closest <= 0.5
        assert one.tpr_strict <= one.tpr <= 1
    assert "nan" not in str(found)


def test_nothing_is_learnt_without_a_budget():
    (nothing,) = sp.explain(epsilon=0.0).meanings
    assert (nothing.membership, nothing.tpr, nothing.tpr_strict) == (0.5, 0.01, 0.001)
    assert nothing.closest == 0.5
    assert sp.explain(epsilon=0.0).presets == tuple(PRESETS)


def test_a_base_rate():
    found = sp.explain(epsilon=1.0, delta=1e-3, prior=0.1)
    # Always "not a member" is right 90 % of the time; only the δ is gained.
    assert found.baseline == 0.9
    assert found.meanings[0].at_prior == pytest.approx(0.9 + 0.1 * 1e-3, rel=1e-14)
    assert "at a base rate of 10 %" in str(found)
    assert "base rate" not in str(sp.explain(epsilon=1.0))


def test_a_replacement_is_about_two_records():
    same = sp.explain(epsilon=1.0, neighbours="replace")
    both = sp.explain(epsilon=1.0)
    assert same.meanings[0].membership == both.meanings[0].membership
    # ε about a replacement promises more about a value than ε about a removal
    assert same.meanings[0].closest == pytest.approx(math.sqrt(1 - math.tanh(0.5)) / 2)
    assert same.meanings[0].closest > both.meanings[0].closest
    assert "which of two given records" in " ".join(str(same).split())


def test_an_estimate_at_the_two_ends_reaches_the_least_error():
    """Randomised response about one bit: the best estimate of 0 or 1, by hand, at every truth."""
    epsilon = 1.3
    q = 1 / (1 + math.exp(-epsilon))
    # It says the truth with probability q; the posterior mean is q or 1 − q.
    error = q * (1 - q) ** 2 + (1 - q) * q**2
    least = sp.explain(epsilon=epsilon, neighbours="replace").meanings[0].closest
    assert least <= math.sqrt(error)
    # Le Cam's bound is within a factor of √2 of it
    assert least >= math.sqrt(error / 2) * (1 - 1e-12)


@pytest.mark.minutes
def test_a_run_explains_itself_and_its_budget():
    found = sp.explain(noise_multiplier=1.0, sample_rate=0.02, steps=20, delta=1e-5)
    run, budget = found.meanings
    assert found.epsilon == pytest.approx(sp.privacy.SampledGaussianDP(1.0, 0.02, 20).epsilon(1e-5))
    assert 0.5 < run.membership < budget.membership
    assert run.tpr < budget.tpr
    assert run.closest > budget.closest
    assert "ε = " in str(found)
    alone = sp.explain(noise_multiplier=1.0)
    assert alone.epsilon is None
    assert alone.meanings[0].membership == pytest.approx(norm.cdf(0.5), abs=1e-4)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "sp.explain\\(epsilon=8, delta=1e-5\\)"),
        ({"epsilon": 1.0, "delta": 1.0}, "far below 1 divided by the number of people"),
        ({"epsilon": 1.0, "delta": 7}, "below 1"),
        ({"epsilon": -1.0}, "epsilon must not be negative"),
        ({"epsilon": math.inf}, "epsilon must be a finite number"),
        ({"epsilon": "8"}, "epsilon must be a finite number"),
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "not both"),
        ({"epsilon": 1.0, "steps": 10}, "with epsilon, leave them out"),
        ({"noise_multiplier": 1.0, "neighbours": "swap"}, "neighbours must be"),
        ({"epsilon": 1.0, "prior": 1.0}, "prior must be a probability"),
        ({"epsilon": 1.0, "neighbours": "remove"}, "add-or-remove"),
    ],
)
def test_what_is_refused(asked, words):
    with pytest.raises(sp.InputError, match=words):
        sp.explain(**asked)


def test_the_command_prints_few_lines_and_json():
    run = CliRunner().invoke(app, ["explain", "--epsilon", "8", "--delta", "1e-5"])
    assert run.exit_code == 0
    lines = run.stdout.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 100
    assert "any mechanism" in run.stdout
    assert "our defaults, not law" in run.stdout or "no preset" in run.stdout
    read = CliRunner().invoke(app, ["explain", "--epsilon", "8", "--delta", "1e-5", "--json"])
    summary = json.loads(read.stdout)
    assert summary["schema"] == "seepage-explanation/1"
    assert summary["meanings"][0]["membership"] == sp.explain(8.0, 1e-5).meanings[0].membership
    bad = CliRunner().invoke(app, ["explain", "--epsilon", "1", "--delta", "2"])
    assert bad.exit_code == 2
    assert bad.stderr.count("\n") == 1


def test_the_picture(tmp_path):
    found = sp.explain(epsilon=1.0, delta=1e-5)
    drawn = found.picture(tmp_path / "curve.svg")
    text = drawn.read_text("utf-8")
    root = ET.fromstring(text)  # noqa: S314 - our own file
    shown = "".join(root.itertext())
    for words in ("any mechanism", "Gaussian noise", "no release", "false positive rate", "0.1 %"):
        assert words in shown
    assert "\\mathdefault" not in text
    assert drawn.read_bytes() == found.picture(tmp_path / "again.svg").read_bytes()
    png = found.picture(tmp_path / "curve.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    with pytest.raises(sp.InputError, match=r"\.svg or \.png"):
        found.picture(tmp_path / "curve.pdf")
    with pytest.raises(sp.InputError, match="cannot be written"):
        found.picture(tmp_path / "curve.png" / "in-a-file.png")


def test_bars_are_full_only_for_certainty():
    text = str(sp.explain(epsilon=12.0))
    assert "█" * 30 not in text
    assert "█" * 29 in text
    assert np.all([len(line) < 101 for line in text.splitlines()])
