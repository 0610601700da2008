"""Figures: the same bytes every time, with words for those who do not see them."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure as Canvas
from PIL import Image

from reproduction.drawing import draw_figure, power, power_ticks

WORDS = 'Leakage "η" of <A> & B falls'


def _draw(canvas):
    axes = canvas.subplots()
    axes.plot([1, 2, 3], [1, 4, 9], label="squares")
    axes.set_title("A title")
    axes.legend()


@pytest.fixture(scope="module")
def figure():
    return draw_figure("name", WORDS, _draw, (4, 3))


@pytest.mark.slow
def test_drawing_again_gives_the_same_bytes(figure):
    again = draw_figure("name", WORDS, _draw, (4, 3))
    assert (again.svg, again.png) == (figure.svg, figure.png)


def test_the_svg_speaks(figure):
    root = ElementTree.fromstring(figure.svg.encode())  # noqa: S314
    assert root.get("aria-label") == WORDS
    assert root.get("role") == "img"
    assert "A title" in "".join(root.itertext())  # text stays text


def test_the_png_is_small_and_speaks(figure):
    with Image.open(io.BytesIO(figure.png)) as picture:
        assert picture.size == (600, 450)
        assert picture.mode == "P"
        assert picture.info["Description"] == WORDS
    assert len(figure.png) < 30_000


@pytest.mark.parametrize(("exponent", "words"), [(-12, "10⁻¹²"), (0, "1"), (1, "10¹")])
def test_powers_of_ten_in_words(exponent, words):
    assert power(exponent) == words


def test_ticks_are_at_every_other_power_within_the_axis():
    axes = Canvas().subplots()
    axes.set_yscale("log")
    axes.set_ylim(0.5e-5, 20)
    power_ticks(axes.yaxis, every=2)
    assert axes.get_yticks() == pytest.approx([1e-4, 1e-2, 1])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["10⁻⁴", "10⁻²", "1"]
