"""Captions of drawn scenes against the facts: how many are true, and whether their nouns attend to their things.

W words, Y rows and X columns of a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from heedful.data.images.scene_facts import Box, check
from heedful.data.images.scenes import Scene
from heedful.training.metrics import Score


class Described(Protocol):
    """A caption with its words, and what each attended to."""

    @property
    def text(self) -> str: ...

    @property
    def words(self) -> list[str]: ...

    @property
    def maps(self) -> Tensor | None: ...  # (W, Y, X)


def scene_scores(scenes: Sequence[Scene], captions: Sequence[Described]) -> tuple[Score, ...]:
    """The share of true captions, and of nouns of true ones whose map is highest in their thing's box, in percent."""
    true, hits = 0, list[bool]()
    for scene, caption in zip(scenes, captions, strict=True):
        verdict = check(caption.text, scene)
        true += verdict.true
        if caption.maps is None:
            continue
        places = word_places(caption.text, caption.words)
        for mention in verdict.mentions:
            if mention.begin in places:
                found = caption.maps[places[mention.begin]]
                hits.append(points_into(found, mention.boxes, (scene.rows, scene.columns)))
    scores = [Score("true", 100 * true / len(scenes), f"captions:{len(scenes)}")]
    if hits:
        scores.append(Score("pointing", 100 * sum(hits) / len(hits), f"nouns:{len(hits)}"))
    return tuple(scores)


def word_places(text: str, words: Sequence[str]) -> dict[int, int]:
    """The place of each word in a list, by the character of the text at which it begins."""
    found, at = dict[int, int](), 0
    for place, word in enumerate(words):
        begin = text.find(word, at)
        if begin >= 0:
            found[begin] = place
            at = begin + len(word)
    return found


def points_into(weights: Tensor, boxes: Sequence[Box], size: tuple[int, int]) -> bool:
    """Whether the centre of the highest place of a map (Y, X) is in one of the boxes: the pointing game (Zhang, 2016).

    Boxes are first row, first column, and those after the last, in pixels of an image of this size.
    """
    rows, columns = weights.shape
    row, column = divmod(int(weights.argmax()), columns)
    y, x = (row + 0.5) * size[0] / rows, (column + 0.5) * size[1] / columns
    return any(top <= y < bottom and left <= x < right for top, left, bottom, right in boxes)
