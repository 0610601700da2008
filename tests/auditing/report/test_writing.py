"""What a report leaves on disk: whole files, owner-only, with the numbers it was given."""

from __future__ import annotations

import base64
import json
import re
import stat
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from factory import changed, make_audit, make_gated, make_hostile
from jinja2 import UndefinedError

import seepage as sp
from coarse import point_above
from seepage.auditing.report import audit_report, rendering, to_json
from seepage.auditing.report import figures as drawing
from seepage.auditing.report.audit_report import AuditReport, record_table
from seepage.errors import InputError

FILES = {
    "report.html",
    "leakage.parquet",
    "summary.json",
    "model-card.md",
    "figures/leakage.svg",
    "figures/attributes.svg",
    "figures/groups-1.svg",
    "figures/curve.svg",
    "manifest.json",
}


def listing(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def drawn_before(monkeypatch, figures):
    """Take figures that are there already, where they do not matter."""

    def take(audit):
        return [f for f in figures if audit.groupings or not f.name.startswith("groups")]

    for module in (drawing, audit_report):
        monkeypatch.setattr(module, "draw_figures", take)


def test_every_file_is_there_and_private(written):
    assert written.name == "report.html"
    assert listing(written.parent) == FILES
    for name in FILES:
        assert stat.S_IMODE((written.parent / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(written.parent.stat().st_mode) == 0o700


@pytest.mark.slow
def test_the_same_audit_gives_the_same_files(written, tmp_path):
    AuditReport(make_audit()).write(tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (written.parent / name).read_bytes(), name


def test_leakage_parquet_holds_every_record(written):
    audit = make_audit()
    table = pq.read_table(written.parent / "leakage.parquet")
    assert table.column_names == [
        "row",
        "eta",
        "eta_features",
        "eta_label",
        "exact_error",
        "error of age",
        "error of marital-status",
    ]
    for name, values in [
        ("row", audit.row_index),
        ("eta", audit.eta),
        ("eta_features", audit.eta_features),
        ("eta_label", audit.eta_label),
        ("exact_error", audit.exact_error),
        ("error of age", audit.cell_errors["age"]),
    ]:
        np.testing.assert_array_equal(table[name].to_numpy(), values)
    assert b"do not publish" in table.schema.metadata[b"notice"]


def test_columns_that_print_the_same_are_kept_apart():
    errors = make_audit().cell_errors["age"]
    audit = make_audit(cell_errors={"age": errors, " age": 2 * errors, "age\n": 3 * errors})
    table = record_table(audit.records.every)
    assert table.column_names[-3:] == ["error of age", "error of age (2)", "error of age (3)"]
    np.testing.assert_array_equal(table["error of age (3)"].to_numpy(), 3 * errors)


def test_figures_are_well_formed_and_have_a_title(written):
    for path in (written.parent / "figures").glob("*.svg"):
        root = ET.parse(path).getroot()  # noqa: S314
        titles = [e.text for e in root.iter() if e.tag.endswith("}title")]
        assert titles
        assert titles[0]


@pytest.mark.usefixtures("drawn_before")
def test_figures_of_an_earlier_audit_go_and_other_files_stay(tmp_path):
    AuditReport(make_audit()).write(tmp_path)
    AuditReport(make_audit(groupings=())).write(tmp_path)
    assert listing(tmp_path) == FILES - {"figures/groups-1.svg"}
    (tmp_path / "figures" / "mine.svg").write_text("<svg/>")
    with pytest.raises(InputError, match=r"'figures/mine\.svg'"):
        AuditReport(make_audit()).write(tmp_path)
    assert listing(tmp_path) == (FILES - {"figures/groups-1.svg"}) | {"figures/mine.svg"}


@pytest.mark.usefixtures("drawn_before")
def test_an_interruption_leaves_nothing_half_written(tmp_path, monkeypatch):
    def interrupted(path, text):
        if text.startswith("{"):  # the summary, after the records and the figures
            raise KeyboardInterrupt
        real(path, text)

    real = rendering.write_text
    monkeypatch.setattr(rendering, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        AuditReport(make_audit()).write(tmp_path)
    assert listing(tmp_path) == set()


@pytest.mark.usefixtures("drawn_before")
def test_nothing_is_written_where_the_page_cannot_be_made(tmp_path):
    audit = make_audit(values={"age": []})
    with pytest.raises(UndefinedError):
        AuditReport(audit).write(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("drawn_before")
def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="'out' is a file; give a folder"):
        AuditReport(make_audit()).write(tmp_path / "out")


def test_summary_holds_the_numbers(written):
    audit = make_audit()
    summary = json.loads((written.parent / "summary.json").read_text())
    assert summary == AuditReport(audit).summary()
    assert summary["schema"] == "seepage-audit/4"
    assert summary["records"]["eta"]["1"] == audit.eta.max()
    assert summary["records"]["over_limit"] == (audit.eta > 1).sum()
    assert summary["records"]["worst_row"] == audit.row_index[audit.eta.argmax()]
    assert summary["records"]["exact_error"]["1"] is None  # infinite
    assert summary["attributes"][0]["protection"] == "weak"
    assert summary["passed"] is True
    assert AuditReport(make_gated(False)).summary()["passed"] is False


def test_summary_names_no_values():
    audit = make_audit(values={"age": ["8128"] * 569})
    assert "8128" not in to_json(audit)


def test_the_card_names_no_record_and_no_value():
    audit = make_gated(False, values={"age": ["8128"] * 569})
    # Row numbers nobody would write by accident.
    audit = changed(
        audit,
        row_index=audit.row_index + 770_000,
        attributes=tuple(replace(a, easiest_row=770_017) for a in audit.attributes),
    )
    card = AuditReport(audit).texts()["model-card.md"]
    assert "7700" not in card
    assert "8128" not in card
    assert "--max-eta 0.5: not met" in card
    assert "logistic regression of “readmitted”" in card


def test_the_card_tells_figures_in_coarse_bands_and_names_no_small_group():
    audit = make_audit()
    card = AuditReport(audit).texts()["model-card.md"]
    assert f"η of a record is at most {point_above(audit.eta.max()):g};" in card
    assert f"at most {point_above(np.median(audit.eta)):g}." in card
    assert "fitted to 500 records or more" in card
    assert "569" not in card
    grouping = audit.groupings[0]
    small = replace(grouping.groups[0], label="only-two", count=2, mean_eta=1e6)
    audit = make_audit(groupings=(replace(grouping, groups=(*grouping.groups, small)),))
    assert "only-two" not in AuditReport(audit).texts()["model-card.md"]
    alone = replace(grouping, groups=(small, grouping.groups[0]))
    assert "**Groups.**" not in AuditReport(make_audit(groupings=(alone,))).texts()["model-card.md"]
    assert "**Usefulness.**" not in AuditReport(make_audit(sigma=1e9)).texts()["model-card.md"]
    assert "| column |" not in AuditReport(make_audit(attributes=())).texts()["model-card.md"]


def test_the_card_escapes_names():
    card = AuditReport(make_hostile("<img src=x>[a](b)|`c`")).texts()["model-card.md"]
    assert "<img" not in card
    assert "&lt;img src=x&gt;\\[a\\](b)\\|\\`c\\`" in card


@pytest.mark.parametrize("name", ["www.evil.example/x", "http://evil.example", "a@evil.example"])
def test_no_name_becomes_a_link_in_the_card(name):
    card = AuditReport(make_hostile(name)).texts()["model-card.md"]
    assert "evil" in card
    assert not re.search(r"www\.|(?<!\\)://|\w@|evil\.example", card)


def test_a_million_records_keep_the_most_leaked_in_the_page():
    audit = make_audit(audit_report.EMBEDDED_ROWS + 50)
    packed = audit_report.pack(audit)
    assert packed["count"] == audit_report.EMBEDDED_ROWS
    rows = np.frombuffer(base64.b64decode(packed["rows"]))
    left_out = set(audit.row_index) - set(rows.astype(int))
    assert len(left_out) == 50
    kept = np.isin(audit.row_index, rows)
    assert audit.eta[kept].min() >= audit.eta[~kept].max()


@pytest.mark.usefixtures("drawn_before")
def test_a_folder_may_be_a_text_and_sp_report_writes_it(tmp_path):
    audit = make_audit()
    assert AuditReport(audit).write(str(tmp_path / "one")) == tmp_path / "one" / "report.html"
    assert sp.report(audit, str(tmp_path / "two")) == tmp_path / "two" / "report.html"
    assert (tmp_path / "two" / "summary.json").exists()


@pytest.mark.usefixtures("drawn_before")
def test_an_audit_fits_a_screen_and_a_notebook_shows_its_page():
    audit = make_audit()
    lines = repr(audit).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    html = audit._repr_html_()
    assert html.startswith('<iframe srcdoc="&lt;!doctype html')
    assert html.count("<") == 2  # the frame alone: its page is escaped
    assert "allow-same-origin" not in html
