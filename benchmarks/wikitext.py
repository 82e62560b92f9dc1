"""A small GPT-2 trained on WikiText-2 by Heedful and by `transformers`, on the same tokens.

    python benchmarks/wikitext.py --data FOLDER --run FOLDER [--epochs 8] [KEY=VALUE ...]

FOLDER has wiki.train.tokens.gz and wiki.valid.tokens.gz in it. Heedful trains the shipped recipe `gpt2-wikitext`, with
KEY=VALUE changed in it, twice: on articles that do not see each other, as the recipe has it, and on the text in one
piece. The peer is GPT2LMHeadModel in the usual loop, on that text in one piece, with the same first weights, tokenizer,
windows, rate, schedule, weight decay, clip and precision. All are evaluated by the same function on the same held-out
text: the perplexity a word, over words and the ends of lines. They run at once: only what they learn is compared.
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

PIECE = "data={{kind: text, root: {}, train: wiki.train.tokens.gz, valid: wiki.valid.tokens.gz}}"


def evaluate(task: Any, predictor: Any, tokenizer: Any) -> dict[str, Any]:
    """Scores on the held-out text."""
    read = task.read("valid")
    encoded = task.encode(read, tokenizer)
    result = task.evaluate(predictor, read, encoded, task.loss(predictor, encoded), 0, "valid")
    return {"loss": result.loss, **{score.name: score.value for score in result.scores}}


def learn_as_peer(run: Path, settings: list[str]) -> dict[str, Any]:
    """Train GPT2LMHeadModel on the windows of the recipe."""
    import torch
    import torch.nn.functional as F
    from transformers import GPT2Config, GPT2LMHeadModel

    from heedful.hub.rules import read_tensors, write_tensors
    from heedful.models import build
    from heedful.models.gpt.weights import canonical, table
    from heedful.runs.artifacts import load_artifacts
    from heedful.runs.recipe import load_recipe
    from heedful.tasks import task_of

    recipe: Any = load_recipe("gpt2-wikitext", settings)
    task: Any = task_of(recipe)
    while not (run / "tokenizer.json").is_file():
        time.sleep(0.5)
    tokenizer = load_artifacts(task, run)
    batches = task.batches(task.encode(task.read("train"), tokenizer), packed=False, even=False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(recipe.train.seed)
    c = recipe.model.model_copy(update={"vocab": tokenizer.vocab})
    mine = build(c)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=c.vocab, n_positions=c.context, n_embd=c.width, n_layer=c.layers, n_head=c.heads,
            resid_pdrop=c.dropout, embd_pdrop=c.dropout, attn_pdrop=c.attention_dropout, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip
    names = table(c)
    model.load_state_dict(write_tensors(mine.state_dict(), names)[0], strict=False)
    model.tie_weights()
    model.to(device).train()
    o = recipe.train.optimizer
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": o.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=o.lr, betas=o.betas, eps=o.eps, fused=device.type == "cuda")

    def loss_of(ids: Any) -> Any:
        return F.cross_entropy(model(input_ids=ids[:, :-1]).logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    compiled = torch.compile(loss_of, dynamic=False) if device.type == "cuda" else loss_of
    steps, seen = recipe.train.budget.epochs * batches.count, 0
    for step in range(steps):
        batch = batches.at(step)
        for group in optimizer.param_groups:
            group["lr"] = o.lr * recipe.train.schedule.factor(step + 1, step / steps)
        seen += batch.tokens
        ids = batch.ids.to(device)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            # Windows at the ends of a text are filled up: there the loss is of what is real.
            whole = batch.tokens == ids.numel() - len(ids) and len(ids) == batches.size
            loss = compiled(ids) if whole else real_loss(model, batch, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.train.clip or float("inf"))
        optimizer.step()
        if step % 500 == 0:
            print(f"peer: step {step} of {steps}, loss {float(loss):.3f}", file=sys.stderr, flush=True)
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    shapes = {name: value.shape for name, value in mine.state_dict().items()}
    mine.load_state_dict(read_tensors(state, canonical(state), names, shapes, Path("peer"))[0])
    predictor = task.predictor(mine, c, tokenizer, recipe.decode, device)
    return {**evaluate(task, predictor, tokenizer), "tokens": seen}


def real_loss(model: Any, batch: Any, ids: Any) -> Any:
    """The mean loss of the tokens that are no filling."""
    import torch.nn.functional as F

    labels = ids[:, 1:].masked_fill(~batch.real[:, 1:].to(ids.device), -100)
    return F.cross_entropy(model(input_ids=ids[:, :-1]).logits.flatten(0, 1).float(), labels.flatten())


def learned(run: Path, settings: list[str]) -> dict[str, Any]:
    """The scores of a run's model on held-out text."""
    import heedful
    from heedful.runs.recipe import load_recipe
    from heedful.tasks import task_of

    task: Any = task_of(load_recipe("gpt2-wikitext", settings))
    predictor = heedful.load(run)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tokens = [line for line in steps if line["kind"] == "step"][-1]["tokens"]
    return {**evaluate(task, predictor, predictor.tokenizer), "tokens": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="a folder for the two runs")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    often = [f"train.budget.epochs={options.epochs}", "train.evaluate_every=1000000", *options.settings]
    apart, piece = [f"data.root={options.data}", *often], [PIECE.format(options.data), *often]
    if options.peer:
        print("RESULT " + json.dumps(learn_as_peer(options.run / "piece", piece)))
        return
    ours = [sys.executable, "-m", "heedful", "train", "gpt2-wikitext"]
    runs = [
        subprocess.Popen([*ours, *settings, "--run", str(options.run / name)], stdout=subprocess.DEVNULL)
        for name, settings in (("apart", apart), ("piece", piece))
    ]
    command = [sys.executable, __file__, "--data", str(options.data), "--run", str(options.run)]
    command += ["--epochs", str(options.epochs), "--peer", *options.settings]
    peer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert not any(run.wait() for run in runs), "a run failed; its errors are above"
    out, _ = peer.communicate()
    found = {
        "heedful": learned(options.run / "piece", piece),
        "transformers": json.loads(next(line for line in out.splitlines() if line.startswith("RESULT "))[7:]),
        "heedful, articles apart": learned(options.run / "apart", apart),
    }
    print(f"{'held-out text':<24} {'a word':>8} {'a token':>8} {'bits a byte':>12} {'tokens':>12}")
    for name, r in found.items():
        line = f"{name:<24} {r['word_perplexity']:>8.2f} {r['perplexity']:>8.2f} {r['bits_per_byte']:>12.4f}"
        print(f"{line} {r['tokens']:>12,}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
