"""Measured numbers beside printed ones: when they agree, and how they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seepage as sp
from reproduction.outcome import Quantity, quantity_rows, reasons


@pytest.mark.parametrize(
    ("measured", "printed", "agrees"),
    [
        (0.0405, "0.040", True),  # in the middle: either neighbour may be printed
        (0.0405, "0.041", True),
        (0.04051, "0.040", False),
        (80.65, "80.7", True),
        (99.95, "100", True),
        (0.247, "0.26", False),
        (24, "24", True),
        (24.6, "24", False),
        (2e-6, "0.000", True),
        (-1.234, "-1.23", True),
        (88.1, "> 88", True),
        (88.0, "> 88", False),
        (10, "9/10", True),
        (9, "9/10", True),
        (11, "9/10", False),
    ],
)
def test_agreement_is_up_to_the_printed_precision(measured, printed, agrees):
    assert Quantity("x", measured, printed).agrees is agrees


@given(st.floats(-1e6, 1e6), st.integers(0, 8))
def test_what_is_printed_of_a_number_agrees_with_it(measured, decimals):
    quantity = Quantity("x", measured, f"{measured:.{decimals}f}")
    assert quantity.agrees
    assert quantity.difference == measured - quantity.published


def test_without_a_printed_number_there_is_nothing_to_compare():
    quantity = Quantity("x", 1.5)
    assert (quantity.published, quantity.difference, quantity.agrees) == (None, None, None)


@pytest.mark.parametrize("measured", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(measured):
    with pytest.raises(sp.InputError, match="'mean η' came out as"):
        Quantity("mean η", measured)


def test_what_was_not_made_needs_a_reason():
    missing = Quantity("x", None, "87", "The data are not at hand.")
    assert (missing.agrees, missing.difference, missing.published) == (None, None, 87)
    assert missing.cells() == ("x", "87", "–", "–", "result", "not available here")
    for printed, why in (("87", None), (None, "No reason to be listed.")):
        with pytest.raises(sp.InputError, match="neither measured nor explained"):
            Quantity("x", None, printed, why)


_REASON = "It is cut off (`reproduction/outcome.py`)."


def test_a_reason_is_given_only_where_numbers_differ():
    assert Quantity("x", 1.0, "1", "why").reason is None
    assert Quantity("x", 2.0, "1", "why").reason == "Differs. why"
    assert Quantity("x", 2.0, None, "why").reason is None
    assert [
        Quantity("x", *given).settled
        for given in ((1.0, "1"), (2.0, "1"), (2.0, "1", "why"), (2.0, "1", _REASON), (2.0,))
    ] == [True, False, False, True, True]


def test_a_difference_needs_a_computation_that_exists():
    quantity = Quantity("x", 2.0, "1", _REASON)
    assert [path.name for path in quantity.evidence] == ["outcome.py"]
    every = Quantity("x", 2.0, "1", "Runs (`reproduction/results/layers_*.json`).")
    assert len(every.evidence) > 1
    gone = Quantity("x", 2.0, "1", "See `reproduction/results/gone.json`.")
    with pytest.raises(
        sp.InputError, match=r"names reproduction/results/gone\.json, which does not"
    ):
        gone.evidence  # noqa: B018
    assert Quantity("x", None, "1", "On request only.").settled


@pytest.mark.parametrize(
    ("measured", "options", "verdict"),
    [
        (1.0, {}, "agrees"),
        (2.0, {}, "differs"),
        (2.0, {"comparable": False}, "undecided"),
        (1.0, {"comparable": False}, "agrees"),
        (1.0, {"tied": True}, "undecided"),
        (2.0, {"tied": True}, "undecided"),
        (None, {"comparable": False}, "not available here"),
    ],
)
def test_a_difference_counts_only_where_it_can_be_told(measured, options, verdict):
    quantity = Quantity("x", measured, "1", "why", **options)
    assert quantity.verdict == verdict
    assert quantity.to_json()["verdict"] == verdict
    assert (quantity.reason is None) == (verdict == "agrees")
    assert Quantity("x", 1.0, None).verdict is None


def test_a_tie_needs_a_reason_and_a_kind_must_be_known():
    assert not Quantity("x", 1.0, "1", tied=True).settled
    with pytest.raises(sp.InputError, match="no known kind: 'guess'"):
        Quantity("x", 1.0, "1", kind="guess")


def test_reasons_are_numbered_each_once():
    quantities = [
        Quantity(n, v, "1", w) for n, v, w in (("a", 2, "p"), ("b", 1, "q"), ("c", 3, "p"))
    ]
    assert reasons(quantities) == ["Differs. p"]
    shown = [row[-1] for row in quantity_rows(quantities)]
    assert shown == ["verdict", "differs (1)", "agrees", "differs (1)"]


@pytest.mark.parametrize(
    "quantity", [Quantity("a", 0.25, "0.3", "why", "setting", False, True), Quantity("b", 7)]
)
def test_json_brings_it_back(quantity):
    written = quantity.to_json()
    assert {"name", "published", "measured", "difference"} <= written.keys()
    assert Quantity.from_json(written) == quantity


def test_rows_show_enough_digits_to_see_the_rounding():
    head, *rows = quantity_rows([Quantity("a", 0.04049, "0.040"), Quantity("b", 0.5)])
    assert head == ("quantity", "published", "measured", "difference", "kind", "verdict")
    assert rows[0] == ("a", "0.040", "0.04049", "+0.00049", "result", "agrees")
    assert rows[1] == ("b", "–", "0.5", "–", "–", "–")


def test_rows_never_show_a_negative_nothing():
    assert Quantity("a", 0.0399999999, "0.040").cells()[3] == "+0.00000"


def test_rows_without_printed_numbers_show_what_was_measured():
    assert quantity_rows([Quantity("a", 3)]) == [("quantity", "measured"), ("a", "3")]
