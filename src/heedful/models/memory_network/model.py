"""The end-to-end memory network (Sukhbaatar, Szlam, Weston and Fergus, 2015).

Differs: the last matrix W has weights of its own, since an answer may be more than one word; empty memories that are
inserted in training only make the sentences before them older.

B questions, R distinct sentences, S sentences of a story, W words of a sentence, D width, K hops, C answers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.attention import attend
from heedful.blocks.linear import Linear
from heedful.blocks.scores import dot
from heedful.blocks.taps import Tap
from heedful.models.memory_network.config import MemoryNetworkConfig
from heedful.models.memory_network.words import ignore_unknown, initialize


def bag(real: Tensor, width: int) -> Tensor:
    """l = 1 for each word: a sentence is the sum of its words."""
    return real[..., None].expand(*real.shape, width).float()  # (R, W, D)


def position_weights(real: Tensor, width: int) -> Tensor:
    """l_jd = (1 - j / J) - (d / D) (1 - 2 j / J) for word j of J: the order of the words matters."""
    j = real.cumsum(-1) / real.sum(-1, keepdim=True).clamp(min=1)  # (R, W)
    d = torch.arange(1, width + 1, device=real.device) / width  # (D)
    weights = (1 - j)[..., None] - d * (1 - 2 * j)[..., None]  # (R, W, D)
    return weights * real[..., None]  # (R, W, D)


WEIGHTS = {"bag": bag, "positions": position_weights}


class Memory(nn.Module):
    """m_i = sum_j l_j * A x_ij + T(age of i): a vector for each sentence of a story, of its words and of its age."""

    def __init__(self, vocab: int, memory: int, width: int) -> None:
        super().__init__()
        self.tokens, self.times = nn.Embedding(vocab, width), nn.Embedding(memory, width)
        initialize(self.tokens, self.times)
        ignore_unknown(self.tokens)

    def encode(self, tokens: Tensor, weights: Tensor) -> Tensor:
        return (self.tokens(tokens) * weights).sum(-2)  # (R, D)

    def forward(self, sentences: Tensor, weights: Tensor, stories: Tensor, ages: Tensor) -> Tensor:
        x = self.encode(sentences, weights)  # (R, D)
        return F.embedding(stories, x) + self.times(ages)  # (B, S, D)


class Hop(nn.Module):
    """o = sum_i p_i c_i, where p = softmax(u . m_i): one query attends to the sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.weights = Tap(), Tap()

    def forward(self, u: Tensor, m: Tensor, c: Tensor, real: Tensor) -> Tensor:
        o = attend(u[:, None], m, c, real[:, None], score=dot, scores=self.scores, weights=self.weights)  # (B, 1, D)
        return o[:, 0]  # (B, D)


class MemoryNetwork(nn.Module):
    """u = B q, then u <- u + o in each hop, and logits W u.

    Adjacent: the vectors that a hop reads are those that the next one attends to (A_(k+1) = C_k), and B = A_1.
    Layer-wise: A and C are those of every hop, and u <- H u + o.
    """

    hop_weights = "hops.*.weights"

    def __init__(self, config: MemoryNetworkConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None and c.labels is not None, "both come from the training data"
        memories = [Memory(c.vocab, c.memory, c.width) for _ in range(c.tables)]
        self.memories, self.hops = nn.ModuleList(memories), nn.ModuleList(Hop() for _ in range(c.hops))
        self.question = nn.Embedding(c.vocab, c.width) if c.tying == "layer_wise" else memories[0].tokens
        self.step = Linear(c.width, c.width, bias=False) if c.tying == "layer_wise" else nn.Identity()
        self.head = Linear(c.width, len(c.labels), bias=False)
        initialize(self.head)
        if c.tying == "layer_wise":
            initialize(self.question)
            ignore_unknown(self.question)

    def forward(self, sentences: Tensor, stories: Tensor, questions: Tensor) -> Tensor:
        real, encode = stories >= 0, WEIGHTS[self.config.sentences]
        asked = self.question(questions)  # (B, W, D)
        weights = encode(sentences > 0, self.config.width).to(asked.dtype)
        u = (asked * encode(questions > 0, self.config.width).to(asked.dtype)).sum(-2)  # (B, D)
        given = sentences, weights, stories.clamp(min=0), self.ages(real)
        vectors = [memory(*given) for memory in self.memories]
        for k, hop in enumerate(self.hops):
            m, c = vectors[k : k + 2] if self.config.tying == "adjacent" else vectors
            u = self.step(u) + hop(u, m, c, real)  # (B, D)
        return self.head(u)  # (B, C)

    def ages(self, real: Tensor) -> Tensor:
        """The number of memories after each sentence (B, S): in training, empty ones may be among them."""
        steps = real.long()  # (B, S)
        if self.training and self.config.noise:
            steps = steps + (real & (torch.rand_like(real, dtype=torch.float) < self.config.noise))
        after = steps.flip(1).cumsum(1).flip(1) - steps  # (B, S)
        return after.clamp(max=self.config.memory - 1)
