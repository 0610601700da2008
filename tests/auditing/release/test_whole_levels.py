"""What is said of a category follows from the finite change between its values, not from η."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from release_cases import patients
from scipy.stats import norm

from seepage.auditing.questions import Limits
from seepage.auditing.release.making import write_release_card
from seepage.auditing.release.procedure import Procedure
from seepage.auditing.report.words import level_error


def attribute(tpr):
    """Return a category whose values are told apart at this rate; all else is beside the point."""
    return SimpleNamespace(tpr=tpr)


@pytest.mark.parametrize("mu", [1e-6, 0.1, 0.981, 3.0, 20.0])
def test_an_estimate_unbiased_at_two_values_may_be_closer_than_a_level_over_eta(mu):
    """At η = 0.981 the card promised a whole level; 0.785 levels are allowed.

    The best estimate that is unbiased at two values is linear in their likelihood ratio; its
    variance at the first value is found here by quadrature.
    """
    error = level_error(attribute(float(norm.cdf(norm.ppf(0.01) + mu))))
    if mu > 5:  # quadrature and the rate itself have no digits left
        assert error < 1e-3
        return
    z = np.linspace(-12, 12 + 2 * mu, 400_001)
    density = norm.pdf(z)
    ratio = np.exp(mu * z - mu**2 / 2)  # of the second value to the first
    spread = np.trapezoid(density * (ratio - 1) ** 2, z)
    estimate = (ratio - 1) / spread  # 0 on average at the first value, 1 at the second
    moments = [np.trapezoid(density * f, z) for f in (estimate, estimate * ratio, estimate**2)]
    assert moments[0] == pytest.approx(0, abs=1e-6 / mu)
    assert moments[1] == pytest.approx(1, rel=1e-4)
    assert error == pytest.approx(math.sqrt(moments[2]), rel=1e-3)
    if mu == 0.981:
        assert error == pytest.approx(0.785, abs=2e-3)


def test_nothing_is_known_where_nothing_was_measured():
    assert level_error(attribute(None)) is None
    assert level_error(attribute(0.01)) == math.inf
    assert 0 < level_error(attribute(1.0)) < 1e-100


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(), "no limit on guessing them was set"),
        (Limits(max_guess_gain=0.2), "the limits below cover these"),
        (Limits(max_guess_tpr=0.5), "the limits below cover these"),
        (Limits(max_guess_gain=1.0, max_guess_tpr=1.0), "no limit on guessing them was set"),
    ],
)
def test_the_card_promises_no_whole_level(limits, said):
    procedure = Procedure(target="response", sigma=1.0)
    card = write_release_card(procedure, procedure.prepare(patients()), (), None, limits)
    assert "whole level)" not in card
    assert said in " ".join(card.split())
