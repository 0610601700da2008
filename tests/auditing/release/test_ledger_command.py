"""``seepage ledger``, the same in Python, and limits that hold over all releases of a ledger."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.release.ledger import ReleaseLedger, find_ledger, state_of
from seepage.auditing.release.recognition import CellDigests
from seepage.auditing.report.audit_report import AuditReport
from seepage.cli import app
from seepage.errors import InputError

PEOPLE = {"name": ["Ada", "Ben", "Cy", "Di"], "age": [36, 45, 52, 61]}


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEEPAGE_LEDGER", raising=False)
    monkeypatch.setattr(AuditReport, "write", lambda report, out, keep=(): Path(out))
    return tmp_path


def releases(*options: str, rows: int = 520):
    """Yield the outcome of one release of the same patients after another."""
    rng = np.random.default_rng(0)
    age, dose = rng.normal(50, 15, rows), rng.normal(100, 30, rows)
    response = 0.1 * dose + 0.3 * age + rng.normal(0, 5, rows)
    pq.write_table(pa.table({"age": age, "dose": dose, "response": response}), "table.parquet")
    domains = [f"--domain={name}" for name in ("age=-50:150", "dose=-100:300", "response=-50:120")]
    while True:
        yield run("release", "table.parquet", "--target=response", *domains, *options)


def test_every_epsilon_counts_and_the_promise_weakens_in_sight(here):
    """Each release spends ε = 0.4 or more by its vote: the third is over 75 %, though η is not."""
    made = releases("--sigma-epsilon=0.4", "--target-eta=0.5", "--max-guess-tpr=1", "--json")
    outcomes = [next(made)]
    while outcomes[-1].exit_code == 0 and len(outcomes) < 3:
        outcomes.append(next(made))
    codes = [result.exit_code for result in outcomes]
    assert codes in ([0, 0, 1], [0, 1]), outcomes[-1].output  # the second if σ is drawn anew often
    told = [json.loads(result.stdout) for result in outcomes]
    epsilon = [one["epsilon"] for one in told]
    assert min(epsilon) > 0.4 - 1e-9
    ledger = [one["ledger"] for one in told]
    assert [one["known"] for one in ledger] == [0, 520, 520][: len(codes)]
    for k, one in enumerate(ledger):
        assert 0.4 * (k + 1) - 1e-9 <= one["epsilon"] <= sum(epsilon[: k + 1]) + 1e-9
        # The 95 % interval keeps the central one of this level: by Bayes' rule at both ends. That
        # is about whoever has δ = 0, and the largest ε may be another's.
        tail = 0.025 * np.exp(one["epsilon"]) / (0.975 + 0.025 * np.exp(one["epsilon"]))
        assert one["interval"] >= 1 - 2 * tail - 1e-9
        assert one["delta"] > 0 or one["interval"] == pytest.approx(1 - 2 * tail)
    entries = ReleaseLedger.read(Path("seepage-ledger.json")).entries
    assert len(entries) == len(codes) - 1  # what is refused is not charged
    # How often the best test of all is right, by integrating over the noisy numbers.
    (gate,) = (g for g in told[-1]["gates"] if g["name"] == "--max-membership")
    assert gate["measured"] == ledger[-1]["membership"] > 0.75
    assert "Over all releases in the ledger, including this one, membership" in gate["text"]
    worst = max(best_test(mu, 0.4 * len(codes)) for mu in largest_distances(entries))
    assert ledger[-1]["membership"] >= worst - 1e-9
    if len(codes) == 3:  # ε = 1.2 alone is over the limit
        assert gate["enough"] is None
        assert "Declare the noise with --sigma" in gate["text"]
    # With the noise declared there is no vote: what is left is enough.
    declared = run(
        *("release", "table.parquet", "--target=response", "--sigma=5", "--target-eta=1"),
        *("--domain=age=-50:150", "--domain=dose=-100:300", "--domain=response=-50:120"),
    )
    assert declared.exit_code == 0, declared.output
    assert "An attacker who has all of these releases, and knows everything" in declared.stdout
    assert f"have ε = {ledger[-2]['epsilon']:.3g} in total" in declared.stdout


def largest_distances(entries) -> list[float]:
    """Return √(Σ μ²) of some people over the entries: all have the same rows, in one order."""
    return np.sqrt(sum(entry.loss.mu**2 for entry in entries))[:5].tolist()


def best_test(mu: float, epsilon: float) -> float:
    """Return how often the best test on N(0, 1) or N(μ, 1) and randomised response is right."""
    q = 1 / (1 + np.exp(-epsilon))

    def likelier(x: float) -> float:
        both = norm.pdf(x), norm.pdf(x - mu)
        named = max((1 - q) * both[0], q * both[1])
        return 0.5 * (named + max(q * both[0], (1 - q) * both[1]))

    return quad(likelier, -9, 9 + mu, limit=400, points=[mu / 2 - epsilon, mu / 2 + epsilon])[0]


def test_membership_over_all_releases_has_a_noise_that_is_enough(here):
    made = releases("--sigma=1.6", "--target-eta=1000", rows=60)
    outcomes = []
    while not outcomes or (outcomes[-1].exit_code == 0 and len(outcomes) < 40):
        outcomes.append(next(made))
    last = outcomes[-1]
    assert last.exit_code == 1, last.output
    assert len(outcomes) > 1
    assert "OVER --max-membership: Over all releases in the ledger" in last.stdout
    assert "would be enough" in last.stdout
    sigma = last.stdout.split("σ = ")[1].split(" would")[0]
    enough = next(releases(f"--sigma={sigma}", "--target-eta=1000", rows=60))
    assert enough.exit_code == 0, enough.output


def test_entries_are_shown_and_voided(here):
    ledger = sp.LedgerFile()
    assert ledger.record(PEOPLE, "training run", eta=[0.1, 0.2, 0.3, 0.9], delta=1e-6) == 1
    assert ledger.record(pd.DataFrame(PEOPLE).iloc[2:], "answers", epsilon=0.5) == 2
    shown = run("ledger", "show")
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert len(lines) == 3
    assert "  ".join(lines[1].split()[2:10]) == "training  run  committed  4  0.9  0  0  1e-06"
    assert lines[1].endswith("  0.9     62.2 %")
    pq.write_table(pa.table(PEOPLE), "people.parquet")
    asked = run("ledger", "show", "people.parquet", "--target-eta=0.3", "--json")
    told = json.loads(asked.stdout)
    assert told["schema"] == "seepage-ledger-summary/1"
    assert told["table"]["known"] == 4
    assert told["table"]["spent"] == 2  # η of 0.3 and 0.9
    assert told["table"]["largest"]["epsilon"] == 0.5
    voided = run("ledger", "void", "2", "--reason", "the server was never started")
    assert voided.exit_code == 0, voided.output
    assert ledger.spent(PEOPLE).epsilon.tolist() == [0.0] * 4
    entry = ReleaseLedger.read(ledger.path).entries[1]
    assert (state_of(entry), entry.about["reason"]) == ("voided", "the server was never started")
    for arguments, complaint in (
        (("void", "2", "--reason", "again"), "already voided"),
        (("void", "9", "--reason", "x"), "has no entry 9"),
        (("void", "1", "--reason", " "), "Use --reason to state why"),
        (("show", "--person", "name"), "also need TABLE"),
        (("show", "--ledger", "other.json"), "There is no ledger at 'other.json'; check --ledger"),
    ):
        refused = run("ledger", *arguments)
        assert refused.exit_code == 2, refused.output
        assert complaint in refused.stderr
    assert not (here / "other.json").exists()


def test_what_would_be_over_a_limit_is_not_recorded(here):
    ledger = sp.LedgerFile()
    ledger.record(PEOPLE, "training run", eta=0.6, epsilon=0.5, max_membership=0.75, target_eta=1)
    for given, complaint in (
        ({"eta": 0.9, "target_eta": 1}, "η would be 1.08 for row 0, above the limit of 1"),
        ({"epsilon": 0.7, "max_membership": 0.75}, "membership inference would be 0.769"),
        ({"unit": "person"}, "requires person="),
        ({"unit": "family"}, "'row' or 'person'"),
        ({"epsilon": -1}, "epsilon must be at least 0"),
    ):
        with pytest.raises(InputError, match=complaint):
            ledger.record(PEOPLE, "answers", **given)
    for table in ({"a": [1, 2], "b": [1]}, {"a": [1, "x"]}, 7, [[1, 2]]):
        with pytest.raises(InputError, match="a data frame, or a mapping of"):
            ledger.record(table, "answers")
    assert len(ReleaseLedger.read(ledger.path).entries) == 1
    # Of a person with three rows, ε counts three times; nobody knows how far μ moves.
    visits = {"name": ["Ada", "Ada", "Ada", "Ben"], "visit": [1, 2, 3, 1]}
    ledger = sp.LedgerFile(here / "visits.json")
    ledger.record(visits, "answers", person="name", epsilon=0.1, mu=[0.2, 0.2, 0.2, 0.3])
    spent = ledger.spent(visits, "name")
    np.testing.assert_allclose(spent.epsilon, [0.3, 0.3, 0.3, 0.1])
    assert spent.mu.tolist() == [np.inf] * 3 + [0.3]
    ledger.record(visits, "answers", person="name", unit="person", epsilon=0.1)
    np.testing.assert_allclose(ledger.spent(visits, "name").epsilon, [0.4, 0.4, 0.4, 0.2])


def test_a_project_has_one_ledger(here, monkeypatch):
    assert find_ledger() == Path("seepage-ledger.json")
    sp.LedgerFile().record(PEOPLE, "training run", epsilon=0.1)
    below = here / "models" / "new"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_ledger() == here / "seepage-ledger.json"
    assert sp.LedgerFile().record(PEOPLE, "answers", epsilon=0.1) == 2
    (here / "models" / ".git").mkdir()  # another project begins here
    assert find_ledger() == Path("seepage-ledger.json")
    monkeypatch.setenv("SEEPAGE_LEDGER", str(here / "shared.json"))
    assert find_ledger() == here / "shared.json"


def test_a_ledger_without_epsilon_is_read_and_promises_nothing_of_it(here):
    """The format before this one: η alone, and digests of texts as they were written."""
    path, table = Path("seepage-ledger.json"), pa.table(PEOPLE)
    digests = CellDigests(bytes(32), cased=True).people(table, None).as_json()
    release = {"when": "2026-01-01", "unit": "row", "eta": [0.1, 0.2, 0.3, 0.4], **digests}
    old = {"format": "seepage-ledger/2", "key": bytes(32).hex(), "releases": [release]}
    path.write_text(json.dumps(old))
    ledger = sp.LedgerFile()
    spent = ledger.spent(PEOPLE)
    np.testing.assert_allclose(spent.eta, [0.1, 0.2, 0.3, 0.4])
    assert np.isinf(spent.mu).all()
    assert np.isinf(spent.epsilon).all()
    assert spent.membership().tolist() == [1.0] * 4
    with pytest.raises(InputError, match="membership inference would be 1 for row 0"):
        ledger.record(PEOPLE, "answers", epsilon=0.1, max_membership=0.99)
    # Written again in the new format, it is known by the same digests still.
    ledger.record(PEOPLE, "answers", epsilon=0.1)
    assert json.loads(path.read_text())["format"] == "seepage-ledger/3"
    np.testing.assert_allclose(ledger.spent(PEOPLE).eta, [0.1, 0.2, 0.3, 0.4])
    shown = run("ledger", "show")
    line = " ".join(shown.stdout.splitlines()[1].split())
    assert line == "1 2026-01-01 release committed 4 0.4 no bound no bound 0"


def test_distances_of_membership_are_those_of_refits(here):
    """μ of every record in the ledger, by solving the penalised equations without it."""
    result = next(releases("--sigma=3", "--target-eta=1000", "--max-membership=1", rows=41))
    assert result.exit_code == 0, result.output
    (entry,) = ReleaseLedger.read(Path("seepage-ledger.json")).entries
    table = pq.read_table("table.parquet")
    model = sp.load_release("seepage-release")
    X = np.column_stack([model.transform(table), np.ones(41)])
    y = table["response"].to_numpy()
    penalty = 0.01 * np.diag([1.0, 1.0, 0.0])  # of each record

    def solved(kept):
        curvature = X[kept].T @ X[kept] + np.sum(kept) * penalty
        return np.linalg.solve(curvature, X[kept].T @ y[kept])

    everybody = solved(np.full(41, True))
    moves = [np.linalg.norm(solved(np.arange(41) != k) - everybody) / 3 for k in range(41)]
    mu, moves = entry.loss.mu, np.array(moves)
    most = np.argsort(-moves)[:3]  # refitted, as the most exposed are; others have a limit
    np.testing.assert_allclose(mu[most], moves[most], rtol=1e-6)
    assert np.all(mu >= moves * (1 - 1e-6))


def test_a_link_to_a_ledger_stays_a_link(here):
    shared = here / "shared" / "ledger.json"
    sp.LedgerFile(shared).record(PEOPLE, "training run", epsilon=0.1)
    (here / "seepage-ledger.json").symlink_to(shared)
    assert sp.LedgerFile().record(PEOPLE, "answers", epsilon=0.1) == 2
    assert (here / "seepage-ledger.json").is_symlink()
    assert len(ReleaseLedger.read(shared).entries) == 2


def test_a_release_that_another_ledger_lists_is_warned_of(here):
    made = releases("--sigma=3", "--target-eta=1000", "--max-membership=1", rows=41)
    assert "does not list" not in next(made).stderr
    assert "does not list" not in next(made).stderr
    Path("seepage-ledger.json").rename("other.json")
    forgotten = next(made)
    assert "warning: The folder 'seepage-release' contains a release that this" in forgotten.stderr
