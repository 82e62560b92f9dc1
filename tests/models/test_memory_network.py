"""The memory network: its equations with plain loops, its weights, and what noise does in training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.taps import watch
from heedful.models.memory_network.bag import BagOfWords
from heedful.models.memory_network.config import BagOfWordsConfig, MemoryNetworkConfig
from heedful.models.memory_network.model import MemoryNetwork, position_weights
from tolerance import close, near

VOCAB, WIDTH, MEMORY = 13, 6, 7
LABELS = ("kitchen", "garden", "office")
SENTENCES = [[2, 3, 4], [5, 6], [7, 8, 9, 10], [11], [2, 6, 12]]
STORIES = [[0, 1, 2, 3, 4], [3, 0], [2, 2, 1]]
QUESTIONS = [[12, 3], [4], [5, 2, 9]]
EVERY = [
    {"tying": tying, "sentences": sentences, "hops": hops}
    for tying, sentences, hops in itertools.product(("adjacent", "layer_wise"), ("positions", "bag"), (1, 2, 3))
]


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def padded(rows: list[list[int]], fill: int, more: int = 0) -> Tensor:
    length = max(map(len, rows)) + more
    return torch.tensor([row + [fill] * (length - len(row)) for row in rows])


def batch(more: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    return padded(SENTENCES, 0, more), padded(STORIES, -1, more), padded(QUESTIONS, 0, more)


def build_model(**changes: Any) -> MemoryNetwork:
    torch.manual_seed(0)
    settings = {"vocab": VOCAB, "labels": LABELS, "width": WIDTH, "memory": MEMORY, "hops": 2}
    model = MemoryNetwork(MemoryNetworkConfig.model_validate(settings | changes)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    return model


# ------------------------------------------------------------------ the equations
def sentence_vector(table: Tensor, words: list[int], kind: str) -> list[float]:
    """sum_j l_jd x_jd, word by word and dimension by dimension."""
    found = []
    for d in range(1, WIDTH + 1):
        total = 0.0
        for j, word in enumerate(words, start=1):
            share = (1 - j / len(words)) - (d / WIDTH) * (1 - 2 * j / len(words))
            total += float(table[word, d - 1].detach()) * (share if kind == "positions" else 1.0)
        found.append(total)
    return found


def looped(model: MemoryNetwork, story: list[int], question: list[int]) -> tuple[list[float], list[list[float]]]:
    """The logits of one question and the weights of each hop: equations 1 to 3 of the paper, one number at a time."""
    config, kind = model.config, model.config.sentences
    tables: list[Any] = [
        (memory.tokens.weight, memory.times.weight)
        for memory in model.memories  # type: ignore[union-attr]
    ]
    first = tables[0][0] if config.tying == "adjacent" else model.question.weight
    u = sentence_vector(first, question, kind)
    weights = []
    for hop in range(config.hops):
        a, c = (tables[hop], tables[hop + 1]) if config.tying == "adjacent" else tables
        scores, outs = [], []
        for place, row in enumerate(story):
            age = len(story) - 1 - place
            m = [x + float(a[1][age, d].detach()) for d, x in enumerate(sentence_vector(a[0], SENTENCES[row], kind))]
            outs.append(
                [x + float(c[1][age, d].detach()) for d, x in enumerate(sentence_vector(c[0], SENTENCES[row], kind))]
            )
            scores.append(sum(x * y for x, y in zip(u, m, strict=True)))
        highest = max(scores)
        shares = [float(torch.tensor(score - highest).exp()) for score in scores]
        p = [share / sum(shares) for share in shares]
        o = [sum(p[i] * outs[i][d] for i in range(len(story))) for d in range(WIDTH)]
        if config.tying == "layer_wise":
            u = [sum(float(model.step.weight[row, d].detach()) * u[d] for d in range(WIDTH)) for row in range(WIDTH)]
        u = [x + y for x, y in zip(u, o, strict=True)]
        weights.append(p)
    matrix = model.head.weight
    return [sum(float(matrix[row, d].detach()) * u[d] for d in range(WIDTH)) for row in range(len(LABELS))], weights


@pytest.mark.claim("M10")
@pytest.mark.parametrize("settings", EVERY, ids=lambda each: "-".join(map(str, each.values())))
def test_hops_are_those_of_the_paper(settings: dict[str, Any]) -> None:
    """Adjacent and layer-wise tying, sentences with and without word positions: logits and weights of plain loops."""
    model = build_model(**settings)
    with watch(model, model.hop_weights) as seen:
        logits = model(*batch())
    for row, (story, question) in enumerate(zip(STORIES, QUESTIONS, strict=True)):
        expected, weights = looped(model, story, question)
        close(logits[row], torch.tensor(expected), slack=8)
        for hop, each in enumerate(weights):
            found = seen[f"hops.{hop}.weights"][row, 0, 0]
            close(found[: len(story)], torch.tensor(each), slack=8)
            assert (found[len(story) :] == 0).all()
            assert float(found.sum()) == near(1.0)


def test_position_weights_are_those_of_the_paper() -> None:
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    found = position_weights(real, WIDTH)
    for row, count in enumerate((4, 2)):
        for j in range(1, 5):
            for d in range(1, WIDTH + 1):
                share = (1 - j / count) - (d / WIDTH) * (1 - 2 * j / count)
                assert float(found[row, j - 1, d - 1]) == near(share if j <= count else 0.0)
    # The order of the words matters with them, and not in a bag.
    first, other = ([[2, 3, 4]], [[4, 3, 2]])
    for kind, same in (("positions", False), ("bag", True)):
        model = build_model(sentences=kind)
        one, two = (model(padded(each, 0), torch.tensor([[0]]), torch.tensor([[5]])) for each in (first, other))
        assert torch.allclose(one, two) is same


def test_padding_changes_no_answer() -> None:
    """Of words, of sentences, and of stories beside others, at either end."""
    for settings in EVERY:
        model = build_model(**settings)
        logits = model(*batch())
        close(model(*batch(more=3)), logits)
        sentences, stories, questions = batch()
        front = torch.cat([torch.full((3, 2), -1), stories], 1)
        close(model(torch.cat([sentences, sentences[:2]]), front, questions), logits)
        for row, (story, question) in enumerate(zip(STORIES, QUESTIONS, strict=True)):
            close(model(sentences, torch.tensor([story]), torch.tensor([question])), logits[row : row + 1])
    bag = BagOfWords(BagOfWordsConfig(vocab=VOCAB, labels=LABELS, width=WIDTH))
    close(bag(*batch(more=3)), bag(*batch()))


def test_order_of_the_sentences_matters_only_by_their_ages() -> None:
    """Without the times, a story is a set of sentences."""
    model = build_model()
    sentences, _, questions = batch()
    one, two = (model(sentences, torch.tensor([order]), questions[:1]) for order in ([0, 1, 2], [2, 1, 0]))
    assert not torch.allclose(one, two)
    for memory in model.memories:
        torch.nn.init.zeros_(memory.times.weight)  # type: ignore[union-attr, arg-type]
    one, two = (model(sentences, torch.tensor([order]), questions[:1]) for order in ([0, 1, 2], [2, 1, 0]))
    close(one, two)


def test_bag_of_words_is_a_sum() -> None:
    torch.manual_seed(0)
    bag = BagOfWords(BagOfWordsConfig(vocab=VOCAB, labels=LABELS, width=WIDTH))
    logits = bag(*batch())
    for row, (story, question) in enumerate(zip(STORIES, QUESTIONS, strict=True)):
        total = torch.zeros(WIDTH)
        for place in story:
            for word in SENTENCES[place]:
                total = total + bag.tokens.weight[word]
        for word in question:
            total = total + bag.question.weight[word]
        close(logits[row], bag.head.weight @ total)


# ------------------------------------------------------------------ noise, and words that training has not seen
def test_noise_makes_sentences_older_in_training_only() -> None:
    model = build_model(noise=0.5, memory=20)
    real = torch.ones(400, 5, dtype=torch.bool)
    assert model.ages(real)[0].tolist() == [4, 3, 2, 1, 0]
    torch.manual_seed(0)
    ages = model.train().ages(real)
    steps = ages[:, :-1] - ages[:, 1:]
    assert ages[:, -1].eq(0).all() and set(steps.unique().tolist()) == {1, 2}
    assert 0.4 < float((steps == 2).double().mean()) < 0.6
    assert int(build_model(noise=0.9).train().ages(real).max()) == MEMORY - 1  # the oldest time
    still = build_model(noise=0.0)
    close(still.train()(*batch()), still.eval()(*batch()))


def test_unknown_words_say_nothing() -> None:
    """Their vectors are zero: an unknown word changes a bag of words in nothing."""
    torch.manual_seed(0)
    for model in (
        MemoryNetwork(MemoryNetworkConfig(vocab=VOCAB, labels=LABELS, width=WIDTH, sentences="bag")).eval(),
        MemoryNetwork(
            MemoryNetworkConfig(vocab=VOCAB, labels=LABELS, width=WIDTH, sentences="bag", tying="layer_wise")
        ).eval(),
        BagOfWords(BagOfWordsConfig(vocab=VOCAB, labels=LABELS, width=WIDTH)),
    ):
        given = torch.tensor([[0]]), torch.tensor([[3, 1]])
        close(model(torch.tensor([[2, 1, 1]]), *given), model(torch.tensor([[2, 0, 0]]), given[0], torch.tensor([[3]])))


def test_weights_can_be_replaced() -> None:
    """A hook at a hop's weights changes what is read: all weight on the first sentence."""
    model = build_model(hops=1)
    given = batch()

    def first(weights: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(torch.zeros_like(weights[..., 0]).long(), weights.shape[-1]).double()

    before = model(*given)
    model.hops[0].weights.hook = first  # type: ignore[union-attr]
    after = model(*given)
    model.hops[0].weights.hook = None  # type: ignore[union-attr]
    alone = model(given[0], given[1][:, :1], given[2])
    assert not torch.allclose(before, after) and after.shape == alone.shape
