"""Networks composed at random: every number right, or refused by a listed name."""

from __future__ import annotations

import pytest
import torch
from zoo import count, share_measured, verdict

torch.set_num_threads(1)


@pytest.mark.slow
def test_a_few_networks_are_right_or_refused() -> None:
    assert sum(count(range(8)).values()) == 8


def test_a_network_that_leaks_nothing_is_said_to_leak_nothing() -> None:
    assert verdict(5278) == ("measured", "over finite steps")


@pytest.mark.slow
def test_a_function_that_bends_beside_a_record_is_measured_where_it_is() -> None:
    assert verdict(1794785164) == ("measured", "as a derivative")


@pytest.mark.minutes
def test_three_hundred_networks_are_right_or_refused() -> None:
    counts = count(range(1000, 1300))
    for (what, how), number in sorted(counts.items()):
        print(f"{number:5d} {what} {how}")
    assert sum(counts.values()) == 300
    assert share_measured(counts) >= 0.85
