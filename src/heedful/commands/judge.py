"""The verb `judge`: what a tree classifier says of trees, and of every part of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.commands.display import json_line, say
from heedful.commands.loading import load_as
from heedful.commands.translate import stdin_lines
from heedful.data.trees import Tree, parse_tree
from heedful.tasks.tree_classification import Judge, Judgement, class_name, require_narrow


def judge_verb(run: Path, lines: Sequence[str], nodes: bool, as_json: bool) -> None:
    """Say the class of each tree, given as arguments or as lines of stdin."""
    judge = load_as(Judge, run)
    classes = judge.model.config.classes
    piped = list(lines) == ["-"] or (not lines and not sys.stdin.isatty())
    if piped:
        given = [(line.text, line.where) for line in stdin_lines(sys.stdin.buffer)]
    else:
        given = [(line, f"tree {number}") for number, line in enumerate(lines, start=1)]
    trees = [parse_tree(text, where, None) if text.strip() or not piped else None for text, where in given]
    for tree, (_, where) in zip(trees, given, strict=True):
        if tree is not None:
            require_narrow(tree, judge.model.config, where)
    judged = iter(judge.judge([tree for tree in trees if tree is not None]))
    for tree in trees:
        if tree is None:  # a blank line stays one, so that lines out are lines in
            say("null" if as_json else "")
            continue
        found = next(judged)
        if as_json:
            told = {"text": tree.text, "label": found.label, "name": class_name(found.label, classes)}
            say(json_line(told | {"probabilities": found.probabilities, "nodes": found.nodes}))
            continue
        say(f"{class_name(found.label, classes):<14} {found.probabilities[found.label]:4.0%}  {tree.text}")
        if nodes:
            for line in drawn(tree, found, classes):
                say(line)


def drawn(tree: Tree, found: Judgement, classes: int) -> Iterator[str]:
    """The tree, a line a node: how deep it stands, its words, and what is said of it."""
    spans: list[str] = []  # of each node, children before parents
    for word, children in zip(tree.words, tree.children, strict=True):
        spans.append(" ".join([*([word] if word else []), *(spans[child] for child in children)]))
    waiting = [(len(tree) - 1, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield f"{'  ' * depth}{class_name(found.nodes[node], classes):<14} {spans[node]}"
        waiting += [(child, depth + 1) for child in reversed(tree.children[node])]
