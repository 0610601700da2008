"""What ``seepage reproduce`` does: reproduce a table or figure, write its files, and report."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reproduction import EXPERIMENTS, Experiment, find_experiment
from reproduction.outcome import Outcome, quantity_rows, reasons
from seepage.errors import InputError
from seepage.support.files import write_private

RESULT, SVG, PNG = "result.json", "figure.svg", "figure.png"
_MATTER = ("numpy", "scipy", "scikit-learn", "matplotlib")  # their versions may change a digit

Say = Callable[[str], object]


def reproduce(name: str, out: Path, *, quick: bool, say: Say, as_json: bool = False) -> None:
    """Reproduce one experiment, or all, and report each as soon as it is done.

    With all of them, experiments whose data are not available are left out with a note. As JSON,
    the content of ``result.json`` is reported instead, or a list of all of them at the end.
    """
    wanted = list(EXPERIMENTS.values()) if name == "all" else [find_experiment(name)]
    if out.exists() and not out.is_dir():
        raise InputError(f"{out.name!r} is a file; name a folder for the results with --out.")
    start, processor = time.perf_counter(), time.process_time()
    left_out = 0
    results: list[dict[str, Any]] = []
    for experiment in wanted:
        try:
            result = _tell(experiment, out, quick, (lambda line: None) if as_json else say)
            results.append(result)
        except InputError as problem:
            if len(wanted) == 1:
                raise
            left_out += 1
            results.append({"name": experiment.name, "left_out": str(problem)})
            if not as_json:
                say(f"{experiment.name} is left out: {problem}\n")
    if as_json:
        say(_text(results if name == "all" else results[0]))
    elif len(wanted) > 1:
        made, seconds = len(wanted) - left_out, time.perf_counter() - start
        busy = time.process_time() - processor
        say(f"{made} of {len(wanted)} in {seconds:.0f} s ({busy:.0f} s of processor time).")


def write_result(
    experiment: Experiment,
    outcome: Outcome,
    out: Path,
    *,
    quick: bool,
    seconds: float,
    processor_seconds: float,
) -> dict[str, Any]:
    """Write ``result.json``, ``figure.svg`` and ``figure.png`` into a folder; return the first.

    The processor's time is that of all threads: unlike the other, it hardly depends on what else
    the machine does.
    """
    found = {
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "place": experiment.place,
        "setting": outcome.setting,
        "kept": list(outcome.kept),
        "quantities": [quantity.to_json() for quantity in outcome.quantities],
        "seen": outcome.seen,
        "alternative": outcome.figure.alternative,
        "quick": quick,
        "seconds": round(seconds, 2),
        "processor_seconds": round(processor_seconds, 2),
        "versions": _versions(),
    }
    home = out / experiment.name
    write_whole(home / SVG, outcome.figure.svg.encode())
    write_whole(home / PNG, outcome.figure.png)
    write_whole(home / RESULT, f"{_text(found)}\n".encode())
    return found


def _text(found: Any) -> str:
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, readable by everyone: it is about public data sets."""
    write_private(path, lambda file: file.write(content))
    path.chmod(0o644)


def _tell(experiment: Experiment, out: Path, quick: bool, say: Say) -> dict[str, Any]:
    """Run, write and report; return the content of ``result.json``."""
    start, processor = time.perf_counter(), time.process_time()
    outcome = experiment.reproduce(quick=quick)
    seconds, busy = time.perf_counter() - start, time.process_time() - processor
    found = write_result(
        experiment, outcome, out, quick=quick, seconds=seconds, processor_seconds=busy
    )
    say(f"{experiment.name}: {experiment.title} ({experiment.paper}, {experiment.place})")
    rows = quantity_rows(outcome.quantities)
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say(f"  {line}".rstrip())
    for k, reason in enumerate(reasons(outcome.quantities), start=1):
        say(f"  ({k}) {reason}")
    say(f"  {outcome.seen}")
    if quick:
        say("  (--quick: less data or fewer trials; the numbers are not those to compare)")
    where = f"{out / experiment.name / RESULT}, {SVG}, {PNG}"
    say(f"  {where} in {seconds:.1f} s ({busy:.1f} s of processor time)\n")
    return found


def _versions() -> dict[str, Any]:
    """Return the versions that the numbers were made with."""
    from seepage import __version__

    own = {"seepage": __version__, "python": platform.python_version()}
    return own | {package: version(package) for package in _MATTER}
