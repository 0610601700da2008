"""The command line, which imports a command's modules only when the command runs."""

from __future__ import annotations

import gc
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
    ExtractionQuestion,
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
    "Write a check (.json, with a .txt sheet) for whoever decides about the release.",
]
Table = Annotated[Path, "Table file, in any format that `seepage audit` reads."]
Json = Annotated[bool, "--json", "Print only the summary, as JSON."]
Verbose = Annotated[bool, "Print all findings, not only one screen."]
Ledger = Annotated[
    Path | None,
    "Private ledger of releases (default: $SEEPAGE_LEDGER, then the nearest seepage-ledger.json in "
    "this folder or its parents).",
]
Folder = Annotated[
    Path | None, "Folder of data sets (default: $SEEPAGE_DATA, then the user cache)."
]


def _command(group: typer.Typer, name: str | None = None) -> Callable[[Callable[..., None]], None]:
    """Register a command; the fields of its dataclass arguments become options."""

    def register(function: Callable[..., None]) -> None:
        @wraps(function)
        def run(**given: Any) -> None:
            # A command imports thousands of modules and functions, none of which are garbage.
            threshold = gc.get_threshold()
            gc.set_threshold(20_000, *threshold[1:])
            try:
                _made(function, given)
            finally:
                gc.set_threshold(*threshold)

        parameters = list(_flat(function))
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        group.command(name)(run)

    return register


def _flat(function: Callable[..., Any]) -> Iterator[Parameter]:
    """Yield a function's parameters, annotated for typer, with dataclasses expanded into fields."""
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
    """Call a function with the given options, which also fill its dataclass arguments.

    Options that are ``None`` keep their defaults.
    """
    arguments = {}
    for parameter in signature(function, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            arguments[parameter.name] = _made(parameter.annotation, given)  # type: ignore[arg-type]
        elif given[parameter.name] is not None:
            arguments[parameter.name] = given[parameter.name]
    return function(**arguments)


INPUT, FAILURE = 2, 3  # exit statuses: bad input; seepage itself failed (1: over a limit)


class _PlainErrors(TyperGroup):
    """Reports bad input and failures in one line with an exit status, not as a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            _say("error", str(error))
            raise typer.Exit(INPUT) from error
        except (typer.Exit, typer.Abort, ClickException):
            raise
        except MemoryError as error:
            _say(
                "failure",
                ("There is not enough memory for this command; use fewer rows or columns."),
            )
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
    """Report what failed and where, without other libraries' messages, which may quote the data."""
    if type(error).__module__.partition(".")[0] in ("distributed", "dask"):
        return (
            f"The cluster was lost or failed ({type(error).__name__}). Check the cluster's logs, "
            "or audit without a cluster."
        )
    ours = Path(__file__).parent
    places = [
        f for f in traceback.extract_tb(error.__traceback__) if ours in Path(f.filename).parents
    ]
    where = f" at {Path(places[-1].filename).name}:{places[-1].lineno}" if places else ""
    return (
        f"seepage itself failed ({type(error).__name__}{where}). Please report this as a bug, "
        "without the data."
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
    help="Show the ledger of releases, or void an entry.",
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
    """Measure how much a machine-learning model leaks about its training data."""


@_command(app)
def demo(
    out: Annotated[Path, "Output folder."] = Path("seepage-demo"),
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
        "Kind of model to fit and audit by attack, without noise: forest, boosting, tree, svm, mlp "
        "or neighbours.",
    ] = None,
    out: Annotated[Path | None, "Report folder (default seepage-audit; none with --json)."] = None,
    check: Check = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Report what a model fitted on a table leaks about its records."""
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
    raise typer.Exit(0 if passed else 1)


@_command(app)
def release(
    table: Table,
    question: ReleaseQuestion,
    options: FileOptions,
    preset: Annotated[
        str,
        "Limits by audience: open, partners or internal (our defaults, not law). Other limits "
        "override them.",
    ] = DEFAULT,
    max_membership: Annotated[
        float | None,
        "Limit: success rate of membership inference (chance: 0.5; 1: no limit).",
    ] = None,
    max_guess_gain: Annotated[
        float | None,
        "Limit: how much the release raises the success rate of guessing a class or category (1: "
        "no limit).",
    ] = None,
    max_guess_tpr: Annotated[
        float | None,
        "Limit: true positive rate of attribute inference, at a 1 % false positive rate, for any "
        "class or level of a category (1: no limit). It is exceeded if a published figure rules "
        "out a value.",
    ] = None,
    out: Annotated[
        Path, "Folder to publish: the model, its card, and lists of their contents and checksums."
    ] = Path("seepage-release"),
    report: Annotated[Path, "Folder of the private report."] = Path("seepage-audit"),
    ledger: Ledger = None,
    sign: Annotated[Path | None, "Private Ed25519 key (PEM) to sign the release with."] = None,
    replaces: Annotated[Path | None, "Folder of the release that this one replaces."] = None,
    check: Check = None,
    as_json: Json = False,
) -> None:
    """Fit a linear model to a table; write the noisy model and its card for publication.

    Refits without the most exposed records, and with other values for them, show which published
    figures would change. If a limit is exceeded, nothing is released; the private report gives the
    reason.
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
    raise typer.Exit(0 if passed else 1)


@_command(app)
def attack(
    question: ExtractionQuestion,
    out: Annotated[Path | None, "Report folder (default seepage-attack; none with --json)."] = None,
    as_json: Json = False,
) -> None:
    """Report what a fine-tuned language model reveals about its training records and secrets.

    The report gives the probability that sampling emits each secret. With --held-out, it also lists
    the training records that membership inference recognises; --compare measures remedies. An
    attack cannot rule out stronger attacks.
    """
    from seepage.auditing.language_model.command import run_extraction

    folder = out or (None if as_json else Path("seepage-attack"))
    raise typer.Exit(0 if run_extraction(question, out=folder, as_json=as_json) else 1)


@_command(app, "attack-release")
def attack_release(
    table: Table,
    question: ReleaseQuestion,
    options: FileOptions,
    row: Annotated[int | None, "--row", "Row to attack (default: the most exposed)."] = None,
    releases: Annotated[int, "--releases", "Number of releases to draw from each table."] = 1000,
    folder: Annotated[
        Path | None,
        "--folder",
        "Release of this table, made with these options, whose ledger entry is checked (default: "
        "a new release).",
    ] = None,
    ledger: Ledger = None,
) -> None:
    """Attack releases made by `seepage release`, and compare the success rate with the ledger.

    A likelihood-ratio test distinguishes releases of the table from releases of a changed table, in
    which one record (with --person, one person) is missing or has other values. Each release
    redraws σ. Nothing is written. The exit status is 1 if the attack succeeds more often than the
    ledger states.
    """
    from seepage.auditing.release.attack import run_release_attack

    passed = run_release_attack(
        table, question, options, row=row, releases=releases, folder=folder, ledger=ledger
    )
    raise typer.Exit(0 if passed else 1)


@_command(app)
def verify(
    folder: Annotated[Path, "Folder of a release."],
    key: Annotated[
        Path | None, "--key", "Public Ed25519 key (PEM) of the release's author."
    ] = None,
) -> None:
    """Check that a release is complete and unchanged and, if a key is given, signed with it."""
    from seepage.auditing.release.contents import read_release

    for sentence in read_release(folder, key).sentences(key is not None):
        typer.echo(sentence)


@_command(app)
def columns(table: Table, options: FileOptions) -> None:
    """Print how each column would be used, as a plan to edit and pass with --plan."""
    from seepage.auditing.command import run_columns

    run_columns(Question(table=table, options=options))


@_command(app)
def calibrate(question: CalibrationQuestion, as_json: Json = False) -> None:
    """Print the noise that meets a target η, and its cost in accuracy."""
    from seepage.auditing.command import run_calibration

    run_calibration(Question(**vars(question)), as_json=as_json)


@_command(app)
def explain(
    question: BudgetQuestion,
    picture: Annotated[
        Path | None, "File (.svg or .png) in which to plot the trade-off curve."
    ] = None,
    as_json: Json = False,
) -> None:
    """Print limits on the success of any attack, given ε and δ or the settings of private SGD."""
    from seepage.auditing.explaining.command import run_explanation

    run_explanation(question, picture=picture, as_json=as_json)


@_command(app)
def layers(
    question: RecordingQuestion,
    out: Annotated[Path | None, "Report folder (default seepage-layers; none with --json)."] = None,
    as_json: Json = False,
) -> None:
    """Report what recorded updates of federated learning reveal about a property of clients.

    The report names the layer that reveals the property, the first such round, and the clients with
    outlying updates.
    """
    from seepage.auditing.rounds.command import run_layers

    folder = out or (None if as_json else Path("seepage-layers"))
    raise typer.Exit(0 if run_layers(question, out=folder, as_json=as_json) else 1)


def _reproduction(module: str) -> Any:
    """Return a module for reproducing the papers; it exists only in a clone of the repository."""
    clone = Path(__file__).resolve().parents[2]
    if not (clone / "reproduction" / "__init__.py").is_file():
        raise InputError(
            "The papers' tables and figures are in seepage's repository, not in the installed "
            "package: clone the repository and run `seepage reproduce` or `make reproduce` there."
        )
    sys.path.insert(0, str(clone))
    return import_module(module)


@_command(app)
def reproduce(
    name: Annotated[str | None, "ARGUMENT", "Name from --list, or all."] = None,
    out: Annotated[Path, "Output folder, with one folder for each name."] = Path(
        "seepage-reproduction"
    ),
    quick: Annotated[bool, "Run a smoke test, with less data or fewer trials."] = False,
    show_list: Annotated[bool, "--list", "Print all names and exit."] = False,
    as_json: Annotated[
        bool, "--json", "Print only the numbers with their verdicts, as JSON."
    ] = False,
) -> None:
    """Reproduce a table or figure of the papers, and show it beside the published numbers."""
    if show_list:
        for line in _reproduction("reproduction").list_lines():
            typer.echo(line)
    elif name is None:
        raise InputError("Name what to reproduce: a name from `seepage reproduce --list`, or all.")
    else:
        make = _reproduction("reproduction.reproducing").reproduce
        make(name, out, quick=quick, say=typer.echo, as_json=as_json)


@_command(data_app, "list")
def list_data(folder: Folder = None) -> None:
    """List data sets with their size, licence and source, and whether they are on this machine."""
    from seepage.data.obtain import find
    from seepage.data.registry import DATA_SETS
    from seepage.support.text_table import text_table

    rows = []
    for entry in DATA_SETS.values():
        size, here = "-", "bundled"
        if not entry.bundled:
            size, here = f"{entry.size / 1e6:.1f} MB", "yes" if find(entry, folder) else "no"
        rows.append((entry.name, size, here, entry.licence, entry.title, entry.source))
    heads = ("NAME", "SIZE", "HERE", "LICENCE", "TITLE", "SOURCE")
    typer.echo(text_table(rows, heads))


@_command(data_app)
def where(
    name: Annotated[str | None, "ARGUMENT", "Name of a data set (default: all)."] = None,
    folder: Folder = None,
) -> None:
    """Print the searched folders and the location of each data set."""
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
    name: Annotated[str, "Name of a data set, from `seepage data list`."], folder: Folder = None
) -> None:
    """Download a data set, or resume its download, and verify its checksums."""
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
        Path | None, "ARGUMENT", "Table of people whose remaining privacy budgets are printed."
    ] = None,
    person: Annotated[str | None, "Column that identifies people."] = None,
    target_eta: Annotated[float, "Largest η of a record over all entries."] = (
        ReleaseQuestion.target_eta
    ),
    people: Annotated[
        Path | None,
        "Private Parquet file to write, with each row's privacy losses and remaining η.",
    ] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Print all entries of the ledger and the remaining privacy budgets."""
    from seepage.auditing.release.ledger_command import show_ledger

    show_ledger(
        ledger, table, options, person=person, target_eta=target_eta, people=people, as_json=as_json
    )


@_command(ledger_app)
def void(
    entry: Annotated[int, "ARGUMENT", "Number of the ledger entry."],
    reason: Annotated[str, "--reason", "Why the release was never published."],
    ledger: Ledger = None,
) -> None:
    """Void an entry because its release was never published."""
    from seepage.auditing.release.ledger_command import void_entry

    void_entry(ledger, entry, reason)


def main() -> None:
    """Run the command line, in a child process if memory is limited."""
    limit, least = memory_limit(), least_memory()
    if limit is None:
        app()
        return
    status = run_in_child(app) if limit >= least else None
    if status is None:
        _say(
            "error",
            f"The memory limit of this shell ({limit / 1e9:.2g} GB) is too low for the numerical "
            "libraries or for this table. Raise it (`ulimit -v`; the libraries need "
            f"{least / 1e9:.2g} GB), or audit fewer rows or columns.",
        )
    raise SystemExit(INPUT if status is None else status)


if __name__ == "__main__":
    main()
