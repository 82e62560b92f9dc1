"""Searches with steps captured as CUDA graphs find the same as plain ones."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import pytest
import torch

from heedful.blocks.layouts import Padded
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.decode.graphs import Graphs
from heedful.decode.rules import NoRepeatNgram, TopK
from heedful.decode.search import Paths, Search, beam, drain, greedy, sample
from heedful.decode.settings import TextSettings
from heedful.models import build
from heedful.models.gpt.config import GptConfig
from heedful.models.transformer.config import TransformerConfig
from heedful.models.transformer.model import Transformer
from heedful.tasks.language_model.predictor import TextGenerator

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")

SEARCHES: dict[str, Callable[..., Search]] = {
    "greedy": greedy,
    "beam": partial(beam, beams=4, top=4, rules=[NoRepeatNgram(3)]),
    "sample": partial(sample, seeds=range(6), rules=[TopK(5)]),
}


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(vocab=29, width=64, heads=4, encoder_layers=2, decoder_layers=2, hidden=64, context=160)
    return Transformer(config).cuda().eval()


def run(model: Transformer, search: Callable[..., Search], limit: int, graphs: Graphs | None, seed: int = 1) -> Paths:
    return drain(search_steps(model, search, limit, graphs, seed))


def search_steps(
    model: Transformer, search: Callable[..., Search], limit: int, graphs: Graphs | None, seed: int
) -> Search:
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(2, 29, (6, 9), generator=generator).cuda()
    real = (torch.arange(9) < torch.randint(1, 10, (6, 1), generator=generator)).cuda()
    start = torch.ones(6, 1, dtype=torch.long, device="cuda"), torch.full((6,), limit), 0
    return search(model, model.start(source, Padded(real)), *start, graphs=graphs)


@pytest.mark.parametrize("limit", [1, 7, 40, 140])
@pytest.mark.parametrize("name", SEARCHES)
def test_captured_searches_find_the_same_tokens(model: Transformer, name: str, limit: int) -> None:
    graphs = Graphs(model)
    for seed in (1, 2):  # the second time, the graphs are there
        plain, captured = (run(model, SEARCHES[name], limit, g, seed) for g in (None, graphs))
        for row in range(6):
            length = int(plain.lengths[row, 0])
            assert captured.tokens[row, 0, :length].tolist() == plain.tokens[row, 0, :length].tolist()
        torch.testing.assert_close(captured.scores[:, 0], plain.scores[:, 0], rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", SEARCHES)
def test_captured_searches_yield_the_same_steps(model: Transformer, name: str) -> None:
    graphs = Graphs(model)
    for seed in (1, 2):
        yielded: list[list[list[object]]] = []
        for each in (None, graphs):
            steps = []
            for step in search_steps(model, SEARCHES[name], 12, each, seed):
                for row in (~step.done).nonzero()[:, 0].tolist():
                    real = step.logs[row] > -torch.inf
                    parts = (step.tokens, step.parents, step.kept, step.ended)
                    steps.append([row, *(part[row][real].tolist() for part in parts)])
            yielded.append(steps)
        assert yielded[0] == yielded[1]


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi", "none"])
def test_batched_generation_equals_single_texts(positions: str) -> None:
    torch.manual_seed(0)
    pairs = Gpt2Tokenizer.train(Gpt2Bpe(vocab=280), ["a rose is a rose"] * 5)
    settings = {"width": 64, "heads": 4, "layers": 2, "context": 90, "positions": positions, "vocab": pairs.vocab}
    model = build(GptConfig.model_validate(settings))
    for weight in model.parameters():
        weight.data += 0.15 * torch.randn_like(weight)
    here, there = (
        TextGenerator(deepcopy(model), pairs, torch.device(name), TextSettings(length=120)) for name in ("cpu", "cuda")
    )
    prompts = ["", "a rose", "a rose is a rose is a rose is a rose is a", "is"]
    for manner in (
        {"temperature": 0},
        {},
        {"no_repeat_ngram": 2, "repetition_penalty": 1.2},
        {"beams": 3, "length": 40},
    ):
        for _ in range(2):  # the second time, the graphs are there
            together = there.generate(prompts, seed=3, **manner)
            alone = [there.generate([p], seed=3, first=n, **manner)[0] for n, p in enumerate(prompts)]
            plain = here.generate(prompts, seed=3, **manner)
            assert [found.ids for found in together] == [found.ids for found in alone]
            assert [found.ids for found in together] == [found.ids for found in plain]
            for one, other in zip(together, plain, strict=True):
                assert one.log_probability == pytest.approx(other.log_probability, abs=1e-2)
    assert "".join(there.stream("a rose", seed=3)) == there.generate(["a rose"], seed=3)[0].completion


def test_graphs_are_reused_and_the_oldest_is_dropped(model: Transformer) -> None:
    graphs = Graphs(model, most=2)
    run(model, greedy, 20, graphs)
    first = list(graphs.kept.values())
    run(model, greedy, 20, graphs, seed=2)
    assert list(graphs.kept.values()) == first
    for limit in (40, 140):
        run(model, greedy, limit, graphs)
    assert len(graphs.kept) == 2


def test_graphs_read_changed_weights(model: Transformer) -> None:
    other = deepcopy(model)
    graphs = Graphs(other)
    run(other, greedy, 20, graphs)
    with torch.no_grad():
        for name, weight in list(other.named_parameters()):
            owner, _, own = name.rpartition(".")
            setattr(other.get_submodule(owner), own, torch.nn.Parameter(weight + torch.randn_like(weight)))
    assert torch.equal(run(other, greedy, 20, graphs).tokens, run(other, greedy, 20, None).tokens)
    other.decoder[0].mlp.up.weight.data = torch.randn_like(other.decoder[0].mlp.up.weight)
    assert torch.equal(run(other, greedy, 20, graphs).tokens, run(other, greedy, 20, None).tokens)


def test_models_with_graphs_can_be_copied(model: Transformer) -> None:
    graphs = Graphs(model)
    run(model, greedy, 20, graphs)
    for copied in (deepcopy(graphs), pickle.loads(pickle.dumps(graphs))):  # noqa: S301
        assert copied.kept == {}
        assert torch.equal(run(copied.model, greedy, 20, copied).tokens, run(model, greedy, 20, None).tokens)
