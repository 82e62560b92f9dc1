"""The tables of docs/results/doctor.md: `python benchmarks/doctor.py`.

Planted faults with the check that reports each, and correct models that are not ours, in which nothing is reported.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import heedful
from contracts.foreign import FOREIGN, gpt2
from contracts.planted_habits import CORRECT, PLANTED
from heedful.contracts.report import Finding, size
from heedful.models import MODELS, build, config_class


def shown(finding: Finding) -> str:
    """The difference, or what was found in place of one."""
    return finding.reason.split(":")[0] if finding.difference is None else size(finding.difference)


def planted() -> None:
    """A row for each fault."""
    print("| fault | reported by | difference | smallest input | other checks that fail |\n|---|---|---:|---|---|")
    for name, (builder, check, settings) in PLANTED.items():
        torch.manual_seed(0)
        report = heedful.doctor(builder, settings)
        found = report[check]
        others = ", ".join(one for one in report.failed if one != check)
        print(
            f"| {name} | {found.verdict}: `{check}` | {shown(found)} | {found.smallest.split(', in a')[0]} | {others} |"
        )


def correct() -> None:
    """A row for each correct model."""
    print("\n| model | passed | failed | not applicable |\n|---|---:|---:|---|")
    for name, builder in {**FOREIGN, **CORRECT}.items():
        report = heedful.doctor(builder)
        skipped = [one.check for one in report.findings if one.verdict == "not applicable"]
        print(f"| {name} | {len(report.passed)} | {len(report.failed)} | {', '.join(skipped)} |")


def known() -> None:
    """What is known of two models, as reported."""
    for builder in (gpt2, lambda: torch.nn.MultiheadAttention(16, 2, batch_first=True)):
        torch.manual_seed(0)
        report = heedful.doctor(builder)
        print("\n" + report.called[0])
        for name in report.failed:
            print("\n".join(report[name].lines()))


def ours() -> None:
    """How many models of the table fail a check."""
    begin, failed = time.process_time(), []
    for kind in MODELS:
        failed += [kind] * (not heedful.doctor(build(config_class(kind).tiny())).ok)
    seconds = time.process_time() - begin
    print(f"\n{len(MODELS)} models of ours, tiny, in {seconds:.0f} CPU seconds; blamed: {', '.join(failed) or 'none'}")


if __name__ == "__main__":
    planted()
    correct()
    known()
    ours()
