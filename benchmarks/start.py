"""The time of light commands, in multiples of the time to import the libraries that they need.

    python benchmarks/start.py

Each verb and the bare imports take turns; the best of each counts, since other work only adds. A verb that takes more
than `MOST` times as long has begun to load or to do something heavy: the script then ends with exit code 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "start.json"
BARE = ["-c", "import pydantic, rich.console, typer, yaml"]
VERBS = [
    ["--help"],
    ["--version"],
    ["show", "numbers"],
    ["check", "numbers"],
    ["schema"],
    ["recipes"],
    ["claims"],
    ["lectures"],
]
TURNS = 9
MOST = 4.0


def seconds(words: list[str]) -> float:
    """How long a Python program takes, from its start to its end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], capture_output=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    programs = {"bare imports": BARE} | {f"heedful {' '.join(words)}": ["-m", "heedful", *words] for words in VERBS}
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(TURNS):
        best = {name: min(best[name], seconds(words)) for name, words in programs.items()}
    ratios = {name: round(took / best["bare imports"], 2) for name, took in best.items()}
    for name, ratio in ratios.items():
        print(f"{name:24} {ratio:5.2f}")
    RESULTS.write_text(json.dumps({"most": MOST, "ratios": ratios}, indent=2) + "\n")
    if slow := [name for name, ratio in ratios.items() if ratio > MOST]:
        sys.exit(f"more than {MOST} times the bare imports: {', '.join(slow)}")


if __name__ == "__main__":
    main()
