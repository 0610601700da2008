"""Columns that say whose row it is, and columns and tables that look as if they should."""

import numpy as np
import pyarrow as pa
import pytest

from seepage.auditing.intake.identities import is_named_like_identifier, people_of_rows
from seepage.auditing.intake.table import TableInMemory, plan_columns
from seepage.errors import InputError


def table(rows=210, **columns):
    rng = np.random.default_rng(0)
    return pa.table({"x": rng.normal(size=rows), **columns, "y": rng.normal(size=rows)})


def plan(found, **options):
    return plan_columns(TableInMemory(found), "y", **options)


@pytest.mark.parametrize(
    "name",
    [
        "id",
        "ID",
        "Id",
        "pid",
        "person",
        "Person ID",
        "person_id",
        "PersonID",
        "patient",
        "nr",
        "patientNr",
        "patient no",
        "subject",
        "subjid",
        "SUBJECT_ID",
        "uuid",
        "customer-number",
        "id_person",
        "participant code",
        "race_id",
    ],
)
def test_names_of_identifiers_are_known(name):
    assert is_named_like_identifier(name)


@pytest.mark.parametrize(
    "name",
    [
        "age",
        "paid",
        "valid",
        "no",
        "number",
        "code",
        "person_age",
        "patient weight",
        "persons in h",
        "user rating",
        "nr_of_children",
        "rooms nr x",
        "lipid",
        "acid",
        "",
        "1",
        "key",
        "solid",
    ],
)
def test_other_names_are_not(name):
    assert not is_named_like_identifier(name)


IDENTIFIERS = {
    "numbers": np.repeat(np.arange(30), 7),
    "numbers as floats": np.repeat(np.arange(30.0), 7),
    "text": np.repeat([f"P{k}" for k in range(30)], 7),
    "in any order": np.random.default_rng(0).permutation(np.repeat(np.arange(30), 7)),
}


@pytest.mark.parametrize("kind", list(IDENTIFIERS))
def test_a_repeated_identifier_is_no_feature_unless_somebody_says_so(kind):
    found = table(**{"Person ID": IDENTIFIERS[kind]})
    with pytest.raises(InputError) as refused:
        plan(found)
    assert "'Person ID' is named like an identifier and has 30 different" in str(refused.value)
    assert '--person "Person ID"' in str(refused.value)
    assert '--drop "Person ID"' in str(refused.value)
    assert plan(found, drop=["Person ID"]).features == ("x",)
    assert plan(found, person="Person ID").features == ("x",)
    assert plan(found, categorical=["Person ID"]).kinds["Person ID"] == "categorical"
    if kind != "text":
        assert plan(found, quantities=["Person ID"]).kinds["Person ID"] == "numeric"


def test_few_values_and_measurements_identify_nobody():
    rng = np.random.default_rng(0)
    found = table(patient=rng.integers(0, 2, 210), id=rng.normal(size=210))
    assert plan(found).features == ("x", "patient", "id")
    assert plan(found).notices == ()


@pytest.mark.parametrize(
    ("values", "noticed"),
    [
        (np.repeat(np.arange(30), 7), True),
        (np.random.default_rng(0).permutation(np.repeat(np.arange(30), 7)), True),
        (np.repeat([f"P{k}" for k in range(35)], 6), True),
        (np.repeat(np.arange(40), [3, 9, 2, 7] * 10), True),  # in runs, as a panel has them
        (np.random.default_rng(0).poisson(50, 210), False),  # a count
        (np.repeat(np.arange(7), 30), False),  # years
        (np.random.default_rng(0).normal(size=210).repeat(1), False),
        (np.arange(210) * 3, False),  # all different
    ],
)
def test_a_column_with_the_shape_of_an_identifier_is_pointed_out(values, noticed):
    found = table(**{"g": values}).slice(0, 210)
    notices = plan(found).notices
    assert bool(notices) == noticed
    if noticed:
        (notice,) = notices
        assert "Column 'g' has" in notice
        assert "--person g" in notice
        assert "--drop g" in notice
        assert plan(found, person="g").notices == ()
        assert plan(found, drop=["g"]).notices == ()
        assert plan(found, categorical=["g"]).notices == ()


def test_a_panel_without_an_identifier_is_pointed_out():
    rng = np.random.default_rng(1)
    fixed = {"sex": rng.integers(0, 2, 40), "school": rng.integers(4, 17, 40)}
    found = table(280, **{name: np.repeat(values, 7) for name, values in fixed.items()})
    (notice,) = plan(found).notices
    assert "40 blocks of 7 rows each" in notice
    assert "'sex', 'school'" in notice
    shuffled = found.take(pa.array(rng.permutation(280)))
    assert plan(shuffled).notices == ()
    merely_sorted = table(280, sex=np.repeat([0, 1], 140), school=np.repeat([4, 9, 12, 16], 70))
    assert plan(merely_sorted).notices == ()


@pytest.mark.parametrize(
    "identities",
    [["a", None, "b"], ["a", "", "b"], ["a", "  ", "b"], [1.0, float("nan"), 2.0]],
)
def test_a_row_without_an_identity_is_refused(identities):
    with pytest.raises(InputError, match=r"1 row has no value in 'who'.*first in row 1"):
        people_of_rows(pa.array(identities), "who")


def test_people_are_numbered_by_their_first_rows():
    assert people_of_rows(pa.array(["b", "a", "b", "c", "a"]), "who").tolist() == [0, 1, 0, 2, 1]
    coded = pa.chunked_array([pa.array(["x", "y"]), pa.array(["y", "x"])]).dictionary_encode()
    assert people_of_rows(coded, "who").tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"person": "y"}, "The target 'y' cannot also identify people"),
        ({"person": "g", "sensitive": ["g"]}, "identifies people and is not a feature"),
        ({"person": "h"}, "There is no column 'h'"),
    ],
)
def test_a_column_cannot_say_whose_row_it_is_and_be_something_else(options, words):
    found = table(g=np.repeat(np.arange(30), 7))
    with pytest.raises(InputError, match=words):
        plan(found, **options)


def test_few_values_in_many_rows_each_are_pointed_out_and_not_refused():
    found = table(rows=944, PID=np.arange(944) % 7)  # a party identification, as in anes96
    assert plan(found).features == ("x", "PID")
    (notice,) = plan(found).notices
    assert "'PID' is named like an identifier" in notice
    assert "--person PID" in notice
    assert plan(found, categorical=["PID"]).notices == ()
