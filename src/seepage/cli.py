"""The command line: a thin door that imports what a command needs only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from seepage.errors import InputError

Folder = Annotated[
    Path | None,
    typer.Option(help="Where data sets lie (default: $SEEPAGE_DATA, then the per-user cache)."),
]


class _PlainErrors(TyperGroup):
    """Answers bad input with one line and exit status 2 instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            typer.echo("error: " + " ".join(str(error).split()), err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    name="seepage",
    cls=_PlainErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="List, find and fetch data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        from seepage import __version__

        typer.echo(f"seepage {__version__}")
        raise typer.Exit


@app.callback()
def seepage(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Measure how much of its training data seeps out of a machine-learning model."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder the results go to.")] = Path("seepage-demo"),
) -> None:
    """Audit a logistic regression on scikit-learn's breast-cancer data."""
    from seepage.demo import run

    run(out)


@data_app.command("list")
def list_data(folder: Folder = None) -> None:
    """Print every data set: its name, size, whether it is here, licence, source."""
    from seepage.data.folders import find
    from seepage.data.registry import DATA_SETS

    rows = [("NAME", "SIZE", "HERE", "LICENCE", "WHAT IT IS", "SOURCE")]
    for entry in DATA_SETS.values():
        if entry.bundled:
            size, here = "-", "bundled"
        else:
            size, here = f"{entry.size / 1e6:.1f} MB", "yes" if find(entry, folder) else "no"
        rows.append((entry.name, size, here, entry.licence, entry.title, entry.source))
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


@data_app.command()
def where(
    name: Annotated[str | None, typer.Argument(help="A data set; all where left out.")] = None,
    folder: Folder = None,
) -> None:
    """Print the folders that are searched, and where each data set was found."""
    from seepage.data.folders import find, searched_folders
    from seepage.data.registry import DATA_SETS, data_set

    wanted = DATA_SETS.values() if name is None else (data_set(name),)
    for root in searched_folders(folder):
        typer.echo(f"searched: {root}{'' if root.is_dir() else ' (does not exist)'}")
    for entry in wanted:
        place = "comes with scikit-learn" if entry.bundled else find(entry, folder)
        typer.echo(f"{entry.name}: {place or 'not found'}")


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="A data set of `seepage data list`.")],
    folder: Folder = None,
) -> None:
    """Download a data set from its publisher, checking every byte; go on where it was cut off."""
    from seepage.data.folders import find
    from seepage.data.obtain import fetch
    from seepage.data.registry import data_set

    entry = data_set(name)
    if entry.bundled:
        typer.echo(f"{name} comes with scikit-learn; there is nothing to fetch.")
        return
    was_there = find(entry, folder) is not None
    home = fetch(name, folder)
    typer.echo(f"{name} {'was already' if was_there else 'is now'} in {home}.")


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
