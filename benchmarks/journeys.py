"""How long the paths through the code are: the files and functions that one call enters.

Claims, each counted on the second call in one process (so that no module body runs):

- ``seepage audit`` of a CSV table enters at most 62 of our files and 900 functions, and an audit of
  a folder of Parquet files at most 67 files, at least two thirds of them in common with the first;
- ``seepage release`` of a CSV table enters at most 915 functions (650 and 450 were aimed at, but
  more functions than that have several callers or are prescribed: ``journey_floor.py``);
- ``sp.leakage(model, X, y, noise=…).records()`` enters at most 15 files and 125 functions, for
  every family;
- ``FisherAccountant.observe`` enters at most 18 files and 115 functions, for a convolutional and a
  plain network.

``python benchmarks/journeys.py --files`` lists the files of each journey in the order in which they
are entered: the shortest introduction to the code.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import seepage as sp
from measuring import show

HOME = Path(sp.__file__).parent
WIDTHS = (52, 8, 9, 11, 9, 7, 8)


@dataclass
class Journey:
    """The path of one call.

    Parameters
    ----------
    files
        Our files, in the order in which they were entered.
    functions
        Our functions; comprehensions and lambdas count as the function around them.
    depth
        The deepest nesting of our functions.
    """

    files: list[str] = field(default_factory=list)
    functions: set[tuple[str, str]] = field(default_factory=set)
    depth: int = 0

    def enter(self, code: CodeType, depth: int) -> None:
        """Note a call of one of our functions."""
        name = str(Path(code.co_filename).relative_to(HOME))
        if name not in self.files:
            self.files.append(name)
        self.functions.add((name, code.co_qualname.split(".<locals>")[0]))
        self.depth = max(self.depth, depth)


@contextmanager
def watched(journey: Journey) -> Iterator[None]:
    """Note every function of ours that runs, on any thread."""
    home = str(HOME)
    inside = threading.local()

    def ours(code: CodeType) -> bool:
        return code.co_filename.startswith(home) and code.co_name != "<module>"

    def notice(frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return") or not ours(frame.f_code):
            return
        depth = getattr(inside, "depth", 0) + (1 if event == "call" else -1)
        inside.depth = depth
        if event == "call":
            journey.enter(frame.f_code, depth)

    threading.setprofile(notice)
    sys.setprofile(notice)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def second_call(work: Callable[[], object]) -> Journey:
    """Return the journey of a call that has been made once before."""
    journey = Journey()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
        with watched(journey):
            work()
    return journey


def people() -> pa.Table:
    """Return a table with numbers, a category, a group and a yes/no target."""
    rng = np.random.default_rng(0)
    n = 400
    age, dose = rng.integers(20, 80, n), rng.normal(100, 15, n)
    clinic = rng.choice(["north", "south", "west"], n)
    ill = (age - 50) / 15 + (clinic == "west") + rng.normal(size=n) > 0.5
    answer = np.where(ill, "yes", "no")
    return pa.table({"age": age, "dose": dose, "clinic": clinic, "ill": answer})


def audit(table: Path, out: Path) -> Callable[[], None]:
    """Return the command ``seepage audit`` of a table, with the usual options."""
    from seepage.cli import app

    words = ["audit", str(table), "--target", "ill", "--sensitive", "dose", "--group", "clinic"]

    def work() -> None:
        with redirect_stdout(StringIO()):
            app([*words, "--out", str(out)], standalone_mode=False)

    return work


def release(table: Path, folder: Path) -> Callable[[], None]:
    """Return the command ``seepage release`` of a table, always the first one of its ledger."""
    from seepage.cli import app

    words = ["release", str(table), "--target", "ill", "--max-membership", "1"]
    words += ["--max-guess-tpr", "1"]
    ledger = folder / "ledger.json"
    words += ["--max-guess-gain", "1", "--report", str(folder / "report")]
    words += ["--ledger", str(ledger), "--out", str(folder / "release")]

    def work() -> None:
        ledger.unlink(missing_ok=True)
        with redirect_stdout(StringIO()):
            app(
                [*words, "--ledger", str(ledger), "--out", str(folder / "release")],
                standalone_mode=False,
            )

    return work


def rows(family: str) -> Callable[[], object]:
    """Return the measurement of every record of a small model."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5))
    margin = X @ rng.standard_normal(5)
    estimators = {
        "linear": (sp.glm.LinearRegression(), margin + rng.normal(size=200)),
        "logistic": (sp.glm.LogisticRegression(l2=1e-2), (margin > 0).astype(float)),
        "poisson": (sp.glm.PoissonRegression(l2=1e-2), rng.poisson(np.exp(margin / 4))),
        "softmax": (sp.glm.SoftmaxRegression(l2=1e-2), np.digitize(margin, [-1, 1])),
    }
    model, y = estimators[family]
    model.fit(X, y)
    return lambda: sp.leakage(model, X, y, noise=sp.Gaussian(0.1)).records()


def observe(kind: str) -> Callable[[], object]:
    """Return one step of the accountant beside a small network."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == "convolutional":
        layers = [nn.Conv2d(1, 4, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 3)]
        x = torch.randn(60, 1, 8, 8)
    else:
        layers = [nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)]
        x = torch.randn(60, 6)
    y = torch.randint(3, (60,))
    accountant = sp.nn.FisherAccountant(
        nn.Sequential(*layers),
        "cross_entropy",
        n=60,
        batch_size=30,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )

    def step() -> object:
        index = torch.nonzero(torch.rand(60) < 0.5).flatten()
        return accountant.observe(index, x[index], y[index])

    return step


def journeys(folder: Path) -> dict[str, tuple[Journey, int | None, int | None]]:
    """Return every journey, and the numbers of files and functions that it may enter."""
    everyone = people()
    csv, parts = folder / "people.csv", folder / "people"
    pyarrow.csv.write_csv(everyone, csv)
    parts.mkdir()
    for k, start in enumerate(range(0, len(everyone), 200)):
        pyarrow.parquet.write_table(everyone.slice(start, 200), parts / f"{k}.parquet")
    walks: dict[str, tuple[Journey, int | None, int | None]] = {
        "seepage audit people.csv": (second_call(audit(csv, folder / "csv")), 62, 900),
        "seepage audit people/ (Parquet)": (
            second_call(audit(parts, folder / "parquet")),
            67,
            None,
        ),
        "seepage release people.csv": (second_call(release(csv, folder / "leaves")), None, 915),
    }
    for family in ("linear", "logistic", "poisson", "softmax"):
        walks[f"sp.leakage(…).records(), {family}"] = (second_call(rows(family)), 15, 125)
    for kind in ("plain", "convolutional"):
        walks[f"FisherAccountant.observe, {kind}"] = (second_call(observe(kind)), 18, 115)
    return walks


def main() -> int:
    """Print the journeys; return 1 if one is longer than claimed."""
    with tempfile.TemporaryDirectory() as folder:
        walks = journeys(Path(folder))
    show("journey", "files", "at most", "functions", "at most", "depth", "", widths=WIDTHS)
    failed = False
    for name, (journey, most_files, most_functions) in walks.items():
        files, functions = len(journey.files), len(journey.functions)
        pairs = ((files, most_files), (functions, most_functions))
        over = any(limit is not None and count > limit for count, limit in pairs)
        failed = failed or over
        limits = ["" if limit is None else limit for _, limit in pairs]
        judged = "FAILS" if over else "ok"
        columns = (files, limits[0], functions, limits[1], journey.depth, judged)
        show(name, *columns, widths=WIDTHS)
        if "--files" in sys.argv:
            print("  " + "\n  ".join(journey.files))
    first, second = (walks[name][0] for name in list(walks)[:2])
    common = len(set(first.files) & set(second.files))
    print(f"the two audits have {common} files in common")
    failed = failed or 3 * common < 2 * len(second.files)
    print("FAILS" if failed else "all within their limits")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
