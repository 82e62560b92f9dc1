"""Paragraphs of drawn scenes against the scenes' facts: how many sentences are true, and from the right regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from heedful.data.images.scene_facts import check
from heedful.data.images.scenes import Scene
from heedful.training.metrics import Score


class GroundedSentence(Protocol):
    """A sentence, and the regions that it attended to."""

    @property
    def text(self) -> str: ...

    @property
    def regions(self) -> tuple[int, ...]: ...


def truth_scores(paragraphs: Sequence[Sequence[GroundedSentence]], scenes: Sequence[Scene]) -> tuple[Score, ...]:
    """The share of sentences that are true and grounded, and of paragraphs that have no other sentence, in percent."""
    right = [
        [is_grounded(sentence, scene) for sentence in sentences]
        for sentences, scene in zip(paragraphs, scenes, strict=True)
    ]
    each = [one for sentences in right for one in sentences]
    counts = f"sentences:{len(each)}|paragraphs:{len(right)}"
    return (
        Score("true", 100 * sum(each) / len(each), f"true and grounded sentences|{counts}"),
        Score("all_true", 100 * sum(map(all, right)) / len(right), f"paragraphs of such sentences alone|{counts}"),
    )


def is_grounded(sentence: GroundedSentence, scene: Scene) -> bool:
    """Whether a sentence is true of a scene, and attended to the things that it speaks of, in their order.

    Region 0 is the whole image, and n + 1 the scene's n-th thing.
    """
    verdict = check(sentence.text, scene)
    return sentence.regions in [tuple(thing + 1 for thing in reading) or (0,) for reading in verdict.readings]
