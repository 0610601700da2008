"""Random signs: a function of key and position only, balanced and independent."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.nn.jacobian.random_directions import key_of, row_signs, signs

LIKE = torch.zeros((), dtype=torch.float64)


def test_the_same_key_gives_the_same_signs_and_another_key_others() -> None:
    first = signs(key_of(0, "w"), (50, 7), LIKE)
    assert torch.equal(first, signs(key_of(0, "w"), (50, 7), LIKE))
    other = signs(key_of(1, "w"), (50, 7), LIKE)
    assert 0.4 < float((first == other).double().mean()) < 0.6
    assert set(first.unique().tolist()) == {-1.0, 1.0}


def test_a_longer_draw_begins_like_a_shorter_one() -> None:
    assert torch.equal(signs(3, (1000,), LIKE)[:70], signs(3, (70,), LIKE))


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.integers(0, 10**9), min_size=1, max_size=6),
    shape=st.sampled_from([(1,), (63,), (64,), (65,), (3, 5, 7)]),
)
def test_a_row_does_not_depend_on_its_company(rows: list[int], shape: tuple[int, ...]) -> None:
    together = row_signs(9, torch.tensor(rows), shape, LIKE)
    alone = torch.cat([row_signs(9, torch.tensor([row]), shape, LIKE) for row in rows])
    assert torch.equal(together, alone)


def test_signs_are_balanced_and_uncorrelated() -> None:
    draws = row_signs(5, torch.arange(4000), (40,), LIKE)
    # Deviations of a mean of 4000 signs: 0.016; of the largest of 40 or 780 of them: below 0.07.
    assert float(draws.mean(0).abs().max()) < 0.07
    products = draws.T @ draws / len(draws)
    assert float((products - torch.eye(40).double()).abs().max()) < 0.07
    between = draws @ draws.T / 40
    assert 0.9 < float(between.fill_diagonal_(0).std() * 40**0.5) < 1.1


def test_signs_take_the_type_of_their_model() -> None:
    assert signs(0, (3,), torch.zeros((), dtype=torch.float16)).dtype == torch.float16
    assert signs(0, (0,), LIKE).shape == (0,)
