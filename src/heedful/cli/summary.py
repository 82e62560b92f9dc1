"""The command `summary`: the layers of a model, their output shapes and parameters."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.cli.output import json_line, say
from heedful.models.tracing import summary
from heedful.runs.named import find_model


def summary_command(name: str, overrides: Sequence[str], depth: int, as_json: bool) -> None:
    """Print the table of a model's layers."""
    found = summary(find_model(name, overrides), depth)
    if not as_json:
        say(str(found))
        return
    layers = [{"name": row.name, "kind": row.kind, "shape": row.output, "parameters": row.parameters} for row in found]
    say(json_line({"model": name, "layers": layers, "parameters": found.parameters, "frozen": found.frozen}))
