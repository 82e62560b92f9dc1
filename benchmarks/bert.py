"""Pre-training steps of BERT and its family compared with `transformers` in the same run, on a GPU.

    python benchmarks/bert.py
    python benchmarks/bert.py --kinds roberta distilbert albert      # their base sizes

Sequences of 128 tokens, 256 at a time, and of 512, 64 at a time; bf16, dropout as published (0.1 everywhere, attention
weights too; ALBERT has none), 15 % of the words masked, all losses, fused AdamW. No sequence is padded. `transformers`
runs compiled, and as an informed user writes it: with logits at masked tokens only, and an even vocabulary. Heedful
takes the steps of `heedful train`: packed batches, gradients clipped, loss and norm looked at after every step. All
start from the same weights, and must have the same loss before the first step. Each contender has a process of its
own; those of a length get ready at once, then they are timed one after the other. Times are medians.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]
from contenders import time_contenders  # noqa: E402

VOCABS = {  # of each kind, and what `transformers` gets
    "bert": (30522, 30528),
    "roberta": (50265, 50304),
    "distilbert": (30522, 30528),
    "albert": (30000, 30016),
}
CASES = {128: 256, 512: 64}  # sequences of each length
GOALS = {
    ("bert", "base", 128): 1.4, ("bert", "base", 512): 1.8, ("bert", "large", 128): 1.25, ("bert", "large", 512): 1.5,
    **{(kind, "base", length): goal for kind in VOCABS if kind != "bert" for length, goal in ((128, 1.45), (512, 1.8))},
}  # fmt: skip
STEPS = 8  # in a measurement


def ours(kind: str, size: str) -> Any:
    import torch

    from heedful.models import build

    torch.manual_seed(0)
    sizes = importlib.import_module(f"heedful.models.{kind}.config").SIZES
    return build(sizes[f"{kind}-{size}"].model_copy(update={"vocab": VOCABS[kind][0]}))


def batches(kind: str, length: int) -> list[Any]:
    """Four batches of random tokens, all of one length."""
    import torch

    from heedful.data.text.pretraining_batches import PretrainingBatch

    luck, rows = torch.Generator().manual_seed(1), CASES[length]
    hidden, made = int(0.15 * length), []
    for _ in range(4):
        ids = torch.randint(1000, VOCABS[kind][0], (rows, length), generator=luck)
        places = torch.stack([torch.randperm(length, generator=luck)[:hidden] for _ in range(rows)])
        places = (places + torch.arange(rows)[:, None] * length).flatten()
        targets = ids.flatten()[places]
        ids.view(-1)[places] = 103
        segments = (torch.arange(length) >= length // 2).long().repeat(rows)
        follows = torch.randint(0, 2, (rows,), generator=luck)
        whole = torch.tensor([rows * length, rows * hidden, rows])
        lengths, indices = torch.full((rows,), length), torch.arange(rows)
        one_row = ids.flatten()[None], segments[None]
        made.append(PretrainingBatch(*one_row, lengths, places, targets, follows, whole, indices, length))
    return made


def measured(step: Any, loss: float, length: int) -> dict[str, Any]:
    """Steps one after the other, as training takes them."""
    import torch
    from translation import spread, timed

    def several() -> None:
        for _ in range(STEPS):
            step()

    times = [time / STEPS for time in timed(several, 2, 5, torch.cuda.synchronize)]
    middle = statistics.median(times)
    memory = torch.cuda.max_memory_reserved() / 2**30  # what captured steps keep is in it
    return {"rate": CASES[length] / middle, "ms": 1e3 * middle, "spread": spread(times), "loss": loss, "gib": memory}


def peer(kind: str, size: str) -> tuple[Any, Any]:
    """The same model of `transformers` with the same weights, and its loss."""
    import torch
    import torch.nn.functional as F
    import transformers

    from heedful.hub.folder import find_exchange
    from heedful.hub.rules import write_tensors

    mine, exchange, (vocab, even) = ours(kind, size), find_exchange(kind), VOCABS[kind]
    assert exchange is not None
    settings = exchange.config_json(mine.config) | {"vocab_size": even}
    (name,) = settings.pop("architectures")
    for key in ("model_type", "dtype"):
        settings.pop(key)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**settings, attn_implementation="sdpa"))
    state, _ = write_tensors(mine.state_dict(), exchange.table(mine.config))
    for key in [key for key, value in state.items() if value.shape[0] == vocab]:
        value = state[key]
        low = -1e4 if value.dim() == 1 else 0.0  # words that there are not are never likely
        state[key] = torch.cat([value, value.new_full((even - vocab, *value.shape[1:]), low)])
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    model.tie_weights()
    encoder, pairs = getattr(model, model.base_model_prefix), mine.config.pairs
    words = {
        "bert": lambda x: model.cls.predictions(x),
        "roberta": lambda x: model.lm_head(x),
        "albert": lambda x: model.predictions(x),
        "distilbert": lambda x: model.vocab_projector(model.vocab_layer_norm(F.gelu(model.vocab_transform(x)))),
    }[kind]
    related = {"bert": lambda x: model.cls.seq_relationship(x), "albert": lambda x: model.sop_classifier(x)}.get(kind)

    def loss_of(ids: Any, segments: Any, places: Any, targets: Any, follows: Any) -> Any:
        out = encoder(input_ids=ids, **({"token_type_ids": segments} if pairs else {}))
        logits = words(out.last_hidden_state.flatten(0, 1).index_select(0, places))
        loss = F.cross_entropy(logits.float(), targets)
        return loss if related is None else loss + F.cross_entropy(related(out.pooler_output).float(), follows)

    return model, loss_of


def train_peer(kind: str, size: str, length: int) -> dict[str, Any]:
    import torch

    model, loss_of = peer(kind, size)
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = [
        (b.ids.view(-1, length), b.segments.view(-1, length), b.places, b.targets, b.follows)
        for b in (one.to("cuda") for one in batches(kind, length))
    ]

    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        first = in_peace(model, loss_of, *data[0])
    turn = cycle(data)
    compiled = torch.compile(loss_of, dynamic=False)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(*next(turn))
        loss.backward()
        optimizer.step()

    return measured(step, first, length)


def in_peace(model: Any, loss_of: Any, *batch: Any) -> float:
    """The loss without dropout."""
    model.eval()
    found = float(loss_of(*batch))
    model.train()
    return found


def train_ours(kind: str, size: str, length: int) -> dict[str, Any]:
    """As `heedful train` does it with compile: true on a GPU."""
    import math

    import torch

    from heedful.tasks.pretraining.loss import pretraining_loss
    from heedful.training.carry import stateless
    from heedful.training.configs import Budget, TrainConfig
    from heedful.training.distributed.team import ParallelLoss
    from heedful.training.optim import make_optimizer
    from heedful.training.step import GraphedStep, PlainStep

    device = torch.device("cuda")
    model = ours(kind, size).to(device).train()
    data = batches(kind, length)
    tokens = data[0].ids.numel()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        first = in_peace(model, lambda batch: pretraining_loss(model, batch).total, data[0].to(device)) / tokens
    config = TrainConfig(budget=Budget(steps=1), compile=True, batching="packed")
    optimizer = make_optimizer(config.optimizer, model, device)
    loss_of = partial(pretraining_loss, model, read=torch.compile(model.masked_vectors, dynamic=False))
    step = GraphedStep(
        PlainStep(model, ParallelLoss(stateless(loss_of)), optimizer, config, device, torch.bfloat16), data[0], True
    )
    number = 0

    def work() -> None:
        nonlocal number
        loss = step.gradients(data[number % len(data)], tokens)
        found, number = torch.stack([loss.plain, step.norm()]), number + 1
        step.start(data[number % len(data)], tokens)
        assert all(map(math.isfinite, found.tolist()))
        step.update(1e-4)

    return measured(work, first, length)


Case = tuple[str, str, int]


def contenders(kind: str, size: str, length: int) -> dict[str, Any]:
    """What is timed in a case, by name."""
    return {
        f"{kind} {size} {length}: transformers": partial(train_peer, kind, size, length),
        f"{kind} {size} {length}: heedful": partial(train_ours, kind, size, length),
    }


def group(cases: list[Case]) -> dict[str, Any]:
    """Time all contenders of some cases."""

    def line(name: str, r: dict[str, Any]) -> str:
        return f"{name:<36} {r['ms']:>8.2f} {r['rate']:>8,.0f} {r['gib']:>6.1f} {r['loss']:>11.4f}"

    names = [name for case in cases for name in contenders(*case)]
    return time_contenders([sys.executable, __file__], names, line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=["bert"], choices=list(VOCABS))
    parser.add_argument("--lengths", nargs="+", type=int, default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        kind, size, length = options.contender.partition(":")[0].split()
        print("RESULT " + json.dumps(contenders(kind, size, int(length))[options.contender]()))
        return
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    print(f"{'a training step':<36} {'ms':>8} {'seq/s':>8} {'GiB':>6} {'first loss':>11}", flush=True)
    for length in options.lengths:
        found |= group([case for case in GOALS if case[0] in options.kinds and case[2] == length])
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    for (kind, size, length), goal in GOALS.items():
        theirs, mine = (found.get(name) for name in contenders(kind, size, length))
        if theirs and mine:
            memory = f"{mine['gib']:.1f} against {theirs['gib']:.1f} GiB"
            print(f"{kind} {size} {length}: {theirs['ms'] / mine['ms']:.2f}x transformers (goal {goal}), {memory}")
            if abs(theirs["loss"] - mine["loss"]) > 2e-2:
                sys.exit("the contenders are not the same model: their first losses differ")


if __name__ == "__main__":
    main()
