"""The results of a study: a row for each trial, the best one, and paired comparisons."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heedful.errors import short
from heedful.extras.tuning.comparing import Comparison, compare
from heedful.extras.tuning.outcomes import Outcome, outcome
from heedful.extras.tuning.space import RECIPE, Value, number
from heedful.extras.tuning.study import Study, Trial

CELL = 28  # characters of a value in the table
MOST_COMPARED = 5  # trials that are compared with the best


@dataclass(frozen=True)
class Row:
    """A trial with the results of its complete runs."""

    trial: Trial
    outcomes: dict[str, Outcome]  # by seed; "" without seeds

    @property
    def values(self) -> list[float]:
        """The value of each run."""
        return [one.value for one in self.outcomes.values()]

    @property
    def mean(self) -> float:
        """The mean over its runs."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over its runs; None for one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def test(self) -> dict[str, float]:
        """The mean test scores that all runs have."""
        tests = [one.test for one in self.outcomes.values()]
        names = [name for name in (tests[0] if tests else {}) if all(name in test for test in tests)]
        return {name: statistics.fmean(test[name] for test in tests) for name in names}


def rows_of(study: Study) -> list[Row]:
    """The trials, the best complete ones first."""
    rows = []
    for trial in study.trials:
        found = {run.seed or "": outcome(run.folder, study.metric) for run in trial.runs}
        rows.append(Row(trial, {seed: one for seed, one in found.items() if one is not None}))
    sign = 1 if study.metric.direction == "minimize" else -1
    return sorted(rows, key=lambda row: (row.trial.state != "complete", sign * row.mean if row.values else 0.0))


def complete(rows: Sequence[Row]) -> list[Row]:
    """The complete trials, in their order."""
    return [row for row in rows if row.trial.state == "complete" and row.values]


def comparisons(rows: Sequence[Row]) -> list[tuple[Row, Row, Comparison]]:
    """The best trial against the next ones, seed by seed."""
    best, others = complete(rows)[:1], complete(rows)[1 : MOST_COMPARED + 1]
    if not best or len(best[0].values) < 2:
        return []
    same = [other for other in others if other.outcomes.keys() == best[0].outcomes.keys()]
    return [(best[0], other, paired(best[0], other)) for other in same]


def paired(a: Row, b: Row) -> Comparison:
    """The difference of two trials over their seeds."""
    return compare([a.outcomes[seed].value for seed in a.outcomes], [b.outcomes[seed].value for seed in a.outcomes])


def name_of(row: Row) -> str:
    """A trial by its settings, or by its number where there are none."""
    settings = ", ".join(f"{key.rpartition('.')[2]} {_brief(value)}" for key, value in row.trial.point.items())
    return short(settings, 60) or f"trial {row.trial.number}"


def _brief(value: Value) -> str:
    """A value in the table, whose commands have all digits."""
    return f"{value:.4g}" if isinstance(value, float) else number(value)


def table(study: Study, rows: Sequence[Row]) -> Iterator[str]:
    """The trials as a Markdown table, the best first."""
    keys = [axis.key for axis in study.space.axes]
    tests = list(dict.fromkeys(name for row in rows for name in row.test))[:3]
    seeds = ["seeds"] * (len(study.space.seeds) > 1)
    heads = ["trial", *keys, f"{study.metric.name} (valid)", *seeds, *(f"{name} (test)" for name in tests), ""]
    yield "| " + " | ".join(heads).rstrip() + " |"
    yield "|" + "|".join(["---:", *["---"] * len(keys), "---:", *["---:"] * (len(seeds) + len(tests)), "---"]) + "|"
    for row in rows:
        settings = [short(_brief(row.trial.point[key]), CELL) for key in keys]
        spread = "" if row.deviation is None else f" ± {row.deviation:.4g}"
        value = f"{row.mean:.4f}{spread}" if row.values and row.trial.state == "complete" else ""
        state = "" if row.trial.state == "complete" else row.trial.state
        scores = [f"{row.test[name]:.2f}" if name in row.test else "" for name in tests]
        cells = [f"{row.trial.number}", *settings, value, *([str(len(row.values))] if seeds else []), *scores, state]
        yield "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def plain(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    """The results as in study.json."""
    best = complete(rows)[:1]
    return {
        "metric": study.metric.name,
        "direction": study.metric.direction,
        "sampler": study.header["sampler"],
        "settings": list(study.space.fixed),
        "best": best[0].trial.number if best else None,
        "trials": [
            {
                "trial": row.trial.number,
                "recipe": study.space.recipe(row.trial.point),
                "point": {key: value for key, value in row.trial.point.items() if key != RECIPE},
                "state": row.trial.state,
                "error": row.trial.error,
                "runs": [run.name for run in row.trial.runs],
                "values": {seed: one.value for seed, one in row.outcomes.items()},
                "mean": row.mean if row.values else None,
                "deviation": row.deviation,
                "test": row.test,
            }
            for row in rows
        ],
        "comparisons": [
            {"a": a.trial.number, "b": b.trial.number, **asdict(found)} for a, b, found in comparisons(rows)
        ],
    }
