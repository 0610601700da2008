"""What is public is what the reference lists: no name without a page, no page without a name."""

import re
from importlib import import_module
from pathlib import Path

import seepage as sp

PAGES = sorted((Path(__file__).parents[1] / "docs" / "api").glob("*.md"))
ROOMS = ("attacks", "bounds", "data", "glm", "layers", "nn", "privacy", "streams")
PACKAGES = {f"seepage.{room}" for room in ROOMS}  # their pages show the docstring alone
LISTED = {
    name for page in PAGES for name in re.findall(r"^::: (seepage[\w.]+)$", page.read_text(), re.M)
}


def home(thing):
    """Return where something is defined, as the reference names it."""
    return f"{thing.__module__}.{thing.__qualname__}"


def public():
    """Yield every public name with what it stands for; rooms and the version apart."""
    for package in (sp, *(getattr(sp, room) for room in ROOMS)):
        for name in package.__all__:
            thing = getattr(package, name)
            if name not in (*ROOMS, "__version__") and hasattr(thing, "__qualname__"):
                yield f"{package.__name__}.{name}", thing


def test_every_public_name_is_in_the_reference():
    missing = {
        name
        for name, thing in public()
        if not {name, home(thing), thing.__module__} & (LISTED - PACKAGES)
    }
    assert missing == set()


def test_everything_in_the_reference_exists():
    for listed in sorted(LISTED):
        module, _, name = listed.rpartition(".")
        try:
            import_module(listed)
        except ModuleNotFoundError:
            assert hasattr(import_module(module), name), listed


def test_docstrings_hold_no_markup_that_the_reference_would_show_raw():
    """The first parameter of ``sp.leakage`` had a role that the site does not turn into text."""
    known = {"attr", "class", "data", "func", "meth", "mod"}
    source = Path(__file__).parents[1] / "src"
    found = {
        f"{path.name}: {role}"
        for path in source.rglob("*.py")
        for role in re.findall(r":([a-z]+):`", path.read_text(encoding="utf-8"))
        if role not in known
    }
    assert found == set()


def test_papers_are_cited_by_authors_and_year():
    source = Path(__file__).parents[1] / "src"
    numbered = re.compile(r"\b[Pp]aper 00[1-4]\b|_00[1-4]\b")
    assert [p.name for p in source.rglob("*.py") if numbered.search(p.read_text("utf-8"))] == []
