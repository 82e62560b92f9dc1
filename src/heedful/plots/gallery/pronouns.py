"""A small BERT that learns what a pronoun refers to, in seconds: the model of the attention figures.

"The queen did not see the bridge because it was too dark": at the pronoun the model predicts the noun. It reads the
sentence with one layer of attention, so the pronoun has to attend to the noun that agrees with it.

B sentences, T tokens, D width, V words.
"""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.lectures import Progress
from heedful.lectures.learning import learn, seeded
from heedful.models.bert.config import BertConfig
from heedful.models.bert.model import Bert
from heedful.tasks.pretraining.predictor import TextEncoder

SENTENCE = "The queen did not see the bridge because it was too dark"
NOUNS = {
    "he": ("king", "man", "boy", "father", "uncle", "waiter"),
    "she": ("queen", "woman", "girl", "mother", "aunt", "waitress"),
    "it": ("bridge", "street", "river", "house", "garden", "train"),
}
ADJECTIVES = ("dark", "tired", "wide", "old", "small", "far")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
REST = ("The", "the", "did", "not", "see", "because", "was", "too")
WORDS = (*SPECIAL, *REST, *NOUNS, *(noun for nouns in NOUNS.values() for noun in nouns), *ADJECTIVES)
STEPS, BATCH = 400, 32


def tokenizer() -> BertTokenizer:
    """A piece for each word of the sentences."""
    return BertTokenizer.from_vocab(WORDS, False, "the words of the figure")


def known(text: str) -> bool:
    """Whether all words of a text are words of the sentences."""
    return bool(text.strip()) and not set(tokenizer().encode(text).pieces) - set(WORDS[len(SPECIAL) :])


def train(seed: int) -> Generator[Progress, None, TextEncoder]:
    """Train the encoder."""
    words = tokenizer()
    config = BertConfig(
        vocab=words.vocab, width=32, heads=4, layers=1, hidden=64, context=32, dropout=0.0, attention_dropout=0.0
    )
    model = seeded(lambda: Bert(config), seed)
    sentences = Sentences(words, seed)

    def loss() -> Tensor:
        tokens, at, nouns = sentences.batch()
        return F.cross_entropy(model.words(model(tokens)[:, at]), nouns)

    for share in learn(model, loss, STEPS, lr=5e-3):
        yield Progress(share, "training a small BERT on sentences with pronouns")
    return TextEncoder(model.eval(), words, torch.device("cpu"))


class Sentences:
    """Random sentences with two nouns, of which the pronoun agrees with one."""

    def __init__(self, words: BertTokenizer, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        pieces = words.encode(SENTENCE).ids
        self.pattern = torch.tensor([WORDS.index("[CLS]"), *pieces, WORDS.index("[SEP]")])
        self.places = [self.pattern.tolist().index(WORDS.index(word)) for word in ("queen", "bridge", "it", "dark")]
        self.nouns = torch.tensor([[WORDS.index(noun) for noun in nouns] for nouns in NOUNS.values()])
        self.pronouns = torch.tensor([WORDS.index(word) for word in NOUNS])
        self.adjectives = torch.tensor([WORDS.index(word) for word in ADJECTIVES])

    def batch(self) -> tuple[Tensor, int, Tensor]:
        """Tokens (B, T), the place of the pronoun in each row, and the nouns (B,) that it refers to."""
        first, second, pronoun, adjective = self.places
        kinds = torch.rand(BATCH, len(self.nouns), generator=self.generator).argsort(1)[
            :, :2
        ]  # (B, 2), two that differ
        nouns = self.nouns[kinds, self._below(self.nouns.shape[1], BATCH, 2)]  # (B, 2)
        meant = self._below(2, BATCH, 1)  # (B, 1)
        tokens = self.pattern.repeat(BATCH, 1)  # (B, T)
        tokens[:, [first, second]] = nouns
        tokens[:, pronoun] = self.pronouns[kinds.gather(1, meant)[:, 0]]
        tokens[:, adjective] = self.adjectives[self._below(len(ADJECTIVES), BATCH)]
        return tokens, pronoun, nouns.gather(1, meant)[:, 0]

    def _below(self, end: int, *shape: int) -> Tensor:
        return torch.randint(end, shape, generator=self.generator)
