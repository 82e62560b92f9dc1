"""Heedful's Tree-LSTM, level by level, compared with the same equations node by node in torch, on the CPU.

    python benchmarks/trees.py

Random binary trees as large as those of the Stanford Sentiment Treebank, 25 a batch as in the paper; width 300, hidden
150, forward and backward. Both have the same weights, and give the same loss and gradients. Times are medians of turns.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

WORDS, CLASSES = 16_000, 5


def tree_line(r: random.Random) -> str:
    """A random binary tree with about 19 leaves, as the treebank's sentences have."""
    parts = [
        f"({r.randrange(CLASSES)} w{r.randrange(WORDS)})" for _ in range(max(2, min(50, round(r.gauss(19.1, 9.3)))))
    ]
    while len(parts) > 1:
        # Mostly to the right, which gives the depth of the treebank's trees: about 11 levels.
        at = min(len(parts) - 2, int(len(parts) * r.random() ** 0.4))
        parts[at : at + 2] = [f"({r.randrange(CLASSES)} {parts[at]} {parts[at + 1]})"]
    return parts[0]


def node_by_node(model: Any, trees: list[Any], words: Any) -> Any:
    """The summed loss, each node computed when its children are; words and classes are looked up all at once."""
    import torch
    import torch.nn.functional as F

    H, nary = model.config.hidden, model.config.form == "nary"
    leaves = [word for tree in trees for word in tree.words if word is not None]
    vectors = iter(model.tokens(torch.tensor(words.ids(leaves))).unbind())
    outputs = []
    for tree in trees:
        states: list[tuple[Any, Any]] = []
        for word, children in zip(tree.words, tree.children, strict=True):
            x = model.cell.x.bias if word is None else model.cell.x(next(vectors))
            i, g, o, f = x.split(H)
            if children:
                (h1, c1), (h2, c2) = (states[child] for child in children)
                if nary:
                    ui, ug, uo, u1, u2 = model.cell.h(torch.cat([h1, h2])).split(H)
                else:
                    ui, ug, uo = model.cell.h(h1 + h2).split(H)
                    u1, u2 = model.cell.f(h1), model.cell.f(h2)
                c = torch.sigmoid(i + ui) * torch.tanh(g + ug)
                c = c + torch.sigmoid(f + u1) * c1 + torch.sigmoid(f + u2) * c2
                h = torch.sigmoid(o + uo) * torch.tanh(c)
            else:
                c = torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
            states.append((h, c))
        outputs += [h for h, _ in states]
    labels = torch.tensor([label for tree in trees for label in tree.labels])
    return F.cross_entropy(model.out(torch.stack(outputs)), labels, reduction="sum")


def tree_speed(form: str, batches: int, threads: int) -> dict[str, Any]:
    """Trees a second of both, turn about, and how far apart their numbers are."""
    import numpy as np
    import torch

    from heedful.data.tokenizers.vocabulary import WordVocab
    from heedful.data.trees.batches import encode_trees
    from heedful.data.trees.treebank import WordsConfig, parse_tree
    from heedful.models import build
    from heedful.models.tree_lstm.config import TreeLSTMConfig
    from heedful.tasks.tree_classification.predictor import tree_loss

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    r = random.Random(0)
    words = WordVocab.learn(WordsConfig(), [[f"w{number}" for number in range(WORDS)]])
    sets = [[parse_tree(tree_line(r), "random", CLASSES) for _ in range(25)] for _ in range(batches)]
    model: Any = build(TreeLSTMConfig(form=form, vocab=words.vocab, dropout=0.0))
    encoded = [encode_trees(trees, words) for trees in sets]

    def ours(number: int) -> Any:
        return tree_loss(model, encoded[number].batch(np.arange(25))).total  # the laying out is timed too

    def theirs(number: int) -> Any:
        return node_by_node(model, sets[number], words)

    def turn(run: Any, number: int) -> tuple[float, float, list[Any]]:
        model.zero_grad()
        begin = time.perf_counter()
        loss = run(number)
        loss.backward()
        return time.perf_counter() - begin, loss.item(), [weight.grad.clone() for weight in model.parameters()]

    for run in (ours, theirs):
        turn(run, 0)
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    apart = 0.0
    for number in range(batches):
        one, two = turn(ours, number), turn(theirs, number)
        times["ours"].append(one[0])
        times["theirs"].append(two[0])
        assert abs(one[1] - two[1]) < 1e-4 * abs(two[1]), (one[1], two[1])
        for a, b in zip(one[2], two[2], strict=True):
            apart = max(apart, float((a - b).norm() / b.norm()))
    assert apart < 1e-4, apart
    medians = {name: statistics.median(some) for name, some in times.items()}
    return {
        "form": form,
        "threads": threads,
        "nodes a batch": round(statistics.mean(sum(map(len, trees)) for trees in sets)),
        "levels a tree": round(statistics.mean(float(one.depths.mean()) for one in encoded), 1),
        "steps a batch": round(statistics.mean(int(one.depths.max()) for one in encoded), 1),
        "ours, ms": round(1e3 * medians["ours"], 1),
        "node by node, ms": round(1e3 * medians["theirs"], 1),
        "ratio": round(medians["theirs"] / medians["ours"], 1),
        "gradients apart": apart,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the figures here too")
    given = parser.parse_args()
    found = [tree_speed(form, given.batches, given.threads) for form in ("nary", "child_sum")]
    print(json.dumps(found, indent=2))
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
