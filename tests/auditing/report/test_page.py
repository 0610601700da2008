"""What the page says, to whom, and that no name or value can make it say anything else."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from factory import changed, judged, make_audit, make_gated, make_hostile

from sampled import sampled
from seepage.auditing.findings import Gate, NoiseChoice
from seepage.auditing.report import figures as drawing
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.figures import draw_figures, draw_grouping
from seepage.auditing.report.verdict import judge
from seepage.auditing.report.words import (
    error_at,
    find_limit,
    markdown,
    number,
    plain,
    protection,
    short,
    usefulness,
)


def render(audit):
    return AuditReport(audit).page(draw_figures(audit))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.14159, "0.142"),
        (7.3, "7.3"),
        (99.96, "100"),
        (12_345.0, "12,300"),
        (4.2e-5, "4.2 × 10⁻⁵"),
        (3e8, "3 × 10⁸"),
        (-0.5, "−0.5"),
        (np.inf, "∞"),
        (np.nan, "–"),
        (999_999.0, "1,000,000"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_names_become_one_printable_line():
    assert plain("a\nb\x00c\u202ed") == "a b c d"
    assert plain(" \n") == "(no name)"
    assert plain("漢字 🙈") == "漢字 🙈"
    assert short("x" * 10_000, 48) == "x" * 47 + "…"
    assert markdown("a|b<c>*") == "a\\|b&lt;c&gt;\\*"


def test_the_limit_is_the_gate_then_the_target_then_one():
    audit = make_audit()
    assert find_limit(audit).eta == 1
    assert find_limit(replace(audit, target_eta=0.2)).eta == 0.2
    gate = Gate("--max-eta", 0.7, 3.0, False)
    assert find_limit(replace(audit, target_eta=0.2, gates=(gate,))).eta == 0.7


def test_protection_of_a_column():
    age = make_audit().attributes[0]
    ratios = {0.49: "weak", 0.5: "partial", 0.99: "partial", 1.0: "strong", np.inf: "strong"}
    for ratio, word in ratios.items():
        assert protection(replace(age, smallest_error=ratio * age.spread)) == word
    level = replace(age, kind="categorical", spread=np.nan, smallest_error=0.4)
    assert protection(level) == "weak"


def test_usefulness_is_read_off_the_curve():
    audit = make_audit()
    curve = audit.curve
    assert error_at(audit, float(curve.sigma[3])) == pytest.approx(curve.error[3])
    assert error_at(audit, 1e9) is None
    gain = curve.trivial_error - curve.noiseless_error
    expected = (curve.trivial_error - curve.error[-1]) / gain
    assert usefulness(audit, float(curve.sigma[-1])) == pytest.approx(expected)


def test_verdict_over_a_gate():
    verdict = judge(make_gated(False))
    assert verdict.tone == "bad"
    assert verdict.headline == "Do not release: 1 of the 2 limits you set is exceeded."


def test_verdict_within_the_gates():
    verdict = judge(make_gated(True))
    assert verdict.tone == "good"
    assert verdict.label == "Within the limits"


def test_verdict_above_the_default_limit():
    audit = make_audit()
    verdict = judge(audit)
    assert verdict.tone == "caution"
    # Nobody asked for η = 1, but a number is told closely.
    assert verdict.headline == (
        "“age” is estimated to within ±2.92 at best, ±13.6 without the release (row 4)."
    )
    unknown = judge(make_audit(risks=None))
    assert unknown.headline == (
        f"{(audit.eta > 1).sum()} of 569 records leak more than the default limit allows."
    )
    text = " ".join([*verdict.sentences, *(answer.text for answer in verdict.answers)])
    worst = audit.eta.argmax()
    assert f"row {audit.row_index[worst]}" in text
    assert number(1 / audit.eta[worst]) in text
    assert "“age” is the easiest to attack" in text
    assert "better than ±2.99" in text
    assert "leak 1.95 times as much" in text


def test_verdict_on_all_records():
    verdict = judge(make_audit(target_eta=1e-9, noise=NoiseChoice("target")))
    assert verdict.headline == "All 569 records leak more than the target allows."


def test_verdict_says_whether_the_target_or_the_columns_leak():
    audit = make_audit()
    told = " ".join(judge(changed(audit, eta_label=audit.eta_features * 3)).sentences)
    assert "The target “readmitted” leaks most" in told
    told = " ".join(judge(changed(audit, eta_label=audit.eta_features / 3)).sentences)
    assert "its target, “readmitted”, at most" in told


def test_noise_calibrated_to_a_target_meets_it_up_to_rounding():
    audit = make_audit()
    target = float(audit.eta.max()) * (1 - 1e-12)
    assert judge(replace(audit, target_eta=target)).tone == "good"


def test_verdict_says_when_nothing_is_left_of_the_model():
    audit = make_audit(target_eta=100.0, sigma=2.9)
    verdict = judge(judged(audit, 0.001, 0.1))
    assert verdict.tone == "caution"
    assert "with this noise, the model is of little use" in verdict.headline


@pytest.mark.parametrize(
    ("low", "high", "label"),
    [
        (-0.1, 0.2, "Within the target, but no better than a constant"),
        (0.0, 0.0, "Within the target, but no better than a constant"),
        (-0.2, -0.1, "Within the target, but worse than a constant"),
        (1e-9, 0.2, "Within the target"),
    ],
)
def test_green_follows_from_the_interval_of_the_difference_to_a_constant(low, high, label):
    """However small the error, which here is 5.5 % against 37.3 %."""
    audit = make_audit(target_eta=100.0, noise=NoiseChoice("target"))
    verdict = judge(judged(audit, low, high))
    assert verdict.label == label
    assert verdict.tone == ("good" if low > 0 else "caution")
    assert ("a constant prediction's 37.3 %" in verdict.headline) == (low <= 0)


def test_a_model_that_was_not_compared_with_a_constant_is_not_green():
    audit = make_audit(target_eta=100.0, noise=NoiseChoice("target"))
    verdict = judge(replace(audit, curve=replace(audit.curve, usefulness=())))
    assert (verdict.tone, verdict.label) == (
        "caution",
        "Within the target, but usefulness not measured",
    )


@pytest.mark.minutes
def test_extreme_audits_are_rendered():
    quiet = make_audit(
        3,
        eta=np.zeros(3),
        eta_features=np.zeros(3),
        eta_label=np.zeros(3),
        exact_error=np.full(3, np.inf),
        cell_errors={},
        groupings=(),
        remedies=(),
        versions={},
        steps=(),
    )
    nothing = tuple(
        replace(a, smallest_error=np.inf, median_error=np.inf) for a in quiet.attributes
    )
    page = render(replace(quiet, attributes=nothing))
    assert "reveals nothing about any single record" in page
    assert "No column can be estimated" in page
    lone = replace(make_audit(1), attributes=make_audit(1).attributes[:1])
    assert "1 record ·" in render(lone)
    flat = replace(make_audit().curve, sigma=np.array([0.1]))
    assert "There is no curve" in render(make_audit(curve=flat))


def test_the_bounds_on_the_most_exposed_record_say_what_they_assume(figures):
    page = AuditReport(make_audit()).page(figures)
    section = page.split('<details class="fold" id="guarantees">')[1].split("</details>")[0]
    lines = {
        name: re.sub(r"<[^>]+>", " ", row)
        for row in re.findall(r"<tr>.*?</tr>", section, re.DOTALL)
        for name in ("FIL", "Cramér–Rao", "Rényi", "van Trees", "advantage")
        if f">{name}" in row and "cell" not in row
    }
    assert "±0.548" in lines["FIL"]
    assert "[1] [2]" in lines["FIL"]
    assert "tightest" not in lines["FIL"]
    assert "does not apply: The intercept is not penalised." in lines["Rényi"]
    assert "±0.894 *" in lines["van Trees"]
    assert "0.31" in lines["advantage"]
    assert section.count("tightest") == 1
    assert "An indication, not a guarantee" in section
    assert 'id="guarantees"' not in AuditReport(make_audit(guarantees=None)).page(figures)


def test_many_groups_and_columns_are_cut_and_said(figures):
    audit = make_audit()
    column, grouping = audit.attributes[0], audit.groupings[0]
    groups = tuple(replace(grouping.groups[0], label=f"g{i}", mean_eta=i / 99) for i in range(99))
    columns = tuple(replace(column, name=f"c{i}", smallest_error=1.0 + i) for i in range(5000))
    many = replace(audit, attributes=columns, groupings=(replace(grouping, groups=groups),))
    page = AuditReport(many).page(figures)
    assert "The 200 most exposed of 5,000 columns" in page
    assert "c199<" in page
    assert "c200<" not in page
    assert "40 groups (of 99) with the largest and smallest means" in page


def test_the_figure_of_many_groups_has_the_largest_and_the_smallest(monkeypatch):
    monkeypatch.setattr(drawing, "render", lambda name, *words_and_drawing: words_and_drawing[:2])
    grouping = make_audit().groupings[0]
    groups = tuple(
        replace(grouping.groups[0], label=f"g{i}", mean_eta=(i * 7 % 20) / 20) for i in range(20)
    )
    alternative, caption = draw_grouping(replace(grouping, groups=groups), 1)
    assert caption == "Shown are the 12 groups with the largest and smallest means."
    ordered = sorted(groups, key=lambda group: -group.mean_eta)
    kept = [group.label for group in ordered[:6] + ordered[-6:]]
    assert re.findall(r"(g\d+) ", alternative) == kept
    assert draw_grouping(grouping, 1)[1] == ""


def test_an_error_that_the_curve_does_not_tell_is_not_told(figures):
    known, unknown = make_audit(), make_audit(sigma=1e9)
    assert error_at(unknown, 1e9) is None
    sentences = [" ".join(judge(audit).sentences) for audit in (known, unknown)]
    assert ["The noise costs accuracy" in told for told in sentences] == [True, False]
    pages = [AuditReport(audit).page(figures) for audit in (known, unknown)]
    assert ["Error on held-out records" in page for page in pages] == [True, False]
    costs = [
        [answer.text for answer in judge(audit).answers if "cost" in answer.question]
        for audit in (known, unknown)
    ]
    assert "On held-out records, the" in costs[0][0]
    assert not any("On held-out records" in text for text in costs[1])


def test_a_number_that_does_not_leak_is_not_spoken_of():
    audit = make_audit(model="linear", classes=(), attributes=(), risks=None)
    loud, quiet = (changed(audit, eta_label=level * np.ones(569)) for level in (2.0, 0.0))
    told = [
        " ".join([*judge(a).sentences, *(answer.text for answer in judge(a).answers)])
        for a in (loud, quiet)
    ]
    estimate = "An unbiased estimate of “readmitted” has a standard error of at least 0.5 standard"
    assert [estimate in text for text in told] == [True, False]
    assert not any("easiest to attack" in text for text in told)


def test_values_are_shown_only_when_given_and_then_with_a_second_warning(figures):
    assert "values of real records" not in AuditReport(make_audit()).page(figures)
    page = AuditReport(make_audit(values={"age": [f"v{i}v" for i in range(569)]})).page(figures)
    worst = int(make_audit().eta.argmax())
    assert "values of real records" in page
    assert f"v{worst}v" in page
    assert "Private report" in page


def test_no_file_of_an_audit_is_offered_for_sharing(figures):
    page = AuditReport(make_audit()).page(figures)
    assert "Share the model card" not in page
    assert "All of them are private" in page


HOSTILE = [
    "<script>alert(1)</script>",
    "</script></style>--><svg onload=alert(1)><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" \' {{ 7 * 7 }}{% raw %}',
    '=HYPERLINK("http://example.com") $\\frac{broken$ $',
    "🙈🙉 漢字 عربى \u202e\x00\x1b[31m\ud800",
    "",
]


@pytest.mark.parametrize("text", sampled(HOSTILE, 1, 3))
def test_hostile_names_and_values_stay_text(text):
    page = render(make_hostile(text, rows=20))
    # Our own two scripts, and no tag or attribute that is not ours.
    assert len(re.findall(r"<script", page)) == 2
    assert len(re.findall(r"</script", page)) == 2
    assert len(re.findall(r"</style", page)) >= 1
    assert not re.search(r"<(img|iframe|object|embed|form|base)\b", page)
    assert not re.search(r"<[a-z][^<>\"]*(\"[^\"]*\"[^<>\"]*)*\son\w+=", page)
    assert "49}" not in page
    page.encode("utf-8")


def test_the_page_asks_nothing_of_the_network(figures):
    page = AuditReport(make_audit()).page(figures)
    assert not re.search(r"(src|href)=\"(?!#|data:)", page.replace("xlink:href", "href"))
    assert "url(http" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_names_in_the_page_are_unique(figures):
    page = AuditReport(make_audit()).page(figures)
    names = re.findall(r"\sid=\"([^\"]+)\"", page)
    assert len(names) == len(set(names))
    used = set(re.findall(r"href=\"#([^\"]+)\"", page)) | set(re.findall(r"url\(#([^)]+)\)", page))
    assert used <= set(names)


def test_every_figure_has_alternative_text_and_follows_the_theme(figures):
    for figure in figures:
        assert len(figure.alternative) > 60
        for svg in (figure.wide, figure.narrow):
            assert "var(--" in svg
            assert "#ffffff" not in svg
            assert "DejaVu" not in svg
        assert "var(--" not in figure.file
