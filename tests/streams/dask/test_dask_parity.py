"""Dask collections give the numbers of the table in memory, for every family, view and cut."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import seepage as sp
from sampled import sampled
from seepage.streams.dask.source import dask_rows

ROWS = 203
EXACT = 1e-9


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def _problem(family):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((ROWS, 4)) * [1.0, 3.0, 0.5, 1.0] + [0, 1, 0, 0]
    margin = X @ [1.0, -0.4, 0.5, 0.0] + 0.7 * rng.standard_normal(ROWS)
    labels = {
        "linear": margin,
        "logistic": margin > 0,
        "poisson": rng.poisson(np.exp(0.3 * margin)),
        "softmax": np.digitize(margin, [-0.5, 0.5]),
    }
    return X, labels[family], rng.random(ROWS) + 0.1


MODELS = {
    "linear": lambda: sp.glm.LinearRegression(l2=1e-3, fit_intercept=True),
    "logistic": lambda: sp.glm.LogisticRegression(l2=1e-2),
    "poisson": lambda: sp.glm.PoissonRegression(l2=1e-2, fit_intercept=True),
    "softmax": lambda: sp.glm.SoftmaxRegression(l2=1e-2),
}


def _both(family, weighted, chunks):
    X, y, w = _problem(family)
    memory = MODELS[family]().fit(X, y, sample_weight=w if weighted else None)
    kept = sp.leakage(memory, X, y, noise=sp.Gaussian(0.1), sample_weight=w if weighted else None)
    given = [da.from_array(X, chunks=chunks), da.from_array(y, chunks=70)]
    weight = da.from_array(w, chunks=ROWS) if weighted else None
    model = MODELS[family]().fit(*given, sample_weight=weight)
    assert model.coef_ == pytest.approx(memory.coef_, rel=EXACT, abs=EXACT)
    leak = sp.leakage(model, *given, noise=sp.Gaussian(0.1), sample_weight=weight)
    return kept, leak


@pytest.mark.parametrize("weighted", sampled([False, True], [True]))
@pytest.mark.parametrize("family", sampled(list(MODELS), 2))
def test_every_view_of_arrays(family, weighted):
    kept, leak = _both(family, weighted, chunks=((50, 1, 100, 52), (2, 2)))
    for measure in ("fil", "dfil"):
        rows = leak.rows(measure=measure).to_dask()
        assert rows.chunks == ((50, 1, 100, 52),)
        assert rows.compute() == pytest.approx(np.asarray(kept.rows(measure=measure)), rel=EXACT)
        assert float(leak.dataset(measure)) == pytest.approx(
            float(kept.dataset(measure)), rel=EXACT
        )
        columns = np.asarray(leak.columns(measure=measure))
        assert columns == pytest.approx(np.asarray(kept.columns(measure=measure)), rel=EXACT)
    cells = leak.cells().to_dask()
    assert cells.shape == (ROWS, 4)
    assert cells.compute() == pytest.approx(np.asarray(kept.cells()), rel=EXACT)
    some = leak.rows(columns=[1], label=True).to_dask().compute()
    assert some == pytest.approx(np.asarray(kept.rows(columns=[1], label=True)), rel=EXACT)
    exact = np.asarray(sp.bounds.cramer_rao_rows(kept))
    assert sp.bounds.cramer_rao_rows(leak).to_dask().compute() == pytest.approx(exact, rel=1e-8)
    worst = leak.rows().top(3)
    assert np.asarray(worst) == pytest.approx(np.asarray(kept.rows().top(3)), rel=EXACT)
    assert worst.index.tolist() == kept.rows().top(3).index.tolist()


@pytest.mark.parametrize("chunks", [(ROWS, 4), ((1,) * 9 + (ROWS - 9,), 4), ((100, 103), (1, 3))])
def test_the_cut_does_not_matter(chunks):
    kept, leak = _both("logistic", False, chunks)
    assert leak.rows().to_dask().compute() == pytest.approx(np.asarray(kept.rows()), rel=EXACT)


def test_blocks_of_unknown_length():
    X, y, _ = _problem("logistic")
    chosen = X[:, 0] > -0.3
    whole = da.from_array(X, chunks=(60, 4)), da.from_array(y, chunks=60)
    mask = da.from_array(chosen, chunks=60)
    data = dask_rows(whole[0][mask], whole[1][mask])
    assert len(data) == chosen.sum()
    model = sp.glm.LogisticRegression(l2=1e-2).fit(data)
    kept = sp.glm.LogisticRegression(l2=1e-2).fit(X[chosen], y[chosen])
    assert model.coef_ == pytest.approx(kept.coef_, rel=EXACT)


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, ROWS),
            "income": rng.lognormal(size=ROWS).astype(np.float32),
            "job": rng.choice(["baker", "judge", "nurse"], ROWS),
            "city": pd.Categorical(rng.choice(["Ulm", "Bonn"], ROWS)),
            "member": rng.random(ROWS) < 0.5,
            "weight": rng.random(ROWS) + 0.5,
            "group": rng.choice(["a", "b", "c"], ROWS),
        }
    )
    score = frame.age / 40 + frame.member + (frame.job == "judge") - 2
    frame["left"] = np.where(score + rng.standard_normal(ROWS) > 0, "yes", "no")
    return frame


FEATURES = ["age", "income", "job", "city", "member"]


def _encoded(frame):
    """The features as the encoding is documented: text as one column per level, in order."""
    columns = {"age": frame.age.astype(float), "income": frame.income.astype(float)}
    for name in ("job", "city"):
        for level in sorted(frame[name].astype(str).unique()):
            columns[f"{name}={level}"] = (frame[name] == level).astype(float)
    return pd.DataFrame(columns | {"member": frame.member.astype(float)})


@pytest.mark.slow
def test_a_data_frame_with_text_weights_groups_and_empty_partitions(people):
    frame = dd.concat(
        [
            dd.from_pandas(people[:80], npartitions=3),
            dd.from_pandas(people[:80], npartitions=2).query("age < 0"),  # nobody
            dd.from_pandas(people[80:], npartitions=2),
        ]
    )
    data = dask_rows(frame, "left", columns=FEATURES, weight="weight")
    X = _encoded(people)
    assert data.names == tuple(X.columns)
    assert data.attributes["job"] == ("job=baker", "job=judge", "job=nurse")
    assert 0 in data.lengths
    assert len(data) == ROWS
    model = sp.glm.LogisticRegression(l2=1e-2).fit(data)
    assert model.classes_.tolist() == ["no", "yes"]
    kept_model = sp.glm.LogisticRegression(l2=1e-2).fit(
        X, people.left.to_numpy(), sample_weight=people.weight
    )
    kept = sp.leakage(
        kept_model,
        X,
        people.left.to_numpy(),
        noise=sp.Gaussian(0.1),
        sample_weight=people.weight,
        attributes=data.attributes,
    )
    leak = sp.leakage(model, data, noise=sp.Gaussian(0.1))
    assert leak.rows().to_dask().compute() == pytest.approx(np.asarray(kept.rows()), rel=EXACT)
    ours, theirs = leak.groups("group"), kept.groups(people.group)
    assert ours.index.tolist() == theirs.index.tolist()
    assert np.asarray(ours) == pytest.approx(np.asarray(theirs), rel=EXACT)
    assert np.asarray(leak.columns()) == pytest.approx(np.asarray(kept.columns()), rel=EXACT)


@pytest.mark.slow
def test_a_frame_can_be_given_as_it_is(people):
    frame = dd.from_pandas(people[["age", "member", "left"]], npartitions=4)
    model = sp.glm.LogisticRegression(l2=1e-2, fit_intercept=True).fit(frame, "left")
    leak = sp.leakage(model, frame, "left", noise=sp.Gaussian(0.1))
    X = people[["age", "member"]].astype(float)
    kept = sp.leakage(
        sp.glm.LogisticRegression(l2=1e-2, fit_intercept=True).fit(X, people.left),
        X,
        people.left,
        noise=sp.Gaussian(0.1),
    )
    assert leak.rows().to_dask().compute() == pytest.approx(np.asarray(kept.rows()), rel=EXACT)


def test_scaled_columns(people):
    frame = dd.from_pandas(people[["age", "income", "left"]], npartitions=4)
    model = sp.glm.LogisticRegression(l2=1e-2).fit(dask_rows(frame, "left", scale=True))
    X = people[["age", "income"]].astype(float)
    X = (X - X.mean()) / X.std(ddof=0)
    kept = sp.glm.LogisticRegression(l2=1e-2).fit(X, people.left)
    assert model.coef_ == pytest.approx(kept.coef_, rel=1e-8)


def _arrays(**change):
    X, y, w = _problem("logistic")
    given = {"X": X, "y": y, "w": w} | change
    return [da.from_array(given[name], chunks=60) for name in ("X", "y", "w")]


def _spoilt(values, at, value):
    values = np.array(values, dtype=float)
    values[at] = value
    return values


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": _spoilt(_problem("linear")[0], (150, 2), np.nan)}, "'x2' contains .* in row 150"),
        ({"y": _spoilt(_problem("linear")[1], 7, np.inf)}, "'y' contains NaN or infinity in row 7"),
        ({"w": _spoilt(_problem("linear")[2], 199, -1)}, "row 199 must not be negative"),
        ({"w": _spoilt(_problem("linear")[2], 61, np.nan)}, "'sample_weight' .* in row 61"),
        ({"y": np.ones((ROWS, 2))}, "must be one-dimensional"),
        ({"y": np.ones(ROWS - 1)}, "X has 203 rows, but y has 202"),
        ({"X": np.ones(ROWS)}, "rows and columns"),
        ({"X": np.full((ROWS, 2), "text")}, "instead of numbers"),
    ],
)
def test_bad_arrays_are_refused(change, words):
    X, y, w = _arrays(**change)
    with pytest.raises(sp.InputError, match=words):
        sp.glm.LinearRegression(l2=1e-2).fit(X, y, sample_weight=w)


def test_bad_frames_are_refused(people):
    frame = dd.from_pandas(people, npartitions=2)
    fit = sp.glm.LogisticRegression(l2=1e-2).fit
    with pytest.raises(sp.InputError, match="no column 'lefft'"):
        fit(frame, "lefft")
    with pytest.raises(sp.InputError, match="the target must be the name of one of its columns"):
        fit(frame, frame.left)
    with pytest.raises(sp.InputError, match="no rows"):
        fit(frame[frame.age < 0], "left")
    gap = people.assign(age=people.age.where(people.index != 150))
    with pytest.raises(sp.InputError, match="'age' has no value in row 48 of partition 1"):
        fit(dask_rows(dd.from_pandas(gap, npartitions=2), "left", columns=["age"]))
    with pytest.raises(sp.InputError, match="numbers with decimals"):
        fit(frame, "income")
    data = dask_rows(frame, "left", columns=["age"])
    leak = sp.leakage(fit(data), data, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match="no column 'grup'"):
        leak.groups("grup")


def test_only_dask_collections_are_taken():
    with pytest.raises(sp.InputError, match="not ndarray"):
        dask_rows(np.ones((3, 2)), "y")
    X, y, _ = _arrays()
    with pytest.raises(sp.InputError, match="y must also be a dask array, not ndarray"):
        dask_rows(X, np.ones(ROWS))
    with pytest.raises(sp.InputError, match="to data frames"):
        dask_rows(X, y, scale=True)
    data = dask_rows(X, y)
    leak = sp.leakage(sp.glm.LogisticRegression(l2=1e-2).fit(data), data, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match="no column 'race'"):
        leak.groups("race")


def test_data_that_change_are_refused():
    X = _problem("logistic")[0]
    sizes = iter([100, 99, 98, 97])

    def block():
        return X[: next(sizes)]

    block = dask.delayed(block, pure=False)
    frame = dd.from_delayed(
        [dask.delayed(lambda rows: pd.DataFrame(rows, columns=list("abcd")))(block())],
        meta=pd.DataFrame(X[:0], columns=list("abcd")),
        verify_meta=False,
    )
    with pytest.raises(sp.InputError, match="do not change"):
        sp.glm.LinearRegression(l2=1e-2).fit(frame, "a")


def test_nothing_is_left_where_a_task_fails(tmp_path):
    _, leak = _both("logistic", False, chunks=(60, 4))
    X, y, _ = _arrays(X=_spoilt(_problem("logistic")[0], (202, 0), np.nan))
    leak.source = dask_rows(X, y)
    with pytest.raises(sp.InputError, match="NaN or infinity in row 202"):
        leak.write_rows(tmp_path / "rows")
    assert not list(tmp_path.iterdir())


def test_workers_do_not_write_over_what_is_there(tmp_path):
    _, leak = _both("logistic", False, chunks=(60, 4))
    (tmp_path / "file").touch()
    with pytest.raises(sp.InputError, match="file already exists"):
        leak.rows().write(tmp_path / "file")


def test_files_that_the_client_cannot_see_are_missed(tmp_path, monkeypatch):
    from seepage.streams.dask import tasks

    _, leak = _both("logistic", False, chunks=(60, 4))
    elsewhere = tmp_path / "another machine"
    plain = tasks.write_tables
    monkeypatch.setattr(
        tasks, "write_tables", lambda tables, path: plain(tables, elsewhere / path.name)
    )
    with pytest.raises(sp.InputError, match=r"cannot find .*part-000000\.parquet"):
        leak.rows().write(tmp_path / "rows")
    assert [path.name for path in tmp_path.iterdir()] == ["another machine"]


def test_a_collection_without_rows_is_refused():
    with pytest.raises(sp.InputError, match="The Dask collection has no rows"):
        dask_rows(da.zeros((0, 3)), da.zeros(0))
