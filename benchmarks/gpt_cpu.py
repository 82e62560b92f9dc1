"""A small GPT on a CPU: `heedful train` compared with `transformers` and plain torch in the same run; tokens/second.

    python benchmarks/gpt_cpu.py --data FOLDER --out FILE
    python benchmarks/gpt_cpu.py --quick                    # random text and few steps, as a smoke test

FOLDER holds tiny Shakespeare as input.txt.gz; without it the text is made up. All contenders begin with the same
weights, go through the same batches with AdamW in float32 and clip the gradients at 1. Heedful goes through the loop
that `heedful train` runs, and checks its loss and gradients in every step; the others do not. The peers are eager
`transformers` with torch's fused attention, a plain model in torch, and with --compiled that one compiled; each has
AdamW fused. Every contender has a process of its own, with glibc set to keep its memory; each peer is run as it is and
with the variables that `heedful train` sets, and the better counts. All get ready, then they are timed in turn, one at
a time, round after round; rates are medians, with the lowest and the highest beside. The loss is that of the last step:
where it is not that of the others, the run fails.

Where others use the machine too, --threads 1 gives each one thread, and counts its own time on the CPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

CORES = len(os.sched_getaffinity(0))
SIZES = {  # layers, width, heads, context, windows of a step
    "4 x 128": (4, 128, 4, 64, 12),
    "6 x 384": (6, 384, 6, 256, 8),
}
RATE, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.99), 1e-8, 0.1
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
SET = {"OMP_WAIT_POLICY": "PASSIVE"}  # by `heedful train`
PATIENT = ", patient"  # what those are called that have them too
DECIDED_HERE = ("OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_")  # variables that are not handed on
SAME = 1e-3  # how far losses may be apart after the same steps

Train = Callable[[int], float]  # steps -> the loss of the last


# ------------------------------------------------------------------ contenders: a size and a text -> Train
def prepare(size: str, text: Path, threads: int) -> tuple[Any, Any, Any, Any]:
    """The task of a recipe, its initialized model, and its batches."""
    import torch

    from heedful.models import build
    from heedful.runs.recipe import load_recipe
    from heedful.tasks import task_of

    layers, width, heads, context, windows = SIZES[size]
    recipe = load_recipe(
        "gpt-shakespeare",
        [
            f"data.root={json.dumps(str(text.parent))}", f"data.train={text.name}",
            f"model={{kind: gpt, layers: {layers}, width: {width}, heads: {heads}, context: {context}, "
            "dropout: 0, attention_dropout: 0}",
            f"train.batch_tokens={context * windows}", f"train.threads={threads}", "train.device=cpu",
            "train.precision=fp32", "train.compile=false", "train.budget={steps: 1000000000}",
            "train.schedule={kind: constant}", "train.evaluate_every=1000000000", "train.save_every=1000000000",
            f"train.optimizer={{kind: adamw, lr: {RATE}, betas: {list(BETAS)}, eps: {EPSILON}, weight_decay: {DECAY}}}",
        ],
    )  # fmt: skip
    task: Any = task_of(recipe)
    read = task.read("train")
    vocabulary = task.learn(read)
    encoded = task.encode(read, vocabulary)
    torch.manual_seed(recipe.train.seed)
    model: Any = build(task.fitted(recipe.model, vocabulary, "model"))
    torch.set_num_threads(threads)
    return task, recipe, model, task.batches(encoded, False, False)


def heedful(size: str, text: Path, threads: int) -> Train:
    """The steps of `heedful train`, from its own loop, as an experiment calls it."""
    import torch

    from heedful.training.loop import Counters, Step, fit

    task, recipe, model, batches = prepare(size, text, threads)
    loss_of = task.loss_of(model, False)
    events = fit(model, loss_of, batches, recipe.train, torch.device("cpu"), None, {}, Counters(), records=task.records)

    def train(steps: int) -> float:
        passed = (event.loss for event in events if isinstance(event, Step))
        return list(islice(passed, steps))[-1]

    return train


def transformers(size: str, text: Path, threads: int) -> Train:
    """GPT-2 of `transformers`, eager, with Heedful's initial weights."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    _, _, ours, batches = prepare(size, text, threads)
    layers, width, heads, context, _ = SIZES[size]
    given = {f"transformer.{name}": value for name, value in renamed(ours.state_dict(), turned=True).items()}
    settings: dict[str, Any] = {"attn_implementation": "sdpa", "bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(
        vocab_size=len(ours.tokens.weight), n_positions=context, n_embd=width, n_layer=layers, n_head=heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **settings,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config).train()  # type: ignore[no-untyped-call]
    left = model.load_state_dict(given, strict=False)
    assert left.missing_keys == ["lm_head.weight"] and not left.unexpected_keys, left

    def loss(ids: Any) -> Any:
        logits = model(input_ids=ids[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return trained(model, loss, batches)


def plain(size: str, text: Path, threads: int, compiled: bool = False) -> Train:
    """The same model in plain torch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    _, _, ours, batches = prepare(size, text, threads)
    layers, width, heads, context, _ = SIZES[size]

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            q, k, v = (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in self.c_attn(x).split(width, -1))
            return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(width), Attention(), nn.LayerNorm(width), Mlp()

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(len(ours.tokens.weight), width), nn.Embedding(context, width)
            self.h, self.ln_f = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)

        def forward(self, ids: Any) -> Any:
            x = self.wte(ids[:, :-1]) + self.wpe(torch.arange(ids.shape[1] - 1))
            for block in self.h:
                x = block(x)
            logits = F.linear(self.ln_f(x), self.wte.weight)
            return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    net = Net()
    net.load_state_dict(renamed(ours.state_dict(), turned=False))
    return trained(net, torch.compile(net) if compiled else net, batches)


def renamed(given: dict[str, Any], turned: bool) -> dict[str, Any]:
    """Heedful's weights by the names of GPT-2, the matrices turned as `transformers` has them, or not."""
    names = {
        "tokens.weight": "wte.weight", "positions.table": "wpe.weight", "add1.norm.": "ln_1.",
        "add2.norm.": "ln_2.", "norm.": "ln_f.", "blocks.": "h.", "attention.qkv.": "attn.c_attn.",
        "attention.out.": "attn.c_proj.", "mlp.up.": "mlp.c_fc.", "mlp.down.": "mlp.c_proj.",
    }  # fmt: skip
    found = {}
    for name, value in given.items():
        new_name = name
        for old, new in names.items():
            new_name = (
                new + new_name[len(old) :] if new_name.startswith(old) else new_name.replace("." + old, "." + new)
            )
        found[new_name] = value.t().contiguous() if turned and ".c_" in new_name and value.dim() == 2 else value.clone()
    return found


def trained(model: Any, loss_of: Callable[[Any], Any], batches: Any) -> Train:
    """As an informed user trains: fused AdamW, matrices alone decaying, gradients clipped."""
    import torch

    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    vectors = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPSILON, fused=True)
    position = 0

    def train(steps: int) -> float:
        nonlocal position
        for _ in range(steps):
            loss = loss_of(batches.at(position).ids)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            position += 1
        return float(loss.detach())

    return train


CONTENDERS: dict[str, Callable[[str, Path, int], Train]] = {
    "heedful": heedful,
    "transformers, eager": transformers,
    "torch, eager": plain,
    "torch, compiled": lambda size, text, threads: plain(size, text, threads, compiled=True),
}


def work(name: str, size: str, text: Path, threads: int) -> None:
    """Prepare, then train N steps for each line N of the input."""
    train = CONTENDERS[name](size, text, threads)
    print("RESULT 0", flush=True)
    clock = time.process_time if threads == 1 else time.perf_counter
    for line in sys.stdin:
        begin = clock()
        loss = train(int(line))
        print(f"RESULT {json.dumps([clock() - begin, loss])}", flush=True)


# ------------------------------------------------------------------ the run
def result(child: Any, name: str) -> Any:
    for line in child.stdout:
        if line.startswith("RESULT "):
            return json.loads(line[7:])
    sys.exit(f"{name} failed; its errors are above")


def ways(names: list[str]) -> list[tuple[str, dict[str, str]]]:
    """The contenders with the variables that they are given."""
    peers = [(name + more, given) for name in names if name != "heedful" for more, given in (("", {}), (PATIENT, SET))]
    return [("heedful", SET)] * ("heedful" in names) + peers


def compared(size: str, text: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second and losses of all contenders on one size."""
    *_, context, windows = SIZES[size]
    others = {name: value for name, value in os.environ.items() if not name.startswith(DECIDED_HERE)}
    children: dict[str, Any] = {}
    for name, settings in ways(options.only):
        contender, pipe = name.removesuffix(PATIENT), subprocess.PIPE
        command = [sys.executable, __file__, "--threads", str(options.threads), "--contender", contender]
        command += [size, str(text)]
        children[name] = subprocess.Popen(command, env=others | KEEP | settings, stdin=pipe, stdout=pipe, text=True)
        result(children[name], name)
    rates: dict[str, list[float]] = {name: [] for name in children}
    losses: dict[str, float] = {}
    for turn in range(options.rounds + options.warm):
        for name, child in children.items():
            child.stdin.write(f"{options.steps}\n")
            child.stdin.flush()
            took, losses[name] = result(child, name)
            if turn >= options.warm:
                rates[name].append(options.steps * context * windows / took)
    for child in children.values():
        child.stdin.close()
        child.wait()
    if max(losses.values()) > (1 + SAME) * min(losses.values()):
        sys.exit(f"the contenders do not train the same model: {losses}")
    return {
        name: {"rate": statistics.median(found), "low": min(found), "high": max(found), "loss": losses[name]}
        for name, found in rates.items()
    }


def show(size: str, found: dict[str, Any]) -> list[str]:
    lines = [f"{size:<24} {'tokens/s':>9}  {'spread':>18}  {'loss':>7}  times heedful is faster"]
    for name, row in found.items():
        spread = f"{row['low']:,.0f} to {row['high']:,.0f}"
        times = f"{found['heedful']['rate'] / row['rate']:.2f}" if "heedful" in found and name != "heedful" else ""
        lines.append(f"  {name:<22} {row['rate']:>9,.0f}  {spread:>18}  {row['loss']:>7.4f}  {times}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with input.txt.gz; else a synthetic text")
    parser.add_argument("--sizes", nargs="+", default=["4 x 128"], choices=list(SIZES))
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), help="contenders")
    parser.add_argument("--compiled", action="store_true", help="also the plain model compiled, which needs a compiler")
    parser.add_argument("--rounds", type=int, default=15, help="that are timed")
    parser.add_argument("--warm", type=int, default=2, help="rounds before them")
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    parser.add_argument("--threads", type=int, default=CORES, help="of every contender")
    parser.add_argument("--quick", action="store_true", help="few steps and rounds; the rates mean nothing")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--contender", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        name, size, text = options.contender
        work(name, size, Path(text), options.threads)
        return
    options.only = options.only or [name for name in CONTENDERS if options.compiled or "compiled" not in name]
    if options.quick:
        options.rounds, options.warm, options.steps = 2, 1, 3
    found: dict[str, Any] = {
        "threads": options.threads, "cores": CORES, "processor": platform.processor() or platform.machine(),
        "text": "tiny Shakespeare" if options.data else "synthetic", "steps a round": options.steps,
        "rounds": options.rounds, "load before": round(os.getloadavg()[0], 2),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        text = Path(place, "input.txt")
        text.write_text(
            gzip.decompress((options.data / "input.txt.gz").read_bytes()).decode() if options.data else made_up()
        )
        for size in options.sizes:
            found[size] = compared(size, text, options)
            print("\n".join(show(size, found[size])), flush=True)
    found["load after"] = round(os.getloadavg()[0], 2)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def made_up() -> str:
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 8))) for _ in range(300)]
    return "\n".join(" ".join(generator.choices(words, k=8)) for _ in range(4000)) + "\n"


if __name__ == "__main__":
    main()
