"""The command line: what it prints, how it refuses, and that its help is light."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
from typer.testing import CliRunner

import seepage
from seepage.cli import app
from seepage.data.registry import DATA_SETS


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
    assert "data" in result.output
    assert "demo" in result.output


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
        (("data", "fetch", "lfw"), "put two files there yourself"),
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
    stand_in = types.SimpleNamespace(run=asked.append)
    monkeypatch.setitem(sys.modules, "seepage.demo", stand_in)
    assert run("demo", "--out", str(tmp_path / "results")).exit_code == 0
    assert asked == [tmp_path / "results"]


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
