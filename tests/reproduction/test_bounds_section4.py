"""The numbers that Guo et al. 2022 works out in its text."""

from __future__ import annotations

import math

import pytest

from reproduction.bounds.section4 import member, reproduce


@pytest.mark.slow
def test_the_examples_of_the_text():
    outcome = reproduce(False)
    found = {quantity.printed: quantity for quantity in outcome.quantities}
    assert found.keys() == {"53", "> 88", "391", "19", "1.115"}
    assert [found[printed].agrees for printed in ("> 88", "391", "1.115")] == [True] * 3
    assert [found[printed].agrees for printed in ("53", "19")] == [False] * 2
    assert all(quantity.settled for quantity in outcome.quantities)
    assert found["391"].measured == pytest.approx(100**2 / 4 / math.expm1(2), rel=1e-12)
    assert len(outcome.figure.png) < 150_000


def test_without_privacy_loss_membership_is_a_coin():
    assert member(0.0) == 0.5
    assert member(2.0) == pytest.approx(math.exp(2) / (1 + math.exp(2)), rel=1e-12)
