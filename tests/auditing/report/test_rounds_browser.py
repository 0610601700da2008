"""Opens reports on recorded rounds in Chromium: nothing breaks, nothing is asked of the network."""

from __future__ import annotations

import pytest
from browser import DESKTOP, PHONE, SCRIPT, VIEWS, needs_axe, needs_browser

from recordings import make_report
from sampled import sampled

pytestmark = needs_browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    reports = {
        "plain": make_report(),
        "apart": make_report(apart=True, passed=False, values=True),
        "hostile": make_report(SCRIPT, passed=False, values=True),
        "wide": make_report("wide" * 500),
    }
    folder = tmp_path_factory.mktemp("pages")
    return {name: r.write(folder / name) for name, r in reports.items()}


@pytest.mark.parametrize(
    "name", sampled(["plain", "apart", "hostile", "wide"], 0, ["hostile", "wide"])
)
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_nothing_is_said_or_asked_and_nothing_is_too_wide(browser, pages, name, size):
    browser.open(pages[name], size)
    assert browser.messages() == []
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.run("return window.owned") is None
    assert browser.run("return document.documentElement.scrollWidth") <= size[0]


@pytest.mark.parametrize(("size", "dark"), sampled(VIEWS, 0, 2))
def test_pictures_for_people_to_look_at(browser, pages, size, dark):
    name = f"rounds-{'phone' if size == PHONE else 'desktop'}-{'dark' if dark else 'light'}"
    browser.open(pages["apart"], size, dark)
    assert browser.picture(name).stat().st_size > 50_000


@needs_axe
@pytest.mark.parametrize(
    ("name", "size", "dark"),
    sampled([*(("apart", size, dark) for size, dark in VIEWS), ("plain", DESKTOP, False)], 0, 3),
)
def test_accessibility(browser, pages, name, size, dark):
    browser.open(pages[name], size, dark)
    assert [
        (v["id"], [node["html"][:120] for node in v["nodes"]]) for v in browser.violations()
    ] == []
