"""Translation tuned on a reward: runs that resume, several processes, mixed precision, own models, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful.data.embedded import NumberWords
from heedful.data.pairs.batches import encode_pairs
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.errors import UserError
from heedful.models import build
from heedful.models.transformer.config import TransformerConfig
from heedful.runs.recipe import load_recipe, recipe_of
from heedful.runs.train import Started, Step
from heedful.tasks.sampling import PAD, sequence_logs
from heedful.tasks.translation.recipe import LearnedBaseline, MinimumRisk, MovingAverage, PolicyGradient, SelfCritical
from heedful.tasks.translation.rewards import (
    Generator,
    TextReward,
    baseline_of,
    candidates,
    expected_risk,
    reward_loss,
    with_reference,
)
from heedful.training.distributed.team import Team
from tolerance import close
from training.test_distributed import run_team

OBJECTIVES = {
    "moving": "{kind: policy_gradient, likelihood: 0.1}",
    "learned": "{kind: policy_gradient, baseline: {kind: learned}, samples: 2, reward: chrf}",
    "critical": "{kind: self_critical, samples: 2}",
    "risk": "{kind: minimum_risk, samples: 3, reward: exact_match}",
    "beam": "{kind: minimum_risk, samples: 3, candidates: beam, reference: false}",
}
SMALL = """
task: {kind: translation, objective: OBJECTIVE}
start: {folder: START}
data: {kind: number_words, target: es, below: 1000, train: 40, valid: 4, test: 4}
tokenizer: {kind: wordpiece, vocab: 70}
model: {kind: transformer, width: 16, heads: 2, encoder_layers: 1, decoder_layers: 1, hidden: 24, context: 48}
train:
  {budget: {steps: 4}, schedule: {kind: constant}, batch_tokens: 160, save_every: 2, evaluate_every: 4, threads: 1}
decode: {beams: 1, max_length: 12}
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on likelihood."""
    folder = tmp_path_factory.mktemp("rewards") / "base"
    text = SMALL.replace("objective: OBJECTIVE", "label_smoothing: 0").replace("start: {folder: START}\n", "")
    list(heedful.train(recipe_of(text, "base.yaml"), folder))
    return folder


def recipe(base: Path | str, objective: str, *changes: tuple[str, str]) -> Any:
    text = SMALL.replace("OBJECTIVE", OBJECTIVES.get(objective, objective)).replace("START", str(base))
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return recipe_of(text, "small.yaml")


def tensors(run: Path, step: int, name: str = "model") -> bytes:
    return (run / "checkpoints" / f"step-{step:08}" / f"{name}.safetensors").read_bytes()


@pytest.mark.claim("M19")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_run_resumes_bit_for_bit(objective: str, base: Path, tmp_path: Path) -> None:
    """Samples follow from counters, and the baseline is restored."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    events = list(heedful.train(recipe(base, objective), whole))
    list(heedful.train(recipe(base, objective, ("steps: 4", "steps: 2")), parts))
    list(heedful.train(recipe(base, objective), parts))
    assert tensors(whole, 4) == tensors(parts, 4) != tensors(whole, 2)
    if objective in ("moving", "learned"):
        assert tensors(whole, 4, "carry") == tensors(parts, 4, "carry") != tensors(whole, 2, "carry")
    steps = [event for event in events if isinstance(event, Step)]
    for step in steps:
        assert {"reward", "above_baseline"} <= step.parts.keys()
        assert 0 <= step.parts["reward"] <= 1 and 0 <= step.parts["above_baseline"] <= 1
    assert ("likelihood" in steps[0].parts) == (objective == "moving")


@pytest.mark.parametrize("objective", ["learned", pytest.param("critical", marks=pytest.mark.slow)])
def test_two_processes_share_a_step(objective: str, base: Path, tmp_path: Path) -> None:
    """They train together, and a run of two resumes bit for bit."""

    def work(team: Team) -> list[float]:
        for name, budgets in (("whole", (3,)), ("parts", (2, 3))):
            for steps in budgets:
                changed = recipe(base, objective, ("steps: 4", f"steps: {steps}"), ("save_every: 2", "save_every: 1"))
                events = list(heedful.train(changed, tmp_path / name, team=team))
        return [event.parts["reward"] for event in events if isinstance(event, Step)]

    both = run_team(2, work, tmp_path)
    assert both[0] == both[1] and 0 <= both[0][-1] <= 1
    assert tensors(tmp_path / "whole", 3) == tensors(tmp_path / "parts", 3)


def small_generator(dropout: float = 0.0) -> tuple[Generator, Any]:
    """A model and a batch of number words."""
    pairs = NumberWords(target="es", below=1000, train=8, valid=1, test=1).pairs("train")[:8]
    tokenizer = TrainedTokenizer.train(WordPiece(vocab=70), [text for pair in pairs for text in pair])
    torch.manual_seed(0)
    model: Any = build(
        TransformerConfig(
            vocab=tokenizer.vocab, width=16, heads=2, encoder_layers=1, decoder_layers=1, hidden=24, context=48,
            dropout=dropout, norm="pre",
        )
    )  # fmt: skip
    encoded = encode_pairs(pairs, tokenizer, 48)
    reward = TextReward.of("chrf", encoded.references, tokenizer.decode)
    return Generator(model.train(), reward, 48, 10, 0.0), encoded.batch(np.arange(8))


@pytest.mark.parametrize("objective", [SelfCritical(), MinimumRisk(samples=3, alpha=1.0)])
def test_autocast_loses_no_gradients(objective: SelfCritical | MinimumRisk) -> None:
    """Autocast keeps weights that were cast while translations were generated, which have no gradients."""
    generator, batch = small_generator()
    found = []
    for half in (False, True):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = reward_loss(generator, objective)(batch)
        generator.model.zero_grad()
        loss.total.backward()
        found.append([weight.grad is not None and bool(weight.grad.any()) for weight in generator.model.parameters()])
    assert found[0] == found[1] and all(found[0][:1])


def test_translations_are_generated_without_dropout() -> None:
    """Sampling with the same seed gives the same sequences with dropout and without; the model trains on with it."""
    (plain, batch), (dropped, _) = small_generator(), small_generator(dropout=0.5)
    dropped.model.load_state_dict(plain.model.state_dict())
    found = []
    for generator in (plain, dropped):
        torch.manual_seed(3)
        found.append(generator.sampled(batch, 2))
        assert generator.model.training
    assert torch.equal(*found)


def test_an_empty_shard_changes_nothing() -> None:
    """A process without pairs adds neither gradient nor reward."""
    generator, _ = small_generator()
    empty = encode_pairs([NumberWords(train=8, valid=1, test=1).pairs("train")[0]], TOKENIZER, 48).batch(np.arange(0))
    for objective in (SelfCritical(likelihood=1.0), MinimumRisk(samples=2), PolicyGradient()):
        carry = baseline_of(MovingAverage()).first(16, torch.device("cpu")) + 0.5
        both = reward_loss(generator, objective)
        if isinstance(objective, PolicyGradient):
            loss, after = both(empty, carry)
            assert torch.equal(after, carry)
        else:
            loss = both(empty)
        generator.model.zero_grad()
        loss.total.backward()
        assert not any(weight.grad is not None and weight.grad.any() for weight in generator.model.parameters())
        assert float(loss.plain) == 0 and all(float(part) == 0 for part in loss.parts.values())


TOKENIZER = TrainedTokenizer.train(WordPiece(vocab=70), ["one two three"])


# ------------------------------------------------------------------ parts
def test_a_moving_average_is_one() -> None:
    """b <- decay b + (1 - decay) mean reward, of the tokens' rewards."""
    baseline = baseline_of(MovingAverage(decay=0.75))
    carry = baseline.first(4, torch.device("cpu")) + 0.4
    x, real = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)
    close(baseline.expect(carry, x), torch.full((2, 3), 0.4))
    after = baseline.learn(carry, x, torch.tensor([1.0, 0.0]), real)
    close(after, torch.full_like(carry, 0.75 * 0.4 + 0.25 * 0.5))


def test_a_learned_baseline_predicts_the_reward() -> None:
    """A reward that is linear in the last layer is learned; padding is not."""
    torch.manual_seed(0)
    baseline, right = baseline_of(LearnedBaseline(rate=1.0)), torch.randn(4)
    carry = baseline.first(4, torch.device("cpu"))
    for _ in range(300):
        x = torch.randn(40, 1, 4).repeat(1, 2, 1)
        x[:, 1] *= 100  # padding
        rewards = x[:, 0] @ right + 0.3
        carry = baseline.learn(carry, x, rewards, torch.tensor([[True, False]]).expand(40, 2))
    assert float((baseline.expect(carry, x)[:, 0] - rewards).abs().max()) < 0.01


def test_candidates_count_once_and_must_be_possible() -> None:
    rows = torch.tensor([[[5, 3, 0], [5, 3, 0], [4, 5, 3], [5, 1, 3], [0, 0, 0]]])  # 1 is the unknown token
    whole = with_reference(rows, torch.tensor([[4, 5, 3, 0]]))
    assert whole.shape == (1, 6, 4) and whole[0, -1].tolist() == [4, 5, 3, PAD]
    assert candidates(whole).tolist() == [[True, False, True, False, False, False]]
    logs = torch.randn(1, 6, requires_grad=True)
    risk = expected_risk(logs, torch.rand(1, 6), candidates(whole), 0.5)
    risk.sum().backward()  # type: ignore[no-untyped-call]
    assert logs.grad is not None and logs.grad.isfinite().all() and logs.grad[0, 1] == 0
    assert float(expected_risk(logs, torch.ones(1, 6), torch.zeros(1, 6, dtype=torch.bool), 0.5).detach()) == 0


def test_special_tokens_have_no_probability() -> None:
    logits, tokens = torch.randn(1, 3, 6), torch.tensor([[4, 3, 0]])
    logs = sequence_logs(logits, tokens)
    close(logs[0, :2].exp(), logits[0, :2, 3:].softmax(-1).gather(1, torch.tensor([[1], [0]]))[:, 0])
    assert float(logs[0, 2]) == 0


class Copier(nn.Module):
    """A user's own model: the mean of the source, and the last target token."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(config.vocab, 8), nn.Linear(8, config.vocab)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.out(self.embedding(source).mean(1, keepdim=True) + self.embedding(target))


@pytest.mark.parametrize("objective", ["learned", "risk"])
def test_a_users_own_model_is_tuned(objective: str, base: Path, tmp_path: Path) -> None:
    text = SMALL.replace("objective: OBJECTIVE", "label_smoothing: 0").replace("start: {folder: START}\n", "")
    list(heedful.train(recipe_of(text, "own.yaml"), tmp_path / "base", model=Copier))
    events = list(heedful.train(recipe(tmp_path / "base", objective), tmp_path / "run", model=Copier))
    assert any(isinstance(event, Step) and event.norm > 0 for event in events)


# ------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("objective", "changes", "message"),
    [
        ("{kind: minimum_risk, samples: 1}", (), "at least 2|greater than or equal to 2|2 or more"),
        ("{kind: minimum_risk, alpha: 0}", (), "alpha"),
        ("{kind: minimum_risk, alpha: -1}", (), "alpha"),
        ("{kind: self_critical, reward: meteor}", (), "one of 'bleu', 'chrf'|bleu"),
        ("{kind: self_critical}", (("start: {folder: x}\n", ""),), "goes on from a trained translator"),
        ("{kind: self_critical}", (("threads: 1", "batching: packed"),), "write batching: padded"),
        ("{kind: self_critical}", (("threads: 1", "compile: true"),), "write compile: false"),
        ("{kind: self_critical}", (("threads: 1", "parallel: fsdp"),), "write parallel: ddp"),
        (
            "{kind: self_critical}",
            (
                (
                    "model: {kind: transformer, width: 16, heads: 2, encoder_layers: 1, decoder_layers: 1, hidden: 24,",
                    "model: {kind: seq2seq, attention: {choice: hard},",
                ),
            ),
            "hard attention cannot be trained on a reward",
        ),
    ],
)
def test_what_cannot_be_is_refused(objective: str, changes: tuple[tuple[str, str], ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe("x", objective, *changes)


def test_a_reference_without_text_is_refused() -> None:
    with pytest.raises(UserError, match="no text in reference 2"):
        TextReward.of("bleu", ["a", " "], str)


def test_bleu_of_short_references_is_remarked(base: Path, tmp_path: Path) -> None:
    short = recipe(base, "critical", ("below: 1000", "below: 100"), ("steps: 4", "steps: 1"))
    (started,) = [event for event in heedful.train(short, tmp_path / "run") if isinstance(event, Started)]
    assert any("fewer than 4 words" in note for note in started.notes)


@pytest.mark.parametrize("name", ["numbers-reward", "multi30k-reward"])
def test_shipped_recipes_name_the_run_they_start_from(name: str) -> None:
    found = load_recipe(name)
    assert found.start.folder.startswith("runs/") and found.task.objective.kind != "likelihood"
