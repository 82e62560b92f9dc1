"""A small BERT pre-trained by Heedful and by `transformers`, on the same text and number of tokens.

    python benchmarks/pretrain.py --data FOLDER --run FOLDER [--tokens 100000000] [KEY=VALUE ...]

FOLDER has wikitext-2/ and novels/ in it. Heedful trains the shipped recipe `bert-wiki`, with KEY=VALUE changed in it.
The peer is BertForPreTraining in the usual loop, with the same first weights, tokenizer, pairs, rate, schedule, weight
decay, clip and precision. Both are evaluated by the same function on the same held-out text, where the same words are
masked. They run at once, each in a process of its own: only what they learn is compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]


def learn_as_peer(run: Path, settings: list[str]) -> dict[str, Any]:
    """Train BertForPreTraining on the pairs of the recipe."""
    import torch
    from transformers import BertConfig as PeerConfig
    from transformers import BertForPreTraining

    from heedful.hub.rules import read_tensors, write_tensors
    from heedful.models import build
    from heedful.models.bert.weights import canonical, table
    from heedful.runs.artifacts import load_artifacts
    from heedful.runs.recipe import load_recipe
    from heedful.tasks import task_of
    from heedful.tasks.pretraining.loss import evaluate_pretraining

    recipe: Any = load_recipe("bert-wiki", settings)
    task: Any = task_of(recipe)
    while not (run / "tokenizer.json").is_file():
        time.sleep(0.5)
    tokenizer = load_artifacts(task, run)
    batches = task.batches(task.encode(task.read("train"), tokenizer), packed=False, even=False)
    held_out = task.encode(task.read("valid"), tokenizer)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(recipe.train.seed)
    c = recipe.model.model_copy(update={"vocab": tokenizer.vocab})
    mine = build(c)
    config = PeerConfig(
        vocab_size=c.vocab, hidden_size=c.width, num_hidden_layers=c.layers, num_attention_heads=c.heads,
        intermediate_size=c.hidden, max_position_embeddings=c.context, hidden_dropout_prob=c.dropout,
        attention_probs_dropout_prob=c.attention_dropout, pad_token_id=tokenizer.pad,
    )  # fmt: skip
    model = BertForPreTraining(config)
    names = table(c)
    model.load_state_dict(write_tensors(mine.state_dict(), names)[0], strict=False)
    model.tie_weights()
    model.to(device).train()
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    o = recipe.train.optimizer
    groups = [{"params": matrices, "weight_decay": o.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=o.lr, betas=o.betas, eps=o.eps, fused=device.type == "cuda")
    budget, seen, step = recipe.train.budget.tokens, 0, 0
    while seen < budget:
        batch = batches.at(step)
        rate = o.lr * recipe.train.schedule.factor(step + 1, seen / budget)
        for group in optimizer.param_groups:
            group["lr"] = rate
        seen, step, batch = seen + batch.tokens, step + 1, batch.to(device)
        labels = torch.full_like(batch.ids, -100).flatten().index_copy(0, batch.places, batch.targets)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(
                input_ids=batch.ids, token_type_ids=batch.segments, attention_mask=batch.sequences.real.long(),
                labels=labels.view_as(batch.ids), next_sentence_label=batch.follows,
            ).loss  # fmt: skip
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.train.clip)
        optimizer.step()
        if step % 200 == 0:
            print(f"peer: step {step}, {seen / budget:.0%}, loss {float(loss):.3f}", file=sys.stderr, flush=True)
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    shapes = {name: value.shape for name, value in mine.state_dict().items()}
    mine.load_state_dict(read_tensors(state, canonical(state), names, shapes, Path("peer"))[0])
    found = evaluate_pretraining(mine.to(device).eval(), held_out, device, recipe.train.batch_tokens)
    return result(found.loss, found.correct / found.hidden, found.correct_pairs / found.pairs, found.perplexity, seen)


def result(loss: float, words: float, pairs: float, perplexity: float, tokens: int) -> dict[str, Any]:
    return {"loss": loss, "masked": 100 * words, "next": 100 * pairs, "perplexity": perplexity, "tokens": tokens}


def learned(run: Path) -> dict[str, Any]:
    """The scores of the run's last evaluation."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "evaluated"][-1]
    value = {name: score["value"] for name, score in last["scores"].items()}
    words, pairs = value["masked_accuracy"] / 100, value["next_sentence_accuracy"] / 100
    tokens = [line for line in lines if line["kind"] == "step"][-1]["tokens"]
    return result(last["loss"], words, pairs, value["masked_perplexity"], tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    limits = ["train.budget.steps=null", f"train.budget.tokens={options.tokens}"]
    settings = [f"data.root={options.data}", *limits, *options.settings]
    if options.peer:
        print("RESULT " + json.dumps(learn_as_peer(options.run, settings)))
        return
    command = [sys.executable, __file__, "--data", str(options.data), "--run", str(options.run)]
    command += ["--tokens", str(options.tokens), "--peer", *options.settings]
    peer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    ours = [sys.executable, "-m", "heedful", "train", "bert-wiki", *settings, "--run", str(options.run)]
    subprocess.run(ours, check=True, stdout=subprocess.DEVNULL)
    out, _ = peer.communicate()
    found = {"heedful": learned(options.run)}
    found["transformers"] = json.loads(next(line for line in out.splitlines() if line.startswith("RESULT "))[7:])
    print(f"{'held-out text':<14} {'masked':>11} {'next':>11} {'perplexity':>11} {'loss':>7} {'tokens':>13}")
    for name, r in found.items():
        line = f"{name:<14} {r['masked']:>9.2f} % {r['next']:>9.2f} % {r['perplexity']:>11.2f} {r['loss']:>7.3f}"
        print(f"{line} {r['tokens']:>13,}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
