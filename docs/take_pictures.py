"""Take the pictures of first screens in ``docs/assets``: ``python docs/take_pictures.py``.

Each at 1280 × 900 pixels and, for a phone, at 400 × 900. Needs Chromium and its driver, and real
data in ``SEEPAGE_DATA`` for IWPC and Adult. Names after the command take these pictures alone:
``python docs/take_pictures.py report report-federated``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pandas as pd
from PIL import Image

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "auditing" / "report")]

from browser import DESKTOP, Browser  # noqa: E402

from recordings import make_report  # noqa: E402
from seepage.cli import app  # noqa: E402
from seepage.data.loaders import ADULT_COLUMNS  # noqa: E402


def reports(folder: Path) -> dict[str, list[str]]:
    """Return the command that writes each report, without its folders."""
    commands = {"report": ["demo"]}
    data = os.environ.get("SEEPAGE_DATA")
    if data is None:
        return commands
    iwpc = Path(data) / "iwpc" / "iwpc-scaled.csv"
    words = "--target dose --sensitive vkorc1 --group race --target-eta 1"
    commands["report-iwpc"] = ["audit", str(iwpc), *words.split()]
    adult = folder / "adult.csv"
    table = pd.read_csv(
        Path(data) / "adult" / "adult.data",
        names=ADULT_COLUMNS,
        skipinitialspace=True,
        na_values="?",
    )
    table.dropna().to_csv(adult, index=False)
    words = "--target income --sensitive marital-status --group sex --target-eta 1"
    commands["report-adult"] = ["audit", str(adult), *words.split(), "--preset", "partners"]
    words = "--target income --drop fnlwgt --model-kind forest"
    commands["report-forest"] = ["audit", str(adult), *words.split()]
    words = "--target dose --sigma 0.2 --preset open"
    commands["report-release"] = ["release", str(iwpc), *words.split()]
    return commands


def places(command: list[str], out: Path) -> list[str]:
    """Return where a command writes its report: of a release, beside what is released."""
    if command[0] != "release":
        return ["--out", str(out)]
    others = {"--out": "released", "--ledger": "ledger.parquet"}
    beside = [word for option, name in others.items() for word in (option, f"{out}-{name}")]
    return ["--report", str(out), *beside]


def photograph(browser: Browser, page: Path, name: str) -> None:
    """Take the first screen of a page at both sizes, in few colours: the files stay small."""
    for size, ending in ((DESKTOP, ""), ((400, 900), "-phone")):
        picture = HERE / "assets" / f"{name}{ending}.png"
        browser.open(page, size)
        browser.driver.save_screenshot(str(picture))
        with Image.open(picture) as taken:
            taken.convert("RGB").quantize(128).save(picture, optimize=True)


def main() -> None:
    """Write every report, or those that are named, and photograph its first screen."""
    named = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder) / "profile")
        for name, command in reports(Path(folder)).items():
            if not named or name in named:
                out = Path(folder) / name
                app([*command, *places(command, out)], standalone_mode=False)
                photograph(browser, out / "report.html", name)
        if not named or "report-federated" in named:
            page = make_report(apart=True).write(Path(folder) / "federated")
            photograph(browser, page, "report-federated")
        browser.close()


if __name__ == "__main__":
    main()
