"""Audits of a forest and of boosting on UCI Adult: the three commands of docs/how-to/audit.md.

``adult.csv`` is the training file with gaps where a value is unknown. Printed for each command, and
kept in ``results/attack_audits.json``: how often its strongest attack tells a member from an
outsider, how many members it finds at 1 % false positives, both with 95 % intervals, how many
records have their class stated with certainty, and the seconds of processor time. Needs UCI Adult
in SEEPAGE_DATA.
"""

from __future__ import annotations

import io
import json
import shlex
import tempfile
import time
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

import seepage as sp
from keeping import keep
from measuring import show
from seepage.cli import app

KEPT = Path(__file__).parent / "results" / "attack_audits.json"
COMMON = "audit adult.csv --target income --missing drop"
COMMANDS = {
    "forest, without fnlwgt": f"{COMMON} --drop fnlwgt --model-kind forest",
    "boosting, without fnlwgt": f"{COMMON} --drop fnlwgt --model-kind boosting",
    "forest, with fnlwgt": f"{COMMON} --model-kind forest",
}
CERTAIN = "class disclosure"
WIDTHS = (26, 22, 24, 12, 9)


def write_adult(path: Path) -> None:
    """Write the training file as a table with a header."""
    people = sp.data.load_adult(download=False).train
    columns = {
        name: [None if value == "?" else value for value in values.tolist()]
        for name, values in people.columns.items()
    }
    pyarrow.csv.write_csv(pa.table(columns), path)


def audited(command: str) -> dict[str, Any]:
    """Run a command in this folder and return its findings."""
    start = time.process_time()
    with redirect_stdout(io.StringIO()) as printed:
        app([*shlex.split(command), "--json"], standalone_mode=False)
    spent = time.process_time() - start
    found = json.loads(printed.getvalue())
    best = max(found["attacks"], key=lambda attack: attack["auc"])
    certain = [risk["records"] for risk in found["structure"] if risk["name"] == CERTAIN]
    return {
        "command": f"seepage {command}",
        "records": found["model"]["records"],
        "attacked": found["attacked"],
        "attack": best["method"],
        "auc": [best["auc"], *best["auc_interval"]],
        "found at 1 %": [best["tpr"]["0.01"]["rate"], *best["tpr"]["0.01"]["interval"]],
        CERTAIN: certain[0] if certain else 0,
        "seconds": spent,
    }


if __name__ == "__main__":
    figures = {}
    show("", "told from outsiders", "found at 1 %", "certain", "seconds", widths=WIDTHS)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        write_adult(Path("adult.csv"))
        for name, command in COMMANDS.items():
            figures[name] = one = audited(command)
            told, at = (
                "{:.3f} ({:.3f} to {:.3f})".format(*one[key]) for key in ("auc", "found at 1 %")
            )
            show(name, told, at, f"{one[CERTAIN]:,}", f"{one['seconds']:.0f}", widths=WIDTHS)
    keep(figures, KEPT)
