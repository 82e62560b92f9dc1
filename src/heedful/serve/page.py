"""The page about the API: written by the server, without scripts and without anything from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from heedful.serve.inputs import fields_of
from heedful.serve.models import Served

PAGE_CSS = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h2 { margin-top: 2.5rem; border-top: 1px solid #ccc; padding-top: 1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: 0.3rem 0.6rem; border-bottom: 1px solid #ddd; }
code, pre { font: 14px/1.4 ui-monospace, monospace; background: #f4f4f4; }
pre { padding: 0.8rem; overflow-x: auto; }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #ddd; } code, pre { background: #262626; } }
"""


def page(schema: Mapping[str, Any], models: Mapping[str, Served]) -> str:
    """The page in HTML."""
    return "".join(parts(schema, models))


def parts(schema: Mapping[str, Any], models: Mapping[str, Served]) -> Iterator[str]:
    """The parts of the page."""
    yield '<!doctype html><html lang="en"><meta charset="utf-8"><title>Heedful</title>'
    yield '<link rel="stylesheet" href="/page.css"><h1>Heedful</h1>'
    yield '<p>The same in a form for programs: <a href="/openapi.json">openapi.json</a> (OpenAPI 3.1).</p>'
    yield "<h2>Models</h2><table><tr><th>name<th>task<th>fields of an input<th>also"
    for name, one in models.items():
        also = "/v1/completions" if one.engine else "/v1/embeddings" if one.embeddings else ""
        fields = ", ".join(fields_of(one.predictor))
        yield f"<tr><td>{escape(name)}<td>{escape(one.predictor.task)}<td>{escape(fields)}<td>{also}"
    yield "</table>"
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            yield f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(about.get('summary', ''))}.</p>"
            if "requestBody" in about:
                yield from field_table(about["requestBody"]["content"]["application/json"]["schema"])


def field_table(schema: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a body as a table."""
    yield "<table><tr><th>field<th>default<th>meaning"
    needed = schema.get("required", [])
    for name, about in schema["properties"].items():
        default = "needed" if name in needed else escape(json.dumps(about.get("default")))
        yield f"<tr><td><code>{escape(name)}</code><td>{default}<td>{escape(about.get('description', ''))}"
    yield "</table>"
