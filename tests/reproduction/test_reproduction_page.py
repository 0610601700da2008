"""The page of reproductions: generated from the results, refused where they are not fit for it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import seepage as sp
from reproduction import EXPERIMENTS, Experiment, page
from reproduction.outcome import Quantity
from reproduction.page import main, write_page
from reproduction.reproducing import reproduce

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def results(fake, monkeypatch, tmp_path):
    monkeypatch.setattr(page, "EXPERIMENTS", {fake.name: fake})
    reproduce(fake.name, tmp_path / "results", quick=False, say=lambda line: None)
    return tmp_path / "results"


def test_the_page_shows_figure_words_and_numbers(fake, results, tmp_path):
    docs = tmp_path / "docs"
    text = write_page(results, docs).read_text()
    assert f"![A line from 0 to 1](reproduction/{fake.name}.png)" in text
    assert "The line rises." in text
    assert "Two \\*made-up\\* points." in text
    assert "| mean \\| η | 0.040 | 0.04050 | +0.00050 | yes |" in text
    assert "Of 1 printed numbers, 1 agree." in text
    assert f"[`{fake.name}`](#{fake.name})" in text
    assert f"\n## {fake.name}\n" in text
    copied = (docs / "reproduction" / f"{fake.name}.png").read_bytes()
    assert copied == (results / fake.name / "figure.png").read_bytes()


def test_a_long_table_with_nothing_to_compare_is_folded_up(fake, results, tmp_path):
    path = results / fake.name / "result.json"
    found = json.loads(path.read_text())
    found["quantities"] = [Quantity(f"η < {k}", k).to_json() for k in range(20)]
    path.write_text(json.dumps(found))
    text = write_page(results, tmp_path / "docs").read_text()
    assert "<details><summary>20 numbers</summary>" in text
    assert "<tr><td>η &lt; 7</td><td>7</td></tr>" in text


def test_the_same_results_give_the_same_page(results, tmp_path):
    first = write_page(results, tmp_path / "a").read_bytes()
    assert write_page(results, tmp_path / "b").read_bytes() == first


def test_a_figure_of_an_experiment_that_is_gone_is_removed(results, tmp_path):
    left = tmp_path / "docs" / "reproduction" / "gone.png"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"")
    write_page(results, tmp_path / "docs")
    assert not left.exists()


def test_without_any_result_there_is_no_page(fake, results, tmp_path):
    (results / fake.name / "result.json").unlink()
    with pytest.raises(sp.InputError, match="There are no results in"):
        write_page(results, tmp_path / "docs")
    assert not (tmp_path / "docs").exists()


def test_a_missing_result_is_named(fake, results, tmp_path, monkeypatch):
    other = Experiment("other-figure", "004", "Figure 9", "Another one")
    monkeypatch.setattr(page, "EXPERIMENTS", {fake.name: fake, other.name: other})
    text = write_page(results, tmp_path / "docs").read_text()
    assert "- `other-figure`: Another one (paper 004, Figure 9)" in text
    assert "reproduction/other-figure.png" not in text


def test_a_broken_result_is_refused(fake, results, tmp_path):
    (results / fake.name / "result.json").write_text("{")
    with pytest.raises(sp.InputError, match="is broken"):
        write_page(results, tmp_path / "docs")


def test_a_quick_result_is_refused(fake, results, tmp_path):
    path = results / fake.name / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quick": True}))
    with pytest.raises(sp.InputError, match="without --quick"):
        write_page(results, tmp_path / "docs")


def test_the_command(results, tmp_path, capsys):
    assert main([str(results), str(tmp_path / "docs")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'docs' / 'reproduction.md'}\n"
    assert main([str(tmp_path / "nowhere"), str(tmp_path / "docs")]) == 2
    assert capsys.readouterr().err.startswith("error: There are no results in ")
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_the_documentation_has_every_experiment():
    text = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\]\((reproduction/[^)]+\.png)\)", text)
    missing = re.findall(r"^- `([a-z0-9-]+)`: ", text, re.MULTILINE)
    shown = [Path(picture).stem for picture in pictures]
    assert shown == [name for name in EXPERIMENTS if name not in missing]
    assert set(shown) | set(missing) == set(EXPERIMENTS)
    for picture in pictures:
        assert (DOCS / picture).stat().st_size < 150_000
