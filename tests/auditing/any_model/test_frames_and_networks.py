"""Audits by attack of data frames and pipelines, their report by sp.report, and of networks."""

import json
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import KNNImputer
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import seepage as sp
from seepage.auditing.any_model.structure import examine

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 3))
Y = (X[:, 0] + RNG.standard_normal(120) > 0).astype(int)
FRAME = pd.DataFrame(
    {"age": X[:, 0], "weight": X[:, 1], "town": np.where(X[:, 2] > 0, "north", "south")},
    index=np.arange(500, 620),  # positions, not labels, choose the rows
)
SAME = np.column_stack([X[:, 0], X[:, 1], (X[:, 2] <= 0)])
FOREST = RandomForestClassifier(10, random_state=0)


def encoded(model, **settings):
    """Return a pipeline that turns the frame into the columns of ``SAME``."""
    towns = OrdinalEncoder(categories=[["north", "south"]], **settings)
    columns = ColumnTransformer(
        [("numbers", "passthrough", ["age", "weight"]), ("towns", towns, ["town"])]
    )
    return make_pipeline(columns, model)


def figures(audit):
    return [(attack.method, attack.auc, attack.tpr(0.01)) for attack in audit.attacks]


@pytest.mark.parametrize("frame", [FRAME, pl.from_pandas(FRAME)], ids=["pandas", "polars"])
def test_a_pipeline_on_a_frame_is_attacked_like_its_forest_on_the_encoded_table(frame):
    """It was refused with scikit-learn's ValueError, as the frame was turned into numbers."""
    whole = sp.audit_estimator(encoded(FOREST), frame, Y, shadows=6)
    inner = sp.audit_estimator(FOREST, SAME, Y, shadows=6)
    assert figures(whole) == figures(inner)
    assert whole.structure == inner.structure
    assert whole.model == "RandomForestClassifier in a Pipeline"
    assert {risk.name for risk in whole.structure} >= {"leaves with few records"}


def test_labels_that_are_text_and_columns_by_name():
    words = pd.Series(np.where(Y, "well", "ill"), name="state")  # in the order of 0 and 1
    pipeline = encoded(DecisionTreeClassifier(random_state=0))
    told = sp.audit_estimator(pipeline, FRAME, words, shadows=6)
    plain = sp.audit_estimator(DecisionTreeClassifier(random_state=0), SAME, Y, shadows=6)
    assert figures(told) == figures(plain)


def test_only_some_records_of_a_long_frame_are_attacked(monkeypatch):
    monkeypatch.setattr("seepage.auditing.any_model.attack_audit.MOST_RECORDS", 60)
    whole = sp.audit_estimator(encoded(FOREST), FRAME, Y, shadows=6)
    inner = sp.audit_estimator(FOREST, SAME, Y, shadows=6)
    assert len(whole.attacked) == 60
    assert figures(whole) == figures(inner)


def test_what_cannot_be_fitted_gets_one_sentence():
    with pytest.raises(sp.InputError, match="RandomForestClassifier cannot be fitted on these"):
        sp.audit_estimator(FOREST, FRAME, X[:, 0])  # numbers are no classes
    rare = FRAME.assign(town=["nowhere", *FRAME["town"][1:]])
    once = make_pipeline(
        ColumnTransformer([("towns", OneHotEncoder(), ["town"])], remainder="passthrough"), FOREST
    )
    with pytest.raises(sp.InputError, match="handle_unknown='ignore'"):
        sp.audit_estimator(once, rare, Y, shadows=4)
    once.set_params(columntransformer__towns__handle_unknown="ignore")
    structure = sp.audit_estimator(once, rare, Y, shadows=4).structure
    (found,) = (risk for risk in structure if risk.name == "categories held by one row")
    assert (found.found, found.records) == (True, 1)
    with pytest.raises(sp.InputError, match="is a class; pass an instance"):
        sp.audit_estimator(RandomForestClassifier, X, Y)
    with pytest.raises(sp.InputError, match="has no fit and no predict and no get_params"):
        sp.audit_estimator(object(), X, Y)


def test_records_kept_by_a_step_or_a_search_count():
    def stored(model):
        risks = examine(model.fit(X, Y), X, Y).risks
        found = {risk.name: risk.records for risk in risks}
        return found.get("records inside the model", 0)

    assert stored(make_pipeline(KNNImputer(), DecisionTreeClassifier())) == 120
    assert stored(make_pipeline(StandardScaler(), KNeighborsClassifier())) == 120
    assert stored(GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [3, 5]})) == 120
    assert stored(make_pipeline(FunctionTransformer(), DecisionTreeClassifier())) == 0


def test_sp_report_writes_an_audit_by_attack(tmp_path):
    """It failed: the audit by attack has no gates."""
    found = sp.audit_estimator(FOREST, X, Y, shadows=6)
    page = sp.report(found, tmp_path / "report")
    assert page == tmp_path / "report" / "report.html"
    assert "RandomForestClassifier" in page.read_text()
    told = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert told["attacks"][0]["auc"] == found.attacks[0].auc
    assert sp.report(found, str(tmp_path / "report")) == page  # replaces its own
    with pytest.raises(sp.InputError, match="of type dict"):
        sp.report({}, tmp_path / "other")
    assert not (tmp_path / "other").exists()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)

    def forward(self, x):
        return torch.tanh(self.inner(x))


@pytest.mark.parametrize("net", [torch.nn.Linear(3, 2), Net()], ids=["torch's", "own"])
def test_a_network_is_sent_to_a_call_that_works(net):
    """It was sent to sp.audit_estimator, which raised scikit-learn's TypeError."""
    asked = (
        lambda: sp.audit(net, torch.zeros(4, 1, 8, 8), Y),  # a batch, not a table
        lambda: sp.leakage(net, X, Y),
        lambda: sp.audit_estimator(net, X, Y),
    )
    for ask in asked:
        with pytest.raises(sp.InputError, match=re.escape("sp.leakage(net, ")) as refused:
            ask()
        call = re.search(r"sp\.leakage\(net.*?\)", str(refused.value))[0]
        leak = eval(call, {"sp": sp, "net": net, "X": X, "y": Y})  # noqa: S307
        eta = leak.records("dfil")
        assert eta.shape == (120,)
        assert np.all(np.asarray(eta) > 0)
