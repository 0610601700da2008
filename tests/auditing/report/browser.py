"""Opens pages in headless Chromium and reports what they did: messages, requests, pictures."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
ROOT = Path(__file__).parents[3]
ARTIFACTS = ROOT / "tests" / "artifacts"
DESKTOP, PHONE = (1280, 900), (390, 844)
VIEWS = [(size, dark) for size in (DESKTOP, PHONE) for dark in (False, True)]
SCRIPT = "<script>window.owned=1</script><img src=x onerror=window.owned=1>'\"`${window.owned=1}"


def why_not() -> str:
    """Return why no browser can be driven here, or nothing."""
    if not (CHROMIUM and DRIVER):
        return "needs Chromium and its driver: apt-get install chromium chromium-driver"
    if importlib.util.find_spec("selenium") is None:
        return "needs selenium: pip install selenium"
    return ""


def find_axe() -> Path | None:
    """Return axe-core's script, from PyPI's axe-playwright-python or a folder of one's own."""
    package = importlib.util.find_spec("axe_playwright_python")  # its driver is not needed
    places = [
        os.environ.get("AXE_CORE", ""),
        *(package.submodule_search_locations if package else ()),
    ]
    scripts = (Path(place) / "axe.min.js" for place in places)
    return next((script for script in scripts if script.is_file()), None)


needs_browser = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
needs_axe = pytest.mark.skipif(
    find_axe() is None, reason="needs axe-core: pip install axe-playwright-python"
)


class Browser:
    """A headless Chromium with its own profile."""

    def __init__(self, profile: Path) -> None:
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        options = ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (
            "headless=new",
            "no-sandbox",
            "disable-gpu",
            "hide-scrollbars",
            "disable-dev-shm-usage",
            "disable-background-networking",
            "disable-component-update",
            "disable-sync",
            "no-first-run",
            f"user-data-dir={profile}",
        ):
            options.add_argument("--" + flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options=options, service=Service(DRIVER))
        self.driver.get("about:blank")  # the first tab has requests of its own

    def open(self, page: Path, size: tuple[int, int] = DESKTOP, dark: bool = False) -> None:
        """Open a file at a screen size, after forgetting what earlier pages did."""
        from selenium.webdriver.support.ui import WebDriverWait

        self._command(
            "Emulation.setDeviceMetricsOverride",
            {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE},
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}  # clicks need a still page
        self._command("Emulation.setEmulatedMedia", {"features": [theme, still]})
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(page.as_uri())
        WebDriverWait(self.driver, 30).until(
            lambda _: (
                self.run("return location.href + document.readyState") == page.as_uri() + "complete"
            )
        )

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page and return what it returns."""
        return self.driver.execute_script(script, *arguments)

    def run_later(self, script: str, *arguments: object) -> Any:
        """Run a script that calls its last argument when it is done; return what it is given."""
        return self.driver.execute_async_script(script, *arguments)

    def violations(self) -> list[dict[str, Any]]:
        """Return which rules of accessibility the page breaks, having seen that they were asked."""
        # Through the driver, since the page's policy lets no other script in.
        self.run(find_axe().read_text("utf-8"))
        found = self.run_later(
            "const done = arguments[arguments.length - 1];"
            "axe.run().then((r) => done({passes: r.passes.length, violations: r.violations}))"
        )
        assert found["passes"] > 20  # it did look
        return found["violations"]

    def unfold(self, *names: str) -> None:
        """Open parts of the page that are folded, and wait until they have noticed."""
        self.run_later(
            "const [done, ...names] = [...arguments].reverse();"
            "for (const name of names) document.getElementById(name).open = true;"
            "setTimeout(done, 50)",
            *names,
        )

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def type(self, selector: str, text: str) -> None:
        box = self.driver.find_element("css selector", selector)
        box.clear()
        box.send_keys(text)

    def read(self, selector: str) -> list[str]:
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector
        )

    def messages(self) -> list[str]:
        """Return what the page wrote to the console since it was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses asked for since the page was opened."""
        events = [json.loads(entry["message"]) for entry in self.driver.get_log("performance")]
        sent = [e["message"] for e in events if e["message"]["method"].endswith("WillBeSent")]
        return [message["params"]["request"]["url"] for message in sent]

    def picture(self, name: str) -> Path:
        """Save a picture of the whole page."""
        shot = self._command("Page.captureScreenshot", {"captureBeyondViewport": True})
        path = ARTIFACTS / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def _command(self, name: str, arguments: dict[str, Any]) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def close(self) -> None:
        self.driver.quit()
