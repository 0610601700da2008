"""Puts this folder on the path, and makes property tests try the same examples every time.

A failure then shows again wherever the suite is run; ``make test-random`` draws new examples. No
test asserts a time, so examples have no deadline either.

While tests are collected, the libraries make almost a million objects that stay to the end: until
then no garbage is looked for, and later not among these.
"""

import gc

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def few_neighbours():
    """Let an audit refit without five of the most exposed records, not fifty, and draw less often.

    Those refits and the averages over the adversary's prior take most of its time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seepage.auditing.neighbours.CHECKED", 5)
        patch.setattr("seepage.auditing.audit._DRAWS", 8)
        yield


@pytest.fixture(scope="module")
def blank_figures():
    """Draw figures as ever, but put nothing on paper: that is what takes most of their time."""
    import matplotlib.figure

    def save(figure, buffer, **how):
        buffer.write('<svg xmlns="http://www.w3.org/2000/svg"></svg>')

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matplotlib.figure.Figure, "savefig", save)
        yield
