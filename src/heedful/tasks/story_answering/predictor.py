"""Questions about stories: the loss, the scores, and the predictor, which shows what each hop attended to.

B questions, S sentences, K hops, C answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.blocks.losses import Loss, cross_entropy
from heedful.blocks.taps import Recorded, taps, watch
from heedful.data.batch import IGNORE_INDEX
from heedful.data.stories.batches import EncodedStories, StoryBatch, encode_stories, unknown_words
from heedful.data.stories.sources import one_question, read_babi, read_json_stories
from heedful.data.stories.story import Asked, Stories, Story, split_sentences, words_of
from heedful.data.tokenizers.vocabulary import TextVocab
from heedful.errors import UserError, shown
from heedful.tasks.predictor import Evaluation, Predictor, Result, batch_of
from heedful.training.metrics import Score

BATCH_SENTENCES = 16_384  # of a batch, padding included
CHUNK = 4096  # questions that are encoded at a time
KNOWN, NAMED = "known_answers", 5  # the score of unknown answers, and how many of them it names
MAX_LINE = 1_000_000  # characters of a line in a file

StoryQuestion = tuple[str | Sequence[str], str]  # a story, as a text or as sentences, and a question


def outputs(model: Any, batch: StoryBatch) -> Tensor:
    """The logits (B, C) of the answers."""
    found: Tensor = model(batch.sentences, batch.stories, batch.questions)
    return found


def story_loss(model: Any, batch: StoryBatch) -> Loss:
    """Cross-entropy of the answers."""
    return cross_entropy(outputs(model, batch), batch.targets, ignore=IGNORE_INDEX)


@torch.inference_mode()
def mean_loss(model: Any, encoded: EncodedStories, device: torch.device) -> float:
    """The mean loss per question with a known answer; of an unknown one, no probability is defined."""
    total, count = 0.0, 0
    for batch in encoded.in_order(BATCH_SENTENCES):
        found = story_loss(model, batch.to(device))
        total, count = total + found.plain.item(), count + int(found.count)
    return total / max(1, count)


@dataclass(frozen=True, repr=False)
class StoryAnswer(Result):
    """The most probable answer, its probability, the first answers with theirs, and the weights (K, S) of each hop.

    The weights of a hop over the sentences sum to one; of sentences that are too old for the memory, they are zero.
    """

    text: str
    probability: float
    probabilities: dict[str, float] = field(repr=False)
    weights: list[list[float]] = field(repr=False)
    forgotten: int = 0  # sentences of the story that are too old for the memory
    unknown: list[str] = field(default_factory=list)  # words that the model has not seen in training


@dataclass
class StoryAnswerer(Predictor[StoryQuestion, StoryAnswer, tuple[StoryQuestion, str]]):
    """Answers questions about stories; an input is (story, question), the story a text or a list of sentences."""

    task: ClassVar = "story_answering"

    model: nn.Module
    tokenizer: TextVocab
    device: torch.device
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> Sequence[str]:
        """The possible answers."""
        return self.tokenizer.labels

    @property
    def memory(self) -> int:
        """The number of sentences that the model remembers."""
        found: int = self._net.config.memory
        return found

    @property
    def hops(self) -> int:
        """The number of times that the model reads its memory; 0 for a model without attention."""
        pattern = self._net.hop_weights
        return 0 if pattern is None else sum(fnmatchcase(name, pattern) for name in taps(self.model))

    def answer(self, story: str | Sequence[str], question: str) -> StoryAnswer:
        """The answer to a question about a story."""
        (found,) = self.predict([(story, question)])
        return found

    def predict(self, inputs: Sequence[StoryQuestion], top: int = 5) -> list[StoryAnswer]:
        """The answer to each (story, question), with the `top` most probable ones."""
        asked = [self.asked(story, question) for story, question in batch_of(inputs, "stories with their questions")]
        found = list[StoryAnswer]()
        for start in range(0, len(asked), CHUNK):
            chunk = asked[start : start + CHUNK]
            encoded = encode_stories(chunk, self.tokenizer, self.memory, [None] * len(chunk))
            shares, weights = self.outputs(encoded)
            for one, share, each, gone in zip(chunk, shares, weights, encoded.forgotten.tolist(), strict=True):
                unknown = unknown_words([*one.sentences, one.question.text], self.tokenizer)
                first = {self.labels[at]: float(share[at]) for at in np.argsort(-share, kind="stable")[:top].tolist()}
                best, padded = next(iter(first)), np.pad(each, ((0, 0), (gone, 0))).tolist()
                found.append(StoryAnswer(best, first[best], first, padded, gone, unknown))
        return found

    def asked(self, story: str | Sequence[str], question: str) -> Asked:
        """A question about all sentences of a story; without either, an error."""
        if isinstance(story, str):
            sentences = split_sentences(story)
        elif all(isinstance(one, str) for one in story):
            sentences = tuple(one for one in story if words_of(one))
        else:
            raise TypeError("a story is a text, or a list of sentences")
        if not sentences:
            raise UserError("this story has no sentence", where="story", found=shown(story), expected="sentences")
        (asked,) = one_question(sentences, question, "?", where="question").questions
        return Asked(sentences, asked)

    @torch.inference_mode()
    def outputs(self, encoded: EncodedStories) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
        """For each question, the probabilities (C,) of the answers, and the weights (K, S) of the sentences."""
        shares: list[Any] = [None] * len(encoded)
        weights: list[Any] = [None] * len(encoded)
        for batch in encoded.in_order(BATCH_SENTENCES):
            with watch(self.model, self._net.hop_weights) if self.hops else nullcontext(Recorded()) as seen:
                logits = outputs(self.model, batch.to(self.device)).float()  # (B, C)
            hops = [each[:, 0, 0].float() for each in seen.values()]  # (B, S) each
            every = torch.stack(hops, 1) if hops else logits.new_zeros(len(logits), 0, batch.stories.shape[1])
            lengths = encoded.lengths[batch.indices.numpy()]
            rows = zip(batch.indices.tolist(), logits.softmax(-1).cpu().numpy(), every.cpu().numpy(), strict=True)
            for (row, share, each), length in zip(rows, lengths.tolist(), strict=True):
                shares[row], weights[row] = share, each[:, :length]
        return shares, weights

    def _evaluate(self, data: Path | Sequence[tuple[StoryQuestion, str]]) -> Evaluation:
        if isinstance(data, Path):
            json = data.name.removesuffix(".gz").endswith((".jsonl", ".json"))
            stories = read_json_stories(data, MAX_LINE) if json else read_babi(data, MAX_LINE)
        else:
            given = [(self.asked(story, question), answer) for (story, question), answer in data]
            stories = Stories([_story(asked, answer) for asked, answer in given])
        asked = stories.asked
        encoded = encode_stories(asked, self.tokenizer, self.memory)
        shares, weights = self.outputs(encoded)
        loss = mean_loss(self.model, encoded, self.device) if len(encoded.with_targets) else None
        return Evaluation.of(story_scores(shares, weights, encoded, asked), loss, len(asked))


def _story(asked: Asked, answer: str) -> Story:
    return Story(asked.sentences, (asked.question._replace(answer=answer),))


def story_scores(
    shares: Sequence[NDArray[np.float32]],
    weights: Sequence[NDArray[np.float32]],
    encoded: EncodedStories,
    asked: Sequence[Asked],
) -> tuple[Score, ...]:
    """Accuracy, and the share of supporting facts that are found: that have the largest weight of one of the hops.

    An answer that training has not seen counts as wrong; where there are any, the share of the others is a score too.
    """
    right = sum(int(share.argmax()) == target for share, target in zip(shares, encoded.targets.tolist(), strict=True))
    scores = [Score("accuracy", 100 * right / len(asked), f"questions:{len(asked)}")]
    facts = [*_facts(weights, encoded, asked)]
    if encoded.unseen:
        named = ", ".join(encoded.unseen[:NAMED]) + (", ..." if len(encoded.unseen) > NAMED else "")
        share = len(encoded.with_targets) / len(asked)
        scores.append(Score(KNOWN, 100 * share, f"questions:{len(asked)}|answers not seen in training:{named}"))
    if facts:
        hops = len(weights[0])
        scores.append(Score("supports", 100 * float(np.mean(facts)), f"hops:{hops}|supporting facts:{len(facts)}"))
    return tuple(scores)


def _facts(weights: Sequence[NDArray[np.float32]], encoded: EncodedStories, asked: Sequence[Asked]) -> Iterator[bool]:
    """For each supporting fact, whether it is the sentence that one of the hops attends to most."""
    for each, gone, one in zip(weights, encoded.forgotten.tolist(), asked, strict=True):
        if len(each):
            most = {gone + int(hop.argmax()) for hop in each}
            yield from (fact in most for fact in one.question.supports)
