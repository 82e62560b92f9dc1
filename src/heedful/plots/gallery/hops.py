"""Which sentences of a story each hop of a memory network attends to."""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heedful.data.stories.batches import StoryBatches, encode_stories
from heedful.data.stories.sources import GeneratedStories
from heedful.data.stories.story import split_sentences, words_of
from heedful.data.tokenizers.vocabulary import TextVocab
from heedful.errors import UserError
from heedful.lectures import Progress
from heedful.lectures.learning import learn, seeded
from heedful.models import build
from heedful.models.memory_network.config import MemoryNetworkConfig
from heedful.plots.gallery.vision import Model, Seed
from heedful.plots.hop_plot import Answered, plot_hops
from heedful.plots.style import Figure, Style
from heedful.runs.load import load
from heedful.tasks.story_answering.predictor import StoryAnswerer, story_loss

BATCH = 64  # questions in a step
LR = 1e-2
DATA = GeneratedStories(facts=2, every=2, questions=3, train=2000)
CONFIG = MemoryNetworkConfig(memory=30)

Count = Annotated[int, Field(ge=1, le=8, description="questions that are drawn, of generated stories")]
Steps = Annotated[int, Field(ge=1, le=100_000, description="training steps of the small model")]
StoryText = Annotated[str | None, Field(description="a story of yours, each sentence with its full stop")]
QuestionText = Annotated[str | None, Field(description="a question about it")]
Drawing = Generator[Progress, None, Figure]


def hops(
    *,
    model: Model = None,
    story: StoryText = None,
    question: QuestionText = None,
    count: Count = 2,
    steps: Steps = 1000,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """The weights of the sentences in each hop, and which of them are supporting facts (Sukhbaatar et al., 2015)."""
    if (story is None) != (question is None):
        raise UserError("a story and a question belong together", where="story", todo="give both, or neither")
    if model is None:
        answerer = yield from train(steps, seed)
    else:
        found = load(model)
        if not isinstance(found, StoryAnswerer) or not found.hops:
            raise UserError(
                "this model has no hops", where="model", found=model,
                expected="a run of a memory network, such as stories-2",
            )  # fmt: skip
        answerer = found
    if story is not None and question is not None:
        shown = [answered(answerer, split_sentences(story), question)]
    else:
        asked = DATA.read("test").asked[DATA.questions - 1 :: DATA.questions][:count]  # the last about each story
        shown = [answered(answerer, one.sentences, one.question.text, one.question.supports) for one in asked]
    return plot_hops(shown, "Which sentences each hop attends to", style)


def answered(
    answerer: StoryAnswerer, sentences: tuple[str, ...], question: str, supports: tuple[int, ...] = ()
) -> Answered:
    """A question with its answer and the weights of the hops."""
    found = answerer.answer(sentences, question)
    return Answered(sentences, question, found.text, found.probability, found.weights, supports)


def train(steps: int, seed: int) -> Generator[Progress, None, StoryAnswerer]:
    """Train a small memory network on questions with two supporting facts."""
    asked = DATA.read("train").asked
    texts = dict.fromkeys(text for one in asked for text in (*one.sentences, one.question.text))
    labels = sorted({one.question.answer for one in asked})
    words = TextVocab.learn([" ".join(words_of(text)) for text in texts], labels, "words", True, 1)
    config = CONFIG.model_copy(update={"vocab": words.vocab, "labels": words.labels})
    net = seeded(lambda: build(config), seed)
    batches = StoryBatches(encode_stories(asked, words, config.memory), seed, 1, BATCH)
    position = 0

    def loss() -> Tensor:
        nonlocal position
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + position)
            found = story_loss(net, batches.at(position))
        position += 1
        return found.total / found.count

    for share in learn(net.train(), loss, steps, lr=LR):
        yield Progress(0.9 * share, "training a small memory network")
    return StoryAnswerer(net, words, torch.device("cpu"))
