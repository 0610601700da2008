"""Releases, entries of a ledger and private training, killed at random file operations.

``python killed_release.py FOLDER KIND KILLS`` forks processes, each of which does one thing in the
folder, until as many were killed before one of their file operations, and looks after each at what
is left.
It prints as JSON how many were killed, what became of the entries, and every broken promise. A
release is computed once: only what it does to the disk is repeated.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import seepage as sp
from seepage.auditing.questions import FileOptions, Limits, ReleaseQuestion
from seepage.auditing.release import command
from seepage.auditing.release.ledger import COMMITTED, ReleaseLedger, open_ledger, state_of
from seepage.auditing.report.audit_report import AuditReport
from seepage.support import files

WATCHED = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.listdir", "fcntl.flock"}


def killed(work: Callable[[], None], folder: Path, last: int) -> int | None:
    """Return how many file operations a forked process does, or nothing if it was killed."""
    counter, told = os.pipe()
    child = os.fork()
    if child == 0:
        done = 0

        def watch(event: str, arguments: tuple) -> None:
            nonlocal done
            # Modules that are imported meanwhile lie elsewhere; exchanging names shows no path.
            ours = bool(arguments) and str(folder) in os.fsdecode(os.fspath(arguments[0]))
            if event == "ctypes.dlsym" or (event in WATCHED and ours):
                done += 1
                if done == last:
                    os.kill(os.getpid(), signal.SIGKILL)

        def careful(event: str, arguments: tuple) -> None:
            try:
                watch(event, arguments)
            except TypeError:  # a number, of an open file
                return

        sys.addaudithook(careful)
        try:
            work()
            os.write(told, str(done).encode())
        except BaseException as error:
            os.write(told, f"-1 {error}".encode())
        os._exit(0)
    os.close(told)
    said = os.read(counter, 1000).decode()
    os.close(counter)
    os.waitpid(child, 0)
    if said.startswith("-1"):
        raise AssertionError(said)
    return int(said) if said else None


def manifest(folder: Path) -> str | None:
    """Return the SHA-256 of a folder's manifest."""
    path = folder / files.MANIFEST
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


class Releases:
    """A release into a folder that holds none, or an earlier one, with or without an exchange."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=60)
        table = pa.table({"x": x, "y": x + rng.normal(size=60)})
        self.table = folder / "table.parquet"
        pq.write_table(table, self.table)
        self.places = {name: folder / name for name in ("release", "report", "ledger")}
        ReleaseLedger().write(self.places["ledger"])
        self.seen: set[str] = set()
        question = ReleaseQuestion(target="y", sigma=5.0, target_eta=1e6)
        limits = Limits(max_membership=1.0, max_guess_gain=1.0, max_guess_tpr=1.0)

        def write() -> None:
            options = FileOptions()
            command.run_release(self.table, question, self.places, options=options, limits=limits)

        made = []

        def kept(*given, make=command.make_release, **named):
            made.append(make(*given, **named))
            return made[-1]

        command.make_release = kept
        write()

        def other(*given, **named):
            card = f"{made[0].release.card}\nNumber {random.random()}\n"  # noqa: S311
            return replace(made[0], release=replace(made[0].release, card=card))

        command.make_release = other
        page = self.places["report"] / "report.html"
        AuditReport.write = lambda report, out, keep=(): page  # it is private, and tested elsewhere
        self.write = write
        self.seen.add(manifest(self.places["release"]))

    def work(self) -> None:
        if random.random() < 0.5:  # noqa: S311
            files._exchange = lambda one, other: False
        self.write()

    def broken(self) -> Iterator[str]:
        out = self.places["release"]
        visible = {manifest(out), manifest(out / ".seepage-ready")} - {None}
        self.seen |= visible
        with open_ledger(self.places["ledger"]) as held:
            states = {e.about["folder"]["manifest"]: state_of(e) for e in held.ledger.entries}
        yield from ("released, not recorded" for m in visible if states.get(m) != COMMITTED)
        committed = {m for m, state in states.items() if state == COMMITTED}
        yield from ("recorded, not released" for _ in committed - self.seen)
        self.states = Counter(states.values())
        if random.random() < 0.3:  # noqa: S311
            shutil.rmtree(out, ignore_errors=True)

    def end(self) -> Iterator[str]:
        self.write()
        sp.load_release(self.places["release"])
        left = {p.name for p in self.places["release"].parent.iterdir()}
        if strange := left - {"table.parquet", "release", "report", "ledger", ".ledger.lock"}:
            yield f"left behind: {sorted(strange)}"


class Entries:
    """An entry that is recorded, or voided, by the public call."""

    def __init__(self, folder: Path) -> None:
        self.ledger = sp.LedgerFile(folder / "ledger")
        self.people = {"name": [f"P{k}" for k in range(20)]}
        self.count = self.ledger.record(self.people, "training run", epsilon=0.1)

    def work(self) -> None:
        entries = ReleaseLedger.read(self.ledger.path).entries
        counted = [k for k, e in enumerate(entries, 1) if state_of(e) == COMMITTED]
        if counted and random.random() < 0.5:  # noqa: S311
            self.ledger.void(random.choice(counted), "killed")  # noqa: S311
        else:
            self.ledger.record(self.people, "answers", epsilon=0.1)

    def broken(self) -> Iterator[str]:
        ledger = ReleaseLedger.read(self.ledger.path)
        if len(ledger.entries) not in (self.count, self.count + 1):
            yield f"{len(ledger.entries)} entries after {self.count}"
        self.count = len(ledger.entries)
        self.states = Counter(map(state_of, ledger.entries))
        spent = self.ledger.spent(self.people).epsilon
        if not np.allclose(spent, 0.1 * self.states[COMMITTED]):
            yield "the sum is another"

    def end(self) -> Iterator[str]:
        self.ledger.record(self.people, "answers", epsilon=0.1)
        if {p.name for p in self.ledger.path.parent.iterdir()} != {"ledger", ".ledger.lock"}:
            yield "left behind"


class Training:
    """Private SGD with a checkpoint at every second step, resumed after each kill."""

    def __init__(self, folder: Path) -> None:
        import torch
        from torch import nn

        from seepage.nn.training.private_sgd import PrivateSGD

        torch.set_num_threads(1)
        X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        y = (X[:, 0] > 0).long()
        self.folder, self.steps, self.last = folder, 8, 0

        def run(checkpoint: Path) -> list[list[float]]:
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(3, 2))
            given = {"steps": self.steps, "batch_size": 10, "lr": 0.1, "seed": 7}
            trainer = PrivateSGD(
                net, "cross_entropy", checkpoint=checkpoint, checkpoint_every=2, **given
            )
            trainer.fit(X, y)
            return [p.tolist() for p in net.parameters()] + [trainer.accountant_.ledger.steps]

        (folder / "whole").mkdir()
        (folder / "killed").mkdir()
        self.whole, self.run = run(folder / "whole" / "run"), run
        self.states: Counter[str] = Counter()

    def work(self) -> None:
        self.run(self.folder / "killed" / "run")

    def broken(self) -> Iterator[str]:
        if random.random() < 0.3:  # noqa: S311
            if self.run(self.folder / "killed" / "run") != self.whole:
                yield "resumed, it is another run"
            for path in (self.folder / "killed").iterdir():
                path.unlink()

    def end(self) -> Iterator[str]:
        if self.run(self.folder / "killed" / "run") != self.whole:
            yield "resumed, it is another run"


def main() -> None:
    """Fork, kill and look; what commands print goes nowhere."""
    shown = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    folder, kills = Path(sys.argv[1]).resolve(), int(sys.argv[3])
    kind = {"release": Releases, "ledger": Entries, "training": Training}[sys.argv[2]](folder)
    random.seed(0)
    moments = killed(kind.work, folder, 0)
    broken, died = list(kind.broken()), 0
    while died < kills:  # a run may do fewer things than the first, and end
        # Half of them near the end, where the folder takes its place.
        first = random.choice([1, max(1, moments - 25)])  # noqa: S311
        last = random.randint(first, moments)  # noqa: S311
        random.seed(random.getrandbits(32))  # of the child, too
        died += killed(kind.work, folder, last) is None
        broken += kind.broken()
    broken += kind.end()
    told = {"moments": moments, "killed": died, "broken": broken, "states": dict(kind.states)}
    os.write(shown, json.dumps(told).encode())


if __name__ == "__main__":
    main()
