"""Lets the tests in the folders below import this folder's helpers, and makes audits short."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def short(few_neighbours, blank_figures):
    """Shorten every audit and report; what needs all of them overrides the fixtures."""
