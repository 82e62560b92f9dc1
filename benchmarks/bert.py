"""Pre-training steps of BERT compared with `transformers` in the same run, on a GPU.

    python benchmarks/bert.py

Sequences of 128 tokens, 256 at a time, and of 512, 64 at a time; bf16, dropout 0.1 everywhere (attention weights too),
15 % of the words hidden, both losses, fused AdamW. No sequence is padded. `transformers` runs compiled, and as an
informed user writes it: with logits at masked tokens only, and a vocabulary of 30,528. Heedful takes the steps of
`heedful train`: packed batches, gradients clipped, loss and norm looked at after every step. All start from the same
weights, and must have the same loss before the first step. Each contender has a process of its own; those of a length
get ready at once, then they are timed one after the other. Times are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]

VOCAB, EVEN = 30522, 30528
CASES = {128: 256, 512: 64}  # sequences of each length
GOALS = {("base", 128): 1.4, ("base", 512): 1.8, ("large", 128): 1.25, ("large", 512): 1.5}
STEPS = 8  # in a measurement


def ours(size: str) -> Any:
    import torch

    from heedful.models import build
    from heedful.models.bert.config import SIZES

    torch.manual_seed(0)
    return build(SIZES[f"bert-{size}"].model_copy(update={"vocab": VOCAB}))


def batches(length: int) -> list[Any]:
    """Four batches of random tokens, all of one length."""
    import torch

    from heedful.data.text.pretraining import PretrainingBatch

    luck, rows = torch.Generator().manual_seed(1), CASES[length]
    hidden, made = int(0.15 * length), []
    for _ in range(4):
        ids = torch.randint(1000, VOCAB, (rows, length), generator=luck)
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


def train_peer(size: str, length: int) -> dict[str, Any]:
    import torch
    import torch.nn.functional as F
    from transformers import BertConfig, BertForPreTraining

    from heedful.hub.rules import write_tensors
    from heedful.models.bert.weights import table

    mine = ours(size)
    c = mine.config
    config = BertConfig(
        vocab_size=EVEN, hidden_size=c.width, num_hidden_layers=c.layers, num_attention_heads=c.heads,
        intermediate_size=c.hidden, max_position_embeddings=c.context, attn_implementation="sdpa",
    )  # fmt: skip
    model = BertForPreTraining(config)
    state, _ = write_tensors(mine.state_dict(), table(c))
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        low = -1e4 if name.endswith("bias") else 0.0  # words that there are not are never likely
        state[name] = torch.cat([state[name], state[name].new_full((EVEN - VOCAB, *state[name].shape[1:]), low)])
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    model.tie_weights()
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = [
        (b.ids.view(-1, length), b.segments.view(-1, length), b.places, b.targets, b.follows)
        for b in (one.to("cuda") for one in batches(length))
    ]

    def loss_of(ids: Any, segments: Any, places: Any, targets: Any, follows: Any) -> Any:
        out = model.bert(input_ids=ids, token_type_ids=segments)
        logits = model.cls.predictions(out.last_hidden_state.flatten(0, 1).index_select(0, places))
        words = F.cross_entropy(logits.float(), targets)
        return words + F.cross_entropy(model.cls.seq_relationship(out.pooler_output).float(), follows)

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


def train_ours(size: str, length: int) -> dict[str, Any]:
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
    model = ours(size).to(device).train()
    data = batches(length)
    tokens = data[0].ids.numel()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        first = in_peace(model, lambda batch: pretraining_loss(model, batch).total, data[0].to(device)) / tokens
    config = TrainConfig(budget=Budget(steps=1), compile=True, batching="packed")
    optimizer = make_optimizer(config.optimizer, model, device)
    loss_of = partial(pretraining_loss, model, read=torch.compile(model.masked_vectors, dynamic=False))
    step = GraphedStep(
        PlainStep(model, ParallelLoss(stateless(loss_of)), optimizer, config, device, torch.bfloat16), data[0], True
    )
    turn = cycle(data)

    def work() -> None:
        loss = step.gradients(next(turn), tokens)
        assert all(map(math.isfinite, torch.stack([loss.plain, step.norm()]).tolist()))
        step.update(1e-4)

    return measured(work, first, length)


GROUPS = {length: [("base", length), ("large", length)] for length in CASES}  # cases that a large GPU holds at once


def contenders(size: str, length: int) -> dict[str, Any]:
    """What is timed in a case, by name."""
    return {
        f"{size} {length}: transformers": partial(train_peer, size, length),
        f"{size} {length}: heedful": partial(train_ours, size, length),
    }


def group(cases: list[tuple[str, int]]) -> dict[str, Any]:
    """Get all contenders of some cases ready at once, then time them one after the other."""
    names = [name for case in cases for name in contenders(*case)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = {name: subprocess.Popen([sys.executable, __file__, "--contender", name], **pipes) for name in names}
    found: dict[str, Any] = {}
    for name, child in children.items():
        if not any(line == "READY\n" for line in child.stdout):
            print(f"{name} failed; its errors are above", flush=True)
            found[name] = None
    for name, child in children.items():
        if name in found:
            continue
        out, _ = child.communicate("go\n")
        found[name] = r = json.loads(next(line for line in out.splitlines() if line.startswith("RESULT "))[7:])
        print(f"{name:<28} {r['ms']:>8.2f} {r['rate']:>8,.0f} {r['gib']:>6.1f} {r['loss']:>11.4f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", nargs="+", type=int, default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        every = {name: run for some in GROUPS.values() for case in some for name, run in contenders(*case).items()}
        print("RESULT " + json.dumps(every[options.contender]()))
        return
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    print(f"{'BERT, a training step':<28} {'ms':>8} {'seq/s':>8} {'GiB':>6} {'first loss':>11}", flush=True)
    for length in options.lengths:
        found |= group(GROUPS[length])
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    for (size, length), goal in GOALS.items():
        theirs, mine = (found.get(name) for name in contenders(size, length))
        if theirs and mine:
            memory = f"{mine['gib']:.1f} against {theirs['gib']:.1f} GiB"
            print(f"{size} {length}: {theirs['ms'] / mine['ms']:.2f}x transformers (goal {goal}), {memory}")
            if abs(theirs["loss"] - mine["loss"]) > 2e-2:
                sys.exit("the contenders are not the same model: their first losses differ")


if __name__ == "__main__":
    main()
