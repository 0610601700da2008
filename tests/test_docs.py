"""Runs every example of the documentation: what a page shows is what a reader gets.

On a page, a fence marked ``python`` is code. The fence after it, where it is marked ``text`` and
nothing stands between, is what the code prints; code without one prints nothing. All code of a page
runs in one namespace, from top to bottom. Examples in docstrings are ordinary doctests.
"""

from __future__ import annotations

import ast
import doctest
import io
import pkgutil
import re
import subprocess
import sys
import tomllib
import unicodedata
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import dask.config
import pytest

import reproduction
import seepage as sp
from seepage.glm import losses

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Example:
    code: str
    line: int
    printed: str


def examples(page: Path) -> Iterator[Example]:
    """Yield the code of a page, each piece with its line and what it is said to print."""
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    for fence, after in zip(fences, [*fences, None][1:], strict=True):
        if fence[1] != "python":
            continue
        shown = ""
        if after and after[1] == "text" and not text[fence.end() : after.start()].strip():
            shown = after[2]
        yield Example(fence[2], text.count("\n", 0, fence.start(2)), shown)


def definitions(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield a module, its functions, its classes and what is in them, each with its full name."""
    yield name, node
    for part in node.body if isinstance(node, ast.Module | ast.ClassDef) else ():
        if isinstance(part, ast.ClassDef | ast.FunctionDef):
            yield from definitions(part, f"{name}.{part.name}")


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield what has an example in its docstring, by its module's name and its own.

    They are read, not loaded: some modules load what takes seconds.
    """
    for package in (sp, reproduction):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            text = Path(found.module_finder.find_spec(found.name).origin).read_text("utf-8")
            if ">>> " in text:
                for name, node in definitions(ast.parse(text), found.name):
                    if ">>> " in (ast.get_docstring(node) or ""):
                        yield found.name, name


@cache
def doctests(module: str) -> dict[str, doctest.DocTest]:
    """Return the examples of a module by the names of what they are of."""
    found = doctest.DocTestFinder().find(import_module(module), module)
    return {test.name: test for test in found if test.examples}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path):
    """Keep what examples write or register away from the repository and the other tests."""
    monkeypatch.chdir(tmp_path)
    # A cluster of another test may be named as Dask's scheduler though it is gone by now.
    monkeypatch.delitem(dask.config.config, "scheduler", raising=False)
    monkeypatch.setattr(losses, "_registry", dict(losses._registry))


# Pages that train networks, attack them, or start processes
SLOW = {
    "docs/how-to/dask.md",
    "docs/how-to/federated.md",
    "docs/how-to/flower.md",
    "docs/how-to/gradient-inversion.md",
    "docs/how-to/huggingface.md",
    "docs/how-to/layers.md",
    "docs/how-to/neural-networks.md",
    "docs/how-to/plis.md",
    "docs/how-to/private-sgd.md",
    "docs/how-to/reweighting.md",
    "docs/how-to/risks.md",
    "docs/how-to/torchrun.md",
    "docs/how-to/updates.md",
}
# And docstrings that do, audit a table in full, or load what takes seconds
SLOW_NAMES = {
    "seepage.attacks.extraction.attack.Extraction",
    "seepage.attacks.property_inference.attack_layers",
    "seepage.auditing.entry.audit.audit",
    "seepage.auditing.reporting.check",
    "seepage.auditing.reporting.report",
    "seepage.layers.layer_audit.audit",
    "seepage.layers.layer_audit.audit_updates",
    "seepage.layers.measures.update_leakage.update_leakage",
    "seepage.nn.huggingface.trainer_callback.LeakageCallback",
    "seepage.nn.training.private_sgd.PrivateSGD",
}
# A page that trains a language model takes a minute or more.
LONG = {"docs/tutorial-text.md"}


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Say whether a page or a docstring is left to `make test-slow`."""
    if name in LONG:
        return [pytest.mark.minutes]
    return [pytest.mark.slow] if name in SLOW | SLOW_NAMES else []


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=marks(named(p)), id=named(p)) for p in PAGES if any(examples(p))],
)
def test_examples_of_a_page(page):
    namespace: dict[str, object] = {"__name__": "__main__"}
    for example in examples(page):
        # Empty lines in front make tracebacks point into the page.
        code = compile("\n" * example.line + example.code, str(page), "exec")
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)  # noqa: S102
        same = doctest.OutputChecker().check_output(example.printed, printed.getvalue(), FLAGS)
        assert same, (
            f"{named(page)}, line {example.line + 1}: the page shows\n{example.printed}\nbut the "
            f"code prints\n{printed.getvalue()}"
        )


@pytest.mark.parametrize(
    ("module", "name"),
    [pytest.param(module, name, marks=marks(name), id=name) for module, name in docstrings()],
)
def test_examples_of_a_docstring(module, name):
    complaints = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    runner.run(doctests(module)[name], out=complaints.write, clear_globs=False)
    assert not complaints.getvalue(), complaints.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_code_is_overlooked(page):
    # Fences that are indented, end in blanks or go by another name would not be found, nor run.
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"```\s*(?:i?py|doctest)", text)) == len(list(examples(page)))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_make_targets_exist(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    wanted = re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.M)
    assert set(wanted) <= set(targets)


GENERATED = {  # pages that programs write: in whole, or between these two lines
    "docs/api/command-line.md": (),
    "docs/how-to/models.md": ("<!-- models: made by", "<!-- end of models -->"),
}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_page_is_long(page):
    text = page.read_text(encoding="utf-8")
    if named(page) in GENERATED:
        marks = GENERATED[named(page)]
        text = text.partition(marks[0])[0] + text.partition(marks[1])[2] if marks else ""
    assert len(re.sub(r"<[^>]+>", " ", text).split()) <= 3000


def anchors(page: Path) -> set[str]:
    """Return what links may name on a page: its headings, written as the documentation does."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        words = re.sub(r"[^\w\s-]", "", plain).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", words))
    return found


READ = [*PAGES, *(ROOT / name for name in ("SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md"))]


@pytest.mark.parametrize("page", READ, ids=named)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text):
        place, _, anchor = link.partition("#")
        found = (page.parent / place).resolve() if place else page
        assert found.exists(), f"{named(page)} links to {link}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{named(page)} links to {link}"


@pytest.mark.parametrize(
    ("link", "passes"),
    [("[a](other.md#a-part)", True), ("[a](no.md)", False)],
    ids=["whole", "cut"],
)
def test_make_docs_fails_on_a_broken_link(tmp_path, link, passes):
    """The Makefile's own command builds a site of two pages."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -e '.[docs]'")
    recipe = subprocess.run(["make", "-n", "docs"], cwd=ROOT, capture_output=True, text=True).stdout  # noqa: S607
    build = next(line for line in recipe.splitlines() if "mkdocs build" in line)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# One\n\n{link}\n", "utf-8")
    (tmp_path / "docs" / "other.md").write_text("# Other\n\n## A part\n", "utf-8")
    (tmp_path / "mkdocs.yml").write_text("site_name: two\n", "utf-8")
    here = re.sub(r"\S+/mkdocs", f"{sys.executable} -m mkdocs", build)
    run = subprocess.run(here, shell=True, cwd=tmp_path, capture_output=True, text=True)  # noqa: S602
    assert (run.returncode == 0) == passes, run.stderr
    assert passes or "no.md" in run.stderr


@pytest.mark.parametrize(
    ("formula", "passes"), [(r"\eta_i^2 \le \frac{1}{2}", True), (r"\nocommand{x}", False)]
)
def test_formulas_become_mathml(tmp_path, formula, passes):
    pytest.importorskip("latex2mathml", reason="pip install -e '.[docs]'")
    (tmp_path / "docs").mkdir()
    page = f"# One\n\nLet ${formula}$ be.\n\n$$\n{formula}\n$$\n\nIt costs $5 or `$6`.\n"
    (tmp_path / "docs" / "index.md").write_text(page, "utf-8")
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    math = re.search(r"  - pymdownx.arithmatex:\n(?:      .+\n)+", settings)[0]
    hook = re.search(r"hooks:\n  - (\S+)", settings)[1]
    (tmp_path / "mkdocs.yml").write_text(
        f"site_name: one\nhooks: [{ROOT / hook}]\nmarkdown_extensions:\n{math}", "utf-8"
    )
    build = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    run = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)  # noqa: S603
    assert (run.returncode == 0) == passes, run.stderr
    if passes:
        made = (tmp_path / "site" / "index.html").read_text("utf-8")
        assert made.count("<math") == 2
        assert "$5 or" in made
    else:
        assert "nocommand" in run.stderr


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_shows_the_figures_that_its_code_saves(page):
    text = page.read_text(encoding="utf-8")
    for figure in re.findall(r"savefig\(\"([^\"]+)\"\)", text):
        assert re.search(rf"\]\((?:\.\./)*assets/{re.escape(figure)}\)", text), figure
        assert (ROOT / "docs" / "assets" / figure).is_file(), "run: make figures"


def test_badges_are_true():
    badges = re.findall(r"!\[([^]]+)\]\(https://img", (ROOT / "README.md").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    words = " ".join(project["project"]["classifiers"])
    versions = re.findall(r"Python :: (3\.\d+)", words)
    assert badges == [f"Python {' | '.join(versions)}", "Licence Apache-2.0", "Typed"]
    assert project["project"]["license"] == "Apache-2.0"
    assert project["tool"]["mypy"]["strict"]


MODULES = [sp, sp.attacks, sp.bounds, sp.data, sp.glm, sp.layers, sp.nn, sp.privacy, sp.streams]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_reference_is_complete(module):
    pages = (ROOT / "docs" / "api").glob("*.md")
    entries = re.findall(r"^::: (\S+)$", "\n".join(p.read_text() for p in pages), re.MULTILINE)
    described = {entry.rpartition(".")[2] for entry in entries}
    assert set(module.__all__) - described == set()
