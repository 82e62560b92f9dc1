"""Captioning: losses of soft and hard attention, the predictor, runs that resume, and what each word attends to."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import heedful
from heedful.data.images.augmentation import Augmentation
from heedful.data.images.caption_batches import CaptionBatch, CaptionBatches, encode_captions
from heedful.data.images.captions import SceneCaptions
from heedful.data.images.image_spec import ImageSpec
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.errors import UserError
from heedful.models import build, config_class
from heedful.runs.recipe import recipe_of
from heedful.tasks.captioning.losses import (
    caption_loss,
    hard_loss,
    moving_average,
    read_captions,
    rewards_to_go,
    self_critical_loss,
)
from heedful.tasks.captioning.predictor import ImageCaptioner, words_of
from heedful.tasks.captioning.truth import points_into, scene_scores
from heedful.training.caption_metrics import CiderD
from heedful.training.loop import Step
from tolerance import close

SMALL = """
task: {kind: captioning, per_image: 2}
data: {kind: scenes, train: 40, valid: 6, test: 6, size: [16, 24], objects: [1, 2]}
tokenizer: {kind: words, vocab: 200}
model:
  kind: captioner
  encoder: {kind: vgg, size: [16, 24], depths: [1, 1], filters: [6, 8], norm: batch}
  positions: sinusoid
  decoder: {kind: recurrent, width: 16, hidden: 20, attention: {kind: KIND, score: general}}
  context: 24
  dropout: 0.1
train:
  {budget: {steps: 4}, schedule: {kind: constant}, batch_examples: 8, evaluate_every: 4, save_every: 2, threads: 1}
decode: {beams: 2}
"""


def recipe(kind: str = "soft", *changes: tuple[str, str]) -> Any:
    text = SMALL.replace("KIND", kind)
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return recipe_of(text, "small.yaml")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with soft attention."""
    folder = tmp_path_factory.mktemp("captions") / "run"
    list(heedful.train(recipe(), folder))
    return folder


@pytest.fixture
def captioner(run: Path) -> ImageCaptioner:
    return heedful.load(run, ImageCaptioner)


# ------------------------------------------------------------------ hard attention on a small map
def tiny(kind: str, places: tuple[int, int] = (1, 3), **attention: Any) -> Any:
    """A captioner over a map of few places, in double precision and without dropout."""
    encoder = {
        "kind": "vgg",
        "channels": 1,
        "size": tuple(2 * side for side in places),
        "depths": (1,),
        "filters": (4,),
    }
    decoder = {"kind": "recurrent", "width": 5, "hidden": 6, "attention": {"kind": kind, **attention}}
    settings = {
        "vocab": 7,
        "encoder": encoder,
        "positions": "learned",
        "decoder": decoder,
        "context": 8,
        "dropout": 0.0,
    }
    torch.manual_seed(3)
    model: Any = build(config_class("captioner").model_validate(settings)).double()
    with torch.no_grad():
        for weight in model.decoder.parameters():
            weight.add_(0.5 * torch.randn_like(weight))
    return model


def small_batch(rows: int, size: tuple[int, int]) -> CaptionBatch:
    pixels = torch.randn(1, 1, *size, generator=torch.Generator().manual_seed(5)).double().repeat(rows, 1, 1, 1)
    captions = torch.tensor([[2, 4, 5, 3]]).repeat(rows, 1)
    return CaptionBatch(pixels, captions, torch.full((rows,), 4), torch.arange(rows), (), ())


def forced_choices(model: Any, batch: CaptionBatch, choices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """log p(caption | these places) and log p(these places), by hand: one place in place of each sample."""
    turn = iter(choices)

    def chosen(weights: Tensor) -> Tensor:
        return torch.zeros_like(weights).index_fill_(-1, torch.tensor([next(turn)]), 1.0)

    import heedful.blocks.memory as memory

    sampler = memory.one_hot_sample
    memory.one_hot_sample = chosen
    try:
        forced = read_captions(model, batch)
    finally:
        memory.one_hot_sample = sampler
    logs = model.tokens.logits(forced.read.x).log_softmax(-1).gather(-1, forced.labels[:, :, None]).squeeze(-1)
    assert forced.read.choices is not None
    return (logs * forced.real).sum(), (forced.read.choices * forced.real).sum()


def test_the_bound_holds_and_the_gradient_is_unbiased_against_enumeration() -> None:
    """L = sum_s p(s) log p(caption | s) <= log p(caption); its gradient is what REINFORCE estimates on average."""
    model = tiny("hard", soft=0.0).train()
    batch, settings = small_batch(1, (2, 6)), model.config.decoder.attention
    settings = settings.model_copy(update={"entropy": 0.0})
    every = list(itertools.product(range(3), repeat=3))
    found = [forced_choices(model, batch, places) for places in every]
    probabilities = torch.stack([log_places for _, log_places in found]).exp()
    close(probabilities.sum(), torch.ones((), dtype=torch.double))
    words = torch.stack([log_words for log_words, _ in found])
    bound = (probabilities * words).sum()
    exact = (probabilities * words.exp()).sum().log()
    assert float(bound.detach()) < float(exact.detach())  # Jensen's inequality
    names = [name for name, _ in model.named_parameters()]
    wanted = torch.autograd.grad(bound, list(model.parameters()), allow_unused=True)
    # The estimate for each choice of places, weighted by its probability: its expectation, with any baseline.
    baseline = torch.full((2, 8), -1.7, dtype=torch.double)
    mean = [torch.zeros_like(weight) for weight in model.parameters()]
    for places, probability in zip(every, probabilities.detach(), strict=True):
        loss = estimate(model, batch, baseline, settings, places)
        for total, grad in zip(
            mean, torch.autograd.grad(loss, list(model.parameters()), allow_unused=True), strict=True
        ):
            total += 0 if grad is None else probability * grad
    for name, ours, theirs in zip(names, mean, wanted, strict=True):
        if theirs is not None:
            torch.testing.assert_close(-ours, theirs, rtol=1e-9, atol=1e-11, msg=name)


def estimate(model: Any, batch: CaptionBatch, baseline: Tensor, settings: Any, places: Sequence[int]) -> Tensor:
    turn = iter(places)

    def chosen(weights: Tensor) -> Tensor:
        return torch.zeros_like(weights).index_fill_(-1, torch.tensor([next(turn)]), 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heedful.blocks.memory.one_hot_sample", chosen)
        loss, _ = hard_loss(model, batch, baseline, settings)
    return loss.total


def test_places_are_sampled_with_the_weights_as_probabilities() -> None:
    model, rows = tiny("hard", soft=0.0).train(), 4000
    batch = small_batch(rows, (2, 6))
    torch.manual_seed(0)
    with torch.no_grad():
        read = read_captions(model, batch).read
    assert read.weights is not None and read.choices is not None
    first = read.choices[:, 0].exp()  # the probability of the place that was sampled for the first word
    for weight in read.weights[0, 0].tolist():
        share = float((first - weight).abs().lt(1e-9).double().mean())
        assert abs(share - weight) < 5 * math.sqrt(weight * (1 - weight) / rows)


def test_a_share_of_words_is_trained_softly() -> None:
    torch.manual_seed(0)
    for soft, low, high in ((1.0, 1.0, 1.0), (0.5, 0.4, 0.6)):
        read = tiny("hard", soft=soft).train().read(small_batch(200, (2, 6)).pixels, torch.randint(0, 7, (200, 4)))
        whole = float((read.choices == 0).double().mean())
        assert low <= whole <= high


def test_the_baseline_is_a_moving_average_of_what_was_rewarded() -> None:
    baseline, real = torch.zeros(3, 5), torch.tensor([[True, True, False], [True, False, False]])
    rewards = torch.tensor([[-4.0, -2.0, 0.0], [-2.0, 0.0, 0.0]])
    after = moving_average(baseline, rewards, real, 0.9)
    close(after, torch.tensor([[-0.3, -0.2, 0.0, 0.0, 0.0]]).expand(3, 5))
    model = tiny("hard").eval()
    forced = read_captions(model, small_batch(2, (2, 6)))
    go = rewards_to_go(model, forced)
    assert bool((go[:, :-1] < go[:, 1:]).all())  # a sum of more logs is lower


def test_coverage_is_the_square_of_what_a_place_lacks() -> None:
    model, batch = tiny("soft").eval(), small_batch(2, (2, 6))
    captions = torch.tensor([[2, 4, 5, 3], [2, 4, 3, 0]])
    batch = replace(batch, captions=captions, lengths=torch.tensor([4, 3]))
    plain, covered = (caption_loss(model, batch, coverage=weight) for weight in (0.0, 2.0))
    weights = read_captions(model, batch).read.weights
    assert weights is not None
    gap = (1 - weights[0].sum(0)).square().sum() + (1 - weights[1, :2].sum(0)).square().sum()
    close(covered.total - plain.total, 2 * gap)
    close(covered.plain, plain.plain)


@pytest.mark.claim("M15")
@pytest.mark.claim("M19")
def test_self_critical_loss_is_a_loop_over_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """-(r(sampled) - r(greedy)) log p(sampled), a word at a time, where special words have no probability."""
    model, batch = tiny("soft").eval(), small_batch(2, (2, 6))
    sampled = torch.tensor([[[4, 6, 3], [5, 3, 0]], [[3, 0, 0], [6, 5, 4]]])
    monkeypatch.setattr("heedful.tasks.captioning.losses.sampled_sequences", lambda *_: sampled)
    rewards = CiderD([[[4, 6, 3]], [[6, 4, 3]], [[5, 3]]])
    loss = self_critical_loss(model, batch, rewards, samples=2, longest=5)
    total, gained = torch.zeros((), dtype=torch.double), list[float]()
    for row in range(2):
        state, before, best = model.start(batch.pixels[row : row + 1]), 2, list[int]()
        while before != 3 and len(best) < 5:
            logits, state = model(torch.tensor([[before]]), state)
            before = 3 + int(logits[0, 0, 3:].argmax())
            best.append(before)
        for words in sampled[row].tolist():
            words = [word for word in words if word]
            state, before, logs = model.start(batch.pixels[row : row + 1]), 2, torch.zeros((), dtype=torch.double)
            for word in words:
                logits, state = model(torch.tensor([[before]]), state)
                logs, before = logs + logits[0, 0, 3:].log_softmax(-1)[word - 3], word
            reward, expected = rewards.scores([words, best], [row, row])
            total = total - (reward - expected) * logs
            gained.append(float(reward))
    close(loss.total, total)
    assert float(loss.parts["reward"]) == pytest.approx(float(np.mean(gained)) * batch.tokens)
    assert max(gained) > 0


def test_better_captions_than_the_greedy_one_become_likely() -> None:
    model, batch = tiny("soft").train(), small_batch(3, (2, 6))
    references = CiderD([[[4, 5, 3]], [[5, 6, 3]], [[6, 4, 3]]])
    torch.manual_seed(1)
    loss = self_critical_loss(model, batch, references, samples=5, longest=6)
    assert model.training and int(loss.count) > 0
    loss.total.backward()
    again = float(loss.total.detach())
    torch.manual_seed(1)
    assert float(self_critical_loss(model, batch, references, 5, 6).total.detach()) == again


# ------------------------------------------------------------------ batches
def test_captions_of_an_image_come_in_turn() -> None:
    data = SceneCaptions(train=9, valid=1, test=1, size=(16, 16), objects=(1, 1))
    read = data.read("train")
    words = TrainedTokenizer.train(WordPiece(vocab=120), (text for texts in read.captions for text in texts))
    encoded = encode_captions(read, ImageSpec((3, 16, 16)), words, 40)
    batches = CaptionBatches(encoded, 7, 4, 2, Augmentation())
    assert batches.count == 2
    seen = {number: list[str]() for number in range(9)}
    for position in range(5 * batches.count):  # five epochs of two captions: all five twice
        batch = batches.at(position)
        assert batch.tokens == batches.tokens(position)
        for row, number in enumerate(batch.indices.tolist()):
            for caption in batch.captions[2 * row : 2 * row + 2].tolist():
                seen[number].append(words.decode([token for token in caption if token > 3]))
        parts = [batches.at(position, part, 3) for part in range(3)]
        assert sorted(torch.cat([part.indices for part in parts]).tolist()) == sorted(batch.indices.tolist())
    for number, texts in seen.items():
        assert sorted(texts) == sorted(2 * read.captions[number])
    assert sum(batch.tokens for batch in encoded.in_order(8)) == sum(map(len, encoded.references[0])) + sum(
        len(one) for some in encoded.references[1:] for one in some
    )


def test_a_context_too_short_for_every_caption_is_refused() -> None:
    read = SceneCaptions(train=3, valid=1, test=1, size=(16, 16), objects=(1, 1)).read("train")
    words = TrainedTokenizer.train(WordPiece(vocab=120), (text for texts in read.captions for text in texts))
    assert encode_captions(read, ImageSpec((3, 16, 16)), words, 8).dropped > 0
    with pytest.raises(UserError, match="all captions of 3 images are longer"):
        encode_captions(read, ImageSpec((3, 16, 16)), words, 3)


# ------------------------------------------------------------------ runs and the predictor
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_run_resumes_bit_for_bit(kind: str, tmp_path: Path) -> None:
    """The baseline of hard attention, running statistics and the order of captions are restored."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    list(heedful.train(recipe(kind), whole))
    list(heedful.train(recipe(kind, ("steps: 4", "steps: 2")), parts))
    list(heedful.train(recipe(kind), parts))
    one, other = (folder / "checkpoints" / "step-00000004" / "model.safetensors" for folder in (whole, parts))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.claim("M19")
def test_a_captioner_is_tuned_on_its_captions_and_resumes(run: Path, tmp_path: Path) -> None:
    """Self-critical training from a run: the mean reward is reported, and a resumed run ends in the same bits."""
    tuned = (
        ("per_image: 2", "objective: {kind: self_critical}"), ("data:", f"start: {{folder: {run}}}\ndata:"),
        ("dropout: 0.1", "dropout: 0"),
    )  # fmt: skip
    events = list(heedful.train(recipe("soft", *tuned), tmp_path / "whole"))
    assert all({"reward", "above_baseline"} == event.parts.keys() for event in events if isinstance(event, Step))
    list(heedful.train(recipe("soft", *tuned, ("steps: 4", "steps: 2")), tmp_path / "parts"))
    list(heedful.train(recipe("soft", *tuned), tmp_path / "parts"))
    one, other = (
        tmp_path / name / "checkpoints" / "step-00000004" / "model.safetensors" for name in ("whole", "parts")
    )
    assert one.read_bytes() == other.read_bytes()
    with pytest.raises(UserError, match="write parallel: ddp"):
        recipe("soft", *tuned, ("threads: 1", "threads: 1, parallel: fsdp"))


def test_two_artifacts_are_saved_and_loaded(run: Path, captioner: ImageCaptioner, tmp_path: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"tokenizer.json", "images.json"} <= names
    scenes = recipe().data.scenes("test")
    pixels = [Image.fromarray(image.transpose(1, 2, 0)) for image in recipe().data.read("test").pixels]
    captioner.save(tmp_path / "model")
    again = heedful.load(tmp_path / "model", ImageCaptioner)
    ours, theirs = captioner.caption(pixels), again.caption(pixels)
    assert [one.text for one in ours] == [one.text for one in theirs]
    assert again.canvas == captioner.canvas and again.words.vocab == captioner.words.vocab
    assert {score.name for score in scene_scores(scenes, ours)} >= {"true"}
    found = captioner.evaluate([(image, scene.captions) for image, scene in zip(pixels, scenes, strict=True)])
    assert found.count == 6 and {"bleu4", "cider_d", "rouge_l"} <= found.scores.keys()


@pytest.mark.claim("I7")
def test_each_word_has_a_map_over_the_image(captioner: ImageCaptioner) -> None:
    """Query = decoder state, key = value = the feature map; a word's weights reshape to its grid and sum to one."""
    images = list(recipe().data.read("test").pixels)
    for one in captioner.caption(images, beams=3):
        assert one.maps is not None and one.maps.shape == (len(one.words), *captioner.grid)
        close(one.maps.sum((1, 2)), torch.ones(len(one.words)))
        assert " ".join(one.words).replace(" ,", ",").startswith(one.words[0])
        assert len(one.probabilities) == len(one.words)
    model: Any = captioner.model
    with heedful.watch(model) as seen, torch.no_grad():
        state = model.start(captioner.inputs(images[:1]))
        model(torch.tensor([[2]]), state)
    places = seen.all["map"][0]
    close(state.source.value.kv.v[:, 0], places)  # values are the map, keys its projection
    close(state.source.value.kv.k[:, 0], model.decoder.attention.score.project_keys(places, None))
    query = state.layers[-1][0]
    scores = torch.einsum("bh,bph->bp", query, state.source.value.kv.k[:, 0])
    close(seen.all["decoder.attention.scores"][0].flatten(), scores.flatten())
    close(seen.all["decoder.attention.context"][0][:, 0], torch.einsum("bp,bpm->bm", scores.softmax(-1), places))


@pytest.mark.claim("I9")
def test_soft_and_hard_maps_come_from_one_trained_model(captioner: ImageCaptioner) -> None:
    """The same weights attend softly, or to the one place with the highest weight."""
    image = recipe().data.read("test").pixels[0]
    soft = captioner.caption([image])[0]
    hard = captioner.attending("hard").describe(image, soft.ids)
    assert soft.maps is not None and hard.maps is not None and hard.words == soft.words
    assert torch.equal(hard.maps.flatten(1).max(1).values, torch.ones(len(hard.words)))
    close(hard.maps.sum((1, 2)), torch.ones(len(hard.words)))
    assert torch.equal(hard.maps[0], (soft.maps[0] == soft.maps[0].max()).float())  # before contexts differ
    back = captioner.attending("hard").attending("soft").describe(image, soft.ids)
    assert torch.equal(back.maps, soft.maps)  # type: ignore[arg-type]


def test_captions_are_the_same_alone_in_a_batch_and_by_steps(captioner: ImageCaptioner) -> None:
    images = list(recipe().data.read("test").pixels)
    whole = captioner.search(images, beams=3, top=2)
    for image, both in zip(images, whole, strict=True):
        alone = captioner.search([image], beams=3, top=2)[0]
        assert [one.text for one in alone] == [one.text for one in both]
        assert both[0].score >= both[1].score
        assert math.isclose(both[0].log_probability, alone[0].log_probability, rel_tol=1e-4)
    sampled = captioner.sample(images, seed=4)
    assert [one.ids for one in captioner.sample(images, seed=4)] == [one.ids for one in sampled]
    with pytest.raises(ValueError, match="cannot give"):
        captioner.search(images, beams=1, top=2)


def test_a_model_starts_from_an_image_encoder_or_another_captioner(run: Path, tmp_path: Path) -> None:
    """The encoder of a classifier, frozen; and the decoder of a captioner with that encoder."""
    classifier = """
task: {kind: image_classification}
data: {kind: scenes, train: 20, valid: 4, test: 4, size: [16, 24]}
model: {kind: vgg, size: [16, 24], depths: [1, 1], filters: [6, 8], norm: batch, grid: 1, hidden: 8}
train: {budget: {steps: 2}, batch_examples: 8, save_every: 2, evaluate_every: 2}
"""
    there = tmp_path / "classifier"
    list(heedful.train(recipe_of(classifier, "classifier.yaml"), there))
    image: Any = heedful.load(there)
    start = ("data:", f"start: {{folder: {there}}}\ndata:")
    frozen = recipe("soft", start, ("context: 24", "context: 24\n  freeze: encoder"))
    list(heedful.train(frozen, tmp_path / "frozen"))
    found: Any = heedful.load(tmp_path / "frozen")
    for name, weight in found.model.encoder.state_dict().items():
        assert torch.equal(weight, image.model.state_dict()[name]), name
    assert found.canvas.mean == image.canvas.mean
    both = ("data:", f"start: {{folder: {run}, encoder: {there}}}\ndata:")
    kept = recipe("soft", both, ("context: 24", "context: 24\n  freeze: decoder"))
    list(heedful.train(kept, tmp_path / "both"))
    mixed: Any = heedful.load(tmp_path / "both")
    source: Any = heedful.load(run)
    for name, weight in mixed.model.decoder.state_dict().items():
        assert torch.equal(weight, source.model.decoder.state_dict()[name]), name


def test_recipes_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="randomly initialized layers must be trained"):
        recipe("soft", ("context: 24", "context: 24\n  freeze: encoder"))
    with pytest.raises(UserError, match="goes on from a trained captioner"):
        recipe("soft", ("per_image: 2", "objective: {kind: self_critical}"))
    with pytest.raises(UserError, match="the score dot compares vectors of one width"):
        recipe("soft", ("score: general", "score: dot"))
    with pytest.raises(UserError, match="the layer of the classes is left out"):
        recipe("soft", ("norm: batch", "norm: batch, classes: 5"))
    with pytest.raises(UserError, match="cannot share a caption"):
        recipe("soft", ("tokenizer:", "augment: {mixup: 0.5}\ntokenizer:"))


def test_a_map_that_does_not_fit_the_images_is_refused(tmp_path: Path) -> None:
    other = recipe("soft", ("kind: vgg, size: [16, 24]", "kind: vgg, size: [16, 16]"))
    with pytest.raises(UserError, match="the model does not fit the images"):
        list(heedful.train(other, tmp_path / "run"))


def test_words_join_their_tokens_and_punctuation_stands_alone() -> None:
    words = TrainedTokenizer.train(WordPiece(vocab=40), ["a red cat, abc"])
    ids = words.ids(["a red cat, abc"])[0]
    found = words_of(words, ids)
    assert [word for word, _ in found] == ["a", "red", "cat", ",", "abc"]
    assert [place for _, places in found for place in places] == list(range(len(ids)))


def test_pointing_finds_the_box_of_the_highest_place() -> None:
    weights = torch.zeros(4, 6)
    weights[2, 5] = 1.0  # its centre is at row 20, column 44 of 32 x 48 pixels
    assert points_into(weights, [(16, 40, 24, 48)], (32, 48))
    assert not points_into(weights, [(0, 0, 20, 48), (21, 0, 32, 48)], (32, 48))


def test_own_images_with_captions(tmp_path: Path) -> None:
    rows = [(np.full((3, 16, 24), 40 * n, np.uint8), [f"a grey of {n}", "an image"]) for n in range(6)]
    data = heedful.Dataset(train=rows, valid=rows[:2])
    list(heedful.train(recipe("soft", ("steps: 4", "steps: 1")), tmp_path / "run", data=data))
    assert heedful.load(tmp_path / "run", ImageCaptioner).caption([rows[0][0]])[0].words is not None
    with pytest.raises(UserError, match="invalid example"):
        list(heedful.train(recipe(), tmp_path / "other", data=heedful.Dataset([(rows[0][0], "")], rows)))
