"""The command line: a thin layer that imports what a command needs only when it runs."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click import ClickException
from typer.core import TyperGroup

from seepage.errors import InputError

if TYPE_CHECKING:
    from seepage.auditing.command import Question
    from seepage.auditing.intake.files import FileOptions
    from seepage.auditing.intake.plan_file import PlanFile

Folder = Annotated[
    Path | None,
    typer.Option(help="Where data sets lie (default: $SEEPAGE_DATA, then the per-user cache)."),
]


Table = Annotated[
    Path,
    typer.Argument(
        help="CSV (or .csv.gz, .zst), Parquet (or a folder of it), Arrow/Feather, ORC, JSON lines, "
        "Excel, SQLite, DuckDB."
    ),
]
Target = Annotated[str, typer.Option(help="The column the model predicts.")]
TargetOrList = Annotated[
    str, typer.Option(help="The column the model predicts; if left out, the columns are listed.")
]
Plan = Annotated[
    Path | None, typer.Option(help="What the columns are: what `seepage columns` printed, edited.")
]
ModelKind = Annotated[
    str | None,
    typer.Option(help="linear, logistic, poisson or softmax (default: by the target); or a file."),
]
Penalty = Annotated[
    float | None, typer.Option("--l2", help="The penalty λ (default 0.001; 0.01 if separable).")
]
TargetEta = Annotated[
    float | None,
    typer.Option(help="The most a record may leak; chooses σ (default 1: one standard deviation)."),
]
Sensitive = Annotated[
    list[str] | None, typer.Option(help="A column to report record by record; repeat for more.")
]
Group = Annotated[
    list[str] | None, typer.Option(help="A column to compare groups by; repeat for more.")
]
Drop = Annotated[list[str] | None, typer.Option(help="A column to leave out; repeat for more.")]
Codes = Annotated[
    list[str] | None,
    typer.Option("--categorical", help="A column of numbers that are codes; repeat for more."),
]
Quantities = Annotated[
    list[str] | None,
    typer.Option("--quantity", help="A column of two numbers that is a quantity; repeat for more."),
]
Missing = Annotated[
    str, typer.Option(help="What to do with missing values: refuse, drop or impute.")
]
NoScale = Annotated[bool, typer.Option("--no-scale", help="Do not standardise the columns.")]
NoHeader = Annotated[bool, typer.Option("--no-header", help="The CSV file has no header line.")]
Names = Annotated[str | None, typer.Option(help="The columns' names, separated by commas.")]
Separator = Annotated[
    str | None, typer.Option(help="What separates a text file's columns: one character, or tab.")
]
Decimal = Annotated[
    str | None, typer.Option(help="A text file's decimal mark: a point or a comma.")
]
Thousands = Annotated[
    str | None,
    typer.Option(help="The mark between groups of three digits: point, comma, space or '."),
]
Encoding = Annotated[str | None, typer.Option(help="A text file's encoding, such as cp1252.")]
Sheet = Annotated[
    str | None, typer.Option(help="The sheet of a workbook, or the table of a database.")
]
Fsspec = Annotated[bool, typer.Option("--fsspec", help="Fetch a URL, through fsspec.")]
ModelFile = Annotated[
    Path | None,
    typer.Option(help="A fitted model (JSON or safetensors) to audit instead of fitting one."),
]
Remedies = Annotated[
    str | None,
    typer.Option(
        help="Which remedies to try, however long they take: noise, penalty, weights, shape, or "
        "none (default: all that keep within their budgets)."
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Fit once: no remedies and no repeated splits.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")]


_MODEL_FILES = (".json", ".safetensors")


def _kind(model: str | None) -> str | None:
    """Return the kind of model that --model names, if it does not name a file."""
    return None if model is None or Path(model).suffix.lower() in _MODEL_FILES else model


def _file(model: str | None, model_file: Path | None) -> Path | None:
    """Return the file that --model or --model-file names."""
    if model is None or _kind(model) is not None:
        return model_file
    if model_file is not None:
        raise InputError("--model and --model-file both name a file; give one of them.")
    return Path(model)


def _plan(file: Path | None) -> PlanFile | None:
    """Return the plan that --plan names."""
    from seepage.auditing.intake.plan_file import PlanFile

    return None if file is None else PlanFile.read(file)


def _file_options(
    no_header: NoHeader = False,
    names: Names = None,
    separator: Separator = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    fsspec: Fsspec = False,
) -> FileOptions:
    """Return how the table's file is to be read; every command that reads one has these options."""
    from seepage.auditing.intake.files import Dialect, FileOptions

    dialect = Dialect(separator, decimal, thousands, encoding)
    return FileOptions(not no_header, names, dialect, sheet, fsspec)


def _made(**makers: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Build an argument from options: the parameters of its maker replace it."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options = {argument: _parameters(maker) for argument, maker in makers.items()}
        parameters: list[Parameter] = []
        for name, parameter in _parameters(function).items():
            parameters.extend(options[name].values() if name in options else [parameter])

        @wraps(function)
        def run(**given: Any) -> Any:
            for argument, maker in makers.items():
                given[argument] = maker(**{name: given.pop(name) for name in options[argument]})
            return function(**given)

        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters of a function as keywords, annotated for typer."""
    later = {"FileOptions": Any, "Question": Any}  # imported when a command runs
    found = signature(function, eval_str=True, locals=later).parameters
    return {name: p.replace(kind=Parameter.KEYWORD_ONLY) for name, p in found.items()}


@_made(options=_file_options)
def _question(
    table: Table,
    *,
    model: ModelKind = None,
    l2: Penalty = None,
    target_eta: TargetEta = None,
    drop: Drop = None,
    categorical: Codes = None,
    quantity: Quantities = None,
    plan: Plan = None,
    missing: Missing = "refuse",
    no_scale: NoScale = False,
    options: FileOptions,
    model_file: ModelFile = None,
) -> Question:
    """Return the input that audits and calibrations share."""
    from seepage.auditing.command import Question

    return Question(
        table=table,
        model=_kind(model),
        l2=l2,
        target_eta=target_eta,
        drop=drop or (),
        categorical=categorical or (),
        quantities=quantity or (),
        missing=missing,
        scale=not no_scale,
        options=options,
        plan=_plan(plan),
        model_file=_file(model, model_file),
    )


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
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="List, find and fetch data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder the results go to.")] = Path("seepage-demo"),
) -> None:
    """Audit a logistic regression on scikit-learn's breast-cancer data."""
    from seepage.auditing.demo import run

    run(out)


@app.command()
@_made(question=_question)
def audit(
    *,
    target: TargetOrList = "",
    sensitive: Sensitive = None,
    group: Group = None,
    sigma: Annotated[
        float | None, typer.Option(help="The standard deviation of the noise on every number.")
    ] = None,
    question: Question,
    model_kind: Annotated[
        str | None,
        typer.Option(
            help="forest, boosting, tree, svm, mlp or neighbours: audited by attack, without noise."
        ),
    ] = None,
    no_intercept: Annotated[
        bool,
        typer.Option(
            "--no-intercept",
            help="Fit without an intercept; bounds from differential privacy then apply.",
        ),
    ] = False,
    refit: Annotated[
        str | None,
        typer.Option(
            help="pipeline: ask which rows were in the data of the scaling and encoding too, "
            "refitted without each of the most exposed records."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the report (default seepage-audit; none with --json)."),
    ] = None,
    max_eta: Annotated[
        float | None, typer.Option(help="Gate: the most that any record may leak.")
    ] = None,
    min_mse: Annotated[
        float | None,
        typer.Option(help="Gate: the least squared error of an attack, in squared deviations."),
    ] = None,
    max_group_ratio: Annotated[
        float | None,
        typer.Option(help="Gate: the highest ratio of one group's leakage to another's."),
    ] = None,
    max_membership: Annotated[
        float | None,
        typer.Option(
            help="Gate: how often membership inference may succeed (chance is 0.5). Without "
            "it, the verdict uses 0.75."
        ),
    ] = None,
    max_guess_gain: Annotated[
        float | None,
        typer.Option(
            help="Gate: the most the release may add to a guess of a class or category. Without "
            "it, the verdict uses 0.2."
        ),
    ] = None,
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Show the records' own values in the report.")
    ] = False,
    public: Annotated[
        Path | None,
        typer.Option(
            help="A table of public records with the same columns, to shape the noise by."
        ),
    ] = None,
    dask: Annotated[
        str | None, typer.Option(help="A Dask scheduler whose workers audit a folder of Parquet.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="How many processes to start here to audit a folder of Parquet."),
    ] = None,
    remedies: Remedies = None,
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Report what releasing a linear model of a table leaks about its records.

    The exit status is 0 within the limits that were set, 1 over one of them, 2 for bad input, and 3
    if seepage itself failed.
    """
    from seepage.auditing.command import read_effort, run_audit
    from seepage.auditing.gates import Limits

    if sigma is not None and question.target_eta is not None:
        raise InputError("Give --sigma or --target-eta, not both: each of them fixes the noise.")
    question = replace(
        question,
        target=target,
        intercept=not no_intercept,
        sigma=sigma,
        sensitive=sensitive or (),
        group=group or (),
        refit=refit,
        show_values=show_values,
        public=public,
        dask=dask,
        workers=workers,
    )
    limits = Limits(
        max_eta=max_eta,
        min_mse=min_mse,
        max_group_ratio=max_group_ratio,
        max_membership=max_membership,
        max_guess_gain=max_guess_gain,
    )
    folder = out or (None if as_json else Path("seepage-audit"))
    if model_kind is not None:
        if limits != Limits():
            raise InputError(
                "Gates are for linear models; an attack cannot prove that a limit is kept."
            )
        from seepage.auditing.any_model.command import run_attack_audit

        run_attack_audit(question, model_kind, out=folder, as_json=as_json)
        return
    effort = read_effort(remedies, quick, question)
    passed = run_audit(question, limits, out=folder, as_json=as_json, effort=effort)
    if not passed:
        raise typer.Exit(1)


@app.command()
@_made(options=_file_options)
def release(
    table: Annotated[Path, typer.Argument(help="A table in a file, as for an audit.")],
    *,
    target: Annotated[str, typer.Option(help="The column the model predicts.")] = "",
    model: ModelKind = None,
    l2: Annotated[float, typer.Option("--l2", help="The penalty λ, declared beforehand.")] = 0.01,
    sigma: Annotated[
        float | None,
        typer.Option(
            help="The noise, declared beforehand (default: drawn by a vote of blocks of records)."
        ),
    ] = None,
    sigma_epsilon: Annotated[
        float | None,
        typer.Option(help="The ε of that vote (default: 0.4, or 16 over the number of blocks)."),
    ] = None,
    target_eta: Annotated[
        float, typer.Option(help="The most a record may leak over all releases of the ledger.")
    ] = 1.0,
    drop: Drop = None,
    categorical: Codes = None,
    quantity: Quantities = None,
    plan: Plan = None,
    missing: Annotated[
        str, typer.Option(help="What to do with missing values: refuse or drop.")
    ] = "refuse",
    options: FileOptions,
    rare: Annotated[
        str,
        typer.Option(help="What to do with values that few records have: refuse, drop or merge."),
    ] = "refuse",
    least_holders: Annotated[
        int, typer.Option(help="How many records must have a value before its name may leave.")
    ] = 10,
    identity: Annotated[
        str | None,
        typer.Option(
            help="The column that identifies records in the ledger; used for nothing else."
        ),
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(help="column=low:high: a column's publicly known range; repeat for more."),
    ] = None,
    max_membership: Annotated[
        float | None,
        typer.Option(
            help="Limit: how often membership inference may succeed (default 0.75; chance is 0.5; "
            "1: no limit)."
        ),
    ] = None,
    max_guess_gain: Annotated[
        float | None,
        typer.Option(
            help="Limit: the most the release may add to a guess of a class or category (default "
            "0.2; 1: no limit)."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The folder to share: the model and its card, nothing else.")
    ] = Path("seepage-release"),
    report: Annotated[Path, typer.Option(help="The folder of the private report.")] = Path(
        "seepage-audit"
    ),
    ledger: Annotated[Path, typer.Option(help="The private file that remembers releases.")] = Path(
        "seepage-ledger.json"
    ),
    as_json: Json = False,
) -> None:
    """Fit a linear model of a table, and write what may leave: the model with noise, and its card.

    Everything that leaves is listed with its protection; the most exposed records are left out and
    replaced to see which published figures would change. The exit status is 0 when the release was
    written, 1 if a limit is exceeded (then nothing is released, and the private report says why), 2
    for bad input, and 3 if seepage itself failed.
    """
    from seepage.auditing.gates import Limits
    from seepage.auditing.release.command import read_domain, run_release
    from seepage.auditing.release.procedure import Procedure

    procedure = Procedure(
        target=target,
        model=model,
        l2=l2,
        sigma=sigma,
        sigma_epsilon=sigma_epsilon,
        target_eta=target_eta,
        drop=drop or (),
        categorical=categorical or (),
        quantities=quantity or (),
        missing=missing,
        rare=rare,
        holders=least_holders,
        identity=identity,
        domain=read_domain(domain or ()),
    )
    met = run_release(
        table,
        procedure,
        out=out,
        report=report,
        ledger=ledger,
        options=options,
        limits=Limits.of_release(max_membership, max_guess_gain),
        plan=_plan(plan),
        as_json=as_json,
    )
    if not met:
        raise typer.Exit(1)


@app.command()
@_made(options=_file_options)
def columns(table: Table, options: FileOptions) -> None:
    """Print what an audit would make of every column, as a plan to edit and pass with --plan."""
    from seepage.auditing.command import Question, run_columns

    run_columns(Question(table=table, options=options))


@app.command()
@_made(question=_question)
def calibrate(*, target: Target, question: Question, as_json: Json = False) -> None:
    """Print how much noise brings the leakage down to a target, and what it costs in accuracy."""
    from seepage.auditing.command import run_calibration

    run_calibration(replace(question, target=target), as_json=as_json)


@app.command()
def layers(
    recording: Annotated[
        Path, typer.Argument(help="Recorded updates: .npz or .safetensors of an UpdateRecorder.")
    ],
    property: Annotated[
        Path,
        typer.Option(
            help="What is known of the clients: a table with a column node (and perhaps round), "
            "or a JSON object of nodes."
        ),
    ],
    column: Annotated[
        str | None, typer.Option(help="The column of that table, if it has several.")
    ] = None,
    family: Annotated[
        str,
        typer.Option(help="The adversary: random_forest, logistic, gradient_boosting or mlp."),
    ] = "random_forest",
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the report (default seepage-layers; none with --json)."),
    ] = None,
    max_bits: Annotated[
        float | None, typer.Option(help="Gate: the most bits that any layer may give away.")
    ] = None,
    max_auc: Annotated[
        float | None,
        typer.Option(help="Gate: the highest AUC of an attack by any layer (0.5: a coin toss)."),
    ] = None,
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Show each client's property in the report.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The seed of all random draws.")] = 0,
    as_json: Json = False,
) -> None:
    """Report what recorded updates of federated learning give away about clients.

    Which layer gives the property away, since which round, and whose updates stand out. The exit
    status is 0 within the limits that were set, 1 over one of them, 2 for bad input.
    """
    from seepage.auditing.layers_command import RecordingQuestion, run_layers

    question = RecordingQuestion(
        recording=recording,
        property=property,
        column=column,
        family=family,
        max_bits=max_bits,
        max_auc=max_auc,
        show_values=show_values,
        seed=seed,
    )
    folder = out or (None if as_json else Path("seepage-layers"))
    passed = run_layers(question, out=folder, as_json=as_json)
    if not passed:
        raise typer.Exit(1)


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


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table or figure of --list, or all.")] = None,
    out: Annotated[
        Path, typer.Option(help="The folder the results go to, one folder each.")
    ] = Path("seepage-reproduction"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Less data or fewer trials: only shows that it runs.")
    ] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Print all names and stop.")] = False,
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


@data_app.command("list")
def list_data(folder: Folder = None) -> None:
    """Print every data set: its name, size, whether it is here, licence, source."""
    from seepage.data.obtain import find
    from seepage.data.registry import DATA_SETS
    from seepage.support.text_table import aligned

    rows = [("NAME", "SIZE", "HERE", "LICENCE", "WHAT IT IS", "SOURCE")]
    for entry in DATA_SETS.values():
        if entry.bundled:
            size, here = "-", "bundled"
        else:
            size, here = f"{entry.size / 1e6:.1f} MB", "yes" if find(entry, folder) else "no"
        rows.append((entry.name, size, here, entry.licence, entry.title, entry.source))
    typer.echo("\n".join(aligned(rows)))


@data_app.command()
def where(
    name: Annotated[str | None, typer.Argument(help="A data set (default: all).")] = None,
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


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="A data set of `seepage data list`.")],
    folder: Folder = None,
) -> None:
    """Download a data set from its publisher, checking every byte; resume where it was cut off."""
    from seepage.data.obtain import fetch, find
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
