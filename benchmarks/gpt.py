"""GPT-2 (124M) compared with `transformers` and typical hand-written models in the same run, on a GPU.

    python benchmarks/gpt.py

Training: 32 texts of 1,024 tokens a step, bf16, no dropout, AdamW. `transformers` and a model in the style of nanoGPT
(vocabulary padded to 50,304) run compiled. Heedful takes the steps of `heedful train`: gradients clipped, loss and norm
looked at after every step. All start from the same weights, and must have the same first loss.

Generation: 256 tokens after 32, greedily, weights in bf16, for 1 text and for 64. `transformers` generates with its
static cache, which it compiles; "gpt-fast style" is a plain model with a fixed cache whose step is compiled and
replayed as a graph. Heedful runs the search of `heedful generate`. Texts one by one must give exactly the tokens that
they give together.

Each contender has a process of its own; those of a group get ready at once, then they are timed one after the other.
Times are medians.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]
from contenders import time_contenders  # noqa: E402

VOCAB, EVEN, CONTEXT, TEXTS = 50257, 50304, 1024, 32
STEPS = 8  # training steps in a measurement
GIVEN, NEW = 32, 256  # tokens
GOALS = {  # ratios that are aimed at
    "train: nanoGPT style": 1.15, "train: transformers": 1.4,
    "greedy 1: transformers": 4.0, "greedy 1: gpt-fast style": 1.0,
    "greedy 64: transformers": 3.0, "greedy 64: gpt-fast style": 1.0,
}  # fmt: skip


def ours() -> Any:
    """GPT-2 without dropout, randomly initialized."""
    import torch

    from heedful.models import build
    from heedful.models.gpt.config import SIZES

    torch.manual_seed(0)
    with torch.device("cuda"):
        return build(SIZES["gpt2"].model_copy(update={"dropout": 0.0, "attention_dropout": 0.0}))


def theirs(mine: Any, dtype: Any) -> Any:
    """The same model in `transformers`."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from heedful.hub.rules import write_tensors
    from heedful.models.gpt.weights import table

    config = GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa", bos_token_id=0, eos_token_id=0,
        pad_token_id=0,
    )  # fmt: skip
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config)
    state, _ = write_tensors(mine.state_dict(), table(mine.config))
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    model.tie_weights()
    return model.to(dtype)


def plain(mine: Any, vocab: int, rows: int = 0) -> Any:
    """The same model in idiomatic torch; with `rows`, keys go to a fixed-size cache."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    c = mine.config

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
            self.qkv, self.out = nn.Linear(c.width, 3 * c.width), nn.Linear(c.width, c.width)
            self.up, self.down = nn.Linear(c.width, 4 * c.width), nn.Linear(4 * c.width, c.width)
            if rows:
                for name in ("keys", "values"):
                    room = torch.zeros(rows, c.heads, GIVEN + NEW, c.width // c.heads)
                    self.register_buffer(name, room, persistent=False)

        def forward(self, x: Any, at: Any = None, mask: Any = None) -> Any:
            q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, c.heads, -1)).transpose(1, 3).unbind(2)
            if at is None:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                self.keys[:, :, at], self.values[:, :, at] = k, v
                y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.positions = nn.Embedding(vocab, c.width), nn.Embedding(c.context, c.width)
            self.layers = nn.ModuleList(Layer() for _ in range(c.layers))
            self.norm = nn.LayerNorm(c.width)

        def forward(self, tokens: Any, at: Any = None, mask: Any = None) -> Any:
            place = torch.arange(tokens.shape[1], device=tokens.device) if at is None else at
            x = self.words(tokens) + self.positions(place)
            for layer in self.layers:
                x = layer(x, at, mask)
            return F.linear(self.norm(x) if at is None else self.norm(x[:, -1:]), self.words.weight)

    with torch.device("cuda"):
        model = Plain()
    with torch.no_grad():
        model.words.weight.zero_()[:VOCAB] = mine.tokens.weight
        model.positions.weight.copy_(mine.positions.table)
        for one, other in [(model.norm, mine.norm)] + [
            pair
            for layer, block in zip(model.layers, mine.blocks, strict=True)
            for pair in (
                (layer.norm1, block.add1.norm), (layer.norm2, block.add2.norm), (layer.qkv, block.attention.qkv),
                (layer.out, block.attention.out), (layer.up, block.mlp.up), (layer.down, block.mlp.down),
            )
        ]:  # fmt: skip
            one.load_state_dict(other.state_dict())
    return model


# ------------------------------------------------------------------ training
def texts() -> list[Any]:
    """Four batches of random tokens."""
    import torch

    luck = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCAB, (TEXTS, CONTEXT + 1), generator=luck) for _ in range(4)]


def measured(step: Any, loss: float) -> dict[str, Any]:
    """Steps one after the other, as training takes them."""
    import torch
    from translation import spread, timed

    def several() -> None:
        for _ in range(STEPS):
            step()

    times = [time / STEPS for time in timed(several, 2, 5, torch.cuda.synchronize)]
    middle = statistics.median(times)
    memory = torch.cuda.max_memory_reserved() / 2**30
    rate = TEXTS * CONTEXT / middle
    return {"rate": rate, "ms": 1e3 * middle, "spread": spread(times), "loss": loss, "gib": memory}


def train_peer(loss_of: Any, model: Any) -> dict[str, Any]:
    """A compiled model and fused AdamW."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    data = [batch.cuda() for batch in texts()]
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        first = float(loss_of(data[0]))
    compiled, turn = torch.compile(loss_of, dynamic=False), cycle(data)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(next(turn))
        loss.backward()
        optimizer.step()

    return measured(step, first)


def train_transformers() -> dict[str, Any]:
    import torch

    torch.set_float32_matmul_precision("high")
    model = theirs(ours(), torch.float32).train()
    # It shifts the labels itself, and so leaves out the last token of a text.
    return train_peer(lambda ids: model(input_ids=ids[:, :-1], labels=ids[:, :-1]).loss, model)


def train_plain() -> dict[str, Any]:
    import torch
    import torch.nn.functional as F

    torch.set_float32_matmul_precision("high")
    model = plain(ours(), EVEN).train()

    def loss_of(ids: Any) -> Any:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())

    return train_peer(loss_of, model)


def train_ours() -> dict[str, Any]:
    """As `heedful train` does it with compile: true on a GPU."""
    import torch

    from heedful.data.text.windows import TextBatch
    from heedful.tasks.compiled import compile_model
    from heedful.tasks.language_model.perplexity import causal_loss
    from heedful.training.carry import stateless
    from heedful.training.configs import Budget, TrainConfig
    from heedful.training.distributed.team import ParallelLoss
    from heedful.training.optim import make_optimizer
    from heedful.training.step import GraphedStep, PlainStep

    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    model = ours().train()
    lengths, indices = torch.full((TEXTS,), CONTEXT + 1), torch.arange(TEXTS)
    data = [TextBatch(ids, lengths, indices) for ids in texts()]
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        first = causal_loss(model, data[0].to(device))
    config = TrainConfig(budget=Budget(steps=1), compile=True)
    optimizer = make_optimizer(config.optimizer, model, device)
    loss_of = partial(causal_loss, compile_model(model, dynamic=False))
    step = GraphedStep(
        PlainStep(model, ParallelLoss(stateless(loss_of)), optimizer, config, device, torch.bfloat16), data[0], True
    )
    turn, tokens = cycle(data), TEXTS * CONTEXT

    def work() -> None:
        loss = step.gradients(next(turn), tokens)
        assert all(map(math.isfinite, torch.stack([loss.plain, step.norm()]).tolist()))
        step.update(1e-4)

    return measured(work, float(first.plain / first.count))


# ------------------------------------------------------------------ generation
def writers() -> Any:
    """GPT-2 in bf16, with logits so far apart that rounding seldom decides."""
    import torch

    mine = ours()
    with torch.no_grad():
        mine.tokens.weight.mul_(4)
    return mine.to(torch.bfloat16).eval()


def prompts(count: int) -> Any:
    import torch

    return torch.randint(1, VOCAB, (count, GIVEN), generator=torch.Generator().manual_seed(2)).cuda()


def generated(run: Any, count: int, mine: Any, **more: Any) -> dict[str, Any]:
    """Time, and the share of the tokens that the whole model, reading all at once, would have chosen too."""
    import torch
    from translation import spread, timed

    times = timed(run, 2, 5, torch.cuda.synchronize)
    whole = torch.cat([prompts(count), run()], 1)
    assert whole.shape[1] == GIVEN + NEW
    with torch.inference_mode():
        found = torch.cat([mine.tokens.logits(mine.read(row[None, :-1])).argmax(-1) for row in whole])
    agrees = float((found[:, GIVEN - 1 :] == whole[:, GIVEN:]).float().mean())
    middle = statistics.median(times)
    return {"rate": count * NEW / middle, "ms": 1e3 * middle, "spread": spread(times), "agrees": agrees, **more}


def write_transformers(count: int) -> dict[str, Any]:
    import torch

    mine = writers()
    model, ids = theirs(mine, torch.bfloat16).eval(), prompts(count)
    settings = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "num_beams": 1}

    def run() -> Any:
        with torch.no_grad():
            mask = torch.ones_like(ids)
            whole = model.generate(input_ids=ids, attention_mask=mask, cache_implementation="static", **settings)
        return whole[:, GIVEN:]

    return generated(run, count, mine)


def write_plain(count: int) -> dict[str, Any]:
    """A fixed cache; one step, compiled, is replayed as a graph."""
    import torch

    mine = writers()
    model, ids = plain(mine, VOCAB, count).to(torch.bfloat16).eval(), prompts(count)
    places = torch.arange(GIVEN + NEW, device="cuda")

    def choose(tokens: Any, at: Any) -> Any:
        mask = (places <= at[:, None])[None, None]
        return model(tokens, at, mask)[:, -1].argmax(-1, keepdim=True)

    step = torch.compile(choose, mode="reduce-overhead", fullgraph=True)
    spots = [places[GIVEN + count : GIVEN + count + 1] for count in range(NEW)]

    def run() -> Any:
        with torch.no_grad():
            found = [choose(ids, places[:GIVEN])]
            for at in spots[: NEW - 1]:
                found.append(step(found[-1], at).clone())
        return torch.cat(found, 1)

    return generated(run, count, mine)


def write_ours(count: int) -> dict[str, Any]:
    """The search of `heedful generate`, and whether texts alone give the same tokens."""
    import torch

    from heedful.decode.graphs import Graphs
    from heedful.decode.search import drain, greedy

    mine, ids = writers(), prompts(count)
    graphs = Graphs(mine)
    decoder = mine.row_by_row()
    assert decoder is not None

    @torch.inference_mode()
    def go_on(rows: list[list[int]]) -> Any:
        state, prefix = decoder.begin(rows, GIVEN + NEW, 1, graphs.run)
        limit = torch.full((len(rows),), NEW)
        return drain(greedy(decoder, state, prefix, limit, -1, graphs=graphs)).tokens[:, 0]

    rows = ids.tolist()
    together = go_on(rows)
    alone = torch.cat([go_on(rows[row : row + 1]) for row in range(0, count, max(1, count // 8))])
    same = torch.equal(alone, together[:: max(1, count // 8)])
    return generated(lambda: go_on(rows), count, mine, same=same)


GROUPS: dict[str, Any] = {
    "train": {
        "train: nanoGPT style": train_plain, "train: transformers": train_transformers, "train: heedful": train_ours,
    },
    "greedy": {
        f"greedy {count}: {name}": partial(run, count)
        for count in (1, 64)
        for name, run in (
            ("transformers", write_transformers), ("gpt-fast style", write_plain), ("heedful", write_ours)
        )
    },
}  # fmt: skip


def group(names: list[str]) -> dict[str, Any]:
    """Time all contenders of a group."""

    def line(name: str, r: dict[str, Any]) -> str:
        note = f"loss {r['loss']:.4f}, {r['gib']:.1f} GiB" if "loss" in r else f"{r['agrees']:.1%} of the tokens"
        note += ", alone the same" if r.get("same") else ", ALONE NOT THE SAME" if "same" in r else ""
        return f"{name:<28} {r['ms']:>9.2f} {r['rate']:>10,.0f}   {note}"

    return time_contenders([sys.executable, __file__], names, line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(GROUPS))
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        every = {name: run for some in GROUPS.values() for name, run in some.items()}
        print("RESULT " + json.dumps(every[options.contender]()))
        return
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    print(f"{'GPT-2 124M':<28} {'ms':>9} {'tokens/s':>10}", flush=True)
    for name, some in GROUPS.items():
        if options.only in (None, name):
            found |= group(list(some))
            if options.out:
                options.out.write_text(json.dumps(found, indent=1) + "\n")
    for peer, goal in GOALS.items():
        mine = found.get(f"{peer.split(':')[0]}: heedful")
        if found.get(peer) and mine:
            print(f"{found[peer]['ms'] / mine['ms']:.2f}x {peer} (goal {goal})")
    losses = [found[name]["loss"] for name in GROUPS["train"] if found.get(name)]
    if losses and max(losses) - min(losses) > 2e-2:
        sys.exit("the contenders are not the same model: their first losses differ")


if __name__ == "__main__":
    main()
