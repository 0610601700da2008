"""``seepage layers``: from a recording and what is known of clients to an answer and a status."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from recordings import NODES, make_recording, make_report
from seepage.auditing.rounds.command import _max_bits
from seepage.cli import app
from seepage.layers.federated.stored_recordings import save_gradients


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    save_gradients(make_recording(), folder / "updates.npz")
    save_gradients(make_recording(), folder / "updates.safetensors")
    lines = [f"{node},{'yes' if k % 2 else 'no'},{k}" for k, node in enumerate(NODES)]
    (folder / "clients.csv").write_text("\n".join(["node,glasses,number", *lines]))
    return folder


def run(folder, *arguments, recording="updates.npz", known="clients.csv", column="glasses"):
    named = ["--property", str(folder / known), "--column", column, "--family", "logistic"]
    return CliRunner().invoke(app, ["layers", str(folder / recording), *named, *arguments])


@pytest.mark.slow
@pytest.mark.parametrize("recording", ["updates.npz", "updates.safetensors"])
def test_an_answer_and_a_report(folder, tmp_path, recording):
    result = run(folder, "--out", str(tmp_path / "out"), recording=recording)
    assert result.exit_code == 0, result.output
    assert "1 layer of 4 reveals “glasses”, the first after round 1" in result.output
    assert "bn1.buffers" in result.output
    assert "Besides the network, clients sent “num-examples” and “loss”" in result.output
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.slow
def test_gates_and_json(folder):
    result = run(folder, "--json", "--max-bits", "0.2")
    assert result.exit_code == 1
    summary = json.loads(result.stdout)
    assert summary["gates"][0]["name"] == "--max-bits"
    assert summary["passed"] is False
    assert "--max-bits: The largest leakage is that of a whole update, 0.9" in result.stderr
    assert run(folder, "--json", "--max-bits", "1").exit_code == 0


def test_without_a_report_or_advice_neither_is_spoken_of(capsys):
    make_report(found=False, seed=3).tell(None, as_json=False)
    said = capsys.readouterr().out
    assert "No layer reveals" in said
    assert "What would help" not in said
    assert "Report:" not in said


@pytest.mark.parametrize(
    ("bits", "layer", "where"),
    [
        (0.1, "bn1.buffers", "the layer 'bn1.buffers'"),
        (0.999, "all layers", "a whole update"),
    ],
)
def test_the_gate_names_the_layer_or_the_whole_update(bits, layer, where):
    audit = make_report().audit
    whole, *others = audit.layers.remedies
    layers = replace(audit.layers, remedies=(replace(whole, value=bits), *others))
    gate = _max_bits(replace(audit, layers=layers), 2.0)
    assert gate.where == layer
    assert gate.passed
    assert gate.measured == max(bits, audit.layers.v_information.values.max())
    ((_, told),) = replace(make_report(), gates=(gate,)).verdict.gates
    bits = f"{gate.measured:.3g} bits (95 % CI {max(gate.low, 0):.3g} to {gate.high:.3g})"
    assert told == f"The largest leakage is that of {where}, {bits}, within the limit of 2."


@pytest.mark.slow
def test_the_gate_of_the_attack(folder):
    result = run(folder, "--json", "--max-auc", "0.7", "--max-bits", "1")
    assert result.exit_code == 1
    bits, area = json.loads(result.stdout)["gates"]
    assert bits["passed"]
    assert not area["passed"]
    assert (area["name"], area["limit"], area["measured"]) == ("--max-auc", 0.7, 1.0)
    assert result.stderr.startswith(
        "over the limit --max-auc: Property inference works best on the "
    )
    assert (area["where"], area["high"]) == ("bn1.buffers", 1.0)
    assert 0.6 < area["low"] < 0.9  # five clients a side, whose updates are hardly alike
    assert f"layer 'bn1.buffers': an AUC of 1.000 ({area['low']:.3f} to 1.000)" in result.stderr
    nothing = "node,glasses\n" + "".join(f"{n},{'yny'[k % 3]}\n" for k, n in enumerate(NODES))
    (folder / "nothing.csv").write_text(nothing)
    result = run(folder, "--json", "--max-auc", "0.98", known="nothing.csv")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["gates"][0]["measured"] < 0.95


@pytest.mark.parametrize("limit", ["0.5", "1", "nan"])
def test_an_area_that_means_nothing_is_no_limit(folder, limit):
    result = run(folder, "--json", "--max-auc", limit)
    assert result.exit_code == 2
    assert f"--max-auc must be an area above 0.5 (chance) and below 1, not {limit}" in result.stderr


@pytest.mark.slow
def test_values_are_shown_when_asked_with_a_warning(folder, tmp_path):
    result = run(folder, "--show-values", "--out", str(tmp_path / "out"))
    assert "warning: the report shows the property of each client" in result.stderr
    assert (tmp_path / "out" / "report.html").read_text().count(">yes</span>") == 5


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"recording": "none.npz"}, "error: There is no file"),
        ({"recording": "clients.csv"}, "does not contain recorded gradients"),
        ({"known": "none.csv"}, "error: There is no file"),
        ({"column": "number"}, "has 10 values among 10 clients; group the values into classes"),
        ({"column": "glass"}, "did you mean 'glasses'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(folder, changes, complaint):
    result = run(folder, "--json", **changes)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_clients_that_nothing_is_known_of(folder):
    (folder / "few.csv").write_text(f"node,glasses\n{NODES[0]},yes\n5,no\n")
    result = run(folder, "--json", known="few.csv")
    assert result.exit_code == 2
    assert "not given for 9 of the 10 clients in the recording" in result.stderr
    (folder / "same.csv").write_text("node,glasses\n" + "".join(f"{n},no\n" for n in NODES))
    assert "nothing to infer" in run(folder, "--json", known="same.csv").stderr
    assert "--max-bits must be" in run(folder, "--json", "--max-bits", "-1").stderr
