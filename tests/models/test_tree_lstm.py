"""The Tree-LSTM: level by level against node by node, and the contract tests."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.blocks.losses import cross_entropy
from heedful.blocks.taps import taps, watch
from heedful.data.tokenizers.vocabulary import WordVocab
from heedful.data.trees.batches import TreeBatch, encode_trees
from heedful.data.trees.treebank import Tree, WordsConfig, parse_tree
from heedful.hub.model_folder import read_model, write_model
from heedful.models import build
from heedful.models.tree_lstm.config import TreeLSTMConfig
from heedful.models.tree_lstm.model import TreeLSTM, one_by_one
from random_trees import random_tree
from tolerance import close

WORDS = WordVocab.learn(WordsConfig(), [[f"w{number}" for number in range(20)]])
FORMS = pytest.mark.parametrize("form", ["nary", "child_sum"])


def sample_tree(seed: int, leaves: int, widest: int = 2) -> Tree:
    """A random tree."""
    return parse_tree(random_tree(seed, leaves, widest), "here", 5)


TREES = [sample_tree(seed, leaves) for seed, leaves in enumerate((5, 1, 9, 2, 14, 7))]


def batch_of(trees: list[Tree]) -> TreeBatch:
    return encode_trees(trees, WORDS).batch(np.arange(len(trees)))


def config(form: str, **more: object) -> TreeLSTMConfig:
    settings = {"form": form, "vocab": WORDS.vocab, "width": 6, "hidden": 7, "dropout": 0.3, "input_dropout": 0.2}
    return TreeLSTMConfig.model_validate(settings | more)


def prepared(form: str, **more: object) -> TreeLSTM:
    """A model in eval mode with random noise on its weights, so that no bias is zero."""
    model = build(config(form, **more)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    assert isinstance(model, TreeLSTM)
    return model


def in_tree_order(batch: TreeBatch, rows: Tensor) -> Tensor:
    """The values of each node, tree after tree, children first."""
    return torch.empty_like(rows).index_copy(0, batch.nodes, rows)


def reference(model: TreeLSTM, tree: Tree) -> Tensor:
    """The equations of the paper for each node, gate by gate."""
    cell, H = model.cell, model.config.hidden
    W, b = cell.x.weight.split(H), cell.x.bias.split(H)  # i, g, o, f
    zero = torch.zeros(H, dtype=W[0].dtype)
    states: list[tuple[Tensor, Tensor]] = []
    for word, children in zip(tree.words, tree.children, strict=True):
        x = torch.zeros_like(W[0][0]) if word is None else model.tokens.weight[WORDS.id(word)]
        below = [states[child] for child in children]
        if model.config.form == "child_sum":
            total = sum((h for h, _ in below), zero)
            i, g, o = (W[n] @ x + b[n] + cell.h.weight.split(H)[n] @ total for n in range(3))
            f = [W[3] @ x + b[3] + cell.f.weight @ h for h, _ in below]
        else:
            arity = model.config.arity
            U = [[part.split(H, 1)[k] for k in range(arity)] for part in cell.h.weight.split(H)]
            i, g, o = (W[n] @ x + b[n] + sum((U[n][k] @ h for k, (h, _) in enumerate(below)), zero) for n in range(3))
            f = [
                W[3] @ x + b[3] + sum((U[3 + k][j] @ h for j, (h, _) in enumerate(below)), zero)
                for k in range(len(below))
            ]
        c = torch.sigmoid(i) * torch.tanh(g)
        c = sum((torch.sigmoid(gate) * old for gate, (_, old) in zip(f, below, strict=True)), c)
        states.append((torch.sigmoid(o) * torch.tanh(c), c))
    return torch.stack([h for h, _ in states])


def gradients(model: TreeLSTM, y: Tensor) -> list[Tensor]:
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    model.zero_grad()
    (y * weight).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.claim("J9")
@FORMS
@pytest.mark.parametrize("arity", [2, 4])
def test_level_by_level_matches_node_by_node_and_the_equations(form: str, arity: int) -> None:
    model = prepared(form, arity=arity).double()
    trees = [sample_tree(seed, 1 + seed, arity) for seed in range(9)]
    # Some inner nodes have words, as in dependency trees.
    trees.append(Tree((0, 1, 2, 3), ("w1", "w2", "w3", None), ((), (0,), (1,), (2,))))
    if form == "child_sum":  # any number of children
        wide = [f"(0 {' '.join(f'(1 w{child % 20})' for child in range(count))})" for count in (1, 7, 40)]
        trees += [parse_tree(text, "here", 5) for text in wide]
    batch = batch_of(trees)
    fast = in_tree_order(batch, model.states(batch))
    plain = torch.cat([one_by_one(model, [w and WORDS.id(w) for w in t.words], t.children) for t in trees])
    slow = torch.cat([reference(model, tree) for tree in trees])
    close(fast, slow, slack=8192)
    close(plain, slow, slack=8192)
    for one, two, three in zip(*(gradients(model, y) for y in (fast, plain, slow)), strict=True):
        close(one, three, slack=65536)
        close(two, three, slack=65536)


@FORMS
def test_parameter_count_matches_the_built_model(form: str) -> None:
    for arity in (1, 2, 3):
        c = config(form, arity=arity)
        assert c.parameters(WORDS.vocab) == sum(p.numel() for p in build(c).parameters())


@FORMS
def test_only_nary_depends_on_the_order_of_children(form: str) -> None:
    model = prepared(form)
    tree = sample_tree(3, 8)
    turned = Tree(tree.labels, tree.words, tuple(children[::-1] for children in tree.children))
    one, two = (in_tree_order(batch, model(batch)) for batch in (batch_of([tree]), batch_of([turned])))
    if form == "nary":
        assert (one[-1] - two[-1]).abs().max().item() > 1e-3
    else:
        close(one, two, slack=16)


@FORMS
def test_number_of_steps_is_the_deepest_tree(form: str) -> None:
    model = prepared(form)
    batch = batch_of([sample_tree(seed, 6) for seed in range(50)])
    with watch(model, "cell.gates.hidden") as seen:
        model(batch)
    assert len(seen.all["cell.gates.hidden"]) == len(batch.leaf_counts) <= 6
    assert sum(map(len, seen.all["cell.gates.hidden"])) == len(batch.labels)


@FORMS
def test_shapes_and_every_parameter_gets_gradient(form: str) -> None:
    model = prepared(form, vocab=22)
    batch = batch_of([sample_tree(seed, 40) for seed in range(4)])
    logits = model(batch)
    assert logits.shape == (len(batch.labels), 5)
    logits.square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())] == []
    assert model.tokens.weight.grad is not None
    used = model.tokens.weight.grad.any(1)
    assert bool(used[2:].all()) and not bool(used[:2].any())


@FORMS
def test_only_training_is_random(form: str) -> None:
    batch = batch_of(TREES)
    assert prepared(form).states(batch).equal((model := prepared(form)).states(batch)) is False
    assert model(batch).equal(model(batch))
    for settings in ({"dropout": 0.5, "input_dropout": 0.0}, {"dropout": 0.0, "input_dropout": 0.5}):
        model = prepared(form, **settings).train()
        assert not model(batch).equal(model(batch))
    model = prepared(form, dropout=0.0, input_dropout=0.0).train()
    assert model(batch).equal(model(batch))


@FORMS
def test_order_and_batch_do_not_change_the_output(form: str) -> None:
    model = prepared(form)
    alone = torch.cat([in_tree_order(batch_of([tree]), model(batch_of([tree]))) for tree in TREES])
    batch = batch_of(TREES)
    close(in_tree_order(batch, model(batch)), alone, slack=16)
    order = [3, 0, 5, 1, 4, 2]
    shuffled = batch_of([TREES[at] for at in order])
    close(model(shuffled)[shuffled.roots], model(batch)[batch.roots][order], slack=16)


@FORMS
def test_state_depends_only_on_the_subtree(form: str) -> None:
    model = prepared(form)
    one, two = (parse_tree(f"(1 (2 (1 w1) (2 w2)) (3 (1 {word}) (0 w4)))", "here", 5) for word in ("w3", "w9"))
    first, second = (in_tree_order(batch, model(batch)) for batch in (batch_of([one]), batch_of([two])))
    assert [bool((a == b).all()) for a, b in zip(first, second, strict=True)] == [
        True,
        True,
        True,
        False,
        True,
        False,
        False,
    ]


@FORMS
def test_watching_does_not_change_the_output(form: str) -> None:
    model, batch = prepared(form), batch_of(TREES)
    fast = model(batch)
    with watch(model) as seen:
        watched = model(batch)
    assert watched.equal(fast)
    assert set(seen) == set(taps(model))
    gates = [*seen.all["cell.forget"], *seen.all["cell.gates.write"], *seen.all["cell.gates.reveal"]]
    assert all(bool(((gate > 0) & (gate < 1)).all()) for gate in gates)


@FORMS
def test_closed_forget_gates_leave_the_candidate(form: str) -> None:
    model, batch = prepared(form), batch_of(TREES)
    plain = model(batch)
    with watch(model, "cell.forget", edit=lambda name, x: torch.zeros_like(x)):
        assert not model(batch)[batch.roots].equal(plain[batch.roots])


@FORMS
def test_saved_model_is_loaded(form: str, tmp_path: Path) -> None:
    model, batch = prepared(form), batch_of(TREES)
    write_model(tmp_path / "model", model.config.model_dump_json(), model.state_dict(), {}, {})
    files = read_model(tmp_path / "model")
    again = build(TreeLSTMConfig.model_validate_json(files.config_json)).eval()
    again.load_state_dict(files.tensors)
    assert again(batch).equal(model(batch))


@FORMS
def test_half_precision_is_finite_and_close(form: str) -> None:
    model, batch = prepared(form), batch_of(TREES)
    full = model(batch)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(batch)
    assert float((half - full).detach().abs().max()) < 0.05 * float(full.detach().abs().max())


@FORMS
def test_eight_trees_are_memorized(form: str) -> None:
    model = build(config(form, hidden=24, width=16, dropout=0.0, input_dropout=0.0))
    r = random.Random(0)
    trees = [sample_tree(seed, 3 + seed) for seed in range(8)]
    labels = tuple(dict.fromkeys(word for tree in trees for word in tree.words if word))
    fixed = {word: r.randrange(5) for word in labels}  # one word has one label
    trees = [
        Tree(tuple(fixed[w] if w else n for n, w in zip(t.labels, t.words, strict=True)), t.words, t.children)
        for t in trees
    ]
    batch, loss = batch_of(trees), torch.tensor(9.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(300):
        learned = cross_entropy(model(batch), batch.labels)
        loss = learned.total / learned.count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.01:
            break
    assert loss.item() < 0.01
    assert model.eval()(batch).argmax(-1).equal(batch.labels)


def test_too_many_children_are_rejected() -> None:
    tree = parse_tree("(1 (1 w1) (1 w2) (1 w3))", "here", 5)
    with pytest.raises(ValueError, match="3 children, but the model's arity is 2"):
        prepared("nary")(batch_of([tree]))
    assert prepared("child_sum")(batch_of([tree])).shape == (4, 5)


def test_empty_batch_has_zero_loss() -> None:
    batch = encode_trees(TREES, WORDS).batch(np.array([], np.int64))
    model = prepared("nary")
    loss = cross_entropy(model(batch), batch.labels)
    loss.total.backward()
    assert (loss.total.item(), loss.count.item()) == (0.0, 0)
