"""What a σ that is redrawn until it is enough tells, beside every σ of tables drawn exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pyarrow as pa
import pytest

from seepage.auditing.findings import LEFT_OUT
from seepage.auditing.release.attack import attack_release, listing_of
from seepage.auditing.release.disclosure import Neighbour
from seepage.auditing.release.making import left_out_privacy
from seepage.auditing.release.noise_vote import NoiseDraw, chances
from seepage.auditing.release.procedure import Prepared, Procedure

GRID = np.array([1.0, 2.0, 5.0, 10.0])


def permute_and_flip(opinions, epsilon):
    """Return the probability of every point, over all orders, from the definition of the score."""
    m, before = len(opinions), [-math.inf, *GRID[:-1]]
    score = [
        min(0, sum(o <= s for o in opinions) - m / 2, sum(o > b for o in opinions) - m / 2)
        for s, b in zip(GRID, before, strict=True)
    ]
    accepted = [math.exp(epsilon * (u - max(score)) / 2) for u in score]
    found = [0.0] * len(GRID)
    orders = list(permutations(range(len(GRID))))
    for order in orders:
        left = 1.0
        for k in order:
            found[k] += left * accepted[k] / len(orders)
            left *= 1 - accepted[k]
    return np.array(found)


def redrawn(chance, need):
    """Return what is published: the vote, repeated until it is enough."""
    kept = np.where(need <= GRID, chance, 0.0)
    return kept / kept.sum()


def revealed(first, second, epsilon):
    """Return the least δ with this ε, for tests of either against the other."""
    ways = ((first, second), (second, first))
    return max(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)) for p, q in ways)


@pytest.mark.parametrize("epsilon", [0.1, 0.4, 1.6])
def test_no_pair_of_tables_is_told_apart_better_than_stated(epsilon):
    """Neighbours differ in one opinion; all needs of both; the worst is nearly reached."""
    rng, closest = np.random.default_rng(0), 0.0
    tables = [np.full(12, 0.5), np.full(12, 20.0), rng.lognormal(0.5, 1, 12)]
    tables += [rng.lognormal(0.5, 1, 15), np.repeat([0.5, 20.0], 6), np.full(11, math.inf)]
    for opinions, other in product(tables, (0.1, 1.5, 4.0, 1e9)):
        neighbour = np.array([other, *opinions[1:]])
        ours, theirs = (permute_and_flip(o, epsilon) for o in (opinions, neighbour))
        np.testing.assert_allclose(chances(opinions, GRID, epsilon), ours, rtol=1e-9)
        for need, needs in product(GRID, GRID):
            draw = NoiseDraw(GRID, ours, len(opinions), epsilon, need, 10.0)
            stated, delta = draw.beside(needs)
            assert stated <= 2 * epsilon + 1e-12
            pair = redrawn(ours, need), redrawn(theirs, needs)
            seen = revealed(*pair, stated)
            assert seen <= delta + 1e-12
            if needs > need:  # the draws of this table are known, and so is what they rule out
                ruled_out = pair[0][needs > GRID].sum()
                assert delta == pytest.approx(ruled_out, abs=1e-12)
            if need == needs == 1.0:  # nothing is redrawn
                assert (stated, delta) == (pytest.approx(epsilon), 0.0)
                closest = max(closest, np.max(np.abs(np.log(pair[0] / pair[1]))) / epsilon)
            # Without δ no ε would do where one of them cannot draw what the other can.
            if need != needs:
                assert revealed(*pair, 50.0) > 0
    assert closest > 0.2


def test_a_noise_that_neither_can_draw_hides_nothing():
    draw = NoiseDraw(GRID, np.full(4, 0.25), 20, 0.4, 2.0, 5.0)
    assert draw.beside(11.0) == (0.0, 1.0)
    assert draw.beside(math.inf) == (0.0, 1.0)
    assert draw.probability == 0.75
    np.testing.assert_allclose(draw.published, [0, 1 / 3, 1 / 3, 1 / 3])


def test_everybody_counts_with_what_the_table_needs_without_them():
    """Only the first needs more than a point of the grid; refits move what is needed by 2 %."""
    vote = NoiseDraw(GRID, np.array([0.2, 0.3, 0.3, 0.2]), 20, 0.4, 5.0, 5.0)
    needed = np.array([4.0, 1.9, 1.0, 0.5, 0.4])
    prepared = object.__new__(Prepared)
    rows = np.array([10, 11, 12, 13, 14])
    for name, value in (("vote", vote), ("needed", needed), ("rows", rows)):
        object.__setattr__(prepared, name, value)
    tried = [
        Neighbour(10, LEFT_OUT, (), 1.95),
        Neighbour(11, LEFT_OUT, (), 4.08),
        Neighbour(11, "with another label", (), 9.0),
    ]
    found = left_out_privacy(prepared, tried)
    # Without the first a σ of 2 would have been enough.
    assert found.delta[0] == pytest.approx(vote.beside(2.0)[1])
    assert found.delta[0] > 0.3
    assert found.delta[1:].tolist() == [0.0] * 4
    assert found.epsilon[1:].tolist() == [pytest.approx(vote.beside(5.0)[0])] * 4
    # Near a point of the grid, whoever was not refitted may be who moves it there.
    object.__setattr__(prepared, "needed", needed * 4.95 / 4)
    near = left_out_privacy(prepared, [tried[0], Neighbour(11, LEFT_OUT, (), 5.05)])
    assert near.delta[2:].tolist() == [pytest.approx(vote.beside(10.0)[1])] * 3
    object.__setattr__(prepared, "vote", None)
    assert left_out_privacy(prepared, tried).epsilon.tolist() == [0.0] * 5


def extreme_patients(count=130):
    rng = np.random.default_rng(0)
    age, dose = rng.normal(60, 12, count), rng.normal(30, 6, count)
    response = 0.04 * dose + 0.01 * age + rng.normal(0, 0.5, count)
    dose[0], response[0] = 98.5, 1.0
    return pa.table({"age": age, "dose": dose, "response": response})


@pytest.mark.minutes
def test_a_replacement_that_needs_more_noise_refutes_epsilon_and_not_delta():
    """By the smallest label the patient with the extreme dose would need twice as large a σ."""
    raw = extreme_patients(230)
    procedure = Procedure(target="response", domain=["age=0:120", "dose=0:150"])
    listed = listing_of(procedure, raw)
    found = list(attack_release(procedure, raw, releases=200, listed=listed))
    tests = [a for a in found if not a.disclosed]
    assert not any(a.exceeds(1 - 1e-4) for a in tests)
    assert all(a.stated >= a.of_pair * (1 - 1e-9) for a in tests)
    # An entry that leaves δ out, as the ε of the table alone would, is caught; one that says
    # nothing of replacements states nothing.
    (entry,) = listed.entries
    # The seats of the vote are drawn anew: twelve draws gave a δ of 0.83 to 0.94.
    assert entry.about["replaced"]["with another label"]["delta"] > 0.6
    for wrong, beaten in (
        ({"with another label": {"epsilon": 0.4, "delta": 0.0}}, True),
        ({}, False),
    ):
        about = {**entry.about, "replaced": wrong}
        forged = replace(listed, entries=(replace(entry, about=about),))
        again = list(attack_release(procedure, raw, releases=200, listed=forged))
        (worst,) = [a for a in again if a.refutes_epsilon(1 - 1e-4)]
        assert (worst.seen_at_least(1 - 1e-4) > worst.stated) == beaten
    refuted = [a for a in tests if a.refutes_epsilon(1 - 1e-4)]
    assert {a.change for a in refuted} == {"with another label"}
    (worst,) = refuted
    assert worst.by_epsilon < 0.7 < 0.9 < worst.seen


def test_the_attack_sits_where_the_release_sat():
    """The entry's δ is that of the blocks of the release, which the ledger keeps."""
    raw = extreme_patients()
    procedure = Procedure(target="response", domain=["age=0:120", "dose=0:150"])
    listed = listing_of(procedure, raw)
    (entry,) = listed.entries
    attacked = next(attack_release(procedure, raw, releases=100, listed=listed))
    assert attacked.change == LEFT_OUT
    wrong = replace(entry, about={**entry.about, "seats": "nowhere"})
    with pytest.raises(Exception, match="does not state which block each row"):
        next(attack_release(procedure, raw, listed=replace(listed, entries=(wrong,))))
