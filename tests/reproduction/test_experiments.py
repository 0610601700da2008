"""The list of experiments: every name leads to a module, and listing them costs nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

import pytest

import seepage as sp
from reproduction import EXPERIMENTS, find_experiment, list_lines

EXPECTED = {
    "fil-table1",
    *(f"fil-figure{k}" for k in range(2, 8)),
    "fil-overlap",
    "fil-whole-procedure",
}


def test_fisher_information_loss_is_complete():
    assert {
        name for name, entry in EXPERIMENTS.items() if entry.paper == "Hannun et al. 2021"
    } >= EXPECTED


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_name_leads_to_a_module(name):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)
    module = import_module("reproduction." + name.replace("-", ".", 1).replace("-", "_"))
    assert callable(module.reproduce)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(sp.InputError, match=r"'fil-tabel1' \(did you mean 'fil-table1'\?\)"):
        find_experiment("fil-tabel1")


def test_the_list_names_everything_once():
    head, *lines = list_lines()
    assert head.split()[0] == "NAME"
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)
    assert all(entry.title in line for entry, line in zip(EXPERIMENTS.values(), lines, strict=True))


def test_listing_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from seepage.cli import main\n"
        "sys.argv = ['seepage', 'reproduce', '--list']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as done:\n"
        "    assert not done.code, done.code\n"
        "heavy = ('numpy', 'sklearn', 'scipy', 'matplotlib', 'torch')\n"
        "sys.exit(', '.join(name for name in heavy if name in sys.modules) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert "fil-table1" in done.stdout
