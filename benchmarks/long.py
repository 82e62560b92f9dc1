"""Long texts: models whose attention sees some blocks, against full attention and against peers, on a GPU.

    python benchmarks/long.py                    # forward and backward of 16,384 tokens, and of one row of 65,536
    python benchmarks/long.py --only kernel      # attention alone, and how long lists of blocks take to make
    python benchmarks/long.py --only tune        # attention alone, with other numbers of warps and stages
    python benchmarks/long.py --only cpu         # 8,192 tokens on a CPU: windows against full SDPA
    python benchmarks/long.py --quick            # tiny models on a CPU: that all of it runs

12 layers, 768 wide, 12 heads, weights in bf16, no dropout (but `transformers` as published, where it says so). "heedful
bigbird" is the model of that name with its embeddings, as is the peer of `transformers`; the others are stacks of
encoder blocks over given vectors: Heedful's, and plain ones of torch.nn with FlexAttention or SDPA. All but those that
say eager are compiled; Heedful's run as CUDA graphs, as in training, and peers do too where it says graph. Each
contender has a process of its own; those of a shape get ready at once, then are timed one after the other. Times are
medians.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]

SHAPES = [(4, 4096), (1, 16_384)]  # rows and length
HEADS, HEAD, BLOCK, WINDOW = 12, 64, 64, 512  # a window of 512 has 256 keys on each side


def rule(kind: str, length: int, device: str) -> Any:
    """The mask of BigBird (blocks of 64: three around, three random, the first and the last), or of a window."""
    import torch

    from heedful.blocks.masks import block_table, global_tokens, random_blocks, window

    if kind == "window":
        return window(WINDOW // 2)
    at = torch.arange(length // BLOCK, device=device)
    near = (at - at[:, None]).abs() <= 1
    ends = global_tokens(BLOCK) | global_tokens(BLOCK, length - BLOCK)
    seen = near | (at == 0) | (at == at[-1]) | (at == 0)[:, None] | (at == at[-1])[:, None]
    return (
        block_table(near[None], BLOCK) | ends | random_blocks(3, BLOCK, HEADS, 0, length, exclude=seen, device=device)
    )


def captured(run: Any) -> Any:
    """A call as a CUDA graph, so that the time is that of the device, not of the host that starts its kernels."""
    import torch

    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def milliseconds(run: Any, repeats: int = 20) -> float:
    """The median time of a call on the device, with a cache that others have used in between."""
    import torch

    for _ in range(3):
        run()
    filler = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    times = []
    for _ in range(repeats):
        filler.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def tensors(rows: int, length: int) -> tuple[Any, Any]:
    """Queries, keys and values as a model has them, from one product, and a gradient of the output."""
    import torch

    torch.manual_seed(0)
    qkv = torch.randn(rows, length, 3, HEADS, HEAD, device="cuda", dtype=torch.bfloat16).requires_grad_()
    grad = torch.randn(rows, length, HEADS, HEAD, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    return qkv, grad


def forth_and_back(attend: Any, rows: int, length: int) -> dict[str, float]:
    """Milliseconds of `attend` forwards, and with the backward pass."""
    import torch

    qkv, grad = tensors(rows, length)

    def both() -> None:
        q, k, v = qkv.transpose(1, 3).unbind(2)
        torch.autograd.grad(attend(q, k, v), qkv, grad)

    with torch.no_grad():
        q, k, v = qkv.transpose(1, 3).unbind(2)
        forth = milliseconds(captured(lambda: attend(q, k, v)))
    return {"forward": forth, "both": milliseconds(captured(both))}


def flex(kind: str, rows: int, length: int) -> Any:
    """Compiled FlexAttention of the same mask."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = rule(kind, length, "cuda")
    blocks = create_block_mask(mask, None, None, length, length) if kind == "window" else listed(mask, length)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=blocks)


def listed(mask: Any, length: int) -> Any:
    """FlexAttention's lists from ours: all blocks are full, so that no mask is computed."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from heedful.blocks.sparse import BlockSparse

    made = BlockSparse.of(mask, 1, HEADS, length, size=BLOCK, device="cuda").lists
    none = torch.zeros_like(made.full)
    return BlockMask.from_kv_blocks(none, torch.zeros_like(made.columns), made.full, made.columns, BLOCK)


def full(q: Any, k: Any, v: Any) -> Any:
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def kernel(options: argparse.Namespace) -> dict[str, Any]:
    """Attention alone: 16,384 tokens, 12 heads of 64, bf16."""
    import torch

    from heedful.blocks.attention import attend
    from heedful.blocks.sparse import BlockSparse

    found: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    print(f"{'attention alone':<44} {'forward ms':>11} {'both ms':>9}", flush=True)

    def show(name: str, run: Any, rows: int, length: int) -> None:
        try:
            found[name] = r = forth_and_back(run, rows, length)
            print(f"{name:<44} {r['forward']:>11.3f} {r['both']:>9.3f}", flush=True)
        except Exception as error:
            found[name] = None
            print(f"{name:<44} failed: {type(error).__name__}: {str(error)[:300]}", flush=True)

    for rows, length in options.shapes or SHAPES:
        for kind in options.kinds:
            for size in (64, 128):
                make = partial(
                    BlockSparse.of, rule(kind, length, "cuda"), rows, HEADS, length, size=size, device="cuda"
                )
                name = f"{rows} x {length} {kind}: heedful {size}"
                show(name, partial(attend, mask=make()), rows, length)
                found[f"{rows} x {length} {kind}: lists {size}"] = spent = milliseconds(make)
                print(f"{'':<8}lists: {spent:.2f} ms", flush=True)
            if not options.alone:
                show(f"{rows} x {length} {kind}: flex", flex(kind, rows, length), rows, length)
        if not options.alone:
            show(f"{rows} x {length}: full SDPA", full, rows, length)
    return found


def tune(options: argparse.Namespace) -> dict[str, Any]:
    """Each kernel with other numbers of warps and stages, alone."""
    import torch

    from heedful.blocks.kernels import blocks as kernels
    from heedful.blocks.masks import Mask
    from heedful.blocks.sparse import BlockSparse

    found: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    for (rows, length), kind, size in itertools.product(options.shapes or SHAPES, options.kinds, (64, 128)):
        mask: Mask = rule(kind, length, "cuda")
        made = BlockSparse.of(mask, rows, HEADS, length, size=size, device="cuda")
        qkv, grad = tensors(rows, length)
        q, k, v = qkv.detach().transpose(1, 3).unbind(2)
        nothing, seed = torch.empty(0, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")
        forward = partial(kernels.attend, q, k, v, made.lists, nothing, seed, 0.0)
        rest = (nothing, seed, 0.0, *forward(), grad)
        backward = partial(kernels.attend_backward, q, k, v, made.lists, made.back, *rest)
        runs = {"_forward": forward, "_queries": backward, "_keys": backward}
        for name in ("_forward", "_queries", "_keys"):
            usual = kernels.TILES[name, size]
            for setting in itertools.product((4, 8), (1, 2, 3, 4, 5)):
                kernels.TILES[name, size] = setting
                try:
                    spent = milliseconds(captured(runs[name]), 10)
                except Exception as error:
                    print(f"{name} {setting}: {type(error).__name__}", flush=True)
                    continue
                found[f"{rows} x {length} {kind} {size} {name} {setting}"] = spent
                print(
                    f"{rows} x {length} {kind:<8} {size:>4} {name:<9} warps, stages {setting}: {spent:.3f}", flush=True
                )
            kernels.TILES[name, size] = usual
    return found


def cpu(options: argparse.Namespace) -> dict[str, Any]:
    """8,192 tokens on a CPU, float32: windows of 512 in all and of 512 on each side, against full SDPA.

    Attention alone, and one encoder block of 768. All contenders take turns; the time is that of the processor (all
    threads), which other programs hardly change, and the least of all rounds. Bytes are counted.
    """
    import torch

    from heedful.blocks.attention import attend
    from heedful.blocks.masks import window
    from heedful.blocks.sparse import BlockSparse
    from heedful.lectures.counting import Counted

    length, rounds = (1024, 1) if options.quick else (8192, 4)
    torch.set_num_threads(options.threads)
    Size.layers, Size.width, Size.device, Size.dtype = 1, HEADS * HEAD, "cpu", "float32"
    masks = {
        f"window of {WINDOW}": BlockSparse.of(window(WINDOW // 2), 1, HEADS, length, size=128),
        f"window of {WINDOW} on each side": BlockSparse.of(window(WINDOW), 1, HEADS, length, size=128),
    }
    q, k, v = (torch.randn(1, length, HEADS, HEAD).transpose(1, 2).requires_grad_() for _ in range(3))
    x, grad = vectors(1, length), torch.randn(1, HEADS, length, HEAD)

    def attention(run: Any) -> tuple[Any, Any]:
        return partial(run, q, k, v), lambda o: torch.autograd.grad(o, (q, k, v), grad)

    def encoder(model: Any) -> tuple[Any, Any]:
        return partial(model, x), lambda o: torch.autograd.grad(o.sum(), list(model.parameters()))

    runs = {"attention: full SDPA": attention(full), "encoder: full SDPA": encoder(stack(full))}
    for name, mask in masks.items():
        runs[f"attention: {name}"] = attention(partial(attend, mask=mask))
        runs[f"encoder: {name}"] = encoder(heedful_stack(mask))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, (forward, backward) in runs.items():
            begin = time.process_time()
            with torch.no_grad():
                forward()
            middle = time.process_time()
            backward(forward())
            times[name].append((middle - begin, time.process_time() - middle))
    found: dict[str, Any] = {}
    print(f"{length:,} tokens, {options.threads} threads, {torch.__version__}; seconds of the processor", flush=True)
    for name, (forward, backward) in sorted(runs.items()):
        with Counted() as counted:
            backward(forward())
        one, both = (min(some) for some in zip(*times[name][1:], strict=True))
        found[name] = {"forward": one, "both": both, "gflop": counted.operations / 1e9, "mib": counted.peak / 2**20}
        other = found.get(f"{name.partition(':')[0]}: full SDPA", found[name])
        print(
            f"{name:<42} forward {one:6.2f} ({other['forward'] / one:5.2f}x)  with backward {both:6.2f} "
            f"({other['both'] / both:5.2f}x)  {found[name]['gflop']:7.1f} GFLOP  {found[name]['mib']:6.0f} MiB",
            flush=True,
        )
    return found


# ------------------------------------------------------------------ whole models: each is (run, inputs)
class Size:
    """The model's size; `--quick` makes it tiny."""

    layers, width, vocab = 12, HEADS * HEAD, 50358
    device, dtype = "cuda", "bfloat16"


def stack(attend: Any) -> Any:
    """A stack of encoder blocks over vectors (B, T, D), plain torch.nn, with `attend` of q, k and v."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = Size.width
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
            x = self.norm1(x + self.out(attend(q, k, v).transpose(1, 2).flatten(2)))
            return self.norm2(x + self.down(torch.nn.functional.gelu(self.up(x))))

    return nn.Sequential(*(Block() for _ in range(Size.layers)))


def heedful_stack(mask: Any) -> Any:
    """The same of Heedful's blocks."""
    import torch
    from torch import nn

    from heedful.blocks.attention import SelfAttention
    from heedful.blocks.encoder import EncoderBlock
    from heedful.blocks.feedforward import FeedForward
    from heedful.blocks.norms import PostNorm

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = Size.width
            self.blocks = nn.ModuleList(
                EncoderBlock(
                    SelfAttention(width, HEADS, 0.0),
                    FeedForward(width, 4 * width, torch.nn.functional.gelu),
                    PostNorm(width, 0.0),
                    PostNorm(width, 0.0),
                )
                for _ in range(Size.layers)
            )

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x, mask)
            return x

    return Stack()


def vectors(rows: int, length: int) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.randn(rows, length, Size.width, device=Size.device, dtype=getattr(torch, Size.dtype))


def tokens(rows: int, length: int) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.randint(5, Size.vocab, (rows, length), device=Size.device)


def bigbird(rows: int, length: int) -> Any:
    """Heedful's BigBird."""
    from heedful.models import build
    from heedful.models.bigbird.config import BigBirdConfig

    sizes = {"width": Size.width, "hidden": 4 * Size.width, "layers": Size.layers, "heads": HEADS, "vocab": Size.vocab}
    config = BigBirdConfig.model_validate(
        sizes | {"context": length, "block": BLOCK, "dropout": 0.0, "attention_dropout": 0.0}
        | {"masked_words": False, "next_sentence": False, "pooler": False}
    )  # fmt: skip
    return build(config), tokens(rows, length)


def transformers_bigbird(dropout: float, rows: int, length: int) -> Any:
    """BigBird of `transformers`."""
    import torch
    from transformers import BigBirdConfig, BigBirdModel

    config = BigBirdConfig(
        vocab_size=Size.vocab, hidden_size=Size.width, num_hidden_layers=Size.layers, num_attention_heads=HEADS,
        intermediate_size=4 * Size.width, max_position_embeddings=length, block_size=BLOCK, num_random_blocks=3,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, attention_type="block_sparse",
    )  # fmt: skip
    model = BigBirdModel(config, add_pooling_layer=False)

    class Vectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids).last_hidden_state

    return Vectors(), tokens(rows, length)


def window_of_heedful(rows: int, length: int) -> Any:
    from heedful.blocks.masks import window
    from heedful.blocks.sparse import BlockSparse

    mask = BlockSparse.of(window(WINDOW // 2), rows, HEADS, length, device=Size.device)
    return heedful_stack(mask), vectors(rows, length)


def lean_window_of_heedful(rows: int, length: int) -> Any:
    """The same, with the hidden layers of feed-forward layers computed again (`train.recompute`)."""
    from heedful.blocks.feedforward import recompute_hidden

    model, given = window_of_heedful(rows, length)
    recompute_hidden(model)
    return model, given


def window_of_flex(rows: int, length: int) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from heedful.blocks.masks import window

    blocks = create_block_mask(window(WINDOW // 2), None, None, length, length, device=Size.device)
    return stack(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks)), vectors(rows, length)


def full_of_heedful(rows: int, length: int) -> Any:
    return heedful_stack(None), vectors(rows, length)


def full_of_torch(rows: int, length: int) -> Any:
    return stack(full), vectors(rows, length)


EAGER, COMPILED, GRAPH = range(3)
CONTENDERS = {  # by name: how it is made, and how it runs; Heedful trains with CUDA graphs of compiled models
    "heedful bigbird": (bigbird, GRAPH),
    "transformers bigbird eager": (partial(transformers_bigbird, 0.1), EAGER),
    "transformers bigbird, no dropout": (partial(transformers_bigbird, 0.0), COMPILED),
    "heedful window": (window_of_heedful, GRAPH),
    "heedful window, recompute": (lean_window_of_heedful, GRAPH),
    "flex window": (window_of_flex, COMPILED),
    "flex window, graph": (window_of_flex, GRAPH),
    "heedful full": (full_of_heedful, GRAPH),
    "sdpa full": (full_of_torch, COMPILED),
    "sdpa full, graph": (full_of_torch, GRAPH),
}
LONGEST = {  # beyond it, a step takes seconds
    "transformers bigbird eager": 16_384,
    "transformers bigbird, no dropout": 4096,
    "heedful full": 16_384,
    "sdpa full": 16_384,
    "sdpa full, graph": 16_384,
}


def measure(name: str, rows: int, length: int) -> dict[str, Any]:
    """Milliseconds of a forward and backward pass, and the most memory that it takes."""
    import torch
    from translation import spread, timed

    torch.manual_seed(0)
    make, way = CONTENDERS[name]
    model, given = make(rows, length)
    model = model.to(Size.device, getattr(torch, Size.dtype)).train()
    cuda = Size.device == "cuda"
    call = torch.compile(model, dynamic=False) if way != EAGER and cuda else model

    def run() -> None:
        for weight in model.parameters():
            weight.grad = None
        call(given).float().square().mean().backward()

    def sync() -> None:
        if cuda:
            torch.cuda.synchronize()

    times = timed(captured(run) if way == GRAPH and cuda else run, 3 if cuda else 1, 10 if cuda else 1, sync)
    memory = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    if not all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None):
        sys.exit(f"{name}: a gradient is not finite")
    return {"ms": 1e3 * statistics.median(times), "spread": spread(times), "gib": memory, "tokens": rows * length}


GOALS = (  # contender, against which, shape, the least ratio of times
    ("heedful bigbird", "transformers bigbird eager", (4, 4096), 7.0),
    ("heedful bigbird", "transformers bigbird, no dropout", (4, 4096), 1.0),
    ("heedful window", "flex window", (4, 4096), 1.15),
    ("heedful window", "flex window", (1, 16_384), 1.15),
    ("heedful window, recompute", "flex window", (4, 4096), 1.15),
    ("heedful window, recompute", "flex window", (1, 16_384), 1.15),
    ("heedful full", "sdpa full", (4, 4096), 1.0),
)
MOST = {("heedful bigbird", (4, 4096)): 32.0, ("heedful bigbird", (1, 16_384)): 32.0}  # milliseconds


def models(options: argparse.Namespace) -> dict[str, Any]:
    """All contenders in all shapes, and their goals."""
    from contenders import time_contenders

    shapes = [(2, 1024)] if options.quick else options.shapes or [*SHAPES, (1, 65_536)]
    command = [sys.executable, __file__, *(["--quick"] if options.quick else [])]
    found: dict[str, Any] = {}
    print(f"{'forward and backward':<52} {'ms':>9} {'us/token':>9} {'GiB':>7}", flush=True)

    def line(name: str, r: dict[str, Any]) -> str:
        return f"{name:<52} {r['ms']:>9.2f} {1e3 * r['ms'] / r['tokens']:>9.2f} {r['gib']:>7.2f}"

    for rows, length in shapes:
        names = [name for name in CONTENDERS if any(kind in name for kind in (*options.kinds, "full"))]
        names = [name for name in names if not (options.quick and "flex" in name)]  # which runs on a GPU only
        names = [name for name in names if length <= LONGEST.get(name, length)]
        large = [name for name in names if "flex" in name and length > 16_384]  # 64 GiB each, so one after the other
        for group in ([name for name in names if name not in large], *([name] for name in large)):
            found |= time_contenders(command, [f"{rows}x{length} {name}" for name in group], line)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    for name, other, (rows, length), goal in GOALS:
        mine, theirs = (found.get(f"{rows}x{length} {x}") for x in (name, other))
        if mine and theirs:
            memory = f"{mine['gib']:.2f} against {theirs['gib']:.2f} GiB"
            ratio = theirs["ms"] / mine["ms"]
            print(f"{rows}x{length} {name}: {ratio:.2f}x {other} (goal {goal}), {memory}")
    for (name, (rows, length)), goal in MOST.items():
        if mine := found.get(f"{rows}x{length} {name}"):
            print(f"{rows}x{length} {name}: {mine['ms']:.1f} ms (goal {goal:.0f})")
    for name in ("heedful bigbird", "heedful window"):
        short, long = (found.get(f"{x} {name}") for x in ("4x4096", "1x65536"))
        if short and long:
            ratio = long["ms"] / long["tokens"] / (short["ms"] / short["tokens"])
            print(f"{name}: a token of a row of 65,536 takes {ratio:.2f}x one of 4,096 (goal at most 1.3)")
    return found


def shape(text: str) -> tuple[int, int]:
    rows, length = text.split("x")
    return int(rows), int(length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["models", "kernel", "tune", "cpu"], default="models")
    parser.add_argument("--shapes", nargs="+", type=shape, help="rows x length, such as 4x4096")
    parser.add_argument("--kinds", nargs="+", default=["window", "bigbird"])
    parser.add_argument("--alone", action="store_true", help="kernels without peers")
    parser.add_argument("--quick", action="store_true", help="tiny models on a CPU")
    parser.add_argument("--threads", type=int, default=1, help="of --only cpu")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        Size.layers, Size.width, Size.vocab, Size.device, Size.dtype = 2, HEADS * 8, 100, "cpu", "float32"
    if options.contender:
        at, _, name = options.contender.partition(" ")
        print("RESULT " + json.dumps(measure(name, *shape(at))))
        return
    found = {"models": models, "kernel": kernel, "tune": tune, "cpu": cpu}[options.only](options)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
