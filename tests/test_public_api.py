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
