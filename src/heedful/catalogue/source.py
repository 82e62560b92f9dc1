"""The parts that code defines and no key names: modules, losses, scores and steps, read from their files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from heedful.files.reading import read_file

ROOT = Path(__file__).parents[1]
FILE_KINDS = {  # of the modules in a file of blocks/; those of other files are layers
    "adaptive": "embedder",
    "attention": "attention",
    "embedding": "embedder",
    "memory": "attention",
    "patches": "embedder",
    "positions": "positions",
    "scores": "attention",
}
CLASS = re.compile(r'^class (\w+)\(([^)]*)\):\n    """(.+?)(?:"""|\n)', re.MULTILINE)
PLAIN_CLASS = re.compile(r'^class (\w+)(?:\(.*\))?:\n    """(.+?)(?:"""|\n)', re.MULTILINE)
FUNCTION = re.compile(
    r'^def ([a-z]\w*)\(((?:[^()]|\([^()]*\))*)\) -> ([^:]+):\n    """((?:.|\n)+?)(?:"""|\n\n)', re.MULTILINE
)
PARAMETER = re.compile(r"^(\w+):[^=]*$")


class Definition(NamedTuple):
    """A class or a function: its kind of part, its name, its docstring's first line, its file, and its parameters."""

    kind: str
    name: str
    about: str
    file: str  # below the package
    takes: str = ""


def definitions() -> Iterator[Definition]:
    """All modules of the blocks, all functions that return a loss or scores, and what takes the steps of training."""
    yield from _modules()
    for folder, pattern, kind in (
        ("blocks", "Loss", "loss"),
        ("tasks", "Loss", "loss"),
        ("training", "Score", "metric"),
    ):
        yield from _functions(folder, pattern, kind)
    yield from (one for one in _trainers())


def _texts(folder: str, word: str) -> Iterator[tuple[str, str]]:
    """The files of a folder that have a word, with their text."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = read_file(path).decode("utf-8")
        if word in text:
            yield path.relative_to(ROOT).as_posix(), text


def _modules() -> Iterator[Definition]:
    """The classes of blocks/ that are torch modules, themselves or by their base."""
    for file, text in _texts("blocks", "nn.Module"):
        known = set[str]()
        kind = FILE_KINDS.get(Path(file).stem, "layer")
        for name, bases, about in CLASS.findall(text):
            if any(base.strip() in known or base.strip().startswith("nn.") for base in bases.split(",")):
                known.add(name)
                yield Definition(kind, name, about, file)


def _functions(folder: str, returns: str, kind: str) -> Iterator[Definition]:
    """The public functions of a folder that return this type, or several of it."""
    for file, text in _texts(folder, f"{returns}"):
        for name, parameters, result, about in FUNCTION.findall(text):
            if returns in re.findall(r"\w+", result):
                given = [one.strip() for one in re.split(r",(?![^\[(]*[\])])", parameters)]
                takes = [found[1] for one in given if (found := PARAMETER.match(one))]
                yield Definition(kind, name, " ".join(about.split()), file, ", ".join(takes))


def _trainers() -> Iterator[Definition]:
    """The loop, and the ways to take a step."""
    loop = read_file(ROOT / "training/loop.py").decode("utf-8")
    for name, _, _, about in FUNCTION.findall(loop):
        if name == "fit":
            yield Definition("trainer", name, " ".join(about.split()), "training/loop.py", "model, batches, loss")
    steps = read_file(ROOT / "training/step.py").decode("utf-8")
    for name, about in PLAIN_CLASS.findall(steps):
        if name.endswith("Step"):
            yield Definition("trainer", name, about, "training/step.py")
