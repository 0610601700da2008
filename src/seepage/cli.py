"""The command line: a thin layer that imports what a command needs only when it runs."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from click import ClickException
from typer.core import TyperGroup

from seepage.auditing.decision.presets import DEFAULT
from seepage.auditing.questions import (
    GROUP_OF,
    BudgetQuestion,
    CalibrationQuestion,
    FileOptions,
    Limits,
    Question,
    RecordingQuestion,
    ReleaseQuestion,
)
from seepage.errors import InputError
from seepage.support.memory_limit import least_memory, memory_limit, run_in_child

Check = Annotated[
    Path | None,
    "A .json file for who decides whether the release may leave, with a sheet (.txt) beside it.",
]
Table = Annotated[Path, "A table in a file, as for an audit."]
Json = Annotated[bool, "--json", "Print the summary as JSON and nothing else."]
Verbose = Annotated[bool, "Print everything that was found, not one screen of it."]
Ledger = Annotated[
    Path | None,
    "The private file that remembers releases (default: $SEEPAGE_LEDGER, then the nearest "
    "seepage-ledger.json in this folder and those above it).",
]
Folder = Annotated[
    Path | None, "Where data sets lie (default: $SEEPAGE_DATA, then the per-user cache)."
]


def _command(group: typer.Typer, name: str | None = None) -> Callable[[Callable[..., None]], None]:
    """Register a command: the fields of the dataclasses that it takes are options of it."""

    def register(function: Callable[..., None]) -> None:
        @wraps(function)
        def run(**given: Any) -> None:
            _made(function, given)

        parameters = list(_flat(function))
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        group.command(name)(run)

    return register


def _flat(function: Callable[..., Any]) -> Iterator[Parameter]:
    """Yield the parameters of a function, of dataclasses their fields, annotated for typer."""
    for parameter in signature(function, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            yield from _flat(parameter.annotation)  # type: ignore[arg-type]
            continue
        kind, *names, words = get_args(parameter.annotation)
        default = parameter.default
        if kind == Sequence[str]:
            kind, default = list[str] | None, None
        argument = names == ["ARGUMENT"] or (default is Parameter.empty and not names)
        group = GROUP_OF.get(parameter.name)
        about: Any = typer.Argument(help=words)
        if not argument:
            about = typer.Option(*names, help=words, rich_help_panel=group)
        yield parameter.replace(
            kind=Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, about]
        )


def _made(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call a function with what was given, its dataclasses made first; ``None`` is the default."""
    arguments = {}
    for parameter in signature(function, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            arguments[parameter.name] = _made(parameter.annotation, given)  # type: ignore[arg-type]
        elif given[parameter.name] is not None:
            arguments[parameter.name] = given[parameter.name]
    return function(**arguments)


INPUT, FAILURE = 2, 3  # exit statuses: bad input; seepage itself failed


class _PlainErrors(TyperGroup):
    """Answers bad input and failures with one line and an exit status, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            _say("error", str(error))
            raise typer.Exit(INPUT) from error
        except (typer.Exit, typer.Abort, ClickException):
            raise
        except MemoryError as error:
            _say("failure", "There is not enough memory for this; audit fewer rows or columns.")
            raise typer.Exit(FAILURE) from error
        except KeyboardInterrupt as interruption:
            # Status 1 says that a limit was exceeded, so an interruption must not.
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from interruption
        except BrokenPipeError as closed:
            # Nor must a reader that stopped reading, such as `head`. What is still unwritten
            # goes nowhere, or Python would complain about it once more at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from closed
        except Exception as error:
            _say("failure", _failed(error))
            raise typer.Exit(FAILURE) from error


def _say(kind: str, sentence: str) -> None:
    from seepage.tables.names import escaped

    typer.echo(f"{kind}: " + " ".join(escaped(word) for word in sentence.split()), err=True)


def _failed(error: Exception) -> str:
    """Say what failed and where, without others' messages, which may quote the data."""
    if type(error).__module__.partition(".")[0] in ("distributed", "dask"):
        return (
            f"The cluster was lost or failed ({type(error).__name__}); nothing was written. Look "
            "at its logs, or audit without it."
        )
    ours = Path(__file__).parent
    places = [
        f for f in traceback.extract_tb(error.__traceback__) if ours in Path(f.filename).parents
    ]
    where = f" at {Path(places[-1].filename).name}:{places[-1].lineno}" if places else ""
    return (
        f"seepage itself failed ({type(error).__name__}{where}); nothing was written. Please "
        "report it, without the data."
    )


app = typer.Typer(
    name="seepage",
    cls=_PlainErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="List, find and fetch data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
ledger_app = typer.Typer(
    help="Show what releases have told about people, and void what never left.",
    no_args_is_help=True,
)
app.add_typer(ledger_app, name="ledger")


def _print_version(wanted: bool) -> None:
    if wanted:
        from seepage.support.version import __version__

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


@_command(app)
def demo(
    out: Annotated[Path, "The folder the results go to."] = Path("seepage-demo"),
    verbose: Verbose = False,
) -> None:
    """Audit a logistic regression on scikit-learn's breast-cancer data."""
    from seepage.auditing.demo import run

    run(out, verbose)


@_command(app)
def audit(
    question: Question,
    limits: Limits,
    model_kind: Annotated[
        str | None,
        "forest, boosting, tree, svm, mlp or neighbours: audited by attack, without noise.",
    ] = None,
    out: Annotated[
        Path | None, "The folder of the report (default seepage-audit; none with --json)."
    ] = None,
    check: Check = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Report what releasing a linear model of a table leaks about its records.

    The exit status is 0 within the limits that were set, 1 over one of them, 2 for bad input, and 3
    if seepage itself failed.
    """
    folder = out or (None if as_json else Path("seepage-audit"))
    if model_kind is None:
        from seepage.auditing.command import run_audit

        passed = run_audit(
            question, limits, out=folder, as_json=as_json, check=check, verbose=verbose
        )
    else:
        from seepage.auditing.any_model.command import run_attack_audit

        passed = run_attack_audit(
            question, model_kind, limits, out=folder, as_json=as_json, check=check, verbose=verbose
        )
    _leave(passed)


def _leave(passed: bool) -> None:
    if not passed:
        raise typer.Exit(1)


@_command(app)
def release(
    table: Table,
    question: ReleaseQuestion,
    options: FileOptions,
    preset: Annotated[
        str,
        "Limits by who will see the release: open, partners or internal (our default, not law).",
    ] = DEFAULT,
    max_membership: Annotated[
        float | None,
        "Limit: how often membership inference may succeed (chance is 0.5; 1: no limit), in place "
        "of the preset's.",
    ] = None,
    max_guess_gain: Annotated[
        float | None,
        "Limit: the most the release may add to a guess of a class or category (1: no limit), in "
        "place of the preset's.",
    ] = None,
    max_guess_tpr: Annotated[
        float | None,
        "Limit: how often a value of a class or category may be recognised at 1 % false positives; "
        "exceeded where a published figure rules values of a record out for certain (1: no limit), "
        "in place of the preset's.",
    ] = None,
    out: Annotated[Path, "The folder to share: the model and its card, nothing else."] = Path(
        "seepage-release"
    ),
    report: Annotated[Path, "The folder of the private report."] = Path("seepage-audit"),
    ledger: Ledger = None,
    sign: Annotated[Path | None, "A PEM file with a private Ed25519 key that signs it."] = None,
    replaces: Annotated[Path | None, "The folder of the release that this one replaces."] = None,
    check: Check = None,
    as_json: Json = False,
) -> None:
    """Fit a linear model of a table, and write what may leave: the model with noise, and its card.

    Everything that leaves is listed with its protection; the most exposed records are left out and
    replaced to see which published figures would change. The exit status is 0 when the release was
    written, 1 if a limit is exceeded (then nothing is released, and the private report says why), 2
    for bad input, and 3 if seepage itself failed.
    """
    from seepage.auditing.release.command import run_release
    from seepage.auditing.release.ledger import find_ledger

    limits = Limits(
        preset=preset,
        max_membership=max_membership,
        max_guess_gain=max_guess_gain,
        max_guess_tpr=max_guess_tpr,
    )
    folders = {"release": out, "report": report, "ledger": ledger or find_ledger()}
    passed = run_release(
        table,
        question,
        folders,
        options=options,
        limits=limits,
        origin={"sign": sign, "replaces": replaces},
        as_json=as_json,
        check=check,
    )
    _leave(passed)


@_command(app, "attack-release")
def attack_release(
    table: Table,
    question: ReleaseQuestion,
    options: FileOptions,
    row: Annotated[int | None, "--row", "The row to attack (default: the most exposed)."] = None,
    releases: Annotated[int, "--releases", "How many releases to make of each table."] = 1000,
    folder: Annotated[
        Path | None,
        "--folder",
        "A release of this table with these options, whose entry in the ledger is checked "
        "(default: what would be entered for a new one).",
    ] = None,
    ledger: Ledger = None,
) -> None:
    """Attack releases as `seepage release` makes them, and compare with what the ledger states.

    Releases of the table, and of the table with a record (with --person, a person) left out or
    changed, are told apart by the likelihood ratio of all that is published, σ drawn anew each
    time. Nothing is written. The exit status is 0 if that succeeds no more often than the ledger
    states, 1 if it does.
    """
    from seepage.auditing.release.attack import run_release_attack

    passed = run_release_attack(
        table, question, options, row=row, releases=releases, folder=folder, ledger=ledger
    )
    _leave(passed)


@_command(app)
def verify(
    folder: Annotated[Path, "The folder of a release."],
    key: Annotated[Path | None, "--key", "A PEM file with its author's public Ed25519 key."] = None,
) -> None:
    """Check that a release is whole, as it was written and, with a key, who wrote it.

    The exit status is 0 if it is, and 2 with one sentence if it is not.
    """
    from seepage.auditing.release.contents import read_release

    for sentence in read_release(folder, key).sentences(key is not None):
        typer.echo(sentence)


@_command(app)
def columns(table: Table, options: FileOptions) -> None:
    """Print what an audit would make of every column, as a plan to edit and pass with --plan."""
    from seepage.auditing.command import run_columns

    run_columns(Question(table=table, options=options))


@_command(app)
def calibrate(question: CalibrationQuestion, as_json: Json = False) -> None:
    """Print how much noise brings the leakage down to a target, and what it costs in accuracy."""
    from seepage.auditing.command import run_calibration

    run_calibration(Question(**vars(question)), as_json=as_json)


@_command(app)
def explain(
    question: BudgetQuestion,
    picture: Annotated[Path | None, "An .svg or .png file to draw the trade-off curve to."] = None,
    as_json: Json = False,
) -> None:
    """Say what ε and δ, or the noise of private SGD, allow an attacker, at most."""
    from seepage.auditing.explaining.command import run_explanation

    run_explanation(question, picture=picture, as_json=as_json)


@_command(app)
def layers(
    question: RecordingQuestion,
    out: Annotated[
        Path | None, "The folder of the report (default seepage-layers; none with --json)."
    ] = None,
    as_json: Json = False,
) -> None:
    """Report what recorded updates of federated learning give away about clients.

    Which layer gives the property away, since which round, and whose updates stand out. The exit
    status is 0 within the limits that were set, 1 over one of them, 2 for bad input.
    """
    from seepage.auditing.rounds.command import run_layers

    folder = out or (None if as_json else Path("seepage-layers"))
    _leave(run_layers(question, out=folder, as_json=as_json))


def _reproduction(module: str) -> Any:
    """Return a module of the papers' tables and figures, which only a clone has."""
    clone = Path(__file__).resolve().parents[2]
    if not (clone / "reproduction" / "__init__.py").is_file():
        raise InputError(
            "The papers' tables and figures come with seepage's repository, not with the installed "
            "package: clone the repository and run `seepage reproduce` or `make reproduce` there."
        )
    sys.path.insert(0, str(clone))
    return import_module(module)


@_command(app)
def reproduce(
    name: Annotated[str | None, "ARGUMENT", "A table or figure of --list, or all."] = None,
    out: Annotated[Path, "The folder the results go to, one folder each."] = Path(
        "seepage-reproduction"
    ),
    quick: Annotated[bool, "Less data or fewer trials: only shows that it runs."] = False,
    show_list: Annotated[bool, "--list", "Print all names and stop."] = False,
) -> None:
    """Reproduce a table or figure of the papers; write its numbers beside the printed ones."""
    if show_list:
        for line in _reproduction("reproduction").list_lines():
            typer.echo(line)
    elif name is None:
        raise InputError("Say what to reproduce: a name of `seepage reproduce --list`, or all.")
    else:
        make = _reproduction("reproduction.reproducing").reproduce
        make(name, out, quick=quick, say=typer.echo)


@_command(data_app, "list")
def list_data(folder: Folder = None) -> None:
    """Print every data set: its name, size, whether it is here, licence, source."""
    from seepage.data.obtain import find
    from seepage.data.registry import DATA_SETS
    from seepage.support.text_table import text_table

    rows = []
    for entry in DATA_SETS.values():
        size, here = "-", "bundled"
        if not entry.bundled:
            size, here = f"{entry.size / 1e6:.1f} MB", "yes" if find(entry, folder) else "no"
        rows.append((entry.name, size, here, entry.licence, entry.title, entry.source))
    heads = ("NAME", "SIZE", "HERE", "LICENCE", "WHAT IT IS", "SOURCE")
    typer.echo(text_table(rows, heads))


@_command(data_app)
def where(
    name: Annotated[str | None, "ARGUMENT", "A data set (default: all)."] = None,
    folder: Folder = None,
) -> None:
    """Print the folders that are searched, and where each data set was found."""
    from seepage.data.obtain import find, searched_folders
    from seepage.data.registry import DATA_SETS, data_set

    wanted = DATA_SETS.values() if name is None else (data_set(name),)
    for root in searched_folders(folder):
        typer.echo(f"searched: {root}{'' if root.is_dir() else ' (does not exist)'}")
    for entry in wanted:
        place = "comes with scikit-learn" if entry.bundled else find(entry, folder)
        typer.echo(f"{entry.name}: {place or 'not found'}")


@_command(data_app)
def fetch(
    name: Annotated[str, "A data set of `seepage data list`."], folder: Folder = None
) -> None:
    """Download a data set from its publisher, checking every byte; resume where it was cut off."""
    from seepage.data import obtain
    from seepage.data.registry import data_set

    entry = data_set(name)
    if entry.bundled:
        typer.echo(f"{name} comes with scikit-learn; there is nothing to fetch.")
        return
    was_there = obtain.find(entry, folder) is not None
    home = obtain.fetch(name, folder)
    typer.echo(f"{name} {'was already' if was_there else 'is now'} in {home}.")


@_command(ledger_app)
def show(
    options: FileOptions,
    table: Annotated[
        Path | None, "ARGUMENT", "A table, to see how much of their budget its people have left."
    ] = None,
    person: Annotated[
        str | None, "The column that identifies people: all of their rows count together."
    ] = None,
    target_eta: Annotated[float, "The most a record may leak over all entries."] = (
        ReleaseQuestion.target_eta
    ),
    people: Annotated[
        Path | None, "A Parquet file for the numbers of every row, for its owner only."
    ] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Print every entry of the ledger, and who has how much of their privacy budget left."""
    from seepage.auditing.release.ledger_command import show_ledger

    show_ledger(
        ledger, table, options, person=person, target_eta=target_eta, people=people, as_json=as_json
    )


@_command(ledger_app)
def void(
    entry: Annotated[int, "ARGUMENT", "The number of the entry, as shown."],
    reason: Annotated[str, "--reason", "Why it never left, for whoever reads the ledger later."],
    ledger: Ledger = None,
) -> None:
    """Let an entry count no longer, because nobody received what it lists."""
    from seepage.auditing.release.ledger_command import void_entry

    void_entry(ledger, entry, reason)


def main() -> None:
    """Run the command line; where memory is limited, in a child process that may fail."""
    limit, least = memory_limit(), least_memory()
    if limit is None:
        app()
        return
    status = run_in_child(app) if limit >= least else None
    if status is None:
        _say(
            "error",
            f"The memory limit of this shell ({limit / 1e9:.2g} GB) is too low for the numerical "
            f"libraries or for this table; raise it (`ulimit -v`; {least / 1e9:.2g} GB load the "
            "libraries), or audit fewer rows or columns.",
        )
    raise SystemExit(INPUT if status is None else status)


if __name__ == "__main__":
    main()
