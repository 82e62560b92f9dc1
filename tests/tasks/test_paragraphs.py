"""Paragraph captioning: a run, its predictor and the trace of each sentence, resuming, and unusable input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from heedful.blocks.taps import watch
from heedful.data.images.paragraphs import DescribedImages
from heedful.data.images.scene_facts import check
from heedful.data.own import Dataset
from heedful.errors import UserError
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Evaluated, Started, Step, train
from heedful.tasks.paragraphs.losses import mean_loss, paragraph_loss
from heedful.tasks.paragraphs.predictor import DescribedSentence, ImageDescriber, paragraph_scores
from heedful.tasks.paragraphs.recipe import ParagraphTaskConfig
from heedful.tasks.paragraphs.task import ParagraphTask
from heedful.tasks.paragraphs.truth import is_grounded
from heedful.training.checkpoint.folder import newest
from heedful.training.distributed.team import Team
from tolerance import close, near
from training.test_distributed import run_team

SMALL = (
    "data.train=8", "data.valid=4", "data.test=4", "data.size=[24,24]", "data.objects=[1,3]", "train.device=cpu",
    "model.encoder.size=[24,24]", "model.encoder.filters=[8,12]", "model.grid=2", "model.memory=48", "model.width=24",
    "model.hidden=64", "train.batch_examples=8", "train.optimizer.lr=0.01", "train.schedule={kind: constant}",
    "train.log_every=1", "train.evaluate_every=200", "train.save_every=200",
)  # fmt: skip


def run(folder: Path, *changes: str, until: int = 10**6, **more: Any) -> list[Any]:
    events = list[Any]()

    def stop() -> bool:
        return any(isinstance(event, Step) and event.step >= until for event in events)

    for event in train(load_recipe("paragraphs", (*SMALL, *changes)), folder, stop, **more):
        events.append(event)
    return events


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned eight scenes by heart."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(folder, "train.budget={steps: 100}")
    return folder


@pytest.fixture(scope="module")
def describer(trained: Path) -> ImageDescriber:
    return heedful.load(trained, heedful.ImageDescriber)


@pytest.fixture(scope="module")
def scenes() -> DescribedImages:
    """The scenes that the run has learned."""
    return ParagraphTask(load_recipe("paragraphs", SMALL)).read("train")


def boxes(scenes: DescribedImages, number: int) -> list[list[float]]:
    return [list(map(float, thing.box)) for thing in scenes.scenes[number].things]


@pytest.mark.claim("I10")
def test_paragraphs_are_planned_sentence_by_sentence_and_grounded(
    describer: ImageDescriber, scenes: DescribedImages
) -> None:
    """Several sentences that are true, each from its own region, and an end by the model's own decision."""
    found = describer.describe(list(scenes.pixels), [boxes(scenes, number) for number in range(len(scenes))])
    for paragraph, scene, reference in zip(found, scenes.scenes, scenes.paragraphs, strict=True):
        assert paragraph.complete and len(paragraph.sentences) == 2 * len(scene.things)
        assert paragraph.text == reference.text == " ".join(sentence.text for sentence in paragraph.sentences)
        for sentence, regions in zip(paragraph.sentences, reference.regions, strict=True):
            assert check(sentence.text, scene).true and is_grounded(sentence, scene)
            assert sentence.regions == regions and sentence.region == regions[0]
            assert sentence.weights.shape == (2, 1 + len(scene.things))
            close(sentence.weights.sum(-1), np.ones(2, np.float32))
            assert sentence.weights[0].argmax() == sentence.region
    scores = {score.name: score.value for score in paragraph_scores(found, scenes)}
    assert scores["true"] == scores["all_true"] == scores["exact_match"] == 100


@pytest.mark.claim("I10")
def test_a_sentence_comes_from_the_region_that_it_attends_to(
    describer: ImageDescriber, scenes: DescribedImages
) -> None:
    """The two levels: a topic made of another region gives another sentence, with all else the same."""
    number = max(range(len(scenes)), key=lambda row: len(scenes.scenes[row].things))
    model: Any = describer.model
    task = ParagraphTask(load_recipe("paragraphs", SMALL))
    batch = task.encode(scenes, describer.tokenizer).batch(torch.tensor([number]))
    with watch(model, model.grounding) as seen:
        (before,) = describer.describe_pixels(batch.pixels, [scenes.paragraphs[number].boxes])
    close(seen.all[model.grounding][1][0], before.sentences[1].weights)
    memory, real, _ = describer.remember(batch.pixels, [scenes.paragraphs[number].boxes])
    said = dict[int, str]()
    with torch.inference_mode():
        _, state = model.plan(memory, real, model.begin_paragraph(memory, real))
        for region in range(1, memory.shape[1]):
            plan, _ = model.plan(memory, real, state, torch.tensor([[region] * 2]))
            ((said[region], _),) = describer.write(plan.topic)
    assert said.pop(before.sentences[1].region) == before.sentences[1].text
    assert said and before.sentences[1].text not in said.values()


@pytest.mark.claim("I11")
def test_sentences_attend_to_a_memory_of_local_phrases(describer: ImageDescriber, scenes: DescribedImages) -> None:
    """Each region has a phrase, the sentence about it says the same, and another phrase changes the sentence."""
    number = max(range(len(scenes)), key=lambda row: len(scenes.scenes[row].things))
    image, scene, where = scenes.pixels[number], scenes.scenes[number], boxes(scenes, number)
    (found,) = describer.describe([image], [where])
    assert found.phrases == [scene.phrase(thing) for thing in scene.things]
    for sentence in found.sentences[1 : 1 + len(scene.things)]:
        assert sentence.phrase == found.phrases[sentence.region - 1] and sentence.phrase in sentence.text
    assert found.sentences[0].region == 0 and found.sentences[0].phrase == ""
    (same,) = describer.describe([image], [where], [found.phrases])
    assert same.text == found.text
    (other,) = describer.describe([image], [where], [["purple cross"] * len(where)])
    assert other.phrases == ["purple cross"] * len(where) and other.text != found.text


def test_the_loss_is_that_of_its_parts(describer: ImageDescriber, scenes: DescribedImages) -> None:
    task = ParagraphTask(load_recipe("paragraphs", SMALL))
    batch = task.encode(scenes, describer.tokenizer).batch(torch.arange(3))
    model: Any = describer.model
    with torch.no_grad():
        parts = [
            float(paragraph_loss(model, batch, ParagraphTaskConfig(phrases=p, grounding=g, stop=s)).total)
            for p, g, s in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 3, 4))
        ]
        whole = paragraph_loss(model, batch, ParagraphTaskConfig())
    words = parts[0]
    assert all(part > words for part in parts[1:4])
    assert parts[4] - words == near(
        sum(n * (part - words) for n, part in zip((2, 3, 4), parts[1:4], strict=True)), of=parts[4]
    )
    assert float(whole.plain) == near(parts[1], of=parts[1]) and int(whole.count) == batch.tokens
    with torch.no_grad():
        each = [
            paragraph_loss(
                model, task.encode(scenes, describer.tokenizer).batch(torch.tensor([n])), ParagraphTaskConfig()
            )
            for n in range(3)
        ]
    assert float(whole.total) == near(sum(float(one.total) for one in each), of=words + 1)
    encoded = task.encode(scenes, describer.tokenizer)
    assert mean_loss(model, encoded, describer.device) == near(task.loss(describer, encoded))
    unlinked = replace(batch, chosen=torch.full_like(batch.chosen, -1))
    assert paragraph_loss(model, unlinked, ParagraphTaskConfig()).total.isfinite()


def test_a_batch_describes_as_one_image_alone(describer: ImageDescriber, scenes: DescribedImages) -> None:
    where = [boxes(scenes, number) for number in range(len(scenes))]
    together = describer.describe(list(scenes.pixels), where)
    for number, each in enumerate(together):
        (alone,) = describer.predict([(scenes.pixels[number], where[number])])
        assert alone.text == each.text and alone.phrases == each.phrases and alone.boxes == each.boxes
        for one, other in zip(alone.sentences, each.sentences, strict=True):
            close(one.weights, other.weights, slack=1024)
    (wide,) = describer.describe([scenes.pixels[0]], where[:1], beams=3)
    assert wide.text == together[0].text
    assert describer.describe([], []) == []


def test_boxes_in_another_order_give_the_same_paragraph(describer: ImageDescriber, scenes: DescribedImages) -> None:
    number = max(range(len(scenes)), key=lambda row: len(scenes.scenes[row].things))
    where = boxes(scenes, number)
    (found,) = describer.describe([scenes.pixels[number]], [where])
    (turned,) = describer.describe([scenes.pixels[number]], [where[::-1]])
    assert turned.text == found.text and turned.phrases == found.phrases[::-1]
    assert [one.region for one in turned.sentences[1:]] == [1 + len(where) - one.region for one in found.sentences[1:]]


def test_a_larger_image_has_boxes_in_its_own_pixels(
    describer: ImageDescriber, scenes: DescribedImages, tmp_path: Path
) -> None:
    picture = Image.fromarray(scenes.pixels[0].transpose(1, 2, 0)).resize((72, 72), Image.Resampling.NEAREST)
    picture.save(tmp_path / "scene.png")
    where = [[3 * side for side in box] for box in boxes(scenes, 0)]
    (found,) = describer.describe([tmp_path / "scene.png"], [where])
    assert found.text == scenes.paragraphs[0].text and found.boxes == [tuple(box) for box in where]
    assert describer.describe([picture], [where])[0].text == found.text
    figure = found.plot(picture, "A scene")
    shown = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert found.sentences[0].text in shown and "1" in shown


def test_evaluation_of_files_and_examples(describer: ImageDescriber, scenes: DescribedImages, tmp_path: Path) -> None:
    rows: list[tuple[Any, dict[str, Any]]] = []
    for number in range(3):
        said = scenes.paragraphs[number]
        row = {"boxes": boxes(scenes, number), "phrases": list(said.phrases), "paragraph": list(said.sentences)}
        rows.append((scenes.pixels[number], row))
        Image.fromarray(scenes.pixels[number].transpose(1, 2, 0)).save(tmp_path / f"{number}.png")
    lines = [json.dumps({"image": f"{number}.png", **row}) for number, (_, row) in enumerate(rows)]
    (tmp_path / "said.jsonl").write_text("\n".join(lines))
    by_file, by_hand = describer.evaluate(tmp_path / "said.jsonl"), describer.evaluate(rows)
    assert by_file.scores["exact_match"] == by_hand.scores["exact_match"] == 100 and by_file.count == 3
    assert by_file.loss == near(by_hand.loss)


def test_a_saved_predictor_describes_the_same(
    describer: ImageDescriber, scenes: DescribedImages, tmp_path: Path
) -> None:
    describer.save(tmp_path / "model")
    again = heedful.load(tmp_path / "model", heedful.ImageDescriber)
    assert (tmp_path / "model/tokenizer.json").exists() and (tmp_path / "model/images.json").exists()
    assert again.describe([scenes.pixels[1]], [boxes(scenes, 1)])[0].to_dict() == (
        describer.describe([scenes.pixels[1]], [boxes(scenes, 1)])[0].to_dict()
    )


def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    short = ("train.budget={steps: 6}", "train.batch_examples=3", "train.save_every=3", "train.evaluate_every=3")
    more = ("data.train=7", "model.dropout=0.1")
    run(tmp_path / "whole", *short, *more)
    run(tmp_path / "cut", *short, *more, until=3)
    events = run(tmp_path / "cut", *short, *more)
    assert next(event for event in events if isinstance(event, Started)).step == 3
    whole, cut = (newest(tmp_path / name, 1)[0][0].load("model") for name in ("whole", "cut"))
    assert whole.keys() == cut.keys() and all(torch.equal(whole[name], cut[name]) for name in whole)


@pytest.mark.slow
def test_the_shipped_recipe_describes_unseen_scenes(tmp_path: Path) -> None:
    """Minutes of training: at least 95 of 100 sentences are true and come from the right regions."""
    events = train(load_recipe("paragraphs"), tmp_path / "run")
    (test,) = (event for event in events if isinstance(event, Evaluated) and event.split == "test")
    scores = {score.name: score.value for score in test.scores}
    assert scores["true"] >= 95 and scores["all_true"] >= 90


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """Some batches have one image: one of the processes has none."""
    changes = (
        "data.train=5", "train.budget={steps: 6}", "train.batch_examples=2", "train.optimizer.eps=1e-4",
        "train.save_every=6", "train.evaluate_every=6",
    )  # fmt: skip

    def together(team: Team) -> None:
        list(train(load_recipe("paragraphs", (*SMALL, *changes)), tmp_path / "two", team=team))

    run_team(2, together, tmp_path)
    run(tmp_path / "one", *changes)
    two, one = (newest(tmp_path / name, 1)[0][0].load("model") for name in ("two", "one"))
    for name in one:
        close(two[name], one[name], 2**13, of=one["out.weight"])


def test_a_figure_of_a_run(trained: Path, describer: ImageDescriber) -> None:
    figure = heedful.figure("paragraphs", model=str(trained), image=1)
    shown = [text.get_text() for axis in figure.axes for text in axis.texts]
    paragraph = describer.describe_all(ParagraphTask(load_recipe("paragraphs", SMALL)).read("test"))[1]
    assert f"1  {paragraph.phrases[0]}"[:60] in [text[:60] for text in shown]
    with pytest.raises(UserError, match="there is no such test image"):
        heedful.figure("paragraphs", model=str(trained), image=4)


def test_own_data_without_regions_of_sentences(scenes: DescribedImages, tmp_path: Path) -> None:
    examples = [
        (
            scenes.pixels[number],
            {
                "boxes": boxes(scenes, number),
                "phrases": list(scenes.paragraphs[number].phrases),
                "paragraph": scenes.paragraphs[number].text,
            },
        )
        for number in range(4)
    ]
    run(tmp_path / "own", "data={kind: own}", "train.budget={steps: 2}", data=Dataset(examples, examples[:2]))
    found = heedful.load(tmp_path / "own", heedful.ImageDescriber)
    assert found.describe([scenes.pixels[0]], [boxes(scenes, 0)])[0].sentences


def test_input_that_cannot_be_used(describer: ImageDescriber, scenes: DescribedImages) -> None:
    image = scenes.pixels[0]
    for given, message in (
        ([[0, 0, 25, 24]], "this box is outside the image"),
        ([[3, 3, 3, 9]], "this box is empty"),
        ([], "there are no boxes"),
        ([[1, 2, 3]], "this is no box"),
    ):
        with pytest.raises(UserError, match=message):
            describer.describe([image], [given])
    with pytest.raises(UserError, match="each box needs a phrase"):
        describer.describe([image], [[[0, 0, 9, 9]]], [[]])
    with pytest.raises(ValueError, match="need as many lists"):
        describer.describe([image], [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.encoder.size=[32,32]", "the model does not fit the images"),
        ("model.freeze=encoder", "randomly initialized layers must be trained"),
        ("train.compile=true", "a paragraph is a loop over its sentences"),
        ("model.encoder.classes=3", "leave classes out"),
    ],
)
def test_recipes_that_do_not_fit(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(tmp_path / "run", "train.budget={steps: 1}", change)


def test_a_sentence_from_the_wrong_region_is_not_grounded(scenes: DescribedImages) -> None:
    number = max(range(len(scenes)), key=lambda row: len(scenes.scenes[row].things))
    scene = scenes.scenes[number]
    (text, (thing,)) = scene.sentences[1]
    none = np.zeros((2, 4), np.float32)
    assert is_grounded(DescribedSentence(text, thing + 1, "", (thing + 1,), none, 0.0), scene)
    assert not is_grounded(DescribedSentence(text, 0, "", (0,), none, 0.0), scene)
    assert not is_grounded(DescribedSentence(text, thing + 1, "", (thing + 1, 0), none, 0.0), scene)
    assert not is_grounded(DescribedSentence("A lovely day.", 1, "", (1,), none, 0.0), scene)
