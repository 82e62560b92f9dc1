"""The figure of a paragraph: numbered boxes in their places, and sentences in the boxes' colours."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import to_hex

from heedful.plots.paragraph_plot import paragraph_plot, region_colour
from heedful.plots.style import CLASSES, PALETTES


def test_boxes_and_sentences_have_the_colours_of_their_regions() -> None:
    image = np.zeros((20, 30, 3), np.uint8)
    sentences = [("All of it.", 0), ("A cat " * 20 + "sits here.", 2), ("A dog.", 1)]
    figure = paragraph_plot(image, [(1, 2, 5, 9), (10, 10, 20, 30)], ["dog", "cat"], sentences, "Pets")
    left, right = figure.axes
    first, second = left.lines
    assert [min(first.get_xdata()), max(first.get_xdata())] == [1.5, 8.5]  # type: ignore[type-var]
    assert [min(second.get_ydata()), max(second.get_ydata())] == [9.5, 19.5]  # type: ignore[type-var]
    assert [text.get_text() for text in left.texts] == ["1", "2"]
    colours = {text.get_text(): to_hex(text.get_color()) for text in right.texts}
    assert colours["A dog."] == colours["1  dog"] == to_hex(first.get_color()) == CLASSES[0]
    long = [colour for line, colour in colours.items() if "A cat" in line or line.endswith("sits here.")]
    assert len(long) == 2 and {*long, colours["2  cat"]} == {CLASSES[1]}
    assert colours["All of it."] == PALETTES["light"].ink
    assert region_colour(11, "#000000") == CLASSES[0] and region_colour(0, "#123456") == "#123456"
