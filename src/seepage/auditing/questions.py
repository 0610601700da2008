"""What people ask: every option of the command line, declared once, in the object it is kept in.

The command line makes an option of each field that is annotated with text: the last text is its
help, those before it are its names where the field's own will not do. Nothing heavy is imported
here, because ``seepage --help`` reads this file.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from seepage.auditing.decision.presets import DEFAULT, PRESETS
from seepage.errors import InputError, nearest
from seepage.tables.names import shown

# What the verdict holds an audit to if no limit is set
MAX_MEMBERSHIP = PRESETS[DEFAULT].max_membership
MAX_GUESS_GAIN = PRESETS[DEFAULT].max_guess_gain
MAX_GUESS_TPR = PRESETS[DEFAULT].max_guess_tpr
DECIMALS = {".": "decimal points", ",": "decimal commas"}
# Marks between groups of three digits; a point or comma only if it is not the decimal mark
THOUSANDS = {
    ".": "points",
    ",": "commas",
    " ": "spaces",
    "\u00a0": "spaces",
    "\u202f": "spaces",
    "'": "apostrophes",
    "\u2019": "apostrophes",
}
_MODEL_FILES = (".json", ".safetensors")
# The groups of options in ``--help``, by the names of the fields
_GROUPS = {
    "Reading the file": "header names separator decimal thousands encoding sheet fsspec",
    "Columns": "target person drop categorical quantity plan missing sensitive group domain rare "
    "least_holders",
    "Model and noise": "model model_kind model_file l2 intercept scale sigma sigma_epsilon "
    "target_eta public refit",
    "Attacker": "attacker",
    "Limits": "preset max_eta min_mse max_group_ratio max_membership max_guess_gain max_guess_tpr "
    "max_outsider",
    "Effort": "remedies quick dask workers",
    "What is written": "out report ledger check show_values as_json verbose",
}
GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names.split()}


@dataclass(frozen=True)
class FileOptions:
    """How a table's file is to be read; what is not stated about a text file is detected."""

    header: Annotated[bool, " /--no-header", "The CSV file has no header line."] = True
    names: Annotated[str | None, "The columns' names, separated by commas."] = None
    separator: Annotated[
        str | None, "What separates a text file's columns: one character, or tab."
    ] = None
    decimal: Annotated[str | None, "A text file's decimal mark: a point or a comma."] = None
    thousands: Annotated[
        str | None, "The mark between groups of three digits: point, comma, space or '."
    ] = None
    encoding: Annotated[str | None, "A text file's encoding, such as cp1252."] = None
    sheet: Annotated[str | None, "The sheet of a workbook, or the table of a database."] = None
    fsspec: Annotated[bool, "Fetch a URL, through fsspec."] = False

    def __post_init__(self) -> None:
        if self.separator is not None:
            written = {"tab": "\t", "\\t": "\t"}.get(self.separator, self.separator)
            if len(written) != 1 or written in '"\r\n':
                raise InputError("--separator is one character, or tab.")
            object.__setattr__(self, "separator", written)
        if self.decimal not in (None, *DECIMALS):
            raise InputError("--decimal is a point or a comma.")
        if self.thousands not in (None, *THOUSANDS):
            raise InputError("--thousands is a point, a comma, a space or an apostrophe.")
        if self.thousands is not None and self.thousands == self.decimal:
            raise InputError("--decimal and --thousands must be two different marks.")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise InputError(f"There is no encoding {shown(self.encoding)}.") from None

    @property
    def dialect(self) -> tuple[str | None, ...]:
        """What is stated about how a text file is written."""
        return self.separator, self.decimal, self.thousands, self.encoding

    @property
    def decimal_mark(self) -> str | None:
        """The decimal mark, if stated or implied by the mark of thousands."""
        if self.decimal is None and self.thousands in DECIMALS:
            return "," if self.thousands == "." else "."
        return self.decimal

    def refuse_in_chunks(self) -> None:
        """Refuse options that do not apply to Parquet files read in chunks."""
        for given, option in (
            (not self.header, "--no-header"),
            (self.names, "--names"),
            (self.sheet, "--sheet"),
            (any(self.dialect), "--separator, --decimal, --thousands or --encoding"),
        ):
            if given:
                raise InputError(f"{option} cannot be used with data read in chunks.")


@dataclass(frozen=True, kw_only=True)
class ColumnQuestion:
    """What the model predicts, and what the columns of its table are."""

    target: Annotated[
        str, "The column the model predicts; if left out, the columns are listed."
    ] = ""
    model: Annotated[
        str | None, "linear, logistic, poisson or softmax (default: by the target); or a file."
    ] = None
    person: Annotated[
        str | None,
        "The column that says whose row it is: all rows of a person count together. It is no "
        "feature.",
    ] = None
    drop: Annotated[Sequence[str], "A column to leave out; repeat for more."] = ()
    categorical: Annotated[
        Sequence[str], "A column of numbers that are codes; repeat for more."
    ] = ()
    quantity: Annotated[
        Sequence[str], "A column of two numbers that is a quantity; repeat for more."
    ] = ()
    plan: Annotated[
        Path | None, "What the columns are: what `seepage columns` printed, edited."
    ] = None
    missing: Annotated[str, "What to do with missing values: refuse, drop or impute."] = "refuse"


@dataclass(frozen=True, kw_only=True)
class CalibrationQuestion(ColumnQuestion):
    """A table, and the model and the noise to calibrate on it."""

    table: Annotated[
        Path,
        "CSV (or .csv.gz, .zst), Parquet (or a folder of it), Arrow/Feather, ORC, JSON lines, "
        "Excel, SQLite, DuckDB.",
    ]
    l2: Annotated[float | None, "The penalty λ (default 0.001; 0.01 if separable)."] = None
    target_eta: Annotated[
        float | None,
        "The most a record may leak; chooses σ (default 1: one standard deviation).",
    ] = None
    scale: Annotated[bool, " /--no-scale", "Do not standardise the columns."] = True
    model_file: Annotated[
        Path | None, "A fitted model (JSON or safetensors) to audit instead of fitting one."
    ] = None
    options: FileOptions = field(default_factory=FileOptions)

    def __post_init__(self) -> None:
        if self.model is None or Path(self.model).suffix.lower() not in _MODEL_FILES:
            return
        if self.model_file is not None:
            raise InputError("--model and --model-file both name a file; give one of them.")
        object.__setattr__(self, "model_file", Path(self.model))
        object.__setattr__(self, "model", None)


@dataclass(frozen=True, kw_only=True)
class Question(CalibrationQuestion):
    """A table, what to fit on it, the noise, and what to report of it.

    :func:`seepage.auditing.intake.table.plan_columns` explains the roles of its columns.
    """

    sensitive: Annotated[
        Sequence[str], "A column to report record by record; repeat for more."
    ] = ()
    group: Annotated[Sequence[str], "A column to compare groups by; repeat for more."] = ()
    sigma: Annotated[float | None, "The standard deviation of the noise on every number."] = None
    attacker: Annotated[
        str | None,
        "Beside the attacker who knows all other records, one who knows less: outsider (none of "
        "them), or knows=0.9 (that share). Without --sigma, for the model published as it is.",
    ] = None
    # The intercept is not penalised
    intercept: Annotated[
        bool,
        " /--no-intercept",
        "Fit without an intercept; bounds from differential privacy then apply.",
    ] = True
    refit: Annotated[
        str | None,
        "pipeline: ask which rows were in the data of the scaling and encoding too, refitted "
        "without each of the most exposed records.",
    ] = None
    show_values: Annotated[bool, "Show the records' own values in the report."] = False
    public: Annotated[
        Path | None, "A table of public records with the same columns, to shape the noise by."
    ] = None
    dask: Annotated[str | None, "A Dask scheduler whose workers audit a folder of Parquet."] = None
    workers: Annotated[
        int | None, "How many processes to start here to audit a folder of Parquet."
    ] = None
    remedies: Annotated[
        str | None,
        "Which remedies to try, however long they take: noise, penalty, combination, weights, "
        "shape, or none (default: all that keep within their budgets).",
    ] = None
    quick: Annotated[bool, "Fit once: no remedies and no repeated splits."] = False

    @property
    def named_inputs(self) -> dict[str, Path]:
        """The files that are read, each by its option."""
        names = ("table", "model_file", "public", "plan")
        return {name: path for name in names if (path := getattr(self, name)) is not None}

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that are read and must not be overwritten."""
        return tuple(self.named_inputs.values())


@dataclass(frozen=True, kw_only=True)
class ReleaseQuestion(ColumnQuestion):
    """What to release of a table, declared before anybody looks at it."""

    target: Annotated[str, "The column the model predicts."] = ""
    l2: Annotated[float, "The penalty λ, declared beforehand."] = 0.01
    sigma: Annotated[
        float | None,
        "The noise, declared beforehand (default: drawn by a vote of blocks of records).",
    ] = None
    sigma_epsilon: Annotated[
        float | None, "The ε of that vote (default: 0.4, or 16 over the number of blocks)."
    ] = None
    target_eta: Annotated[float, "The most a record may leak over all releases of the ledger."] = (
        1.0
    )
    missing: Annotated[str, "What to do with missing values: refuse or drop."] = "refuse"
    rare: Annotated[str, "What to do with values that few records have: refuse, drop or merge."] = (
        "refuse"
    )
    least_holders: Annotated[
        int, "How many records must have a value before its name may leave."
    ] = 10
    person: Annotated[
        str | None,
        "--person",
        "--identity",
        "The column that says whose row it is: all rows of a person count together, here and in "
        "the ledger. It is no feature.",
    ] = None
    # The ends of columns scale them, and records are replaced within them
    domain: Annotated[
        Sequence[str], "column=low:high: a column's publicly known range; repeat for more."
    ] = ()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits that a caller sets; a release over one of them does not pass.

    A preset fills in those of its limits that were not set.
    """

    preset: Annotated[
        str | None,
        "Gates by who will see the release: open, partners or internal (our default, not law). "
        "Limits set beside it take the place of its own.",
    ] = None
    max_eta: Annotated[float | None, "Gate: the most that any record may leak."] = None
    min_mse: Annotated[
        float | None, "Gate: the least squared error of an attack, in squared deviations."
    ] = None
    max_group_ratio: Annotated[
        float | None, "Gate: the highest ratio of one group's leakage to another's."
    ] = None
    max_membership: Annotated[
        float | None,
        "Gate: how often membership inference may succeed (chance is 0.5). Without it, the verdict "
        "uses 0.75.",
    ] = None
    max_guess_gain: Annotated[
        float | None,
        "Gate: the most the release may add to a guess of a class or category. Without it, the "
        "verdict uses 0.2.",
    ] = None
    max_guess_tpr: Annotated[
        float | None,
        "Gate: how often a value of a class or category may be recognised at 1 % false positives, "
        "however rare it is. Without it, the verdict uses 0.5.",
    ] = None
    max_outsider: Annotated[
        float | None,
        "Gate: how often the attacker of --attacker may be right about membership. An estimate: "
        "being over it fails, being within it proves nothing.",
    ] = None

    def __post_init__(self) -> None:
        if self.preset is None:
            return
        if self.preset not in PRESETS:
            raise InputError(
                f"There is no preset {shown(str(self.preset))}{nearest(self.preset, PRESETS)}; "
                f"choose one of {', '.join(PRESETS)}."
            )
        for name, limit in vars(PRESETS[self.preset]).items():
            if name != "audience" and getattr(self, name) is None:
                object.__setattr__(self, name, limit)


@dataclass(frozen=True, kw_only=True)
class RecordingQuestion:
    """A recording of federated rounds and the questions about it."""

    recording: Annotated[Path, "Recorded updates: .npz or .safetensors of an UpdateRecorder."]
    property: Annotated[
        Path,
        "--property",
        "What is known of the clients: a table with a column node (and perhaps round), or a JSON "
        "object of nodes.",
    ]
    column: Annotated[str | None, "The column of that table, if it has several."] = None
    family: Annotated[str, "The adversary: random_forest, logistic, gradient_boosting or mlp."] = (
        "random_forest"
    )
    max_bits: Annotated[float | None, "Gate: the most bits that any layer may give away."] = None
    max_auc: Annotated[
        float | None, "Gate: the highest AUC of an attack by any layer (0.5: a coin toss)."
    ] = None
    show_values: Annotated[bool, "Show each client's property in the report."] = False
    seed: Annotated[int, "The seed of all random draws."] = 0


@dataclass(frozen=True, kw_only=True)
class BudgetQuestion:
    """A privacy budget, or the noise of a training run, to be explained."""

    epsilon: Annotated[float | None, "ε of the budget."] = None
    delta: Annotated[float | None, "δ of the budget; of a run, the one to state its ε at."] = None
    noise_multiplier: Annotated[
        float | None,
        "--noise-multiplier",
        "--sigma",
        "Of private SGD, instead of ε: the noise over the clip.",
    ] = None
    sample_rate: Annotated[
        float, "The probability that a record takes part in a step: batch size over records."
    ] = 1.0
    steps: Annotated[int, "How many steps there are."] = 1
    neighbours: Annotated[
        str, "What ε is about: to add-or-remove one record, or to replace one."
    ] = "add-or-remove"
    prior: Annotated[
        float, "The base rate: how likely somebody is in the data, before the release."
    ] = 0.5
