"""Audits by attack: what they find, how they say it, and what they refuse."""

from __future__ import annotations

import json
import stat
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.any_model import attack_audit
from seepage.auditing.any_model.attack_audit import KINDS, make_estimator
from seepage.auditing.any_model.command import run_attack_audit
from seepage.auditing.any_model.parts import numbers_learnt
from seepage.auditing.any_model.report import AttackReport, tell_risk
from seepage.auditing.any_model.structure import examine
from seepage.auditing.findings import FEW
from seepage.auditing.questions import Limits, Question
from seepage.auditing.report.rendering import render
from seepage.cli import app

RNG = np.random.default_rng(0)
X = np.round(RNG.standard_normal((160, 3)), 1)
Y = RNG.integers(0, 2, 160)


def by_name(model: object) -> dict[str, tuple[bool | None, int]]:
    found = examine(model, X, Y).risks
    return {risk.name: (risk.found, risk.records) for risk in found}


def test_leaves_are_counted_as_the_tree_has_them() -> None:
    tree = DecisionTreeClassifier(random_state=0).fit(X, Y)
    leaves = tree.apply(X)
    few = sum(int(np.sum(leaves == leaf)) < FEW for leaf in leaves)
    found = by_name(tree)
    assert found["leaves with few records"] == (True, few)
    right = tree.predict_proba(X)[np.arange(160), Y] == 1
    assert found["class disclosure"] == (True, int(right.sum()))
    wide = DecisionTreeClassifier(min_samples_leaf=FEW, random_state=0).fit(X, Y)
    assert by_name(wide)["leaves with few records"] == (False, 0)


def test_models_that_keep_records_are_told() -> None:
    assert by_name(KNeighborsClassifier().fit(X, Y))["records inside the model"] == (True, 160)
    machine = SVC().fit(X, Y)
    assert by_name(machine)["records inside the model"] == (True, len(machine.support_vectors_))


def test_what_does_not_apply_is_counted_and_says_why() -> None:
    names = np.where(Y == 1, "yes", "no")
    machine = SVC().fit(X, names)  # it predicts names, no probabilities
    words = {risk.name: risk for risk in examine(machine, X, names).risks}
    assert words["class disclosure"].found is None
    assert words["class disclosure"].reason == "The model states no probabilities."
    fewest = int(min(np.unique(machine.predict(X), return_counts=True)[1]))
    assert words["answers shared by few"].value == fewest
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two steps do not converge
        network = MLPClassifier((4,), max_iter=2, random_state=0).fit(X, Y)
    smooth = {risk.name: risk for risk in examine(network, X, Y).risks}["answers shared by few"]
    assert (smooth.found, smooth.value) == (None, 1.0)  # a number, but no finding
    assert "so many different predictions, few records share one" in smooth.reason
    assert numbers_learnt(network, X) == 3 * 4 + 4 + 4 * 1 + 1
    assert by_name(network)["degrees of freedom"] == (False, 0)


def test_rows_and_labels_of_two_lengths_are_refused() -> None:
    with pytest.raises(sp.InputError, match="X has 160 rows, but y has 159 labels; pass one"):
        sp.audit_estimator(DecisionTreeClassifier(), X, Y[:-1])


def test_some_of_many_records_are_attacked_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attack_audit, "MOST_RECORDS", 60)
    audit = sp.audit_estimator(DecisionTreeClassifier(random_state=0), X, Y, shadows=4)
    assert len(np.unique(audit.attacked)) == len(audit.attacked) == 60
    assert audit.attacked.max() < 160
    assert audit.records == 160
    assert audit.steps[0].startswith("The attack used 60 of the 160 records,")


@pytest.mark.parametrize(
    ("low", "many", "tone", "label"),
    [
        (0.61, 0.0, "bad", "Members can be recognised"),
        (0.45, 0.06, "bad", "Members can be recognised"),
        (0.51, 0.0, "caution", "Some members can be recognised"),
        (0.49, 0.0, "caution", "No attack succeeded"),  # but the structure tells
    ],
)
def test_the_verdict_follows_the_lower_ends(
    low: float, many: float, tone: str, label: str, tree_audit: attack_audit.AttackAudit
) -> None:
    rate = SimpleNamespace(rate=0.1, interval=SimpleNamespace(low=many, high=0.2))
    best = SimpleNamespace(
        auc=0.65,
        method="LiRA",
        interval=SimpleNamespace(low=low, high=0.7),
        tpr=lambda fpr: rate,
    )
    verdict = AttackReport(replace(tree_audit, attacks=(best,), guesses=())).verdict
    assert (verdict.tone, verdict.label) == (tone, label)
    assert f"(95 % CI {100 * low:.0f} to 70 %;" in verdict.sentences[0]


@pytest.fixture(scope="module")
def tree_audit() -> attack_audit.AttackAudit:
    return sp.audit_estimator(DecisionTreeClassifier(random_state=0), X, Y, shadows=4)


def test_categories_of_one_person_are_counted() -> None:
    table = np.zeros((30, 2))
    table[4, 0] = 1.0
    table[:, 1] = np.arange(30) % 3
    risks = examine(DecisionTreeClassifier().fit(table, Y[:30]), table, Y[:30]).risks
    single = next(risk for risk in risks if risk.name == "categories held by one row")
    assert (single.found, single.records) == (True, 1)


@pytest.mark.slow
def test_a_tree_that_learns_by_heart_is_told_apart_and_says_so(tmp_path: Path) -> None:
    audit = sp.audit_estimator(DecisionTreeClassifier(random_state=0), X, Y, shadows=8)
    assert audit.strongest.auc == max(attack.auc for attack in audit.attacks)
    assert [attack.method for attack in audit.attacks] == [
        "LiRA, online",
        "LiRA, offline",
        "RMIA, online",
        "RMIA, offline",
    ]
    verdict = AttackReport(audit).verdict
    assert verdict.tone == "bad"
    assert "chance: 50 %" in verdict.sentences[0]
    assert "lower bounds on leakage" in verdict.sentences[-1]
    page = AttackReport(audit).write(tmp_path / "report")
    assert "What did attacks achieve?" in page.read_text("utf-8")
    for file in page.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0
    summary = json.loads((page.parent / "summary.json").read_text("utf-8"))
    assert summary == json.loads(json.dumps(AttackReport(audit).summary()))
    assert summary["attacks"][0]["kind"] == "attack"


def test_a_hostile_name_stays_text(tmp_path: Path) -> None:
    audit = sp.audit_estimator(
        DecisionTreeClassifier(), X, Y, shadows=4, source="<script>alert(1)</script>"
    )
    page = AttackReport(audit).write(tmp_path / "report").read_text("utf-8")
    assert "<script>alert" not in page


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [True, False])
def test_every_kind_can_be_made(kind: str, classes: bool) -> None:
    estimator = make_estimator(kind, classes)
    assert hasattr(estimator, "fit")
    assert type(estimator).__name__.endswith(
        ("Classifier", "SVC") if classes else ("Regressor", "SVR")
    )


@pytest.mark.slow
def test_the_command_line_audits_by_attack_and_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    lines = ["a,b,c,y"]
    lines += [f"{a},{b},{c},{'yes' if y else 'no'}" for (a, b, c), y in zip(X, Y, strict=True)]
    table = tmp_path / "people.csv"
    table.write_text("\n".join(lines) + "\n")
    out = tmp_path / "report"
    command = ["audit", str(table), "--target", "y", "--model-kind", "tree", "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "member vs non-member" in done.output
    assert (out / "report.html").exists()
    for extra, words in (
        (["--sigma", "1"], "applies only to linear models"),
        (["--show-values"], "--show-values applies only to linear models"),
        (
            ["--max-eta", "1"],
            "--max-eta applies only to linear models, because attacks do not measure it",
        ),
    ):
        refused = CliRunner().invoke(app, [*command, *extra])
        assert refused.exit_code == 2
        assert words in refused.output
    plan = tmp_path / "plan.toml"
    kinds = dict.fromkeys("abc", "numeric") | {"y": "categorical"}
    plan.write_text("[columns]\n" + "".join(f'"{k}" = "{v}"\n' for k, v in kinds.items()))
    planned = [*command[:6], "--plan", str(plan), "--json"]
    told = CliRunner().invoke(app, planned)
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["model"]["records"] == 160
    plan.write_text(plan.read_text().replace('"a"', '"d"'))
    refused = CliRunner().invoke(app, planned)
    assert refused.exit_code == 2
    assert "The plan lists column 'd', which is not in the table" in refused.output
    unnamed = CliRunner().invoke(app, [*command[:2], *command[4:]])
    assert unnamed.exit_code == 2
    assert "Which column does the model predict?" in unnamed.output
    wrong = CliRunner().invoke(app, [*command[:5], "woods", *command[6:]])
    assert wrong.exit_code == 2
    assert "There is no model kind" in wrong.output


def test_without_a_folder_the_answer_is_printed_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["a,b,y", *(f"{a},{b},{y}" for (a, b, _), y in zip(X[:60], Y, strict=False))]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    question = Question(table=tmp_path / "people.csv", target="y")
    run_attack_audit(question, "tree", Limits(), out=None, as_json=False)
    said = capsys.readouterr().out
    assert "on 60 records." in said
    assert "50 %, chance" in said
    assert "Report:" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["people.csv"]


def test_what_was_not_found_is_said_in_a_sentence_of_its_own() -> None:
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.standard_normal(200), rng.integers(0, 2, 200)])
    y = (table[:, 0] + rng.standard_normal(200) > 0).astype(int)
    tree = DecisionTreeClassifier(min_samples_leaf=40).fit(table, y)
    risks = examine(tree, table, y).risks
    smallest = min(np.unique(tree.apply(table), return_counts=True)[1])
    texts = {risk.name: tell_risk(risk) for risk in risks if not risk.found}
    assert texts["leaves with few records"] == (
        f"Every leaf of the tree has at least 10 records; the smallest has {smallest}."
    )
    assert texts["class disclosure"].startswith("For no record does the model state")
    assert texts["categories held by one row"] == ("Every category occurs in at least two records.")
    table[7, 1] = 5.0
    alone = examine(tree.fit(table, y), table, y).risks[-1]
    assert tell_risk(alone).startswith("1 of 200 records has a category that no other record has")


def test_intervals_of_one_column_say_whether_they_are_for_all_columns(
    tree_audit: attack_audit.AttackAudit, tmp_path: Path
) -> None:
    most = tree_audit.most_guessed
    assert most is not None
    assert len(tree_audit.guesses) > 1
    report = AttackReport(tree_audit)
    page = " ".join(report.write(tmp_path / "report").read_text("utf-8").split())
    alone, every = (
        "difference (95 % CI of each column alone)",
        "percentage points (95 % CI, simultaneous for all columns)",
    )
    assert page.count(alone) == page.count(every) == 1
    screens = [
        render(report.screen, verdict=report.verdict, page=None, **report.about() | {"verbose": v})
        for v in (False, True)
    ]
    brief, whole = (" ".join(screen.split()) for screen in screens)
    assert "The interval of the guess is simultaneous for all columns." in brief
    assert "(difference with the 95 % interval of each column alone)" in whole
