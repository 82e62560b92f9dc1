"""Heedful's captioner compared with a plain torch loop in the same run: training, beam search, one image on a CPU.

    python benchmarks/captions.py --device cuda     # a training step, and captions of 64 images by beam search
    python benchmarks/captions.py --device cpu      # a caption of one image, with ResNet-18
    python benchmarks/captions.py --quick           # tiny sizes on a CPU: that all of it runs

The model is that of Xu et al. (2015): additive attention over a map of 14 x 14 x 512, precomputed features that lie on
the device, an LSTM of 512, a vocabulary of 10,000, batches of 64 captions of 20 words, bf16, coverage of 1. The plain
loop is the same model as people write it, nn.LSTMCell in a loop, with the same weights: the first loss must be equal.
All of its step, the update included, is one CUDA graph. The plain beam search is that of tutorials, one image after the
other, and another of all images at once; both call the model from Python. Captions end after 20 words. Times are
medians.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

BOS, EOS, BATCHES = 2, 3, 4


@dataclass(frozen=True)
class Sizes:
    vocab: int = 10_000
    hidden: int = 512
    side: int = 448  # of an image: its map has a 32nd of it
    rows: int = 64
    words: int = 20
    beams: int = 5
    repeats: int = 50


QUICK = Sizes(vocab=50, hidden=32, side=64, rows=4, words=6, beams=3, repeats=2)


class Given(nn.Module):
    """The feature maps of images that are given by number."""

    def __init__(self, maps: Tensor) -> None:
        super().__init__()
        self.register_buffer("maps", maps, persistent=False)

    def map(self, numbers: Tensor) -> Tensor:
        maps: Any = self.maps
        found: Tensor = maps[numbers.flatten()]
        return found


def ours(s: Sizes, maps: Tensor | None = None) -> Any:
    """Heedful's captioner over ResNet-18; with maps, over these."""
    from heedful.models import build, config_class
    from heedful.models.resnet.config import SIZES

    torch.manual_seed(0)
    encoder = SIZES["resnet-18"].model_copy(update={"classes": None, "size": (s.side, s.side)})
    decoder = {"kind": "recurrent", "width": s.hidden, "hidden": s.hidden}
    settings = {"vocab": s.vocab, "encoder": encoder.model_dump(), "decoder": decoder, "dropout": 0.0}
    model: Any = build(config_class("captioner").model_validate(settings))
    if maps is not None:
        model.encoder = Given(maps)
    return model


class Plain(nn.Module):
    """The same as a loop of nn.LSTMCell."""

    def __init__(self, s: Sizes, memory: int) -> None:
        super().__init__()
        hidden = s.hidden
        self.embedding, self.cell = nn.Embedding(s.vocab, hidden), nn.LSTMCell(memory + hidden, hidden)
        self.begin, self.out = nn.Linear(memory, 2 * hidden), nn.Linear(2 * hidden + memory, hidden)
        self.query, self.key = nn.Linear(hidden, hidden, bias=False), nn.Linear(memory, hidden, bias=False)
        self.v, self.gate = nn.Linear(hidden, 1, bias=False), nn.Linear(hidden, 1)
        self.scale = hidden**0.5

    def start(self, memory: Tensor) -> tuple[Tensor, Any]:
        h, c = torch.tanh(self.begin(memory.mean(1))).chunk(2, -1)
        return self.key(memory), (h, c)

    def step(self, x: Tensor, memory: Tensor, keys: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        h, _ = state
        weights = self.v(torch.tanh(self.query(h)[:, None] + keys)).squeeze(-1).softmax(-1)
        context = torch.bmm(weights[:, None].to(memory.dtype), memory)[:, 0]
        z = torch.sigmoid(self.gate(h)) * context
        state = self.cell(torch.cat([z, x], -1), state)
        return self.out(torch.cat([state[0], z, x], -1)), weights, state

    def forward(self, memory: Tensor, captions: Tensor) -> Tensor:
        given, wanted = captions[:, :-1], captions[:, 1:]
        keys, state = self.start(memory)
        x, outputs, seen = self.embedding(given) * self.scale, [], []
        for t in range(x.shape[1]):
            y, weights, state = self.step(x[:, t], memory, keys, state)
            outputs.append(y)
            seen.append(weights)
        logits = F.linear(torch.stack(outputs, 1), self.embedding.weight)
        loss = F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten(), reduction="sum")
        coverage = (1 - torch.stack(seen, 1).float().sum(1)).square().sum()
        return (loss + coverage) / wanted.numel()

    def logits(self, token: Tensor, memory: Tensor, keys: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, _, state = self.step(self.embedding(token) * self.scale, memory, keys, state)
        return F.linear(y, self.embedding.weight).float().log_softmax(-1), state


def plain(s: Sizes, like: Any) -> Plain:
    """The plain model with the weights of Heedful's."""
    theirs = like.decoder.state_dict()
    model = Plain(s, like.config.memory)
    cell = "stack.layers.0.cell"
    pairs = {
        "embedding.weight": "tokens.weight", "begin.weight": "begin.weight", "begin.bias": "begin.bias",
        "out.weight": "out.weight", "out.bias": "out.bias", "query.weight": "attention.score.q.weight",
        "key.weight": "attention.score.k.weight", "v.weight": "attention.score.v.weight",
        "gate.weight": "gate.linear.weight", "gate.bias": "gate.linear.bias", "cell.weight_ih": f"{cell}.x.weight",
        "cell.weight_hh": f"{cell}.h.weight", "cell.bias_ih": f"{cell}.x.bias",
    }  # fmt: skip
    state = {here: theirs[there] for here, there in pairs.items()}
    model.load_state_dict(state | {"cell.bias_hh": torch.zeros_like(theirs[f"{cell}.x.bias"])})
    return model


def features(s: Sizes, device: str) -> Tensor:
    """Random maps of all images, on the device."""
    luck = torch.Generator().manual_seed(1)
    return torch.randn(s.rows * BATCHES, 512, s.side // 32, s.side // 32, generator=luck).relu().to(device)


def batches(s: Sizes) -> list[Any]:
    """Batches of images by number, with random captions of one length."""
    from heedful.data.images.caption_batches import CaptionBatch

    luck, made = torch.Generator().manual_seed(2), []
    for number in range(BATCHES):
        rows = torch.arange(number * s.rows, (number + 1) * s.rows)
        captions = torch.randint(4, s.vocab, (s.rows, s.words + 1), generator=luck)
        captions[:, 0] = BOS
        lengths = torch.full((s.rows,), s.words + 1)
        made.append(CaptionBatch(rows.view(-1, 1, 1, 1), captions, lengths, rows, (), ()))
    return made


def timed(run: Callable[[], object], s: Sizes, device: str, repeats: int | None = None) -> dict[str, float]:
    """The median time of a call in milliseconds, and the middle half of all."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    times = []
    for turn in range((repeats or s.repeats) + 3):
        wait()
        begin = time.perf_counter()
        run()
        wait()
        if turn >= 3:
            times.append(1e3 * (time.perf_counter() - begin))
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    return {"ms": statistics.median(times), "from": low, "to": high}


# ------------------------------------------------------------------ training
def train_plain(s: Sizes, device: str, graph: bool) -> dict[str, float]:
    """The loop in bf16 with fused AdamW, from Python, or all of a step as one graph."""
    maps = features(s, device)
    model = plain(s, ours(s, maps.cpu())).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda", capturable=graph)
    data = [(b.indices.to(device), b.captions.to(device)) for b in batches(s)]

    def memory(numbers: Tensor) -> Tensor:
        return maps[numbers].flatten(2).transpose(1, 2)

    with torch.no_grad():
        first = float(model(memory(data[0][0]), data[0][1]))

    def work(numbers: Tensor, captions: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(memory(numbers), captions)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()

    turn = iter(range(10**9))
    if not graph:
        return timed(lambda: work(*data[next(turn) % BATCHES]), s, device) | {"loss": first}
    static = tuple(x.clone() for x in data[0])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work(*static)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        work(*static)

    def replay() -> None:
        for buffer, x in zip(static, data[next(turn) % BATCHES], strict=True):
            buffer.copy_(x)
        captured.replay()

    return timed(replay, s, device) | {"loss": first}


def train_ours(s: Sizes, device: str) -> dict[str, float]:
    """The steps of `heedful train`: gradients clipped, loss and norm looked at after every step."""
    from heedful.tasks.captioning.losses import caption_loss
    from heedful.training.carry import stateless
    from heedful.training.configs import Budget, TrainConfig
    from heedful.training.distributed.team import Team
    from heedful.training.optim import make_optimizer
    from heedful.training.step import GraphedStep, PlainStep

    where = torch.device(device)
    model = ours(s, features(s, device)).to(where).train()
    config, data, tokens = TrainConfig(budget=Budget(steps=1)), batches(s), s.rows * s.words
    with torch.no_grad():
        first = float(caption_loss(model, data[0].to(where), coverage=1.0).total) / tokens
    spread = Team().parallelize(model, stateless(partial(caption_loss, model, coverage=1.0)), "ddp")
    optimizer = make_optimizer(config.optimizer, model, where)
    half = torch.bfloat16 if device == "cuda" else None
    eager = PlainStep(model, spread, optimizer, config, where, half)
    step: Any = GraphedStep(eager, data[0], same_shape=True) if device == "cuda" else eager
    turn = iter(range(10**9))

    def work() -> None:
        loss = step.gradients(data[next(turn) % BATCHES], tokens)
        assert all(map(math.isfinite, torch.stack([loss.plain, step.norm()]).tolist()))
        step.update(1e-4)

    return timed(work, s, device) | {"loss": first}


# ------------------------------------------------------------------ beam search
@torch.inference_mode()
def plain_beam(model: Plain, memory: Tensor, beams: int, words: int) -> Tensor:
    """The best caption (B, words) of each map (B, P, M): all images at once, no caption ends before `words`."""
    count, places = memory.shape[0], memory.shape[1]
    keys, (h, c) = model.start(memory)
    logs, state = model.logits(memory.new_full((count,), BOS, dtype=torch.long), memory, keys, (h, c))
    best, tokens = logs.topk(beams)  # (B, W)
    paths = tokens[:, :, None]  # (B, W, 1)
    wide = memory[:, None].expand(-1, beams, -1, -1).reshape(count * beams, places, -1)
    wide_keys = keys[:, None].expand(-1, beams, -1, -1).reshape(count * beams, places, -1)
    state = tuple(part.repeat_interleave(beams, 0) for part in state)
    for _ in range(words - 1):
        logs, state = model.logits(paths[:, :, -1].flatten(), wide, wide_keys, state)
        total = best[:, :, None] + logs.view(count, beams, -1)
        best, flat = total.flatten(1).topk(beams)
        parents, tokens = flat // logs.shape[-1], flat % logs.shape[-1]
        rows = (parents + beams * torch.arange(count, device=parents.device)[:, None]).flatten()
        state = tuple(part[rows] for part in state)
        paths = torch.cat([paths.gather(1, parents[:, :, None].expand_as(paths)), tokens[:, :, None]], 2)
    return paths[:, 0]


def endless(s: Sizes, model: Any) -> Any:
    """A search of Heedful's over images, as its predictor runs it, whose captions have `words` tokens."""
    from heedful.decode.graphs import Graphs
    from heedful.decode.rules import SuppressTokens
    from heedful.decode.search import beam, drain

    graphs = Graphs(model) if next(model.parameters()).is_cuda else None

    @torch.inference_mode()
    def run(images: Tensor) -> Tensor:
        prefix = torch.full((len(images), 1), BOS, device=images.device)
        limit = torch.full((len(images),), s.words)
        search = beam(
            model, model.start(images), prefix, limit, EOS, s.beams, 1, 0.0, rules=(SuppressTokens((EOS,)),),
            graphs=graphs,
        )  # fmt: skip
        return drain(search).tokens[:, 0].cpu()

    return run


def search_all(s: Sizes, device: str) -> dict[str, Any]:
    """Captions of a batch of images: Heedful, the plain loop at once, and image by image."""
    maps = features(s, device)[: s.rows]
    mine = ours(s, maps).to(device).eval()
    theirs = plain(s, ours(s, maps.cpu())).to(device).eval()
    numbers = torch.arange(s.rows, device=device).view(-1, 1, 1, 1)
    memory, run = maps.flatten(2).transpose(1, 2), endless(s, mine)

    def one_by_one() -> Tensor:
        return torch.cat([plain_beam(theirs, memory[row : row + 1], s.beams, s.words) for row in range(s.rows)])

    def suppressed() -> Tensor:
        return plain_beam(theirs, memory, s.beams, s.words)

    repeats = max(2, s.repeats // 5)
    found: dict[str, Any] = {
        "heedful": timed(lambda: run(numbers), s, device, repeats),
        "plain, all at once": timed(suppressed, s, device, repeats),
        "plain, image by image": timed(one_by_one, s, device, 2),
    }
    same = (run(numbers) == suppressed().cpu()).float().mean()
    return found | {"equal tokens": float(same)}


def one_image(s: Sizes) -> dict[str, Any]:
    """A caption of one image on a CPU, ResNet-18 included: Heedful and the plain loop, in turns."""
    small = Sizes(**{**s.__dict__, "side": min(s.side, 224)})
    mine, image = ours(small).eval(), torch.randn(1, 3, small.side, small.side)
    theirs, run = plain(small, mine).eval(), endless(small, mine)

    @torch.inference_mode()
    def loop() -> Tensor:
        memory = mine.encoder.map(image).flatten(2).transpose(1, 2)
        return plain_beam(theirs, memory, small.beams, small.words)

    contenders: dict[str, Callable[[], object]] = {"heedful": lambda: run(image), "plain": loop}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(s.repeats + 3):
        for name, call in contenders.items():
            begin = time.perf_counter()
            call()
            if turn >= 3:
                times[name].append(1e3 * (time.perf_counter() - begin))
    found: dict[str, Any] = {"threads": torch.get_num_threads()}
    for name, measured in times.items():
        low, _, high = statistics.quantiles(measured, n=4)
        found[name] = {"ms": statistics.median(measured), "from": low, "to": high, "shortest": min(measured)}
    return found | {"equal tokens": float((run(image) == loop()).float().mean())}


def show(title: str, found: dict[str, Any], per: int) -> None:
    """A table of the contenders, and how much faster Heedful is."""
    mine = found["heedful"]["ms"]
    print(f"\n{title:<34} {'ms':>9} {'middle half':>17} {'captions/s':>11}  heedful is", flush=True)
    for name, r in found.items():
        if isinstance(r, dict):
            ratio = "" if name == "heedful" else f"{r['ms'] / mine:.2f}x as fast"
            half = f"{r['from']:.2f}-{r['to']:.2f}"
            print(f"{name:<34} {r['ms']:>9.2f} {half:>17} {1e3 * per / r['ms']:>11,.1f}  {ratio}")
        else:
            print(f"  {name}: {r:.4g}")


def on_device(s: Sizes, device: str) -> dict[str, Any]:
    graphs = (False, True) if device == "cuda" else (False,)
    training: dict[str, Any] = {
        f"plain torch{', one graph' * graph}": train_plain(s, device, graph) for graph in graphs
    }
    training["heedful"] = train_ours(s, device)
    losses = [r["loss"] for r in training.values()]
    show("a training step", training, s.rows)
    print("  first losses: " + ", ".join(f"{loss:.6f}" for loss in losses))
    if max(losses) - min(losses) > 1e-3 * max(losses):
        sys.exit("the contenders are not the same model: their first losses differ")
    searching = search_all(s, device)
    show(f"captions of {s.rows} images, {s.beams} beams", searching, s.rows)
    return {"training": training, "search": searching}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="tiny sizes on a CPU, all parts")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    options = parser.parse_args()
    s = QUICK if options.quick else Sizes()
    found: dict[str, Any] = {"torch": torch.__version__, "sizes": s.__dict__}
    if options.device == "cuda":
        torch.set_float32_matmul_precision("high")
        found |= {"device": torch.cuda.get_device_name(), **on_device(s, "cuda")}
    else:
        found |= on_device(s, "cpu") if options.quick else {}
        found["one image"] = one_image(s)
        show("a caption of one image, CPU", found["one image"], 1)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
