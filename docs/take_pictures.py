"""Take the pictures of reports in ``docs/assets``: ``python docs/take_pictures.py``.

Needs Chromium and its driver, and the real data in ``SEEPAGE_DATA`` for IWPC and Adult.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "auditing" / "report"))

from browser import DESKTOP, Browser  # noqa: E402

from seepage.cli import app  # noqa: E402
from seepage.data.loaders import ADULT_COLUMNS  # noqa: E402


def reports(folder: Path) -> dict[str, list[str]]:
    """Return the command that writes each report, without its output folder."""
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
    commands["report-adult"] = ["audit", str(adult), *words.split()]
    words = "--target income --drop fnlwgt --model-kind forest"
    commands["report-forest"] = ["audit", str(adult), *words.split()]
    return commands


def main() -> None:
    """Write every report and photograph its first screen."""
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder) / "profile")
        for name, command in reports(Path(folder)).items():
            out = Path(folder) / name
            app([*command, "--out", str(out)], standalone_mode=False)
            browser.open(out / "report.html", DESKTOP)
            browser.driver.save_screenshot(str(HERE / "assets" / f"{name}.png"))
        browser.close()


if __name__ == "__main__":
    main()
