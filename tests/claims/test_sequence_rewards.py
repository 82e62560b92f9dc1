"""Likelihood and rewards of sequences: against loops over tokens, and against the enumeration of all sequences."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heedful
from heedful.blocks.losses import Loss
from heedful.data.batch import Ragged
from heedful.data.embedded import NumberWords
from heedful.data.pairs.batches import EncodedPairs, PairBatch, encode_pairs
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.models import build
from heedful.models.seq2seq.config import Seq2SeqConfig
from heedful.models.transformer.config import TransformerConfig
from heedful.runs.recipe import recipe_of
from heedful.tasks.sampling import PAD, sampled_sequences
from heedful.tasks.translation.predictor import Translator, translation_loss
from heedful.tasks.translation.recipe import LearnedBaseline, MinimumRisk, MovingAverage, PolicyGradient, SelfCritical
from heedful.tasks.translation.rewards import Generator, TextReward, baseline_of, minimum_risk_loss, reward_loss
from heedful.training.loop import Step
from heedful.training.sentence_metrics import SentenceMetric
from tolerance import close

CPU = torch.device("cpu")
EOS, LIMIT = TrainedTokenizer.eos, 3
WORDS = (4, 5)  # the tokens that are not special


def gradients(total: Tensor, model: torch.nn.Module) -> list[Tensor]:
    """The gradient of every weight."""
    found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return [torch.zeros_like(w) if grad is None else grad for w, grad in zip(model.parameters(), found, strict=True)]


def same_gradients(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Gradients differ by rounding alone, compared with the largest of all weights."""
    largest = torch.stack([grad.abs().max() for grad in expected])
    assert float(largest.max()) > 1e-6
    for one, other in zip(found, expected, strict=True):
        close(one, other, slack=2**12, of=largest)


# ------------------------------------------------------------------ likelihood
@pytest.mark.claim("M13")
@pytest.mark.parametrize(
    ("kind", "packed"),
    [("transformer", False), ("transformer", True), ("seq2seq", False)],  # a recurrent net reads no packed batches
    ids=["padded-transformer", "packed-transformer", "padded-seq2seq"],
)
def test_likelihood_is_a_loop_over_real_tokens(kind: str, packed: bool) -> None:
    """The loss and its gradient equal a sum of -log p over the tokens of each pair alone, in double precision."""
    pairs = NumberWords(train=40, valid=1, test=1).pairs("train")[:12]
    tokenizer = TrainedTokenizer.train(WordPiece(vocab=60), [text for pair in pairs for text in pair])
    torch.manual_seed(0)
    config: Any = TransformerConfig if kind == "transformer" else Seq2SeqConfig
    model: Any = build(config.tiny().model_copy(update={"vocab": tokenizer.vocab, "context": 80})).double().eval()
    encoded = encode_pairs(pairs, tokenizer, 80)
    rows = np.arange(len(pairs))
    found = translation_loss(model, encoded.pack(rows, (1024, 1024)) if packed else encoded.batch(rows))
    expected, count = torch.zeros((), dtype=torch.float64), 0
    for pair in pairs:
        source, target = ([*ids, EOS] for ids in tokenizer.ids(list(pair)))
        state = model.start(torch.tensor([source]))
        for before, token in zip([TrainedTokenizer.bos, *target], target, strict=False):
            logits, state = model(torch.tensor([[before]]), state)
            expected, count = expected - logits[0, 0].log_softmax(-1)[token], count + 1
    close(found.total, expected)
    close(found.plain, expected)
    assert int(found.count) == count
    same_gradients(gradients(found.total, model), gradients(expected, model))


# ------------------------------------------------------------------ enumeration
class Table(SentenceMetric):
    """Any reward: a number for each text."""

    def score(self, hypothesis: str, number: int) -> float:
        return math.sin(7.0 * sum(ord(letter) * 3**place for place, letter in enumerate(hypothesis)) + number) / 2 + 0.5


def every_sequence() -> list[tuple[int, ...]]:
    """All that a model can generate in three tokens: those that end, and those that are cut off."""
    ended = [(*words, EOS) for length in range(LIMIT) for words in itertools.product(WORDS, repeat=length)]
    return ended + list(itertools.product(WORDS, repeat=LIMIT))


EVERY = every_sequence()
ALL = torch.tensor([[*tokens, *[PAD] * (LIMIT - len(tokens))] for tokens in EVERY])  # (N, T)


def tiny_generator() -> tuple[Generator, PairBatch]:
    """A model of two words in double precision, without dropout, and two sources of different lengths."""
    torch.manual_seed(2)
    config = TransformerConfig(
        vocab=6, width=8, heads=2, encoder_layers=1, decoder_layers=1, hidden=12, context=8, dropout=0.0
    )
    model: Any = build(config).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    sides = [[np.array(row, np.int32) for row in rows] for rows in ([[4, 5, 5, 3], [5, 3]], [[2, 5, 3], [2, 4, 5, 3]])]
    source, target = (Ragged.of([len(row) for row in rows], rows) for rows in sides)
    encoded = EncodedPairs(source, target, np.arange(2), longest=8, dropped=0, replaced=0)
    reward = TextReward(Table(["", ""]), lambda ids: " ".join(map(str, ids)))
    return Generator(model, reward, 8, LIMIT, 0.0), encoded.batch(np.arange(2))


def one_source(batch: PairBatch, row: int) -> PairBatch:
    """A batch of one row, without padding."""
    source, target = int(batch.source_lengths[row]), int(batch.target_lengths[row])
    rows = slice(row, row + 1)
    lengths = batch.source_lengths[rows], batch.target_lengths[rows]
    return PairBatch(
        batch.source[rows, :source], lengths[0], batch.target[rows, :target], lengths[1], batch.indices[rows]
    )


def log_probability(model: Any, batch: PairBatch, tokens: Sequence[int]) -> Tensor:
    """log p(tokens | source), a token at a time; special tokens but the end are never generated."""
    state, before, total = model.start(batch.source), TrainedTokenizer.bos, torch.zeros((), dtype=torch.float64)
    for token in tokens:
        logits, state = model(torch.tensor([[before]]), state)
        allowed = logits[0, 0, [EOS, *WORDS]]
        total, before = total + logits[0, 0, token] - allowed.logsumexp(0), token
    return total


def expected_reward(generator: Generator, batch: PairBatch) -> Tensor:
    """sum over all sequences of p(sequence) r(sequence), of each source."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch.source)):
        one = one_source(batch, row)
        logs = torch.stack([log_probability(generator.model, one, tokens) for tokens in EVERY])
        close(logs.exp().sum(), torch.ones((), dtype=torch.float64))  # there are no others
        total = total + (logs.exp() * generator.reward.score(ALL[None], one.indices)[0]).sum()
    return total


def mean_gradient(loss: Callable[[PairBatch], Loss], generator: Generator, batch: PairBatch) -> list[Tensor]:
    """The expectation of the gradient of a loss that samples: each sequence in place of the sample, times its p."""
    mean = [torch.zeros_like(weight) for weight in generator.model.parameters()]
    for row in range(len(batch.source)):
        one = one_source(batch, row)
        for tokens, sampled in zip(EVERY, ALL, strict=True):
            p = log_probability(generator.model, one, tokens).exp().detach()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    "heedful.tasks.translation.rewards.sampled_sequences", lambda *_, it=sampled: it[None, None].clone()
                )
                found = gradients(loss(one).total, generator.model)
            for total, grad in zip(mean, found, strict=True):
                total += p * grad
    return mean


@pytest.mark.claim("M15")
@pytest.mark.parametrize("kind", ["none yet", "moving_average", "learned", "self_critical"])
def test_policy_gradient_is_that_of_the_expected_reward(kind: str) -> None:
    """With any baseline, the expectation over all samples is the gradient of sum p r, exactly."""
    generator, batch = tiny_generator()
    if kind == "self_critical":
        loss: Callable[[PairBatch], Loss] = reward_loss(generator, SelfCritical())
    else:
        settings = LearnedBaseline() if kind == "learned" else MovingAverage()
        torch.manual_seed(5)
        carry = baseline_of(settings).first(8, CPU).double()
        carry = carry if kind == "none yet" else carry + torch.randn_like(carry[:1])
        both = reward_loss(generator, PolicyGradient(baseline=settings))
        loss = lambda one: both(one, carry)[0]  # noqa: E731
    expected = gradients(-expected_reward(generator, batch), generator.model)
    same_gradients(mean_gradient(loss, generator, batch), expected)


def test_a_baseline_changes_the_variance() -> None:
    """The gradients of single samples differ with the baseline, whose expectation is the same."""
    generator, batch = tiny_generator()
    one, found = one_source(batch, 0), []
    for level in (0.0, 0.5):
        loss = reward_loss(generator, PolicyGradient())
        torch.manual_seed(0)
        found.append(gradients(loss(one, torch.full((64, 1), level))[0].total, generator.model))
    assert any(not torch.allclose(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.claim("M15")
@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.0])
def test_minimum_risk_is_its_formula(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """sum q (1 - r) with q = p^alpha / sum p^alpha over some candidates, of which two are equal, and its gradient."""
    generator, batch = tiny_generator()
    chosen = [0, 3, 7, 3, 12]
    monkeypatch.setattr(
        "heedful.tasks.translation.rewards.sampled_sequences", lambda *_: ALL[chosen].expand(2, -1, -1).clone()
    )
    found = minimum_risk_loss(batch, generator, MinimumRisk(alpha=alpha, samples=5))
    expected = torch.zeros((), dtype=torch.float64)
    for row in range(2):
        one = one_source(batch, row)
        reference = tuple(batch.target[row, 1 : int(batch.target_lengths[row])].tolist())
        some = list(dict.fromkeys([*(EVERY[number] for number in chosen), reference]))
        risks = [1 - generator.reward.metric.score(" ".join(map(str, tokens)), row) for tokens in some]
        powers = [log_probability(generator.model, one, tokens).exp() ** alpha for tokens in some]
        expected = expected + sum(p * risk for p, risk in zip(powers, risks, strict=True)) / sum(powers)
    close(found.total, expected)
    same_gradients(gradients(found.total, generator.model), gradients(expected, generator.model))


@pytest.mark.claim("M15")
def test_minimum_risk_over_all_sequences_is_the_expected_risk(monkeypatch: pytest.MonkeyPatch) -> None:
    """With alpha = 1 and every sequence as a candidate, the gradient is that of the expected reward."""
    generator, batch = tiny_generator()
    monkeypatch.setattr("heedful.tasks.translation.rewards.sampled_sequences", lambda *_: ALL.expand(2, -1, -1).clone())
    found = minimum_risk_loss(batch, generator, MinimumRisk(alpha=1, samples=len(EVERY), reference=False))
    reward = expected_reward(generator, batch)
    close(found.total, 2 - reward)
    same_gradients(gradients(found.total, generator.model), gradients(-reward, generator.model))


@pytest.mark.claim("M15")
def test_sequences_are_sampled_with_the_models_probabilities() -> None:
    """The share of each of all sequences among 4,000 samples is its p, within five standard deviations."""
    generator, batch = tiny_generator()
    one, count = one_source(batch, 0), 4000
    torch.manual_seed(0)
    model = generator.model
    with torch.no_grad():
        found = sampled_sequences(model, model.start(one.source), torch.tensor([LIMIT]), CPU, count)[0]  # (K, T)
        for tokens, row in zip(EVERY, ALL, strict=True):
            p = float(log_probability(model, one, tokens).exp())
            share = float((found == row).all(1).double().mean())
            assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / count)


# ------------------------------------------------------------------ rewards rise
DIGITS = {
    "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben",
    "eight": "acht", "nine": "neun",
}  # fmt: skip
RECIPE = """
task: {kind: translation, objective: OBJECTIVE, label_smoothing: 0}
data: {kind: own}
tokenizer: {kind: words, vocab: 60}
model: {norm: pre, width: 32, heads: 2, encoder_layers: 1, decoder_layers: 1, hidden: 64, context: 32, dropout: 0}
train:
  seed: SEED
  budget: {steps: STEPS}
  batch_tokens: 512
  optimizer: {kind: adamw, lr: RATE}
  schedule: {kind: constant, warmup: 0}
  precision: fp32
  log_every: 1
  evaluate_every: 1000
  save_every: 1000
  use: last
  samples: 0
  threads: 1
decode: {beams: 1}
"""


def digits(count: int, seed: int) -> list[tuple[str, str]]:
    """Four to seven digits in English, and in German."""
    rng, found = random.Random(seed), list[tuple[str, str]]()
    for _ in range(count):
        words = rng.choices(list(DIGITS), k=rng.randint(4, 7))
        found.append((" ".join(words), " ".join(DIGITS[word] for word in words)))
    return found


DATA = heedful.Dataset(train=digits(1000, 0), valid=digits(100, 1))


def train(folder: Path, objective: str, seed: int, steps: int, rate: float, start: Path | None) -> list[Any]:
    """The events of a run."""
    text = RECIPE.replace("OBJECTIVE", objective).replace("SEED", str(seed)).replace("STEPS", str(steps))
    text = text.replace("RATE", str(rate)) + (f"start: {{folder: {start}}}\n" if start else "")
    return list(heedful.train(recipe_of(text, "digits.yaml"), folder, data=DATA))


def tuned(folder: Path, objective: str, seed: int, steps: int) -> tuple[list[float], list[float]]:
    """The mean reward of each quarter of the steps, and validation BLEU before and after."""
    if not (base := folder / f"base-{seed}").exists():
        train(base, "{kind: likelihood}", seed, 80, 0.01, None)
    run = folder / str(seed)
    events = train(run, objective, seed, steps, 0.003, base)
    rewards = np.array([event.parts["reward"] for event in events if isinstance(event, Step)])
    valid = [heedful.load(path, Translator).evaluate(DATA.valid) for path in (base, run)]
    return rewards.reshape(4, -1).mean(1).tolist(), [found.scores["bleu"] for found in valid]


@pytest.mark.claim("M19")
@pytest.mark.usefixtures("no_loss_curve")
def test_reward_rises_and_validation_bleu_with_it(tmp_path: Path) -> None:
    rewards, (before, after) = tuned(tmp_path, "{kind: self_critical, samples: 4}", 0, 32)
    assert rewards[-1] > rewards[0] + 0.05 and after > before + 15


@pytest.mark.slow
@pytest.mark.claim("M19")
@pytest.mark.usefixtures("no_loss_curve")
@pytest.mark.parametrize(
    "objective",
    [
        "{kind: self_critical, samples: 4}",
        "{kind: policy_gradient, samples: 4}",
        "{kind: policy_gradient, samples: 4, baseline: {kind: learned}}",
        "{kind: minimum_risk, samples: 4}",
    ],
)
def test_reward_rises_with_every_objective_and_seed(objective: str, tmp_path: Path) -> None:
    for seed in range(3):
        rewards, (before, after) = tuned(tmp_path, objective, seed, 80)
        assert rewards[-1] > rewards[0] and after > before, seed
