"""The plan of the house: folders one can hold in mind, names that mean one thing."""

import re
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "src" / "seepage", ROOT / "reproduction")
FILES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
FOLDERS = sorted({path.parent for path in FILES})
MOST_FILES = 14
MOST_SKIPS = 9


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def said_in(path: Path) -> str:
    """Return the docstring of a module."""
    opening = re.match(r'r?"""(.+?)"""', path.read_text(encoding="utf-8"), re.DOTALL)
    return opening[1].strip() if opening else ""


def test_a_folder_can_be_held_in_mind():
    counts = {short(f): len(list(f.glob("*.py"))) - 1 for f in FOLDERS}  # __init__ aside
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_every_file_says_what_it_is_for():
    assert [short(path) for path in FILES if not said_in(path)] == []


def test_every_folder_says_what_it_is_for_and_what_may_be_in_it():
    openings = {short(folder): said_in(folder / "__init__.py") for folder in FOLDERS}
    assert [folder for folder, said in openings.items() if len(said.split()) < 12] == []


def test_no_two_classes_have_one_name():
    homes = defaultdict(list)
    for path in FILES:
        for name in re.findall(r"^ *class (\w+)[(:]", path.read_text(encoding="utf-8"), re.M):
            homes[name].append(short(path))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_formatting_is_left_to_the_formatter():
    mark = "fmt: " + "skip"
    code = [*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    assert sum(path.read_text(encoding="utf-8").count(mark) for path in code) <= MOST_SKIPS


def test_the_wheel_holds_no_paper():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["src/seepage"]
    assert not (ROOT / "src" / "seepage" / "papers").exists()


def test_the_layers_have_no_exceptions():
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (contract,) = linter["importlinter"]["contracts"]
    assert contract["type"] == "layers"
    assert not contract.get("ignore_imports")
    rooms = {name.strip("() ") for layer in contract["layers"] for name in layer.split("|")}
    found = {
        f"seepage.{path.stem}"
        for path in (ROOT / "src" / "seepage").iterdir()
        if (path / "__init__.py").is_file() or (path.suffix == ".py" and path.stem != "__init__")
    }
    assert found <= rooms
