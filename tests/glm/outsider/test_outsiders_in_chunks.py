"""Tables that are read in chunks: the outsider's membership is that of the table in memory."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seepage as sp
from sampled import sampled
from seepage.auditing.command import answer
from seepage.auditing.questions import Question

OUTSIDER = sp.Attacker(knows=0.0)
MODELS = {
    "gaussian": sp.glm.LinearRegression,
    "bernoulli": sp.glm.LogisticRegression,
    "poisson": sp.glm.PoissonRegression,
    "softmax": sp.glm.SoftmaxRegression,
}


def drawn(family, n=240):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, 3)) * [1.0, 2.0, 0.5] + [0.0, 30.0, 0.0]
    X[:2] = [[4.0, 38.0, 2.0], [5.0, 40.0, -3.0]]  # records of leverage
    margin = (X - [0.0, 30.0, 0.0]) @ [0.8, -0.3, 0.5]
    if family == "gaussian":
        return X, margin + rng.standard_normal(n)
    if family == "bernoulli":
        return X, (margin + rng.logistic(size=n) > 0).astype(int)
    if family == "poisson":
        return X, rng.poisson(np.exp(0.3 * margin)).astype(float)
    return X, np.argmax(margin[:, None] * [1.0, 0.0, -1.0] + rng.gumbel(size=(n, 3)), axis=1)


def in_chunks(folder, X, y, weight):
    """Write a table in three files of different lengths; return it to be read in chunks."""
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y})
    if weight is not None:
        table = table.append_column("w", pa.array(weight))
    folder.mkdir()
    ends = [0, 50, 51, len(X)]
    for k in range(3):
        pq.write_table(table.slice(ends[k], ends[k + 1] - ends[k]), folder / f"{k}.parquet")
    return sp.parquet(folder, target="y", weight=None if weight is None else "w")


@pytest.mark.parametrize("family", sampled(list(MODELS), ["gaussian", "softmax"]))
@pytest.mark.parametrize(("knows", "noise"), [(0.0, None), (0.5, 0.2)])
def test_two_passes_are_the_table_in_memory(tmp_path, family, knows, noise):
    X, y = drawn(family)
    weight = np.where(np.arange(len(X)) % 7 == 0, 2.0, 1.0)
    weight[9] = 0.0  # not in the data
    model = MODELS[family](l2=0.01, fit_intercept=True).fit(X, y, weight)
    chunks = in_chunks(tmp_path / "table", X, y, weight)
    how = {
        "attacker": sp.Attacker(knows=knows, reference=1000),
        "noise": None if noise is None else sp.Gaussian(noise),
    }
    here = sp.leakage(model, X, y, sample_weight=weight, **how).membership(exact=0)
    there = sp.leakage(model, chunks, **how).membership()
    np.testing.assert_allclose(np.asarray(there), np.asarray(here), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(there.worlds.area(), here.worlds.area(), rtol=1e-9)
    rest, known = np.asarray(there.informed), np.asarray(here.informed)
    assert np.all(rest >= known * (1 - 1e-6))  # a bound where there are no refits
    assert (there.others, there.numbers) == (here.others, here.numbers)
    assert there.mu.kind == "estimate"
    assert any("need all records in memory" in text for text in there.mu.assumptions)
    some = sp.leakage(model, chunks, **how).membership([3, 200])
    np.testing.assert_allclose(np.asarray(some), np.asarray(here)[[3, 200]], rtol=1e-9)
    if noise is None:
        assert np.array_equal(there.must_know(), here.must_know())
        assert np.array_equal(rest, known)


def test_the_only_record_of_a_column_is_certain_in_chunks_too(tmp_path):
    X, y = drawn("gaussian")
    X[:, 2] = np.arange(len(X)) == 70
    model = sp.glm.LinearRegression(l2=0.0, fit_intercept=True).fit(X, y)
    chunks = in_chunks(tmp_path / "table", X, y, None)
    found = sp.leakage(model, chunks, attacker=OUTSIDER).membership()
    assert np.flatnonzero(np.isinf(np.asarray(found))).tolist() == [70]


def test_what_needs_all_records_is_refused(tmp_path):
    X, y = drawn("gaussian")
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)
    chunks = in_chunks(tmp_path / "table", X, y, None)
    leak = sp.leakage(model, chunks, attacker=OUTSIDER)
    asked = [
        lambda: leak.membership(exact=3),
        lambda: leak.membership(groups=np.arange(len(X)) % 50),
        lambda: leak.within("a", 1.0),
        leak.records,
        lambda: leak.groups(np.arange(len(X)) % 3),
        lambda: sp.leakage(
            model, chunks, attacker=OUTSIDER, release=sp.Predictions(X[:2])
        ).membership(),
        # One other person may hide a record's own prediction, and may be in another chunk.
        lambda: sp.leakage(model, chunks, attacker=OUTSIDER, release=sp.Predictions()).membership(),
        lambda: sp.leakage(model, chunks, attacker=sp.Attacker(knows=[1, 2])).membership(),
    ]
    for ask in asked:
        with pytest.raises(sp.InputError, match="memory"):
            ask()


def test_an_audit_of_a_folder_names_the_same_outsider(tmp_path):
    X, y = drawn("gaussian")
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    frame.to_parquet(tmp_path / "table.parquet")
    (tmp_path / "folder").mkdir()
    frame[:100].to_parquet(tmp_path / "folder" / "0.parquet")
    frame[100:].to_parquet(tmp_path / "folder" / "1.parquet")
    from seepage.auditing.audit import QUICK

    found = [
        answer(Question(table=tmp_path / name, target="y", attacker="outsider"), effort=QUICK)
        for name in ("table.parquet", "folder")
    ]
    one, two = (audit.outsider for audit in found)
    assert two.median == pytest.approx(one.median, rel=1e-8)
    assert two.membership == pytest.approx(one.membership, rel=1e-8)
    assert (two.row, two.must_know, two.others) == (one.row, one.must_know, one.others)
