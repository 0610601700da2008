"""Small real audits for the tests of the first screen, of every kind that has a page."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

import seepage as sp
from recordings import make_report
from seepage.auditing.any_model.report import AttackReport
from seepage.auditing.audit import QUICK, Effort, audit_table
from seepage.auditing.gates import held_to
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.questions import Limits
from seepage.auditing.release.making import make_release
from seepage.auditing.release.procedure import Procedure
from seepage.auditing.report.audit_report import AuditReport

L2, SIGMA = 0.02, 0.06


@cache
def encoded():
    """Return 70 patients, of whom two are unusual, with a binary outcome and two towns."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((70, 3))
    X[:2] *= 6
    ill = rng.random(70) < 1 / (1 + np.exp(-X @ [1.2, -0.8, 0.4]))
    ill[0] = X[0] @ [1.2, -0.8, 0.4] < 0  # against all odds
    columns = {f"blood {k}": X[:, k] for k in range(3)}
    town = np.where(rng.random(70) < 0.3, "north", "south")
    table = TableInMemory(pa.table({**columns, "town": town, "ill": np.where(ill, "yes", "no")}))
    plan = plan_columns(table, "ill", sensitive=["blood 1"], groups=["town"], drop=["town"])
    return encode(table, plan)


@cache
def audited(**changes):
    """Return the audit of a logistic regression of them, with remedies by noise and penalty."""
    settings = {"name": "patients", "l2": L2, "sigma": SIGMA, "model": "logistic"}
    effort = Effort(refits=False, remedies=("noise", "penalty"))
    return audit_table(encoded(), **settings | {"effort": effort} | changes)


@cache
def report(kind: str):
    """Return the report of an audit of a kind."""
    if kind == "table":
        return AuditReport(audited())
    if kind == "preset":
        limits = Limits(preset="open")
        return AuditReport(held_to(limits, audited(limits=limits)))
    if kind == "release":
        return AuditReport(released())
    if kind == "outsider":
        attacker = sp.Attacker(knows=0.0)
        return AuditReport(audited(sigma=None, attacker=attacker, effort=QUICK))
    if kind == "forest":
        from sklearn.tree import DecisionTreeClassifier

        source = encoded().source
        model = DecisionTreeClassifier(random_state=0)
        X, y = np.asarray(source.X), np.asarray(source.y)
        return AttackReport(sp.audit_estimator(model, X, y, shadows=8, source="patients"))
    return make_report(apart=True)


@cache
def released():
    """Return the audit of a release of the same patients, as its command makes it."""
    source = encoded().source
    names = [f"blood {k}" for k in range(3)]
    columns = dict(zip(names, np.asarray(source.X).T, strict=True))
    table = pa.table({**columns, "ill": np.asarray(source.y).astype(str)})
    procedure = Procedure(target="ill", sigma=0.5, target_eta=3.0)
    made = make_release(
        procedure, table, limits=Limits(preset="open"), name="patients", tell=lambda words: None
    )
    return made.audit


KINDS = ("table", "preset", "release", "outsider", "forest", "rounds")
