"""The decoder's whole-sequence kernels against the loop that defines them, where there is a GPU to run them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.feeding import has_kernels
from heedful.blocks.layouts import Padded
from heedful.blocks.taps import watch
from heedful.models import build
from heedful.models.seq2seq.config import AttentionConfig, RecurrentEncoder, Seq2SeqConfig

SCORES = ["additive", "general", "dot", "scaled_dot"]
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels run on a GPU")


def model(cell: str, score: str, layers: int, dropout: float = 0.0, **more: Any) -> Any:
    attention = AttentionConfig.model_validate({"score": score, **more})
    encoder = RecurrentEncoder(hidden=40, layers=1)
    config = Seq2SeqConfig.model_validate(
        {"vocab": 50, "width": 24, "encoder": encoder, "cell": cell, "layers": layers, "hidden": 40, "context": 99}
        | {"attention": attention, "dropout": dropout}
    )
    torch.manual_seed(0)
    made: Any = build(config)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


def sentences() -> tuple[Tensor, Tensor, Tensor]:
    source, target = torch.randint(1, 50, (5, 37)), torch.randint(1, 50, (5, 11))
    real = torch.arange(37) < torch.tensor([[37], [3], [17], [0], [30]])
    real[4] = real[4].flip(0)  # one padded on the left
    return source, real, target


def outputs_and_gradients(
    m: Any, device: str, dtype: torch.dtype, half: torch.dtype | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The decoder's outputs, and the gradients of all weights; the last states are part of the loss."""
    torch.manual_seed(1)
    source, real, target = (x.to(device) for x in sentences())
    m.to(device, dtype).zero_grad()
    with torch.autocast(device, half or torch.bfloat16, enabled=half is not None):
        x, state = m.features(target, m.start(source, Padded(real)))
    torch.manual_seed(2)
    parts = [x, *(part for layer in state.layers for part in layer)]
    loss = sum((part.double().cpu() * torch.randn(part.shape, dtype=torch.double)).sum() for part in parts)
    loss.backward()  # type: ignore[union-attr]
    return x.detach().double().cpu(), {name: p.grad.double().cpu().clone() for name, p in m.named_parameters()}


@gpu
@pytest.mark.parametrize("half", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_kernels_match_the_loop(cell: str, score: str, layers: int, half: torch.dtype | None) -> None:
    m, seen = model(cell, score, layers), []
    truth, truths = outputs_and_gradients(m, "cpu", torch.float64)
    m.decoder.attention.register_forward_hook(lambda *_: seen.append(1))
    with torch.backends.cudnn.flags(allow_tf32=False):  # the encoder is not under test
        mine, grads = outputs_and_gradients(m, "cuda", torch.float32, half)
    assert not seen, "the loop ran, not the kernels"
    error = 1e-4 if half is None else 0.06
    assert float((mine - truth).abs().max()) <= error * float(truth.abs().max())
    for name, grad in grads.items():
        assert float((grad - truths[name]).abs().max()) <= error * float(truths[name].abs().max()), name


@gpu
def test_dropout_between_layers_follows_the_seed() -> None:
    m = model("lstm", "additive", 2, dropout=0.5).cuda().train()
    source, real, target = (x.cuda() for x in sentences())

    def run() -> Tensor:
        x: Tensor = m.read(source, target, Padded(real))
        return x

    torch.manual_seed(3)
    one, two = run(), run()
    torch.manual_seed(3)
    assert not one.equal(two) and one.equal(run())


@gpu
def test_watching_uses_the_loop() -> None:
    m = model("gru", "general", 2).cuda().eval()
    source, real, target = (x.cuda() for x in sentences())
    with torch.no_grad():
        fast = m.read(source, target, Padded(real))
        with watch(m, "decoder.attention.weights") as seen:
            slow = m.read(source, target, Padded(real))
    assert len(seen.all["decoder.attention.weights"]) == target.shape[1]
    torch.testing.assert_close(fast, slow, rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    "settings",
    [{"score": "cosine"}, {"score": "location"}, {"score": "dot", "choice": "hard"}, {"score": "dot", "cell": "rnn"}],
    ids=str,
)
def test_settings_without_a_kernel_use_the_loop(settings: dict[str, str]) -> None:
    cell = settings.pop("cell", "lstm")
    m = model(cell, settings.pop("score"), 1, **settings)
    source, real, _ = sentences()
    state = m.start(source, Padded(real))

    class FakeCuda(Tensor):
        is_cuda = True

    x = torch.randn(5, 3, 24).as_subclass(FakeCuda)
    assert not has_kernels(m.decoder.attention, m.decoder.stack, x, state.source.value)
