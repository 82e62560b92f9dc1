"""Rows A13, B2, B3, B4, B6, E8 and M22 of the claim sheet: a recurrent decoder that attends to the source."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import heedful
from heedful.blocks.layouts import Padded
from heedful.blocks.memory import one_hot_sample
from heedful.blocks.taps import watch
from heedful.data.embedded import NumberWords
from heedful.data.pairs.batches import PairBatch, PairBatches, encode_pairs
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.models import build
from heedful.models.seq2seq.config import Seq2SeqConfig
from heedful.models.sizes import Score
from heedful.runs.recipe import load_recipe
from heedful.tasks.base import Evaluated
from heedful.tasks.translation import predictor as translation
from heedful.tasks.translation.predictor import reinforce_loss, translation_loss
from heedful.training.loop import Step
from tolerance import close, near

B, S, T, E, H, M, V = 2, 5, 4, 6, 10, 8, 13
feeds = pytest.mark.parametrize("feed", ["input", "output"])


def model(attention: dict[str, Any], **more: Any) -> Any:
    """A model in float64 with nonzero biases."""
    encoder = {"kind": "recurrent", "layers": 2, "hidden": M}
    settings = {"vocab": V, "width": E, "encoder": encoder, "hidden": H, "layers": 2, "context": 20, "dropout": 0.0}
    built: Any = build(Seq2SeqConfig.model_validate(settings | {"attention": attention} | more)).double()
    with torch.no_grad():
        for weight in built.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return built


def sentences() -> tuple[Tensor, Tensor]:
    return torch.randint(1, V, (B, S)), torch.randint(1, V, (B, T))


# ------------------------------------------------------------------ hard and soft attention
TWO = PairBatch(
    source=torch.tensor([[5, 7, 3], [9, 3, 0]]),
    source_lengths=torch.tensor([3, 2]),
    target=torch.tensor([[2, 6, 3], [2, 3, 0]]),  # two tokens to predict, and one
    target_lengths=torch.tensor([3, 2]),
    indices=torch.arange(2),
)
ALONE = PairBatch(*(getattr(TWO, name)[:1] for name in PairBatch.__slots__))
batches = pytest.mark.parametrize("batch", [TWO, ALONE], ids=["two", "alone"])
Choices = tuple[Tensor, ...]


def hard_attention_model(feed: str) -> Any:
    """A model whose output depends strongly on the attended position."""
    m = model({"score": "additive", "feed": feed, "choice": "hard"}, layers=1).train()
    with torch.no_grad():
        for weight in m.parameters():
            weight.mul_(2.5)
    return m


def score_weights(m: Any) -> Tensor:
    """A mask of the score's parameters, which get gradients only through the choices."""
    return torch.cat([torch.full((p.numel(),), ".score." in name) for name, p in m.named_parameters()])


def all_choices(feed: str, batch: PairBatch) -> Iterator[Choices]:
    """All choices of positions at both steps, as one-hot weights in the order of sampling."""
    per_sentence = [product(range(length), repeat=2) for length in batch.source_lengths.tolist()]
    for positions in product(*per_sentence):
        one = F.one_hot(torch.tensor(positions), batch.source.shape[1]).double()[:, None]  # (B, 1, T, S)
        yield tuple(one.split(1, 2)) if feed == "input" else (one,)


def force_choices(m: Any, choices: Choices) -> Any:
    """A context in which the model makes these choices."""
    left = list(choices)
    return watch(m, "decoder.attention.choice", lambda name, one: left.pop(0))


def log_probabilities(m: Any, batch: PairBatch, choices: Choices) -> tuple[Tensor, Tensor]:
    """log p(choices) and log p(target | choices) of each sentence."""
    given, targets = batch.target[:, :-1], batch.target[:, 1:]
    with force_choices(m, choices):
        x, chosen = m.read_sampled(batch.source, given, Padded(batch.source_real))
    words = m.tokens.logits(x).log_softmax(-1).gather(-1, targets[:, :, None]).squeeze(-1)
    return chosen.sum(1), (words * (targets != TrainedTokenizer.pad)).sum(1)


def gradient(m: Any, total: Tensor) -> Tensor:
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(total, list(m.parameters()))])


def exact_gradient(m: Any, feed: str, batch: PairBatch) -> Tensor:
    """The gradient of L = sum_s p(s) log p(target | s), by enumeration of all choices."""
    found = [log_probabilities(m, batch, choices) for choices in all_choices(feed, batch)]
    return gradient(m, torch.stack([p.sum().exp() * words.sum() for p, words in found]).sum())


def reinforce_gradients(m: Any, feed: str, batch: PairBatch) -> tuple[Tensor, Tensor]:
    """REINFORCE's estimate of that gradient for each choice (N, P), and the probabilities of the choices (N,)."""
    found, probabilities = [], []
    for choices in all_choices(feed, batch):
        probabilities.append(log_probabilities(m, batch, choices)[0].sum().exp().detach())
        with force_choices(m, choices):
            found.append(-gradient(m, reinforce_loss(m, batch).total))
    return torch.stack(found), torch.stack(probabilities)


@pytest.mark.claim("A13")
@feeds
def test_hard_attention_objective_is_a_lower_bound(feed: str) -> None:
    m = hard_attention_model(feed)
    found = [log_probabilities(m, TWO, choices) for choices in all_choices(feed, TWO)]
    p, words = (torch.stack(part).detach() for part in zip(*found, strict=True))  # (N, B)
    probabilities = p.sum(1).exp()  # joint over both sentences; the sum marginalizes the other one
    assert float(probabilities.sum()) == near(1, 8192, dtype=torch.float64)
    assert bool((probabilities @ words < torch.log(probabilities @ words.exp())).all())


@pytest.mark.claim("A13")
@batches
@feeds
def test_reinforce_is_unbiased(feed: str, batch: PairBatch) -> None:
    m = hard_attention_model(feed)
    estimates, probabilities = reinforce_gradients(m, feed, batch)
    truth = exact_gradient(m, feed, batch)
    close(probabilities @ estimates, truth, slack=8388608)
    assert float(truth[score_weights(m)].abs().max()) > 0.1


@pytest.mark.claim("A13")
@feeds
def test_baseline_lowers_the_variance_and_keeps_the_mean(feed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    m = hard_attention_model(feed)

    def moments() -> tuple[Tensor, float]:
        estimates, probabilities = reinforce_gradients(m, feed, TWO)
        mean = probabilities @ estimates
        return mean, float(probabilities @ (estimates - mean).square().sum(1))

    mean, variance = moments()
    monkeypatch.setattr(translation, "advantage", lambda rewards, real: rewards)
    same, without = moments()
    close(mean, same, slack=8388608)
    assert variance < without


@pytest.mark.claim("A13")
@feeds
def test_mean_of_sampled_gradients_approaches_the_exact_gradient(feed: str) -> None:
    m, samples = hard_attention_model(feed), 300
    some = score_weights(m)
    truth = exact_gradient(m, feed, TWO)[some]
    estimates = torch.stack([-gradient(m, reinforce_loss(m, TWO).total)[some] for _ in range(samples)])
    error = float((estimates.mean(0) - truth).square().sum())
    assert error < 2 * float(estimates.var(0).sum()) / samples  # within sampling error
    assert error < 0.1 * float(truth.square().sum())  # and small


@pytest.mark.claim("A13")
def test_positions_are_sampled_by_attention_weight() -> None:
    weights = torch.tensor([0.5, 0.0, 0.3, 0.2]).expand(40_000, 4)
    frequencies = one_hot_sample(weights).mean(0)
    assert frequencies[1] == 0
    torch.testing.assert_close(frequencies, weights[0], rtol=0, atol=0.01)


class ReadModule(nn.Module):
    """A module whose forward is the model's `read`."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, source: Tensor, target: Tensor, layout: Padded) -> Tensor:
        x: Tensor = self.inner.read(source, target, layout)
        return x


@pytest.mark.claim("A13")
@feeds
def test_soft_attention_has_exact_gradients_end_to_end(feed: str) -> None:
    m = ReadModule(model({"feed": feed}, width=3, layers=1, hidden=4, encoder={"kind": "recurrent", "hidden": 2}))
    names = [name for name, _ in m.named_parameters()]
    given = (TWO.source, TWO.target[:, :-1], Padded(TWO.source_real))

    def run(*weights: Tensor) -> Tensor:
        x: Tensor = functional_call(m, dict(zip(names, weights, strict=True)), given)
        return x

    assert torch.autograd.gradcheck(run, [p.detach().requires_grad_() for p in m.parameters()])


# ------------------------------------------------------------------ inputs of the decoder
@pytest.mark.claim("B2")
@feeds
@pytest.mark.parametrize("layers", [1, 3])
def test_memory_is_the_last_recurrent_layer(feed: str, layers: int) -> None:
    m = model({"feed": feed}, encoder={"kind": "recurrent", "layers": layers, "hidden": M})
    source, target = sentences()
    with watch(m) as seen:
        state = m.start(source)
        plain, _ = m(target, state)
    top = seen[f"encoder.stack.outputs.{layers - 1}"]
    assert top.shape == (B, S, M)
    assert seen["encoder.output"].equal(top)
    assert state.source.value.kv.v[:, 0].equal(top)
    for step in range(T if feed == "input" else 1):
        steps = seen.all["decoder.attention.weights"][step][:, 0]
        close(seen.all["decoder.attention.context"][step], steps @ top)
    with watch(m, "encoder.output", lambda name, x: x.flip(0)):  # the memory of another sentence
        assert not m(target, m.start(source))[0].equal(plain)


@pytest.mark.claim("B3")
def test_context_and_embedding_are_concatenated_into_the_first_layer() -> None:
    m, (source, target) = model({"feed": "input"}), sentences()
    first, second = (layer.cell for layer in m.decoder.stack.layers)
    assert first.x.weight.shape[1] == M + E
    assert second.x.weight.shape[1] == H
    layer_inputs: list[Tensor] = []
    first.register_forward_pre_hook(lambda module, inputs: layer_inputs.append(inputs[0]))

    def run(edit: Any = None) -> list[Tensor]:
        layer_inputs.clear()
        with watch(m.decoder, edit=edit) as seen:
            m(target, m.start(source))
        embedded = m.tokens(target)
        for step, (x, context) in enumerate(zip(layer_inputs, seen.all["attention.context"], strict=True)):
            close(x, torch.cat([context[:, 0], embedded[:, step]], -1))
        return list(layer_inputs)

    plain = run()
    assert len(plain) == T
    changed = run(lambda name, x: x + 1 if name == "attention.context" else None)
    close(changed[0][:, :M], plain[0][:, :M] + 1)
    close(changed[0][:, M:], plain[0][:, M:])


@pytest.mark.claim("B4")
def test_output_layer_reads_state_and_context() -> None:
    m = model({"feed": "output"}, encoder={"kind": "recurrent", "layers": 2, "hidden": H})
    assert m.decoder.out.weight.shape == (E, 2 * H)
    assert m.decoder.stack.layers[0].cell.x.weight.shape[1] == E


@pytest.mark.claim("B4")
def test_decoder_step_order_matches_the_lecture() -> None:
    m = model({"feed": "output"}, encoder={"kind": "recurrent", "layers": 2, "hidden": H})
    source, _ = sentences()
    state, word = m.start(source), torch.full((B, 1), TrainedTokenizer.eos)
    memory = state.source.value.kv.v[:, 0]
    order: list[str] = []
    joined: list[Tensor] = []
    m.tokens.register_forward_hook(lambda *_: order.append("embedding"))
    m.decoder.out.register_forward_pre_hook(
        lambda module, inputs: (order.append("joined"), joined.append(inputs[0]))[0]
    )
    for _ in range(3):
        order.clear()
        with watch(m.decoder, edit=lambda name, x: order.append(name)) as seen:
            logits, after = m(word, state)
        stages = ["embedding", "stack.outputs.0", "stack.outputs.1", "attention.scores", "attention.context", "joined"]
        assert [name for name in order if name in stages] == stages
        # 1, 2: the embedding and the previous state give the new state.
        h = m.tokens(word)[:, 0]
        for layer, before, new in zip(m.decoder.stack.layers, state.layers, after.layers, strict=True):
            h, c = layer.cell(h, before)
            close(h, new[0])
            close(c, new[1])
        # 3: the new state and the encoder's states give the context.
        context = m.decoder.attention(h[:, None], state.source.value, state.step[None])[0][:, 0]
        close(seen["attention.context"][:, 0], context)
        close(context, (seen["attention.weights"][:, 0] @ memory)[:, 0])
        # 4, 5, 6: both are concatenated, pass a feed-forward layer, and give the word.
        close(joined[-1][:, 0], torch.cat([h, context], -1))
        y = torch.tanh(F.linear(torch.cat([h, context], -1), m.decoder.out.weight, m.decoder.out.bias))
        close(logits[:, 0], y @ m.tokens.weight.T)
        word, state = logits.argmax(-1), after


@pytest.mark.claim("B6")
@feeds
def test_five_attention_stages_are_tapped_in_order(feed: str) -> None:
    m, (source, target) = model({"feed": feed, "score": "additive"}), sentences()
    state = m.start(source)
    with watch(m) as seen:
        m(target, m.start(source))
    # 1: inputs, the decoder's state and one vector for each source token.
    memory = seen["encoder.output"]
    states = torch.cat([h.view(B, -1, H) for h in seen.all["decoder.stack.outputs.1"]], 1)  # (B, T, H)
    query = torch.cat([state.layers[-1][0][:, None], states], 1)[:, :T] if feed == "input" else states
    scores, weights, products, context = (
        torch.cat(seen.all[f"decoder.attention.{stage}"], axis)
        for stage, axis in (("scores", 2), ("weights", 2), ("products", 2), ("context", 1))
    )
    score = m.decoder.attention.score
    hidden = torch.tanh((query @ score.q.weight.T)[:, :, None] + (memory @ score.k.weight.T)[:, None])
    close(scores[:, 0], hidden @ score.v.weight[0])  # 2: a score for each of them
    close(weights, scores.exp() / scores.exp().sum(-1, keepdim=True))  # 3: softmax
    close(products, weights[..., None] * memory[:, None, None])  # 4: each vector times its weight
    close(context, products.sum(-2)[:, 0])  # 5: their sum
    assert products.shape == (B, 1, T, S, M)


@pytest.mark.claim("B6")
@feeds
def test_edited_stage_changes_the_next(feed: str) -> None:
    m, (source, target) = model({"feed": feed}), sentences()

    def third(name: str, x: Tensor) -> Tensor | None:
        return F.one_hot(torch.full(x.shape[:-1], 3), S).double() if name.endswith("weights") else None

    with watch(m, edit=third) as seen:
        m(target, m.start(source))
    close(
        seen["decoder.attention.context"], seen["encoder.output"][:, 3:4].expand_as(seen["decoder.attention.context"])
    )


# ------------------------------------------------------------------ Transformer encoder, recurrent decoder
@pytest.mark.claim("M22")
def test_transformer_encoder_with_recurrent_decoder_learns() -> None:
    pairs = NumberWords(train=300, valid=1, test=1).pairs("train")
    tokenizer = TrainedTokenizer.train(WordPiece(vocab=90), [text for pair in pairs for text in pair])
    data = PairBatches(encode_pairs(pairs, tokenizer, 60), 0, 512)
    encoder = {"kind": "transformer", "heads": 2, "layers": 1, "hidden": 48}
    config = {"vocab": tokenizer.vocab, "width": 24, "encoder": encoder, "hidden": 32, "layers": 1, "context": 60}
    m: Any = build(Seq2SeqConfig.model_validate(config | {"dropout": 0.0}))
    optimizer = torch.optim.Adam(m.parameters(), lr=1e-2)

    def snippet(batch: PairBatch) -> Tensor:
        """The lecture's lines: the decoder reads length - 1 tokens, and labels are the targets from the second on."""
        enc_outputs = m.start(batch.source, Padded(batch.source_real))
        logits, _ = m(batch.target[:, :-1], enc_outputs)
        length, labels = batch.target_lengths - 1, batch.target[:, 1:]
        real = torch.arange(labels.shape[1]) < length[:, None]
        return F.cross_entropy(logits[real], labels[real])

    losses = []
    for position in range(40):
        batch: Any = data.at(position)
        loss = snippet(batch)
        task = translation_loss(m, batch)
        torch.testing.assert_close(task.total / task.count, loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


# ------------------------------------------------------------------ recurrent model and Transformer with equal budgets
ROOT = Path(__file__).parents[2]
MULTI30K = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "multi30k")
COMPARED = ["train.budget.steps=4000", "train.keep=8", "train.average=8"]  # the budget of the recurrent model


@pytest.mark.claim("E8")
def test_transformer_beats_recurrent_model_with_equal_budget() -> None:
    """The runs take minutes on a GPU (`make comparison`); their results are recorded."""
    one, other = load_recipe("multi30k", COMPARED).model_dump(), load_recipe("multi30k-rnn").model_dump()
    for recipe in (one, other):
        del recipe["model"], recipe["train"]["optimizer"], recipe["train"]["schedule"]  # each has its own optimizer
    assert one == other
    recorded = json.loads((ROOT / "benchmarks/results/multi30k-h200.json").read_text(encoding="utf-8"))["runs"]
    scores = {
        recipe: [run["bleu"] for run in recorded if run["recipe"] == recipe and run["steps"] == 4000]
        for recipe in ("multi30k", "multi30k-rnn")
    }
    assert all(len(some) == 3 for some in scores.values())
    assert min(scores["multi30k"]) > max(scores["multi30k-rnn"])


@pytest.mark.claim("E8")
@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"no Multi30k in {MULTI30K}; set HEEDFUL_DATA")
def test_comparison_uses_the_same_tokenizer_batches_and_steps(tmp_path: Path) -> None:
    """Both recipes with small models and few sentences: only model and optimizer differ."""
    for name, count in (("train", 300), ("val", 8), ("test_2016_flickr", 8)):
        for language in ("en", "de"):
            with gzip.open(MULTI30K / f"{name}.{language}.gz", "rt", encoding="utf-8") as file:
                lines = list(islice(file, count))
            (tmp_path / f"{name}.{language}").write_text("".join(lines), encoding="utf-8")
    files = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    changes = [
        f"data.root={tmp_path}",
        *(f"data.{split}={{source: {name}.en, target: {name}.de}}" for split, name in files.items()),
        "tokenizer.vocab=300", "train.budget={steps: 4}", "train.batch_tokens=600", "train.evaluate_every=4",
        "train.save_every=2", "train.keep=2", "train.average=2", "train.device=cpu", "train.log_every=1",
    ]  # fmt: skip
    small = {
        "multi30k": ["model.width=16", "model.heads=2", "model.encoder_layers=1", "model.decoder_layers=1"],
        "multi30k-rnn": ["model.width=16", "model.hidden=16", "model.encoder.hidden=16"],
    }  # fmt: skip
    seen = {}
    for name, sizes in small.items():
        events = list(heedful.train(load_recipe(name, [*changes, *sizes]), tmp_path / name))
        read = [(event.step, event.epoch, event.tokens) for event in events if isinstance(event, Step)]
        last = [event for event in events if isinstance(event, Evaluated)][-1]
        tokenizer = (tmp_path / name / "tokenizer.json").read_bytes()
        seen[name] = read, tokenizer, last.split, [(score.name, score.signature) for score in last.scores]
    one, other = seen.values()
    assert one == other
    assert len(one[0]) == 4 and one[2] == "test"


@pytest.mark.parametrize("attention", ["null", *(f"{{score: {score}}}" for score in get_args(Score))])
def test_comparison_recipes_share_data_and_budget(attention: str) -> None:
    one, other = load_recipe("numbers"), load_recipe("numbers-rnn", [f"model.attention={attention}"])
    assert (one.model.kind, other.model.kind) == ("transformer", "seq2seq")
    dumped, compared = one.model_dump(), other.model_dump()
    for recipe in (dumped, compared):
        del recipe["model"], recipe["train"]["optimizer"]["lr"]  # the learning rates may differ
    assert dumped == compared


def test_both_models_get_the_same_batches_in_order(tmp_path: Path) -> None:
    small = ["data.train=300", "data.valid=5", "data.test=5", "train.budget.steps=4", "model.context=60"]
    read = []
    for name in ("numbers", "numbers-rnn"):
        events = list(heedful.train(load_recipe(name, [*small, "train.device=cpu"]), tmp_path / name))
        read.append([(event.step, event.epoch, event.tokens) for event in events if isinstance(event, Step)])
    assert read[0] == read[1]
    assert len(read[0]) == 4
