"""Sentence autoencoders: the bound, exact resume, codes and their sentences, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import heedful
from heedful.blocks.connectors import Posterior
from heedful.blocks.noise import gaussian
from heedful.blocks.regularizers import normal_kl
from heedful.cli.sentences import interpolate_command, sample_command
from heedful.data.formats.sources import Pair
from heedful.data.pairs.batches import EncodedPairs, PairBatch, encode_pairs
from heedful.data.text.sentences import FORMS, GrammarSentences, SentenceText
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WholeWords
from heedful.errors import UserError
from heedful.models import build
from heedful.models.text_vae.config import (
    ConstantConnector,
    ForwardConnector,
    MlpConnector,
    StochasticConnector,
    TextVaeConfig,
)
from heedful.runs.events import read_events
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.tasks.base import Evaluated
from heedful.tasks.text_autoencoding.losses import estimate, log_likelihood, log_probability, sentence_loss
from heedful.tasks.text_autoencoding.predictor import SentenceAutoencoder
from heedful.tasks.text_autoencoding.recipe import (
    CyclicalAnnealing,
    FullWeight,
    LinearAnnealing,
    LogisticAnnealing,
    TextAutoencodingTaskConfig,
)
from heedful.tasks.text_autoencoding.task import TextAutoencodingTask
from heedful.training.loop import Step
from tolerance import close, near

CPU = torch.device("cpu")
TEXTS = GrammarSentences(train=60, valid=5, test=5).read("train").sentences
WORDS = TrainedTokenizer.train(WholeWords(vocab=200), TEXTS)
CONNECTORS = (ConstantConnector(), ForwardConnector(), MlpConnector(units=5), StochasticConnector(units=5))
SMALL = [
    "data={kind: grammar, train: 60, valid: 8, test: 8}",
    "model={width: 12, hidden: 16, cell: lstm, connector: {kind: stochastic, units: 4}, context: 16}",
    "train.batch_tokens=256", "train.budget.steps=8", "train.evaluate_every=8", "train.save_every=4",
    "train.log_every=1", "train.device=cpu", "train.schedule={kind: constant}", "task.importance_samples=2",
]  # fmt: skip


def vae(connector: Any = CONNECTORS[-1], **changes: Any) -> Any:
    torch.manual_seed(0)
    return build(
        TextVaeConfig(vocab=WORDS.vocab, width=12, hidden=16, layers=2, connector=connector, context=16, **changes)
    ).eval()


def encoded(texts: list[str]) -> EncodedPairs:
    return encode_pairs([Pair(text, text) for text in texts], WORDS, 16)


def batch_of(texts: list[str]) -> PairBatch:
    return next(iter(encoded(texts).in_order(10_000)))


def predictor(connector: Any = CONNECTORS[-1]) -> SentenceAutoencoder:
    return SentenceAutoencoder(vae(connector), WORDS, 16, CPU)


def with_noise(model: Any, batch: PairBatch, noise: Tensor, weight: float = 1.0, free: float = 0.0) -> Any:
    return sentence_loss(model, model.encode(batch.source), batch.target[:, :-1], batch, noise, weight, free)


# ------------------------------------------------------------------ the model
@pytest.mark.claim("M11")
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("connector", CONNECTORS, ids=lambda one: one.kind)
def test_counts_gradients_and_state(connector: Any, cell: str) -> None:
    model = vae(connector, cell=cell)
    assert sum(weight.numel() for weight in model.parameters()) == model.config.parameters(WORDS.vocab)
    batch = batch_of(TEXTS[:6])
    posterior = model.encode(batch.source)
    assert posterior.mean.shape == (6, model.config.units)
    inputs, state = batch.target[:, :-1], model.start(posterior.mean)
    whole, _ = model(inputs, state)
    first, after = model(inputs[:, :3], state)
    rest, _ = model(inputs[:, 3:], after)
    close(torch.cat([first, rest], 1), whole, slack=512)
    with_noise(model, batch, torch.ones(posterior.mean.shape)).total.backward()
    assert all(weight.grad is not None for weight in model.parameters())
    read = any(weight.grad.any() for weight in model.encoder.parameters())
    assert read == (connector.kind != "constant")


@pytest.mark.parametrize("connector", CONNECTORS[1:], ids=lambda one: one.kind)
def test_padding_and_batch_never_change_a_code(connector: Any) -> None:
    one = predictor(connector)
    together = one.encode(TEXTS[:12])
    alone = torch.cat([one.encode([text]) for text in TEXTS[:12]])
    close(together, alone, slack=512)
    close(one.encode(TEXTS[:12][::-1]).flip(0), together, slack=512)
    texts = [found.text for found in one.decode(together)]
    assert texts == [one.decode(row[None])[0].text for row in together]


# ------------------------------------------------------------------ the loss
@pytest.mark.claim("M11")
def test_loss_is_the_bound_and_reports_its_parts() -> None:
    model, batch = vae().double(), batch_of(TEXTS[:6])
    noise = torch.randn(6, 5, dtype=torch.float64)
    loss = with_noise(model, batch, noise, weight=0.25)
    mean, log_variance = model.encode(batch.source)
    z = mean + (log_variance / 2).exp() * noise
    words = -log_probability(model, batch, z).sum()
    kl = (mean.square() + log_variance.exp() - 1 - log_variance).sum() / 2
    close(loss.total, words + kl / 4, slack=4096, dtype=torch.float32)
    close(loss.plain, words + kl, slack=4096, dtype=torch.float32)
    close(loss.parts["kl"], kl, slack=4096, dtype=torch.float32)
    assert loss.count == batch.tokens
    assert loss.parts.keys() == {"reconstruction", "kl"}


def test_free_bits_take_the_gradient_of_units_below_them() -> None:
    model, batch = vae(), batch_of(TEXTS[:6])
    torch.nn.init.zeros_(model.connector.begin.weight)  # the words tell nothing of the code
    with torch.no_grad():
        posterior = model.encode(batch.source)
        each = normal_kl(*posterior)  # (B, K)
    free = float(each.median())

    def gradient(free: float) -> Tensor:
        posterior = model.encode(batch.source)
        loss = sentence_loss(model, posterior, batch.target[:, :-1], batch, torch.zeros(6, 5), 1.0, free)
        return torch.autograd.grad(loss.total, posterior.mean)[0]

    close(gradient(0.0), posterior.mean)
    close(gradient(free), torch.where(each >= free, posterior.mean, 0.0))
    assert 0 < int((each < free).sum()) < each.numel()
    none = replace(batch, indices=-torch.ones_like(batch.indices))  # rows without a sentence cost nothing
    charged, plain = (with_noise(model, none, torch.zeros(6, 5), weight, 9.0).total for weight in (1.0, 0.0))
    assert charged == plain


def test_more_samples_tighten_the_bound_up_to_the_exact_likelihood() -> None:
    """Without a code in use the bound is exact; with one, importance samples raise it."""
    model, batch = vae(), batch_of(TEXTS[:4])
    zero = Posterior(torch.zeros(4, 5), torch.zeros(4, 5))
    with torch.no_grad():
        model.connector.begin.weight.zero_()  # the decoder does not read the code
        exact = log_probability(model, batch, torch.zeros(4, 5))
        close(log_likelihood(model, zero, batch, 3), exact, slack=1024)
        model = vae()
        posterior = model.encode(batch.source)
        shifted = Posterior(posterior.mean + 0.7, posterior.log_variance)
        few, many = (log_likelihood(model, shifted, batch, count).sum() for count in (1, 300))
    assert many > few


def test_held_out_estimates_do_not_depend_on_the_batches() -> None:
    model = vae()
    one, other = (estimate(model, encoded(TEXTS[:12]), CPU, size, 3) for size in (16, 4096))
    for name in ("reconstruction", "kl", "bound"):
        assert getattr(one, name) == near(getattr(other, name), slack=1024)
    assert [score.name for score in one.scores()] == ["elbo", "reconstruction", "kl", "perplexity", "active_units"]
    means = torch.zeros(4, 3)
    means[:, 1] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert replace(one, means=means).active == 1


def test_annealing() -> None:
    assert FullWeight().weight(0) == 1
    assert [LinearAnnealing(steps=4).weight(step) for step in (0, 1, 4, 9)] == [0, 0.25, 1, 1]
    logistic = LogisticAnnealing(middle=100, width=10)
    assert logistic.weight(100) == 0.5
    assert logistic.weight(110) == pytest.approx(1 / (1 + math.exp(-1)))
    assert [CyclicalAnnealing(period=4, rise=0.5).weight(step) for step in (0, 1, 2, 3, 4, 5)] == [0, 0.5, 1, 1, 0, 0.5]


# ------------------------------------------------------------------ runs
@pytest.mark.claim("M24")
def test_run_resumes_bit_for_bit_with_its_annealing(tmp_path: Path, no_loss_curve: None) -> None:
    recipe = load_recipe("sentences", [*SMALL, "train.accumulate=2", "task.anneal={kind: linear, steps: 6}"])
    whole = [event for event in train(recipe, tmp_path / "whole") if isinstance(event, Step)]
    parts: list[Step] = []
    for last in (3, 99):
        for event in train(recipe, tmp_path / "parts", lambda: len(parts) >= last):  # noqa: B023
            parts += [event] if isinstance(event, Step) else []
    assert len(parts) == len(whole) == 8
    assert [(step.loss, step.parts) for step in parts] == [(step.loss, step.parts) for step in whole]
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("whole", "parts")]
    assert weights[0] == weights[1]
    for folder in ("whole", "parts"):
        counted = load_file(tmp_path / folder / "checkpoints" / "step-00000008" / "carry.safetensors")["0"]
        assert (counted == 16).all()  # two batches a step
    for event in read_events(tmp_path / "whole").steps():
        assert event["loss"] == near(event["parts"]["reconstruction"] + event["parts"]["kl"])
    once = load_recipe("sentences", [*SMALL, "train.accumulate=2", "task.anneal={kind: none}"])
    other = [event.loss for event in train(once, tmp_path / "other") if isinstance(event, Step)]
    assert other[0] == whole[0].loss and other[1:] != [step.loss for step in whole[1:]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentences") / "run"
    events = list(train(load_recipe("sentences", SMALL), folder))
    last = next(event for event in reversed(events) if isinstance(event, Evaluated))
    assert {score.name for score in last.scores} >= {"elbo", "kl", "perplexity", "active_units"}
    return folder


def test_predictor_interpolates_and_samples(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one: Any = heedful.load(run, "cpu")
    assert isinstance(one, SentenceAutoencoder)
    first, last = TEXTS[:2]
    between = one.interpolate(first, last, 5)
    ends = one.encode([first, last])
    line = torch.lerp(*ends, torch.linspace(0, 1, 5)[:, None])
    close(torch.tensor([found.code for found in between]), line, slack=1024)
    assert [between[0].text, between[-1].text] == [found.text for found in one.predict([first, last])]
    sampled = one.sample(4, seed=3)
    assert [found.code for found in sampled[:2]] == [found.code for found in one.sample(2, seed=3)]
    assert sampled[0].code == gaussian(3, torch.tensor(0), torch.arange(1), (4,))[0].tolist()
    assert one.sample(1, seed=4)[0].code != sampled[0].code
    assert len(one.sample(2, beams=3)) == 2
    with torch.inference_mode():
        for found in sampled:
            ids = torch.tensor([[TrainedTokenizer.bos, *found.ids]])
            logits, _ = one.model(ids[:, :-1], one.model.start(torch.tensor([found.code])))
            logs = logits.log_softmax(-1)[0].gather(-1, ids[0, 1:, None]).sum()
            assert found.log_probability == pytest.approx(float(logs), rel=1e-4)
    interpolate_command(run, first, last, 3, None, False)
    assert len(capsys.readouterr().out.strip("\n").split("\n")) == 3
    sample_command(run, 2, 3, None, True)
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == [s.text for s in sampled[:2]]
    found = one.evaluate(TEXTS[:6])
    (tmp_path / "lines.txt").write_text("\n".join([*TEXTS[:6], "", " "]))
    assert one.evaluate(tmp_path / "lines.txt") == found
    assert found.scores["elbo"] == pytest.approx(-found.scores["reconstruction"] - found.scores["kl"])
    one.save(tmp_path / "saved")
    again: Any = heedful.load(tmp_path / "saved", "cpu")
    assert again.sample(2, seed=3)[1].text == sampled[1].text
    assert one.encode([]).shape == (0, 4) and one.decode(torch.zeros(0, 4)) == []


def test_mistakes_are_explained(run: Path) -> None:
    one: Any = heedful.load(run, "cpu")
    with pytest.raises(UserError, match="an interpolation has two ends"):
        one.interpolate("a child", "a king", 0)
    with pytest.raises(UserError, match="a sentence is empty"):
        one.interpolate("", "a king")
    with pytest.raises(UserError, match="too long"):
        one.encode(["king " * 40])
    with pytest.raises(UserError, match="not codes of this model"):
        one.decode(torch.zeros(2, 7))
    with pytest.raises(UserError, match="no prior"):
        predictor(MlpConnector(units=5)).sample(1)
    with pytest.raises(UserError, match="no codes"):
        predictor(ConstantConnector()).interpolate(*TEXTS[:2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("task.free_bits=-1", "greater than or equal to 0"),
        ("model.connector={kind: stochastic, units: 0}", "greater than or equal to 1"),
        ("model.connector={kind: dense}", "dense"),
        ("task.word_dropout=1.5", "less than or equal to 1"),
        ("task.anneal={kind: linear, steps: 0}", "greater than or equal to 1"),
        ("data={kind: grammar, train: 1000000}", "ask for fewer"),
    ],
)
def test_impossible_settings_are_refused(change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe("sentences", [change])


@pytest.mark.slow
@pytest.mark.claim("M11")
def test_recipe_uses_its_codes_and_collapses_without_annealing_and_free_bits(tmp_path: Path) -> None:
    found = {}
    for name, change in (("recipe", "task.anneal.steps=250"), ("plain", "task={kind: text_autoencoding}")):
        steps = ["train.budget.steps=500", "train.evaluate_every=500", "train.device=cpu"]
        events = list(train(load_recipe("sentences", [*steps, change]), tmp_path / name))
        last = next(event for event in reversed(events) if isinstance(event, Evaluated))
        found[name] = {score.name: score.value for score in last.scores}
    assert found["recipe"]["kl"] > 4 and found["recipe"]["active_units"] == 16
    assert found["plain"]["kl"] < 0.5
    between = heedful.load(tmp_path / "recipe", SentenceAutoencoder, "cpu").interpolate(*TEXTS[:2])
    assert len({sentence.text for sentence in between}) > 2


# ------------------------------------------------------------------ the data
def test_sentences_of_the_grammar_are_disjoint_and_of_every_form() -> None:
    data = GrammarSentences(train=500, valid=40, test=40)
    splits = [data.read(split).sentences for split in ("train", "valid", "test")]
    assert [len(split) for split in splits] == [500, 40, 40]
    assert len({text for split in splits for text in split}) == 580
    assert sum(text.endswith("?") for text in splits[0]) == pytest.approx(500 / len(FORMS), abs=40)
    assert data.read("train").sentences == splits[0]
    assert GrammarSentences(train=500, valid=40, test=40, seed=1).read("train").sentences != splits[0]


def test_own_sentences_and_files_of_lines(tmp_path: Path) -> None:
    assert TextAutoencodingTask.collect(["a b", " c\nd ", ""], "train") == SentenceText(["a b", "c d"], 1)
    (tmp_path / "lines.txt").write_text("\n".join([*TEXTS[:30], ""]))
    recipe: Any = load_recipe("sentences", [f"data={{kind: text, root: {tmp_path}, train: lines.txt}}"])
    task = TextAutoencodingTask(recipe)
    assert task.read("train").sentences == TEXTS[: len(task.read("train").sentences)]
    assert TextAutoencodingTaskConfig().anneal == FullWeight()
