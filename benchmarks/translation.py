"""Heedful's Transformer compared with Marian in `transformers` in the same run: training, and beam search with 4 beams.

    python benchmarks/translation.py --device cuda      # Transformer-base, bf16: training, beam 4 at batch 1 and 64
    python benchmarks/translation.py --device cpu       # beam 4, fp32, batch 16; the tokens must be equal

Every contender has a process of its own. All get ready at once (build, compile, warm up); then they are timed one after
the other, alone. Times are medians; rates count real source tokens (training) and new tokens (decoding), never padding.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

VOCAB, WIDTH, HEADS, LAYERS, HIDDEN = 32000, 512, 8, 6, 2048
PAD, BOS, EOS = 0, 2, 3
BUDGET = 25_088  # tokens a training batch
NEW = 64  # tokens decoded, exactly


def sentence_pairs(count: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Random tokens with lengths like WMT English-German after BPE: log-normal, mean about 28."""
    r = random.Random(seed)
    pairs = []
    for _ in range(count):
        source = min(200, max(4, int(r.lognormvariate(3.2, 0.55))))
        target = min(220, max(4, int(source * r.lognormvariate(0.02, 0.18))))
        pairs.append(([r.randrange(4, VOCAB) for _ in range(source)], [r.randrange(4, VOCAB) for _ in range(target)]))
    return pairs


def marian(activation: str) -> Any:
    """Transformer-base as Marian builds it."""
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(
            vocab_size=VOCAB, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_ffn_dim=HIDDEN,
            encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, decoder_ffn_dim=HIDDEN, dropout=0.1,
            max_position_embeddings=512, scale_embedding=True, activation_function=activation, pad_token_id=PAD,
            decoder_start_token_id=BOS, eos_token_id=EOS, forced_eos_token_id=None, attn_implementation="sdpa",
        )
    )  # fmt: skip


def ours(activation: str, weights: dict[str, Any] | None = None) -> Any:
    """The same Transformer, with Marian's weights if given."""
    import torch

    from heedful.models import build
    from heedful.models.transformer.config import TransformerConfig

    model = build(
        TransformerConfig(
            vocab=VOCAB, width=WIDTH, heads=HEADS, encoder_layers=LAYERS, decoder_layers=LAYERS, hidden=HIDDEN,
            context=512, positions="sinusoid_halves", activation=activation,
        )
    )  # fmt: skip
    if weights is not None:
        names = {"attention": "self_attn", "cross": "encoder_attn"}
        norms = {
            "encoder": ("self_attn_layer_norm", "final_layer_norm"),
            "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
        }
        state = {"tokens.weight": weights["model.shared.weight"]}
        for side, part, layer in ((s, p, n) for s in norms for p in ("weight", "bias") for n in range(LAYERS)):
            here, there = f"{side}.{layer}", f"model.{side}.layers.{layer}"
            for name in ("attention", "cross") if side == "decoder" else ("attention",):
                q, k, v, o = (weights[f"{there}.{names[name]}.{x}_proj.{part}"] for x in ("q", "k", "v", "out"))
                state |= {f"{here}.{name}.q.{part}": q, f"{here}.{name}.kv.{part}": torch.cat([k, v])}
                state[f"{here}.{name}.out.{part}"] = o
            state |= {f"{here}.mlp.up.{part}": weights[f"{there}.fc1.{part}"]}
            state |= {f"{here}.mlp.down.{part}": weights[f"{there}.fc2.{part}"]}
            for number, norm in enumerate(norms[side], 1):
                state[f"{here}.add{number}.norm.{part}"] = weights[f"{there}.{norm}.{part}"]
        model.load_state_dict(state)
    return model


def ready(run: Any, warm: int) -> None:
    """Warm up, say so, and wait for the word to go."""
    for _ in range(warm):
        run()
    print("READY", flush=True)
    sys.stdin.readline()
    run()


def timed(run: Any, warm: int, repeats: int, sync: Any) -> list[float]:
    ready(run, warm)
    times = []
    for _ in range(repeats):
        sync()
        begin = time.perf_counter()
        run()
        sync()
        times.append(time.perf_counter() - begin)
    return times


# ------------------------------------------------------------------ contenders: each returns {"rate": ..., ...}
def train_marian() -> dict[str, Any]:
    """Compiled, bf16 autocast, fused AdamW, length-bucketed batches padded to their longest."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    pairs = sorted(sentence_pairs(50_000), key=lambda p: max(len(p[0]), len(p[1])))
    groups: list[list[Any]] = [[]]
    for pair in pairs:
        longest = max(len(pair[0]), len(pair[1]))
        if longest * (len(groups[-1]) + 1) > BUDGET:
            groups.append([])
        groups[-1].append(pair)
    random.Random(0).shuffle(groups)
    batches = []
    for group in groups[:8]:
        wide = max(len(s) for s, _ in group), max(len(t) for _, t in group)
        source = torch.tensor([s + [PAD] * (wide[0] - len(s)) for s, _ in group])
        given = torch.tensor([[BOS, *t[:-1]] + [PAD] * (wide[1] - len(t)) for _, t in group])
        wanted = torch.tensor([t + [PAD] * (wide[1] - len(t)) for _, t in group])
        batches.append(tuple(x.cuda() for x in (source, given, wanted)))
    tokens = sum(int((b[0] != PAD).sum()) for b in batches)
    model = marian("relu").cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss_of(source: Any, given: Any, wanted: Any) -> Any:
        mask = (source != PAD).long()
        logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=given, use_cache=False).logits
        return F.cross_entropy(
            logits.float().view(-1, VOCAB), wanted.reshape(-1), ignore_index=PAD, label_smoothing=0.1
        )

    compiled = torch.compile(loss_of, dynamic=True)

    def cycle() -> None:
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = compiled(*batch)
            loss.backward()
            optimizer.step()

    times = timed(cycle, 2, 6, torch.cuda.synchronize)
    return {
        "rate": tokens / statistics.median(times),
        "ms": 1e3 * statistics.median(times) / 8,
        "spread": spread(times),
    }


def train_ours() -> dict[str, Any]:
    """As `heedful train` does it with compile: true and batching: packed: clipping and the finite check included."""
    import numpy as np
    import torch

    from heedful.data.batch import Ragged
    from heedful.data.pairs.batches import EncodedPairs, PairBatches
    from heedful.tasks.compiled import compile_model
    from heedful.tasks.translation.predictor import translation_loss
    from heedful.training.carry import stateless
    from heedful.training.configs import Budget, TrainConfig
    from heedful.training.distributed.team import ParallelLoss
    from heedful.training.optim import make_optimizer
    from heedful.training.step import GraphedStep, PlainStep

    torch.manual_seed(0)
    pairs = [(s, [BOS, *t]) for s, t in sentence_pairs(50_000)]
    sides = [
        Ragged.of([len(p[i]) for p in pairs], [np.concatenate([p[i] for p in pairs]).astype(np.int32)]) for i in (0, 1)
    ]
    encoded = EncodedPairs(sides[0], sides[1], indices=np.arange(len(pairs)), longest=256, dropped=0, replaced=0)
    stream = PairBatches(encoded, 0, BUDGET, packed=True)
    batches = [stream.at(i) for i in range(8)]
    tokens = sum(int(b.source_lengths.sum()) for b in batches)
    device = torch.device("cuda")
    model = ours("relu").cuda().train()
    config = TrainConfig(budget=Budget(steps=1), compile=True, batching="packed")
    optimizer = make_optimizer(config.optimizer, model, device)
    loss_of = partial(translation_loss, compile_model(model, dynamic=False), label_smoothing=0.1)
    plain = PlainStep(model, ParallelLoss(stateless(loss_of)), optimizer, config, device, torch.bfloat16)
    step = GraphedStep(plain, batches[0], same_shape=True)

    def cycle() -> None:
        for batch in batches:
            loss = step.gradients(batch, batch.tokens)
            values = torch.stack([loss.plain, step.norm()]).tolist()
            assert all(map(np.isfinite, values))
            step.update(1e-4)

    times = timed(cycle, 2, 6, torch.cuda.synchronize)
    result = {
        "rate": tokens / statistics.median(times),
        "ms": 1e3 * statistics.median(times) / 8,
        "spread": spread(times),
    }
    return result | {"kernels": kernels(cycle, 8)}


def decode_marian(device: str, batch: int, repeats: int) -> dict[str, Any]:
    import torch

    model, source = peer_model(device), sources(batch, device)

    def run() -> Any:
        with torch.inference_mode():
            return model.generate(
                input_ids=source, attention_mask=torch.ones_like(source), max_new_tokens=NEW, min_new_tokens=NEW,
                do_sample=False, num_beams=4, length_penalty=1.0, bad_words_ids=[[PAD], [BOS]],
            )  # fmt: skip

    first = run()[:, 1:].tolist()
    times = timed(run, 1, repeats, torch.cuda.synchronize if device == "cuda" else lambda: None)
    return {
        "rate": batch * NEW / statistics.median(times),
        "ms": 1e3 * statistics.median(times),
        "spread": spread(times),
        "tokens": first,
    }


def decode_ours(device: str, batch: int, repeats: int) -> dict[str, Any]:
    import torch

    from heedful.decode.graphs import Graphs
    from heedful.decode.rules import MinLength, SuppressTokens
    from heedful.decode.search import beam, drain

    peer, source = peer_model("cpu"), sources(batch, device)
    model = ours("swish", peer.state_dict()).to(next(peer.parameters()).dtype).to(device).eval()
    model = model.to(torch.bfloat16) if device == "cuda" else model
    graphs = Graphs(model) if device == "cuda" else None
    limit, prefix = torch.full((batch,), NEW), torch.full((batch, 1), BOS, device=device)

    def run() -> Any:
        with torch.inference_mode():
            rules = (MinLength(NEW, EOS), SuppressTokens((PAD, BOS)))
            return drain(beam(model, model.start(source), prefix, limit, EOS, 4, 1, rules=rules, graphs=graphs))

    first = run().tokens[:, 0].tolist()
    times = timed(run, 1, repeats, torch.cuda.synchronize if device == "cuda" else lambda: None)
    return {
        "rate": batch * NEW / statistics.median(times),
        "ms": 1e3 * statistics.median(times),
        "spread": spread(times),
        "tokens": first,
    }


def peer_model(device: str) -> Any:
    """Marian with random weights, the logits spread so that rounding does not decide."""
    import torch

    torch.manual_seed(0)
    model = marian("swish").eval()
    with torch.no_grad():
        model.model.shared.weight.mul_(4.0)
    return model.to(torch.bfloat16).to(device) if device == "cuda" else model


def sources(batch: int, device: str) -> Any:
    import torch

    length = 32 if device == "cuda" else 24
    return torch.randint(4, VOCAB, (batch, length), generator=torch.Generator().manual_seed(1)).to(device)


def spread(times: list[float]) -> float:
    return (max(times) - min(times)) / statistics.median(times)


def kernels(run: Any, steps: int) -> list[list[Any]]:
    """The device's own account of where the time goes: milliseconds a step, calls a step, name."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
    rows = [(e.self_device_time_total / 1e3 / steps, e.count / steps, e.key[:90]) for e in seen.key_averages()]
    rows = sorted((row for row in rows if row[0] > 0), reverse=True)
    return [[round(sum(r[0] for r in rows), 2), round(sum(r[1] for r in rows)), "all"], *[list(r) for r in rows[:25]]]


CONTENDERS = {
    "train-marian": train_marian,
    "train-heedful": train_ours,
    **{f"decode-cuda-{b}-marian": partial(decode_marian, "cuda", b, 5) for b in (1, 64)},
    **{f"decode-cuda-{b}-heedful": partial(decode_ours, "cuda", b, 9) for b in (1, 64)},
    "decode-cpu-16-marian": partial(decode_marian, "cpu", 16, 3),
    "decode-cpu-16-heedful": partial(decode_ours, "cpu", 16, 3),
}
CASES = {
    "cuda": [
        ("training, Transformer-base", "train", "source tokens/s", 2.0),
        ("beam 4, batch 1", "decode-cuda-1", "tokens/s", 5.0),
        ("beam 4, batch 64", "decode-cuda-64", "tokens/s", 5.0),
    ],
    "cpu": [("beam 4, batch 16, fp32", "decode-cpu-16", "tokens/s", 1.5)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print("RESULT " + json.dumps(CONTENDERS[options.contender]()))
        return
    import torch

    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    found: dict[str, Any] = {"torch": torch.__version__, "device": device}
    names = [f"{name}-{who}" for _, name, _, _ in CASES[options.device] for who in ("marian", "heedful")]
    command = [sys.executable, __file__, "--device", options.device, "--contender"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = {name: subprocess.Popen([*command, name], **pipes) for name in names}
    for name, child in children.items():
        if not any(line == "READY\n" for line in child.stdout):
            sys.exit(f"{name} failed; its errors are above")
    print(
        f"{'case':<28} {'unit':<16} {'marian':>10} {'heedful':>10} {'ratio':>7} {'goal':>6}  equal tokens", flush=True
    )
    for title, name, unit, goal in CASES[options.device]:
        for who in ("marian", "heedful"):
            out, _ = children[f"{name}-{who}"].communicate("go\n")
            lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
            if not lines:
                sys.exit(f"{name}-{who} failed; its errors are above")
            found[f"{name}-{who}"] = json.loads(lines[0].removeprefix("RESULT "))
        peer, mine = found[f"{name}-marian"], found[f"{name}-heedful"]
        equal = ""
        if "tokens" in peer:
            rows = zip(peer.pop("tokens"), mine.pop("tokens"), strict=True)
            same = [a == b for p, m in rows for a, b in zip(p, m, strict=False)]
            peer["equal"] = mine["equal"] = sum(same) / len(same)
            equal = f"{100 * sum(same) / len(same):.1f} %"
        rates = f"{peer['rate']:>10,.0f} {mine['rate']:>10,.0f} {mine['rate'] / peer['rate']:>6.2f}x {goal:>5.1f}x"
        print(f"{title:<28} {unit:<16} {rates}  {equal}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
