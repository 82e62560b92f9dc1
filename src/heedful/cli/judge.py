"""The verb `judge`: what a tree classifier says of trees, and of every part of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from heedful.cli.display import json_line, say
from heedful.cli.loading import load_as
from heedful.cli.translate import Line, batched, piped, stdin_lines
from heedful.data.trees.treebank import Tree, parse_tree
from heedful.errors import UserError
from heedful.tasks.tree_classification.predictor import TreeClassification, TreeClassifier, class_name, require_narrow

TOGETHER = 256  # trees that are judged at a time


def judge_verb(run: Path, texts: Sequence[str], nodes: bool, as_json: bool) -> None:
    """Say the class of each tree, given as arguments or as lines of stdin."""
    reads, count = piped(texts), 0
    if texts or reads:
        judge = load_as(TreeClassifier, run)
        given = (Line(text, f"tree {number}") for number, text in enumerate(texts, 1))
        trees = parsed(stdin_lines(sys.stdin.buffer) if reads else given, judge, blanks=reads)
        for batch in batched(trees, 1 if reads and sys.stdin.isatty() else TOGETHER):  # who types waits for each
            count += len(batch)
            judged = iter(judge.classify([tree for tree in batch if tree is not None]))
            for tree in batch:
                found = None if tree is None else (tree, next(judged))
                for line in told(found, judge.classes, nodes, as_json):
                    say(line)
    if not count:
        raise UserError(
            "there is no tree to judge",
            todo=f"heedful classify-tree {run} '(2 (2 not) (2 bad))', or pipe lines into it",
        )


def parsed(lines: Iterable[Line], judge: TreeClassifier, blanks: bool) -> Iterator[Tree | None]:
    """The trees that lines spell, none too wide for the model; where lines may be blank, those are None."""
    for line in lines:
        if blanks and line.blank:
            yield None
            continue
        tree = parse_tree(line.text, line.where, None)
        require_narrow(tree, judge.model.config, line.where)
        yield tree


def told(judged: tuple[Tree, TreeClassification] | None, classes: int, nodes: bool, as_json: bool) -> Iterator[str]:
    """The lines about one tree; a blank line stays one, so that lines out are lines in."""
    if judged is None:
        yield "null" if as_json else ""
        return
    tree, found = judged
    if as_json:
        about = {"text": tree.text, "label": found.label, "name": class_name(found.label, classes)}
        yield json_line(about | {"probabilities": found.probabilities, "nodes": found.nodes})
        return
    yield f"{class_name(found.label, classes):<14} {found.probabilities[found.label]:4.0%}  {tree.text}"
    if nodes:
        yield from drawn(tree, found, classes)


def drawn(tree: Tree, found: TreeClassification, classes: int) -> Iterator[str]:
    """The tree, a line a node: how deep it stands, its words, and what is said of it."""
    spans: list[str] = []  # of each node, children before parents
    for word, children in zip(tree.words, tree.children, strict=True):
        spans.append(" ".join([*([word] if word else []), *(spans[child] for child in children)]))
    waiting = [(len(tree) - 1, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield f"{'  ' * depth}{class_name(found.nodes[node], classes):<14} {spans[node]}"
        waiting += [(child, depth + 1) for child in reversed(tree.children[node])]
