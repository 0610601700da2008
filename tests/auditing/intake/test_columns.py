"""What columns are taken for, which are left out and said so, and which are refused."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
from people import plan_columns

from seepage.errors import InputError

N = 60
RNG = np.random.default_rng(5)
BASE = {
    "age": RNG.normal(50, 10, N),
    "sex": RNG.choice(["m", "f"], N),
    "smoker": RNG.random(N) < 0.5,
    "flag": np.arange(N) % 2,
    "code": RNG.choice([11, 12, 13], N),
    "y": RNG.normal(size=N),
}


def table(**more):
    return pa.table({**BASE, **more})


def refusal(columns, target="y", **options):
    with pytest.raises(InputError) as caught:
        plan_columns(columns, target, **options)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 500
    return message


def test_kinds_of_features():
    plan = plan_columns(table(), "y")
    assert plan.target_kind == "numeric"
    assert plan.kinds == {
        "age": "numeric",
        "sex": "categorical",
        "smoker": "boolean",
        "flag": "boolean",
        "code": "numeric",
    }
    assert plan.features == ("age", "sex", "smoker", "flag", "code")
    assert any("'code'" in step and "--categorical" in step for step in plan.steps)
    coded = plan_columns(table(), "y", categorical=["code", "flag"])
    assert coded.kinds["code"] == coded.kinds["flag"] == "categorical"
    assert not any("'code'" in step for step in coded.steps)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (RNG.normal(size=N), "numeric"),
        (RNG.poisson(3, N), "count"),
        (RNG.poisson(3, N) + 1, "numeric"),
        (-RNG.poisson(3, N), "numeric"),
        (RNG.poisson(3, N).astype(float), "numeric"),
        (np.arange(N) % 2, "binary"),
        (np.arange(N) % 2 * 2.0 - 1, "binary"),
        (np.arange(N) % 2 + 0.5, "numeric"),
        (np.arange(N) % 2 == 0, "binary"),
        (["no", "yes"] * (N // 2), "binary"),
        (["a", "b", "c"] * (N // 3), "multiclass"),
    ],
)
def test_kinds_of_targets(values, kind):
    assert plan_columns(table(y=values), "y").target_kind == kind


def test_whole_numbers_can_be_named_classes_and_counts_are_said():
    counts = table(y=np.arange(N) % 3)
    plan = plan_columns(counts, "y")
    assert plan.target_kind == "count"
    assert plan.codes == 3  # said in a step and on the first screen, from this number
    many = plan_columns(table(y=np.arange(N) % 13), "y")
    assert any("counts" in step and "--categorical" in step for step in many.steps)
    assert plan_columns(counts, "y", categorical=["y"]).target_kind == "multiclass"


def test_useless_features_are_dropped_and_said():
    plan = plan_columns(
        table(
            one=["same"] * N,
            zero=[0.0] * N,
            uid=[f"u{i}" for i in range(N)],
            row=np.arange(N)[::-1] + 1000,
            row_float=np.arange(N) * 1.0,
            empty=pa.nulls(N),
            rare=[1.0, 2.0] + [None] * (N - 2),
        ),
        "y",
        drop=["age"],
        missing="drop",
    )
    assert plan.features == ("sex", "smoker", "flag", "code", "rare")
    said = " ".join(plan.steps)
    assert "2 columns were dropped (only one value): 'one', 'zero'." in said
    assert "(identifier: values are all different): 'uid'." in said
    assert "(identifier: values are all different and consecutive): 'row', 'row_float'." in said
    assert "missing): 'empty'." in said
    assert "1 column was dropped as requested: 'age'." in said


def test_ninety_nine_percent_missing_is_the_limit():
    base = {"x": np.random.default_rng(0).normal(size=200), "y": np.arange(200) % 2}
    two, three = [None] * 198 + [1.0, 2.0], [None] * 197 + [1.0, 2.0, 3.0]
    plan = plan_columns(pa.table({**base, "two": two, "three": three}), "y", missing="drop")
    assert plan.features == ("x", "three")


def test_nan_counts_as_missing():
    values = RNG.normal(size=N)
    values[4] = np.nan
    assert "'x'" in refusal(table(x=values))


def test_few_rows_make_no_identifier():
    small = pa.table({"word": ["a", "b", "c", "d"], "y": [0.5, 0.1, 0.2, 0.9]})
    assert plan_columns(small, "y").kinds == {"word": "categorical"}


def test_numbers_that_only_happen_to_differ_are_no_identifier():
    assert "x" in plan_columns(table(x=np.arange(N) * 2), "y").features


@pytest.mark.parametrize(
    "values",
    [
        [datetime.date(2020, 1, 1) + datetime.timedelta(i) for i in range(N)],
        [datetime.datetime(2020, 1, 1) + datetime.timedelta(i) for i in range(N)],
        [f"{i % 28 + 1:02d}/12/2021" for i in range(N)],
        [f"2021-3-{i % 28 + 1} 10:15" for i in range(N)],
    ],
)
def test_dates_are_refused_with_a_suggestion(values):
    message = refusal(table(born=values))
    assert "'born'" in message
    assert "days since" in message
    assert "--drop" in message
    assert "born" not in plan_columns(table(born=values), "y", drop=["born"]).features
    assert "dates" in refusal(table(born=values), "born")


def test_target_that_cannot_be_one():
    assert "identifier" in refusal(table(id=[f"p{i}" for i in range(N)]), "id")
    assert "identifier" in refusal(table(id=np.arange(N)), "id")
    assert "only one value" in refusal(table(y=["a"] * N))
    assert "no values" in refusal(table(y=pa.nulls(N)))
    many = pa.table({"x": np.arange(300) % 7, "y": [f"c{i % 150}" for i in range(300)]})
    assert "150 classes" in refusal(many)


def test_too_many_levels():
    n = 3000
    wide = pa.table({"town": [f"t{i % 1001}" for i in range(n)], "y": np.arange(n) % 2})
    message = refusal(wide)
    assert "1,001 different values" in message
    assert "--drop" in message
    fits = pa.table({"town": [f"t{i % 1000}" for i in range(n)], "y": np.arange(n) % 2})
    assert plan_columns(fits, "y").features == ("town",)


def test_columns_of_broken_numbers():
    almost = [f"{i}.5" for i in range(N)]
    almost[7] = "unknown"
    message = refusal(table(x=almost))
    assert "row 7" in message
    assert "unknown" not in message
    assert plan_columns(table(x=almost), "y", categorical=["x"]).kinds["x"] == "categorical"
    assert "commas" in refusal(table(x=[f"{i},5" for i in range(N)]))
    infinite = np.arange(N) / 3.0
    infinite[2] = np.inf
    assert "infinite" in refusal(table(x=infinite))
    assert "nested" in refusal(table(x=[[i] for i in range(N)]))
    assert "bytes" in refusal(table(x=[b"a"] * N))


def test_gaps_are_refused_with_the_ways_out():
    gappy = [None, None, *BASE["age"][2:]]
    message = refusal(table(age=gappy))
    assert "2 of 60" in message
    assert "--missing drop" in message
    assert "--missing impute" in message
    assert plan_columns(table(age=gappy), "y", missing="impute").missing == "impute"
    assert "'sometimes'" in refusal(table(), missing="sometimes")


def test_unknown_names_get_a_suggestion():
    assert "did you mean 'smoker'" in refusal(table(), "smokr")
    assert "did you mean 'age'" in refusal(table(), drop=["agee"])
    assert "the columns are 'age'" in refusal(table(), sensitive=["zzzzz"])
    headless = pa.table({"39": [1, 2], "Private": [3, 4]})
    assert "--no-header" in refusal(headless, "income")
    assert refusal(headless, "Privat").endswith("(did you mean 'Private'?).")


def test_sensitive_columns_must_be_features():
    assert "is the target" in refusal(table(), sensitive=["y"])
    assert "both" in refusal(table(), sensitive=["age"], drop=["age"])
    assert "one value" in refusal(table(c=[1] * N), sensitive=["c"])
    assert plan_columns(table(), "y", sensitive=["age", "age"]).sensitive == ("age",)
    assert "cannot be dropped" in refusal(table(), drop=["y"])


def test_a_dropped_column_may_group_and_a_fine_one_may_not():
    plan = plan_columns(table(), "y", drop=["sex"], groups=["sex"])
    assert plan.groups == ("sex",)
    assert "sex" not in plan.features
    n = 1500
    fine = pa.table({"x": np.arange(n) / 7, "y": np.arange(n) % 2})
    assert "1,500 different values" in refusal(fine, groups=["x"])


def test_nothing_left_to_predict_from():
    assert "No feature is left" in refusal(pa.table({"c": [1] * 20, "y": np.arange(20) % 2}))
