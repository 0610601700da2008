"""Writes the report: everything is made first, then each file appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from seepage.auditing.measures.findings import Findings
from seepage.auditing.report.card import write_card
from seepage.auditing.report.page import draw_figures, render_page
from seepage.auditing.report.records import record_table
from seepage.auditing.report.summary import to_json
from seepage.errors import InputError
from seepage.support.files import Writer, write_private_together


def write_report(audit: Findings, out: Path) -> Path:
    """Write an audit into the folder ``out`` and return the path of its page.

    ``report.html``, ``leakage.parquet`` (a folder where the workers of a cluster write it),
    ``summary.json``, ``model-card.md`` and ``figures/*.svg``, readable by their owner only. Files
    of an earlier report in the same folder are replaced.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out.name!r} is a file: name a folder for the report with --out.")
    figures = draw_figures(audit)
    texts = {out / "figures" / f"{figure.name}.svg": figure.file for figure in figures}
    texts |= {
        out / "summary.json": to_json(audit),
        out / "model-card.md": write_card(audit),
        out / "report.html": render_page(audit, figures),
    }
    table = out / "leakage.parquet"
    writer = audit.records.writer(record_table)
    files: dict[Path, Writer] = {} if writer is None else {table: writer}
    for path, text in texts.items():
        files[path] = partial(_write_text, text)
    ours = not out.exists()
    try:
        _make_private(out)
        with _aside(table, whatever=writer is None):
            if writer is None:
                audit.records.write_folder(record_table, table)
            write_private_together(files)
    except OSError as error:
        if ours:
            for folder in (out / "figures", out):
                with suppress(OSError):
                    folder.rmdir()
        raise InputError(
            f"The report cannot be written to {out.name!r}: {error.strerror or error}; nothing was "
            "left behind."
        ) from error
    for left in (out / "figures").glob("*.svg"):  # of an earlier audit with other groups
        if left not in texts and left.stem.partition("-")[0] in {"attributes", "groups", "curve"}:
            left.unlink()
    return out / "report.html"


def _write_text(text: str, file: BinaryIO) -> None:
    file.write(text.encode("utf-8", "replace"))


@contextmanager
def _aside(table: Path, whatever: bool) -> Iterator[None]:
    """Keep an earlier table out of the way, and bring it back if no new report comes about.

    A file is replaced as all others are, unless ``whatever`` is there must go.
    """
    with tempfile.TemporaryDirectory(dir=table.parent, prefix=".earlier-") as kept:
        earlier = Path(kept) / table.name
        if table.is_dir() or (whatever and table.exists()):
            table.rename(earlier)
        try:
            yield
        except BaseException:
            if whatever and table.is_dir():
                shutil.rmtree(table)
            if earlier.exists():
                earlier.rename(table)
            raise


def _make_private(out: Path) -> None:
    if not out.exists():
        out.mkdir(parents=True)
        out.chmod(0o700)
