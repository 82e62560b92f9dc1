"""Transformer-XL beside our GPT: evaluation with a memory, and what both learn from the same bytes.

    python benchmarks/transformer_xl.py TEXT ... [--quick] [--only speed|learn] [--steps 1000] [--compile] [--out FILE]

TEXT are files, gzipped or not, or folders of them; each is one document, and bytes are the tokens. The last 2 % of
every document is held out. The result is JSON.

`speed`: a model of 12 layers (the sizes of enwik8's base model) predicts each byte from the 3,800 before it. With the
memory, a segment at a time; with a sliding window, as models without a memory must: all 3,800 are read again for each
byte. Both in bf16, the window by our GPT of the same number of parameters with its fused kernel, as many windows at a
time as are fastest. `learn`: Transformer-XL and GPT with equal parameters, tokens and steps; bits a byte on the
held-out text, and the loss by the number of bytes that are given: the effective context is the largest that gains
more than 0.1 % over half of it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from heedful.data.text.lanes import Lanes  # noqa: E402
from heedful.data.text.text_stream import TextCounts  # noqa: E402
from heedful.data.text.windows import EncodedText, TextBatches  # noqa: E402
from heedful.models import build  # noqa: E402
from heedful.models.gpt.config import GptConfig  # noqa: E402
from heedful.models.transformer_xl.config import TransformerXLConfig  # noqa: E402
from heedful.tasks.compiled import compile_model, compile_steps  # noqa: E402
from heedful.tasks.language_model.perplexity import document_loss, sliding_loss, stateful_loss, text_loss  # noqa: E402

VOCAB, HELD_OUT, GAIN = 256, 0.02, 0.001


@dataclass(frozen=True)
class Size:
    """The sizes of one run."""

    width: int
    heads: int
    layers: int  # of the models that learn
    deep: int  # layers of the models that are timed
    context: int
    attention: int  # bytes that a prediction sees where speed is measured
    segments: tuple[int, ...]  # tried with the memory
    windows: tuple[int, ...]  # tried with the sliding window, at a time
    rows: int  # of a training batch
    given: tuple[int, ...]  # bytes that are given, for the effective context
    places: int  # where in the held-out text
    most: int  # held-out bytes


FULL = Size(
    512,
    8,
    8,
    12,
    512,
    3800,
    (128, 512, 1024, 2048),
    (1, 4, 16),
    32,
    (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    128,
    400_000,
)
QUICK = Size(32, 2, 2, 2, 32, 96, (16, 64), (1, 4), 8, (4, 8, 16, 32, 64), 8, 2_000)
SCORED = 64  # bytes whose loss is measured after those that are given; in quick runs, half the context


def read(paths: list[Path]) -> list[bytes]:
    """The documents."""
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path]) if file.is_file()]
    found = [gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in map(Path.read_bytes, files)]
    return [document for document in found if len(document) > 1000]


def encoded(documents: list[bytes], context: int) -> EncodedText:
    """Bytes in one row, a zero before each document and after the last."""
    parts = [np.concatenate([np.zeros(1, np.uint8), np.frombuffer(document, np.uint8)]) for document in documents]
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    ids = np.concatenate([*parts, np.zeros(1, np.uint8)])
    return EncodedText(ids, starts.astype(np.int64), context, TextCounts(bytes=len(ids) - 1))


def seconds(run: Callable[[], Any], device: torch.device, least: float = 1.0) -> float:
    """The time of one call, after one that does not count."""
    run()
    wait(device)
    calls, begun = 0, time.perf_counter()
    while calls < 2 or time.perf_counter() - begun < least:
        run()
        wait(device)
        calls += 1
    return (time.perf_counter() - begun) / calls


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def equal(size: Size, layers: int, context: int, memory: int, segment: int) -> tuple[Any, Any]:
    """A Transformer-XL and a GPT with the same number of parameters, up to the inner width of the former."""
    gpt = GptConfig(
        vocab=VOCAB, width=size.width, heads=size.heads, layers=layers, context=context, dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    xl = {
        "vocab": VOCAB, "width": size.width, "heads": size.heads, "layers": layers, "context": segment,
        "memory": memory, "clamp": segment + memory, "dropout": 0.0,
    }  # fmt: skip
    hidden = min(
        range(size.width, 6 * size.width),
        key=lambda hidden: abs(TransformerXLConfig(**xl, hidden=hidden).parameters(VOCAB) - gpt.parameters(VOCAB)),
    )
    return TransformerXLConfig(**xl, hidden=hidden), gpt


@torch.inference_mode()
def speed(size: Size, device: torch.device, half: torch.dtype, compiles: bool) -> dict[str, Any]:
    """Bytes a second with the memory and with the sliding window."""
    span = size.attention
    ours, gpt = equal(size, size.deep, span, span, size.segments[0])
    found: dict[str, Any] = {
        "attention": span,
        "parameters": {"transformer_xl": ours.parameters(VOCAB), "gpt": gpt.parameters(VOCAB)},
    }
    xl: Any = build(ours).to(device, half).eval()
    tokens = torch.randint(0, VOCAB, (1, span + max(size.segments)), device=device)
    runs: dict[str, float] = {}
    for segment in size.segments:
        step = torch.compile(xl.features, dynamic=False) if compiles else xl.features
        state = xl.features(tokens[:, :span], xl.start(1, device))[1]
        now = tokens[:, :segment]
        runs[str(segment)] = segment / seconds(
            lambda step=step, now=now, state=state: xl.tokens.logits(step(now, state)[0]), device
        )
    found["memory, bytes a second by segment"] = runs
    window: Any = build(gpt).to(device, half).eval()
    slides: dict[str, float] = {}
    for rows in size.windows:
        some = tokens[:, :span].expand(rows, -1).contiguous()
        slides[str(rows)] = rows / seconds(lambda some=some: window.tokens.logits(window.read(some)[:, -1]), device)
    found["sliding window, bytes a second by windows at a time"] = slides
    found["sliding window of the same model"] = 1 / seconds(lambda: xl.read(tokens[:, :span]), device)
    found["ratio"] = max(runs.values()) / max(slides.values())
    return found


def learn(
    size: Size, documents: list[bytes], steps: int, device: torch.device, half: torch.dtype, compiles: bool
) -> dict[str, Any]:
    """What both learn from the same bytes."""
    cut = [round(len(document) * (1 - HELD_OUT)) for document in documents]
    train = encoded([document[:at] for document, at in zip(documents, cut, strict=True)], size.context)
    most = max(1, size.most // len(documents))
    held = [document[at:][:most] for document, at in zip(documents, cut, strict=True)]
    rest = encoded(held, size.context)
    ours, gpt = equal(size, size.layers, size.context, size.context, size.context)
    found: dict[str, Any] = {
        "bytes": {"train": len(train), "held out": len(rest)},
        "steps": steps,
        "tokens": steps * size.rows * size.context,
    }
    for name, config in (("gpt", gpt), ("transformer_xl", ours)):
        torch.manual_seed(0)
        model: Any = build(config).to(device)
        lanes = name == "transformer_xl"
        seconds_taken, curve = trained(model, train, size, steps, device, half, compiles, lanes)
        model.eval()
        scores: dict[str, Any] = {
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "seconds": seconds_taken,
            "training loss": curve,
        }
        with torch.inference_mode(), torch.autocast(device.type, half, half is not torch.float32):
            if lanes:
                for memory in (size.context, 2 * size.context, 4 * size.context):
                    scores[f"bits a byte, memory {memory}"] = text_loss(
                        model, rest, device, model.start(1, device, memory), size.context
                    ) / math.log(2)
            else:
                scores["bits a byte"] = sliding_loss(
                    model, rest, device, size.context // 2, size.rows * size.context
                ) / math.log(2)
            scores["by context"] = by_context(model, config, held, size, device)
        losses = scores["by context"]
        pairs = zip(losses.items(), list(losses.items())[1:], strict=False)
        scores["effective context"] = max(
            (int(more) for (_, worse), (more, better) in pairs if better < worse * (1 - GAIN)), default=size.given[0]
        )
        found[name] = scores
    return found


def trained(
    model: Any,
    train: EncodedText,
    size: Size,
    steps: int,
    device: torch.device,
    half: torch.dtype,
    compiles: bool,
    lanes: bool,
) -> tuple[float, list[float]]:
    """Train by AdamW; the seconds, and the mean loss of every tenth of the steps in bits a byte."""
    batches: Any = (Lanes if lanes else TextBatches)(train, 0, size.rows * size.context)
    rate = 1e-3 if size is QUICK else 5e-4
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))
    )
    learner: Any = (compile_steps(model) if lanes else compile_model(model, dynamic=False)) if compiles else model
    carry = model.start(batches.lanes, device).fill() if lanes else None
    curve, losses = [], []
    wait(device)
    begun = time.perf_counter()
    for step in range(steps):
        batch = batches.at(step).to(device)
        with torch.autocast(device.type, half, half is not torch.float32):
            if lanes:
                loss, carry = stateful_loss(learner, batch, carry)
            else:
                loss = document_loss(learner, batch)
        (loss.total / loss.count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        losses.append(loss.plain / loss.count)
        if (step + 1) % max(1, steps // 10) == 0:
            curve.append(round(torch.stack(losses).mean().item() / math.log(2), 4))
            losses = []
    wait(device)
    return time.perf_counter() - begun, curve


def by_context(model: Any, config: Any, held: list[bytes], size: Size, device: torch.device) -> dict[str, float]:
    """Bits a byte of the same stretches of held-out text, by the number of bytes that are given before them."""
    scored = min(SCORED, size.context // 2)
    longest = size.given[-1]
    room = [np.frombuffer(document, np.uint8) for document in held if len(document) > longest + scored]
    rng = np.random.default_rng(0)
    rows = []
    for place in range(size.places):
        document = room[place % len(room)]
        end = int(rng.integers(longest + scored, len(document) + 1))
        rows.append(document[end - longest - scored : end])
    ids = torch.from_numpy(np.stack(rows).astype(np.int64)).to(device)  # (B, N)
    found = {}
    for given in size.given:
        total = 0.0
        for some in ids.split(16):
            now = some[:, -(given + scored) :]
            if config.fixed_context:
                now = now[:, -config.context - 1 :]
                x = model.read(now[:, :-1])
            else:
                state = model.start(len(now), device, max(size.given) + scored)
                x = torch.cat(list(segments(model, now[:, :-1], state, config.context)), 1)
            total += model.tokens.loss(x[:, -scored:].flatten(0, 1), now[:, -scored:].flatten()).plain.item()
        found[str(given)] = total / (len(ids) * scored) / math.log(2)
    return found


def segments(model: Any, tokens: torch.Tensor, state: Any, length: int) -> Any:
    """The last layer, a segment at a time."""
    for segment in tokens.split(length, 1):
        x, state = model.features(segment, state)
        yield x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, nargs="+", help="files, or folders of files")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a CPU")
    parser.add_argument("--only", choices=("speed", "learn"))
    parser.add_argument("--steps", type=int, help="training steps of each model")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path, help="write the result here, too")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    size, steps = QUICK if options.quick else FULL, options.steps or (60 if options.quick else 1000)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    found: dict[str, Any] = {"torch": torch.__version__, "device": name}
    if options.only != "learn":
        found["speed"] = speed(size, device, half, options.compile)
        print(json.dumps(found["speed"]), file=sys.stderr, flush=True)
    if options.only != "speed":
        found["learn"] = learn(size, read(options.text), steps, device, half, options.compile)
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
