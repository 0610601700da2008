"""Tables of many one-hot columns: every number as for the same table done column by column."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import seepage as sp
from seepage.auditing.audit import _choose_noise, _feature_names, find_risks
from seepage.auditing.measures import measure
from seepage.auditing.neighbours import find_other_noise
from seepage.auditing.tradeoff import split
from seepage.auditing.trained_model import (
    ROW,
    Attribute,
    EncodedTable,
    FitSettings,
    LabelFacts,
    RecordsInMemory,
    TrainedModel,
    choose_model,
)
from seepage.tables.source import RowSource


@pytest.fixture(scope="module")
def trained():
    """120 records of three categories with twelve levels and two numbers."""
    rng = np.random.default_rng(0)
    codes = [rng.permutation(np.arange(120) % 12) for _ in range(3)]
    blocks = [(c[:, None] == np.arange(1, 12)).astype(float) for c in codes]
    X = np.column_stack([*blocks, rng.standard_normal((120, 2))])
    y = X @ rng.standard_normal(X.shape[1]) + rng.standard_normal(120)
    attributes = [
        Attribute(f"c{k}", "categorical", tuple(range(11 * k, 11 * k + 11)), np.eye(11), 0.9)
        for k in range(3)
    ] + [Attribute(f"x{k}", "numeric", (33 + k,), np.eye(1), 1.0) for k in range(2)]
    model = sp.glm.LinearRegression(l2=1e-3, fit_intercept=True).fit(X, y)
    names = [f"f{j}" for j in range(X.shape[1])]
    source = RecordsInMemory(X, names, y, None, {ROW: np.arange(120)})
    labels = LabelFacts(spread=1.0)
    settings = FitSettings("linear", 1e-3)
    table = EncodedTable(source, tuple(attributes), "y", "numeric", labels)
    return TrainedModel(model, settings, table)


def test_what_is_neither_kept_nor_refitted_is_not_told(trained):
    with pytest.raises(sp.InputError, match="The values of data read in chunks are not stored"):
        trained.table.values()
    fixed = replace(trained, settings=replace(trained.settings, refits=False))
    assert find_other_noise(fixed, 1.0, 1.0) is None


def test_a_family_that_suits_the_target_is_taken_and_another_refused():
    assert choose_model("linear", "numeric", "dose") == "linear"
    assert choose_model("logistic", "binary", "ill") == "logistic"
    with pytest.raises(sp.InputError, match="a linear model cannot predict; use --model logistic"):
        choose_model("linear", "binary", "ill")


def test_a_part_of_the_records_gives_its_own_rows(trained):
    chosen, y = np.array([3, 5, 119]), trained.source.y
    *parts, share = RowSource.parted(trained.source, chosen)
    assert share == 1.0
    for part, rows in zip(parts, (np.setdiff1d(np.arange(120), chosen), chosen), strict=True):
        assert len(part) == len(rows)
        answers = list(part.each(lambda chunk: chunk.y, "labels"))
        np.testing.assert_array_equal(np.concatenate(answers), y[rows])


def test_a_model_that_follows_no_record_needs_no_noise():
    for worst in (0.0, np.inf, np.nan):
        with pytest.raises(sp.InputError, match="no audit is possible; check the target"):
            _choose_noise(worst, None, None)
    assert _choose_noise(0.3, None, 2.0)[0] == 2.0


def test_features_of_two_columns_are_never_called_alike():
    town = Attribute("town", "categorical", (0, 1), np.eye(2), 0.9)
    other = Attribute("town (1)", "numeric", (2,), np.eye(1), 1.0)
    source = SimpleNamespace(names=["a", "b", "c", "d"])
    trained = SimpleNamespace(source=source, table=SimpleNamespace(attributes=(town, other)))
    assert _feature_names(trained) == ("town (1)", "town (2)", "town (1)′", "feature 3")


@pytest.mark.parametrize(
    ("refits", "held", "why"),
    [(False, True, "only by its own library"), (True, False, "with refit='pipeline'")],
)
def test_risks_that_are_not_known_say_why(refits, held, why):
    trained = SimpleNamespace(source=None, settings=SimpleNamespace(refits=refits), held=held)
    with pytest.raises(sp.InputError, match=why):
        find_risks(trained, 1.0, None, ())


def test_every_class_keeps_a_record_to_fit_on():
    fitted, tested = split(np.array(["a", "b", "a", "a"]), True, seed=0)
    assert sorted([*fitted, *tested]) == [0, 1, 2, 3]
    assert 1 in fitted
    with pytest.raises(sp.InputError, match="has 2 usable rows, too few to fit a model on some"):
        split(np.array(["a", "b"]), True, seed=0)


def test_attributes_agree_with_the_written_out_jacobian(trained):
    found = measure(trained).attributes(1.0, ("y", "numeric", 1.0))
    names = [f"f{j}" for j in range(trained.source.X.shape[1])]
    table = pa.table(dict(zip(names, trained.source.X.T, strict=True)))
    groups = {a.name: [names[j] for j in a.columns] for a in trained.table.attributes}
    leak = sp.leakage(
        trained.model, table, trained.source.y, noise=sp.Gaussian(1.0), attributes=groups
    )
    for entry in found[:-1]:
        name = entry.name
        informations = [
            np.asarray(leak.information(i, columns=groups[name]))
            for i in range(len(trained.source.y))
        ]
        largest = np.array([np.linalg.eigvalsh(matrix)[-1] for matrix in informations])
        assert entry.smallest_error == pytest.approx(1 / np.sqrt(largest.max()), rel=1e-9)
        assert entry.eta == pytest.approx(float(leak.subset(columns=groups[name])), rel=1e-9)
