"""The attacker in the box sees no more than a release states, and is not blind."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from release_cases import patients
from scipy.stats import binomtest
from typer.testing import CliRunner

from seepage.auditing.release import attack as module
from seepage.auditing.release.attack import Attack, attack_release
from seepage.auditing.release.procedure import Procedure
from seepage.cli import app
from seepage.errors import InputError
from seepage.risks.guessing import accuracy_beside

DOMAIN = ["age=0:120", "dose=0:150"]


def some_patients(count=130):
    rng = np.random.default_rng(0)
    age, dose = rng.normal(60, 12, count), rng.normal(30, 6, count)
    response = 0.04 * dose + 0.01 * age + rng.normal(0, 0.5, count)
    dose[0], response[0] = 98.5, 1.0
    return pa.table({"age": age, "dose": dose, "response": response})


@pytest.mark.parametrize("sigma", [pytest.param(None, marks=pytest.mark.slow), 0.6])
def test_releases_are_told_apart_no_more_often_than_stated(sigma):
    procedure = Procedure(target="response", sigma=sigma, domain=DOMAIN)
    found = list(attack_release(procedure, some_patients(), releases=300))
    assert {a.row for a in found} == {0}
    tests = [a for a in found if not a.disclosed]
    assert len(tests) >= 3
    assert not any(a.exceeds(1 - 1e-4) for a in tests)
    # The attack is as good as theory has it: with σ declared nothing but noise stands in its way.
    if sigma is not None:
        for a in tests:
            assert a.seen == pytest.approx(a.stated, abs=4 * np.sqrt(0.25 / 600))


@pytest.mark.slow
def test_a_statement_of_half_the_distance_is_caught(monkeypatch):
    """A folder that stated less than the truth would be found out."""
    half = lambda mu, prior, epsilon: accuracy_beside(mu / 2, prior, epsilon)  # noqa: E731
    monkeypatch.setattr(module, "accuracy_beside", half)
    procedure = Procedure(target="response", sigma=0.6, domain=DOMAIN)
    found = attack_release(procedure, some_patients(), releases=1500)
    assert any(a.exceeds(1 - 1e-4) for a in found)


def test_a_figure_that_differs_is_certainty():
    """200 patients are at the edge of the grid: without one there are 100 or more."""
    found = next(attack_release(Procedure(target="response", sigma=0.6), patients(), releases=100))
    assert (found.disclosed, found.stated) == (("number of records",), 1.0)
    assert not found.exceeds()


@pytest.mark.parametrize(("right", "releases"), [(0, 100), (1, 100), (130, 100), (200, 100)])
def test_the_lower_limit_is_that_of_clopper_and_pearson(right, releases):
    found = Attack(0, "left out", (), releases, right, 0.6)
    limit = binomtest(right, 2 * releases, alternative="greater").proportion_ci(0.999, "exact").low
    assert found.seen_at_least(0.999) == pytest.approx(limit, abs=1e-12)
    assert found.exceeds() == (limit > 0.6)


def test_who_cannot_be_attacked_is_said():
    with pytest.raises(InputError, match="Row 500 is not in the release"):
        next(attack_release(Procedure(target="response", sigma=1.0), patients(), row=500))
    with pytest.raises(InputError, match="about single records"):
        next(attack_release(Procedure(target="response", person="age"), patients()))


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(some_patients(), "p.parquet")
    options = ["p.parquet", "--target", "response", "--sigma", "0.6", "--releases", "200"]
    domains = ["--domain", DOMAIN[0], "--domain", DOMAIN[1]]
    told = CliRunner().invoke(app, ["attack-release", *options, *domains, "--row", "3"])
    assert told.exit_code == 0, told.output
    assert "Row 3, 200 releases of each table; chance is 50 %." in told.stdout
    assert "left out" in told.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["p.parquet"]
    half = lambda mu, prior, epsilon: 0 * mu + 0.5  # noqa: E731
    monkeypatch.setattr(module, "accuracy_beside", half)
    told = CliRunner().invoke(app, ["attack-release", *options, *domains])
    assert told.exit_code == 1
    assert "MORE OFTEN THAN STATED" in told.stdout
    few = [*options[:-1], "10"]
    told = CliRunner().invoke(app, ["attack-release", *few])
    assert told.exit_code == 2
    assert "releases must be at least 100" in told.stderr
