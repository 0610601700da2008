"""The pages of reproductions: generated from the results, refused where they are not fit for it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import seepage as sp
from reproduction import EXPERIMENTS, PAPERS, Experiment, page
from reproduction.claims import CLAIMS
from reproduction.outcome import Quantity
from reproduction.page import main, write_pages
from reproduction.reproducing import reproduce

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = DOCS / "reproduction"
CODE = "`reproduction/page.py`"  # a computation, to be named in reasons
LINKED = f"[{CODE}](../../reproduction/page.py)"


@pytest.fixture
def results(fake, monkeypatch, tmp_path):
    monkeypatch.setattr(page, "EXPERIMENTS", {fake.name: fake})
    reproduce(fake.name, tmp_path / "results", quick=False, say=lambda line: None)
    return tmp_path / "results"


def change(results, fake, quantities):
    """Put other quantities into the one result there is."""
    path = results / fake.name / "result.json"
    found = json.loads(path.read_text())
    found["quantities"] = [quantity.to_json() for quantity in quantities]
    path.write_text(json.dumps(found))


def test_the_pages_show_figure_words_and_numbers(fake, results, tmp_path):
    docs = tmp_path / "docs"
    index = write_pages(results, docs)
    text = (docs / "reproduction" / "fake.md").read_text()
    assert f"![A line from 0 to 1]({fake.name}.png)" in text
    assert "The line rises." in text
    assert "Two \\*made-up\\* points." in text
    assert "|mean \\| η|0.040 / 0.04050|" in text
    assert "|trials|" not in text
    assert f"[numbers]({fake.name}.json)" in text
    assert f"\n## {fake.name}\n" in text
    assert PAPERS["Hannun et al. 2021"].title in text
    assert "Of 1 printed numbers, 1 agrees." in text
    assert "Of 1 printed numbers, 1 agrees." in index.read_text()
    assert f"[`{fake.name}`](fake.md#{fake.name})" in index.read_text()
    row = "|Hannun et al. 2021: [Fisher information loss](fake.md)|1|1|0|0|0|0|0|"
    assert row in index.read_text()
    copied = (docs / "reproduction" / f"{fake.name}.png").read_bytes()
    assert copied == (results / fake.name / "figure.png").read_bytes()


def test_what_made_kept_results_is_linked(fake, results, tmp_path):
    path = results / fake.name / "result.json"
    found = json.loads(path.read_text())
    assert found["kept"] == []
    line = "some.json: `python -m maker --only 1<2`; commit abc; a machine."
    path.write_text(json.dumps(found | {"kept": [line]}))
    write_pages(results, tmp_path / "docs")
    text = (tmp_path / "docs" / "reproduction" / "fake.md").read_text()
    assert f"Based on [kept results]({fake.name}.json)." in text


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ({}, "Red. Two \\*made-up\\* points. Blue."),
        ({"a": "Red. Two *made-up* points. Blue."}, "As for [a](#a)."),
        ({"a": "Green.", "b": "Blue. Red."}, "Two \\*made-up\\* points. Otherwise as for [b](#b)."),
        ({"a": "Red. Green."}, "Red. Two \\*made-up\\* points. Blue."),
    ],
    ids=["first", "same", "more than an earlier one", "an earlier one has more"],
)
def test_a_setting_repeats_nothing_of_an_earlier_one(before, shown):
    assert page._setting("Red. Two *made-up* points. Blue.", before) == shown


def test_reasons_stand_under_the_table_each_once(fake, results, tmp_path):
    other = "The data are not at hand."
    change(
        results,
        fake,
        [
            Quantity("a", 1.0, "2", f"It was *cut off* ({CODE})."),
            Quantity("b", 3.0, "3", "Never shown."),
            Quantity("c", None, "4", other),
            Quantity("d", 5.0, "6", f"It was *cut off* ({CODE})."),
        ],
    )
    index = write_pages(results, tmp_path / "docs")
    text = (index.parent / "fake.md").read_text()
    assert "|a|2 / 1 (1)|\n|b|3 / 3|" in text
    assert "|c|4 / – (2)|\n|d|6 / 5 (1)|" in text
    assert (
        f"\n1. Differs. It was \\*cut off\\* ({LINKED}).\n2. Not available here. The data" in text
    )
    assert "Never shown." not in text
    whole = "Of 4 printed numbers, 1 agrees; 2 differ, 1 not available here."
    assert whole in index.read_text()


def test_kinds_and_undecided_numbers_are_counted_and_shown(fake, results, tmp_path):
    change(
        results,
        fake,
        [
            Quantity("records", 7, "7", kind="count"),
            Quantity("a", 1.0, "1"),
            Quantity("b", 2.0, "3", f"No split is stated, {CODE}.", comparable=False),
            Quantity("c", 1.0, "1", f"0.9 ± 0.1 against 0.8 ± 0.1, {CODE}.", tied=True),
        ],
    )
    index = write_pages(results, tmp_path / "docs")
    text = (index.parent / "fake.md").read_text()
    assert "|records|7 / 7, count|\n|a|1 / 1|\n|b|3 / 2 (1)|\n|c|1 / 1 (2)|" in text
    assert f"\n1. Undecided. No split is stated, {LINKED}.\n2. Undecided. 0.9 ± 0.1 against" in text
    assert "Of 4 printed numbers, 2 agree (1 result, 1 count); 2 undecided." in text
    assert "(fake.md)|4|1|1|0|0|2|0|" in index.read_text()


def test_a_number_that_differs_without_a_reason_is_refused(fake, results, tmp_path):
    change(results, fake, [Quantity("mean η", 0.5, "0.7")])
    with pytest.raises(
        sp.InputError, match=r"'mean η' of .* where the paper prints 0\.7, and no comp"
    ):
        write_pages(results, tmp_path / "docs")
    assert not (tmp_path / "docs").exists()


def test_the_same_results_give_the_same_pages(results, tmp_path):
    for folder in ("a", "b"):
        write_pages(results, tmp_path / folder)
    for path in (tmp_path / "a" / "reproduction").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "reproduction" / path.name).read_bytes()


def test_times_versions_and_last_digits_change_no_file(fake, results, tmp_path):
    """Another machine, or another moment, leaves the pages as they are; another number does not."""
    home = write_pages(results, tmp_path / "docs").parent
    path = results / fake.name / "result.json"
    made = json.loads(path.read_text())
    for share, changes in ((1e-9, set()), (1e-5, {f"{fake.name}.json"})):
        before = {file.name: file.read_bytes() for file in home.iterdir()}
        found = json.loads(json.dumps(made)) | {"seconds": 1e3, "versions": {"seepage": "2"}}
        found["quantities"][0]["measured"] *= 1 - share
        path.write_text(json.dumps(found))
        write_pages(results, tmp_path / "docs")
        assert {name for name in before if (home / name).read_bytes() != before[name]} == changes
    assert json.loads((home / f"{fake.name}.json").read_text())["seconds"] == 1e3


def test_what_is_left_of_an_experiment_that_is_gone_is_removed(results, tmp_path):
    home = tmp_path / "docs" / "reproduction"
    home.mkdir(parents=True)
    left = [home / "gone.png", home / "gone.md"]
    for path in left:
        path.write_bytes(b"")
    write_pages(results, tmp_path / "docs")
    assert not any(path.exists() for path in left)


def test_without_any_result_there_is_no_page(fake, results, tmp_path):
    (results / fake.name / "result.json").unlink()
    with pytest.raises(sp.InputError, match="There are no results in"):
        write_pages(results, tmp_path / "docs")
    assert not (tmp_path / "docs").exists()


def test_a_missing_result_is_named(fake, results, tmp_path, monkeypatch):
    other = Experiment("other-figure", "Guo et al. 2022", "Figure 9", "Another one")
    monkeypatch.setattr(page, "EXPERIMENTS", {fake.name: fake, other.name: other})
    text = write_pages(results, tmp_path / "docs").read_text()
    assert "- `other-figure`: Another one (Guo et al. 2022, Figure 9)" in text
    assert "other-figure.png" not in text


def test_a_broken_result_is_refused(fake, results, tmp_path):
    (results / fake.name / "result.json").write_text("{")
    with pytest.raises(sp.InputError, match="is broken"):
        write_pages(results, tmp_path / "docs")


def test_a_quick_result_is_refused(fake, results, tmp_path):
    path = results / fake.name / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quick": True}))
    with pytest.raises(sp.InputError, match="without --quick"):
        write_pages(results, tmp_path / "docs")


def test_the_command(results, tmp_path, capsys):
    assert main([str(results), str(tmp_path / "docs")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'docs' / 'reproduction' / 'index.md'}\n"
    assert main([str(tmp_path / "nowhere"), str(tmp_path / "docs")]) == 2
    assert capsys.readouterr().err.startswith("error: There are no results in ")
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_the_documentation_has_every_experiment():
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    missing = re.findall(r"^- `([a-z0-9-]+)`: ", index, re.MULTILINE)
    shown = []
    for page_name in dict.fromkeys(experiment.page for experiment in EXPERIMENTS.values()):
        text = (PAGES / f"{page_name}.md").read_text(encoding="utf-8")
        own = re.findall(r"\]\(([^)]+)\.png\)", text)
        assert own == [n for n, e in EXPERIMENTS.items() if e.page == page_name and n in own]
        shown += own
    assert len(shown) == len(set(shown))
    assert set(shown) | set(missing) == set(EXPERIMENTS)
    for name in shown:
        assert f"[`{name}`]({EXPERIMENTS[name].page}.md#{name})" in index
        assert (PAGES / f"{name}.png").stat().st_size < 150_000


def test_the_pages_are_those_of_the_kept_results(tmp_path):
    for result in PAGES.glob("*.json"):
        home = tmp_path / "results" / result.stem
        home.mkdir(parents=True)
        shutil.copy(result, home / "result.json")
        shutil.copy(result.with_suffix(".png"), home / "figure.png")
    again = write_pages(tmp_path / "results", tmp_path / "docs").parent
    assert sorted(path.name for path in again.iterdir()) == sorted(
        path.name for path in PAGES.iterdir()
    )
    for path in again.glob("*.md"):
        assert path.read_text("utf-8") == (PAGES / path.name).read_text("utf-8"), path.name


def test_no_number_of_the_documentation_differs_without_a_reason():
    for path in PAGES.glob("*.json"):
        page_name = EXPERIMENTS[path.stem].page
        text = (PAGES / f"{page_name}.md").read_text(encoding="utf-8")
        section = text.partition(f"\n## {path.stem}\n")[2].partition("\n## ")[0]
        for found in json.loads(path.read_text("utf-8"))["quantities"]:
            quantity = Quantity.from_json(found)
            if quantity.printed is not None:
                _, printed, measured, _, kind, verdict = quantity.cells()
                why = r" \(\d\)" * (verdict != "agrees")
                both = f"|{printed.replace('/', ' or ')} / {measured}"
                both += f", {kind}" * (kind != "result")
                assert re.search(rf"{re.escape(both)}{why}\|", section), found
                assert (found["kind"], found["verdict"]) == (kind, verdict)


def test_quantities_of_several_rows_and_columns_make_one_table(fake, results, tmp_path):
    names = [f"{row}: {column}" for row in ("a", "b", "c") for column in ("x", "y", "z")]
    change(
        results, fake, [Quantity(name, k, str(k)) for k, name in enumerate(["first: x", *names])]
    )
    index = write_pages(results, tmp_path / "docs")
    text = (index.parent / "fake.md").read_text()
    assert "|printed / measured|x|y|z|\n|---|---:|---:|---:|\n|a|1 / 1|2 / 2|" in text
    assert "|c|7 / 7|8 / 8|9 / 9|\n\n|quantity|" in text
    assert text.count("|first: x|0 / 0|") == 1


def test_every_number_that_differs_links_its_computation():
    """Links of the pages, as a reader of the repository follows them."""
    said = 0
    for path in PAGES.glob("*.json"):
        found = [Quantity.from_json(q) for q in json.loads(path.read_text("utf-8"))["quantities"]]
        said += len({q.reason for q in found if q.verdict in ("differs", "undecided")})
    notes = [
        note
        for path in PAGES.glob("*.md")
        for note in re.findall(r"^\d+\. (?:Differs|Undecided)\. .+$", path.read_text("utf-8"), re.M)
    ]
    assert len(notes) == said > 0
    for note in notes:
        links = re.findall(r"\]\(((?:\.\./){2}[^)]+)\)", note)
        assert links, note
        assert all((PAGES / link).exists() for link in links), note


def test_several_files_are_linked_by_their_folder():
    found = page._inline("a_b (`reproduction/results/private_sgd_*.json`, `seepage audit`)")
    folder = "[`reproduction/results/private_sgd_*.json`](../../reproduction/results)"
    assert found == f"a\\_b ({folder}, `seepage audit`)"


def test_the_readme_counts_as_the_pages_do():
    index = re.search(
        r"(\d+) printed numbers, (\d+) agree", (PAGES / "index.md").read_text(encoding="utf-8")
    )
    readme = re.search(
        r"(\d+) numbers printed in the papers, (\d+) agree",
        " ".join((ROOT / "README.md").read_text("utf-8").split()),
    )
    assert index
    assert readme
    assert readme.groups() == index.groups()


def test_the_readme_counts_each_paper_as_the_pages_do():
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|([A-Z][^|:]+): [^|]+\|([\d|]+)\|$", index, re.MULTILINE)
    assert [paper for paper, _ in rows] == sorted(PAPERS)
    lines = re.findall(
        r"^- (.+ \d{4}) \([^)]+\): (\d+) of (\d+) agrees?([^;]*); (.+)\.$",
        (ROOT / "README.md").read_text("utf-8"),
        re.MULTILINE,
    )
    for (paper, counts), (name, agree, printed, said, others) in zip(rows, lines, strict=True):
        total, *kinds, differ, undecided, missing = map(int, counts.split("|"))
        assert (name, int(agree), int(printed)) == (paper, sum(kinds), total)
        for kind, count in zip(("result", "count", "setting"), kinds, strict=True):
            found = re.search(rf"(\d+) {kind}", said)
            assert (int(found[1]) if found else 0) == count, (paper, kind)
        words = {"differ": differ, "undecided": undecided, "not available here": missing}
        for word, count in words.items():
            found = re.search(rf"(\d+) {word}", others)
            assert (int(found[1]) if found else 0) == count, (paper, word)


def test_code_is_left_as_it_is_typed():
    assert page._inline("a_b `c_d --x [y]` *e*") == "a\\_b `c_d --x [y]` \\*e\\*"


def test_every_number_that_does_not_agree_has_a_computation_in_the_repository():
    judged = 0
    for name in EXPERIMENTS:
        found = json.loads((PAGES / f"{name}.json").read_text(encoding="utf-8"))
        for quantity in map(Quantity.from_json, found["quantities"]):
            if quantity.verdict in ("differs", "undecided"):
                judged += 1
                assert quantity.evidence, f"{name}: {quantity.name}"
    assert judged > 5


def test_each_paper_begins_with_its_claims_and_what_we_found():
    assert CLAIMS.keys() == PAPERS.keys()
    first = {e.paper: e.page for e in EXPERIMENTS.values() if not e.topic}
    assert first.keys() == PAPERS.keys()
    for paper, claims in CLAIMS.items():
        text = (PAGES / f"{first[paper]}.md").read_text(encoding="utf-8")
        head = text.partition("\n## ")[0]
        assert all(line in head for line in claims.lines())
        assert sum(len(part.split()) for part in claims) <= 120
        assert "“" in claims.claims  # in its own words


def test_a_result_not_made_anew_keeps_its_numbers(fake, results, tmp_path, monkeypatch):
    """On a machine without its data, say."""
    other = Experiment("other-figure", "Guo et al. 2022", "Figure 9", "Another one")
    monkeypatch.setattr(page, "EXPERIMENTS", {fake.name: fake, other.name: other})
    shutil.copytree(results / fake.name, results / other.name)
    index = write_pages(results, tmp_path / "docs")
    first = {path.name: path.read_bytes() for path in index.parent.iterdir()}
    assert f"{other.name}.json" in first
    shutil.rmtree(results / other.name)
    change(results, fake, [Quantity("a", 1.0, "1")])
    write_pages(results, tmp_path / "docs")
    again = {path.name: path.read_bytes() for path in index.parent.iterdir()}
    changed = {name for name in first if first[name] != again[name]}
    assert again.keys() == first.keys()
    assert changed == {f"{fake.name}.json", "fake.md"}
