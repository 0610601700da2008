"""The command line: what it prints, how it refuses, and that its help is light."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

import seepage
from coarse import point_below
from seepage.cli import app
from seepage.data.registry import DATA_SETS

pytestmark = pytest.mark.usefixtures("few_neighbours", "blank_figures")


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data" / "iwpc").mkdir(parents=True)
    (tmp_path / "data" / "iwpc" / "iwpc-scaled.csv").write_text("any content will do here")
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_version(run):
    result = run("--version")
    assert result.exit_code == 0
    assert result.output == f"seepage {seepage.__version__}\n"


def test_help_names_the_commands(run):
    result = run("--help")
    assert result.exit_code == 0
    for command in ("audit", "calibrate", "data", "demo"):
        assert command in result.output


def test_list(run):
    result = run("data", "list")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert set(lines) == {"NAME", *DATA_SETS}
    assert "  yes  " in lines["iwpc"]
    assert "MIT" in lines["iwpc"]
    assert "  no  " in lines["mnist"]
    assert "11.6 MB" in lines["mnist"]
    assert "  bundled  " in lines["iris"]


def test_where(run, tmp_path):
    result = run("data", "where")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == f"searched: {tmp_path / 'data'}"
    assert lines[1] == f"searched: {tmp_path / 'cache' / 'seepage' / 'data'} (does not exist)"
    assert f"iwpc: {tmp_path / 'data' / 'iwpc'}" in lines
    assert "mnist: not found" in lines
    assert "wine: comes with scikit-learn" in lines


def test_where_is_one_set_in_a_named_folder(run, tmp_path):
    result = run("data", "where", "iwpc", "--folder", str(tmp_path))
    assert result.output.splitlines() == [f"searched: {tmp_path}", "iwpc: not found"]


def test_fetch_what_is_there(run, tmp_path):
    result = run("data", "fetch", "iwpc")
    assert result.exit_code == 0
    assert result.output == f"iwpc was already in {tmp_path / 'data' / 'iwpc'}.\n"


def test_fetch_what_is_bundled(run):
    result = run("data", "fetch", "iris")
    assert result.exit_code == 0
    assert "nothing to fetch" in result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("data", "fetch", "mnst"), "did you mean 'mnist'"),
        (("data", "where", "mnst"), "did you mean 'mnist'"),
        (("data", "fetch", "lfw"), "add two files yourself"),
    ],
)
def test_bad_input_is_one_line_and_status_two(run, arguments, complaint):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert complaint in result.stderr


def test_demo_hands_its_folder_on(run, monkeypatch, tmp_path):
    asked = []
    stand_in = types.SimpleNamespace(run=lambda *given: asked.append(given))
    monkeypatch.setitem(sys.modules, "seepage.auditing.demo", stand_in)
    assert run("demo", "--out", str(tmp_path / "results")).exit_code == 0
    assert asked == [(tmp_path / "results", False)]


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from seepage.cli import main\n"
        "sys.argv = ['seepage', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as done:\n"
        "    assert not done.code, done.code\n"
        "heavy = ('numpy', 'sklearn', 'scipy', 'matplotlib', 'pyarrow', 'torch')\n"
        "sys.exit(', '.join(name for name in heavy if name in sys.modules) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A table of sixty people as CSV, with a name for every exit status of the audit."""
    import numpy as np

    rng = np.random.default_rng(0)
    age, town = rng.normal(50, 12, 60), rng.choice(["Aachen", "Bonn"], 60)
    ill = rng.random(60) < 1 / (1 + np.exp(-(age - 50) / 10))
    rows = [f"{a:.2f},{t},{'yes' if s else 'no'}" for a, t, s in zip(age, town, ill, strict=True)]
    path = tmp_path_factory.mktemp("table") / "people.csv"
    path.write_text("\n".join(["age,town,ill", *rows]) + "\n")
    return str(path)


AUDIT = ("--target", "ill", "--sensitive", "age", "--group", "town", "--sigma", "0.5")
QUICK = (*AUDIT, "--quick")  # where remedies do not matter


def test_audit_writes_a_report_and_tells(run, people, tmp_path):
    out = tmp_path / "report"
    result = run("audit", people, *AUDIT, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "'people.csv': a logistic model of 'ill' on 60 records" in result.stdout
    assert str(out / "report.html") in result.stdout
    assert result.stderr == ""
    assert (out / "report.html").is_file()
    assert json.loads((out / "summary.json").read_text())["source"] == "people.csv"


def test_json_is_all_that_is_printed(run, people, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("audit", people, *AUDIT, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    summary = json.loads(result.stdout)
    assert summary["records"]["count"] == 60
    assert not (tmp_path / "seepage-audit").exists()


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        (("--max-eta", "1000", "--min-mse", "1e-9", "--max-group-ratio", "1000"), 0),
        (("--max-eta", "1e-3"), 1),
        (("--min-mse", "1e6"), 1),
        (("--max-group-ratio", "1"), 1),
        (("--max-eta", "1000", "--min-mse", "1e6"), 1),
        (("--max-eta", "-1"), 2),
        (("--max-group-ratio", "0.5"), 2),
    ],
)
def test_gates_set_the_exit_status(run, people, limits, status):
    result = run("audit", people, *QUICK, "--json", *limits)
    assert result.exit_code == status, result.output
    if status == 2:
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
    else:
        assert json.loads(result.stdout)["passed"] is (status == 0)
        assert ("over the limit" in result.stderr) is (status == 1)


def test_offenders_are_named_by_row_and_never_by_value(run, people):
    result = run("audit", people, *QUICK, "--json", "--max-eta", "1e-3")
    assert "60 records (rows " in result.stderr
    rows = result.stderr.partition("(rows ")[2].partition(" and ")[0].split(", ")
    assert len(rows) == 10
    assert {int(row) for row in rows} <= set(range(60))
    ages = [line.split(",")[0] for line in Path(people).read_text().splitlines()[1:]]
    assert not any(age in result.output for age in ages)


def test_the_advice_aims_at_the_limit(run, people, tmp_path):
    limits = ("--max-eta", "0.01", "--min-mse", "1e6", "--verbose")
    result = run("audit", people, *AUDIT, *limits, "--out", str(tmp_path / "report"))
    assert result.exit_code == 1
    assert "OVER --max-eta: 60 records (rows " in result.stdout
    assert "no record leaks more than η = 0.001;" in result.stdout


def test_calibrate_prints_the_noise_and_its_cost(run, people):
    plain = run("calibrate", people, "--target", "ill", "--target-eta", "0.5")
    assert plain.exit_code == 0, plain.output
    found = json.loads(
        run("calibrate", people, "--target", "ill", "--target-eta", "0.5", "--json").stdout
    )
    assert plain.stdout.startswith(f"σ = {found['sigma']:.6g}\n")
    assert "error rate" in plain.stdout
    asked = ("--sigma", repr(found["sigma"]), "--json", "--quick", "--max-eta", "0.5")
    assert run("audit", people, "--target", "ill", *asked).exit_code == 0
    less = ("--sigma", repr(point_below(found["sigma"])), "--json", "--quick", "--max-eta", "0.5")
    assert run("audit", people, "--target", "ill", *less).exit_code == 1


def test_a_given_model_is_audited(run, people, tmp_path):
    import numpy as np

    from seepage.auditing.intake.files import read_file
    from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
    from seepage.glm import LogisticRegression

    table = TableInMemory(read_file(Path(people)))
    encoded = encode(table, plan_columns(table, "ill"), scale=False)
    model = LogisticRegression(l2=0.02, fit_intercept=True).fit(encoded.source.X, encoded.source.y)
    path = tmp_path / "model.json"

    def write(factor):
        path.write_text(
            json.dumps(
                {
                    "family": "logistic",
                    "coefficients": (factor * np.ravel(model.coef_)).tolist(),
                    "intercept": float(model.intercept_[0]),
                    "l2": 0.02,
                    "classes": ["no", "yes"],
                    "features": list(encoded.source.names),
                }
            )
        )

    write(1.0)
    given = ("--target", "ill", "--sigma", "0.1", "--json", "--quick")
    result = run("audit", people, *given, "--model-file", str(path))
    assert result.exit_code == 0, result.output
    fitted = run("audit", people, *given, "--no-scale", "--l2", "0.02")
    ours, theirs = json.loads(fitted.stdout), json.loads(result.stdout)
    assert theirs["records"]["eta"]["1"] == pytest.approx(ours["records"]["eta"]["1"], rel=1e-6)
    write(1.5)
    wrong = run("audit", people, *given, "--model-file", str(path))
    assert wrong.exit_code == 2
    assert "do not minimise" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--target", "il"), "did you mean 'ill'"),
        (("--target", "ill", "--sensitive", "aeg"), "did you mean 'age'"),
        (("--target", "ill", "--sigma", "1", "--target-eta", "1"), "not both"),
        (("--target", "ill", "--model", "linear"), "use --model logistic"),
        (("--target", "ill", "--max-group-ratio", "2"), "--group"),
        (("--target", "ill", "--sigma", "0"), "sigma must be"),
        (("--target", "ill", "--missing", "maybe"), "missing must be"),
    ],
)
def test_an_audit_that_makes_no_sense_is_one_line_and_status_two(run, people, arguments, complaint):
    result = run("audit", people, *arguments, "--json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert complaint in result.stderr


def test_public_records_give_the_noise_a_shape(run, people, tmp_path):
    lines = Path(people).read_text().splitlines()
    (tmp_path / "public.csv").write_text("\n".join(lines[:41]) + "\n")
    result = run("audit", people, *AUDIT, "--json", "--public", str(tmp_path / "public.csv"))
    assert result.exit_code == 0, result.output
    remedies = {r["name"]: r for r in json.loads(result.stdout)["remedies"]}
    assert remedies["shaped noise"]["public"] == 40
    assert "a model of the 40 public records" in remedies["shaped noise"]["text"]
    (tmp_path / "other.csv").write_text("age,ill\n50,yes\n40,no\n")
    result = run("audit", people, *AUDIT, "--json", "--public", str(tmp_path / "other.csv"))
    assert result.exit_code == 2
    assert "The public records have no column 'town'" in result.stderr


@pytest.mark.parametrize("name", ["none.csv", "none.parquet"])
def test_a_missing_file_is_status_two(run, tmp_path, name):
    result = run("audit", str(tmp_path / name), "--target", "ill")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: There is no file ")


def test_an_installed_package_says_where_the_papers_tables_are(run, tmp_path, monkeypatch):
    monkeypatch.setattr("seepage.cli.__file__", str(tmp_path / "site-packages/seepage/cli.py"))
    result = run("reproduce", "--list")
    assert result.exit_code == 2
    assert "not in the installed package: clone the repository" in result.stderr


def test_what_a_report_needs_is_loaded_beside_long_work(run, people, tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr("seepage.auditing.command.load_beside", lambda: loaded.append(True))
    out = str(tmp_path / "out")
    wrong = ("audit", people, "--target", "none", "--out", out)
    assert run(*wrong).exit_code == 2
    assert loaded == []
    monkeypatch.setattr("seepage.auditing.command._LONG", 10)
    assert run(*wrong).exit_code == 2
    assert loaded == [True]
    assert not (tmp_path / "out").exists()


def test_an_interruption_is_not_taken_for_a_failed_gate(run, people, monkeypatch, tmp_path):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("seepage.auditing.command.audit_table", interrupted)
    result = run("audit", people, *AUDIT, "--out", str(tmp_path / "report"))
    assert result.exit_code == 130
    assert not (tmp_path / "report").exists()


def test_a_reader_that_stops_listening_is_not_taken_for_a_failed_gate():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "seepage", "data", "list"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)  # noqa: S603
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ZeroDivisionError("of patient Jane Doe"), "seepage itself failed (ZeroDivisionError"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_a_failure_has_its_own_status_and_quotes_nothing(run, people, monkeypatch, failure, said):
    def fails(*arguments, **options):
        raise failure

    monkeypatch.setattr("seepage.auditing.command.audit_table", fails)
    result = run("audit", people, *AUDIT, "--json")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("failure: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Jane" not in result.stderr


def test_a_lost_cluster_is_a_failure_in_one_sentence(run, people, monkeypatch):
    errors = pytest.importorskip("distributed.comm.core")

    def lost(*arguments, **options):
        raise errors.CommClosedError("in <TLS  local=tls://10.0.0.1:1 remote=tls://10.0.0.2:2>")

    monkeypatch.setattr("seepage.auditing.command.audit_table", lost)
    result = run("audit", people, *AUDIT, "--json")
    assert result.exit_code == 3
    assert "The cluster was lost or failed (CommClosedError)" in result.stderr


@pytest.mark.parametrize(
    "noise", [("--sigma", "1e-300"), ("--target-eta", "1e300"), ("--sigma", "1e300")]
)
def test_noise_that_cannot_be_reckoned_with_is_refused(run, people, noise):
    result = run("audit", people, "--target", "ill", *noise, "--json")
    assert result.exit_code == 2
    assert "must be between" in result.stderr


def test_the_input_is_never_written_over(run, people, tmp_path):
    out = tmp_path / "out"
    assert run("audit", people, *QUICK, "--out", str(out)).exit_code == 0
    table = out / "leakage.parquet"
    before = table.read_bytes()
    result = run("audit", str(table), "--target", "eta", "--out", str(out))
    assert result.exit_code == 2
    assert "one contains the other" in result.stderr
    assert table.read_bytes() == before
    again = run("audit", people, *QUICK, "--out", str(out))
    assert again.exit_code == 0, again.output


def test_escape_sequences_in_file_names_are_shown_escaped(run, people, tmp_path):
    result = run("audit", str(tmp_path / "\x1b[31mred.csv"), "--target", "ill")
    assert result.exit_code == 2
    assert "\x1b" not in result.output
    assert "\\x1b[31mred.csv" in result.stderr
    out = tmp_path / "\x1b[31mreport"
    result = run("audit", people, *QUICK, "--out", str(out))
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "\\x1b[31mreport" in result.stdout


def test_values_are_shown_only_when_asked_and_with_a_warning(run, people, tmp_path):
    result = run("audit", people, *QUICK, "--show-values", "--out", str(tmp_path / "report"))
    assert result.exit_code == 0
    assert "do not share it" in result.stderr


def test_terminal_codes_in_names_do_not_reach_the_terminal(run, tmp_path):
    path = tmp_path / "hostile.csv"
    lines = ["\x1b[31mred\x1b[0m,=cmd()|y,ill"]
    lines += [f"{k % 7},{(k * k) % 11},{'yes' if k % 3 else 'no'}" for k in range(40)]
    path.write_text("\n".join(lines) + "\n")
    result = run("audit", str(path), "--target", "ill", "--out", str(tmp_path / "report"))
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
