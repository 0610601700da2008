"""The attacker in the box sees no more than a release states, and is not blind."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from release_cases import patients
from scipy.stats import binomtest
from typer.testing import CliRunner

from seepage.auditing.release import error_rates
from seepage.auditing.release.attack import Attack, attack_release, listing_of
from seepage.auditing.release.error_rates import Usefulness
from seepage.auditing.release.procedure import Procedure
from seepage.cli import app
from seepage.errors import InputError

DOMAIN = ["age=0:120", "dose=0:150"]


def some_patients(count=130):
    rng = np.random.default_rng(0)
    age, dose = rng.normal(60, 12, count), rng.normal(30, 6, count)
    response = 0.04 * dose + 0.01 * age + rng.normal(0, 0.5, count)
    dose[0], response[0] = 98.5, 1.0
    return pa.table({"age": age, "dose": dose, "response": response})


@pytest.mark.filterwarnings("ignore:.*agrees with a record of an earlier release:UserWarning")
@pytest.mark.parametrize(
    ("sigma", "earlier"),
    [
        (0.6, False),
        pytest.param(None, False, marks=pytest.mark.slow),
        pytest.param(None, True, marks=pytest.mark.slow),
    ],
)
def test_releases_are_told_apart_no_more_often_than_stated(sigma, earlier):
    raw = some_patients()
    procedure = Procedure(target="response", sigma=sigma, domain=DOMAIN)
    if earlier:  # another release told something before
        before = listing_of(replace(procedure, target_eta=0.6), raw)
        procedure = replace(procedure, ledger=before)
        assert np.all(procedure.prepare(raw).spent > 0)
    found = list(attack_release(procedure, raw, releases=300))
    assert {a.row for a in found} == {0}
    tests = [a for a in found if not a.disclosed]
    assert len(tests) >= 3
    assert not any(a.exceeds(1 - 1e-4) for a in tests)
    # The attack is as good as theory has it: with σ declared nothing but noise stands in its way.
    if sigma is not None:
        for a in tests:
            assert a.seen == pytest.approx(a.stated, abs=4 * np.sqrt(0.25 / 600))


def stating(procedure, raw, **numbers):
    """Return a ledger whose entry states some of its numbers as a function of the honest ones."""
    honest = listing_of(procedure, raw)
    (entry,) = honest.entries
    wrong = {name: change(entry.loss.columns[name]) for name, change in numbers.items()}
    return replace(honest, entries=(replace(entry, loss=replace(entry.loss, **wrong)),))


def left_out(procedure, raw, listed, releases, row=None):
    found = next(attack_release(procedure, raw, releases=releases, row=row, listed=listed))
    assert (found.change, found.disclosed) == ("left out", ())
    return found


def test_a_ledger_with_half_the_distance_is_caught():
    procedure = Procedure(target="response", sigma=0.6, domain=DOMAIN)
    listed = stating(procedure, some_patients(), mu=lambda mu: mu / 2)
    assert left_out(procedure, some_patients(), listed, 1500).exceeds(1 - 1e-4)
    honest = left_out(procedure, some_patients(), listing_of(procedure, some_patients()), 1500)
    assert not honest.exceeds(1 - 1e-4)


def many_answers(count=1050):
    """Return answers of which every tenth is yes, which no column tells."""
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, count)
    return pa.table({"age": age, "answer": np.where(np.arange(count) % 10, "no", "yes")})


@pytest.mark.minutes
def test_a_ledger_without_the_epsilon_of_the_error_rates_is_caught(monkeypatch):
    """With ε = 1 in place of 0.05, so that few releases are enough to see it."""
    noise = error_rates.rate_noise
    monkeypatch.setattr(error_rates, "rate_noise", lambda people: noise(people, 1.0))
    procedure = Procedure(target="answer", sigma=2.0, domain=["age=20:80"])
    raw = many_answers()
    honest = listing_of(procedure, raw)
    assert honest.entries[0].loss.epsilon[0] == 1.0
    assert not left_out(procedure, raw, honest, 400, row=0).exceeds(1 - 1e-4)
    without = stating(procedure, raw, epsilon=lambda epsilon: epsilon - 1.0)
    found = left_out(procedure, raw, without, 800, row=0)  # right in 0.60: five errors above
    assert found.exceeds(1 - 1e-4)
    assert found.stated < 0.55 < found.seen


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_published_error_rates_are_as_likely_as_they_are_drawn(share):
    """Shares of draws between quantiles, and of those cut to an end, beside the integral."""
    scale, exact = 0.4, np.array([share, 0.5])
    drawn = np.random.default_rng(1).laplace(share, scale, 40_000).clip(0, 1)
    points = np.linspace(0, 1, 401)[1:-1]

    def likelihood(seen):
        other = np.log(0.5)  # of the constant, which is seen as it is
        found = Usefulness(float(seen), 0.5, scale, 1.0, None)
        return np.exp(error_rates.log_likelihood(found, exact) - other)

    inside = np.array([likelihood(seen) for seen in points]) / scale
    for low, high in ((0, 0.25), (0.25, 0.6), (0.6, 1)):
        chosen = (points > low) & (points < high)
        chance = np.trapezoid(inside[chosen], points[chosen])
        assert np.mean((drawn > low) & (drawn < high)) == pytest.approx(chance, abs=0.012)
    for end in (0.0, 1.0):
        assert np.mean(drawn == end) == pytest.approx(likelihood(end), abs=0.012)


def visits(people=60, each=2):
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(people), each)
    dose = rng.normal(30, 6, len(who))
    response = 0.04 * dose + rng.normal(0, 0.5, len(who))
    dose[who == 0], response[who == 0] = 98.5, 1.0
    return pa.table({"who": who, "dose": dose, "response": response})


@pytest.mark.parametrize("row", [None, 1])
def test_all_records_of_a_person_change_together(row):
    """Row 1 is the second of the person whose first row is 0."""
    domain = ["dose=0:150", "response=-10:10"]
    procedure = Procedure(
        target="response", sigma=2.0, target_eta=10.0, domain=domain, person="who"
    )
    found = list(attack_release(procedure, visits(), releases=300, row=row))
    tests = [a for a in found if not a.disclosed]
    assert tests[0].change == "left out"
    assert tests[0].stated > 0.55
    assert not any(a.exceeds(1 - 1e-4) for a in tests)
    for a in tests:  # with σ declared nothing but noise stands in the way
        assert a.seen == pytest.approx(a.stated, abs=4 * np.sqrt(0.25 / 600))


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
    with pytest.raises(InputError, match="Row -3 is not in the release"):
        next(attack_release(Procedure(target="response", sigma=1.0), patients(), row=-3))


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(some_patients(), "p.parquet")
    options = ["p.parquet", "--target", "response", "--sigma", "0.6", "--releases", "200"]
    domains = ["--domain", DOMAIN[0], "--domain", DOMAIN[1]]
    told = CliRunner().invoke(app, ["attack-release", *options, *domains, "--row", "3"])
    assert told.exit_code == 0, told.output
    assert "Row 3 was attacked with 200 releases of each table; chance is 50 %." in told.stdout
    assert "left out" in told.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["p.parquet"]
    few = [*options[:-1], "10"]
    told = CliRunner().invoke(app, ["attack-release", *few])
    assert told.exit_code == 2
    assert "releases must be at least 100" in told.stderr


def test_the_entry_of_a_folder_is_held_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(some_patients(), "p.parquet")
    options = ["p.parquet", "--target", "response", "--sigma", "0.6"]
    options += ["--domain", DOMAIN[0], "--domain", DOMAIN[1]]
    open_limits = ["--max-membership", "1", "--max-guess-gain", "1", "--max-guess-tpr", "1"]
    told = CliRunner().invoke(app, ["release", *options, *open_limits])
    assert told.exit_code == 0, told.output
    attack = ["attack-release", *options, "--folder", "seepage-release", "--releases", "500"]
    path = tmp_path / "seepage-ledger.json"
    before = path.read_bytes()
    told = CliRunner().invoke(app, attack)
    assert told.exit_code == 0, told.output
    assert path.read_bytes() == before
    # Somebody halves what the ledger states.
    content = json.loads(before)
    content["releases"][0]["mu"] = [mu / 2 for mu in content["releases"][0]["mu"]]
    path.write_text(json.dumps(content))
    told = CliRunner().invoke(app, attack)
    assert told.exit_code == 1
    assert "ABOVE THE LEDGER'S BOUND (99.9 % confidence) for the change “left out”." in told.stdout
    for more, words in (
        (["--l2", "3"], "its --l2 is"),
        (["--target-eta", "9"], "its --target-eta is 1.0, not 9.0"),
        (["--ledger", "other.json"], "There is no ledger 'other.json'"),
        (["--folder", "seepage-audit"], "no entry for the release in 'seepage-audit'"),
        (["--sigma", "0.7"], "its --sigma is 0.6, not 0.7"),
        (["--domain", "age=0:99"], "its columns are encoded differently"),
    ):
        told = CliRunner().invoke(app, [*attack, *more])
        assert told.exit_code == 2
        assert words in told.stderr
    pq.write_table(some_patients().take(np.arange(130)[::-1]), "p.parquet")
    told = CliRunner().invoke(app, attack)
    assert told.exit_code == 2
    assert "lists rows that differ from this table's, or are in another order" in told.stderr
    told = CliRunner().invoke(app, ["attack-release", *options, "--ledger", "seepage-ledger.json"])
    assert told.exit_code == 2
    assert "with --folder" in told.stderr
