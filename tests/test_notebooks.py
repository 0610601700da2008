"""Notebooks are the pages they are made of, and have been run; the slow test runs them again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason="needs jupytext")
nbformat = pytest.importorskip("nbformat")

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from make_notebooks import NOTEBOOKS, notebook, run  # noqa: E402


def kept(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def sources(made):
    return [(cell.cell_type, cell.source) for cell in made.cells]


def printed(made):
    return [
        "".join(output.get("text", "") for output in cell.outputs if output.get("name") == "stdout")
        for cell in made.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_its_page(name):
    assert sources(kept(name)) == sources(notebook(ROOT / NOTEBOOKS[name]))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_was_run_without_errors(name):
    code = [cell for cell in kept(name).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error"]
    assert any(printed(kept(name)))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_shows_the_figures_of_its_page(name):
    drawn = [
        output
        for cell in kept(name).cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(drawn) == (ROOT / NOTEBOOKS[name]).read_text("utf-8").count("savefig(")


@pytest.mark.minutes
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_again(name):
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    again = run(notebook(ROOT / NOTEBOOKS[name]))
    assert len(printed(again)) == len(printed(kept(name)))
