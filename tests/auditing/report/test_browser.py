"""Opens reports in Chromium as a reader would: nothing breaks, nothing is asked of the network."""

from __future__ import annotations

import pytest
from browser import DESKTOP, PHONE, SCRIPT, VIEWS, needs_axe, needs_browser
from factory import NAMES, make_audit, make_gated, make_hostile

from sampled import sampled
from seepage.auditing.report.audit_report import AuditReport

pytestmark = needs_browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory, written):
    """Return the pages of four audits by name, each written when it is first asked for."""
    values = {name: [str(i) for i in range(569)] for name in NAMES}
    audits = {
        "values": lambda: make_gated(False, values=values),
        "long": lambda: make_audit(100_000),
        "hostile": lambda: make_hostile(SCRIPT),
    }

    class Pages(dict):
        def __missing__(self, name):
            self[name] = AuditReport(audits[name]()).write(tmp_path_factory.mktemp(name))
            return self[name]

    return Pages(plain=written)


def first_rows(browser, count=3):
    return browser.read("#body tr:not(.space) th")[:count]


@pytest.mark.parametrize("name", sampled(["plain", "values", "long", "hostile"], 0, 2))
def test_nothing_is_said_to_the_console_or_asked_of_the_network(browser, pages, name):
    browser.open(pages[name])
    browser.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert browser.read("#found")[0].startswith(("569 of", "100,000 of", "60 of"))
    assert browser.messages() == []
    assert browser.requests() == [pages[name].as_uri()]


@pytest.mark.parametrize(("size", "dark"), sampled(VIEWS, 0, 2))
def test_pictures_for_people_to_look_at(browser, pages, size, dark):
    name = f"report-{'phone' if size == PHONE else 'desktop'}-{'dark' if dark else 'light'}"
    browser.open(pages["plain"], size, dark)
    assert browser.picture(name).stat().st_size > 50_000
    shown = ".narrow" if size == PHONE else ".wide"
    assert (
        browser.run("return getComputedStyle(document.querySelector(arguments[0])).display", shown)
        == "block"
    )


@pytest.mark.parametrize("name", sampled(["plain", "values", "hostile"], ["hostile"]))
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_the_page_is_never_wider_than_the_screen(browser, pages, name, size):
    browser.open(pages[name], size)
    width = browser.run("return document.documentElement.scrollWidth")
    assert width <= size[0]


@pytest.mark.minutes
def test_very_long_names_do_not_break_the_layout(browser, tmp_path):
    page = AuditReport(make_hostile("wide" * 2500)).write(tmp_path)
    browser.open(page, PHONE)
    width, height = browser.run(
        "const e = document.documentElement; return [e.scrollWidth, e.scrollHeight]"
    )
    assert width <= PHONE[0]
    assert height < 20_000
    full = browser.run("return document.querySelector('h1 .name').title")
    assert full == "wide" * 2500


def test_sorting(browser, pages):
    audit = make_audit()
    browser.open(pages["plain"])
    browser.unfold("every")
    by_leakage = [str(audit.row_index[i]) for i in (-audit.eta).argsort()]
    assert first_rows(browser) == by_leakage[:3]
    browser.click("#heads th:nth-child(2) button")
    assert first_rows(browser) == by_leakage[::-1][:3]
    browser.click("#heads th:nth-child(1) button")
    assert first_rows(browser) == ["4", "5", "6"]
    browser.click("#heads th:nth-child(6) button")
    easiest = audit.cell_errors["age"].argsort()[:3]
    assert first_rows(browser) == [str(audit.row_index[i]) for i in easiest]
    assert browser.run("return document.querySelectorAll('[aria-sort]').length") == 1
    assert "sorted by ± on age, smallest first" in browser.read("#found")[0]


def test_searching(browser, pages):
    audit = make_audit()
    browser.open(pages["plain"])
    browser.unfold("every")
    browser.type("#search", "17, 20-22")
    assert sorted(map(int, first_rows(browser, 9))) == [17, 20, 21, 22]
    browser.type("#search", "> 0.9")
    assert browser.read("#found")[0].startswith(f"{(audit.eta >= 0.9).sum()} of 569")
    browser.type("#search", "<0.05")
    assert browser.read("#found")[0].startswith(f"{(audit.eta <= 0.05).sum()} of 569")
    browser.type("#search", "age")
    assert "“age” is neither a row, a range nor a leakage" in browser.read("#found")[0]
    browser.type("#search", "99999")
    assert browser.read("#found")[0].startswith("0 of 569")
    browser.run(
        "const s = arguments[0]; s.value = ''; s.dispatchEvent(new Event('input'))",
        browser.driver.find_element("id", "search"),
    )
    browser.click("#only-over")
    assert browser.read("#found")[0].startswith(f"{(audit.eta > 1).sum()} of 569")


@pytest.mark.minutes
def test_a_long_table_draws_only_what_is_in_sight(browser, pages):
    audit = make_audit(100_000)
    browser.open(pages["long"])
    browser.unfold("every")
    assert browser.run("return document.querySelectorAll('#body tr').length") < 60
    browser.click("#heads th:nth-child(1) button")
    scrolled = """
        const done = arguments[arguments.length - 1];
        const box = document.getElementById("viewport");
        box.scrollTop = 70000 * 34;
        const look = () => {
            const top = box.getBoundingClientRect().top + 40;
            const seen = [...document.querySelectorAll("#body tr:not(.space)")]
                .filter((row) => row.getBoundingClientRect().top >= top)
                .map((row) => row.firstChild.textContent);
            if (seen.length) done(seen);
            else requestAnimationFrame(look);
        };
        look();"""
    seen = [int(row) for row in browser.run_later(scrolled)]
    assert seen[0] - audit.row_index[70_000] in range(4)
    assert browser.run("return document.querySelectorAll('#body tr').length") < 60
    browser.type("#search", "99999")
    assert first_rows(browser) == ["99999"]


@pytest.mark.parametrize("name", sampled(["values", "hostile"], ["hostile"]))
def test_values_come_with_a_second_warning(browser, pages, name):
    browser.open(pages[name])
    assert "Private report. It shows values of real records." in browser.read("aside")[0]
    browser.unfold("records")
    assert "values of real records" in browser.read(".danger")[0]


def test_nothing_hostile_runs(browser, pages):
    browser.open(pages["hostile"], DESKTOP)
    browser.unfold("every")
    browser.click("#heads th:nth-child(6) button")
    browser.type("#search", SCRIPT[:40])
    assert browser.run("return window.owned") is None
    assert browser.run("return document.querySelectorAll('img, iframe, object').length") == 0
    assert browser.run("return document.scripts.length") == 2
    assert "<script>" in browser.read("h1")[0]


def test_no_script_but_ours_may_run(browser, pages):
    # Were something to slip through, the page's own policy stops it.
    browser.open(pages["plain"])
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.owned = 1';"
        "document.body.append(s)"
    )
    assert browser.run("return window.owned") is None
    assert any("Content Security Policy" in message for message in browser.messages())


@needs_axe
@pytest.mark.parametrize(
    ("name", "size", "dark"),
    sampled([*(("plain", size, dark) for size, dark in VIEWS), ("values", DESKTOP, False)], 1, 3),
)
def test_accessibility(browser, pages, name, size, dark):
    browser.open(pages[name], size, dark)
    grave = [
        (v["id"], v["help"], [node["html"][:120] for node in v["nodes"][:3]])
        for v in browser.violations()
        if v["impact"] in {"serious", "critical"}
    ]
    assert grave == []
