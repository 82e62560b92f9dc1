"""Images with paragraphs: drawn scenes, JSON lines, own examples, their batches, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.paragraph_batches import EncodedParagraphs, ParagraphBatches, encode_paragraphs
from heedful.data.images.paragraphs import (
    ParagraphFiles,
    ParagraphJsonl,
    SceneParagraphs,
    own_paragraphs,
    parse_paragraph,
)
from heedful.data.images.scene_facts import check
from heedful.data.tokenizers.tokenizer import Bpe, TrainedTokenizer
from heedful.errors import UserError
from tolerance import close

SCENES = SceneParagraphs(train=23, valid=5, test=5, size=(24, 32), objects=(1, 4))
READ = SCENES.read("train")
ROW: dict[str, Any] = {
    "boxes": [[2, 3, 8, 9], [1.5, 10, 12, 20]],
    "phrases": ["a cat", "a dog"],
    "paragraph": "A cat sits here. Is there a dog? It is beside the dog.",
    "regions": [[1], [2], [1, 2]],
}


def encoded(context: int = 40, slots: int = 2) -> EncodedParagraphs:
    texts = [text for each in READ.paragraphs for text in (*each.phrases, *each.sentences)]
    spec = ImageSpec(READ.pixels.shape[1:], (), (0.5,) * 3, (0.2,) * 3)
    return encode_paragraphs(READ, spec, TrainedTokenizer.train(Bpe(vocab=300), texts), context, slots)


def test_paragraphs_of_scenes_are_true_and_name_their_regions() -> None:
    assert READ.pixels.shape == (23, 3, 24, 32) and len(READ.scenes) == len(READ) == 23
    for paragraph, scene in zip(READ.paragraphs, READ.scenes, strict=True):
        assert paragraph.text == scene.paragraph and len(paragraph.boxes) == len(scene.things)
        for sentence, regions in zip(paragraph.sentences, paragraph.regions, strict=True):
            readings = check(sentence, scene).readings
            assert regions in [tuple(thing + 1 for thing in reading) or (0,) for reading in readings]
        for box, phrase, thing in zip(paragraph.boxes, paragraph.phrases, scene.things, strict=True):
            close(np.array(box) * [24, 32, 24, 32], np.array(thing.box, float))
            assert check(f"a {phrase}", scene).true and phrase.startswith(f"{thing.size} {thing.name}")
    with pytest.raises(ValidationError, match="smaller number first"):
        SceneParagraphs(objects=(3, 1))


def test_batches_hold_each_image_with_its_texts() -> None:
    data = encoded()
    batch = data.batch(torch.tensor([3, 0, 7]))
    paragraphs = [data.paragraphs[row] for row in (3, 0, 7)]
    assert batch.regions.tolist() == [1 + len(each.boxes) for each in paragraphs]
    assert batch.real.sum(1).tolist() == batch.regions.tolist() and batch.counts.tolist() == [
        len(each.sentences) for each in paragraphs
    ]
    sentences, phrases = iter(batch.sentences.tolist()), iter(batch.phrases.tolist())
    places = iter(batch.sentence_rows.tolist()), iter(batch.phrase_rows.tolist())
    for number, each in enumerate(paragraphs):
        assert batch.boxes[number, 0].tolist() == [0, 0, 1, 1]
        close(batch.boxes[number, 1 : 1 + len(each.boxes)], torch.tensor(each.boxes))
        for at, ids in enumerate(each.sentences):
            assert [token for token in next(sentences) if token] == ids and ids[0] == 2 and ids[-1] == 3
            assert next(places[0]) == number * batch.chosen.shape[1] + at
            assert tuple(batch.chosen[number, at].tolist()) == each.chosen[at]
        for at, ids in enumerate(each.phrases):
            assert [token for token in next(phrases) if token] == ids
            assert next(places[1]) == number * batch.boxes.shape[1] + 1 + at
    assert batch.tokens == int((batch.sentences > 2).sum() + (batch.phrases > 2).sum())
    empty = data.batch(torch.zeros(0, dtype=torch.long))
    assert empty.tokens == 0 and len(empty.pixels) == len(empty.sentences) == 0 and empty.boxes.shape == (0, 1, 4)


def test_every_image_comes_once_an_epoch_by_the_seed_alone() -> None:
    data = encoded()
    batches, same = (ParagraphBatches(data, 3, 6) for _ in range(2))
    assert batches.count == 4 and batches.epoch_of(5) == 1
    for epoch in range(2):
        found = [batches.at(position) for position in range(4 * epoch, 4 * epoch + 4)]
        assert sorted(pixels.sum().item() for one in found for pixels in one.pixels.long()) == sorted(
            pixels.sum().item() for pixels in data.pixels.long()
        )
        assert [one.tokens for one in found] == [batches.tokens(4 * epoch + n) for n in range(4)]
    assert torch.equal(same.at(5).sentences, batches.at(5).sentences)
    parts = [batches.at(5, part, 2) for part in range(2)]
    assert sum(part.tokens for part in parts) == batches.tokens(5)
    assert not torch.equal(batches.at(0).pixels, batches.at(4).pixels)


def test_long_sentences_are_left_out_and_regions_fill_their_slots() -> None:
    lengths = sorted(max(map(len, (*each.phrases, *each.sentences))) for each in encoded(context=1000).paragraphs)
    with pytest.raises(UserError, match="no paragraph fits the model's context"):
        encoded(context=2)
    short = encoded(context=lengths[11] - 1)
    assert short.dropped == sum(length > lengths[11] for length in lengths) > 0 and len(short) + short.dropped == 23
    assert encoded().sha256 == encoded().sha256 != short.sha256
    assert {len(regions) for each in encoded(slots=3).paragraphs for regions in each.chosen} == {3}
    assert encoded(slots=1).paragraphs[0].chosen[0] == (0,)


# ------------------------------------------------------------------ files
def write(folder: Path, *rows: dict[str, Any], size: tuple[int, int] = (24, 16)) -> ParagraphJsonl:
    folder.joinpath("images").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(len(rows)):
        Image.fromarray(rng.integers(0, 255, (*size[::-1], 3), np.uint8)).save(folder / f"images/{number}.png")
    lines = [json.dumps({"image": f"{number}.png", **row}) for number, row in enumerate(rows)]
    folder.joinpath("said.jsonl").write_text("\n\n".join(lines) + "\n")
    files = ParagraphFiles(paragraphs="said.jsonl", images="images")
    return ParagraphJsonl(root=str(folder), train=files, valid=files, size=(8, 12))


def test_json_lines_with_images(tmp_path: Path) -> None:
    sentences = {**ROW, "paragraph": ["A cat.", "A  dog. Or two."], "regions": None}
    found = write(tmp_path, ROW, sentences).read("train")
    assert found.pixels.shape == (2, 3, 8, 12) and found.scenes == ()
    first, second = found.paragraphs
    assert first.sentences == ("A cat sits here.", "Is there a dog?", "It is beside the dog.")
    assert first.regions == ((1,), (2,), (1, 2)) and second.regions == ((), ())
    assert second.sentences == ("A cat.", "A dog. Or two.")
    close(np.array(first.boxes), np.array([[2 / 16, 3 / 24, 8 / 16, 9 / 24], [1.5 / 16, 10 / 24, 12 / 16, 20 / 24]]))


@pytest.mark.parametrize(
    ("change", "message", "where"),
    [
        ({"boxes": [[2, 3, 8, 9], [1, 10, 17, 20]]}, "this box is outside the image", "box 2"),
        ({"boxes": [[-1, 3, 8, 9], [1, 10, 16, 20]]}, "this box is outside the image", "box 1"),
        ({"boxes": [[8, 3, 8, 9], [1, 10, 16, 20]]}, "this box is empty", "box 1"),
        ({"boxes": [[8, 3, 9], [1, 10, 16, 20]]}, "this is no box", "box 1"),
        ({"boxes": [[8, 3, "9", 12], [1, 10, 16, 20]]}, "this is no box", "box 1"),
        ({"boxes": [[1, 3, float("nan"), 12], [1, 10, 16, 20]]}, "this box is empty", "box 1"),
        ({"boxes": []}, "there are no boxes", "boxes"),
        ({"boxes": None}, "there are no boxes", "boxes"),
        ({"boxes": "all"}, "these are no boxes", "boxes"),
        ({"phrases": ["a cat"]}, "each box needs a phrase", "phrases"),
        ({"phrases": ["a cat", " "]}, "these are no texts", "phrases"),
        ({"phrases": None}, "there are no phrases", "phrases"),
        ({"paragraph": "  "}, "this paragraph is empty", "paragraph"),
        ({"paragraph": []}, "this paragraph is empty", "paragraph"),
        ({"paragraph": ["A cat.", ""]}, "these are no texts", "paragraph"),
        ({"regions": [[1], [2]]}, "these are no regions", "regions"),
        ({"regions": [[1], [2], [3]]}, "these are no regions", "regions"),
    ],
)
def test_rows_that_are_wrong_say_where(tmp_path: Path, change: dict[str, Any], message: str, where: str) -> None:
    with pytest.raises(UserError) as info:
        write(tmp_path, ROW, {**ROW, **change}).read("valid")
    assert message in info.value.message and f"said.jsonl:3, {where}" in str(info.value.where)


def test_missing_files_and_images(tmp_path: Path) -> None:
    data = write(tmp_path, ROW)
    (tmp_path / "images/0.png").unlink()
    with pytest.raises(UserError):
        data.read("train")
    with pytest.raises(UserError, match="there is no test data"):
        data.read("test")
    (tmp_path / "images").rmdir()
    assert "no such folder of images" in data.problems()[0].message
    (tmp_path / "said.jsonl").write_text("\n")
    (tmp_path / "images").mkdir()
    with pytest.raises(UserError, match="there are no paragraphs"):
        data.read("train")
    (tmp_path / "said.jsonl").unlink()
    assert len(data.problems()) == 1


def test_own_examples() -> None:
    image = np.zeros((3, 16, 24), np.uint8)
    found = own_paragraphs([(image, ROW)], "train")
    assert found.paragraphs == (parse_paragraph(ROW, (16, 24), "here"),) and found.pixels.shape == (1, 3, 16, 24)
    wrong: list[list[Any]] = [[], [image], [(image, "A cat.")], [(image[0], ROW)], [(image, ROW), (image[:, :9], ROW)]]
    for examples in wrong:
        with pytest.raises(UserError, match=r"data\.train"):
            own_paragraphs(examples, "train")
