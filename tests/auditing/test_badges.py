"""What is said of single columns: how far a prior narrows, and the badges of rare values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from seepage.auditing.audit import audit_table
from seepage.auditing.findings import Audit
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.report import words


def doses(sigma: float) -> Audit:
    """An audit of a linear model of a dose with one sensitive number."""
    rng = np.random.default_rng(0)
    age, weight = rng.normal(50, 10, 80), rng.normal(70, 9, 80)
    dose = 0.1 * age - 0.05 * weight + rng.normal(0, 1, 80)
    table = TableInMemory(pa.table({"age": age, "weight": weight, "dose": dose}))
    encoded = encode(table, plan_columns(table, "dose", sensitive=["age"]))
    return audit_table(encoded, name="doses", sigma=sigma)


@pytest.mark.parametrize(("ratio", "kept"), [(2.06, 0.90), (1.0, 0.71), (0.5, 0.45), (0.0, 0.0)])
def test_a_release_narrows_a_normal_prior_even_where_unbiased_estimates_are_poor(ratio, kept):
    """By Bayes' rule on a grid: the posterior of a normal prior and a normal estimate."""
    assert words.spread_kept(ratio) == pytest.approx(kept, abs=0.005)
    if ratio:
        x = np.linspace(-12, 12, 20_001)
        posterior = np.exp(-(x**2) / 2 - (x - 0.3) ** 2 / (2 * ratio**2))
        posterior /= posterior.sum()
        spread = np.sqrt(posterior @ x**2 - (posterior @ x) ** 2)
        assert words.spread_kept(ratio) == pytest.approx(spread, rel=1e-6)


@pytest.mark.parametrize("sigma", [0.003, 0.05, 2.0])
def test_what_is_said_of_a_number_is_the_posterior_of_a_normal_prior(sigma: float) -> None:
    audit = doses(sigma)
    (age,) = (a for a in audit.attributes if a.name == "age")
    said = " ".join(answer.text for answer in words.judge(audit).answers)
    assert "no more" not in said
    kept = (1 + (age.spread / age.smallest_error) ** 2) ** -0.5
    share = words.number(kept) if sigma < 2 else "more than 0.999"  # never all of it
    assert f"narrows to ±{words.number(kept * age.spread)}, {share} of it" in said
    kept = (1 + float(audit.eta_label.max()) ** 2) ** -0.5
    share = words.number(kept) if sigma < 2 else "more than 0.999"
    assert f"narrows to {share} of it" in said
    flat = replace(audit, attributes=(replace(age, spread=0.0),))
    told = " ".join(answer.text for answer in words.judge(flat).answers)
    assert f"“age” is off by ±{words.number(age.smallest_error)} at best (row" in told
