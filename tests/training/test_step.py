"""A step in parts: gradients of several micro-batches equal those of one large batch, for any number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from heedful.blocks.losses import Loss
from heedful.data.embedded import NumberWords
from heedful.data.pairs.batches import Batch, PairBatches, encode_pairs
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.bert.model import Bert
from heedful.models.seq2seq.config import AttentionConfig, RecurrentEncoder, Seq2SeqConfig
from heedful.models.transformer.config import TransformerConfig
from heedful.tasks.translation.predictor import translation_loss
from heedful.training.carry import stateless
from heedful.training.configs import Budget, TrainConfig
from heedful.training.distributed.team import ParallelLoss
from heedful.training.optim import load_optimizer, make_optimizer, optimizer_tensors
from heedful.training.seeds import reseed
from heedful.training.step import GraphedStep, PlainStep

CPU = torch.device("cpu")
PAIRS = NumberWords(train=64, valid=1, test=1).pairs("train")[:64]
TOKENIZER = TrainedTokenizer.train(WordPiece(vocab=90), [text for pair in PAIRS for text in pair])
ENCODED = encode_pairs(PAIRS, TOKENIZER, longest=60)
ROWS = np.argsort(ENCODED.lengths[:, 1], kind="stable")[:48]  # short targets first, so that parts differ in tokens


def build_model(clip: float | None = None, device: torch.device = CPU, accumulate: int = 1) -> tuple[Any, PlainStep]:
    torch.manual_seed(1)
    model: Any = build(
        TransformerConfig(
            vocab=TOKENIZER.vocab, width=16, heads=2, encoder_layers=2, decoder_layers=2, hidden=32, context=60,
            dropout=0.0,
        )
    )  # fmt: skip
    model.to(device)
    config = TrainConfig(budget=Budget(steps=1), clip=clip, accumulate=accumulate)

    def loss_of(batch: Batch) -> Loss:
        return translation_loss(model, batch, 0.1)

    optimizer = make_optimizer(config.optimizer, model, device)
    return model, PlainStep(model, ParallelLoss(stateless(loss_of)), optimizer, config, device, None)


def gradients(parts: list[Batch], weighted: bool = True) -> torch.Tensor:
    """All gradients of a step over micro-batches, concatenated; or the mean of their means, the usual mistake."""
    model, step = build_model()
    tokens = sum(part.tokens for part in parts)
    for part in parts:
        step.gradients(part, tokens if weighted else part.tokens * len(parts))
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def relative_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("count", [1, 2, 4])
def test_uneven_micro_batches_equal_one_batch(count: int) -> None:
    whole = gradients([ENCODED.batch(ROWS)])
    cuts = [6, 14, 40][: count - 1]
    parts: list[Batch] = [ENCODED.batch(rows) for rows in np.split(ROWS, cuts)]
    assert len(parts) == count
    assert relative_difference(gradients(parts), whole) <= 1e-6
    if count > 1:
        assert relative_difference(gradients(parts, weighted=False), whole) > 1e-2


@pytest.mark.parametrize("count", [1, 3])
def test_packed_micro_batches_equal_one_padded_batch(count: int) -> None:
    parts: list[Batch] = [ENCODED.pack(rows, (1024, 1024)) for rows in np.split(ROWS, [5, 30][: count - 1])]
    assert relative_difference(gradients(parts), gradients([ENCODED.batch(ROWS)])) <= 1e-6


def test_returned_loss_has_no_graph() -> None:
    model, step = build_model()
    loss = step.gradients(ENCODED.batch(ROWS), 10)
    expected = translation_loss(model, ENCODED.batch(ROWS), 0.1)
    assert not loss.total.requires_grad
    assert float(loss.total) == pytest.approx(float(expected.total.detach()))
    assert float(loss.plain) == pytest.approx(float(expected.plain))
    assert int(loss.count) == ENCODED.batch(ROWS).tokens


def test_update_uses_the_given_rate_and_clears_gradients() -> None:
    model, step = build_model(clip=0.5)
    before = [weight.detach().clone() for weight in model.parameters()]
    step.gradients(ENCODED.batch(ROWS), 10)
    norm = float(step.norm())
    assert norm > 0.5
    assert float(torch.cat([weight.grad.flatten() for weight in model.parameters()]).norm()) == pytest.approx(0.5)
    step.update(0.0)
    assert all(torch.equal(weight, old) for weight, old in zip(model.parameters(), before, strict=True))
    assert all(weight.grad is None for weight in model.parameters())
    step.gradients(ENCODED.batch(ROWS), 10)
    step.update(0.125)
    assert {group["lr"] for group in step.optimizer.param_groups} == {0.125}
    assert not any(torch.equal(weight, old) for weight, old in zip(model.parameters(), before, strict=True))


def test_frozen_weights_do_not_change_and_are_not_counted() -> None:
    model, _ = build_model()
    model.tokens.weight.requires_grad_(False)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    config = TrainConfig(budget=Budget(steps=1), clip=None)
    step = PlainStep(
        model, ParallelLoss(stateless(lambda batch: translation_loss(model, batch))), optimizer, config, CPU, None
    )
    before = model.tokens.weight.clone()
    step.gradients(ENCODED.batch(ROWS), 10)
    trained = [weight.grad.flatten() for weight in model.parameters() if weight.requires_grad]
    assert float(step.norm()) == pytest.approx(float(torch.cat(trained).norm()))
    step.update(0.1)
    assert torch.equal(model.tokens.weight, before)


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@gpu
@pytest.mark.parametrize("accumulate", [1, 2])
def test_captured_steps_equal_plain_steps(accumulate: int) -> None:
    device = torch.device("cuda")
    batches = PairBatches(ENCODED, 0, 256, packed=True)
    weights = []
    for captured in (False, True):
        model, plain = build_model(0.5, device, accumulate)
        first: Any = batches.at(0)
        step = GraphedStep(plain, first, same_shape=True) if captured else plain
        logged = []
        for number in range(4):
            micro = [batches.at(number * accumulate + index) for index in range(accumulate)]
            tokens = sum(batch.tokens for batch in micro)
            logged += [float(step.gradients(batch, tokens).plain) for batch in micro]
            logged.append(float(step.norm()))
            step.update(1e-3 * (number + 1))
        weights.append(
            torch.cat([weight.detach().flatten() for weight in model.parameters()] + [torch.tensor(logged).to(device)])
        )
    assert relative_difference(weights[1], weights[0]) < 1e-4


# ------------------------------------------------------------------ batches of several shapes
EVEN = PairBatches(ENCODED, 0, 256, even=True)
GPU = torch.device("cuda")


def recurrent(dropout: float, accumulate: int = 1) -> tuple[Any, PlainStep]:
    """A recurrent model on the GPU, in training."""
    torch.manual_seed(1)
    config = Seq2SeqConfig(
        vocab=TOKENIZER.vocab, width=16, encoder=RecurrentEncoder(hidden=32), hidden=32, context=60, dropout=dropout,
        attention=AttentionConfig(score="additive"),
    )  # fmt: skip
    model: Any = build(config).to(GPU).train()
    trained = TrainConfig(budget=Budget(steps=1), clip=0.5, accumulate=accumulate)
    optimizer = make_optimizer(trained.optimizer, model, GPU)
    return model, PlainStep(
        model, ParallelLoss(stateless(lambda batch: translation_loss(model, batch, 0.1))), optimizer, trained, GPU, None
    )


def run_steps(step: PlainStep | GraphedStep, numbers: range, accumulate: int = 1) -> list[float]:
    """Steps with the random seed of each, and their losses."""
    logged = []
    for number in numbers:
        micro = [EVEN.at(number * accumulate + index) for index in range(accumulate)]
        tokens = sum(batch.tokens for batch in micro)
        for index, batch in enumerate(micro):
            reseed(GPU, 0, number, index)
            logged.append(float(step.gradients(batch, tokens).plain))
        logged.append(float(step.norm()))
        step.update(1e-3 * (number + 1))
    return logged


def gather_weights(model: Any) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def shapes(count: int) -> set[torch.Size]:
    found: list[Any] = [EVEN.at(position) for position in range(count)]
    return {batch.source.shape for batch in found}


@gpu
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("most", [64, 2])
def test_captured_steps_of_several_shapes_equal_plain_steps(
    accumulate: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.training.step.MAX_GRAPHS", most)
    torch.backends.cuda.matmul.allow_tf32 = False
    assert len(shapes(8 * accumulate)) > 2
    found = []
    for captured in (False, True):
        model, plain = recurrent(0.0, accumulate)
        run = GraphedStep(plain, EVEN.at(0), same_shape=False) if captured else plain
        logged = run_steps(run, range(8), accumulate)
        if isinstance(run, GraphedStep):
            assert len(run.graphs) == min(most, len(shapes(8 * accumulate)))
        found.append((gather_weights(model), torch.tensor(logged)))
    (weights, plain_logs), (captured_weights, captured_logs) = found
    assert relative_difference(captured_weights, weights) < 1e-4
    assert relative_difference(captured_logs, plain_logs) < 1e-4


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deterministic algorithms on the GPU."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@gpu
@pytest.mark.usefixtures("deterministic")
def test_shape_captured_late_has_the_same_random_numbers() -> None:
    _, plain = recurrent(0.5)
    first: Any = EVEN.at(0)
    late: Any = next(batch for batch in map(EVEN.at, range(20)) if batch.source.shape != first.source.shape)
    run, found = GraphedStep(plain, first, same_shape=False), []
    for seed in (7, 7, 8):
        reseed(GPU, seed, 0)
        loss = run.gradients(late, late.tokens).total.clone()
        found.append((float(loss), torch.cat([weight.grad.flatten() for weight in plain.weights]).clone()))
        run.skip()
    assert found[0][0] == found[1][0] != found[2][0]
    assert found[0][1].equal(found[1][1])
    assert not found[0][1].equal(found[2][1])


@gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("broken_at", [1, 3, 5])
def test_resumed_run_that_captures_later_is_bit_identical(broken_at: int) -> None:
    whole, plain = recurrent(0.3, accumulate=2)
    logged = run_steps(GraphedStep(plain, EVEN.at(0), same_shape=False), range(8), 2)
    model, plain = recurrent(0.3, accumulate=2)
    run_steps(GraphedStep(plain, EVEN.at(0), same_shape=False), range(broken_at), 2)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    moments = {name: tensor.clone() for name, tensor in optimizer_tensors(plain.optimizer, model).items()}
    again, plain = recurrent(0.3, accumulate=2)
    again.load_state_dict(kept)
    load_optimizer(plain.optimizer, again, moments)
    assert (
        run_steps(GraphedStep(plain, EVEN.at(2 * broken_at), same_shape=False), range(broken_at, 8), 2)
        == logged[3 * broken_at :]
    )
    assert gather_weights(again).equal(gather_weights(whole))


@gpu
def test_captured_encoder_steps_have_new_dropout_each_time() -> None:
    from heedful.data.text.pretraining_batches import PretrainingBatch
    from heedful.tasks.pretraining.loss import pretraining_loss

    rng, rows, length = torch.Generator().manual_seed(0), 6, 24
    ids = torch.randint(5, 40, (1, rows * length), generator=rng)
    places = torch.arange(0, rows * length, 5)
    batch = PretrainingBatch(
        ids, torch.zeros_like(ids), torch.full((rows,), length), places, ids[0, places], torch.arange(rows) % 2,
        torch.tensor([rows * length, len(places), rows]), torch.arange(rows), length,
    )  # fmt: skip
    config, found = TrainConfig(budget=Budget(steps=1)), []
    for captured in (False, True):
        torch.manual_seed(0)
        model = Bert(BertConfig(vocab=40, width=32, heads=2, layers=2, hidden=64, context=32)).to(GPU).train()
        loss_of = partial(pretraining_loss, model)
        optimizer = make_optimizer(config.optimizer, model, GPU)
        plain = PlainStep(model, ParallelLoss(stateless(loss_of)), optimizer, config, GPU, torch.bfloat16)
        run: Any = GraphedStep(plain, batch, same_shape=True) if captured else plain
        logged = []
        for seed in (1, 1, 2):
            reseed(GPU, seed, 0)
            logged.append(float(run.gradients(batch, rows * length).plain))
            run.skip()
        found.append(logged)
    plain_losses, graph_losses = found
    assert plain_losses[0] == plain_losses[1] != plain_losses[2]
    assert graph_losses == pytest.approx(plain_losses, rel=1e-3)
    assert graph_losses[0] == graph_losses[1] != graph_losses[2]
