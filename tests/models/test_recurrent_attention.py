"""The recurrent attention model: its sensor, its policy, and what trains which weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.blocks.taps import taps, watch
from heedful.config import parse
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.labelled_batches import EncodedLabelledImages, LabelledImageBatch
from heedful.errors import UserError
from heedful.models import build, config_class
from heedful.models.recurrent_attention.config import RecurrentAttentionConfig
from heedful.models.recurrent_attention.model import GlimpseSensor, crop
from heedful.models.tracing import summary
from heedful.tasks.image_classification.glimpses import glimpse_loss, policy_loss
from tolerance import close

TINY = RecurrentAttentionConfig.tiny()


def build_model(seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return build(RecurrentAttentionConfig.model_validate(TINY.model_dump() | changes)).eval()


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, *TINY.input, generator=torch.Generator().manual_seed(seed))


def batch(count: int) -> LabelledImageBatch:
    spec = ImageSpec(TINY.input, ("a", "b", "c"), (0.0,), (1.0,))
    return EncodedLabelledImages(images(count), np.arange(count) % 3, spec).batch(torch.arange(count))


# ------------------------------------------------------------------ the sensor
def looped_patch(image: Tensor, row: int, column: int, side: int) -> Tensor:
    """The pixels of a square around a place, one by one; zeros beyond the border."""
    channels, rows, columns = image.shape
    found = torch.zeros(channels, side, side)
    for y in range(side):
        for x in range(side):
            down, across = row - side // 2 + y, column - side // 2 + x
            if 0 <= down < rows and 0 <= across < columns:
                found[:, y, x] = image[:, down, across]
    return found


@pytest.mark.claim("I12")
def test_glimpse_is_made_of_ever_wider_patches_at_one_place() -> None:
    """Pixel by pixel: patches of 4, 8 and 16 pixels around a place, the wider ones in means of 2 x 2 and 4 x 4."""
    pictures = torch.randn(5, 2, 14, 12)
    places = torch.tensor([[0.0, 0.0], [-1.0, 1.0], [1.0, 1.0], [0.31, -0.77], [-0.5, 0.123]])
    seen = GlimpseSensor(4, 3)(pictures, places)
    assert seen.shape == (5, 3, 2, 4, 4)
    for number, (down, across) in enumerate(places.tolist()):
        row, column = round((down + 1) / 2 * 14), round((across + 1) / 2 * 12)
        for scale in range(3):
            step = 2**scale
            patch = looped_patch(pictures[number], row, column, 4 * step)
            means = patch.reshape(2, 4, step, 4, step).mean((2, 4))
            close(seen[number, scale], means, of=pictures)


def test_odd_patch_has_its_place_in_the_middle() -> None:
    pictures = torch.arange(49.0).view(1, 1, 7, 7)
    assert crop(pictures, torch.tensor([[0.0, 0.0]]), 1).item() == 4 * 7 + 4  # 3.5 is rounded to even
    assert crop(pictures, torch.tensor([[-1.0, -1.0]]), 3)[0, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 7, 8]]


def test_patches_of_several_scales_must_be_even() -> None:
    with pytest.raises(UserError, match="patch must be even"):
        parse(RecurrentAttentionConfig, {"patch": 5, "scales": 2})
    assert RecurrentAttentionConfig(patch=5, scales=1).patch == 5


# ------------------------------------------------------------------ the model
def test_contract() -> None:
    """Shapes, parameters, determinism, batches, taps, and images of another size."""
    model, x = build_model(), images(7)
    logits = model(x)
    assert logits.shape == (7, 3) and model(x[:0]).shape == (0, 3)
    assert torch.equal(logits, model(x)) and torch.equal(logits, model.head(model.features(x)))
    assert sum(weight.numel() for weight in model.parameters()) == TINY.parameters() == summary(TINY).parameters
    order = torch.randperm(7)
    close(model(x[order]), logits[order])
    for row in range(7):
        close(model(x[row : row + 1])[0], logits[row])
    with watch(model) as seen:
        close(model(x), logits)
    assert set(seen) == set(taps(model)) == {"places", "states"}
    with pytest.raises(ValueError, match="the model reads 1 x 14 x 12"):
        model(torch.zeros(2, 1, 12, 14))


def test_compiled_model_has_no_graph_break() -> None:
    model, x = build_model(), images(2)
    torch._dynamo.reset()
    close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


def test_places_are_sampled_in_training_alone() -> None:
    """The same for the same seed; around the mean with the noise of the settings; the first one at the centre."""
    model, x = build_model(noise=0.05), images(3)
    still = model.look(x)
    assert torch.equal(still.places[:, 0], torch.zeros(3, 2)) and still.places.shape == (3, 3, 2)
    model.train()
    torch.manual_seed(5)
    once = model.look(x)
    torch.manual_seed(5)
    assert torch.equal(model.look(x).places, once.places)
    assert not torch.equal(model.look(x).places, once.places)
    many = model.look(x[:1].expand(20_000, -1, -1, -1)).places[:, 1]
    close(many.mean(0), still.places[0, 1], slack=1e-3 / torch.finfo().eps, of=torch.ones(()))
    close(many.std(0), torch.full((2,), 0.05), slack=1e-3 / torch.finfo().eps, of=torch.ones(()))
    assert float(build_model(noise=1.0).train().look(images(99)).places.abs().max()) == 1.0  # kept inside of the image


def test_log_probabilities_are_those_of_a_normal_distribution() -> None:
    model = build_model(noise=0.3).train()
    torch.manual_seed(1)
    seen = model.look(images(4))
    means = torch.stack([model.choose(seen.states[:, step])[0] for step in range(2)], 1)
    torch.manual_seed(1)
    samples = torch.stack([means[:, step] + 0.3 * torch.randn(4, 2) for step in range(2)], 1).detach()
    close(seen.logs, torch.distributions.Normal(means, 0.3).log_prob(samples).sum(-1))
    close(seen.places[:, 1:], samples.clamp(-1, 1))


# ------------------------------------------------------------------ what is learned
@pytest.mark.claim("I12")
def test_policy_gradient_is_that_of_the_expected_reward() -> None:
    """REINFORCE against enumeration: the second glimpse is at one of 15 x 13 pixels, each with a random reward.

    The gradient of the policy over 40 batches of 1,500 samples is within four standard errors of the gradient of
    sum_pixel p(pixel) R(pixel), with any baseline; a baseline near the expected reward makes it vary least.
    """
    model, image, noise = build_model(3, glimpses=2, noise=0.4), images(1, 4), 0.4
    rows, columns = (torch.linspace(-1, 1, side + 1) for side in TINY.size)
    rewards = torch.randint(0, 2, (len(rows), len(columns)), generator=torch.Generator().manual_seed(1)).float()

    def probabilities(mean: Tensor, places: Tensor) -> Tensor:
        """Of each pixel along one axis: of all that is rounded to it, at the border also of what is beyond."""
        edges = torch.cat([torch.tensor([-torch.inf]), (places[1:] + places[:-1]) / 2, torch.tensor([torch.inf])])
        return torch.special.ndtr((edges - mean) / noise).diff()

    mean = model.choose(model.look(image).states[:, 0])[0][0]
    expected = probabilities(mean[0], rows) @ rewards @ probabilities(mean[1], columns)
    (exact,) = torch.autograd.grad(expected, model.policy.bias)
    assert float(exact.norm()) > 0.05

    model.train()
    torch.manual_seed(0)
    many, spread = image.expand(1_500, -1, -1, -1), []
    for baseline in (0.0, float(expected.detach()), 3.0):
        found = []
        for _ in range(40):
            seen = model.look(many)
            down, across = ((seen.places[:, 1] + 1) / 2 * torch.tensor(TINY.size)).round().long().unbind(1)
            loss = policy_loss(seen.logs, torch.full_like(seen.logs, baseline), rewards[down, across]).mean()
            found.append(-torch.autograd.grad(loss, model.policy.bias)[0])
        each = torch.stack(found)
        assert bool(((each.mean(0) - exact).abs() < 4 * each.std(0) / 40**0.5).all())
        spread.append(float(each.std(0).norm()))
    assert spread[1] < spread[0] < spread[2]


def test_places_are_trained_by_rewards_and_the_rest_by_cross_entropy() -> None:
    model = build_model().train()
    torch.manual_seed(2)
    seen = model.look(images(9))
    policy_loss(seen.logs, seen.values, torch.arange(9.0) % 2).sum().backward()
    assert {name for name, weight in model.named_parameters() if weight.grad is not None} == {
        "policy.weight", "policy.bias", "baseline.weight", "baseline.bias",
    }  # fmt: skip
    model.zero_grad()
    glimpse_loss(model.look, model.head, batch(30)).total.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_loss_is_the_cross_entropy_the_policys_and_the_baselines() -> None:
    model, some = build_model(), batch(6)
    loss = glimpse_loss(model.look, model.head, some)
    seen = model.look(some.pixels)
    logits = model.head(seen.states[:, -1])
    plain = torch.nn.functional.cross_entropy(logits, some.targets, reduction="sum")
    reward = (logits.argmax(-1) == some.targets).float()[:, None]
    close(loss.plain, plain)
    close(loss.total, plain + ((reward - seen.values) ** 2 - (reward - seen.values) * seen.logs).sum())


def test_eight_images_are_memorized() -> None:
    model, some = build_model(2).train(), batch(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        glimpse_loss(model.look, model.head, some).total.backward()
        optimizer.step()
    assert model.eval()(some.pixels).argmax(-1).tolist() == some.targets.tolist()


def test_kind_is_in_the_table() -> None:
    assert config_class("recurrent_attention") is RecurrentAttentionConfig and TINY.hard
