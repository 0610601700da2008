"""Every number that is printed has a field, and every renderer prints the fields."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pytest
from people import encoded_people, people
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

import seepage as sp
from coarse import point_above
from recordings import make_report
from seepage.auditing.any_model.report import AttackReport
from seepage.auditing.audit import audit_table
from seepage.auditing.findings import (
    LEFT_OUT,
    NUMBERS,
    RELABELLED,
    Disclosure,
    DisclosureCheck,
    LedgerFinding,
    NoiseChoice,
    NoiseVote,
)
from seepage.auditing.gates import held_to
from seepage.auditing.questions import Limits
from seepage.auditing.report import to_json
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.rendering import tell
from seepage.auditing.report.verdict import judge, tell_steps
from seepage.auditing.report.words import in_100, interval, number, percent
from seepage.cli import app

DOCS = [Path(__file__).parents[2] / "docs" / name for name in ("report.md", "report-others.md")]
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]\d+)?")
CHANCE = "50"  # written out in sentences, of a coin
LIMITS = Limits(
    max_eta=0.9,
    min_mse=1.5,
    max_group_ratio=1.001,
    max_membership=0.51,
    max_guess_gain=0.01,
    max_guess_tpr=0.02,
)


@pytest.fixture(scope="module")
def over():
    """Too little noise, with every limit exceeded."""
    encoded = encoded_people("logistic", n=90, groups=["town"])
    audit = audit_table(encoded, name="people", sigma=0.1, target_eta=1.0)
    return replace(audit, gates=held_to(LIMITS, audit).gates)


@pytest.fixture(scope="module")
def met():
    """Noise that meets a target, and public records to shape it."""
    encoded = encoded_people("linear", n=150, sensitive=["age"])
    rows = np.arange(150)
    parts = encoded.source.at(rows[60:]), encoded.source.at(rows[:60])
    table = replace(encoded, source=parts[0], public=parts[1])
    audit = audit_table(table, name="people", target_eta=0.5)
    loose = Limits(
        max_eta=0.6, min_mse=0.1, max_membership=0.9, max_guess_gain=0.9, max_guess_tpr=0.99
    )
    return replace(audit, gates=held_to(loose, audit).gates)


@pytest.fixture(scope="module")
def released(over):
    """The same as a release whose noise was drawn, with a ledger and figures that disclose."""
    found = (Disclosure(7, LEFT_OUT, ("σ", "classes")), Disclosure(9, RELABELLED, ("σ",)))
    risks = replace(over.risks, disclosed=(7, 31), disclosing=("σ", "classes"), epsilon=0.83)
    audit = replace(
        over,
        noise=NoiseChoice("vote", 0.034, True, NoiseVote(0.1, 23, 0.64, 0.871)),
        ledger=LedgerFinding(3, 88, 0.4321, 0.6543),
        disclosures=DisclosureCheck(43, found, everything=True),
        risks=risks,
        risks_reason="",
    )
    return replace(audit, gates=held_to(LIMITS, audit).gates)


@pytest.fixture(scope="module")
def noted(met):
    """Findings of an audit that only notes tell: another σ, a class of one, another penalty."""
    rows = tuple(Disclosure(row, LEFT_OUT, ("σ",)) for row in (3, 5, 8))
    alone = tuple(Disclosure(row, LEFT_OUT, ("classes",)) for row in range(70, 77))
    check = DisclosureCheck(47, (*rows, Disclosure(3, RELABELLED, ("σ",)), *alone))
    curve = replace(met.curve, l2=3.3e-6)
    return replace(met, disclosures=check, curve=curve, risks=None, gates=())


def leaves(value):
    """Yield every number of a summary, the lengths of its lists among them."""
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        yield len(value)
        for item in value:
            yield from leaves(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def written(value):
    """Return a number in all the ways in which sentences write one."""
    said = [f"{value:g}", f"{value:.3g}", f"{value:.4g}", f"{value:.3f}", f"{100 * value:.1f} %"]
    said += [number(value), percent(value), f"{100 * value:g}", f"{value:,}"]
    return {found for text in said for found in NUMBER.findall(text)}


def told_by(audit):
    verdict = judge(audit)
    steps = tell_steps(audit)[len(audit.steps) :]
    return [
        *(text for _, text in verdict.gates),
        *(text for _, text in verdict.advice),
        tell("noise", audit),
        *steps,
    ]


@pytest.mark.parametrize("which", ["over", "met", "released", "noted"])
def test_a_sentence_has_no_number_without_a_field(which, request):
    audit = request.getfixturevalue(which)
    summary = json.loads(to_json(audit))
    for unspoken in ("attributes", "groupings", "guarantees", "versions"):
        del summary[unspoken]
    # What sentences count: records and rows beyond those named, and those with one change.
    counts = [gate["over"] - len(gate["rows"]) for gate in summary["gates"] if gate["over"]]
    check = summary["disclosures"] or {"found": []}
    for one in check["found"]:
        figures = [d for d in check["found"] if d["figures"] == one["figures"]]
        counts += [len(figures), len(figures) - 5, sum(d["change"] == LEFT_OUT for d in figures)]
    known = {CHANCE, "60", "1", "1.5", "2", "3", "5", "7"}  # features of weights, and the grid
    known |= {text for value in (*leaves(summary), *counts) for text in written(value)}
    sentences = told_by(audit)
    assert len(sentences) >= 4
    for sentence in sentences:
        assert set(NUMBER.findall(sentence)) <= known, sentence


def expected_of_remedies(summary):
    """Yield what people read of a remedy, from its fields."""
    sigma, l2 = summary["release"]["sigma"], summary["model"]["l2"]
    target, enough = summary["target"]["eta"], summary["target"]["sigma"]
    rate = summary["model"]["classes"] != []
    for remedy in summary["remedies"]:
        error = remedy["error"]
        if error is not None:
            yield f"is then {f'{100 * error:.1f} %' if rate else number(error)}"
        if remedy["name"] == "more noise" and not summary["target"]["met"]:
            yield f"With σ = {remedy['sigma']:.3g} instead of {sigma:.3g}, no record leaks more"
        elif remedy["name"] == "more noise":
            yield f"The target η = {target:.3g} is met."
            yield f"halving it requires σ = {remedy['sigma']:.3g}"
        elif remedy["kind"] in ("penalty", "combination"):
            yield f"With λ = {remedy['l2']:.3g} instead of {l2:.3g}"
            yield f"σ = {remedy['sigma']:.3g} "
        elif remedy["name"] == "reweighting":
            yield f"({remedy['rounds']} rounds)"
            yield f"σ = {remedy['sigma']:.3g}"
            yield f"instead of {enough:.3g}"
        else:
            assert remedy["name"] == "shaped noise"
            yield f"{remedy['public']} public records and scaled by {remedy['sigma']:.3g}"


def expected_of_gates(summary):
    """Yield what people read of a gate, from its fields."""
    for gate in summary["gates"]:
        if gate["enough"] is not None:
            yield f"σ = {gate['enough']:g} would be enough"
        if gate["over"]:
            yield f"{gate['over']:,} record"
            yield ", ".join(map(str, gate["rows"]))
        if gate["name"] in ("--max-eta", "--min-mse", "--max-group-ratio"):
            yield f"{gate['measured']:.4g}"
            yield f"{gate['limit']:g}"
        elif gate["name"] == "--max-membership":
            yield f"succeeds up to {percent(gate['measured'])} of the time (row {gate['rows'][0]};"
            yield f"the limit of {percent(gate['limit'])}"
        elif gate["name"] == "--max-guess-tpr":
            told = max(summary["risks"]["guesses"], key=lambda guess: guess["tpr"], default=None)
            if told is None:
                yield "There is no class or category to guess."
                continue
            assert gate["measured"] == told["tpr"]
            yield f"'{gate['where']}' of row {told['tpr_row']} is recognised up to"
            yield f"{percent(told['tpr'])} of the time at a false positive rate of 1 %"
        else:
            assert gate["name"] == "--max-guess-gain"
            guess = max(summary["risks"]["guesses"], key=lambda guess: guess["gain"], default=None)
            if guess is None:
                yield "There is no class or category to guess."
                continue
            assert gate["measured"] == guess["gain"]
            yield f"'{gate['where']}' of row {gate['rows'][0]} is guessed right"
            right, baseline = percent(guess["right"]), percent(guess["baseline"])
            yield f"right {right} of the time, {baseline} without"


@pytest.mark.parametrize("which", ["over", "met"])
def test_the_terminal_prints_the_fields(which, request, capsys):
    audit = request.getfixturevalue(which)
    summary = AuditReport(audit).summary()
    AuditReport(audit).tell(None, as_json=False)
    said = capsys.readouterr().out
    assert f"noise σ = {summary['release']['sigma']:.4g}." in said
    assert len(summary["remedies"]) >= 3
    for text in (*expected_of_remedies(summary), *expected_of_gates(summary)):
        assert text in said
    for column in summary["attributes"]:
        error = f"±{column['smallest_error']:.3g}{'' if column['kind'] == 'numeric' else ' level'}"
        cells = [column["name"], error, f"±{column['spread']:.3g}", str(column["easiest_row"])]
        assert any(re.split("  +", line.strip()) == cells for line in said.splitlines())


@pytest.mark.parametrize("which", ["over", "met"])
def test_the_page_prints_the_fields(which, request):
    audit = request.getfixturevalue(which)
    summary = AuditReport(audit).summary()
    page = unescape(AuditReport(audit).page(()))
    assert f"σ = {number(summary['release']['sigma'])}</strong>" in page
    for text in (*expected_of_remedies(summary), *expected_of_gates(summary)):
        assert text in page
    for gate in summary["gates"]:
        assert f"<code>{gate['name']} {number(gate['limit'])}</code>" in page
    risks = summary["risks"]
    assert f"at most (row {risks['recognised_row']})" in page


def test_the_card_prints_the_fields_in_coarse_bands(over):
    summary, card = AuditReport(over).summary(), AuditReport(over).texts()["model-card.md"]
    assert f"λ = {number(summary['model']['l2'])}" in card
    assert f"standard deviation σ = {number(summary['release']['sigma'])}." in card
    assert (
        f"η of a record is at most {number(point_above(summary['records']['eta']['1']))};" in card
    )
    ratio = point_above(summary["groupings"][0]["ratio"])
    assert f"by “town”, by a factor of up to {number(ratio)} (most for" in card
    for gate in summary["gates"]:
        assert f"{gate['name']} {number(gate['limit'])}: not met" in card
    errors = summary["release"]["test_error"], summary["release"]["constant_error"]
    released, constant = (f"{number(100 * float(f'{error:.2g}'))}%" for error in errors)
    assert (
        f"on held-out records is {released}, and that of a constant prediction is {constant};"
        in card
    )


@pytest.mark.parametrize("which", ["over", "met", "released"])
def test_the_json_has_the_fields_beside_the_sentences(which, request):
    audit = request.getfixturevalue(which)
    summary, verdict = json.loads(to_json(audit)), judge(audit)
    for told, remedy, (name, text) in zip(
        summary["remedies"], audit.remedies, verdict.advice, strict=True
    ):
        assert (told["name"], told["text"]) == (name, text)
        assert {key: told[key] for key in asdict(remedy)} == asdict(remedy)
    for told, (gate, text) in zip(summary["gates"], verdict.gates, strict=True):
        fields = asdict(gate) | {"rows": list(gate.rows), "text": text}
        assert told == fields
    for told, guess in zip(summary["risks"]["guesses"], audit.risks.guesses, strict=True):
        assert told["gain"] == guess.right - guess.baseline
    assert summary["risks"]["recognised"] == audit.risks.recognised
    assert summary["target"]["met"] == (audit.eta.max() <= audit.target_eta * (1 + 1e-9))
    assert summary["release"]["choice"] == json.loads(json.dumps(asdict(audit.noise)))
    assert summary["disclosures"] == (
        None if audit.disclosures is None else json.loads(json.dumps(asdict(audit.disclosures)))
    )
    ledger = None if audit.ledger is None else asdict(audit.ledger) | {"doubts": []}
    assert summary["ledger"] == ledger


def test_a_recording_prints_its_fields(capsys):
    report = make_report(passed=False)
    summary = report.summary()
    report.tell(None, as_json=False)
    said = capsys.readouterr().out
    (gate,) = summary["gates"]
    assert f"the layer '{gate['where']}', {gate['measured']:.3g} bits, over the limit of" in said
    tried = [advice for advice in summary["advice"] if advice["left"] is not None]
    assert tried
    for advice in tried:
        left, whole = (number(round(max(advice[key], 0), 3)) for key in ("left", "whole"))
        assert f"leaks {left} instead of {whole} bits" in said
    assert [a["text"] for a in summary["advice"]] == [t for _, t in report.verdict.advice]


@pytest.fixture(scope="module")
def attacked():
    """A tree that was attacked."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((80, 3)), rng.integers(0, 2, 80)
    return AttackReport(sp.audit_estimator(DecisionTreeClassifier(), X, y, shadows=4))


def test_an_attack_prints_its_fields(attacked, capsys):
    summary, page = attacked.summary(), unescape(attacked.page(()))
    attacked.tell(None, as_json=False)
    said = capsys.readouterr().out
    best = max(summary["attacks"], key=lambda attack: attack["auc"])
    assert summary["strongest"] == best["method"]
    low, high = map(in_100, best["auc_interval"])
    picks = f"identifies the member {in_100(best['auc'])} % of the time (95 % CI {low} to {high} %"
    for rate, found in best["tpr"].items():
        found_of = f"{100 * found['rate']:.2g} % of the members"
        picked = f"{found_of} at a false positive rate of {100 * float(rate):g} % (95 % CI"
        assert picked in said
        assert picked in page
    for text in (picks, *(risk["text"] for risk in summary["structure"])):
        assert text in said
        assert text in page
    for attack in summary["attacks"]:
        assert f"{attack['auc']:.3f}" in page
        assert " to ".join(f"{end:.3f}" for end in attack["auc_interval"]) in page


def test_the_page_of_a_recording_prints_its_fields():
    report = make_report(passed=False)
    summary, page = report.summary(), unescape(report.page(report.figures()))
    for layer in summary["layers"]:
        ends = (layer[key] for key in ("v_information", "low", "high"))
        assert interval(*ends) in page
    for remedy in summary["remedies"]:
        assert interval(remedy["value"], remedy["low"], remedy["high"]) in page
    assert (
        f"{sum(layer['tells'] for layer in summary['layers'])} of {len(summary['layers'])}" in page
    )


def test_the_card_of_a_release_prints_its_fields(stays):
    result, where = stays["json"]
    told = json.loads(result.stdout)
    card = (Path(where["out"]) / "model-card.md").read_text("utf-8")
    numbers = told["items"][0]["count"] + told["items"][1]["count"]
    assert f"each of its {numbers} numbers has independent Gaussian noise" in card
    assert f"standard deviation σ = {number(told['sigma'])}." in card
    assert f"loss of more than η = {number(told['target_eta'])}:" in card
    assert f"λ = {number(told['model']['l2'])};" in card
    limit = next(gate["limit"] for gate in told["gates"] if gate["name"] == "--max-membership")
    assert f"succeeds at most {percent(limit)} of the time" in card
    for item in told["items"]:
        assert f"| {item['name']} | {item['count'] or ''} |" in card


def keys(value, below=""):
    if isinstance(value, dict):
        for key, item in value.items():
            if below.rpartition(".")[2] not in {"versions", "tpr", *NUMBERS}:
                yield key
            yield from keys(item, f"{below}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from keys(item, below)


@pytest.fixture(scope="module")
def stays(tmp_path_factory):
    """Two runs of one release, one of them as JSON, and one that is refused."""
    folder = tmp_path_factory.mktemp("stays")
    table = people(150).select(["age", "smoker", "town", "weight", "dose"])
    pa_csv.write_csv(table, folder / "stays.csv")

    def run(name, *options):
        where = {key: str(folder / f"{name}-{key}") for key in ("out", "report", "ledger")}
        named = [word for key, path in where.items() for word in (f"--{key}", path)]
        command = ["release", str(folder / "stays.csv"), "--target", "dose", "--sigma", "10"]
        return CliRunner().invoke(app, [*command, *named, *options]), where

    limits = ("--max-membership", "0.9")
    return {
        "terminal": run("terminal", *limits),
        "json": run("json", *limits, "--json"),
        "refused": run("refused", "--max-membership", "0.5001", "--json"),
    }


def test_a_release_prints_one_object_with_the_numbers_of_its_report(stays):
    (said, _), (result, where) = stays["terminal"], stays["json"]
    assert said.exit_code == result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert result.stderr == ""
    summary = json.loads((Path(where["report"]) / "summary.json").read_text("utf-8"))
    for key in ("verdict", "gates", "passed", "risks", "disclosures", "ledger", "model"):
        assert told[key] == summary[key]
    assert (told["released"], told["sigma"], told["epsilon"]) == (True, 10.0, 0.0)
    assert told["choice"]["how"] == "declared"
    assert told["folders"] == {
        "release": where["out"],
        "report": where["report"],
        "ledger": where["ledger"],
    }
    leaving = json.loads((Path(where["out"]) / "release.json").read_text("utf-8"))["leaves"]
    assert [item["name"] for item in told["items"]] == [item["name"] for item in leaving]
    # The terminal says the same of the same numbers.
    assert f"The noise σ = {told['sigma']:g} was declared in advance." in said.stdout
    for item in told["items"]:
        assert item["how"] in said.stdout
    for text in (*expected_of_gates(told), *(gate["text"] for gate in told["gates"])):
        assert text in said.stdout


def test_a_refused_release_says_so_and_leaves_nothing(stays):
    result, where = stays["refused"]
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["released"], told["passed"]) == (False, False)
    assert told["folders"] == {"report": where["report"]}
    assert not Path(where["out"]).exists()
    assert not Path(where["ledger"]).exists()
    gate = told["gates"][0]
    assert gate["enough"] > told["sigma"]
    assert result.stderr == f"over the limit {gate['name']}: {gate['text']}\n"


@pytest.mark.parametrize("which", ["audit", "release", "attack", "rounds"])
def test_every_key_is_documented(which, released, stays, attacked):
    page = "".join(file.read_text("utf-8") for file in DOCS)
    if which == "audit":
        told = AuditReport(released).summary()
    elif which == "release":
        told = json.loads(stays["json"][0].stdout)
    elif which == "attack":
        told = attacked.summary()
    else:
        told = make_report(passed=False).summary()
    assert f"`{told['schema']}`" in page
    found = set(keys(told))
    assert len(found) > 20
    assert {key for key in found if f"`{key}`" not in page} == set()
