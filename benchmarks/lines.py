"""Lines of Python in a folder: code and comments, docstrings, blank.

python benchmarks/lines.py [FOLDER ...]
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count(path: Path) -> Counter[str]:
    """The lines of one file, by kind; a blank line in a docstring is part of it."""
    text = path.read_text(encoding="utf-8")
    strings = [
        node.body[0] for node in ast.walk(ast.parse(text)) if isinstance(node, SCOPES) and ast.get_docstring(node)
    ]
    inside = {line for one in strings for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
    return Counter(
        "docstrings" if number in inside else "code and comments" if line.strip() else "blank"
        for number, line in enumerate(text.splitlines(), 1)
    )


if __name__ == "__main__":
    for folder in sys.argv[1:] or ["src"]:
        found = sum(map(count, Path(folder).rglob("*.py")), Counter[str]())
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in found.most_common())
        print(f"{folder}: {found.total():,} lines: {kinds}")
