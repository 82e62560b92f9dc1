"""The autoencoders of the lecture: every table, shape and count, the noise, and what they have in common with BERT."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.blocks.noise import gaussian
from heedful.data.embedded import Digits
from heedful.data.images.batches import EncodedImages, ImageBatch, ImageBatches, encode_images
from heedful.data.text.pretraining import PairRules, encode_documents
from heedful.data.text.pretraining_batches import PretrainingBatches, batches_in_order
from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.models import build
from heedful.models.autoencoder.config import SIZES
from heedful.models.autoencoder.layers import Conv, Dense, MaxPool, Upsample
from heedful.models.autoencoder.model import Autoencoder
from heedful.models.autoencoder.network import Input, Network
from heedful.models.bert.config import BertConfig
from heedful.runs.recipe import load_recipe
from heedful.tasks.pretraining.loss import pretraining_loss
from heedful.tasks.reconstruction.predictor import Noise, reconstruction_loss
from heedful.training.configs import Budget, TrainConfig
from heedful.training.loop import Counters, Epoch, Step, epochs_to_steps, fit
from heedful.training.optim import AdamW, Constant, RMSprop, make_optimizer
from tolerance import close

CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "reconstruction.json"
MNIST = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"), "mnist")
NONE = Noise(0.0, None)

# As printed: what comes out of each layer, rows x columns x channels, and its parameters.
Printed = Sequence[tuple[tuple[int, ...], int]]
DENSE: Printed = [((784,), 0), ((100,), 78_500), ((20,), 2_020), ((100,), 2_100), ((784,), 79_184)]
CONV: Printed = [
    ((28, 28, 1), 0),
    ((28, 28, 8), 80), ((14, 14, 8), 0), ((14, 14, 4), 292), ((7, 7, 4), 0), ((7, 7, 4), 148), ((4, 4, 4), 0),
    ((4, 4, 4), 148), ((8, 8, 4), 0), ((8, 8, 4), 148), ((16, 16, 4), 0), ((14, 14, 8), 296), ((28, 28, 8), 0),
    ((28, 28, 1), 73),
]  # fmt: skip
ENCODER: Printed = DENSE[:3]
TABLES: dict[str, tuple[Printed, int]] = {"dense": (DENSE, 161_804), "conv": (CONV, 1_185)}


def build_model(name: str) -> Autoencoder:
    torch.manual_seed(0)
    return Autoencoder(SIZES[name])


def layer_shapes(network: Any, x: Tensor) -> list[tuple[int, ...]]:
    """The shape of every layer's output for a batch of one, rows x columns x channels, as tensors have it."""
    shapes = [tuple(x.shape[1:])]
    for part in (network.encoder, network.decoder) if isinstance(network, Autoencoder) else (network,):
        for layer, activation in zip(part.layers, part.activations, strict=True):
            x = activation(layer(x))
            shapes.append(tuple(x.shape[1:]))
    return [(*shape[1:], shape[0]) for shape in shapes]


def count_parameters(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


# ------------------------------------------------------------------ models
@pytest.mark.claim("K4")
def test_dense_autoencoder_has_161804_parameters() -> None:
    model = build_model("dense")
    layers = [*model.encoder.layers, *model.decoder.layers]
    assert [count_parameters(layer) for layer in layers] == [78_500, 2_020, 2_100, 79_184]
    assert count_parameters(model) == 161_804
    assert layer_shapes(model, torch.rand(1, 784)) == [(784,), (100,), (20,), (100,), (784,)]
    assert {activation for part in (model.encoder, model.decoder) for activation in part.activations} == {torch.relu}
    assert load_recipe("mnist-dense").model == SIZES["dense"]


def build_functionally(name: str) -> Network:
    """The lecture's model, connected layer by layer as printed."""
    if name == "dense":
        image = Input(784)
        layer1 = Dense(width=100)(image)
        layer2 = Dense(width=20)(layer1)
        layer3 = Dense(width=100)(layer2)
        return Network(image, Dense(width=784)(layer3))
    image = Input(1, 28, 28)
    if name == "conv":
        encode1 = Conv(filters=8)(image)
        encode3 = Conv(filters=4)(MaxPool()(encode1))
        encode5 = Conv(filters=4)(MaxPool()(encode3))
        decode1 = Conv(filters=4)(MaxPool()(encode5))
        decode3 = Conv(filters=4)(Upsample()(decode1))
        decode5 = Conv(filters=8, padding="valid")(Upsample()(decode3))
        return Network(image, Conv(filters=1)(Upsample()(decode5)))
    encode1 = Conv(filters=32)(image)
    encode3 = Conv(filters=32)(MaxPool()(encode1))
    decode1 = Conv(filters=32)(MaxPool()(encode3))
    decode3 = Conv(filters=32)(Upsample()(decode1))
    return Network(image, Conv(filters=1)(Upsample()(decode3)))


@pytest.mark.claim("K5")
@pytest.mark.parametrize("name", SIZES)
def test_both_ways_to_build_a_model_agree(name: str) -> None:
    config = SIZES[name]
    torch.manual_seed(7)
    functional = build_functionally(name)
    torch.manual_seed(7)
    sequential = Network.of(config.input, [*config.encoder, *config.decoder])
    torch.manual_seed(7)
    model = Autoencoder(config)
    x = torch.rand(3, *config.input)
    expected = functional(x)
    assert expected.shape == x.shape and expected.std() > 1e-3
    assert torch.equal(sequential(x), expected)
    assert torch.equal(model(x), expected)
    assert functional.summary() == sequential.summary() == model.summary()


@pytest.mark.claim("K7")
def test_encoder_has_80520_parameters_and_shares_weights() -> None:
    image = Input(784)
    code = Dense(width=20)(Dense(width=100)(image))
    model = Network(image, Dense(width=784)(Dense(width=100)(code)))
    encoder = Network(image, code)
    assert count_parameters(encoder) == 80_520 and count_parameters(model) == 161_804
    whole = {id(weight) for weight in model.parameters()}
    assert all(id(weight) in whole for weight in encoder.parameters())
    x = torch.rand(10_000, 784)
    with torch.no_grad():
        before = encoder(x)
        assert before.shape == (10_000, 20)
        next(model.parameters()).mul_(0.5)
        assert not torch.equal(encoder(x), before)  # the encoder shares the weights of the whole model

    trained = build_model("dense")
    assert count_parameters(trained.encoder) == 80_520
    assert trained.encoder(x).shape == (10_000, 20)
    assert torch.equal(trained.decoder(trained.encoder(x)), trained(x))


@pytest.mark.claim("K9")
def test_conv_autoencoder_has_1185_parameters_and_lecture_shapes() -> None:
    model = build_model("conv")
    layers = [*model.encoder.layers, *model.decoder.layers]
    assert [count_parameters(layer) for layer in layers if count_parameters(layer)] == [80, 292, 148, 148, 148, 296, 73]
    assert count_parameters(model) == 1_185
    shapes = layer_shapes(model, torch.rand(1, 1, 28, 28))
    assert shapes == [shape for shape, _ in CONV]
    sides = [shape[0] for number, shape in enumerate(shapes) if number == 0 or shape[0] != shapes[number - 1][0]]
    assert sides == [28, 14, 7, 4, 8, 16, 14, 28]
    assert model.encoder(torch.rand(5, 1, 28, 28)).shape == (5, 4, 4, 4)


@pytest.mark.claim("K9")
def test_pooling_7_to_4_matches_keras() -> None:
    pool = Network.of((4, 7, 7), [MaxPool()])
    x = torch.randn(2, 4, 7, 7) - 5  # mostly negative: a zero in the padding would win
    found = pool(x)
    # Keras' "same" pads (4 - 1) * 2 + 2 - 7 = 1 row, half of it rounded down before: none above, one below.
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=-np.inf)
    expected = padded.reshape(2, 4, 4, 2, 4, 2).max((3, 5))
    assert np.array_equal(found.numpy(), expected)
    assert (found[:, :, 3, 3] == x[:, :, 6, 6]).all()


@pytest.mark.claim("K9")
def test_valid_convolution_has_no_padding_and_same_pads_zeros() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 5, 4)
    for padding, edge in (("valid", 0), ("same", 1)):
        network = Network.of((2, 5, 4), [Conv(filters=3, padding=padding, activation="linear")])
        weight, bias = (one.detach().numpy() for one in network.parameters())
        wide = np.pad(x.numpy()[0], ((0, 0), (edge, edge), (edge, edge)))
        rows, columns = wide.shape[1] - 2, wide.shape[2] - 2
        expected = np.array(
            [
                [
                    [(wide[:, y : y + 3, z : z + 3] * weight[f]).sum() + bias[f] for z in range(columns)]
                    for y in range(rows)
                ]
                for f in range(3)
            ]
        )
        close(network(x).detach().numpy()[0], expected)


# ------------------------------------------------------------------ tables
@pytest.mark.claim("K13")
@pytest.mark.parametrize("name", TABLES)
def test_summary_tables_match_the_lecture(name: str) -> None:
    printed, total = TABLES[name]
    table = build_model(name).summary()
    assert [(*row.shape[1:], row.shape[0]) for row in table] == [shape for shape, _ in printed]
    assert [row.parameters for row in table] == [count for _, count in printed]
    assert layer_shapes(build_model(name), torch.rand(1, *SIZES[name].input)) == [shape for shape, _ in printed]
    check_table(str(table), printed, total)


@pytest.mark.claim("K13")
def test_encoder_summary_table_matches_the_lecture() -> None:
    table = build_model("dense").encoder.summary()
    check_table(str(table), ENCODER, 80_520)


@pytest.mark.claim("K13")
@pytest.mark.parametrize("name", TABLES)
def test_frozen_layer_counts_as_non_trainable(name: str) -> None:
    printed, total = TABLES[name]
    model = build_model(name)
    model.encoder.requires_grad_(False)
    last = next(layer for layer in reversed(model.decoder.layers) if count_parameters(layer))
    next(iter(last.parameters())).requires_grad_(False)  # the weights of one layer, not its biases
    still = count_parameters(model.encoder) + next(last.parameters()).numel()
    assert still == sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    check_table(str(model.summary()), printed, total, still)
    assert model.summary().parameters == total
    assert model.encoder.summary().frozen == count_parameters(model.encoder)
    assert build_model(name).summary().frozen == 0


def check_table(text: str, printed: Printed, total: int, frozen: int = 0) -> None:
    """Check every layer's shape and parameters, and the totals, in a printed table."""
    lines = text.splitlines()
    rows = [line for line in lines if "(None" in line]
    assert len(rows) == len(printed)
    for row, (shape, count) in zip(rows, printed, strict=True):
        assert f"(None, {', '.join(map(str, shape))})" in row
        assert row.split()[-1] == f"{count:,}"
    assert lines[-3:] == [
        f"Total parameters: {total:,}",
        f"Trainable parameters: {total - frozen:,}",
        f"Non-trainable parameters: {frozen:,}",
    ]


# ------------------------------------------------------------------ noise
@pytest.mark.claim("K10")
def test_denoising_autoencoder_has_28353_parameters() -> None:
    model = build_model("denoising")
    counts = [
        count_parameters(layer) for layer in (*model.encoder.layers, *model.decoder.layers) if count_parameters(layer)
    ]
    assert counts == [320, 9_248, 9_248, 9_248, 289]
    assert count_parameters(model) == 28_353
    assert model.encoder(torch.rand(2, 1, 28, 28)).shape == (2, 32, 7, 7)
    recipe = load_recipe("mnist-denoising")
    assert (recipe.task.noise, recipe.task.clip, recipe.model) == (0.5, (0.0, 1.0), SIZES["denoising"])


@pytest.mark.claim("K10")
def test_noise_is_gaussian_with_std_half_clipped_to_0_and_1() -> None:
    x, epoch, indices = torch.rand(400, 1, 28, 28), torch.tensor(3), torch.arange(400)
    before = Noise(0.5, None, seed=1)(x, epoch, indices) - x
    assert float(before.mean()) == pytest.approx(0, abs=4 * 0.5 / math.sqrt(x.numel()))
    assert float(before.std()) == pytest.approx(0.5, rel=4 / math.sqrt(2 * x.numel()))
    clipped = Noise(0.5, (0.0, 1.0), seed=1)(x, epoch, indices)
    close(clipped, (x + before).clamp(0, 1), slack=16)
    assert (float(clipped.min()), float(clipped.max())) == (0, 1)


@pytest.mark.claim("K10")
def test_noise_depends_only_on_seed_epoch_and_sample() -> None:
    encoded = EncodedImages(torch.rand(60, 1, 4, 4))
    noise = Noise(0.5, (0.0, 1.0), seed=5)

    def noisy_images(size: int, epoch: int, parts: int = 1, start: int = 0) -> dict[int, Tensor]:
        """The noisy version of each image in an epoch."""
        batches, found = ImageBatches(encoded, 2, size), dict[int, Tensor]()
        for position in range(epoch * batches.count + start, (epoch + 1) * batches.count):
            for part in range(parts):
                batch = batches.at(position, part, parts)
                noisy = noise(batch.pixels, batch.epoch, batch.indices)
                found |= dict(zip(batch.indices.tolist(), noisy, strict=True))
        return found

    first = noisy_images(60, 0)
    assert len(first) == 60
    for others in (noisy_images(7, 0), noisy_images(1, 0), noisy_images(8, 0, parts=3), noisy_images(2, 0, parts=3)):
        assert others.keys() == first.keys()
        assert all(torch.equal(others[index], first[index]) for index in first)
    rest = noisy_images(7, 0, start=4)  # as in a run resumed in the middle of an epoch
    assert len(rest) == 60 - 28 and all(torch.equal(rest[index], first[index]) for index in rest)
    assert not any(torch.equal(later, first[index]) for index, later in noisy_images(60, 1).items())
    assert not torch.equal(Noise(0.5, None, 6)(encoded.pixels, torch.tensor(0), torch.arange(60)), first[0])


@pytest.mark.claim("K10")
def test_denoising_target_is_the_clean_image() -> None:
    model = build_model("denoising")
    x = torch.rand(5, 1, 28, 28)
    batch, noise = ImageBatch(x, torch.tensor(2), torch.arange(5)), Noise(0.5, (0.0, 1.0), 3)
    loss = reconstruction_loss(model, batch, noise)
    noisy = noise(x, batch.epoch, batch.indices)
    assert not torch.equal(noisy, x)
    assert float(loss.plain / loss.count) == pytest.approx(float((model(noisy) - x).square().mean().detach()), rel=1e-5)


# ------------------------------------------------------------------ training
def losses_of(config: Any, encoded: EncodedImages, noise: Noise, train: TrainConfig) -> list[float]:
    """The mean loss of each epoch."""
    torch.manual_seed(train.seed)
    model: Any = build(config)
    batches: Any = ImageBatches(encoded, train.seed, train.batch_examples or 1)
    loss_of: Any = partial(reconstruction_loss, model, noise=noise)
    settings = epochs_to_steps(train, batches)
    events = fit(model, loss_of, batches, settings, CPU, None, {}, Counters(), records=True)
    return [event.loss for event in events if isinstance(event, Epoch)]


@pytest.mark.claim("K6")
def test_loss_falls_every_epoch_with_lecture_settings() -> None:
    recipe = load_recipe("mnist-dense")
    train = recipe.train
    assert (train.optimizer, train.batch_examples, train.budget.epochs) == (RMSprop(lr=1e-3, eps=1e-7), 128, 50)
    assert (train.schedule, train.clip, train.optimizer.rho) == (Constant(), None, 0.9)
    assert (recipe.task.noise, recipe.model) == (0.0, SIZES["dense"])
    encoded = encode_images(Digits().read("train"))
    digits = load_recipe("digits", ["train.budget.epochs=20", "train.schedule={kind: constant}"])
    found = losses_of(digits.model, encoded, NONE, digits.train)
    assert len(found) == 20
    assert found[0] > found[1] > found[4] > found[19]
    black = float(encoded.pixels.square().mean())
    assert found[19] < 0.25 * black


# The lecture's curves on MNIST itself; Keras' own come from a file, since Keras is not installed here.
EPSILONS = ("after_root", "under_root")
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def mnist() -> EncodedImages:
    """The training images, as the recipe reads them."""
    if not MNIST.is_dir():
        pytest.skip(f"no MNIST in {MNIST}; set HEEDFUL_DATA")
    return encode_images(load_recipe("mnist-dense", [f"data.root={MNIST}"]).data.read("train"))


def mnist_losses(images: EncodedImages, name: str, eps_place: str, seed: int, epochs: int) -> list[float]:
    """The losses of the first epochs of a shipped recipe."""
    settings = [f"train.budget.epochs={epochs}", f"train.seed={seed}", f"train.optimizer.eps_place={eps_place}"]
    recipe = load_recipe(f"mnist-{name}", settings)
    noise = Noise(recipe.task.noise, recipe.task.clip, seed)
    return losses_of(recipe.model, images, noise, recipe.train)


@pytest.fixture(scope="module")
def first_epochs(mnist: EncodedImages) -> dict[str, list[list[float]]]:
    """First losses of the dense model for two seeds and both placements of epsilon; for one, two epochs."""

    def losses(eps_place: str, seed: int) -> list[float]:
        return mnist_losses(mnist, "dense", eps_place, seed, 2 if (eps_place, seed) == ("after_root", 0) else 1)

    return {eps_place: [losses(eps_place, seed) for seed in SEEDS[:2]] for eps_place in EPSILONS}


@pytest.mark.claim("K6")
def test_first_mnist_losses_match_the_lecture(first_epochs: dict[str, list[list[float]]]) -> None:
    runs = first_epochs[load_recipe("mnist-dense").train.optimizer.eps_place]
    assert [losses[0] for losses in runs] == pytest.approx([0.0390] * 2, rel=0.1)
    assert runs[0][1] == pytest.approx(0.0281, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_mnist_loss_after_50_epochs_is_at_most_the_lectures(mnist: EncodedImages, seed: int) -> None:
    losses = mnist_losses(mnist, "dense", "after_root", seed, 50)
    assert losses[0] == pytest.approx(0.0390, rel=0.1)
    assert losses[1] == pytest.approx(0.0281, rel=0.1)
    assert 0.012 < losses[-1] <= 0.0145


@pytest.mark.claim("K10")
def test_denoising_autoencoder_learns_mnist_with_lecture_settings(mnist: EncodedImages) -> None:
    """The beginning of the first epoch: the mean loss of it all is 0.0293 in the lecture, and held by a slow test."""
    recipe = load_recipe("mnist-denoising", ["train.budget={steps: 60}"])
    train = recipe.train
    assert (train.optimizer, train.batch_examples) == (RMSprop(lr=1e-3, eps=1e-7), 128)
    assert load_recipe("mnist-denoising").train.budget.epochs == 50
    torch.manual_seed(0)
    model: Any = build(recipe.model)
    noise = Noise(recipe.task.noise, recipe.task.clip, 0)
    loss_of = partial(reconstruction_loss, model, noise=noise)
    batches: Any = ImageBatches(mnist, 0, 128)
    steps = [event.loss for event in fit(model, loss_of, batches, train, CPU, None, {}, Counters(), records=True)
             if isinstance(event, Step)]  # fmt: skip
    some = mnist.pixels[:1000].float() / 255
    mean_image = float((some - some.mean(0)).square().mean())
    assert np.mean(steps[-10:]) < 0.8 * mean_image


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_first_denoising_losses_match_the_lecture(mnist: EncodedImages, seed: int) -> None:
    losses = mnist_losses(mnist, "denoising", "after_root", seed, 3 if seed == 0 else 1)
    assert losses == pytest.approx([0.0293, 0.0162, 0.0144][: len(losses)], rel=0.1)
    if seed == 0:
        assert mnist_losses(mnist, "denoising", "under_root", seed, 1)[0] > losses[0]


@pytest.mark.claim("X13")
def test_recorded_curves_per_epsilon_placement(
    first_epochs: dict[str, list[list[float]]],
) -> None:
    recorded = json.loads(RESULTS.read_text(encoding="utf-8"))
    for eps_place, runs in first_epochs.items():
        begins = f"dense/keras/128/{eps_place}/none/50/"
        keras = [run["losses"]["1"] for name, run in recorded.items() if name.startswith(begins)]
        assert len(keras) >= 3
        ours = [losses[0] for losses in runs]
        assert np.mean(ours) == pytest.approx(np.mean(keras), rel=0.05)
        assert all(loss == pytest.approx(0.0390, rel=0.1) for loss in ours) == (eps_place == "after_root")
    assert min(losses[0] for losses in first_epochs["under_root"]) > 1.3 * 0.0390


@pytest.mark.claim("X13")
@pytest.mark.parametrize("eps_place", EPSILONS)
def test_optimizer_step_with_epsilon_outside_or_inside_the_root(eps_place: Any) -> None:
    weight, gradients = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64)), ((1e-4, 3.0), (-2e-4, 1.0))
    model = torch.nn.Module()
    model.weight = weight
    optimizer = make_optimizer(RMSprop(lr=1e-3, eps=1e-7, eps_place=eps_place), model, CPU)
    expected, average = weight.detach().numpy().copy(), np.zeros(2)
    for gradient in map(np.array, gradients):
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
        average = 0.9 * average + 0.1 * gradient**2
        root = np.sqrt(average) + 1e-7 if eps_place == "after_root" else np.sqrt(average + 1e-7)
        expected -= 1e-3 * gradient / root
        close(weight, expected)


# ------------------------------------------------------------------ what BERT has in common with it
DOCUMENTS = [
    [" ".join(np.random.default_rng(d * 99 + s).choice(list("abcdefgh"), 6)) for s in range(12)] for d in range(8)
]
WORDS = BertTokenizer.train(WordPiece(vocab=60), map(" ".join, DOCUMENTS))


@pytest.mark.claim("F17")
def test_bert_and_denoising_autoencoder_share_loop_and_counter_based_corruption() -> None:
    text = encode_documents(DOCUMENTS, WORDS, 24, PairRules())
    bert: Any = build(
        BertConfig(vocab=WORDS.vocab, width=16, heads=2, layers=1, hidden=32, context=24, dropout=0.0,
                   attention_dropout=0.0)
    )  # fmt: skip
    images = EncodedImages(torch.rand(32, 1, 4, 4))
    config = SIZES["denoising"].model_copy(update={"input": (1, 4, 4)})
    autoencoder: Any = build(config)
    noise = Noise(0.5, (0.0, 1.0), seed=0)

    sides: list[tuple[Any, Any, Any]] = [
        (bert, PretrainingBatches(text, 0, 200, False), partial(pretraining_loss, bert)),
        (autoencoder, ImageBatches(images, 0, 16), partial(reconstruction_loss, autoencoder, noise=noise)),
    ]
    train = TrainConfig(budget=Budget(steps=40), optimizer=AdamW(lr=3e-3), schedule=Constant(), evaluate_every=1000)
    for model, batches, loss_of in sides:
        losses = [event.loss for event in fit(model, loss_of, batches, train, CPU, None, {}, Counters())
                if isinstance(event, Step)]  # fmt: skip
        assert len(losses) == 40
        assert np.mean(losses[-5:]) < 0.95 * np.mean(losses[:5])


@pytest.mark.claim("F17")
def test_corruption_depends_on_seed_epoch_and_sample_and_targets_are_clean() -> None:
    text = encode_documents(DOCUMENTS, WORDS, 24, PairRules())
    cells = np.arange(text.cells)
    whole = text.build(3, 1, cells)
    assert (whole.shown != whole.ids).any() and (whole.shown == whole.ids)[~whole.hidden].all()
    alone = [text.build(3, 1, cells[number : number + 1]) for number in cells]
    for number, one in enumerate(alone):
        length = int(one.lengths[0])
        assert (one.shown[0, :length] == whole.shown[number, :length]).all()
    assert (text.build(3, 2, cells).hidden.shape != whole.hidden.shape) or (
        text.build(3, 2, cells).hidden != whole.hidden
    ).any()

    epoch, indices = torch.tensor(1), torch.arange(6)
    noise_values = gaussian(3, epoch, indices, (1, 4, 4))
    for number in range(6):
        assert torch.equal(gaussian(3, epoch, indices[number : number + 1], (1, 4, 4))[0], noise_values[number])
    assert not torch.equal(gaussian(3, torch.tensor(2), indices, (1, 4, 4)), noise_values)
    assert not torch.equal(gaussian(4, epoch, indices, (1, 4, 4)), noise_values)

    batch = next(batches_in_order(text, 200))
    assert batch.targets.numel() == batch.places.numel()  # BERT's targets are the original tokens at masked positions
    read = ZeroModel()
    half = ImageBatch(torch.full((2, 1, 4, 4), 0.5), epoch, indices[:2])
    loss = reconstruction_loss(read, half, Noise(0.5, None, 3))
    assert not torch.equal(read.input, half.pixels)
    assert float(loss.total / loss.count) == pytest.approx(0.25)  # 0.5**2: the target has no noise


class ZeroModel:
    """A model that returns zeros, so that its loss reveals the target."""

    config = SIZES["denoising"].model_copy(update={"input": (1, 4, 4)})

    def __call__(self, x: Tensor) -> Tensor:
        self.input = x
        return torch.zeros_like(x)
