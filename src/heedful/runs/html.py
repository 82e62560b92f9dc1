"""Pieces of an HTML page: sections, figures and tables, with every text escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

from heedful.errors import printable
from heedful.files.reading import is_file, read_file

STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f3f5f8; color: #262c36; font: 16px/1.5 system-ui, Helvetica, Arial, sans-serif; }
main { max-width: 58rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { margin: 0; font-size: 1.9rem; font-weight: 650; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { margin: 0 0 .8rem; font-size: 1.1rem; font-weight: 650; }
p { margin: .4rem 0; }
.lead, figcaption, .quiet { color: #5d6673; }
section { background: #fff; border: 1px solid #e1e5ea; border-radius: 10px; margin-top: 1rem; padding: 1.2rem 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .94rem; }
th { text-align: left; font-weight: 600; color: #5d6673; }
th, td { padding: .4rem .8rem .4rem 0; border-bottom: 1px solid #eceff3; vertical-align: top; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.large { font-size: 1.5rem; font-weight: 650; font-variant-numeric: tabular-nums; }
figure { margin: 0 0 1.6rem; }
figure:last-child { margin-bottom: 0; }
figure > p { margin: 0 0 .5rem; font-weight: 600; }
img { display: block; max-width: 100%; height: auto; }
img.tall { max-height: 46rem; width: auto; }
figcaption { font-size: .92rem; margin-top: .4rem; }
code, pre { font: .88rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: #f6f8fa; border-radius: 6px; padding: .8rem 1rem; margin: .6rem 0 0; overflow-x: auto; }
summary { cursor: pointer; font-weight: 600; }
@media print { body { background: #fff; } section { border: 0; padding: 0; break-inside: avoid; } }
"""


def escaped(text: str) -> str:
    """Text, escaped."""
    return escape(printable(text))


def section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escaped(title)}</h2>\n{body}</section>\n" if body else ""


def folded(title: str, body: str) -> str:
    return f"<details>\n<summary>{escaped(title)}</summary>\n{body}</details>\n"


def figure(folder: Path, file: Path, title: str, about: str) -> str:
    """A figure, embedded in the page and linked to its file."""
    if not is_file(file):
        return ""
    data = b64encode(read_file(file)).decode()
    head = f"<p>{escaped(title)}</p>\n" if title else ""
    link = escaped(file.relative_to(folder).as_posix())
    image = f'<img class="tall" alt="{escaped(title or about)}" src="data:image/png;base64,{data}">'
    return f'<figure>\n{head}<a href="{link}">{image}</a>\n<figcaption>{escaped(about)}</figcaption>\n</figure>\n'


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[int] = frozenset()) -> str:
    """A table, some columns of which are numeric."""
    kinds = [' class="number"' if column in numbers else "" for column in range(len(rows[0]) if rows else 0)]
    head = "".join(f"<th{kind}>{escaped(text)}</th>" for kind, text in zip(kinds, heads, strict=False))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escaped(text)}</td>" for kind, text in zip(kinds, row, strict=True)) + "</tr>\n"
        for row in rows
    )
    return f"<table>\n{f'<tr>{head}</tr>{chr(10)}' if heads else ''}{body}</table>\n"
