"""A bag of words: what a story and a question say, without the order of anything.

B questions, R distinct sentences, S sentences of a story, W words of a sentence, D width, C answers.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.linear import Linear
from heedful.models.memory_network.config import BagOfWordsConfig
from heedful.models.memory_network.words import ignore_unknown, initialize


class BagOfWords(nn.Module):
    """logits = W (sum of A x over all words of the story + sum of B q over those of the question)."""

    hop_weights = None  # there is no attention

    def __init__(self, config: BagOfWordsConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None and c.labels is not None, "both come from the training data"
        self.tokens, self.question = nn.Embedding(c.vocab, c.width), nn.Embedding(c.vocab, c.width)
        self.head = Linear(c.width, len(c.labels), bias=False)
        initialize(self.tokens, self.question, self.head)
        ignore_unknown(self.tokens, self.question)

    def forward(self, sentences: Tensor, stories: Tensor, questions: Tensor) -> Tensor:
        x = (self.tokens(sentences) * (sentences > 0)[..., None]).sum(1)  # (R, D)
        story = (F.embedding(stories.clamp(min=0), x) * (stories >= 0)[..., None]).sum(1)  # (B, D)
        question = (self.question(questions) * (questions > 0)[..., None]).sum(1)  # (B, D)
        return self.head(story + question)  # (B, C)
