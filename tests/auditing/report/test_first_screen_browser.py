"""Opens first screens in Chromium: few words, a slider that tells what the library does, a link."""

from __future__ import annotations

import base64
import re
from dataclasses import replace

import numpy as np
import pytest
from browser import DESKTOP, needs_axe, needs_browser
from factory import make_gated
from screens import KINDS, L2, SIGMA, audited, encoded, report

import seepage as sp
from sampled import sampled
from seepage.auditing.findings import GuessFinding, Remedy, RemedyKind
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.words import number, percent

pytestmark = needs_browser

NARROW = (400, 860)
MOST_WORDS = 80
# What is read on the first screen as prose: not tables, nor labels of the picture and of controls
PROSE = """
    const seen = [document.querySelector("header"), document.getElementById("first")];
    return seen.map((part) => {
        const copy = part.cloneNode(true);
        const other = "table, svg, select, .turn, .unseen, [hidden]";
        for (const part of copy.querySelectorAll(other)) part.remove();
        return [...copy.querySelectorAll("p, h1, h2, h3, li, aside")]
            .filter((text) => !text.querySelector("p")).map((text) => text.textContent).join(" ");
    }).join(" ");
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("screens")
    return {kind: report(kind).write(folder / kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_screen_is_one_screen_of_few_words(browser, pages, kind):
    browser.open(pages[kind], DESKTOP)
    read = browser.run(PROSE).split()
    words = [word for word in read if re.search(r"^\W*a\W*$|[^\W\d_]{2}", word)]  # no symbols
    assert 20 < len(words) <= MOST_WORDS, " ".join(words)
    bottom = browser.run("return document.getElementById('first').getBoundingClientRect().bottom")
    assert bottom <= DESKTOP[1]
    assert browser.run("return document.querySelectorAll('details[open].fold').length") == 0
    assert browser.messages() == []
    assert browser.requests() == [pages[kind].as_uri()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_phone_shows_all_of_it_without_a_wider_page(browser, pages, kind):
    browser.open(pages[kind], NARROW)
    assert browser.run("return document.documentElement.scrollWidth") <= NARROW[0]
    assert len(browser.read(".card")) == 3


def values(browser):
    """Return the numbers of the cards, and η."""
    cards = zip(browser.read(".card .baseline"), browser.read(".card .value strong"), strict=True)
    return [*cards, *browser.read("#eta")]


def move(browser, place):
    browser.run(
        "const s = document.getElementById('noise'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('input'))",
        place,
    )


def test_every_stop_of_the_slider_says_what_the_library_does(browser, pages):
    source = encoded().source
    X, y = np.asarray(source.X), np.asarray(source.y)
    model = sp.glm.LogisticRegression(l2=L2, fit_intercept=True).fit(X, y)
    browser.open(pages["table"])
    assert browser.run("return Number(document.getElementById('noise').max)") + 1 == len(
        audited().curve.sigma
    )
    for place, sigma in enumerate(audited().curve.sigma):
        move(browser, place)
        leak = sp.leakage(model, X, y, noise=sp.Gaussian(float(sigma)))
        right = np.asarray(leak.membership().accuracy())
        guesses = [leak.guess(prior=prior) for prior in ("frequencies", "model")]
        guess = max(guesses, key=lambda found: np.max(np.asarray(found.gain())))
        worst = int(np.argmax(np.asarray(guess.gain())))
        error = audited().curve.error[place]
        assert values(browser) == [
            ("50 %", percent(right.max())),
            (percent(guess.baseline[worst]), percent(float(np.asarray(guess)[worst]))),
            (f"{100 * audited().curve.trivial_error:.1f} %", f"{100 * error:.1f} %"),
            number(float(np.max(np.asarray(leak.rows())))),
        ]
        own = sigma == SIGMA
        told = browser.read("#sigma")[0]
        assert told == f"{number(sigma)}, {'' if own else 'not '}this release"
        assert browser.run("return document.getElementById('back').disabled") == own


def test_the_address_holds_what_is_shown(browser, pages):
    browser.open(pages["table"])
    before = values(browser)
    move(browser, 0)
    browser.run(
        "const s = document.getElementById('group'); s.value = '1';"
        "s.dispatchEvent(new Event('change'))"
    )
    browser.unfold("every")
    browser.type("#search", "> 2")
    browser.click("#heads th:nth-child(3) button")
    state = (values(browser), browser.read("#found"), browser.read("#bars text"))
    address = browser.run("return location.href")
    assert values(browser) != before
    browser.driver.get("about:blank")
    browser.driver.get(address)
    again = (values(browser), browser.read("#found"), browser.read("#bars text"))
    assert again == state
    assert browser.run("return document.getElementById('every').open")
    browser.click("#back")
    assert values(browser) == before
    # A link to a part opens it; one to nothing does no harm.
    browser.driver.get("about:blank")
    browser.driver.get(f"{pages['table'].as_uri()}#columns")
    assert browser.run("return document.getElementById('columns').open")
    browser.driver.get("about:blank")
    browser.driver.get(f"{pages['table'].as_uri()}#noise=7.7&group=99&sort=-77&open=nothing,first")
    assert values(browser) == before
    assert browser.messages() == []


def test_the_keyboard_moves_the_noise_and_a_reader_aloud_is_told(browser, pages):
    from selenium.webdriver.common.keys import Keys

    browser.open(pages["table"])
    slider = browser.driver.find_element("id", "noise")
    slider.send_keys(Keys.END)
    last = audited().curve.sigma[-1]
    assert slider.get_attribute("aria-valuetext").startswith(f"{number(last)}: Recognised")
    slider.send_keys(Keys.HOME)
    first = audited().curve.sigma[0]
    assert slider.get_attribute("aria-valuetext").startswith(f"{number(first)}: Recognised")
    told = browser.driver.find_element("id", "bars").get_attribute("aria-label")
    assert re.search(r"\d+ above the limit", told)


@pytest.mark.parametrize("kind", sampled(KINDS, 1))
def test_it_prints_on_one_page(browser, pages, kind):
    browser.open(pages[kind])
    assert len(re.findall(rb"/Type\s*/Page\b", printed(browser))) == 1


def printed(browser):
    asked = {"preferCSSPageSize": True, "printBackground": True}
    return base64.b64decode(browser._command("Page.printToPDF", asked)["data"])


def test_a_full_screen_prints_on_one_page_too(browser, tmp_path):
    """With every kind of remedy, four limits that are not met, and long names."""
    audit = make_gated(False)
    found = audit.remedies[0].usefulness
    remedies = tuple(
        Remedy(
            kind=kind,
            sigma=0.0123,
            l2=0.0456,
            rounds=9,
            public=40,
            eta=1.0,
            error=0.1,
            usefulness=found,
        )
        for kind in RemedyKind
    )
    gates = (audit.gates[0],) * 4
    guess = GuessFinding("a long name of a column", "model", 0.9, 0.5, 7, 0.5, 0.5, 569)
    risks = replace(audit.risks, membership=0.9, guesses=(guess,))
    full = replace(audit, remedies=remedies, gates=gates, risks=risks, preset="open")
    page = AuditReport(full).write(tmp_path / "full")
    browser.open(page)
    assert len(re.findall(rb"/Type\s*/Page\b", printed(browser))) == 1


@needs_axe
@pytest.mark.parametrize("kind", sampled(KINDS, 1))
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_accessible_with_all_folds_open(browser, pages, kind, dark):
    browser.open(pages[kind], NARROW if dark else DESKTOP, dark)
    browser.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    found = [
        (v["id"], v["help"], [node["html"][:120] for node in v["nodes"][:3]])
        for v in browser.violations()
    ]
    assert found == []
