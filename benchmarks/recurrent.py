"""Heedful's recurrent networks compared with plain torch in the same run: seq2seq with attention, and LSTM layers.

    python benchmarks/recurrent.py --device cuda    # a training step of seq2seq with additive attention, 2 x 512
    python benchmarks/recurrent.py --device cpu     # an LSTM layer forward and backward, compared with nn.LSTM

Tree-LSTMs have a script of their own, `benchmarks/trees.py`. The plain seq2seq is the same model as people write it, a
loop of nn.LSTMCell, with the same weights: the first loss must be equal. Every contender has a process of its own; all
get ready at once, then they are timed one after the other, alone. Times are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]

VOCAB, WIDTH, LENGTH, BATCH = 32000, 512, 40, 128


def ours() -> Any:
    """Two layers ahead, two layers with additive attention fed into the first, one embedding for all."""
    import torch

    from heedful.models import build
    from heedful.models.seq2seq.config import AttentionConfig, RecurrentEncoder, Seq2SeqConfig

    torch.manual_seed(0)
    return build(
        Seq2SeqConfig(
            vocab=VOCAB, width=WIDTH, encoder=RecurrentEncoder(layers=2, hidden=WIDTH, directions="ahead"),
            layers=2, hidden=WIDTH, attention=AttentionConfig(score="additive", feed="input"), dropout=0.0,
        )
    )  # fmt: skip


def plain() -> Any:
    """The same as a loop of nn.LSTMCell, with the same weights."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.encoder = nn.Embedding(VOCAB, WIDTH), nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
            self.begin, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.cells = nn.ModuleList([nn.LSTMCell(2 * WIDTH, WIDTH), nn.LSTMCell(WIDTH, WIDTH)])
            self.query, self.key = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
            self.v = nn.Linear(WIDTH, 1, bias=False)

        def forward(self, source: Any, given: Any, wanted: Any) -> Any:
            memory, (h, _) = self.encoder(self.embedding(source) * WIDTH**0.5)
            keys = self.key(memory)
            first, second = torch.tanh(self.begin(h[-1])).view(-1, 2, 2, WIDTH).unbind(1)
            states = [first.unbind(1), second.unbind(1)]
            x, outputs = self.embedding(given) * WIDTH**0.5, []
            for t in range(x.shape[1]):
                score = self.v(torch.tanh(self.query(states[1][0])[:, None] + keys)).squeeze(-1)
                context = torch.bmm(score.softmax(-1)[:, None].to(memory.dtype), memory)[:, 0]
                states[0] = self.cells[0](torch.cat([context, x[:, t]], -1), states[0])
                states[1] = self.cells[1](states[0][0], states[1])
                outputs.append(states[1][0])
            logits = F.linear(self.out(torch.stack(outputs, 1)), self.embedding.weight)
            return F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())

    model, theirs = Plain(), ours().state_dict()
    state = {
        "embedding.weight": theirs["tokens.weight"],
        "query.weight": theirs["decoder.attention.score.q.weight"],
        "key.weight": theirs["decoder.attention.score.k.weight"],
        "v.weight": theirs["decoder.attention.score.v.weight"],
        **{f"{name}.{part}": theirs[f"{name}.{part}"] for name in ("begin",) for part in ("weight", "bias")},
        **{f"out.{part}": theirs[f"decoder.out.{part}"] for part in ("weight", "bias")},
    }
    for layer in range(2):
        for there, here, end in (("encoder", "encoder", f"_l{layer}"), ("decoder", f"cells.{layer}", "")):
            cell = f"{there}.stack.layers.{layer}.cell"
            state[f"{here}.weight_ih{end}"] = theirs[f"{cell}.x.weight"]
            state[f"{here}.weight_hh{end}"] = theirs[f"{cell}.h.weight"]
            state[f"{here}.bias_ih{end}"] = theirs[f"{cell}.x.bias"]
            state[f"{here}.bias_hh{end}"] = torch.zeros_like(theirs[f"{cell}.x.bias"])
    model.load_state_dict(state)
    return model


def batches() -> list[Any]:
    """Four batches of random tokens, all of one length."""
    import torch

    from heedful.data.pairs.batches import PairBatch

    luck, full = torch.Generator().manual_seed(1), torch.full((BATCH,), LENGTH)
    made = []
    for _ in range(4):
        source = torch.randint(4, VOCAB, (BATCH, LENGTH), generator=luck)
        target = torch.randint(4, VOCAB, (BATCH, LENGTH + 1), generator=luck)
        made.append(PairBatch(source, full, target, full + 1, torch.arange(BATCH)))
    return made


def measured(step: Any, loss: float, repeats: int) -> dict[str, Any]:
    import torch
    from translation import spread, timed

    torch.cuda.reset_peak_memory_stats()
    times = timed(step, 5, repeats, torch.cuda.synchronize)
    return {
        "rate": BATCH * LENGTH / statistics.median(times),
        "ms": 1e3 * statistics.median(times),
        "spread": spread(times),
        "loss": loss,
        "gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def train_plain(half: bool, graph: bool) -> dict[str, Any]:
    """The loop from Python in fp32 (TF32 products) or bf16, with fused AdamW; or all of a bf16 step as one graph."""
    import torch

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    model = plain().cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=graph)
    data = [(b.source.cuda(), b.target[:, :-1].cuda(), b.target[:, 1:].cuda()) for b in batches()]
    with torch.no_grad():
        first = float(model(*data[0]))

    def work(*batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = model(*batch)
        loss.backward()
        optimizer.step()

    turn = iter(range(10**9))
    if not graph:
        return measured(lambda: work(*data[next(turn) % 4]), first, 20)
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
        for buffer, x in zip(static, data[next(turn) % 4], strict=True):
            buffer.copy_(x)
        captured.replay()

    return measured(replay, first, 50)


def train_ours() -> dict[str, Any]:
    """The steps of `heedful train` on a GPU: bf16, gradients clipped, loss and norm looked at after every step."""
    import math

    import torch

    from heedful.tasks.translation.predictor import translation_loss
    from heedful.training.carry import stateless
    from heedful.training.configs import Budget, TrainConfig
    from heedful.training.distributed.team import Team
    from heedful.training.optim import make_optimizer
    from heedful.training.step import GraphedStep, PlainStep

    device = torch.device("cuda")
    model = ours().to(device).train()
    config = TrainConfig(budget=Budget(steps=1))
    data = batches()
    with torch.no_grad():
        first = float(translation_loss(model, data[0].to(device)).total) / (BATCH * LENGTH)
    spread = Team().parallelize(model, stateless(partial(translation_loss, model)), "ddp")
    optimizer = make_optimizer(config.optimizer, model, device)
    step = GraphedStep(PlainStep(model, spread, optimizer, config, device, torch.bfloat16), data[0], same_shape=False)
    turn = iter(range(10**9))

    def work() -> None:
        loss = step.gradients(data[next(turn) % 4], BATCH * LENGTH)
        assert all(map(math.isfinite, torch.stack([loss.plain, step.norm()]).tolist()))
        step.update(1e-4)

    return measured(work, first, 50)


# ------------------------------------------------------------------ on a CPU
def layers(rows: int, length: int, width: int) -> dict[str, Any]:
    """Heedful's LSTM layer compared with nn.LSTM, in turns, forward and backward; the results must be equal."""
    import time

    import torch

    from heedful.blocks.recurrent import Layer

    torch.manual_seed(0)
    mine, theirs = Layer("lstm", width, width), torch.nn.LSTM(width, width, batch_first=True)
    cell = mine.cell
    with torch.no_grad():
        for ours, other in (("x.weight", "weight_ih_l0"), ("h.weight", "weight_hh_l0"), ("x.bias", "bias_ih_l0")):
            getattr(theirs, other).copy_(cell.get_parameter(ours))
        theirs.bias_hh_l0.zero_()
    x = torch.randn(rows, length, width)
    assert torch.equal(mine(x)[0], theirs(x)[0]), "the two layers differ"
    times: dict[str, list[float]] = {"nn.LSTM": [], "heedful": []}
    for turn in range(24):
        for name, layer in (("nn.LSTM", theirs), ("heedful", mine)):
            begin = time.perf_counter()
            layer(x)[0].sum().backward()
            if turn >= 4:
                times[name].append(time.perf_counter() - begin)
    return {name: 1e3 * statistics.median(some) for name, some in times.items()}


CONTENDERS = {
    "plain torch, fp32 (TF32)": partial(train_plain, half=False, graph=False),
    "plain torch, bf16": partial(train_plain, half=True, graph=False),
    "plain torch, bf16, one graph": partial(train_plain, half=True, graph=True),
    "heedful, bf16": train_ours,
}


def on_cuda() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, __file__, "--device", "cuda", "--contender"]
    children = {name: subprocess.Popen([*command, name], **pipes) for name in CONTENDERS}
    for name, child in children.items():
        if not any(line == "READY\n" for line in child.stdout):
            sys.exit(f"{name} failed; its errors are above")
    print(f"{'a training step':<30} {'ms':>8} {'tokens/s':>10} {'GiB':>6} {'first loss':>11}  heedful is", flush=True)
    for name, child in children.items():
        out, _ = child.communicate("go\n")
        found[name] = json.loads(next(line for line in out.splitlines() if line.startswith("RESULT "))[7:])
    mine = found["heedful, bf16"]
    for name in CONTENDERS:
        r = found[name]
        ratio = "" if r is mine else f"{r['ms'] / mine['ms']:.2f}x as fast"
        print(f"{name:<30} {r['ms']:>8.2f} {r['rate']:>10,.0f} {r['gib']:>6.2f} {r['loss']:>11.6f}  {ratio}")
    losses = [found[name]["loss"] for name in CONTENDERS]
    if max(losses) - min(losses) > 1e-3:
        sys.exit("the contenders are not the same model: their first losses differ")
    return found


def on_cpu() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    print(f"{'LSTM layer, fp32':<30} {'nn.LSTM':>9} {'heedful':>9}  ratio")
    for rows, length, width in ((32, 40, 256), (16, 100, 512), (1, 50, 256)):
        name = f"batch {rows}, length {length}, width {width}"
        found[name] = r = layers(rows, length, width)
        print(
            f"{name:<30} {r['nn.LSTM']:>6.2f} ms {r['heedful']:>6.2f} ms  {r['nn.LSTM'] / r['heedful']:.2f}x",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print("RESULT " + json.dumps(CONTENDERS[options.contender]()))
        return
    found = on_cuda() if options.device == "cuda" else on_cpu()
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
