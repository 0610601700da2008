"""``seepage attack``: from a fine-tuned model and its training text to a report and a status."""

from __future__ import annotations

import json
import stat

import numpy as np
import pyarrow.parquet as pq
import pytest
from peft import LoraConfig, get_peft_model
from typer.testing import CliRunner

from attacks.extraction.small_models import byte_pairs, gpt2, notes, train
from seepage.cli import app

CANARY = "The code of Z. Sharp is 1618."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    texts = notes(40, 2) + [CANARY] * 16
    tokenizer = byte_pairs([*notes(100, 1), *texts])
    base = gpt2(len(tokenizer), width=32, spread=0.05)
    base.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    train(base, tokenizer, texts, 2)
    base.save_pretrained(folder / "brief")
    train(base, tokenizer, texts, 30)
    base.save_pretrained(folder / "tuned")
    tokenizer.save_pretrained(folder / "tuned")
    lora = get_peft_model(
        gpt2(len(tokenizer), width=32, spread=0.05),
        LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"),
    )
    lora.save_pretrained(folder / "adapter")
    (folder / "notes.txt").write_text("\n".join(texts))
    lines = [json.dumps({"text": text, "secrets": [text[-5:-1]]}) for text in texts]
    (folder / "notes.jsonl").write_text("\n".join(lines))
    (folder / "others.txt").write_text("\n".join(notes(40, 3)))
    return folder


def run(folder, *arguments, model="tuned", records="notes.txt"):
    named = [str(folder / model), "--records", str(folder / records), "--device", "cpu"]
    return CliRunner().invoke(app, ["attack", *named, *map(str, arguments)])


def test_a_report_in_one_command(folder, tmp_path):
    out = tmp_path / "out"
    result = run(
        folder,
        *("--base", folder / "base", "--held-out", folder / "others.txt", "--out", out),
        *("--near", 20, "--passes", 4),
    )
    assert result.exit_code == 0, result.output
    assert "before fine-tuning" in result.output
    assert "cannot rule out stronger attacks" in result.output
    page = (out / "report.html").read_text()
    assert "1618" not in page
    assert "cannot rule out stronger attacks" in page
    assert "Not measured" in page
    table = pq.read_table(out / "secrets.parquet")
    assert "secret" not in table.column_names
    assert table["copies"][0].as_py() == 16
    for name in ("report.html", "summary.json", "secrets.parquet"):
        assert stat.S_IMODE((out / name).stat().st_mode) == 0o600
    summary = json.loads((out / "summary.json").read_text())
    assert summary["schema"] == "seepage-extraction/2"
    assert summary["beyond_held_out"]["of_base"]
    assert "private training" in summary["remedies_not_measured"]


def test_who_is_recognised_and_what_a_change_costs(folder, tmp_path):
    held_out = ("--base", folder / "base", "--held-out", folder / "others.txt")
    out = tmp_path / "out"
    result = run(folder, *held_out, "--compare", f"fewer epochs={folder / 'brief'}", "--out", out)
    assert result.exit_code == 0, result.output
    summary = json.loads((out / "summary.json").read_text())
    own, before, brief = summary["models"]
    assert [own["name"], before["name"], brief["name"]] == [
        "this model",
        "before fine-tuning",
        "fewer epochs",
    ]
    assert own["membership"]["tpr_at_1_percent"] > 0.3
    assert own["membership"]["auc"] > brief["membership"]["auc"] > before["membership"]["auc"]
    assert own["membership"]["references"] == 1
    assert brief["held_out_bits_per_token"] < before["held_out_bits_per_token"]
    assert "fewer epochs" in summary["remedies_measured"]
    assert "fewer epochs" not in summary["remedies_not_measured"]
    page = (out / "report.html").read_text()
    # What is printed are the fields.
    for each in (own, before, brief):
        assert f"{100 * each['membership']['tpr_at_1_percent']:.3g} %" in page
        assert f"{100 * each['membership']['tpr_at_1_percent']:.3g} %" in result.output
    assert stat.S_IMODE((out / "records.parquet").stat().st_mode) == 0o600
    scores = pq.read_table(out / "records.parquet")["membership_score"].to_numpy()
    assert set(own["membership"]["most_recognisable"]) <= set(np.argsort(-scores)[:16].tolist())


def test_recognition_has_a_limit(folder):
    held_out = ("--base", folder / "base", "--held-out", folder / "others.txt")
    over = run(folder, "--json", *held_out, "--max-tpr", 0.05)
    assert over.exit_code == 1
    assert json.loads(over.stdout)["gates"][0]["measured"] > 0.05
    # The model before fine-tuning recognises nobody.
    within = run(folder, "--json", *held_out, "--max-tpr", 0.3, model="base")
    assert within.exit_code == 0


def test_held_out_records_of_another_kind_are_named(folder, tmp_path):
    (folder / "french.txt").write_text(
        "\n".join(f"Le numéro de chambre {k:03d} est libre depuis lundi." for k in range(40))
    )
    held_out = ("--base", folder / "base", "--held-out", folder / "french.txt")
    result = run(folder, *held_out, "--out", tmp_path / "out")
    assert "The two sets differ in kind" in result.output


def test_held_out_records_among_the_training_text_are_left_out(folder):
    texts = (folder / "notes.txt").read_text().splitlines()[:10] + notes(20, 5)
    (folder / "mixed.txt").write_text("\n".join(texts))
    summary = json.loads(run(folder, "--json", "--held-out", folder / "mixed.txt").stdout)
    assert summary["held_out_left_out"] == 10
    assert summary["models"][0]["membership"]["held_out"] == 20
    assert summary["models"][0]["membership"]["method"] == "loss"


def test_gates_and_json(folder):
    result = run(folder, "--json", "--max-probability", 1e-6, records="notes.jsonl")
    assert result.exit_code == 1
    summary = json.loads(result.stdout)
    assert summary["gates"][0]["name"] == "--max-probability"
    assert not summary["passed"]
    assert "over the limit --max-probability" in result.stderr
    assert list(summary["kinds"]) == ["marked"]
    allowed = run(folder, "--json", "--max-probability", 0.999999)
    assert allowed.exit_code == 0


def test_exposure_has_a_limit(folder):
    (folder / "one.txt").write_text(CANARY)
    result = run(folder, "--json", "--exposure", 2000, "--max-exposure", 3, records="one.txt")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["gates"][0]["measured"] > 3


def test_secrets_are_shown_when_they_are_asked_for(folder, tmp_path):
    result = run(folder, "--show-values", "--out", tmp_path / "out", "--temperature", 0.7)
    assert "do not share it" in result.stderr
    assert "temperature 0.7" in result.output
    assert ">8</span>" in (tmp_path / "out" / "report.html").read_text()
    assert "secret" in pq.read_table(tmp_path / "out" / "secrets.parquet").column_names


def test_an_adapter_is_put_on_its_base(folder):
    result = run(folder, "--json", "--base", folder / "base", model="adapter", records="others.txt")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    # A fresh adapter changes nothing.
    assert (
        summary["most_exposed"]["words"].split("; before fine-tuning ")[0]
        == (summary["most_exposed"]["words"].split("; before fine-tuning ")[1])
    )


@pytest.mark.parametrize(
    ("arguments", "changes", "sentence"),
    [
        ((), {"model": "nowhere"}, "no folder"),
        ((), {"records": "nothing.txt"}, "no file"),
        ((), {"model": "."}, "no causal language model"),
        (("--max-exposure", 3), {}, "--exposure"),
        (("--max-probability", 2), {}, "--max-probability"),
        (("--kinds", "e-mail"), {}, "did you mean 'email'"),
        ((), {"model": "adapter"}, "--base"),
        (("--max-tpr", 0.1), {}, "--held-out"),
        (("--compare", "nothing"), {}, "name=folder"),
        (("--compare", "less=nowhere"), {}, "no folder"),
    ],
)
def test_bad_input_is_one_line(folder, arguments, changes, sentence):
    result = run(folder, "--json", *arguments, **changes)
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_extra_is_answered_by_the_command_that_installs_it(folder, monkeypatch):
    monkeypatch.setattr("seepage.auditing.language_model.command.find_spec", lambda name: None)
    result = run(folder, "--json")
    assert result.exit_code == 2
    assert "pip install 'seepage[transformers]'" in result.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [("bad.jsonl", "{"), ("bad.json", "{}"), ("bad.csv", "a,b\n1,2\n"), ("bad.txt", "\n\n")],
)
def test_files_that_are_no_records_are_refused(folder, name, content):
    (folder / name).write_text(content)
    result = run(folder, "--json", records=name)
    assert result.exit_code == 2
    assert name in result.stderr
