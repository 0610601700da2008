"""What the commands tell alike: tables, what passed which gate, and warnings."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from seepage.auditing.findings import Gate


def tell_table(lines: Sequence[Sequence[str]]) -> None:
    """Print lines of cells, the first of them the head, in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  " + "  ".join(cells).rstrip())


def tell_gates(gates: Sequence[Gate]) -> None:
    """Print what every gate says."""
    for gate in gates:
        typer.echo(f"\n{'within' if gate.passed else 'OVER'} {gate.name}: {gate.text}")


def all_passed(gates: Sequence[Gate], *, as_json: bool, values: str | None) -> bool:
    """Return whether every gate was passed; warn, and beside JSON say which was not.

    ``values`` are those that the report shows, where it shows any.
    """
    if values is not None:
        typer.echo(f"warning: the report shows {values}; do not pass it on.", err=True)
    failed = [gate for gate in gates if not gate.passed]
    for gate in failed if as_json else ():
        typer.echo(f"over the limit {gate.name}: {gate.text}", err=True)
    return not failed
