"""Presets: their reasons in numbers, how limits set beside them win, and who is held to them."""

from __future__ import annotations

import json
import math
import re
from typing import get_args, get_type_hints

import numpy as np
import pyarrow.csv as pa_csv
import pytest
from people import people
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.decision.presets import DEFAULT, PRESETS
from seepage.auditing.questions import Limits
from seepage.cli import app
from seepage.privacy.trade_off import PromisedTradeOff


def test_the_reasons_are_the_numbers():
    odds = [one.max_membership / (1 - one.max_membership) for one in PRESETS.values()]
    assert odds == pytest.approx([1.5, 3.0, 9.0])
    for one, odd in zip(PRESETS.values(), odds, strict=True):
        assert PromisedTradeOff(math.log(odd)).accuracy() == pytest.approx(one.max_membership)
        assert one.max_guess_gain == pytest.approx(one.max_membership - 0.5 - 0.05)
    # Of those said to have a value that one in a hundred has, so many have it.
    found = [
        0.01 * one.max_guess_tpr / (0.01 * one.max_guess_tpr + 0.99 * 0.01)
        for one in PRESETS.values()
    ]
    assert np.round(found, 2).tolist() == [0.09, 0.34, 0.48]
    assert list(PRESETS) == ["open", "partners", "internal"]
    assert DEFAULT == "partners"


def test_the_help_states_the_default():
    hints = get_type_hints(Limits, include_extras=True)
    for name in ("max_membership", "max_guess_gain", "max_guess_tpr"):
        stated = re.search(r"Default for the verdict: ([\d.]+\d)", get_args(hints[name])[-1])
        assert float(stated[1]) == getattr(PRESETS[DEFAULT], name)


def test_a_limit_set_beside_a_preset_takes_its_place():
    limits = Limits(preset="open", max_membership=0.7, max_eta=2.0)
    assert (limits.max_membership, limits.max_guess_gain, limits.max_guess_tpr) == (0.7, 0.05, 0.1)
    assert limits.max_eta == 2.0
    assert Limits().max_membership is None
    with pytest.raises(sp.InputError, match=r"did you mean 'open'.*open, partners, internal"):
        Limits(preset="opne")


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = people(300).select(["age", "smoker", "town", "ill"])
    pa_csv.write_csv(kept, tmp_path / "people.csv")
    return ["people.csv", "--target", "ill"]


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_an_audit_is_held_to_a_preset(table):
    strict = run("audit", *table, "--quick", "--json", "--preset", "open", "--sigma", "0.2")
    assert strict.exit_code == 1, strict.output
    summary = json.loads(strict.stdout)
    assert summary["preset"] == "open"
    limits = {gate["name"]: gate["limit"] for gate in summary["gates"]}
    assert limits == {"--max-membership": 0.6, "--max-guess-gain": 0.05, "--max-guess-tpr": 0.1}
    assert any("the preset open" in step for step in summary["steps"])
    assert any("anybody, permanently" in step for step in summary["steps"])
    loose = run("audit", *table, "--quick", "--json", "--preset", "internal", "--sigma", "0.2")
    assert loose.exit_code == 0, loose.output
    assert json.loads(loose.stdout)["passed"]
    none = run("audit", *table, "--quick", "--json", "--sigma", "0.2")
    assert json.loads(none.stdout)["preset"] is None
    assert json.loads(none.stdout)["gates"] == []


def test_a_release_is_held_to_partners_unless_told_otherwise(table):
    fixed = ["--domain", "age=0:110", "--sigma", "0.3"]
    made = run("release", *table, *fixed, "--json")
    summary = json.loads(made.stdout)
    assert summary["preset"] == "partners"
    assert [gate["limit"] for gate in summary["gates"]] == [0.75, 0.2, 0.5]
    wider = run("release", *table, *fixed, "--json", "--preset", "open", "--max-guess-gain", "1")
    assert [gate["limit"] for gate in json.loads(wider.stdout)["gates"]] == [0.6, 1.0, 0.1]
    card = run("release", *table, *fixed, "--preset", "opne")
    assert card.exit_code == 2
    assert "did you mean 'open'" in card.stderr


def test_a_model_published_without_noise_meets_no_limit_on_membership(table):
    """The noise that the audit chose for the rest of its numbers is not in what is published."""
    asked = ["audit", *table, "--quick", "--json", "--attacker", "outsider"]
    bare = run(*asked, "--preset", "internal")
    assert bare.exit_code == 1, bare.output
    summary = json.loads(bare.stdout)
    membership = summary["gates"][0]
    assert (membership["measured"], membership["passed"]) == (1.0, False)
    assert summary["outsider"]["informed"] == 1.0  # as the estimate beside it says
    assert membership["text"].startswith("If the model is published without noise, membership")
    assert f"σ = {membership['enough']:g} would be enough" in membership["text"]
    noisy = run(*asked, "--preset", "internal", "--sigma", str(membership["enough"]))
    assert {gate["name"]: gate["measured"] for gate in json.loads(noisy.stdout)["gates"]}[
        "--max-guess-tpr"
    ] < 1  # with noise a value is guessed, without it is known
    gain, tpr = summary["gates"][1:3]
    worst = max(summary["risks"]["guesses"], key=lambda one: one["right"] - one["baseline"])
    assert gain["measured"] == pytest.approx(1 - worst["baseline"])
    assert gain["text"].startswith("If the model is published without noise, ")
    assert (tpr["measured"], tpr["passed"]) == (1.0, False)
    assert json.loads(noisy.stdout)["gates"][0]["passed"]
    assert run(*asked, "--max-membership", "1").exit_code == 0  # no limit


def test_an_attack_can_exceed_a_preset_and_never_prove_that_it_is_kept(table):
    over = run("audit", *table, "--model-kind", "tree", "--preset", "open", "--json")
    assert over.exit_code == 1, over.output
    told = json.loads(over.stdout)
    assert told["preset"] == "open"
    gates = {gate["name"]: gate for gate in told["gates"]}
    assert set(gates) == {"--max-membership", "--max-guess-gain"}
    assert not gates["--max-membership"]["passed"]
    assert gates["--max-membership"]["measured"] > 0.6
    assert "--max-guess-tpr was not checked" in " ".join(told["steps"])
    within = run("audit", *table, "--model-kind", "tree", "--max-membership", "1", "--json")
    assert within.exit_code == 0, within.output
    told = json.loads(within.stdout)
    assert told["verdict"]["tone"] != "good"
    assert told["gates"][0]["text"].endswith("A stronger attack may exceed the limit.")
    refused = run("audit", *table, "--model-kind", "tree", "--max-guess-tpr", "0.3")
    assert refused.exit_code == 2
    assert "because attacks do not measure it" in refused.stderr


def test_audits_in_python_take_a_preset():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((150, 2))
    y = X[:, 0] + rng.standard_normal(150) > 0
    model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    found = sp.audit(model, X, y, noise=0.5, preset="open")
    assert (found.preset, len(found.gates)) == ("open", 3)
    by_hand = {
        "--max-membership": found.risks.membership,
        "--max-guess-gain": found.risks.worst_guess.gain,
        "--max-guess-tpr": found.risks.told_best.tpr,
    }
    for gate in found.gates:
        assert gate.measured == pytest.approx(by_hand[gate.name])
        assert gate.passed == (gate.measured <= gate.limit * (1 + 1e-9))
    assert sp.audit(model, X, y, noise=0.5).gates == ()
    with pytest.raises(sp.InputError, match="There is no preset"):
        sp.audit(model, X, y, preset="public")
