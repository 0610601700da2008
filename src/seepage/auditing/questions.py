"""Dataclasses that declare and store the options of the command line.

Each field annotated with text becomes an option: the last text is its help, and earlier texts
replace the field's name. :mod:`seepage.cli` declares the other options. This module imports only
modules that load quickly, because ``seepage --help`` imports it.
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
    "Attacker with data of the same kind": "auxiliary network loss optimizer learning_rate "
    "local_epochs batch_size client_size shadow_clients",
    "Limits": "preset max_eta min_mse max_group_ratio max_membership max_guess_gain max_guess_tpr "
    "max_outsider",
    "Effort": "remedies quick dask workers",
    "Output": "out report ledger check show_values as_json verbose",
}
GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names.split()}


@dataclass(frozen=True)
class FileOptions:
    """How to read a table's file; properties of a text file that are not given are detected."""

    header: Annotated[bool, " /--no-header", "The CSV file has no header line."] = True
    names: Annotated[str | None, "Column names, separated by commas."] = None
    separator: Annotated[str | None, "Column separator of a text file: one character, or tab."] = (
        None
    )
    decimal: Annotated[str | None, 'Decimal mark of a text file: "." or ",".'] = None
    thousands: Annotated[str | None, 'Thousands separator: ".", ",", "\'" or a space.'] = None
    encoding: Annotated[str | None, "A text file's encoding, such as cp1252."] = None
    sheet: Annotated[str | None, "Sheet of a workbook, or table of a database."] = None
    fsspec: Annotated[bool, "Allow a URL, read through fsspec."] = False

    def __post_init__(self) -> None:
        if self.separator is not None:
            written = {"tab": "\t", "\\t": "\t"}.get(self.separator, self.separator)
            if len(written) != 1 or written in '"\r\n':
                raise InputError("--separator must be one character, or tab.")
            object.__setattr__(self, "separator", written)
        if self.decimal not in (None, *DECIMALS):
            raise InputError(f'--decimal must be "." or ",", not {shown(self.decimal)}.')
        if self.thousands not in (None, *THOUSANDS):
            raise InputError(
                '--thousands must be ".", ",", a space or an apostrophe, not '
                f"{shown(self.thousands)}."
            )
        if self.thousands is not None and self.thousands == self.decimal:
            raise InputError("--decimal and --thousands must be two different marks.")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise InputError(
                    f"There is no encoding {shown(self.encoding)}; name one that Python supports, "
                    "such as cp1252."
                ) from None

    @property
    def dialect(self) -> tuple[str | None, ...]:
        """The given properties of a text file."""
        return self.separator, self.decimal, self.thousands, self.encoding

    @property
    def decimal_mark(self) -> str | None:
        """The decimal mark, if given or implied by the thousands separator."""
        if self.decimal is None and self.thousands in DECIMALS:
            return "," if self.thousands == "." else "."
        return self.decimal

    def refuse_in_chunks(self) -> None:
        """Raise an error for options that do not apply to Parquet files read in chunks."""
        for given, option in (
            (not self.header, "--no-header"),
            (self.names, "--names"),
            (self.sheet, "--sheet"),
            (any(self.dialect), "--separator, --decimal, --thousands or --encoding"),
        ):
            if given:
                raise InputError(f"{option} cannot be used with data read in chunks; leave it out.")


@dataclass(frozen=True, kw_only=True)
class ColumnQuestion:
    """The target of the model, and the roles of the columns."""

    target: Annotated[str, "Column to predict; without it, the columns are listed."] = ""
    model: Annotated[
        str | None,
        "Model family: linear, logistic, poisson or softmax (default: from the target).",
    ] = None
    person: Annotated[
        str | None,
        "Column that identifies people (not a feature); all rows of a person count together.",
    ] = None
    drop: Annotated[Sequence[str], "Column to leave out (repeatable)."] = ()
    categorical: Annotated[
        Sequence[str], "Treat a numeric column as categorical (repeatable)."
    ] = ()
    quantity: Annotated[
        Sequence[str], "Treat a two-valued numeric column as continuous (repeatable)."
    ] = ()
    plan: Annotated[Path | None, "Column plan: the edited output of `seepage columns`."] = None
    missing: Annotated[str, "Missing values: refuse (raise an error), drop or impute."] = "refuse"


@dataclass(frozen=True, kw_only=True)
class CalibrationQuestion(ColumnQuestion):
    """A table, the model to fit, and the target η to which its noise is calibrated."""

    table: Annotated[
        Path,
        "Table: CSV (also .gz, .zst), Parquet (also a folder), Arrow/Feather, ORC, JSON lines, "
        "Excel, SQLite or DuckDB.",
    ]
    l2: Annotated[
        float | None, "L2 penalty λ (default 0.001; 0.01 if the classes are separable)."
    ] = None
    target_eta: Annotated[
        float | None,
        "Target for the largest η of a record; determines σ (default 1).",
    ] = None
    scale: Annotated[bool, " /--no-scale", "Do not standardise the columns."] = True
    model_file: Annotated[
        Path | None, "Fitted model (JSON or safetensors); --model also accepts it."
    ] = None
    options: FileOptions = field(default_factory=FileOptions)

    def __post_init__(self) -> None:
        if self.model is None or Path(self.model).suffix.lower() not in _MODEL_FILES:
            return
        if self.model_file is not None:
            raise InputError("--model and --model-file both name a file; give only one of them.")
        object.__setattr__(self, "model_file", Path(self.model))
        object.__setattr__(self, "model", None)


@dataclass(frozen=True, kw_only=True)
class Question(CalibrationQuestion):
    """A table, the model to fit, the noise, and the contents of the report.

    :func:`seepage.auditing.intake.table.plan_columns` documents the roles of columns.
    """

    sensitive: Annotated[
        Sequence[str],
        "Sensitive column; the smallest error of an attack on it is reported per record "
        "(repeatable).",
    ] = ()
    group: Annotated[Sequence[str], "Column whose groups are compared (repeatable)."] = ()
    sigma: Annotated[float | None, "Standard deviation of the noise on every released number."] = (
        None
    )
    attacker: Annotated[
        str | None,
        "Also estimate the success rate of an attacker who knows no other records (outsider) or a "
        "share of them (knows=0.9). With neither --sigma nor --target-eta, the model counts as "
        "noiseless.",
    ] = None
    # The intercept is not penalised
    intercept: Annotated[
        bool,
        " /--no-intercept",
        "Fit without an intercept, as bounds from differential privacy require.",
    ] = True
    refit: Annotated[
        str | None,
        "With pipeline, membership inference also refits scaling and encoding without each of the "
        "most exposed records.",
    ] = None
    show_values: Annotated[bool, "Show values of the records in the report."] = False
    public: Annotated[Path | None, "Public records with the same columns, to shape the noise."] = (
        None
    )
    dask: Annotated[str | None, "Address of a Dask scheduler, for Parquet files."] = None
    workers: Annotated[int | None, "Number of local processes, for Parquet files."] = None
    remedies: Annotated[
        str | None,
        "Remedies to try, comma-separated, without a time limit: noise, penalty, combination, "
        "weights, shape, or none (default: all, within time limits).",
    ] = None
    quick: Annotated[bool, "Use one train/test split; try no remedies."] = False

    @property
    def named_inputs(self) -> dict[str, Path]:
        """The input files, by option."""
        names = ("table", "model_file", "public", "plan")
        return {name: path for name in names if (path := getattr(self, name)) is not None}

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The input files, which must not be overwritten."""
        return tuple(self.named_inputs.values())


@dataclass(frozen=True, kw_only=True)
class ReleaseQuestion(ColumnQuestion):
    """Settings of a release, declared before the data are seen."""

    target: Annotated[str, "Column to predict."] = ""
    l2: Annotated[float, "L2 penalty λ, declared before seeing the data."] = 0.01
    sigma: Annotated[
        float | None,
        "Noise σ, declared before seeing the data (default: by a private vote if there are "
        "enough records).",
    ] = None
    sigma_epsilon: Annotated[
        float | None, "ε of the vote (default: 0.4; below 40 blocks, 16 divided by their number)."
    ] = None
    target_eta: Annotated[float, "Largest η of a record over all releases in the ledger."] = 1.0
    missing: Annotated[str, "Missing values: refuse (raise an error) or drop."] = "refuse"
    rare: Annotated[str, "Values that few records share: refuse, drop (the column) or merge."] = (
        "refuse"
    )
    least_holders: Annotated[
        int, "Number of records that must share a value before its name is published."
    ] = 10
    person: Annotated[
        str | None,
        "--person",
        "--identity",
        "Column that identifies people (not a feature); all rows of a person count together.",
    ] = None
    # The ends of columns scale them, and records are replaced within them
    domain: Annotated[
        Sequence[str], "Publicly known range of a column, as column=low:high (repeatable)."
    ] = ()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits set by the caller; a release that exceeds one of them fails.

    A preset supplies the limits that were not set.
    """

    preset: Annotated[
        str | None,
        "Limits by audience: open, partners or internal (our defaults, not law). Other limits "
        "override them.",
    ] = None
    max_eta: Annotated[float | None, "Limit: largest η of a record."] = None
    min_mse: Annotated[
        float | None,
        "Limit: smallest mean squared error of an unbiased attack, in squared standard deviations.",
    ] = None
    max_group_ratio: Annotated[
        float | None, "Limit: largest ratio of two groups' mean leakage."
    ] = None
    max_membership: Annotated[
        float | None,
        "Limit: success rate of membership inference (chance: 0.5). Default for the verdict: 0.75.",
    ] = None
    max_guess_gain: Annotated[
        float | None,
        "Limit: how much the release raises the success rate of guessing a class or category. "
        "Default for the verdict: 0.2.",
    ] = None
    max_guess_tpr: Annotated[
        float | None,
        "Limit: true positive rate of attribute inference, at a 1 % false positive rate, for any "
        "class or level of a category. Default for the verdict: 0.5.",
    ] = None
    max_outsider: Annotated[
        float | None,
        "Limit: success rate of membership inference by the attacker that --attacker names. This "
        "rate is an estimate, not a bound.",
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
    """A recording of federated rounds, and the settings of its audit."""

    recording: Annotated[Path, "Recorded updates: a recorder's folder, .npz or .safetensors."]
    property: Annotated[
        Path,
        "--property",
        "Property of the clients: a table with a column node (and optionally round), or a JSON "
        "object.",
    ]
    column: Annotated[str | None, "Property column of the table, if there are several."] = None
    family: Annotated[
        str, "Attacker's classifier: random_forest, logistic, gradient_boosting or mlp."
    ] = "random_forest"
    max_bits: Annotated[
        float | None, "Limit: largest V-information of a layer or a whole update, in bits."
    ] = None
    max_auc: Annotated[float | None, "Limit: largest AUC of property inference (chance: 0.5)."] = (
        None
    )
    auxiliary: Annotated[
        Path | None,
        "Attacker's own records: .npz or .safetensors with x, y and property, or .parquet.",
    ] = None
    network: Annotated[
        str | None,
        "Function that returns the clients' network, as file.py:function; the file is run. Needed "
        "with --auxiliary.",
    ] = None
    loss: Annotated[str, "Loss of the clients' training, such as mse."] = "cross_entropy"
    optimizer: Annotated[str, "Optimiser of the clients: sgd, adam or adamw."] = "sgd"
    learning_rate: Annotated[float, "Learning rate of the clients."] = 0.01
    local_epochs: Annotated[int, "Passes of a client over its records in a round."] = 1
    batch_size: Annotated[int, "Batch size of the clients."] = 32
    client_size: Annotated[
        int | None, "Number of records of a client (default: the metric num-examples)."
    ] = None
    shadow_clients: Annotated[int, "Number of shadow clients for each value of the property."] = 45
    show_values: Annotated[bool, "Show the property of each client in the report."] = False
    seed: Annotated[int, "Random seed."] = 0


@dataclass(frozen=True, kw_only=True)
class ExtractionQuestion:
    """A fine-tuned language model, its training text, and how to attack it."""

    model_folder: Annotated[Path, "Folder of a causal language model, or of an adapter (LoRA)."]
    records: Annotated[
        Path,
        "--records",
        "Training text: .txt (one record per line), or .jsonl, .json, .csv or .parquet with text, "
        "messages, or prompt and completion.",
    ]
    base: Annotated[Path | None, "Folder of the model before fine-tuning."] = None
    held_out: Annotated[
        Path | None, "Records of the same kind that the model was not trained on."
    ] = None
    reference: Annotated[
        Sequence[str],
        "Folder of a reference model trained on other records of the same kind (repeatable; "
        "default: the model of --base).",
    ] = ()
    compare: Annotated[
        Sequence[str],
        "Model trained with one change, or after unlearning, as name=folder, such as 'fewer "
        "epochs=run/checkpoint-100' (repeatable). Its benefit and cost are measured.",
    ] = ()
    marked: Annotated[Path | None, "Text file of secrets, one per line, such as names."] = None
    kinds: Annotated[str, "Kinds of secrets to look for: email, phone, number, code or name."] = (
        "email,phone,number,code"
    )
    temperature: Annotated[
        float | None,
        "Sampling temperature. Default: the model's; 1 if its decoding is greedy, or if --top-k or "
        "--top-p is set.",
    ] = None
    top_k: Annotated[int | None, "Number of most likely tokens kept (top-k); 0 keeps all."] = None
    top_p: Annotated[float | None, "Probability mass of the tokens kept (top-p)."] = None
    near: Annotated[int, "Number of samples per secret, to find near-verbatim copies."] = 0
    exposure: Annotated[int, "Number of candidates among which each secret is ranked."] = 0
    passes: Annotated[int, "Number of forward passes over other tokenisations of each secret."] = 0
    limit: Annotated[int | None, "Attack at most this many records."] = None
    max_probability: Annotated[
        float | None, "Limit: largest probability that the model emits a secret in one try."
    ] = None
    max_exposure: Annotated[float | None, "Limit: largest exposure of a secret, in bits."] = None
    max_tpr: Annotated[
        float | None,
        "Limit: true positive rate of membership inference at a 1 % false positive rate; needs "
        "--held-out.",
    ] = None
    device: Annotated[str | None, "cpu or cuda (default: cuda if available)."] = None
    show_values: Annotated[bool, "Show the secrets in the report, shaded by token probability."] = (
        False
    )
    seed: Annotated[int, "Random seed."] = 0


@dataclass(frozen=True, kw_only=True)
class BudgetQuestion:
    """A privacy budget, or the noise of a training run, to explain."""

    epsilon: Annotated[float | None, "ε of the privacy budget."] = None
    delta: Annotated[float | None, "δ of the budget; for a run, the δ at which to compute ε."] = (
        None
    )
    noise_multiplier: Annotated[
        float | None,
        "--noise-multiplier",
        "--sigma",
        "Noise multiplier of private SGD, instead of ε.",
    ] = None
    sample_rate: Annotated[float, "Probability that a record joins a batch."] = 1.0
    steps: Annotated[int, "Number of steps."] = 1
    neighbours: Annotated[
        str, "Neighbouring relation: add-or-remove one record, or replace one."
    ] = "add-or-remove"
    prior: Annotated[float, "Prior probability that a person is in the data."] = 0.5
