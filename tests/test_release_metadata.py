"""What is published says where it comes from, and no placeholder leaves."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import types
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = ("pyproject.toml", "CHANGELOG.md", "CITATION.cff", ".ci/release-metadata")


@pytest.fixture
def tree(tmp_path):
    """Return a copy of the files that a release is checked by, ready to publish."""
    (tmp_path / ".ci").mkdir()
    for name in NAMES:
        shutil.copy(ROOT / name, tmp_path / name)
    mend(tmp_path / "pyproject.toml", r'"https://[^/"]+/', '"https://forge.internal/')
    mend(tmp_path / "CHANGELOG.md", r"(?m)^(## \[[^]]+\]) - .+$", r"\1 - 2026-01-31")
    return tmp_path


def mend(path, old, new):
    text, count = re.subn(old, new, path.read_text("utf-8"))
    assert count
    path.write_text(text, "utf-8")


def checked(tree, *wheels):
    command = [sys.executable, str(tree / ".ci" / "release-metadata"), *map(str, wheels)]
    return subprocess.run(command, capture_output=True, text=True)  # noqa: S603


def test_a_release_that_is_ready_passes(tree):
    run = checked(tree)
    assert (run.returncode, run.stdout) == (0, "Ready to publish: tag it by hand.\n")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("pyproject.toml", 'Source = ".*"', 'Source = "https://seepage.invalid/x"', "Source"),
        ("pyproject.toml", 'Source = ".*"', 'Source = "https://example.com/x"', "Source"),
        ("pyproject.toml", 'Source = ".*"', 'Source = "TODO"', "Source"),
        ("pyproject.toml", 'Issues = ".*"', 'Issues = "http://forge.internal/x"', "Issues"),
        ("pyproject.toml", 'Documentation = ".*"\n', "", "Documentation"),
        ("CHANGELOG.md", "- 2026-01-31", "- unreleased", "CHANGELOG.md"),
        ("CITATION.cff", r"\nversion: .*", "\nversion: 0.0.9", "CITATION.cff"),
    ],
)
def test_what_is_not_ready_is_refused(tree, name, old, new, said):
    mend(tree / name, old, new)
    run = checked(tree)
    assert run.returncode == 1
    assert said in run.stdout.splitlines()[0]
    assert len(run.stdout.splitlines()) == 2


def test_relative_links_of_a_built_package_are_refused(tree):
    wheel = tree / "seepage-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        text = "Name: seepage\n\n# seepage\n[a](docs/a.md) [b](https://forge.internal/b)\n"
        packed.writestr("seepage-0.1.0.dist-info/METADATA", text)
    run = checked(tree, wheel)
    assert run.returncode == 1
    assert "docs/a.md" in run.stdout


def test_addresses_are_all_real_or_all_placeholders():
    """A mixture would mean that one was forgotten, or that one was invented."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    is_placeholder = runpy.run_path(str(ROOT / ".ci" / "release-metadata"))["is_placeholder"]
    assert len({is_placeholder(address) for address in urls.values()}) == 1


def test_the_description_has_absolute_links():
    pytest.importorskip("hatchling", reason="needs hatchling")
    absolute = runpy.run_path(str(ROOT / "hatch_build.py"))["absolute"]
    text = absolute((ROOT / "README.md").read_text("utf-8"), "https://forge.internal/x")
    assert "](https://forge.internal/x/raw/HEAD/docs/assets/report.png)" in text
    assert "](https://forge.internal/x/blob/HEAD/docs/sharp-edges.md)" in text
    assert not re.findall(r"\]\((?!https://|#)", text)


@pytest.mark.parametrize("real", [True, False])
def test_the_site_has_the_address_of_the_project_unless_it_is_a_placeholder(tree, real):
    if not real:
        mend(tree / "pyproject.toml", r'"https://[^/"]+/', '"https://seepage.invalid/')

    class Settings(dict):
        config_file_path = str(tree / "mkdocs.yml")

    settings = runpy.run_path(str(ROOT / "docs" / "site_address.py"))["on_config"](Settings())
    found = {"site_url", "repo_url"} if real else set()
    assert {key for key, value in settings.items() if value.startswith("https://forge")} == found
    assert set(settings) == found


@pytest.mark.parametrize("source", ["https://forge.internal/x", None])
def test_links_to_files_beside_the_documentation_lead_to_the_source(source):
    lead = runpy.run_path(str(ROOT / "docs" / "site_address.py"))["on_page_markdown"]
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="reproduction/fil.md"))
    text = "[`a.py`](../../reproduction/a.py), [b](../how-to/b.md), ![c](c.png), [d](d.json)"
    path = "https://forge.internal/x/blob/HEAD/reproduction/a.py"
    link = f"[`a.py`]({path})" if source else "`a.py`"
    wanted = f"{link}, [b](../how-to/b.md), ![c](c.png), [d](d.json)"
    assert lead(text, page=page, config={"repo_url": source}, files=None) == wanted
