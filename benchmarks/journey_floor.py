"""How few functions a path through the code can enter before code is repeated or a feature goes.

A function with a single caller can live in that caller. All others cannot without writing the same
lines twice: those with two callers or more, those that a class or a protocol prescribes (overrides,
special methods), and those that users call by name. Their number is the floor under a journey of
``journeys.py``, however the code is cut.

An entered function counts as shared if two other functions of the package name it, anywhere where
its name is defined once, otherwise in its own file, or if two functions were seen to call it.
Whatever cannot be decided counts as having a single caller, so the floor errs downwards.

``python benchmarks/journey_floor.py`` prints, for ``seepage audit`` and ``seepage release``, the
functions entered, the floor, and why its functions cannot be folded.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow.csv

from journeys import HOME, audit, people, release
from measuring import show

Function = tuple[str, str]  # a file, and the function's qualified name in it
WIDTHS = (24, 9, 7, 10, 12, 8, 10)


class Callers(ast.NodeVisitor):
    """Finds which functions of a file name which others, and what its classes prescribe."""

    def __init__(self, file: str) -> None:
        self.file, self.inside = file, ["<module>"]
        self.defined: list[str] = []
        self.naming: defaultdict[str, set[str]] = defaultdict(set)  # functions that use a name
        self.bases: dict[str, list[str]] = {}
        self.methods: defaultdict[str, set[str]] = defaultdict(set)  # of a class

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Enter a function; one inside another counts as a part of it."""
        owner = self.inside[-1]
        nested = owner != "<module>" and not owner.endswith(".")
        name = owner if nested else owner.removeprefix("<module>") + node.name
        if not nested:
            self.defined.append(name)
            if "." in name:
                self.methods[name.split(".")[-2]].add(node.name)
        self.inside.append(name)
        self.generic_visit(node)
        self.inside.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Enter a class."""
        bases = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
        self.bases[node.name] = bases
        self.inside.append(f"{node.name}.")
        self.generic_visit(node)
        self.inside.pop()

    def visit_Name(self, node: ast.Name) -> None:
        """Note the use of a name."""
        self.naming[node.id].add(f"{self.file}:{self.inside[-1]}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note the use of an attribute."""
        self.naming[node.attr].add(f"{self.file}:{self.inside[-1]}")
        self.generic_visit(node)


class Package:
    """The package's functions, and for each the reason why it cannot live in a caller."""

    def __init__(self) -> None:
        self.files: dict[str, Callers] = {}
        for path in HOME.rglob("*.py"):
            file = str(path.relative_to(HOME))
            self.files[file] = Callers(file)
            self.files[file].visit(ast.parse(path.read_text("utf-8")))
        every = self.files.values()
        self.definitions = Counter(name.split(".")[-1] for each in every for name in each.defined)
        self.naming: defaultdict[str, set[str]] = defaultdict(set)
        for each in every:
            for name, where in each.naming.items():
                self.naming[name] |= where
        self.bases = {name: bases for each in every for name, bases in each.bases.items()}
        self.methods = {name: own for each in every for name, own in each.methods.items()}
        self.public = "\n".join(path.read_text("utf-8") for path in HOME.rglob("__init__.py"))

    def reason(self, function: Function, callers: set[Function]) -> str:
        """Return why a function cannot live in its caller, or nothing if it can."""
        file, qualified = function
        *owners, name = qualified.split(".")
        if name.startswith("__") or name == "<lambda>":
            return "special"
        if owners and self._prescribed(owners[-1], name):
            return "prescribed"
        if f'"{owners[-1] if owners else name}"' in self.public and not name.startswith("_"):
            return "public"
        own = f"{file}:{qualified}"
        alone = self.definitions[name] == 1
        named = self.naming[name] if alone else self.files[file].naming[name]
        shared = len(named - {own}) > 1 or len(callers - {function}) > 1
        return "shared" if shared else ""

    def _prescribed(self, owner: str, name: str) -> bool:
        above = list(self._above(owner))
        if any(name in self.methods.get(base, ()) for base in above):
            return True
        return any(
            owner in set(self._above(other)) and name in self.methods.get(other, ())
            for other in self.bases
        )

    def _above(self, owner: str) -> Iterator[str]:
        for base in self.bases.get(owner, ()):
            yield base
            yield from self._above(base)


def callers(work: Callable[[], object]) -> dict[Function, set[Function]]:
    """Return the functions that a second call enters, and by which of ours each was called."""
    home, seen = str(HOME), defaultdict[Function, set[Function]](set)

    def ours(frame: FrameType | None) -> Function | None:
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(home) and code.co_name != "<module>":
                name = code.co_qualname.split(".<locals>")[0]
                return str(Path(code.co_filename).relative_to(HOME)), name
            frame = frame.f_back
        return None

    def notice(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(home):
            entered = ours(frame)
            if entered is not None:
                caller = ours(frame.f_back)
                seen[entered] |= {caller} if caller is not None else set()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
        sys.setprofile(notice)
        try:
            work()
        finally:
            sys.setprofile(None)
    return seen


def main() -> None:
    """Print the floors."""
    package = Package()
    columns = ("shared", "prescribed", "public", "special")
    show("journey", "entered", "floor", *columns, widths=WIDTHS)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "people.csv"
        pyarrow.csv.write_csv(people(), table)
        walks = {
            "seepage audit": audit(table, Path(folder) / "csv"),
            "seepage release": release(table, Path(folder) / "leaves"),
        }
        for name, work in walks.items():
            found = callers(work)
            reasons = Counter(package.reason(function, by) for function, by in found.items())
            floor = sum(reasons[column] for column in columns)
            counts = [reasons[column] for column in columns]
            show(name, len(found), floor, *counts, widths=WIDTHS)


if __name__ == "__main__":
    main()
