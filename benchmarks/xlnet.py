"""Pre-training steps of XLNet compared with our BERT of the same size and with `transformers`' XLNet in the same run.

    python benchmarks/xlnet.py            # on a GPU
    python benchmarks/xlnet.py --quick    # on a CPU: tiny models, to see that it runs and that the losses agree

Base size, sequences of 512 tokens, 64 at a time; bf16, dropout 0.1, fused AdamW. XLNet predicts one token of six (85 of
512), in a random order, with two segments and without memory; BERT 15 %. `transformers`' XLNet runs compiled, with the
two streams by perm_mask and target_mapping, and the same targets. Heedful takes the steps of `heedful train` with
compile: true: gradients clipped, loss and norm looked at after every step. Both XLNets start from the same weights, and
must have the same loss before the first step. Each contender has a process of its own; all get ready at once, then they
are timed one after the other. Times are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]
from contenders import time_contenders  # noqa: E402

VOCAB, LENGTH, ROWS, STEPS = 32_000, 512, 64, 8
QUICK = {"width": 32, "heads": 4, "layers": 2, "hidden": 64, "context": 48, "vocab": 500}
AGAINST_BERT, AGAINST_PEER = 1.6, 2.0  # goals: at most, and at least
NAMES = ("BERT: heedful", "XLNet: heedful", "XLNet: transformers")


def ours(quick: bool) -> Any:
    import torch

    from heedful.models import build
    from heedful.models.xlnet.config import SIZES

    torch.manual_seed(0)
    return build(SIZES["xlnet-base"].model_copy(update=QUICK if quick else {"vocab": VOCAB}))


def batches(quick: bool) -> list[Any]:
    """Four batches of random tokens, all of one length, with exactly one token of six to predict."""
    import torch

    from heedful.data.text.permutation import PermutationBatch

    luck = torch.Generator().manual_seed(1)
    rows, length, vocab = (4, QUICK["context"], QUICK["vocab"]) if quick else (ROWS, LENGTH, VOCAB)
    count, made = length // 6, []
    for _ in range(4):
        ids = torch.randint(10, vocab, (rows, length), generator=luck)
        order = torch.stack([torch.randperm(length, generator=luck) for _ in range(rows)])
        ranks = (order - (length - count) + 1).clamp(min=0)  # the last of the order one by one, the rest before them
        places = (ranks > 0).nonzero()[:, 1].view(rows, count)
        segments = (torch.arange(length) >= length // 2).long().repeat(rows, 1)
        segments[:, -1] = 2
        whole, fresh = torch.tensor([ids.numel(), places.numel()]), torch.zeros(rows, dtype=torch.bool)
        made.append(PermutationBatch(ids, segments, ranks, places, ids.gather(1, places), fresh, whole, 0))
    return made


def measured(step: Any, loss: float, quick: bool) -> dict[str, Any]:
    """Steps one after the other, as training takes them."""
    import torch
    from translation import spread, timed

    def several() -> None:
        for _ in range(1 if quick else STEPS):
            step()

    sync = (lambda: None) if quick else torch.cuda.synchronize
    times = [time / (1 if quick else STEPS) for time in timed(several, 2, 5, sync)]
    middle = statistics.median(times)
    memory = 0.0 if quick else torch.cuda.max_memory_reserved() / 2**30
    rate = (4 if quick else ROWS) / middle
    return {"rate": rate, "ms": 1e3 * middle, "spread": spread(times), "loss": loss, "gib": memory}


def without_dropout(model: Any, loss_of: Any) -> float:
    import torch

    model.eval()
    with torch.no_grad():
        found = float(loss_of())
    model.train()
    return found


def half(quick: bool) -> Any:
    from contextlib import nullcontext

    import torch

    return nullcontext() if quick else torch.autocast("cuda", torch.bfloat16)


def train_peer(quick: bool) -> dict[str, Any]:
    import torch
    import torch.nn.functional as F
    from transformers import XLNetConfig, XLNetLMHeadModel

    from heedful.hub.rules import write_tensors
    from heedful.models.xlnet.weights import table

    mine, device = ours(quick), "cpu" if quick else "cuda"
    c = mine.config
    model = XLNetLMHeadModel(
        XLNetConfig(
            vocab_size=c.vocab, d_model=c.width, n_layer=c.layers, n_head=c.heads, d_inner=c.hidden, mem_len=None
        )
    )
    state, _ = write_tensors(mine.state_dict(), table(c))
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    model.tie_weights()
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = []
    for b in (one.to(device) for one in batches(quick)):
        hidden = b.ranks[:, :, None] <= b.ranks[:, None]  # tokens of one rank see each other where they are context
        hidden &= ~((b.ranks[:, :, None] == 0) & (b.ranks[:, None] == 0))
        mapping = F.one_hot(b.places, b.ids.shape[1])
        data.append((b.ids, b.segments, hidden.float(), mapping.float(), b.targets))

    def loss_of(ids: Any, segments: Any, hidden: Any, mapping: Any, targets: Any) -> Any:
        out = model(
            ids, token_type_ids=segments, perm_mask=hidden, target_mapping=mapping, use_mems=False, return_dict=True
        )
        return F.cross_entropy(out.logits.float().flatten(0, 1), targets.flatten())

    with half(quick):
        first = without_dropout(model, lambda: loss_of(*data[0]))
    turn, compiled = cycle(data), loss_of if quick else torch.compile(loss_of, dynamic=False)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with half(quick):
            loss = compiled(*next(turn))
        loss.backward()
        optimizer.step()

    return measured(step, first, quick)


def train_ours(quick: bool) -> dict[str, Any]:
    """As `heedful train` does it, with compile: true on a GPU."""
    import math

    import torch

    from heedful.tasks.permutation_lm.loss import permutation_loss
    from heedful.training.carry import stateless
    from heedful.training.configs import Budget, TrainConfig
    from heedful.training.distributed.team import ParallelLoss
    from heedful.training.optim import make_optimizer
    from heedful.training.step import GraphedStep, PlainStep

    device = torch.device("cpu" if quick else "cuda")
    model, data = ours(quick).to(device).train(), batches(quick)
    tokens = data[0].ids.numel()
    with half(quick):
        first = without_dropout(model, lambda: permutation_loss(model, data[0].to(device))[0].total / tokens)
    config = TrainConfig(budget=Budget(steps=1), compile=not quick)
    optimizer = make_optimizer(config.optimizer, model, device)
    read = None if quick else torch.compile(model.two_streams, dynamic=False)

    def loss_of(batch: Any) -> Any:
        return permutation_loss(model, batch, None, read)[0]

    plain = PlainStep(
        model, ParallelLoss(stateless(loss_of)), optimizer, config, device, None if quick else torch.bfloat16
    )
    step: Any = plain if quick else GraphedStep(plain, data[0], True)
    number = 0

    def work() -> None:
        nonlocal number
        loss = step.gradients(data[number % len(data)], tokens)
        found, number = torch.stack([loss.plain, step.norm()]), number + 1
        step.start(data[number % len(data)], tokens)
        assert all(map(math.isfinite, found.tolist()))
        step.update(1e-4)

    return measured(work, first, quick)


def train_bert(quick: bool) -> dict[str, Any]:
    """Our BERT of the same size and length, with the same number of sequences."""
    import bert

    assert not quick, "it needs a GPU"
    return bert.train_ours("bert", "base", LENGTH)


CONTENDERS = dict(zip(NAMES, (train_bert, train_ours, train_peer), strict=True))


def group(quick: bool) -> dict[str, Any]:
    """Time all contenders."""

    def line(name: str, r: dict[str, Any]) -> str:
        return f"{name:<28} {r['ms']:>8.2f} {r['rate']:>8,.0f} {r['gib']:>6.1f} {r['loss']:>11.4f}"

    return time_contenders([sys.executable, __file__, *["--quick"] * quick], NAMES[1:] if quick else NAMES, line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny models on the CPU")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print("RESULT " + json.dumps(partial(CONTENDERS[options.contender], options.quick)()))
        return
    import torch

    device = "cpu" if options.quick else torch.cuda.get_device_name()
    print(f"{'a training step':<28} {'ms':>8} {'seq/s':>8} {'GiB':>6} {'first loss':>11}", flush=True)
    found = group(options.quick)
    if options.out:
        options.out.write_text(json.dumps({"torch": torch.__version__, "device": device, **found}, indent=1) + "\n")
    bert, mine, theirs = (found.get(name) for name in NAMES)
    if mine and bert:
        print(f"{mine['ms'] / bert['ms']:.2f}x the time of BERT (goal: at most {AGAINST_BERT})")
    if mine and theirs:
        print(f"{theirs['ms'] / mine['ms']:.2f}x as fast as transformers (goal: at least {AGAINST_PEER})")
        if abs(theirs["loss"] - mine["loss"]) > 2e-2:
            sys.exit("the contenders are not the same model: their first losses differ")


if __name__ == "__main__":
    main()
