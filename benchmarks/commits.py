"""CPU time of a training step of two versions of the package, side by side.

    python benchmarks/commits.py OLD_PYTHON NEW_PYTHON [RECIPE ...] [--rounds 3]

Each argument is the interpreter of an environment in which one version is installed. Every recipe is trained with few
and with many steps by each version in turns, on one thread; the difference of the two CPU times is that of the steps
between, without start-up and evaluation. The ratio is the smallest time of the new version to that of the old one.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import tempfile

SMALL = ("data.train=2000", "data.valid=20", "data.test=20")
RECIPES: dict[str, tuple[int, int, tuple[str, ...]]] = {  # few and many steps, and settings
    "numbers": (5, 65, SMALL),
    "numbers-rnn": (5, 65, SMALL),
    "gpt-prose": (5, 45, ()),
    "bert-prose": (5, 45, ()),
    "prose": (5, 65, ()),
    "number-languages": (20, 420, ()),
    "number-languages-conv": (5, 305, ()),
    "digits": (50, 3050, ()),
}
QUIET = ("train.device=cpu", "train.evaluate_every=1000000", "train.save_every=1000000", "train.log_every=1000000")


def cpu_seconds(python: str, recipe: str, steps: int, settings: tuple[str, ...]) -> float:
    """CPU seconds of a training run."""
    with tempfile.TemporaryDirectory() as folder:
        words = [python, "-m", "heedful", "train", recipe, "--run", folder + "/run", f"train.budget.steps={steps}"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*words, *QUIET, *settings], check=True, stdout=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="Python interpreter of the old version")
    parser.add_argument("new", help="Python interpreter of the new version")
    parser.add_argument("recipes", nargs="*", default=[*RECIPES], metavar="RECIPE")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("| recipe | steps | old, ms | new, ms | ratio |\n|---|---:|---:|---:|---:|")
    for recipe in arguments.recipes:
        few, many, settings = RECIPES[recipe]
        times: dict[str, list[float]] = {arguments.old: [], arguments.new: []}
        for _ in range(arguments.rounds):
            for python, found in times.items():
                longer, shorter = (cpu_seconds(python, recipe, steps, settings) for steps in (many, few))
                found.append((longer - shorter) / (many - few))
        old, new = min(times[arguments.old]), min(times[arguments.new])
        print(f"| `{recipe}` | {many - few:,} | {old * 1e3:.2f} | {new * 1e3:.2f} | {new / old:.2f} |", flush=True)


if __name__ == "__main__":
    main()
