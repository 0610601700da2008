"""What the page on recorded rounds says, and that no name can make it say anything else."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from recordings import CLIENTS, NODES, make_recording, make_report
from seepage.auditing.report.words import several
from seepage.auditing.rounds.figures import draw_since
from seepage.auditing.rounds.first_screen import show_recording
from seepage.auditing.rounds.report import SCHEMA
from seepage.auditing.rounds.words import advise
from seepage.errors import InputError
from seepage.layers import audit_recording

FILES = {
    "report.html",
    "summary.json",
    "clients.parquet",
    "manifest.json",
    "figures/layers.svg",
    "figures/since.svg",
    "figures/clients.svg",
}
HOSTILE = "<script>window.owned=1</script><img src=x onerror=window.owned=1>'\"`\n\x00"


@pytest.fixture(scope="module")
def report():
    return make_report()


@pytest.fixture(scope="module")
def hostile():
    return make_report(HOSTILE, passed=False, values=True)


@pytest.fixture(scope="module")
def figures(report):
    return report.figures()


@pytest.fixture(scope="module")
def page(report, figures):
    return report.page(figures)


def listing(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_the_verdict_names_the_layers_and_the_round(report):
    verdict = report.verdict
    assert verdict.tone == "caution"
    assert verdict.headline == "1 layer of 4 reveals “glasses”, the first after round 1."
    assert any("“num-examples” and “loss”. These metrics" in s for s in verdict.sentences)
    assert any("5 clients with “does not”" in s for s in verdict.sentences)


def test_advice_fits_what_was_found(report):
    names = [each.name for each in advise(report.audit)]
    # Clipping and noise do not reach buffers, so they are no advice where only these tell.
    assert names == ["Keep statistics on the clients", "Aggregate securely"]
    first, told = advise(report.audit)[0], dict(report.verdict.advice)
    assert (first.layers, first.remedy) == (("bn1.buffers",), "without bn1.buffers")
    tried = {remedy.name: remedy.value for remedy in report.audit.layers.remedies}
    assert first.left == tried[first.remedy] < first.whole == report.audit.layers.remedies[0].value
    assert "Without “bn1.buffers”, an update leaks" in told[first.name]
    assert any("only on the trained parameters" in note for note in report.audit.layers.notes)
    over = report.audit.over_rounds
    both = replace(over, p_values=over.p_values[:, [1, 1, 2, 3]])
    loud = replace(report, audit=replace(report.audit, over_rounds=both))
    (clip,) = [each for each in advise(loud.audit) if each.name == "Clip and add noise"]
    assert clip.unreached == ("bn1.buffers",)
    told = dict(loud.verdict.advice)
    assert told["Clip and add noise"].endswith("Clipping and noise do not apply to “bn1.buffers”.")
    # The test of conv1 over all updates finds nothing, so the headline says which test does.
    assert loud.verdict.headline == (
        "2 layers of 4 reveal “glasses” in the test over rounds, the first after round 1; "
        "1 of them over all updates together."
    )


def test_bare_numbers_are_named_by_their_kind():
    found = make_report(layers=("0", "2", "4"), apart=True)
    verdict = found.verdict
    words = " ".join([verdict.headline, *verdict.sentences, *(text for _, text in verdict.advice)])
    assert "Layer 2 leaks most" in words
    assert f"The furthest of 10 clients is client {NODES[3]}: in layer 2, " in words
    assert "“2”" not in words
    assert "revealed by layer 2 at the 5 % level" in str(found.audit)
    assert several(["fc", 7], kind="layer") == "“fc” and layer 7"


def test_what_shows_is_said_with_the_level_of_the_test(report, figures, page):
    for given in (report, make_report(found=False, seed=3)):
        verdict = given.verdict
        words = " ".join([verdict.headline, *verdict.sentences, str(given.audit)])
        assert "at the 5 % level" in words
        assert "beyond doubt" not in words
        assert "certain" not in words
    drawn = " ".join(figure.alternative for figure in figures)
    assert "significant at the 5 % level in 1 layer" in drawn
    assert drawn.endswith("no client was tested.")
    assert ">stands out<" not in page  # no badge without a test
    assert '<span class="badge strong">' not in page  # no green for what was not shown
    for text in (page, drawn):
        assert "beyond doubt" not in text
        assert "not sure" not in text


def test_metrics_that_tell_are_better_not_sent(report):
    over = report.audit.over_rounds
    assert [over.layers[k] for k in (1, 3)] == ["bn1.buffers", "client metrics"]
    swapped = replace(over, p_values=over.p_values[:, [0, 3, 2, 1]])
    loud = replace(report, audit=replace(report.audit, over_rounds=swapped))
    assert loud.audit.telling() == ("client metrics",)
    first, text = loud.verdict.advice[0]
    assert first == "Send fewer metrics"
    assert text.startswith("“num-examples” and “loss” reveal the property: send them rounded")


@pytest.mark.slow
def test_without_rounds_nothing_is_said_about_when(report, figures, page):
    once = replace(report, audit=replace(report.audit, over_rounds=None))
    assert draw_since(once.audit) is None
    assert "First round" in page
    assert "First round" not in once.page(figures)
    assert not any("First significant at the 5 % level" in s for s in once.verdict.sentences)
    assert any("First significant at the 5 % level" in s for s in report.verdict.sentences)


def test_limits_rule_the_verdict():
    assert make_report(passed=False).verdict.label == "Over the limit"
    assert make_report(passed=True).verdict.label == "The property leaks"


@pytest.mark.slow
def test_nothing_found_is_said_with_what_may_have_been_missed():
    quiet = make_report(found=False, seed=3)
    verdict = quiet.verdict
    assert verdict.tone == "caution"
    within = make_report(found=False, seed=3, passed=True)
    assert within.verdict.tone == "good"
    (gate,) = within.gates
    for high, tone in ((0.49, "good"), (0.51, "caution")):
        some = replace(within, gates=(replace(gate, measured=0.1, low=0.0, high=high),)).verdict
        assert some.tone == tone
        assert ("extends beyond the limit" in some.headline) == (tone == "caution")
    assert any("does not prove that nothing leaks" in s for s in verdict.sentences)
    page = quiet.page(quiet.figures())
    assert "Nothing needs to be done about this property" in page


@pytest.mark.slow
def test_a_client_who_stands_out_is_named():
    apart = make_report(found=False, apart=True, seed=3)
    assert apart.audit.clients.named() == []
    assert any("One client is always the furthest" in s for s in apart.verdict.sentences)
    p_values = np.where(np.arange(CLIENTS) == 3, 0.02, 1.0)
    tested = replace(apart.audit.clients, p_value=p_values, reference=500)
    apart = replace(apart, audit=replace(apart.audit, clients=tested))
    assert apart.audit.clients.named() == [int(NODES[3])]
    verdict = apart.verdict
    assert "(P = 0.02, among 500 simulated clients)" in " ".join(verdict.sentences)
    page = apart.page(apart.figures())
    assert page.count('<span class="badge weak">stands out</span>') == 1
    assert apart.summary()["clients_standing_out"] == 1
    assert verdict.label == "Outlying clients"
    words = " ".join(verdict.sentences)
    assert f"client {NODES[3]} stand out: in “bn1.buffers”" in words
    assert "Examine outlying clients" in [each.name for each in advise(apart.audit)]


def test_one_client_alone_cannot_be_tested():
    known = {int(node): str(k == 3) for k, node in enumerate(NODES)}
    recording = make_recording(found=False, seed=3)
    audit = audit_recording(recording, known, family="logistic", permutations=99)
    assert audit.least_p_value() == pytest.approx(0.1)
    assert audit.telling() == ()
    verdict = replace(make_report(), audit=audit).verdict
    assert verdict.label == "Too few clients to test"
    assert any("cannot give a P-value below 0.1" in s for s in verdict.sentences)
    assert any("single client" in note for note in audit.notes)


def test_what_is_known_of_a_client_is_not_on_the_page_unless_asked(report, figures, page):
    assert "wears glasses</" not in page
    assert str(NODES[0]) in page
    told = replace(report, values={str(n): "wears glasses" for n in NODES})
    shown = told.page(figures)
    assert shown.count("wears glasses</span>") == CLIENTS
    assert "at your request" in shown


def test_metrics_leave_too(page):
    assert "Metrics are sent without clipping or noise" in page
    assert "client metrics" in page


@pytest.mark.slow
def test_files_are_the_owners(report, tmp_path):
    out = tmp_path / "out"
    assert report.write(out) == out / "report.html"
    assert listing(out) == FILES
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert stat.S_IMODE((out / "figures").stat().st_mode) == 0o700
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert min(each["low"] for each in (*summary["layers"], *summary["remedies"])) == 0
    assert {stat.S_IMODE((out / name).stat().st_mode) for name in FILES} == {0o600}
    table = pq.read_table(out / "clients.parquet")
    assert table.column("client").to_pylist() == [str(node) for node in NODES]
    assert table.schema.metadata[b"schema"] == SCHEMA.encode()


def test_the_summary_has_no_client_and_is_plain_json(report):
    summary = report.summary()
    text = json.dumps(summary, allow_nan=False)
    assert summary["schema"] == SCHEMA
    assert not any(str(node) in text for node in NODES)
    assert [layer["tells"] for layer in summary["layers"]] == [False, True, False, False]
    assert summary["layers"][1]["since_round"] == 1
    assert np.array(summary["rounds"]["p_values"]).shape == (4, 4)
    assert summary["recording"]["metrics"] == ["num-examples", "loss"]


def test_the_page_needs_nothing_else_and_runs_nothing(page):
    assert "<script" not in page
    assert re.search(r'(src|href)="(?!#|data:,)', page) is None
    assert "script-src 'none'" in page


@pytest.mark.slow
def test_no_name_can_say_anything_else(hostile, tmp_path):
    page = hostile.write(tmp_path / "out").read_text("utf-8")
    assert "<script" not in page
    assert "<img" not in page
    assert "\x00" not in page
    assert "<script" not in (tmp_path / "out" / "figures" / "layers.svg").read_text()


def test_a_file_in_the_place_of_the_folder_is_refused(report, figures, tmp_path, monkeypatch):
    monkeypatch.setattr("seepage.auditing.rounds.report.draw_recording", lambda report: figures)
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="'out' is a file"):
        report.write(tmp_path / "out")


def test_names_in_a_sentence():
    assert several(["a"]) == "“a”"
    assert several(["a", "b", "c"]) == "“a”, “b” and “c”"
    assert several(list("abcdef")) == "“a”, “b”, “c”, “d” and 2 more"


def test_a_large_estimate_that_is_not_significant_does_not_lead(report):
    over = report.audit.over_rounds
    highest, other = report.audit.layers.v_information.ranking()[:2]
    p_values = np.ones_like(over.p_values)
    p_values[:, over.layers.index(other)] = 0.01
    audit = replace(report.audit, over_rounds=replace(over, p_values=p_values))
    page = replace(report, audit=audit)
    assert [layer["name"] for layer in page.about()["layers"]][:2] == [other, highest]
    words = " ".join(page.verdict.sentences)
    assert f"“{other}” leaks most of the layers that reveal the property: " in words
    assert f"“{highest}” leaks most" not in words
    none = replace(report.audit, over_rounds=replace(over, p_values=np.ones_like(over.p_values)))
    words = " ".join(replace(report, audit=none).verdict.sentences)
    assert (
        f"The highest estimate is that of “{highest}”, which is not significant at the 5 % level: "
        in words
    )
    assert "leaks most" not in words


def test_the_table_of_remedies_begins_with_the_number_of_the_card(report):
    screen = show_recording(report.audit, "glasses", limited=False)
    first = screen.remedies.lines[0].protection
    assert first[0] == "yes"
    assert f"{first[1].split()[0]} bits" == screen.cards[0].value
    assert first[2] == "1.000"


def test_a_remedy_whose_test_finds_nothing_is_not_called_safe(report):
    lines = show_recording(report.audit, "glasses", limited=False).remedies.lines
    by_p_value = {remedy.name: remedy.p_value for remedy in report.audit.layers.remedies}
    assert {line.name for line in lines} == set(by_p_value)
    for line in lines:
        assert line.protection[0] == ("yes" if by_p_value[line.name] <= 0.05 else "not shown")
