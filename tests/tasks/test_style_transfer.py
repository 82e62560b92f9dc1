"""Style transfer: both players' losses, runs that resume, the predictor, its scores, and unusable input."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heedful
from heedful.data.labelled.batches import LabelledBatch
from heedful.data.tokenizers.vocabulary import TextVocab
from heedful.errors import UserError
from heedful.models import build, config_class
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Started, train
from heedful.tasks import task_of
from heedful.tasks.style_transfer.losses import (
    BEGIN,
    END,
    PAD,
    PlayerLosses,
    Texts,
    player_losses,
    transfer_loss,
    with_noise,
)
from heedful.tasks.style_transfer.predictor import grammar_scores, kept, markers
from heedful.tasks.style_transfer.recipe import StyleTransferTaskConfig
from heedful.tasks.style_transfer.task import StyleTransferTask
from heedful.training.checkpoint.folder import newest
from heedful.training.distributed.team import Team
from tolerance import close
from training.test_distributed import run_team

SMALL = (
    "data.train=40", "data.valid=8", "data.test=8", "model.width=8", "model.hidden=12", "model.dropout=0.1",
    "model.discriminator={width: 6, sizes: [1, 2], filters: 4}", "train.batch_examples=8", "train.evaluate_every=4",
    "train.save_every=2", "train.threads=1", "task.ready=4.5",
)  # fmt: skip


def recipe(*changes: str) -> Any:
    return load_recipe("registers", (*SMALL, "train.budget.steps=4", *changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run."""
    folder = tmp_path_factory.mktemp("styles") / "run"
    list(heedful.train(recipe(), folder))
    return folder


@pytest.fixture
def model(run: Path) -> heedful.TextStyleTransfer:
    return heedful.load(run, heedful.TextStyleTransfer)


# ------------------------------------------------------------------ losses on a tiny model in float64
def tiny(**settings: Any) -> Any:
    torch.manual_seed(4)
    found = config_class("style_transfer").tiny().model_copy(update={"dropout": 0.0, **settings})
    quiet = found.discriminator.model_copy(update={"dropout": 0.0})
    return build(found.model_copy(update={"discriminator": quiet})).double()


def batch(rows: Sequence[Sequence[int]] = ((5, 6, 7), (8, 9), (6, 6, 10, 11)), width: int = 8) -> LabelledBatch:
    lengths = torch.tensor([len(row) + 2 for row in rows])
    ids = torch.full((len(rows), width), PAD)
    for row, words in zip(ids, rows, strict=True):
        row[: len(words) + 2] = torch.tensor([BEGIN, *words, END])
    targets = torch.arange(len(rows)) % 2
    return LabelledBatch(ids, torch.zeros_like(ids), lengths, targets, torch.arange(len(rows)), width)


QUIET = StyleTransferTaskConfig(drop=0.0, shuffle=0.0, ready=100.0)


def losses(model: Any, given: LabelledBatch, settings: StyleTransferTaskConfig = QUIET) -> PlayerLosses:
    torch.manual_seed(6)
    return player_losses(model, Texts.of(given), given.targets, settings)


def players(model: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    named = dict(model.named_parameters())
    own = {name: weight for name, weight in named.items() if name.startswith("discriminator.")}
    return {name: weight for name, weight in named.items() if name not in own}, own


@pytest.mark.claim("M14")
@pytest.mark.parametrize("name", [field.name for field in fields(PlayerLosses)])
def test_each_loss_is_felt_by_its_own_player_alone(name: str) -> None:
    """The generator's losses give gradients to its weights only, the discriminator's to its own only."""
    model = tiny()
    getattr(losses(model, batch()), name).sum().backward()
    generator, discriminator = players(model)
    learning, resting = (discriminator, generator) if name == "discriminator" else (generator, discriminator)
    assert all(weight.grad is None for weight in resting.values())
    assert all(weight.grad is not None and weight.grad.any() for weight in learning.values())


@pytest.mark.claim("M14")
def test_the_signs_of_both_players_gradients_by_finite_differences() -> None:
    """A step of the generator raises log p(style | transfer); one of the discriminator lowers it."""
    model, given = tiny(), batch()
    generator, discriminator = players(model)
    for weights, lowered, raised in (
        (generator, "adversarial", "discriminator"),
        (discriminator, "discriminator", "adversarial"),
    ):
        before = losses(model, given)
        gradients = torch.autograd.grad(getattr(before, lowered).sum(), list(weights.values()), allow_unused=True)
        norm = torch.cat([gradient.flatten() for gradient in gradients if gradient is not None]).norm()
        with torch.no_grad():
            for weight, gradient in zip(weights.values(), gradients, strict=True):
                weight -= 1e-4 / norm * (0 if gradient is None else gradient)
        after = losses(model, given)
        assert float((getattr(after, lowered) - getattr(before, lowered)).sum().detach()) == pytest.approx(
            -1e-4 * float(norm), rel=1e-2
        )
        assert getattr(after, raised).sum() > getattr(before, raised).sum()


def test_the_gradient_through_soft_texts_is_that_of_the_whole_loss() -> None:
    """Of the generator's loss as a function of its weights, the discriminator held fixed, by finite differences."""
    model, given = tiny(), batch()
    (gradient,) = torch.autograd.grad(losses(model, given).adversarial.sum(), [model.styles.weight])
    with torch.no_grad():
        for row, column in ((0, 1), (1, 3)):
            both = []
            for sign in (1, -1):
                model.styles.weight[row, column] += sign * 1e-5
                both.append(losses(model, given).adversarial.sum())
                model.styles.weight[row, column] -= sign * 1e-5
            assert float((both[0] - both[1]) / 2e-5) == pytest.approx(float(gradient[row, column]), rel=1e-5)


def test_losses_of_a_text_do_not_depend_on_padding_or_on_the_batch() -> None:
    model, rows = tiny(), [(5, 6, 7), (8, 9), (6, 6, 10, 11)]
    whole, wide, one = losses(model, batch(rows, 6)), losses(model, batch(rows, 11)), losses(model, batch(rows[:1]))
    for field in fields(PlayerLosses):
        close(getattr(wide, field.name), getattr(whole, field.name))
        close(getattr(one, field.name)[0], getattr(whole, field.name)[0])


def test_a_row_without_a_text_adds_nothing() -> None:
    model, given = tiny(), batch()
    empty = batch([()])
    empty = LabelledBatch(
        empty.ids, empty.segments, empty.lengths, torch.tensor([-100]), torch.tensor([-1]), empty.longest
    )
    loss = transfer_loss(model, empty, QUIET)
    loss.total.backward()
    assert loss.total.item() == 0 and int(loss.count) == 0
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())
    assert set(transfer_loss(model, given, QUIET).parts) == {field.name for field in fields(PlayerLosses)}


def test_noise_leaves_words_out_and_moves_them_nearby() -> None:
    torch.manual_seed(0)
    texts = Texts.of(batch([tuple(range(4, 20))] * 400 + [(5,)] * 20, 24))
    noisy = with_noise(texts, 0.25, 2.0)
    found = [row[:length].tolist() for row, length in zip(noisy.words, noisy.lengths, strict=True)]
    assert all(row[-1] == END and END not in row[:-1] and PAD not in row for row in found)
    assert all(row[:-1] == [5] for row in found[400:])  # the only word stays
    assert all(len(set(row)) == len(row) and set(row[:-1]) <= set(range(4, 20)) for row in found[:400])
    assert 0.2 < 1 - np.mean([len(row) - 1 for row in found[:400]]) / 16 < 0.3
    whole = with_noise(texts, 0.0, 2.0)
    places = whole.words[:400, :16] - 4  # (400, 16) where each word was
    distance = (places - torch.arange(16)).abs()
    assert int(distance.max()) in (2, 3) and 0.2 < float((distance > 0).double().mean()) < 0.9
    unchanged = with_noise(texts, 0.0, 0.0)
    assert torch.equal(unchanged.words, texts.words) and torch.equal(unchanged.lengths, texts.lengths)


# ------------------------------------------------------------------ runs
def test_a_run_resumes_bit_for_bit_with_both_optimizers(run: Path, tmp_path: Path) -> None:
    """Stopped after two steps, with another kind of optimizer for each player.

    The budget stays the same: the rate of the recipe's schedule depends on it.
    """
    both = recipe("task.discriminator={optimizer: {kind: rmsprop}, clip: 0.5}")
    whole, parts, seen = tmp_path / "whole", tmp_path / "parts", itertools.count()
    list(train(both, whole))
    list(train(both, parts, stop=lambda: next(seen) >= 2))
    assert [event.step for event in train(both, parts) if isinstance(event, Started)] == [2]
    one, other = (newest(folder, 1)[0][0] for folder in (whole, parts))
    for stem in ("model", "optimizer"):
        tensors, again = one.load(stem), other.load(stem)
        assert tensors.keys() == again.keys()
        assert [name for name in tensors if not torch.equal(tensors[name], again[name])] == []
    kept = one.load("optimizer")
    discriminator = {name for name in kept if ".discriminator." in name}
    assert {name.partition(".")[0] for name in discriminator} == {"square"}
    assert {name.partition(".")[0] for name in kept.keys() - discriminator} == {"exp_avg", "exp_avg_sq", "step"}
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert all(set(line["parts"]) == {field.name for field in fields(PlayerLosses)} for line in steps)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """Without noise or dropout, both players' weights are those of one process."""
    quiet = ("task.drop=0", "task.shuffle=0", "task.ready=100", "model.dropout=0", "model.discriminator.dropout=0",
             "train.optimizer.eps=1e-4", "task.discriminator.optimizer.eps=1e-4")  # fmt: skip

    def together(team: Team) -> None:
        list(train(recipe(*quiet), tmp_path / "two", team=team))

    run_team(2, together, tmp_path)
    list(heedful.train(recipe(*quiet), tmp_path / "one"))
    two, one = (newest(tmp_path / name, 1)[0][0].load("model") for name in ("two", "one"))
    for name in one:
        close(two[name], one[name], 2**13, of=one["words.weight"])


def test_a_text_is_transferred_the_same_alone_and_in_a_batch(model: heedful.TextStyleTransfer, tmp_path: Path) -> None:
    texts = [item.text for item in recipe().data.read("test").items]
    both = [(text, style) for text in texts for style in model.styles]
    found = model.predict(both)
    for given, one in zip(both, found, strict=True):
        (alone,) = model.predict([given])
        assert (alone.text, alone.style) == (one.text, given[1])
        assert alone.probability == pytest.approx(one.probability, rel=1e-4)
    model.save(tmp_path / "model")
    again = heedful.load(tmp_path / "model", heedful.TextStyleTransfer)
    assert [one.text for one in again.predict(both)] == [one.text for one in found]
    assert [one.text for one in model.transfer(texts, model.styles[0])] == [one.text for one in found[::2]]
    judged = model.classify(texts)
    assert all(sum(one.probabilities.values()) == pytest.approx(1.0, rel=1e-5) for one in judged)
    (odd,) = model.transfer(["the Zyzzyva will sell a boat"], "courtly")
    assert odd.unknown == ["Zyzzyva"]
    scores = model.evaluate([(item.text, item.label) for item in recipe().data.read("test").items]).scores
    assert set(scores) == {"transfer", "style", "content"}


def test_scores_are_those_of_the_grammar() -> None:
    items = recipe().data.read("test").items
    task = task_of(recipe())
    assert isinstance(task, StyleTransferTask)
    found = {score.name: score.value for score in grammar_scores(items, [item.text for item in items])}
    assert found == {"transfer": 0.0, "style": 0.0, "content": 100.0, "meaning": 0.0}
    assert kept(["a", "b", "b"], ["b", "b"]) == pytest.approx(2 / 3)
    assert kept(["a"], ["a", "b", "c", "d"]) == 0.25 and kept([], []) == 0
    texts = [(["the", "cat"], "plain"), (["yon", "cat"], "courtly")] * 9 + [(["rare"], "plain")]
    assert markers(texts) == {"the", "yon"}


# ------------------------------------------------------------------ own data, and what cannot be used
def test_a_file_for_each_style(tmp_path: Path) -> None:
    for split, count in (("train", 12), ("valid", 4)):
        for style in ("loud", "calm"):
            end = "!" if style == "loud" else "."
            lines = [f"the {word} runs {end}" for word in ("cat", "dog", "cow", "fox")] * (count // 4)
            (tmp_path / f"{split}.{style}.txt").write_text("\n".join([*lines, "", ""]))
    names = {split: f"{{loud: {split}.loud.txt, calm: {split}.calm.txt}}" for split in ("train", "valid")}
    data = f"data={{kind: style_files, root: {tmp_path}, train: {names['train']}, valid: {names['valid']}}}"
    settings = [one for one in SMALL if not one.startswith("data.")]
    small = load_recipe("registers", (data, *settings, "train.budget.steps=2", "train.evaluate_every=2"))
    list(heedful.train(small, tmp_path / "run"))
    found = heedful.load(tmp_path / "run", heedful.TextStyleTransfer)
    assert found.styles == ("calm", "loud")
    assert found.transfer(["the cat runs !"], "calm")[0].style == "calm"
    (tmp_path / "valid.calm.txt").write_text("\n \n")
    with pytest.raises(UserError, match="there are no texts") as error:
        small.data.read("valid")
    assert str(error.value.where).endswith("valid.calm.txt")


def test_what_cannot_be_used(model: heedful.TextStyleTransfer, tmp_path: Path) -> None:
    rows = [(item.text, "plain") for item in recipe().data.read("valid").items]
    settings = [one for one in SMALL if not one.startswith("data.")]
    own = load_recipe("registers", ("data={kind: own}", *settings))
    with pytest.raises(UserError, match="there is only one class"):
        list(heedful.train(own, tmp_path / "one", data=heedful.Dataset(rows, rows)))
    both = [*rows, (rows[0][0], "courtly")]
    with pytest.raises(UserError, match="unknown label"):
        list(heedful.train(own, tmp_path / "two", data=heedful.Dataset(both, [(rows[0][0], "rude")])))
    with pytest.raises(UserError, match="a style belongs to one text"):
        list(heedful.train(own, tmp_path / "pair", data=heedful.Dataset([("a", "b", "plain")], both)))
    with pytest.raises(UserError, match="the model does not know this style"):
        model.transfer(["the cat"], "rude")
    with pytest.raises(UserError, match="the text is empty"):
        model.transfer([" "], "plain")
    with pytest.raises(UserError, match="parallel: ddp"):
        recipe("train.parallel=fsdp")
    with pytest.raises(UserError, match="a style belongs to one text"):
        load_recipe("registers", ("data={kind: tsv, train: a, valid: b, text: x, pair: y, label: z}",))
    with pytest.raises(UserError, match="write hidden: 12"):
        recipe("model.hidden=11")
    with pytest.raises(UserError, match="at least 2"):
        load_recipe("registers", ("data={kind: style_files, train: {a: b}, valid: {a: b}}",))
    assert TextVocab.pad == PAD


# ------------------------------------------------------------------ it learns
def transferred(folder: Path, *changes: str) -> dict[str, float]:
    """The scores on the test set of a run of the shipped recipe."""
    list(heedful.train(load_recipe("registers", changes), folder))
    result = json.loads((folder / "results.json").read_text())
    assert result["split"] == "test"
    return {name: score["value"] for name, score in result["scores"].items()}


@pytest.mark.claim("M14")
def test_a_few_steps_teach_much_of_both_styles(tmp_path: Path) -> None:
    """Seconds of training; the shipped recipe, which takes a minute or two, is tested with `make test-all`."""
    scores = transferred(
        tmp_path / "run", "train.batch_examples=32", "train.budget.steps=90", "train.optimizer.lr=0.005",
        "data.train=2000", "data.valid=20", "data.test=60", "train.evaluate_every=90", "train.save_every=90",
        "train.threads=1",
    )  # fmt: skip
    assert scores["style"] >= 45 and scores["content"] >= 45, scores  # copying has no style, and chance no content


@pytest.mark.slow
@pytest.mark.claim("M14")
@pytest.mark.parametrize("seed", range(3))
def test_style_and_content_of_unseen_sentences(tmp_path: Path, seed: int) -> None:
    scores = transferred(tmp_path / "run", f"train.seed={seed}", "train.threads=1")
    assert scores["style"] >= 90 and scores["content"] >= 90, scores
