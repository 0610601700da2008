"""Keeps one Chromium open for all the pages of a file of tests, whose figures are seen."""

from __future__ import annotations

import pytest
from browser import Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def blank_figures():
    """Put the figures on paper."""
