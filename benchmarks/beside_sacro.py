"""SACRO-ML 2.0.1 and seepage on the same models and tables: what each tells, and how long it takes.

Every model is fitted once on half of a table. SACRO-ML's structural, attribute, likelihood-ratio
and worst-case attacks, its check for stored records and our structural checks look at that fit.
Its attribute attack asks the model about every record by itself, and is given 40 members and 40
others. ``sp.audit_estimator`` audits the same estimator on the whole table, as users run it. Both
fit 18 models on halves for their membership attacks. Printed, and kept in
``results/beside_sacro.json``.

SACRO-ML asks for PyTorch and XGBoost, so it has an environment of its own, with seepage in it::

    python -m venv venv-sacro && venv-sacro/bin/pip install sacroml==2.0.1 -e .
    venv-sacro/bin/python benchmarks/beside_sacro.py

Needs UCI Adult in SEEPAGE_DATA.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import seepage as sp
from keeping import keep
from measuring import show
from seepage.auditing.any_model.report import summary_of_guesses
from seepage.auditing.any_model.structure import examine

KEPT = Path(__file__).parent / "results" / "beside_sacro.json"
WIDTHS = (36, 24, 26, 14, 16)
MODELS = 18  # that each fits on halves for its attack on membership
FEW = 40  # members, and others, whose columns SACRO-ML guesses: one by one, 100 values each
NUMBERS = ("age", "education-num", "hours-per-week")
# SACRO-ML encodes the values that the records it is given have, so none may be rare
CATEGORIES = {
    "sex": ("Female", "Male"),
    "race": ("Black", "White"),
    "marital-status": ("Divorced", "Married-civ-spouse", "Never-married"),
}
# Our checks that answer each of theirs
CHECKS = {
    "dof_risk": "degrees of freedom",
    "k_anonymity_risk": "answers shared by few",
    "class_disclosure_risk": "classes ruled out",
    "smallgroup_risk": "small groups",
    "unnecessary_risk": "settings",
    "gen_error_risk": "generalisation gap",
}


class Sample(NamedTuple):
    """A table as numbers, and the columns of each attribute."""

    X: np.ndarray
    y: np.ndarray
    together: dict[str, tuple[int, ...]]
    raw: np.ndarray  # one column per attribute, as it was


def breast_cancer() -> Sample:
    """Return six columns of the Wisconsin table."""
    found = load_breast_cancer()
    X = found.data[:, :6]
    names = [str(name) for name in found.feature_names[:6]]
    return Sample(X, found.target, {name: (j,) for j, name in enumerate(names)}, X)


def adult() -> Sample:
    """Return 1,000 people with three numbers and three categories, one-hot."""
    people = sp.data.load_adult(download=False).train.columns
    usual = np.all([np.isin(people[name], kept) for name, kept in CATEGORIES.items()], axis=0)
    rows = np.random.default_rng(0).permutation(np.flatnonzero(usual))[:1000]
    parts, together, raw, at = [], dict[str, tuple[int, ...]](), [], 0
    for name in (*NUMBERS, *CATEGORIES):
        values = people[name][rows]
        raw.append(values)
        if name in CATEGORIES:
            part = (values[:, None] == np.unique(values)).astype(float)
        else:
            part = values.astype(float)[:, None]
        together[name] = tuple(range(at, at := at + part.shape[1]))
        parts.append(part)
    y = (people["income"][rows] == ">50K").astype(int)
    return Sample(np.hstack(parts), y, together, np.column_stack(raw).astype(object))


def estimators() -> dict[str, Any]:
    """Return the models, with their default settings but for the size of forests."""
    found = {
        "decision tree": DecisionTreeClassifier(random_state=0),
        "random forest": RandomForestClassifier(40, random_state=0),
        "logistic regression": LogisticRegression(max_iter=5000),
        "network": MLPClassifier(random_state=0, max_iter=300),
        "SVC": SVC(probability=True, random_state=0),
    }
    from xgboost import XGBClassifier

    return found | {"XGBoost": XGBClassifier(n_estimators=50, random_state=0, n_jobs=1)}


def target_of(model: Any, sample: Sample, train: np.ndarray, most: int | None = None) -> Any:
    """Return what SACRO-ML calls a target: a fitted model, and its training and test sets.

    At most so many records of each, if a number is given.
    """
    from sacroml.attacks.target import Target

    test = np.setdiff1d(np.arange(len(sample.y)), train)[:most]
    train = train[:most]
    target = Target(
        model=model,
        dataset_name="sample",
        X_train=sample.X[train],
        y_train=sample.y[train],
        X_test=sample.X[test],
        y_test=sample.y[test],
        X_train_orig=sample.raw[train],
        y_train_orig=sample.y[train],
        X_test_orig=sample.raw[test],
        y_test_orig=sample.y[test],
    )
    for name, columns in sample.together.items():
        encoding = "onehot" if name in CATEGORIES else "float"
        target.add_feature(name, list(columns), encoding)
    return target


def timed(work: Any) -> tuple[Any, float]:
    """Return what some work gives, and its seconds of processor time, children included.

    What it prints is dropped.
    """
    start = sum(os.times()[:4])
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        found = work()
    return found, sum(os.times()[:4]) - start


def theirs(model: Any, sample: Sample, train: np.ndarray) -> dict[str, Any]:
    """Return what SACRO-ML says of a fitted model."""
    from sacroml.attacks.attribute_attack import AttributeAttack
    from sacroml.attacks.instance_based_attack import InstanceBasedAttack
    from sacroml.attacks.likelihood_attack import LIRAAttack
    from sacroml.attacks.structural_attack import StructuralAttack
    from sacroml.attacks.worst_case_attack import WorstCaseAttack

    logging.disable(logging.CRITICAL)
    target = target_of(model, sample, train)
    seconds: dict[str, float] = {}
    quiet = {"output_dir": "out", "write_report": False}
    structural = StructuralAttack(**quiet)
    _, seconds["structure"] = timed(lambda: structural.attack(target))
    lira = LIRAAttack(n_shadow_models=MODELS, **quiet)
    _, seconds["LiRA"] = timed(lambda: lira.attack(target))
    worst = WorstCaseAttack(n_reps=3, **quiet)
    _, seconds["worst case"] = timed(lambda: worst.attack(target))
    attribute = AttributeAttack(n_cpu=1, **quiet)
    few = target_of(model, sample, train, FEW)
    _, seconds["attributes"] = timed(lambda: attribute.attack(few))
    stored = InstanceBasedAttack(**quiet)
    kept, seconds["stored records"] = timed(lambda: stored.attack(target))
    metrics = attribute.attack_metrics
    return {
        "structure": {name: bool(getattr(structural.results, name)) for name in CHECKS},
        "gap": float(structural.results.generalisation_gap),
        "LiRA": float(lira.attack_metrics[0]["AUC"]),
        "worst case": float(np.mean([one["AUC"] for one in worst.attack_metrics])),
        "stored records": _stored(kept),
        "attributes": {
            **{one["name"]: [one["train"], one["test"]] for one in metrics["quantitative"]},
            **{
                one["name"]: [
                    [part[0] / part[1] if part[1] else None, part[1] / part[4], part[2] / 100]
                    for part in (one["train"], one["test"])
                ]
                for one in metrics["categorical"]
            },
        },
        "seconds": seconds,
    }


def _stored(output: dict[str, Any]) -> Any:
    """Return SACRO-ML's numbers on records inside the model; ``None`` if it does not attack it."""
    if not output:
        return None
    logged = output["attack_experiment_logger"]["attack_instance_logger"]["instance_0"]
    return {key: value for key, value in logged.items() if isinstance(value, bool | int | float)}


def ours(estimator: Any, model: Any, sample: Sample, train: np.ndarray) -> dict[str, Any]:
    """Return what seepage says of the same fitted model, and of the estimator on all records."""
    structure, spent = timed(lambda: examine(model, sample.X[train], sample.y[train]))
    audit, whole = timed(
        lambda: sp.audit_estimator(
            estimator, sample.X, sample.y, shadows=MODELS - 2, together=sample.together
        )
    )
    gap = next(risk for risk in audit.structure if risk.name == "generalisation gap")
    best = audit.strongest
    return {
        "structure": {
            risk.name: {
                "found": risk.found,
                "value": risk.value,
                "records": risk.records,
                "among": risk.among,
            }
            for risk in (*structure.risks, gap)
        },
        "attack": best.method,
        "auc": [best.auc, *best.interval],
        "found at 1 %": [best.tpr(0.01).rate, *best.tpr(0.01).interval],
        "attributes": {one.name: summary_of_guesses(one) for one in audit.guesses},
        "error": [audit.held_out.error, audit.held_out.constant],
        "gap": [audit.held_out.gap, audit.held_out.gap_low, audit.held_out.gap_high],
        "seconds": {"structure": spent, "audit": whole},
    }


def compared(name: str, sample: Sample) -> dict[str, Any]:
    """Return what both say of every model on a table, and print a line of each."""
    train = np.sort(np.random.default_rng(1).permutation(len(sample.y))[: len(sample.y) // 2])
    figures = {}
    for kind, estimator in estimators().items():
        model = clone(estimator).fit(sample.X[train], sample.y[train])
        one = {"ours": ours(estimator, model, sample, train)}
        # It keeps shadow models in the working folder, and takes up those that are there
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            one["theirs"] = theirs(model, sample, train)
        figures[kind] = one
        mine, other = one["ours"], one["theirs"]
        agreed = sum(
            bool(mine["structure"][own]["found"]) == bool(other["structure"][check])
            for check, own in CHECKS.items()
        )
        show(
            f"{name}, {kind}",
            "{:.3f} ({:.3f} to {:.3f})".format(*mine["auc"]),
            f"{other['LiRA']:.3f}, {other['worst case']:.3f}",
            f"{agreed} of {len(CHECKS)}",
            f"{sum(mine['seconds'].values()):.1f}, {sum(other['seconds'].values()):.1f}",
            widths=WIDTHS,
        )
    return figures


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    show("", "our AUC", "their LiRA, worst case", "checks agree", "seconds", widths=WIDTHS)
    figures = {
        name: compared(name, sample)
        for name, sample in {"breast cancer": breast_cancer(), "Adult": adult()}.items()
    }
    keep(figures, KEPT)
