"""The quiz: sentences with a missing word, and questions whose answers are computed for random numbers.

The sentences are in `quiz.toml`. Each function of `COMPUTED` makes a question from a random generator and computes
its answer with the blocks, configs and metrics of Heedful; torch is imported when one of them needs it.
"""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from heedful.lectures.decks import topics


class Question(NamedTuple):
    """A question, its accepted answers, and why; numbers are accepted within a tolerance."""

    prompt: str
    answers: Sequence[str]  # the first one is shown
    why: str
    topic: str
    choices: Sequence[str] = ()
    tolerance: float | None = None

    @property
    def run(self) -> str:
        """A command that shows it."""
        return next(iter(topics()[self.topic].run), f"heedful lectures {self.topic}")

    def accepts(self, answer: str) -> bool:
        """Whether an answer is right; of choices, the letter will do."""
        letter = answer.strip().lower()
        if self.choices and len(letter) == 1 and letter.isalpha() and ord(letter) - ord("a") < len(self.choices):
            answer = self.choices[ord(letter) - ord("a")]
        if self.tolerance is None:
            return _plain(answer) in map(_plain, self.answers)
        try:
            return abs(_number(answer) - _number(self.answers[0])) <= self.tolerance
        except ValueError:
            return False

    def record(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {**self._asdict(), "run": self.run}


def _plain(answer: str) -> str:
    """An answer in lower case, with hyphens as spaces, without punctuation around it."""
    return re.sub(r"[\s\-_]+", " ", answer.lower()).strip(" .,;:!?\"'`_")


def _number(text: str) -> float:
    """A number that may have commas or spaces between thousands, or a decimal comma: 1,024, but 0,59."""
    text = re.sub(r"[ _]", "", text)
    if text.count(",") == 1 and not re.fullmatch(r"-?[1-9]\d{0,2},\d{3}(\.\d*)?", text):
        text = text.replace(",", ".")
    value = float(text.replace(",", ""))
    if not math.isfinite(value):
        raise ValueError(text)
    return value


@cache
def blanks() -> tuple[Question, ...]:
    """The sentences with a missing word, in the order of the deck."""
    with open(Path(__file__).with_suffix(".toml"), "rb") as file:
        return tuple(Question(**blank) for blank in tomllib.load(file)["blank"])


def quiz(seed: int, count: int) -> list[Question]:
    """Questions in random order, about half of them computed; the same seed asks the same ones."""
    rng = random.Random(seed)
    sentences = rng.sample(blanks(), len(blanks()))
    makers = [maker for _ in range(math.ceil(count / len(COMPUTED))) for maker in rng.sample(COMPUTED, len(COMPUTED))]
    computed = makers[: max(count // 2, count - len(sentences))]
    asked = [*(maker(rng) for maker in computed), *sentences[: count - len(computed)]]
    rng.shuffle(asked)
    return asked


# ------------------------------------------------------------------ questions with computed answers
def attention_weight(rng: random.Random) -> Question:
    """The first attention weight of a query over two keys."""
    import torch

    from heedful.blocks.attention import attend

    width = 4
    q, first, second = ([rng.randint(-1, 2) for _ in range(width)] for _ in range(3))
    k = torch.tensor([first, second]).double()
    weights = attend(torch.tensor([q]).double(), k, torch.eye(2, dtype=torch.float64))
    return Question(
        f"The query is {q}, the keys are {first} and {second}. With the scaled dot product (width {width}), what is "
        "the attention weight of the first key? Two decimals.",
        [f"{float(weights[0, 0]):.2f}"],
        f"Divide both products by √{width} = {math.sqrt(width):g}, then apply softmax.",
        "worked-self-attention",
        tolerance=0.011,
    )


def head_parameters(rng: random.Random) -> Question:
    """The number of weights of a multi-head attention layer."""
    import torch

    from heedful.blocks.attention import MultiHead

    heads = rng.choice((2, 4, 8))
    width = heads * rng.choice((16, 32, 64))
    with torch.device("meta"):
        layer = MultiHead(width, heads)
    count = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    return Question(
        f"A multi-head attention layer has width {width} and {heads} heads. How many weights do its matrices have in "
        "all, with the output matrix and without biases?",
        [f"{count:,}"],
        f"Four matrices of {width} x {width}, for queries, keys, values and output, however many heads.",
        "multi-head",
        tolerance=0.0,
    )


def transformer_parameters(rng: random.Random) -> Question:
    """The size of a small Transformer."""
    from heedful.models.transformer.config import TransformerConfig

    layers, width, vocab = rng.randint(1, 6), rng.choice((64, 128, 256, 512)), rng.choice((1000, 8000))
    config = TransformerConfig(width=width, heads=4, encoder_layers=layers, decoder_layers=layers, hidden=4 * width)
    right = config.parameters(vocab)
    return _choice(
        rng,
        f"A Transformer has {layers} + {layers} blocks of width {width}, feed-forward layers of {4 * width}, and one "
        f"embedding of {vocab:,} words that input and output share. About how many parameters has it?",
        right,
        "A block of the encoder has about 12 width², one of the decoder about 16 width²; the embedding comes on top.",
        "stacked-blocks",
    )


def bert_parameters(rng: random.Random) -> Question:
    """The size of a published BERT."""
    from heedful.models.bert.config import SIZES

    name = rng.choice(("bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large"))
    config = SIZES[name]
    return _choice(
        rng,
        f"{name} has {config.layers} blocks of width {config.width}. About how many parameters has it with its "
        "pre-training heads and 30,522 word pieces?",
        config.parameters(30_522),
        "Each block has about 12 width² parameters, the embedding 30,522 times the width.",
        "bert-size",
    )


def lstm_parameters(rng: random.Random) -> Question:
    """The number of parameters of an LSTM layer."""
    from heedful.models.sizes import layer_parameters

    width, hidden = rng.choice((10, 20, 50, 100)), rng.choice((10, 20, 50, 100))
    return Question(
        f"An LSTM layer reads vectors of {width} and has a state of {hidden}. How many parameters has it, with one "
        "bias for each gate?",
        [f"{layer_parameters('lstm', width, hidden):,}"],
        "Three gates and the candidate: 4 (h (h + x) + h).",
        "lstm",
        tolerance=0.0,
    )


def orders(rng: random.Random) -> Question:
    """The number of permutation masks."""
    import torch

    from heedful.blocks.masks import dense, order

    n = rng.randint(2, 5)
    none = torch.empty(1, 1, n, 0)
    masks = {
        tuple(dense(order(torch.tensor([ranks])), none, none).flatten().tolist()) for ranks in permutations(range(n))
    }
    return Question(
        f"XLNet predicts the words of a text in a random order. How many orders, and attention masks, has a text of "
        f"{n} words?",
        [str(len(masks))],
        f"{n}! permutations, and each gives another mask.",
        "three-masks",
        tolerance=0.0,
    )


def visible_pairs(rng: random.Random) -> Question:
    """The pairs that a causal mask leaves."""
    import torch

    from heedful.blocks.masks import causal, dense

    n = rng.randint(4, 12)
    none = torch.empty(1, 1, n, 0)
    return Question(
        f"A causal mask covers a text of {n} tokens. How many pairs of query and key does it leave?",
        [str(int(dense(causal(), none, none).sum()))],
        f"Token i attends to i tokens: 1 + 2 + ... + {n} = n (n + 1) / 2.",
        "causal-mask",
        tolerance=0.0,
    )


def conv_side(rng: random.Random) -> Question:
    """The side of an image after a convolution and a pooling."""
    from heedful.models.autoencoder.layers import Conv, MaxPool

    side, kernel, size = rng.randint(9, 40), rng.choice((3, 5, 7)), rng.choice((2, 3))
    shape = Conv(filters=4, size=kernel, padding="valid").output_shape((1, side, side))
    after = MaxPool(size=size).output_shape(shape)
    return Question(
        f"An image of {side} x {side} pixels goes through a {kernel} x {kernel} convolution without padding, then "
        f"through {size} x {size} max pooling with `same` padding. How many pixels has a side of the result?",
        [str(after[1])],
        f"The convolution leaves {side} - {kernel} + 1 = {shape[1]}; pooling divides by {size} and rounds up.",
        "conv-autoencoder",
        tolerance=0.0,
    )


def sinusoid(rng: random.Random) -> Question:
    """A value of the positional encoding."""
    from heedful.blocks.positions import sinusoids

    position, width = rng.randint(1, 9), rng.choice((4, 8, 16))
    column = rng.randrange(4)
    return Question(
        f"What is the sinusoidal encoding of position {position} in column {column} (both counted from 0), with width "
        f"{width}? Two decimals.",
        [f"{float(sinusoids(position + 1, width)[position, column]):.2f}"],
        "Even columns 2j hold sin(i / 10000^(2j/d)), odd ones the cosine of the same angle.",
        "sinusoids",
        tolerance=0.011,
    )


def clipped_norm(rng: random.Random) -> Question:
    """A gradient after clipping."""
    import torch

    from heedful.training.optim import clip

    a, b, _ = triple = rng.choice(((3, 4, 5), (6, 8, 10), (5, 12, 13), (8, 15, 17)))
    limit = rng.choice((1, 2, triple[2] + 3))
    weight = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    weight.grad = torch.tensor([float(a), float(b)], dtype=torch.float64)
    clip([weight], float(limit))
    return Question(
        f"The gradient ({a}, {b}) is clipped to the norm {limit}. What is its first value afterwards? Two decimals.",
        [f"{float(weight.grad[0]):.2f}"],
        f"Its norm is {triple[2]}: above the threshold it is scaled by threshold / norm, else it stays.",
        "gradient-clipping",
        tolerance=0.011,
    )


REFERENCES = (
    "the old bridge was closed for three weeks after the storm",
    "she reads every letter twice before she answers any of them",
    "our train leaves at noon from the last platform on the left",
)


def bleu_score(rng: random.Random) -> Question:
    """Which translation has the highest BLEU."""
    from heedful.training.metrics import bleu

    reference = rng.choice(REFERENCES)
    words = reference.split()
    swapped = [*words[:2], words[3], words[2], *words[4:]]
    versions = [
        " ".join(words[: len(words) - rng.randint(1, 2)]),
        " ".join(swapped),
        " ".join(rng.sample(words, len(words))),
    ]
    best = max(versions, key=lambda version: bleu([version], [reference]).value)
    rng.shuffle(versions)
    return Question(
        f"The reference is: {reference}. Which translation has the highest BLEU?",
        [best],
        "BLEU counts shared runs of one to four words, and punishes a translation that is too short.",
        "translation-results",
        choices=versions,
    )


COMPUTED: tuple[Callable[[random.Random], Question], ...] = (
    attention_weight,
    head_parameters,
    transformer_parameters,
    bert_parameters,
    lstm_parameters,
    orders,
    visible_pairs,
    conv_side,
    sinusoid,
    clipped_norm,
    bleu_score,
)


def _choice(rng: random.Random, prompt: str, right: int, why: str, topic: str) -> Question:
    """A question with four sizes to choose from, of which one is right."""
    sizes = [f"{right * factor:,.0f}" for factor in (1.0, 0.4, 2.3, 5.1)]
    answer = sizes[0]
    rng.shuffle(sizes)
    return Question(prompt, [answer], why, topic, choices=sizes)
