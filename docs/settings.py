"""Write the tables of settings in the docs from the classes that recipes are made of: `python docs/settings.py`.

A table belongs to the comment above it, such as `<!-- settings: heedful.training.optim.AdamW -->`. Names, defaults and
descriptions come from the class; the text between comment and table is written by hand.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from heedful.config import Config

DOCS = Path(__file__).parent
MARK = re.compile(r"^<!-- settings: ([\w.]+)\.(\w+) -->\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^\| setting \| default \| \|\n(?:\|.*\n)+", re.MULTILINE)


def default_text(field: FieldInfo) -> str:
    """The default of a setting as a table shows it."""
    default = field.default
    if field.default_factory is not None:
        return "see right"  # it depends on other settings, as the description says
    if default is PydanticUndefined:
        return "required"
    return "see below" if isinstance(default, Config) else f"`{json.dumps(default)}`".replace('"', "")


def choices(annotation: Any) -> list[Any]:
    """The values that a setting may have, where they are listed in its type."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) if get_origin(part) is Literal for value in get_args(part)]


def table(config: type[Config]) -> str:
    """The settings of a class, one row each; empty where there are none."""
    rows = []
    for name, field in config.model_fields.items():
        if name == "kind":
            continue
        about = field.description or ""
        if len(values := choices(field.annotation)) > 1:
            about += "; one of " + ", ".join(f"`{value}`" for value in values)
        rows.append(f"| `{name}` | {default_text(field)} | {about.replace('|', chr(92) + '|')} |\n")
    return "| setting | default | |\n|---|---|---|\n" + "".join(rows) if rows else ""


def config_of(module: str, name: str) -> type[Config]:
    """The class that a comment names."""
    config: type[Config] = getattr(importlib.import_module(module), name)
    return config


def documented(text: str) -> list[type[Config]]:
    """The classes whose settings a page lists."""
    return [config_of(found[1], found[2]) for found in MARK.finditer(text)]


def filled(text: str) -> str:
    """A page with the tables that its classes have now."""

    def fill(found: re.Match[str]) -> str:
        fresh = table(config_of(found[1], found[2]))
        if not TABLE.search(found[0]):
            return found[0].rstrip("\n") + f"\n\n{fresh}\n" if fresh else found[0]
        return TABLE.sub(lambda _: fresh, found[0], count=1)

    return MARK.sub(fill, text).rstrip("\n") + "\n"


def main() -> int:
    """Rewrite the pages whose tables differ; 1 if there were any."""
    changed = 0
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (fresh := filled(text)) != text:
            page.write_text(fresh, encoding="utf-8")
            sys.stdout.write(f"wrote {page.relative_to(DOCS)}\n")
            changed = 1
    return changed


if __name__ == "__main__":
    sys.exit(main())
