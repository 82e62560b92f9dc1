"""The commands `runs diff` and `runs compare`: what differs between runs, and their scores and curves side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.cli.output import print_table, say
from heedful.cli.runs import find, last_step
from heedful.config import flow
from heedful.errors import UserError, short
from heedful.files.json import read_json
from heedful.files.reading import exists, is_file, read_file
from heedful.files.yaml import load_yaml
from heedful.plots.style import Style, require_suffix, save
from heedful.runs.events import read_events, values
from heedful.training.checkpoint.ownership import leaves

DATA = {"data": "train", "valid": "valid", "test": "test"}  # what manifests call the SHA-256 of a split
CELL = 48  # characters of a value in a table
PLACES = ("recipe", "environment", "data", "results")


def diff_command(runs: Sequence[Path], as_json: bool) -> None:
    """Print the recipe's keys, the environment, the data and the results in which two runs differ."""
    if len(runs) != 2:
        raise UserError(
            "a difference is between two runs", where="heedful runs diff", found=f"{len(runs)} runs",
            todo="heedful runs diff RUN OTHER; for more of them: heedful runs compare RUN OTHER ...",
        )  # fmt: skip
    differences = list(differing(*map(describe, runs)))
    records = ({"part": part, "key": key, "a": a, "b": b} for part, key, a, b in differences)
    lines = [f"a: {runs[0]}", f"b: {runs[1]}", ""]
    for part in PLACES:
        brief = _score if part == "results" else _brief
        rows = [(key, brief(a), brief(b)) for where, key, a, b in differences if where == part]
        width = max((len(key) for key, _, _ in rows), default=0)
        lines += [
            f"{part}{'' if rows else ': no differences'}",
            *(f"  {key:<{width}}  {a} | {b}" for key, a, b in rows),
        ]
    print_table(lines, records, as_json)


def compare_command(runs: Sequence[Path], picture: Path | None, as_json: bool, style: Style = "light") -> None:
    """Print the settings in which runs differ beside their scores, and draw their curves; a folder is all its runs."""
    runs = [run for path in runs for run in sorted(find(path)) or [path]]
    if len(runs) < 2:
        raise UserError("one run cannot be compared", where="heedful runs compare", todo="name two runs or more")
    if picture is not None:
        require_suffix(picture, "--picture")
    every = [describe(run) for run in runs]
    known = dict.fromkeys(key for one in every for key in one["recipe"])
    keys = [key for key in known if len({_text(one["recipe"].get(key)) for one in every}) > 1]
    scores = list(dict.fromkeys(key for one in every for key in one["results"]))
    records = [
        {"run": str(run), "step": last_step(run), "settings": {key: one["recipe"].get(key) for key in keys},
         "results": one["results"]}
        for run, one in zip(runs, every, strict=True)
    ]  # fmt: skip
    print_table(_table(records, keys, scores), records, as_json)
    if picture is not None:
        _draw(runs, picture, style)
        if not as_json:
            say(f"\npicture  {picture}")


def _table(records: Sequence[Mapping[str, Any]], keys: Sequence[str], scores: Sequence[str]) -> Iterator[str]:
    yield "| " + " | ".join(["run", "step", *keys, *scores]) + " |"
    yield "|" + "|".join(["---", "---:", *["---"] * len(keys), *["---:"] * len(scores)]) + "|"
    for record in records:
        results = [_score(record["results"].get(name)) for name in scores]
        cells = [record["run"], f"{record['step']:,}", *(_brief(record["settings"][key]) for key in keys), *results]
        yield "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _draw(runs: Sequence[Path], picture: Path, style: Style) -> None:
    from heedful.plots.figures import curves

    lines = {}
    for run in runs:
        valid = [event for event in read_events(run).evaluated("valid") if isinstance(event.get("loss"), int | float)]
        if valid:
            lines[str(run)] = [event["step"] for event in valid], [event["loss"] for event in valid]
    if not lines:
        raise UserError("no run has been evaluated yet", where="--picture", found=", ".join(map(str, runs)))
    save(curves(lines, "Loss on the validation set", "step", "loss", style=style), picture)


def describe(run: Path) -> dict[str, dict[str, Any]]:
    """The settings, the environment, the data and the results of a run, by dotted names."""
    if not is_file(run / "recipe.yaml"):
        raise UserError(
            "this is not a run", where=str(run), expected="a folder with recipe.yaml",
            todo="`heedful runs` lists runs",
        )  # fmt: skip
    environment = {key: value for key, value in _json(run / "env.json").items() if key != "run"}
    checkpoint = run / "checkpoints" / f"step-{last_step(run):08}" / "manifest.json"
    about = _json(checkpoint).get("about")
    data = {name: about[key] for key, name in DATA.items() if about.get(key)} if isinstance(about, dict) else {}
    results: dict[str, float] = {}
    for split in ("valid", "test"):
        for event in read_events(run).evaluated(split)[-1:]:
            loss = {"loss": event["loss"]} if isinstance(event.get("loss"), int | float) else {}
            results |= {f"{split} {name}": value for name, value in {**loss, **values(event)}.items()}
    recipe = leaves(load_yaml(run / "recipe.yaml")[0])
    return {"recipe": recipe, "environment": environment, "data": data, "results": results}


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """Part, key and both values of everything in which two runs differ."""
    for part in PLACES:
        for key in dict.fromkeys([*a[part], *b[part]]):
            if _text(a[part].get(key)) != _text(b[part].get(key)):
                yield part, key, a[part].get(key), b[part].get(key)


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where it cannot be read."""
    try:
        found = read_json(read_file(path).decode()) if exists(path) else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str:
    return flow(value)


def _brief(value: Any) -> str:
    return "-" if value is None else short(_text(value), CELL)


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
