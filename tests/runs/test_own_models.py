"""A user's own modules, trained by a recipe: checkpoints, exact resume, prediction, and errors."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tolerance import close
from torch import Tensor, nn

from heedful import hub
from heedful.data.images.sources import scale_pixels
from heedful.errors import UserError
from heedful.models.gpt.model import Gpt
from heedful.models.own import PlainCausal, own_class, wrap_module
from heedful.runs.fit import fit
from heedful.runs.load import load, read_recipe
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Event, Finished, Started, Step, train
from heedful.tasks.recipe_parts import Recipe
from heedful.tasks.translation.predictor import Translator

pytestmark = pytest.mark.usefixtures("no_loss_curve")

STEPS = ["train.budget.steps=6", "train.evaluate_every=3", "train.save_every=2", "train.log_every=1", "train.samples=2"]
NUMBERS = [
    "data.train=60", "data.valid=6", "data.test=6", "tokenizer.vocab=80", "model.context=48", "train.batch_tokens=256",
    "train.schedule.warmup=2", *STEPS,
]  # fmt: skip
COUNTING = ["data={kind: counting, train: 20, valid: 2, test: 2}", "tokenizer.vocab=80"]
TEXT = "data={kind: text, train: [text.txt], held_out: 0.2}"
PROSE = [
    TEXT, "tokenizer={kind: characters, vocab: 60}", "train.batch_tokens=128", "model={kind: gpt, context: 16}",
    "decode.length=8", "train.schedule.warmup=2", *STEPS,
]  # fmt: skip


class Sentences(nn.Module):
    """A simple translation model: the mean of the source, and a recurrent decoder."""

    def __init__(self, vocab: int, width: int = 12) -> None:
        super().__init__()
        self.tokens, self.cell = nn.Embedding(vocab, width), nn.GRU(width, width, batch_first=True)
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(width, vocab)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source (B, S), target (B, T) -> logits (B, T, V)."""
        real = (source != 0)[..., None]
        mean = (self.tokens(source) * real).sum(1) / real.sum(1).clamp(min=1)
        return self.out(self.drop(self.cell(self.tokens(target), mean[None])[0]))


class Words(nn.Module):
    """A causal language model: recurrent, without a state."""

    def __init__(self, vocab: int, width: int = 12) -> None:
        super().__init__()
        self.tokens, self.cell = nn.Embedding(vocab, width), nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> logits (B, T, V)."""
        return self.out(self.cell(self.tokens(tokens))[0])


class Digits(nn.Module):
    """An autoencoder in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 5), nn.Linear(5, 64)

    def forward(self, images: Tensor) -> Tensor:
        """images (B, 64) -> the same."""
        return self.decoder(self.encoder(images))


class Languages(nn.Module):
    """A text classifier: the mean of its words."""

    def __init__(self, vocab: int, classes: int) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(vocab, 8), nn.Linear(8, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> logits (B, C)."""
        return self.out(self.tokens(tokens).mean(1))


def sentences(config: Any) -> Sentences:
    """The module for the vocabulary of a run, with weights that do not depend on the random state."""
    torch.manual_seed(5)
    return Sentences(config.vocab)


def numbers(*changes: str) -> Recipe:
    return load_recipe("numbers", [*NUMBERS, *changes])


def until(step: int, run: Path, recipe: Recipe, model: Any) -> list[Event]:
    """The events of a run that stops after a step."""
    at = [0]
    events = []
    for event in train(recipe, run, lambda: at[0] >= step, model=model):
        events.append(event)
        at[0] = event.step if isinstance(event, Started | Step) else at[0]
    return events


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    run = tmp_path_factory.mktemp("own") / "run"
    return run, list(train(numbers(), run, model=sentences))


def test_own_module_is_trained_evaluated_and_reported(whole: tuple[Path, list[Event]]) -> None:
    run, events = whole
    assert events[-1] == Finished(6, False, str(run))
    (start,) = (event for event in events if isinstance(event, Started))
    vocab = read_recipe(run).tokenizer.vocab
    assert start.parameters == sum(weight.numel() for weight in Sentences(start.vocab).parameters()) and vocab >= 60
    manifest = json.loads((run / "model" / "manifest.json").read_text())
    assert manifest["about"]["recipe"]["own_model"] == "sentences" == read_recipe(run).own_model
    assert (run / "results.json").exists() and "sentences of" in (run / "report.html").read_text()


def test_loaded_own_module_predicts_the_same(whole: tuple[Path, list[Event]]) -> None:
    run, _ = whole
    translator = load(run, model=sentences)
    texts = ["twelve", "three hundred one"]
    assert translator.translate(texts) == load(run / "model", model=sentences).translate(texts)
    module = translator.model.module
    assert isinstance(module, Sentences) and module.state_dict().keys() == translator.model.state_dict().keys()
    ids = torch.tensor([[5, 6, 7, 3]])
    state = translator.model.start(ids)
    first, state = translator.model(torch.tensor([[2]]), state)
    second, _ = translator.model(torch.tensor([[9]]), state)
    both = module(ids, torch.tensor([[2, 9]]))
    close(torch.cat([first, second], 1), both)


@pytest.mark.parametrize("step", [1, 2, 5])
def test_stopped_run_resumes_bit_for_bit(whole: tuple[Path, list[Event]], tmp_path: Path, step: int) -> None:
    run = tmp_path / "run"
    assert until(step, run, numbers(), sentences)[-1] == Finished(step, True, str(run))
    resumed = list(train(numbers(), run, model=sentences))
    assert next(event for event in resumed if isinstance(event, Started)).step == step
    assert weights(run) == weights(whole[0])
    assert (run / "results.json").exists()


def test_killed_run_resumes_bit_for_bit(whole: tuple[Path, list[Event]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = os.fork()
    if child == 0:
        for event in train(numbers(), run, model=sentences):
            if isinstance(event, Step) and event.step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    list(train(numbers(), run, model=sentences))
    assert weights(run) == weights(whole[0])


class Others(Sentences):
    """The same under another name."""

    def __init__(self, config: Any) -> None:
        super().__init__(config.vocab)


def larger(config: Any) -> Sentences:
    return Sentences(config.vocab, width=20)


larger.__name__ = "sentences"  # as if its code had changed


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "needs your own model sentences"),
        (Others, "needs your own model sentences"),
        (larger, "the weights do not fit the model"),
    ],
    ids=["none", "another", "larger"],
)
def test_different_module_is_rejected(
    whole: tuple[Path, list[Event]], tmp_path: Path, model: Any, message: str
) -> None:
    run = tmp_path / "run"
    until(2, run, numbers(), sentences)
    with pytest.raises(UserError, match=message):
        list(train(numbers(), run, model=model))
    with pytest.raises(UserError, match=message):
        load(run, model=model)
    with pytest.raises(UserError, match=message):
        load(whole[0], model=model)


def test_own_module_is_rejected_for_a_run_of_another_model(tmp_path: Path) -> None:
    run, tiny = tmp_path / "run", numbers("model.width=8", "model.heads=2", "model.hidden=8")
    until(2, run, tiny, None)
    for refused in (lambda: list(train(tiny, run, model=sentences)), lambda: load(run, model=sentences)):
        with pytest.raises(UserError, match="does not use a model of your own"):
            refused()


def test_recipe_that_names_a_class_needs_it(whole: tuple[Path, list[Event]], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs your own model sentences") as error:
        list(train(read_recipe(whole[0]), tmp_path / "run"))
    assert "model=sentences" in str(error.value.todo)


def test_own_module_has_no_published_form(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(f"line {number} of a text" for number in range(40)))
    recipe = load_recipe("gpt-prose", [*PROSE, f"data.root={tmp_path}"])
    list(train(recipe, tmp_path / "run", model=lambda config: Words(config.vocab)))
    with pytest.raises(UserError, match="no published form"):
        hub.pretrained(tmp_path / "run")


class Wrong(nn.Module):
    """A module that returns the result of a function."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.given = nn.Parameter(torch.zeros(3)), forward

    def forward(self, source: Tensor, target: Tensor) -> Any:
        return self.given(self, source, target)


@pytest.mark.parametrize(
    ("forward", "found"),
    [
        (lambda own, source, target: target.float(), "a tensor of shape"),
        (lambda own, source, target: target[..., None] + own.weight, "a tensor of shape"),
        (lambda own, source, target: (target, None), "tuple"),
    ],
    ids=["dimensions", "vocabulary", "tuple"],
)
def test_invalid_outputs_are_named_with_their_shape(forward: Callable[..., Any], found: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Wrong returned something else") as error:
        list(train(numbers(), tmp_path / "run", model=Wrong(forward)))
    assert found in str(error.value.found) and "(B, T, V)" in str(error.value.expected)


@pytest.mark.parametrize("model", [Digits(), Gpt(load_recipe("gpt-prose").model.model_copy(update={"vocab": 9}))])
def test_module_of_another_role_is_rejected(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no model for this task"):
        list(train(numbers(), tmp_path / "run", model=model))


def test_encoder_without_our_settings_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no model for this task") as error:
        list(train(load_recipe("bert-prose", COUNTING), tmp_path / "run", model=Digits()))
    assert "subclass" in str(error.value.expected)


def test_causal_module_generates_the_same_in_any_batch(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(f"line {number} of a text" for number in range(60)))
    recipe = load_recipe("gpt-prose", [*PROSE, f"data.root={tmp_path}"])
    list(train(recipe, tmp_path / "run", model=lambda config: Words(config.vocab)))
    writer = load(tmp_path / "run", model=lambda config: Words(config.vocab))
    prompts = ["line 1", "line", "of a text\nline 2"]
    together = [found.text for found in writer.generate(prompts, temperature=0.0)]
    alone = [writer.generate([prompt], temperature=0.0)[0].text for prompt in prompts]
    assert together == alone and all(together)


def test_left_padded_rows_start_at_their_first_token() -> None:
    module = Words(20).eval()
    model = PlainCausal(module, type("Config", (), {"vocab": 20}))
    tokens, real = torch.tensor([[4, 4, 5, 6], [7, 8, 9, 10]]), torch.tensor([[False, True, True, True], [True] * 4])
    _, state = model.features(tokens, model.start(2, torch.device("cpu")), real)
    logits, _ = model(torch.tensor([[11], [12]]), state)
    close(logits[0, 0], module(torch.tensor([[4, 5, 6, 11]]))[0, -1])
    close(logits[1, 0], module(torch.tensor([[7, 8, 9, 10, 12]]))[0, -1])


def test_instance_is_trained_in_place_and_an_autoencoder_has_its_own_code(tmp_path: Path) -> None:
    module = Digits()
    before = module.encoder.weight.clone()
    recipe = load_recipe("digits", ["train.budget={steps: 20}", "train.device=cpu"])
    list(train(recipe, tmp_path / "run", model=module))
    assert not torch.equal(module.encoder.weight, before)
    images = recipe.data.read("test").pixels[:3]
    autoencoder = load(tmp_path / "run", model=Digits())
    assert (
        autoencoder.encode(images).shape == (3, 5)
        and autoencoder.decode(autoencoder.encode(images)).shape == images.shape
    )
    close(
        autoencoder.reconstruct(images).reshape(3, 64),
        module(torch.from_numpy(scale_pixels(images).reshape(3, 64))).detach(),
    )


def test_own_text_classifier(tmp_path: Path) -> None:
    recipe = load_recipe(
        "number-languages-conv", ["train.budget={steps: 6}", "data.train=80", "data.valid=20", "data.test=20"]
    )
    list(train(recipe, tmp_path / "run", model=lambda config: Languages(config.vocab, len(config.labels))))
    classifier = load(tmp_path / "run", model=lambda config: Languages(config.vocab, len(config.labels)))
    assert classifier.classify(["eins", "two"])[0].label in classifier.labels


def test_subclass_of_our_model_works_like_ours(tmp_path: Path) -> None:
    class Doubled(Gpt):
        """A GPT whose logits are doubled."""

        def forward(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
            logits, state = super().forward(tokens, state)
            return 2 * logits, state

    (tmp_path / "text.txt").write_text("\n".join(f"line {number} of a text" for number in range(40)))
    small = "model={kind: gpt, context: 16, width: 8, heads: 2, layers: 1, hidden: 8}"
    recipe = load_recipe("gpt-prose", [*PROSE, f"data.root={tmp_path}", small])
    list(train(recipe, tmp_path / "run", model=Doubled))
    writer = load(tmp_path / "run", model=Doubled)
    assert isinstance(writer.model, Doubled) and writer.generate(["line"])[0].text


def test_module_trained_in_a_users_own_loop_is_saved_and_loaded(
    whole: tuple[Path, list[Event]], tmp_path: Path
) -> None:
    before = load(whole[0], model=sentences)
    module = Sentences(before.tokenizer.vocab)
    config = read_recipe(whole[0]).model.model_copy(update={"vocab": before.tokenizer.vocab})
    translator = Translator(wrap_module(module, config), before.tokenizer, 48, torch.device("cpu"))
    translator.save(tmp_path / "saved")
    again = Translator.load(tmp_path / "saved", model=Sentences(before.tokenizer.vocab))
    assert again.translate(["twelve", "one"]) == translator.translate(["twelve", "one"])
    assert Translator.load(tmp_path / "saved", model=sentences).translate(["one"]) == translator.translate(["one"])
    with pytest.raises(UserError, match="your own model Sentences"):
        load(tmp_path / "saved")


def test_autoencoder_and_subclass_are_saved_with_their_class(tmp_path: Path) -> None:
    recipe = load_recipe("digits", ["train.budget={steps: 2}", "train.device=cpu"])
    images = recipe.data.read("test").pixels[:3]
    autoencoder: Any = fit(recipe, tmp_path / "run", model=Digits())
    autoencoder.save(tmp_path / "saved")
    again: Any = load(tmp_path / "saved", model=Digits())
    assert (again.reconstruct(images) == autoencoder.reconstruct(images)).all()

    class Doubled(Gpt):
        """A GPT under another name."""

    config = load_recipe("gpt-prose").model.model_copy(update={"vocab": 9, "width": 8, "heads": 2, "layers": 1})
    assert own_class(Doubled(config)) == "Doubled" and own_class(Gpt(config)) == ""
