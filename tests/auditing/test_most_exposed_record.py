"""The bounds that a report shows on the most exposed record."""

import numpy as np
import pytest
from people import encoded_people

import seepage as sp
from seepage.auditing.audit import audit_table
from seepage.bounds.guarantees import guarantees
from seepage.support.chunks import blas_on_one_core


@pytest.mark.slow
def test_they_are_those_of_the_release():
    encoded = encoded_people("linear", n=120)
    audit = audit_table(encoded, name="people", sigma=0.4)
    found = {line.name: line.value for line in audit.guarantees.rows}
    spread = float(np.sqrt(found["Cramér–Rao"]))
    row = int(np.flatnonzero(audit.row_index == int(audit.guarantees.label))[0])
    assert spread == audit.exact_error[row] or abs(spread / audit.exact_error[row] - 1) < 1e-9
    with blas_on_one_core():  # as an audit has it: sums are then added in the same order
        model = sp.glm.LinearRegression(l2=audit.l2, fit_intercept=True).fit(
            encoded.source.X, encoded.source.y
        )
        leak = sp.leakage(model, encoded.source.X, encoded.source.y, noise=sp.Gaussian(0.4))
        again = {line.name: line.value for line in guarantees(leak, draws=64).rows}
    assert found["FIL, 1/η²"] == again["FIL, 1/η²"]
    assert found["dFIL, 1/η̄²"] == again["dFIL, 1/η̄²"]


def test_a_table_that_would_take_minutes_does_without(monkeypatch):
    monkeypatch.setattr("seepage.auditing.audit._TOO_HEAVY", 0.0)
    audit = audit_table(encoded_people("linear", n=60), name="people")
    assert audit.guarantees is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "logistic", "poisson", "softmax"])
def test_nobody_is_bound_to_err_more_than_by_guessing(kind):
    found = audit_table(encoded_people(kind, n=100), name="people", sigma=1.0).guarantees
    bounds = {line.name: line.value for line in found.rows if line.applies}
    assert 0 < bounds["van Trees, spread as the data"] <= found.guessing
    assert bounds["FIL, 1/η²"] <= bounds["dFIL, 1/η̄²"] <= bounds["Cramér–Rao"]
