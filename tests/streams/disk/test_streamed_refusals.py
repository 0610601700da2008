"""What is wrong with Parquet data, or with the disk, is said in one sentence; nothing is left."""

from __future__ import annotations

import resource
import signal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import statsmodels.api as sm
from parquet_cases import people, write_folder
from pyarrow.dataset import dataset
from sklearn import linear_model as lm

import seepage as sp
from seepage import parquet
from seepage.support.files import write_tables

TWO = ["age", "height"]


@pytest.fixture
def folder(tmp_path):
    return write_folder(people(), tmp_path / "people")


def said(wrong):
    """Return the sentence, which must be one."""
    text = str(wrong.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def rewrite(file, change):
    pq.write_table(change(pq.read_table(file)), file)


def replaced(name, column):
    def change(table):
        return table.set_column(table.column_names.index(name), name, column(table.column(name)))

    return change


def test_a_file_that_was_cut_off(folder):
    file = folder / "2.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(sp.InputError) as wrong:
        parquet(folder, target="amount")
    assert said(wrong).startswith("2.parquet is not a complete Parquet file")
    assert str(folder) not in said(wrong)


def test_a_file_that_is_damaged_inside(folder):
    file = folder / "2.parquet"
    data = parquet(folder, target="amount", columns=TWO)
    content = bytearray(file.read_bytes())
    content[4:2000] = b"\xff" * 1996
    file.write_bytes(content)
    with pytest.raises(sp.InputError) as wrong:
        sp.glm.LinearRegression().fit(data)
    assert said(wrong).startswith("2.parquet is not a complete Parquet file")


def test_a_column_of_another_type_in_one_file(folder):
    rewrite(folder / "2.parquet", replaced("age", lambda column: column.cast(pa.string())))
    with pytest.raises(sp.InputError) as wrong:
        parquet(folder, target="amount")
    assert said(wrong).startswith("Column 'age' is double in 0.parquet but string in 2.parquet")


@pytest.mark.parametrize("more", [True, False])
def test_a_column_that_one_file_has_or_lacks(folder, more):
    def change(table):
        return table.append_column("new", table.column("age")) if more else table.drop(["age"])

    rewrite(folder / "3.parquet", change)
    with pytest.raises(sp.InputError) as wrong:
        parquet(folder, target="amount")
    where = "in 3.parquet but not in 0.parquet" if more else "in 0.parquet but not in 3.parquet"
    assert said(wrong).startswith(f"Column '{'new' if more else 'age'}' is {where}")


@pytest.mark.parametrize("name", ["age", "city", "amount", "weight", "children", "insured"])
def test_a_gap_in_one_file_only(folder, name):
    def with_gap(column):
        fourth = pa.array(np.arange(len(column)) == 4)
        return pc.if_else(fourth, pa.scalar(None, column.type), column)

    rewrite(folder / "1.parquet", replaced(name, with_gap))
    data = parquet(
        folder, target="amount", weight="weight", columns=[*TWO, "city", "children", "insured"]
    )
    with pytest.raises(sp.InputError) as wrong:
        sp.glm.LinearRegression(l2=1e-3).fit(data)
    assert said(wrong).startswith(f"Column '{name}' has no value in row 4 of 1.parquet")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["age", "amount", "weight"])
def test_what_is_no_number(folder, name, bad):
    def change(column):
        values = column.to_numpy().copy()
        values[7] = bad
        return pa.array(values)

    rewrite(folder / "3.parquet", replaced(name, change))
    data = parquet(folder, target="amount", weight="weight", columns=TWO)
    with pytest.raises(sp.InputError) as wrong:
        sp.glm.LinearRegression(l2=1e-3).fit(data)
    assert said(wrong).startswith(f"Column '{name}' contains NaN or infinity in row 7 of 3.parquet")


def test_negative_weights(folder):
    rewrite(folder / "1.parquet", replaced("weight", lambda column: pc.negate(column)))
    data = parquet(folder, target="amount", weight="weight", columns=TWO)
    with pytest.raises(sp.InputError, match=r"'weight' must not be negative, but row \d+ of 1"):
        sp.glm.LinearRegression(l2=1e-3).fit(data)


def test_files_must_not_change_between_passes(folder):
    data = parquet(folder, target="amount", columns=TWO)
    rewrite(folder / "1.parquet", lambda table: table.slice(3))
    with pytest.raises(sp.InputError, match=r"1\.parquet had 259 rows, but now has 256"):
        sp.glm.LinearRegression().fit(data)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "amuont"}, "There is no column 'amuont' (did you mean 'amount'?)"),
        ({"target": "amount", "columns": ["age", "age"]}, "'age' is listed twice"),
        ({"target": "amount", "columns": ["age", "amount"]}, "cannot be both a feature and"),
        ({"target": "amount", "columns": []}, "No feature column is left"),
        (
            {"target": "amount", "columns": ["when"]},
            "'when' contains timestamp[us], which is neither",
        ),
        (
            {"target": "amount", "columns": "when"},
            "'when' contains timestamp[us], which is neither",
        ),
        (
            {"target": "amount", "columns": ["id"]},
            "'id' has more than 1,000 different values",
        ),
        ({"target": "amount", "columns": ["flat"], "scale": True}, "'flat' has only one value, so"),
    ],
)
def test_columns_that_cannot_be_used(tmp_path, options, words):
    table = pa.concat_tables([people(), people()])
    rows = len(table)
    table = table.append_column("when", pa.array([0] * rows, pa.timestamp("us")))
    table = table.append_column("id", pa.array([f"p{k}" for k in range(rows)]))
    table = table.append_column("flat", pa.array([2.5] * rows))
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(sp.InputError) as wrong:
        parquet(tmp_path / "a.parquet", **options)
    assert words in said(wrong)


def test_no_file_no_folder_no_rows(tmp_path):
    with pytest.raises(sp.InputError, match="There is no file or folder"):
        parquet(tmp_path / "none", target="y")
    with pytest.raises(sp.InputError, match=r"contains no Parquet file \(\.parquet\)"):
        parquet(tmp_path, target="y")
    pq.write_table(pa.table({"x": [1.0], "y": [1.0]}).slice(1), tmp_path / "a.parquet")
    with pytest.raises(sp.InputError, match="have no rows"):
        parquet(tmp_path, target="y")


def test_labels_that_are_no_classes(folder):
    data = parquet(folder, target="amount", columns=TWO)
    with pytest.raises(sp.InputError, match=r"numbers with decimals|more than 1,000"):
        sp.glm.LogisticRegression().fit(data)
    with pytest.raises(sp.InputError, match="use SoftmaxRegression"):
        sp.glm.LogisticRegression().fit(parquet(folder, target="plan", columns=TWO))
    with pytest.raises(sp.InputError, match="labels are text"):
        sp.glm.LinearRegression().fit(parquet(folder, target="bought", columns=TWO))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a", None] * 600, "The label column 'y' has 600 missing values"),
        (list(range(1200)), "Column 'y' has more than 1,000 different values, too many to be"),
    ],
)
def test_columns_that_are_no_classes(tmp_path, labels, words):
    table = pa.table({"x": np.arange(1200.0), "y": pa.array(labels)})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(sp.InputError) as wrong:
        sp.glm.SoftmaxRegression().fit(parquet(tmp_path / "a.parquet", target="y"))
    assert said(wrong).startswith(words)


def test_models_that_need_their_rows_in_memory(folder):
    table = people().select(TWO).to_pandas()
    amount, bought = (people().column(name).to_pandas() for name in ("amount", "bought"))
    cases = {
        "LogisticRegression with class_weight is not supported for data read in chunks": (
            lm.LogisticRegression(class_weight="balanced").fit(table, bought),
            "bought",
        ),
        "statsmodels results keep their whole table in memory": (
            sm.OLS(amount, table).fit(),
            "amount",
        ),
        "RidgeClassifier is not supported for data read in chunks": (
            lm.RidgeClassifier().fit(table, bought),
            "bought",
        ),
        "Lasso is not supported for data read in chunks": (
            lm.Lasso(1e-6).fit(table, amount),
            "amount",
        ),
    }
    for words, (model, target) in cases.items():
        data = parquet(folder, target=target, columns=TWO)
        with pytest.raises(sp.InputError, match=words):
            sp.leakage(model, data, noise=sp.Gaussian(1.0))


def test_questions_that_need_all_rows_in_memory(folder):
    data = parquet(folder, target="amount", columns=TWO)
    model = sp.glm.LinearRegression(l2=0.1).fit(data)
    with pytest.raises(sp.InputError, match="measured in float64; omit dtype"):
        sp.leakage(model, data, noise=sp.Gaussian(1.0), dtype="float32")
    leak = sp.leakage(model, data, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match="without a record requires all records in memory"):
        leak.release.finite_changes()
    twice = sp.compose(leak, sp.leakage(model, data, noise=sp.Gaussian(2.0)))
    with pytest.raises(sp.InputError, match="measure each release separately"):
        twice.membership()


def test_a_label_that_the_model_does_not_know(folder):
    data = parquet(folder, target="plan", columns=TWO, scale=True)
    model = sp.glm.SoftmaxRegression().fit(data)

    def change(column):
        return pa.array(np.where(np.arange(len(column)) == 1, 99, column))

    rewrite(folder / "3.parquet", replaced("plan", change))
    with pytest.raises(sp.InputError, match=r"Row 301 has the label .*99.*, which is not one of"):
        sp.leakage(model, data, noise=sp.Gaussian(1.0))


def test_y_goes_with_the_data(folder):
    data = parquet(folder, target="amount", columns=TWO)
    with pytest.raises(sp.InputError, match="omit y and sample_weight"):
        sp.glm.LinearRegression().fit(data, [1.0])
    with pytest.raises(sp.InputError, match="y must be the name of a column, not ndarray"):
        sp.glm.LinearRegression().fit(folder, np.ones(3))


def test_dependent_constant_and_separable(tmp_path):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 300))
    columns = {"a": a, "b": b, "sum": a + b, "flat": np.ones(300), "zero": np.zeros(300)}
    pq.write_table(
        pa.table({**columns, "side": a > 0, "none": np.zeros(300, int)}), tmp_path / "a.parquet"
    )

    def fit(model, features, target, **options):
        return model(l2=0.0, **options).fit(
            parquet(tmp_path / "a.parquet", target=target, columns=features)
        )

    linear, logistic, poisson = (
        sp.glm.LinearRegression,
        sp.glm.LogisticRegression,
        sp.glm.PoissonRegression,
    )
    with pytest.raises(sp.InputError, match="'a', 'b' and 'sum' are linearly dependent"):
        fit(linear, ["a", "b", "sum"], "flat")
    with pytest.raises(sp.InputError, match="'flat' is constant, and so is the intercept"):
        fit(linear, ["a", "flat"], "b", fit_intercept=True)
    with pytest.raises(sp.InputError, match="'zero' is constant"):
        fit(linear, ["a", "zero"], "b")
    with pytest.raises(sp.InputError, match="The data are separable"):
        fit(logistic, ["a", "b"], "side")
    with pytest.raises(sp.InputError, match=r"Every count .* is zero"):
        fit(poisson, ["a"], "none", fit_intercept=True)


def test_classes_separable_with_ties_in_chunks(tmp_path):
    """One category has only one class: its coefficient diverges, the others do not."""
    groups = np.eye(3)[np.arange(60) % 3]
    y = np.random.default_rng(1).integers(0, 2, size=60)
    y[groups[:, 1] == 1] = 1
    columns = {f"x{j}": groups[:, j] for j in range(3)}
    pq.write_table(pa.table({**columns, "y": y}), tmp_path / "a.parquet", row_group_size=20)
    with pytest.raises(sp.InputError, match="The data are separable"):
        sp.glm.LogisticRegression(l2=0.0).fit(parquet(tmp_path / "a.parquet", target="y"))


def test_ill_conditioned_least_squares(tmp_path):
    rng = np.random.default_rng(1)
    a = rng.standard_normal(500)
    X = np.stack([a, a + 1e-6 * rng.standard_normal(500), np.full(500, 1e4)], axis=1)
    y = X @ [1.0, 2.0, 3.0] + rng.standard_normal(500)
    pq.write_table(
        pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y}),
        tmp_path / "a.parquet",
        row_group_size=60,
    )
    ours = sp.glm.LinearRegression().fit(parquet(tmp_path / "a.parquet", target="y"))
    np.testing.assert_allclose(ours.coef_, sp.glm.LinearRegression().fit(X, y).coef_, rtol=1e-9)


def leak_of(folder):
    data = parquet(folder, target="bought", columns=TWO, scale=True)
    model = sp.glm.LogisticRegression(l2=1e-2).fit(data)
    return sp.leakage(model, data, noise=sp.Gaussian(1.0))


def test_a_full_disk(folder, tmp_path):
    leak, out = leak_of(folder), tmp_path / "out"
    out.mkdir()
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, kept[1]))
    try:
        with pytest.raises(sp.InputError) as wrong:
            leak.write_rows(out / "rows.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        signal.signal(signal.SIGXFSZ, ignored)
    assert said(wrong).startswith("rows.parquet cannot be written: File too large; no partial")
    assert list(out.iterdir()) == []


def test_an_earlier_file_survives_a_failure(folder, tmp_path):
    file = leak_of(folder).rows().write(tmp_path / "rows.parquet")
    before = file.read_bytes()

    def tables():
        yield pq.read_table(file)
        raise OSError(28, "No space left on device")

    with pytest.raises(sp.InputError, match="cannot be written: No space left on device"):
        write_tables(tables(), file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["rows.parquet"]


def test_results_do_not_land_among_the_data(folder):
    leak = leak_of(folder)
    with pytest.raises(sp.InputError, match="would be in the folder of its input"):
        leak.rows().write(folder / "rows.parquet")
    assert len(list(folder.iterdir())) == 4


def test_a_stream_is_asked_and_written_in_one_way(folder, tmp_path):
    leak = leak_of(folder)
    with pytest.raises(sp.InputError, match="already a bound on the mean squared error"):
        leak.rows().mse_bound().mse_bound()
    with pytest.raises(sp.InputError, match="is a folder; give the path of the Parquet file"):
        leak.write_rows(tmp_path)
    assert list(tmp_path.iterdir()) == [folder]
    assert "<svg" not in leak._repr_html_()  # which would take a pass over the files
    assert "read in chunks" in leak._repr_html_()


def test_no_file_named():
    with pytest.raises(sp.InputError, match="The list of Parquet files is empty"):
        parquet([], target="y")


def test_a_group_without_a_name(folder):
    def change(column):
        values = column.to_pylist()
        return pa.array([*values[:5], None, *values[6:]])

    rewrite(folder / "1.parquet", replaced("region", change))
    with pytest.raises(
        sp.InputError,
        match=r"'region' has no value in 1 of the rows .*row 6\); leave such rows out",
    ):
        leak_of(folder).groups("region")


def test_a_data_set_must_not_change_between_passes(tmp_path):
    file = tmp_path / "people.csv"
    file.write_text("age,amount\n" + "\n".join(f"{k},{k % 3}.5" for k in range(20)) + "\n")
    data = parquet(dataset(file, format="csv"), target="amount")
    file.write_text(file.read_text() + "9,9.5\n")
    with pytest.raises(sp.InputError, match="The data set had 20 rows, but now has 21"):
        sp.glm.LinearRegression().fit(data)


def test_groups(folder):
    leak = leak_of(folder)
    with pytest.raises(sp.InputError, match=r"There is no column 'regoin'.*'region'"):
        leak.groups("regoin")
    with pytest.raises(sp.InputError, match="No record is in the group 'east'"):
        leak.groups("region", only=["east"])
    with pytest.raises(sp.InputError, match="the group labels has 7 entries; pass one entry"):
        leak.groups(["north"] * 7)
    with pytest.raises(sp.InputError, match="measure must be 'fil' or 'dfil', not 'plis'"):
        leak.rows(measure="plis")
