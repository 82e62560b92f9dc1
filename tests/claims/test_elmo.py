"""Claim F26: ELMo's embeddings depend on the sentence, and a task learns which layers it needs."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.losses import cross_entropy
from heedful.models.elmo.config import ElmoConfig
from heedful.models.elmo.model import Elmo, Embedder

WORD, POSITION = 3, 3  # an ambiguous word, and its position in a sentence


def sentences(count: int) -> tuple[Tensor, Tensor]:
    """A topic (one of two), two fillers, the word, two fillers, and an ending determined by the topic."""
    topic, fillers = torch.randint(0, 2, (count,)), torch.randint(6, 12, (count, 4))
    word = torch.full((count, 1), WORD)
    return torch.cat([4 + topic[:, None], fillers[:, :2], word, fillers[:, 2:], 12 + topic[:, None]], 1), topic


def both_losses(model: Elmo, tokens: Tensor) -> Tensor:
    ahead, back = model(tokens)
    after = cross_entropy(ahead[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    before = cross_entropy(back[:, 1:].flatten(0, 1), tokens[:, :-1].flatten())
    return (after.total + before.total) / (after.count + before.count)


@pytest.fixture(scope="module")
def model() -> Elmo:
    """A language model in both directions, trained on such sentences."""
    torch.manual_seed(0)
    elmo = Elmo(ElmoConfig(vocab=14, width=16, hidden=24, layers=2, dropout=0.0))
    optimizer = torch.optim.Adam(elmo.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss = both_losses(elmo, sentences(64)[0])
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.25  # the entropy of the random fillers is 1.2
    return elmo.eval()


@pytest.mark.claim("F26")
def test_word_vectors_are_static_in_the_table_and_contextual_above(model: Elmo) -> None:
    tokens, _ = sentences(50)
    tokens = tokens.unique(dim=0)
    vectors = model.layers(tokens)[:, :, POSITION]
    assert bool((vectors[:, 0] == vectors[0, 0]).all())
    for layer in (1, 2):
        assert len(vectors[:, layer].unique(dim=0)) == len(tokens)


@pytest.mark.claim("F26")
def test_nearest_occurrence_has_the_same_meaning(model: Elmo) -> None:
    tokens, topic = sentences(200)
    for layer, least, most in ((0, 0.3, 0.7), (1, 0.98, 1.0), (2, 0.98, 1.0)):
        x = F.normalize(model.layers(tokens)[:, layer, POSITION], dim=-1)
        near = (x @ x.T).fill_diagonal_(-1).argmax(1)
        assert least <= (topic[near] == topic).float().mean().item() <= most


def train_mix(model: Elmo, contextual: bool) -> list[float]:
    """Layer weights after training on a task: the sentence's topic at the word, or a property of a token itself."""
    embedder, head = Embedder(model), nn.Linear(32, 2)
    optimizer = torch.optim.Adam([*embedder.mix.parameters(), *head.parameters()], lr=2e-2)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    for _ in range(150):
        tokens, topic = sentences(64)
        at, labels = (POSITION, topic) if contextual else (1, tokens[:, 1] % 2)
        optimizer.zero_grad()
        logits = head(embedder(tokens)[:, at])
        F.cross_entropy(logits, labels).backward()
        optimizer.step()
    assert bool((logits.argmax(-1) == labels).all())
    assert all(weight.equal(before[name]) for name, weight in model.named_parameters())
    shares: list[float] = embedder.mix.share.softmax(0).tolist()
    return shares


@pytest.mark.claim("F26")
def test_scalar_mix_learns_which_layers_a_task_needs(model: Elmo) -> None:
    assert train_mix(model, contextual=True)[0] < 0.2  # the table's vector does not depend on the sentence
    assert train_mix(model, contextual=False)[0] > 0.6  # the token alone is enough
