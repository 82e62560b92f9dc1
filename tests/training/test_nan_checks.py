"""Non-finite values are found before the optimizer's update, and the first bad tensor and its samples are named."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from heedful.blocks.losses import Loss
from heedful.blocks.taps import watch
from heedful.data.embedded import NumberWords
from heedful.data.pairs.batches import Batch, EncodedPairs, PairBatches, encode_pairs
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.errors import UserError
from heedful.models import build
from heedful.models.transformer.config import TransformerConfig
from heedful.tasks.translation.predictor import translation_loss
from heedful.training.checkpoint.folder import RunFolder, newest
from heedful.training.checkpoint.saver import Saver
from heedful.training.configs import Budget, TrainConfig
from heedful.training.loop import Counters, Step, fit
from heedful.training.nan_checks import first_bad, not_finite, require_sound, tensors
from heedful.training.optim import AdamW, clip, make_optimizer, optimizer_tensors
from heedful.training.seeds import reseed
from scaled_gradients import overflowing_gradient

CPU = torch.device("cpu")
VALUES = [math.nan, math.inf, -math.inf]
LAYOUTS = ["padded", "packed"]
CASES = [("padded", math.nan), ("packed", math.inf), ("padded", -math.inf)]
MICRO = 2  # micro-batches of a step
BAD = 1  # the one that is poisoned, where only one is
EVERY = tuple(range(MICRO))


@cache
def corpus() -> tuple[EncodedPairs, TransformerConfig]:
    pairs = NumberWords(train=90, valid=1, test=1).pairs("train")[:90]
    tokenizer = TrainedTokenizer.train(WordPiece(vocab=90), [text for pair in pairs for text in pair])
    config = TransformerConfig(
        vocab=tokenizer.vocab, width=16, heads=2, encoder_layers=1, decoder_layers=2, hidden=32, context=60, dropout=0.2
    )
    return encode_pairs(pairs, tokenizer, longest=60), config


@cache
def model_after_one_step() -> tuple[Any, torch.optim.AdamW]:
    """A model after one step, so that its optimizer has a state."""
    encoded, config = corpus()
    torch.manual_seed(1)
    model: Any = build(config).train()
    optimizer = make_optimizer(AdamW(lr=1e-3), model, CPU)
    translation_loss(model, PairBatches(encoded, 0, 256).at(0)).total.backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Bit for bit, so that NaN equals NaN."""
    return one.keys() == other.keys() and all(
        torch.equal(one[name].view(torch.int32), other[name].view(torch.int32)) for name in one
    )


def hooks_of(model: nn.Module) -> int:
    """The number of hooks on modules and weights."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    on_modules = sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)
    on_modules += sum(len(module._forward_hooks_with_kwargs) for module in model.modules())
    on_modules += sum(len(module._forward_pre_hooks_with_kwargs) for module in model.modules())
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return on_modules + sum(len(getattr(weight, kind) or ()) for weight in model.parameters() for kind in kinds)


@dataclass
class Scene:
    """A model after one step: `spoil` makes one loss of the next step non-finite."""

    layout: str
    spoil: Callable[[Loss], Loss] = lambda loss: loss
    micro: int = MICRO
    now: int = -1  # the micro-batch that is computed
    again: bool = False  # whether it is rerun for the report
    model: Any = field(init=False)

    def __post_init__(self) -> None:
        batches = PairBatches(corpus()[0], 3, 256, packed=self.layout == "packed")
        self.batches = [batches.at(position) for position in range(self.micro)]
        self.model, self.optimizer = copy.deepcopy(model_after_one_step())

    @property
    def poisoned(self) -> bool:
        return self.now == BAD

    def loss(self, step: int, index: int) -> Loss:
        self.now = index
        reseed(CPU, 0, step, index)
        loss = translation_loss(self.model, self.batches[index], 0.1)
        loss = self.spoil(loss) if self.poisoned else loss
        self.now = -1
        return loss

    def rerun(self, index: int) -> Loss:
        self.again = True
        return self.loss(2, index)

    def step(self, step: int) -> None:
        tokens, losses = sum(batch.tokens for batch in self.batches), []
        for index in range(self.micro):
            loss = self.loss(step, index)
            self.now = index  # hooks on gradients want to know it too
            (loss.total / tokens).backward()
            self.now = -1
            losses.append(loss.plain.item())
        norm = clip(self.model.parameters(), 1.0)
        if not (math.isfinite(sum(losses)) and math.isfinite(norm)):
            before, hooks = self.bits(), hooks_of(self.model)
            error = not_finite(self.model, step, self.batches, losses, self.rerun)
            assert same_bits(before, self.bits())
            assert hooks_of(self.model) == hooks
            raise error
        self.optimizer.step()
        self.optimizer.zero_grad()

    def bits(self) -> dict[str, Tensor]:
        """Weights, gradients and the optimizer's state."""
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        grads = {f"gradient {name}": weight.grad for name, weight in self.model.named_parameters()}
        state = optimizer_tensors(self.optimizer, self.model)
        return weights | {name: value.clone() for name, value in (grads | state).items() if value is not None}

    def refused(self) -> UserError:
        """The error of the next step, which changes neither weights nor optimizer nor modes."""
        before, modes = self.bits(), [module.training for module in self.model.modules()]
        with pytest.raises(UserError) as error:
            self.step(2)
        after = {name: value for name, value in self.bits().items() if not name.startswith("gradient ")}
        assert same_bits(before, after)
        assert [module.training for module in self.model.modules()] == modes
        assert error.value.message == "a number is not finite at step 2, and the step was not taken"
        assert error.value.exit_code == 3
        return error.value

    def pairs(self, *micro: int) -> str:
        """How a message names the samples of these micro-batches."""
        numbers = [number for index in micro for number in self.batches[index].indices.tolist() if number >= 0]
        assert len(numbers) > 8
        return f"training samples {', '.join(map(str, numbers[:8]))} ..."

    def check(self, first: str, *micro: int) -> None:
        error = self.refused()
        assert str(error.found).partition("; ")[2] == f"first bad tensor: {first}"
        assert str(error.found).startswith("loss ")
        assert error.where == self.pairs(*micro)


def put(x: Tensor, value: float) -> Tensor:
    """A copy with a value in its first element."""
    first = torch.zeros_like(x, dtype=torch.bool)
    first.view(-1)[0] = True
    return x.masked_fill(first, value)


# ------------------------------------------------------------------ injections
@pytest.mark.parametrize(("layout", "value"), CASES)
@pytest.mark.parametrize("parts", [("total", "plain"), ("total",), ("plain",)], ids="+".join)
def test_non_finite_loss_is_named(layout: str, value: float, parts: tuple[str, ...]) -> None:
    scene = Scene(layout)
    scene.spoil = lambda loss: replace(loss, **{part: getattr(loss, part) * value for part in parts})
    scene.check("the loss itself", BAD)


GRADIENTS = [
    "tokens.weight",
    "encoder.0.attention.q.weight",
    "encoder.0.mlp.up.bias",
    "decoder.1.attention.out.bias",
    "decoder.1.add3.norm.bias",
]


@pytest.mark.parametrize(("layout", "value"), CASES)
@pytest.mark.parametrize("name", GRADIENTS)
def test_non_finite_gradient_is_named(layout: str, value: float, name: str) -> None:
    scene = Scene(layout)

    def spoil(loss: Loss) -> Loss:
        hook = scene.model.get_parameter(name).register_hook(lambda grad: hook.remove() or put(grad, value))
        return loss

    scene.spoil = spoil
    scene.check(f"the gradient of {name}", BAD)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_nearest_to_the_loss_is_named(layout: str) -> None:
    scene = Scene(layout)
    scene.spoil = lambda loss: replace(loss, total=overflowing_gradient(loss.total))
    error = scene.refused()
    assert "first bad tensor: the gradient of decoder.1.add3.norm." in str(error.found)
    assert error.where == scene.pairs(BAD)


WEIGHTS = ["tokens.weight", "encoder.0.mlp.down.bias", "decoder.0.cross.kv.weight", "decoder.1.add3.norm.weight"]


@pytest.mark.parametrize(("layout", "value"), CASES)
@pytest.mark.parametrize("name", WEIGHTS)
def test_non_finite_weight_is_named(layout: str, value: float, name: str) -> None:
    scene = Scene(layout)
    with torch.no_grad():
        scene.model.get_parameter(name).view(-1)[0] = value
    scene.check(f"the weight {name}", *EVERY)
    with pytest.raises(UserError, match="a weight is not finite after step 7") as error:
        require_sound(scene.model, 7)
    assert error.value.found == f"first bad tensor: {name}"
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("value", "first"),
    [
        (math.nan, "the buffer positions.table"),
        (math.inf, "the buffer positions.table"),
        (-math.inf, "the output of positions"),  # a buffer may be a mask
    ],
)
def test_non_finite_buffer_is_named(value: float, first: str) -> None:
    scene = Scene("padded")
    scene.model.get_buffer("positions.table").view(-1)[0] = value
    scene.check(first, *EVERY)


OUTPUTS = [
    "tokens",
    "encoder.0.attention.kv",
    "encoder.0.attention.out",
    "encoder.0.mlp.down",
    "encoder.0.output",
    "decoder.0.cross.kv",  # the memory is projected for all blocks before the first of them runs
    "decoder.1.cross.q",
    "decoder.1.add3.dropout",
    "norms.1",
]


@pytest.mark.parametrize(("layout", "value"), CASES)
@pytest.mark.parametrize("path", OUTPUTS)
def test_non_finite_activation_is_named(layout: str, value: float, path: str) -> None:
    scene = Scene(layout)
    module = scene.model.get_submodule(path)
    module.register_forward_hook(lambda module, given, x: put(x, value) if scene.poisoned else None)
    scene.check(f"the output of {path}", BAD)


@pytest.mark.parametrize(("layout", "value"), CASES)
@pytest.mark.parametrize("path", ["positions", "decoder.1"])
def test_value_between_two_modules_is_named_as_input(layout: str, value: float, path: str) -> None:
    scene = Scene(layout)

    def spoil(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return (put(given[0], value), *given[1:]) if scene.poisoned else None

    scene.model.get_submodule(path).register_forward_pre_hook(spoil)
    scene.check(f"the input of {path}", BAD)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("names", "size", "first"),
    [
        (["tokens.weight"], 3e38, "the output of tokens"),
        (["encoder.0.mlp.up.weight"], 3e38, "the output of encoder.0.mlp.up"),
        (["encoder.0.attention.out.weight"], 3e38, "the output of encoder.0.attention.out"),
        (["decoder.0.add2.norm.weight"], 3e38, "the output of decoder.0.add2.norm"),
        (["decoder.1.mlp.down.weight"], 3e38, "the output of decoder.1.mlp.down"),
        (
            ["encoder.0.attention.q.weight", "encoder.0.attention.kv.weight"],
            1e30,
            "the input of encoder.0.attention.out",
        ),
        (["decoder.1.add3.norm.weight"], 1e37, "the loss itself"),
    ],
)
def test_overflow_is_named_where_it_happens(layout: str, names: list[str], size: float, first: str) -> None:
    scene = Scene(layout)
    with torch.no_grad():
        for name in names:
            weight = scene.model.get_parameter(name)
            weight.copy_(weight.sign().where(weight != 0, 1.0) * size)
    scene.check(first, *EVERY)


# ------------------------------------------------------------------ allowed infinities
@pytest.mark.parametrize("layout", LAYOUTS)
def test_finite_step_names_no_tensor(layout: str) -> None:
    scene = Scene(layout)
    for index in range(MICRO):
        assert first_bad(scene.model, partial(scene.loss, 2, index), 1) is None
        with watch(scene.model):  # every tap has a hook, so that scores and weights are visible
            assert first_bad(scene.model, partial(scene.loss, 2, index), 1) is None


def hidden(name: str, scores: Tensor) -> Tensor:
    """Scores in which later positions are masked by -inf."""
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_infinity_masked_by_softmax_is_allowed(layout: str) -> None:
    scene = Scene(layout)
    with watch(scene.model, "decoder.*.attention.scores", edit=hidden) as seen:
        assert first_bad(scene.model, partial(scene.loss, 2, 0), 1) is None
        assert len(seen) == 2 and all(value.isinf().any() for value in seen.values())
        scene.step(2)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("path", ["decoder.0.mlp.down", "decoder.1.attention.out", "decoder.1.cross.kv"])
def test_allowed_infinity_is_not_named_for_other_faults(value: float, path: str) -> None:
    scene = Scene("padded")
    module = scene.model.get_submodule(path)
    module.register_forward_hook(lambda module, given, x: put(x, value) if scene.poisoned else None)
    with watch(scene.model, "decoder.*.attention.scores", edit=hidden):
        scene.check(f"the output of {path}", BAD)


def test_allowed_infinity_is_not_named_for_an_earlier_gradient() -> None:
    scene = Scene("padded")
    weights = scene.model.get_submodule("decoder.1.attention.weights")

    def spoil(module: nn.Module, given: Any, x: Tensor) -> None:
        if scene.poisoned:
            x.register_hook(lambda gradient: put(gradient, math.nan))

    weights.register_forward_hook(spoil)
    with watch(scene.model, "decoder.*.attention.scores", edit=hidden):
        error = scene.refused()
    assert "first bad tensor: the gradient of decoder.1.attention." in str(error.found)


def test_infinity_not_masked_by_softmax_is_named() -> None:
    scene = Scene("padded")
    nowhere = "decoder.0.cross.scores"
    with watch(scene.model, nowhere, edit=lambda name, x: x.clamp(min=math.inf) if scene.poisoned else None):
        scene.check(f"the output of {nowhere}", BAD)


def test_infinity_without_effect_is_allowed() -> None:
    scene = Scene("padded")
    up = scene.model.encoder[0].mlp.up
    up.register_forward_hook(lambda module, given, x: put(x, -math.inf))  # max(0, x) makes it 0
    scene.step(2)
    norm = scene.model.encoder[0].add1.norm
    norm.register_forward_hook(lambda module, given, x: put(x, math.nan) if scene.poisoned else None)
    scene.check("the output of encoder.0.add1.norm", BAD)


# ------------------------------------------------------------------ faults that cannot be traced
def test_overflowing_norm_is_named_when_gradients_are_finite() -> None:
    scene = Scene("padded")
    scene.model.tokens.weight.register_hook(lambda grad: grad.clamp(1e30, 1e30))
    scene.check("the norm of the gradients, each of which is finite", *EVERY)


def test_loss_that_is_finite_when_repeated_is_reported() -> None:
    scene = Scene("padded")
    scene.spoil = lambda loss: (
        loss if scene.again else replace(loss, total=loss.total * math.nan, plain=loss.plain * math.nan)
    )
    scene.check("the loss itself; running it again showed no other", BAD)


def test_gradient_that_is_finite_when_repeated_is_reported() -> None:
    scene = Scene("padded")
    for name in ("encoder.0.mlp.up.weight", "decoder.0.mlp.up.weight"):
        weight = scene.model.get_parameter(name)
        weight.register_hook(lambda grad: None if scene.again else put(grad, math.inf))
    scene.check("the gradient of decoder.0.mlp.up.weight; running it again showed no other", *EVERY)


def test_out_of_memory_in_the_second_run_keeps_the_first_report() -> None:
    scene = Scene("padded")

    def spoil(loss: Loss) -> Loss:
        if scene.again:
            raise torch.OutOfMemoryError("out of memory")
        return replace(loss, plain=loss.plain * math.nan)

    scene.spoil = spoil
    scene.check("the loss itself; running it again showed no other", BAD)


def test_several_bad_losses_name_all_their_samples() -> None:
    scene = Scene("packed", micro=3)
    scene.batches = [
        replace(batch, indices=torch.tensor([index, 10 + index, -1])) for index, batch in enumerate(scene.batches)
    ]
    module = scene.model.encoder[0].mlp.down
    module.register_forward_hook(lambda module, given, x: put(x, math.nan) if scene.now in (0, 2) else None)
    error = scene.refused()
    assert error.where == "training samples 0, 10, 2, 12"
    assert error.found == "loss nan; first bad tensor: the output of encoder.0.mlp.down"


def test_empty_share_names_no_samples() -> None:
    scene = Scene("padded")
    empty = corpus()[0].batch(np.array([], dtype=np.int64))
    error = not_finite(scene.model, 2, [empty], [0.0], lambda index: translation_loss(scene.model, empty, 0.1))
    assert error.where is None
    assert error.found == "loss 0.0; first bad tensor: the norm of the gradients, each of which is finite"


# ------------------------------------------------------------------ other models
class Two(NamedTuple):
    one: Tensor
    two: Tensor


@dataclass
class Held:
    value: Any
    count: int = 3


def test_tensors_are_found_in_nested_values() -> None:
    a, b, c, d = (torch.full((1,), float(number)) for number in range(4))
    value = {"x": (a, [Two(b, torch.arange(3))]), "y": Held({"z": c}), "n": None, "f": len, "d": d, "t": Held}
    assert [float(x) for x in tensors(value)] == [0, 1, 2, 3]


class Reader(nn.Module):
    """A net that returns its outputs in a nested value."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, *, x: Tensor) -> Held:
        return Held({"y": self.net(x)})


def squares(read: Callable[..., Held], x: Tensor) -> Loss:
    total = read(x=x).value["y"].square().sum()
    return Loss(total, total.detach(), torch.tensor(len(x)))


@pytest.mark.parametrize("value", VALUES)
def test_bad_values_in_the_data_are_an_input(value: float) -> None:
    model, x = Reader(), torch.randn(3, 4)
    assert first_bad(model, lambda: squares(model, x), 1) is None
    bad = first_bad(model, lambda: squares(model, put(x, value)), 1)
    assert bad == ("the input of the model" if math.isnan(value) else "the input of net.0")


def test_infinity_with_nan_gradients_is_named() -> None:
    model, x = Reader(), torch.randn(3, 4)
    model.net[2].register_forward_hook(lambda module, given, y: y + math.inf)

    def bells() -> Loss:
        total = (-model(x=x).value["y"].square()).exp().sum()  # 0 at infinity, where its slope is 0 times infinity
        return Loss(total, total.detach(), torch.tensor(3))

    assert bells().total.isfinite()
    assert first_bad(model, bells, 1) == "the output of net.2"


def test_weight_of_another_process_is_named_where_it_is_used() -> None:
    model, x = Reader(), torch.randn(3, 4)
    with torch.no_grad():
        model.net[2].bias.fill_(math.nan)
    assert first_bad(model, lambda: squares(model, x), 1) == "the weight net.2.bias"


def test_compiled_models_are_searched() -> None:
    model, x = Reader(), torch.randn(3, 4)
    read = torch.compile(model, backend="eager")
    squares(read, x)
    with torch.no_grad():
        model.net[2].weight.fill_(3e38)
    assert first_bad(model, lambda: squares(read, x), 1) == "the output of net.2"


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_sharded_weights_and_gradients_are_searched() -> None:
    model, x = Reader(), torch.randn(3, 4)
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    fully_shard(model.net[2], mesh=mesh)  # gradients of a shard group are reduced together
    fully_shard(model, mesh=mesh)
    squares(model, x).total.backward()
    kept = {name: weight.grad for name, weight in model.named_parameters()}
    assert first_bad(model, lambda: squares(model, x), 1) is None
    assert all(weight.grad is kept[name] for name, weight in model.named_parameters())

    def spoilt() -> Loss:
        loss = squares(model, x)
        return replace(loss, total=overflowing_gradient(loss.total))

    assert first_bad(model, spoilt, 1) in ("the gradient of net.2.weight", "the gradient of net.2.bias")
    require_sound(model, 1)
    with torch.no_grad():
        model.net[2].bias.fill_(math.inf)
    with pytest.raises(UserError, match="not finite after step 2") as error:
        require_sound(model, 2)
    assert error.value.found == "first bad tensor: net.2.bias"


# ------------------------------------------------------------------ the loop
def activation(model: nn.Module, value: float) -> None:
    model.get_submodule("encoder.0.mlp.down").register_forward_hook(lambda module, given, x: put(x, value))


def embedding(model: nn.Module, value: float) -> None:
    model.get_submodule("tokens").register_forward_hook(lambda module, given, x: put(x, value))


def gradient(model: nn.Module, value: float) -> None:
    model.get_parameter("decoder.0.cross.q.weight").register_hook(lambda grad: put(grad, value))


def overflow(model: nn.Module, value: float) -> None:
    model.get_submodule("decoder.1.mlp.up").register_forward_hook(lambda module, given, x: x * 1e38 * 1e38 * value)


@pytest.mark.parametrize(("layout", "value"), CASES)
@pytest.mark.parametrize("spoil", [activation, embedding, gradient, overflow])
def test_loop_stops_in_the_same_step_and_saves_nothing(
    tmp_path: Path, layout: str, value: float, spoil: Callable[[nn.Module, float], None]
) -> None:
    encoded, model_config = corpus()
    config = TrainConfig(
        budget=Budget(steps=6), batch_tokens=128, save_every=2, evaluate_every=50, accumulate=2, device="cpu"
    )
    model: Any = build(model_config)

    def loss_of(batch: Batch) -> Loss:
        return translation_loss(model, batch, 0.1)

    batches, counters = PairBatches(encoded, 0, 128, packed=layout == "packed"), Counters()
    with RunFolder.create_or_open(tmp_path / "run", "a: 1\n", keep=config.keep) as folder:
        events = fit(model, loss_of, batches, config, CPU, Saver(folder), {}, counters)
        logged = list(itertools.islice(events, 4))  # steps 1 and 2, a save, step 3
        assert isinstance(logged[-1], Step) and logged[-1].step == 3
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        spoil(model, value)
        with pytest.raises(UserError, match="not finite at step 4, and the step was not taken") as error:
            list(events)
    assert error.value.exit_code == 3
    assert same_bits(model.state_dict(), before)
    assert counters.step == 3
    points = newest(tmp_path / "run", 10)[0]
    assert [point.step for point in points] == [2]
    saved = [*points[0].load("model").values(), *points[0].load("optimizer").values()]
    assert all(bool(value.isfinite().all()) for value in saved)
