"""A paragraph about an image: regions, their phrases, then sentences (Krause et al., 2017, with attention).

Each region, a box of the feature map, has a local phrase. One recurrent network goes from sentence to sentence: it
attends to the memory of regions and phrases, makes the topic of the sentence, and says whether it is the last. A
second one writes a phrase or a sentence word by word from its topic.

B images, R regions (the first is the whole image), S sentences, K regions of a sentence, T words, M width of the
memory, H of a topic, E of an embedding, V vocabulary, N texts.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.embedding import TiedEmbedding
from heedful.blocks.linear import Linear
from heedful.blocks.recurrent import CELLS, Layer, Stack, State
from heedful.blocks.regions import geometry, roi_pool
from heedful.blocks.scores import Additive
from heedful.blocks.taps import Tap
from heedful.models import build
from heedful.models.captioner.model import initial_states
from heedful.models.paragraph_captioner.config import GEOMETRY, SAID, ParagraphCaptionerConfig
from heedful.models.roles import ImageEncoder


@dataclass(frozen=True)
class WordState:
    """The state of the word decoder: that of its layers, and the topic."""

    layers: tuple[State, ...]
    topic: Tensor  # (N, H)


@dataclass(frozen=True)
class PlanState:
    """The state between two sentences, and what the memory's regions were already used for."""

    hidden: State  # (B, H) each
    context: Tensor  # (B, K * M) of the last sentence
    said: Tensor  # (B, R, 2) how often a sentence was about each region first; and the same, older ones counting less


@dataclass(frozen=True)
class Plan:
    """The plan of a sentence: its topic, the weights of its regions, and the logit of its being the last one."""

    topic: Tensor  # (B, H)
    weights: Tensor  # (B, K, R)
    last: Tensor  # (B,)


class RegionReader(nn.Module):
    """v_r = relu(W pooled_r + U geometry_r), and the region's vector relu(A v_r + C sum_j v_j), which knows the others.

    A sum also counts them, which a mean does not.
    """

    def __init__(self, channels: int, grid: int, width: int) -> None:
        super().__init__()
        self.grid = grid
        self.pooled, self.place = Linear(channels * grid * grid, width), Linear(GEOMETRY, width)
        self.own, self.others = Linear(width, width), Linear(width, width, bias=False)
        self.output = Tap()

    def forward(self, x: Tensor, boxes: Tensor, real: Tensor) -> Tensor:
        pooled = roi_pool(x, boxes, self.grid).flatten(2)  # (B, R, D * P * P)
        v = torch.relu(self.pooled(pooled) + self.place(geometry(boxes).to(x.dtype)))  # (B, R, M)
        total = v.masked_fill(~real[..., None], 0.0).sum(1, keepdim=True)  # (B, 1, M)
        return self.output(torch.relu(self.own(v) + self.others(total)))  # (B, R, M)


class Planner(nn.Module):
    """h_s = RNN(context_{s-1}, h_{s-1}), context_s from the memory by attention, topic_s = tanh(W [h_s; context_s]).

    A sentence speaks of K regions. The k-th query knows the ones before it, and a key knows what was said of its region
    (coverage, See et al., 2017), so that a region is not forgotten, nor described twice.
    """

    fading = 0.5  # of what was said, with each sentence

    def __init__(self, c: ParagraphCaptionerConfig) -> None:
        super().__init__()
        self.regions, self.parts = c.regions, CELLS[c.cell].parts
        self.begin = Linear(c.memory, self.parts * c.hidden)
        self.layer = Layer(c.cell, c.regions * c.memory, c.hidden)
        self.scores = nn.ModuleList(
            Additive(c.hidden + k * c.memory, c.memory + SAID, c.hidden) for k in range(c.regions)
        )
        self.topic, self.last = Linear(c.hidden + c.regions * c.memory, c.hidden), Linear(c.hidden, 1)
        self.weights, self.topics = Tap(), Tap()

    def start(self, memory: Tensor, real: Tensor) -> PlanState:
        """The state before the first sentence."""
        total = memory.masked_fill(~real[..., None], 0.0).sum(1)  # (B, M)
        (hidden,) = initial_states(self.begin(total), 1, self.parts)
        context = total.new_zeros(len(total), self.regions * total.shape[-1])  # (B, K * M)
        return PlanState(hidden, context, total.new_zeros(*real.shape, SAID))

    def forward(self, memory: Tensor, real: Tensor, state: PlanState, chosen: Tensor | None) -> tuple[Plan, PlanState]:
        hidden = self.layer.step(state.context, state.hidden)
        keys = torch.cat([memory, state.said], -1)[:, None]  # (B, 1, R, M + 2)
        found, weights, shares = [hidden[0]], list[Tensor](), list[Tensor]()
        for k, score in enumerate(self.scores):
            query = torch.cat(found, -1)[:, None, None]  # (B, 1, 1, H + k * M)
            scores = score(query, keys)[:, 0, 0].masked_fill(~real, -torch.inf)  # (B, R)
            weights.append(scores.softmax(-1))
            shares.append(one_region(weights[k], None if chosen is None else chosen[:, k]))
            found.append((shares[k][:, None] @ memory)[:, 0])
        topic = self.topics(torch.tanh(self.topic(torch.cat(found, -1))))  # (B, H)
        said = state.said * state.said.new_tensor([1.0, self.fading]) + shares[0][..., None]  # (B, R, 2)
        plan = Plan(topic, self.weights(torch.stack(weights, 1)), self.last(topic)[:, 0])
        return plan, PlanState(hidden, torch.cat(found[1:], -1), said)


def one_region(weights: Tensor, chosen: Tensor | None) -> Tensor:
    """One-hot: the region of the largest weight (B, R), or the chosen one (B,); where that is -1, the weights."""
    place = weights.argmax(-1) if chosen is None else chosen  # (B,)
    one = F.one_hot(place.clamp(min=0), weights.shape[-1]).to(weights.dtype)  # (B, R)
    return torch.where(place[:, None] >= 0, one, weights)  # (B, R)


class ParagraphCaptioner(nn.Module):
    """images (B, C, Y, X), boxes (B, R, 4) -> regions -> phrases -> memory -> topics of sentences -> words."""

    grounding = "planner.weights"  # the tap of the weights of the regions, a value for each sentence

    def __init__(self, config: ParagraphCaptionerConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        encoder: Any = build(c.encoder)
        encoder.keep_map()
        self.encoder: ImageEncoder = encoder
        self.regions = RegionReader(c.encoder.map_shape[0], c.grid, c.memory)
        self.phrase_topic = Linear(c.memory, c.hidden)
        self.phrase = Layer(c.cell, c.width, c.hidden)
        self.join = Linear(c.memory + c.hidden, c.memory)
        self.planner = Planner(c)
        self.tokens = TiedEmbedding(c.vocab, c.width)
        self.parts = CELLS[c.cell].parts
        self.begin = Linear(c.hidden, c.layers * self.parts * c.hidden)
        widths = [c.width + c.hidden] + [c.hidden] * (c.layers - 1)
        layers: list[nn.Module] = [Layer(c.cell, width, c.hidden) for width in widths]
        self.stack, self.out = Stack(layers, c.dropout), Linear(c.hidden, c.width)
        self.dropout = nn.Dropout(c.dropout)
        self.encoder.requires_grad_(c.freeze == "none")

    def train(self, mode: bool = True) -> Self:
        """Training mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        self.get_submodule("encoder").train(mode and self.config.freeze == "none")
        return self

    # ------------------------------------------------------------------ regions and their phrases
    def look(self, images: Tensor, boxes: Tensor, real: Tensor) -> Tensor:
        """A vector for each region that is real (B, R), the first of which is the whole image."""
        return self.regions(self.encoder.map(images), boxes, real)  # (B, R, M)

    def phrase_topics(self, regions: Tensor) -> Tensor:
        """The topic of the phrase of each region."""
        return torch.tanh(self.phrase_topic(regions))  # (B, R, H)

    def remember(self, regions: Tensor, phrases: Tensor, words: Tensor) -> Tensor:
        """The memory of regions and their phrases (B, R, T), of whose tokens the words (B, R, T) are real."""
        x = self.tokens(phrases.flatten(0, 1))  # (N, T, E)
        _, state = self.phrase(x, None, words.flatten(0, 1), False)
        h = state[0].unflatten(0, regions.shape[:2])  # (B, R, H)
        return torch.tanh(self.join(torch.cat([regions, h], -1)))  # (B, R, M)

    # ------------------------------------------------------------------ sentences
    def begin_paragraph(self, memory: Tensor, real: Tensor) -> PlanState:
        """The state before the first sentence."""
        return self.planner.start(memory, real)

    def plan(
        self, memory: Tensor, real: Tensor, state: PlanState, chosen: Tensor | None = None
    ) -> tuple[Plan, PlanState]:
        """The next sentence, about the regions with the largest weights, or about the chosen ones (B, K).

        Where the chosen region is -1, it is not known, and the sentence is about all regions by their weights.
        """
        found: tuple[Plan, PlanState] = self.planner(memory, real, state, chosen)
        return found

    # ------------------------------------------------------------------ words
    def start(self, topics: Tensor) -> WordState:
        """The word decoder's state before its first token."""
        return WordState(initial_states(self.begin(topics), self.config.layers, self.parts), topics)

    def features(self, tokens: Tensor, state: WordState) -> tuple[Tensor, WordState]:
        """The last layer (N, T, E) for the next T tokens, and the state after them."""
        if tokens.shape[1] == 0:
            raise ValueError("the sentence is empty: it has no tokens")
        x = self.dropout(self.tokens(tokens))  # (N, T, E)
        topic = state.topic[:, None].expand(-1, tokens.shape[1], -1)  # (N, T, H)
        h, layers = self.stack(torch.cat([x, topic], -1), state.layers)  # (N, T, H)
        return self.dropout(self.out(h)), WordState(layers, state.topic)

    def forward(self, tokens: Tensor, state: WordState) -> tuple[Tensor, WordState]:
        x, state = self.features(tokens, state)  # (N, T, E)
        return self.tokens.logits(x), state  # (N, T, V)
