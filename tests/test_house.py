"""The plan of the house: folders one can hold in mind, names that mean one thing."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import FunctionType

import pytest

from seepage.core.composition import ComposedJacobian
from seepage.core.jacobian import EntryJacobian, ReleaseJacobian
from seepage.glm.jacobian.operator import GLMJacobian, PairedJacobian, SingleOutputJacobian
from seepage.glm.preprocessing.jacobian import RawJacobian

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "src" / "seepage", ROOT / "reproduction")
FILES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
FOLDERS = sorted({path.parent for path in FILES})
MOST_FILES = 14
MOST_SKIPS = 9
MOST_NAMED_NUMBERS = 150


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


def module_of(path: Path) -> str:
    """Return the dotted name that a file is imported by."""
    base = ROOT / "src" if path.is_relative_to(ROOT / "src") else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(text: str, module: str, package: bool = False) -> Iterator[str]:
    """Give every dotted name that a file's code imports, wherever in the file it does so.

    Imports for type checkers and inside functions count, and so do relative ones and names given
    to ``import_module``.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".") + ["__init__"] * package
            above = parents[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            given = [a.value for a in node.args if isinstance(a, ast.Constant)]
            yield from (name for name in given if isinstance(name, str))


def file_imports(texts: Mapping[str, str], packages: frozenset[str]) -> dict[str, set[str]]:
    """Return which of some modules each imports; a name in a module counts as the module."""
    graph: dict[str, set[str]] = {}
    for module, text in texts.items():
        names = imported_by(text, module, module in packages)
        found = (name if name in texts else name.rpartition(".")[0] for name in names)
        graph[module] = {name for name in found if name in texts and name != module}
    return graph


def circle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of one circle of imports, in order; none if there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_file_imports_another_that_imports_it():
    texts = {module_of(path): path.read_text(encoding="utf-8") for path in FILES}
    packages = frozenset(module_of(path) for path in FILES if path.stem == "__init__")
    graph = file_imports(texts, packages)
    # The counter sees the imports: there are more of them than files.
    assert sum(map(len, graph.values())) > 2 * len(FILES)
    assert circle_in(graph) == []


@pytest.mark.parametrize(
    "back",
    [
        "from a.first import thing",
        "import a.first",
        "from a import first",
        "from .first import thing",
        "from . import first",
        "if TYPE_CHECKING:\n    from a.first import Thing",
        "def late():\n    from a.first import thing",
        "def hidden():\n    return importlib.import_module('a.first')",
    ],
)
def test_a_circle_is_seen_however_it_is_imported(back):
    texts = {"a": "", "a.first": "from a.second import other", "a.second": back}
    circle = circle_in(file_imports(texts, frozenset({"a"})))
    assert set(circle) == {"a.first", "a.second"}


def methods(kind: type) -> set[str]:
    """Return the names of all methods and properties of a class, private and inherited ones too."""
    callables = (FunctionType, property, cached_property, classmethod, staticmethod)
    named = (vars(base).items() for base in kind.__mro__ if base.__module__.startswith("seepage"))
    found = {name for items in named for name, value in items if isinstance(value, callables)}
    return found - {"__init__"}


def test_an_operator_says_little():
    assert len(methods(ReleaseJacobian)) <= 15
    kinds = (
        EntryJacobian,
        ComposedJacobian,
        GLMJacobian,
        PairedJacobian,
        SingleOutputJacobian,
        RawJacobian,
    )
    counts = {kind.__name__: len(methods(kind)) for kind in kinds}
    assert {name: count for name, count in counts.items() if count > 25} == {}


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


def is_number(node: ast.expr) -> bool:
    """Return whether an expression is a number, or made of numbers alone."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return bool(parts) and all(map(is_number, parts))
        case ast.Call(args=parts, keywords=[]) if parts and all(map(is_number, parts)):
            return True
        case ast.Name(id=name):  # another such name: 4 * CHUNK
            return name.isupper()
    said = ast.unparse(node)
    return "finfo" in said or said in ("np.inf", "math.inf", "math.pi", "np.pi")


def named_numbers(text: str) -> Iterator[tuple[str, bool]]:
    """Yield every name in capitals that a module or a class binds to a number, and if it says why.

    The reason is a comment on a line of the statement, or on the line above it.
    """
    lines, tree = ["", *text.splitlines(), ""], ast.parse(text)
    for body in (n.body for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef)):
        for statement in body:
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
                continue
            own = lines[statement.lineno : statement.end_lineno + 1]
            said = lines[statement.lineno - 1].strip().startswith("#") or any(
                "#" in line for line in own
            )
            single = isinstance(statement, ast.AnnAssign)
            for target in [statement.target] if single else statement.targets:
                pairs = [(target, statement.value)]
                if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                    pairs = list(zip(target.elts, statement.value.elts, strict=True))
                for name, value in pairs:
                    bare = name.id.lstrip("_") if isinstance(name, ast.Name) else ""
                    literal = any(
                        isinstance(x, ast.Constant | ast.Attribute) for x in ast.walk(value)
                    )
                    if bare.isupper() and literal and is_number(value):
                        yield name.id, said


def test_named_numbers_are_few_and_say_why():
    sources = (path for path in FILES if path.is_relative_to(ROOT / "src"))
    named = [
        (f"{short(path)} {name}", said)
        for path in sources
        for name, said in named_numbers(path.read_text(encoding="utf-8"))
    ]
    assert [place for place, said in named if not said] == []
    assert len(named) <= MOST_NAMED_NUMBERS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("_FEW = 20  # a fold needs more\nNAME = 'x'\nlower = 3\n", [("_FEW", True)]),
        ("_A, _B = 1 << 4, (0.5, -2)\n", [("_A", False), ("_B", False)]),
        ("# Rounding.\n_EPS = 4 * np.finfo(float).eps\n", [("_EPS", True)]),
        ("class C:\n    SIDE: int = 2 * _A\nALL = (ONE, TWO)\n", [("SIDE", False)]),
    ],
)
def test_named_numbers_are_seen(text, found):
    assert list(named_numbers(text)) == found


# Where code outside of tables/ and streams/ asks where records live, and why it has to. What a
# caller passes, a table or a path, is another question: glm/inputs.py makes a source of it.
WHERE_RECORDS_LIVE = {
    "src/seepage/core/leakage.py: per_record": "numbers that take a pass come when they are read",
    "src/seepage/core/risk_views.py: changes_of": "a refit without a record needs all the others",
    "src/seepage/auditing/trained_model.py: refit_work": "so do refits for advice; beyond, none",
    "src/seepage/glm/leakage.py: describe_on": "a table's labels are coded once, a chunk's as read",
    "src/seepage/glm/fitting/newton.py: minimise": "passes over files are dear, so few are taken",
}
KINDS_OF_SOURCE = {
    *(
        "DaskRows",
        "MemorySource",
        "ParquetRows",
        "ChangedSource",
        "RecordsInMemory",
    ),
    *("Objective", "RecordStream", "StreamedObjective", "Table", "TableInChunks", "TableInMemory"),
}
SAYING_IT = {"lazy", "in_memory", "is_in_memory", "streamed", "rereads"}


def asked_where_records_live(text: str) -> Iterator[str]:
    """Give the name of the function for every question in a file about where records live."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    for function in functions:
        nodes = list(ast.walk(function))
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                names = re.split(r"\W+", ast.unparse(node.args[1]))
                asks = not KINDS_OF_SOURCE.isdisjoint(names)
            else:
                named = isinstance(node, ast.Attribute) and id(node) not in called
                asks = named and node.attr in SAYING_IT
            if asks:
                yield function.name


def test_hardly_anything_asks_where_records_live():
    rooms = tuple(ROOT / "src" / "seepage" / room for room in ("tables", "streams"))
    elsewhere = [path for path in FILES if not any(path.is_relative_to(room) for room in rooms)]
    asked = {
        f"{short(path)}: {function}"
        for path in elsewhere
        for function in asked_where_records_live(path.read_text(encoding="utf-8"))
    }
    assert asked == set(WHERE_RECORDS_LIVE)
    assert len(asked) <= 5


@pytest.mark.parametrize(
    "question",
    ["source.lazy", "isinstance(x, MemorySource)", "isinstance(x, (int, tables.RecordsInMemory))"],
)
def test_a_question_where_records_live_is_seen(question):
    assert list(asked_where_records_live(f"def ask(x):\n    return {question}\n")) == ["ask"]
    assert list(asked_where_records_live("def ask(x):\n    return isinstance(x, Result)\n")) == []
