"""Every text is the one that `generate` gives alone, whatever else is in the batch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
from heedful.decode.settings import TextSettings
from heedful.models import build
from heedful.models.gpt.config import GptConfig
from heedful.serve.engine import Completion, Engine, Full
from heedful.tasks.language_model.predictor import TextGenerator, seed_of

WORDS = ["the", "red", "cat", "sees", "a", "small", "ball", ".", "old", "dog", "takes"]
MODELS = ("gpt", "rnn_lm", "transformer_xl", "window", "rotary", "alibi")
Some = tuple[str, TextSettings]


def generator_of(name: str, golden: Callable[[str], Any]) -> TextGenerator:
    """A recorded run, or a random model with other positions, or with a window."""
    if name in ("gpt", "rnn_lm", "transformer_xl"):
        found: TextGenerator = golden(f"language_model-{name}")
        return found
    torch.manual_seed(0)
    changes: dict[str, Any] = {"window": {"window": 5, "sink": 1}}.get(name, {"positions": name})
    config = GptConfig(vocab=290, width=16, heads=2, layers=2, context=32, **changes)
    tokenizer = Gpt2Tokenizer.train(Gpt2Bpe(vocab=290), [" ".join(WORDS * 5)])
    model: Any = build(config.model_copy(update={"vocab": tokenizer.vocab}))
    for weight in model.parameters():
        weight.data.mul_(3)
    return TextGenerator(model, tokenizer, torch.device("cpu"))


def mixed(count: int, seed: int, longest: int = 50) -> list[Some]:
    """Prompts with settings of their own."""
    rng = random.Random(seed)
    return [
        (
            " ".join(rng.choices(WORDS, k=rng.randint(0, 9))),
            TextSettings(
                temperature=rng.choice([0.0, 0.7, 1.0]), top_k=rng.choice([None, 5]), top_p=rng.choice([None, 0.8]),
                length=rng.randint(1, longest), seed=rng.randint(0, 99),
            ),
        )
        for _ in range(count)
    ]  # fmt: skip


def completion(generator: TextGenerator, prompt: str, settings: TextSettings, seconds: float = 600) -> Completion:
    """The request of a text."""
    seed, deadline = seed_of(settings.seed, 0), time.monotonic() + seconds
    return Completion(generator.prompt_ids(prompt), settings, settings.length, seed, deadline)


def engine_of(generator: TextGenerator, slots: int = 5) -> tuple[Engine, list[Completion]]:
    """An engine, and what it delivers."""
    delivered: list[Completion] = []
    return Engine(generator, slots, 4096, 100, delivered.extend), delivered


def finish(engine: Engine, requests: Sequence[Completion], seed: int = 0) -> None:
    """Run an engine to the end, with requests that come now and then."""
    rng, left = random.Random(seed), list(requests)
    while True:
        if left and rng.random() < 0.5:
            engine.submit([left.pop(0)])
        if not engine.step() and not left:
            return


def require_alone(generator: TextGenerator, some: Sequence[Some], requests: Sequence[Completion]) -> None:
    for (prompt, settings), request in zip(some, requests, strict=True):
        (alone,) = generator.generate([prompt], settings)
        assert (request.generated, request.ending) == (alone.ids, "stop" if alone.ended else "length"), settings
        assert sum(request.logs) == pytest.approx(alone.log_probability, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_each_text_is_that_given_alone(name: str, golden: Callable[[str], Any]) -> None:
    generator = generator_of(name, golden)
    some = mixed(14, 0)
    requests = [completion(generator, *one) for one in some]
    engine, delivered = engine_of(generator)
    finish(engine, requests)
    require_alone(generator, some, requests)
    assert {id(one) for one in delivered} == {id(one) for one in requests}
    assert engine.counts.tokens == sum(len(one.generated) for one in requests)
    assert engine.counts.rows > 1.5 * engine.counts.steps  # they were indeed generated together


@pytest.mark.usefixtures("kernels")
def test_rows_of_kernels_give_the_same(golden: Callable[[str], Any]) -> None:
    generator = generator_of("gpt", golden)
    some = mixed(14, 1, 30)
    requests = [completion(generator, *one) for one in some]
    engine, _ = engine_of(generator)
    engine.warm()
    finish(engine, requests)
    require_alone(generator, some, requests)
    assert sorted(engine.free) == list(range(5))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("count", [1, 2, 4])
def test_texts_join_once_where_all_slots_are_taken(count: int, golden: Callable[[str], Any]) -> None:
    generator = generator_of("gpt", golden)
    some = [(prompt, TextSettings(length=20, temperature=0.0)) for prompt, _ in mixed(count, 4)]
    requests = [completion(generator, *one) for one in some]
    engine, _ = engine_of(generator, count)
    engine.submit(requests)
    finish(engine, [])
    require_alone(generator, some, requests)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("words", [0, 1, 40, 100])
def test_prompts_are_read_beside_texts_that_are_under_way(
    words: int, golden: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.models.gpt.rows.MAX_ROWS", 16)  # so that a long prompt has several parts
    generator = generator_of("gpt", golden)
    prompt, settings = " ".join(WORDS * 10).split()[:words], TextSettings(length=9, temperature=0.0)
    some = [(" ".join(prompt), settings), *mixed(5, 2, 12), (" ".join(prompt[1:]), settings)]
    requests = [completion(generator, *one) for one in some]
    engine, _ = engine_of(generator)
    engine.submit(requests[1:-1])
    for _ in range(3):
        engine.step()
    engine.submit([requests[0], requests[-1]])
    finish(engine, [])
    require_alone(generator, some, requests)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels run on a GPU")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_on_a_gpu_are_bit_identical(temperature: float, golden: Callable[[str], Any]) -> None:
    generator = golden("language_model-gpt")
    torch.manual_seed(0)
    config = GptConfig(vocab=generator.tokenizer.vocab, width=192, heads=3, layers=3, context=400)
    big = TextGenerator(build(config), generator.tokenizer, torch.device("cuda")).bfloat16()
    settings = [one.but(temperature=temperature, length=60) for _, one in mixed(20, 3)]
    some = [(prompt, one) for (prompt, _), one in zip(mixed(20, 3), settings, strict=True)]
    together, alone = [completion(big, *one) for one in some], [completion(big, *one) for one in some]
    engine, _ = engine_of(big, 9)
    engine.warm()
    finish(engine, together)
    for request in alone:
        finish(engine, [request])
    assert [one.generated for one in together] == [one.generated for one in alone]
    assert [one.logs for one in together] == [one.logs for one in alone]


def test_cancelled_and_late_requests_end_within_a_step(golden: Callable[[str], Any]) -> None:
    generator = generator_of("gpt", golden)
    settings = TextSettings(length=1000, temperature=0.0)
    running, waiting, late = (completion(generator, "the red", settings) for _ in range(3))
    engine, delivered = engine_of(generator, 2)
    engine.submit([running, late, waiting])
    for _ in range(3):
        engine.step()
    assert (len(running.generated), len(waiting.generated), waiting.slot) == (3, 0, -1)
    running.cancel()
    waiting.cancel()
    late.deadline = 0.0
    steps = engine.counts.steps
    engine.step()
    assert (running.ending, waiting.ending, late.ending) == ("cancelled", "cancelled", "timeout")
    assert (engine.counts.steps, engine.active, sorted(engine.free)) == (steps, [], [0, 1])
    assert {id(running), id(waiting), id(late)} <= {id(one) for one in delivered}
    assert not engine.step()


def test_full_queue_takes_all_or_nothing(golden: Callable[[str], Any]) -> None:
    generator = generator_of("gpt", golden)
    engine = Engine(generator, 1, 4096, 3, lambda some: None)
    some = [completion(generator, "the", TextSettings(length=2)) for _ in range(5)]
    engine.submit(some[:2])
    with pytest.raises(Full):
        engine.submit(some[2:4])
    engine.submit(some[2:3])
    finish(engine, [])
    assert [one.ending for one in some] == ["length"] * 3 + [None] * 2


def test_a_failing_step_ends_its_texts_and_the_engine_continues(
    golden: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = generator_of("gpt", golden)
    engine, delivered = engine_of(generator, 2)
    lost = completion(generator, "the red", TextSettings(length=9))
    engine.submit([lost])
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.rows, "step", lambda slots, method: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    assert lost.ending == "error" and delivered[-1] is lost
    some = mixed(3, 5)
    requests = [completion(generator, *one) for one in some]
    finish(engine, requests)
    require_alone(generator, some, requests)
