"""Make notebooks of six pages of the documentation and run them: ``make notebooks``.

A page's ``python`` fences become cells of code, and what stands between them cells of text. The
outputs that a page shows are left out: a notebook has its own, from being run here.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = {
    "table": "docs/tutorial.md",
    "network": "docs/how-to/neural-networks.md",
    "opacus": "docs/how-to/private-sgd.md",
    "federated": "docs/how-to/federated.md",
    "flower": "docs/how-to/flower.md",
    "text": "docs/tutorial-text.md",
}
_SHOWN = re.compile(r"(^```python\n.*?^```\n)\n*^```text\n.*?^```\n", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")


def notebook(page: Path) -> nbformat.NotebookNode:
    """Return a page as a notebook that has not been run."""
    text = _SHOWN.sub(r"\1", page.read_text(encoding="utf-8"))
    # Commands for a shell are text here: only Python is run.
    text = re.sub(r"^```(bash|console|toml)\n(.*?)^```$", r"~~~\1\n\2~~~", text, flags=re.M | re.S)
    made = jupytext.reads(text, fmt="md")
    folder = page.parent.relative_to(ROOT)
    for place, cell in enumerate(made.cells):
        cell.id = f"cell-{place}"  # and not at random, so that changes can be read
        if cell.cell_type == "markdown":
            cell.source = _LINK.sub(rf"](../{folder}/\1)", cell.source)
    made.metadata.clear()
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    return made


def run(made: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run a notebook in an empty folder and return it with its outputs."""
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(made, timeout=1800, resources={"metadata": {"path": folder}})
        done = client.execute()
    for cell in done.cells:
        cell.metadata.clear()  # when each cell ran
        if cell.cell_type == "code":  # bars and warnings name paths of the machine
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    done.metadata.pop("language_info", None)
    return done


def main() -> None:
    """Write the notebooks that are named, or all."""
    for name in sys.argv[1:] or NOTEBOOKS:
        print(f"notebooks/{name}.ipynb")
        nbformat.write(run(notebook(ROOT / NOTEBOOKS[name])), ROOT / "notebooks" / f"{name}.ipynb")


if __name__ == "__main__":
    main()
