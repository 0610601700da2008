"""Puts this folder on the path, and makes property tests try the same examples every time.

A failure then shows again wherever the suite is run; ``make test-random`` draws new examples. No
test asserts a time, so examples have no deadline either.
"""

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


@pytest.fixture(scope="module")
def few_neighbours():
    """Let an audit refit without five of the most exposed records: fifty take most of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seepage.auditing.neighbours.CHECKED", 5)
        yield
