"""Letters that the built-in font lacks are composed, and do not come out as empty boxes."""

import numpy as np
import pytest

from heedful.plots import fonts as letters
from heedful.plots.fonts import written


def ink(text: str, pixels: int = 40) -> np.ndarray:
    return np.asarray(written(text, pixels))


@pytest.mark.parametrize(("marked", "bare"), [("ü", "u"), ("Ä", "A"), ("é", "e"), ("ñ", "n"), ("å", "a"), ("č", "c")])
def test_a_marked_letter_is_the_bare_one_with_something_above(marked: str, bare: str) -> None:
    with_mark, without = ink(marked), ink(bare)
    assert with_mark.shape == without.shape
    top = np.flatnonzero(without.any(1))[0]
    assert (with_mark[top:] == without[top:]).all()
    assert with_mark[:top].any()


def test_the_dot_of_i_gives_way_to_its_mark() -> None:
    rows = np.flatnonzero(ink("ï").any(1))
    assert ink("ï")[rows[0]].nonzero()[0].max() > ink("i")[np.flatnonzero(ink("i").any(1))[0]].nonzero()[0].max()


def test_sharp_s_is_drawn_and_takes_room() -> None:
    assert ink("ß").any()
    assert ink("dreißig").shape[1] > ink("dreiig").shape[1] + 10


@pytest.mark.parametrize("text", ["ein", "fünf und dreißig", "–", "▁the", "..."])
def test_text_is_as_wide_as_its_letters_and_never_touches_the_edge(text: str) -> None:
    picture = ink(text)
    assert picture.any()
    assert not picture[0].any()
    assert not picture[-1].any()


def test_without_a_fitting_font_other_scripts_become_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "SYSTEM_FONTS", ())
    assert (ink("中文") == ink("??")).all()


def test_empty_text_is_a_thin_empty_picture() -> None:
    assert ink("").shape[1] == 2
    assert not ink("").any()
