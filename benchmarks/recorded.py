"""Recorded and replayed steps on a CPU compared with ordinary ones, in the training loop of `heedful train`.

    python benchmarks/recorded.py [--rounds 15] [--cores 2] [--out FILE]

Shipped recipes whose steps are recorded, with nothing to download. Each way has a process of its own; all get ready,
then they are timed in turn, round after round. Each takes as many threads as `heedful train` gives it, of the given
cores. Rates are medians of steps a second, and of steps a second of the process's own time on the CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

RECIPES = {"digits": 300, "mnist-dense": 60, "gpt-prose": 5}  # steps of a round
WAYS = ("plain", "recorded")


def work(recipe_name: str, way: str, cores: int) -> None:
    """Take a number of training steps for every line of stdin, and print the seconds they took."""
    import numpy as np
    import torch

    from heedful.models import build
    from heedful.runs.recipe import load_recipe
    from heedful.tasks import task_of
    from heedful.training.loop import Counters, Step, fit
    from heedful.training.step import RecordedStep

    given = [
        "train.device=cpu",
        "train.budget={steps: 1000000}",
        "train.save_every=1000000",
        "train.evaluate_every=1000000",
    ]
    if recipe_name == "mnist-dense":  # synthetic images take as long
        place = Path(tempfile.mkdtemp()) / "images.npy"
        np.save(place, np.random.default_rng(0).integers(0, 256, (6000, 28, 28), dtype=np.uint8))
        given.append(f"data={{kind: array, root: {json.dumps(str(place.parent))}, train: {{file: {place.name}}}}}")
    recipe = load_recipe(recipe_name, given)
    task: Any = task_of(recipe)
    read = task.read("train")
    vocabulary = task.learn(read)
    encoded = task.encode(read, vocabulary)
    torch.manual_seed(0)
    model = build(task.fitted(recipe.model, vocabulary, "model"))
    torch.set_num_threads(task.threads(model, cores))
    loss_of, batches = task.loss_of(model, False), task.batches(encoded, False, False)
    made: list[Any] = []
    former = RecordedStep.__init__

    def noted(self: Any, *args: Any) -> None:
        former(self, *args)
        made.append(self)

    RecordedStep.__init__ = noted  # type: ignore[method-assign]
    events = fit(
        model, loss_of, batches, recipe.train, torch.device("cpu"), None, {}, Counters(), records=way != "plain"
    )
    steps = (event.loss for event in events if isinstance(event, Step))
    first = list(islice(steps, 3))[-1]
    assert bool(made) == (way != "plain"), "steps were not recorded as requested"
    for line in sys.stdin:
        wall, own = time.perf_counter(), time.process_time()
        list(islice(steps, int(line)))
        timing = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - own, "loss": first}
        sys.stdout.write(json.dumps(timing) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Time all ways in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work[0], args.work[1], args.cores)
        return
    found: dict[str, Any] = {"cores": args.cores, "rounds": args.rounds}
    for name, steps in RECIPES.items():
        command = [sys.executable, __file__, "--cores", str(args.cores), "--work", name]
        started = {
            way: subprocess.Popen([*command, way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for way in WAYS
        }
        timings: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for turn in range(args.rounds + 1):
            for way in WAYS if turn % 2 else reversed(WAYS):
                process = started[way]
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(f"{steps}\n")
                process.stdin.flush()
                timings[way].append(json.loads(process.stdout.readline()))
        for process in started.values():
            process.communicate()
        found[name] = {}
        for way in WAYS:
            rates = {
                clock: statistics.median(
                    plain[clock] / one[clock] for plain, one in zip(timings["plain"][1:], timings[way][1:], strict=True)
                )
                for clock in ("wall", "cpu")
            }
            rate = statistics.median(steps / one["wall"] for one in timings[way][1:])
            found[name][way] = {
                "steps a second": rate,
                **{f"times plain, {clock}": value for clock, value in rates.items()},
            }
            print(
                f"{name:11} {way:9} {rate:9.1f} steps/s {rates['wall']:6.2f} x plain {rates['cpu']:6.2f} x in CPU time"
            )
        losses = [timings[way][-1]["loss"] for way in WAYS]
        assert max(losses) - min(losses) < 1e-4 * max(losses), losses
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
