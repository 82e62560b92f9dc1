"""Captions of Flickr8k: soft and hard attention, a Transformer and no attention, with three seeds each.

    python benchmarks/captions_results.py --root PATH --out captions.json           # on a GPU, twelve runs at a time
    python benchmarks/captions_results.py --root PATH --quick                       # a few steps on a CPU: that it runs

The recipe `flickr8k`, whose image encoder is trained with the decoder on the 6,000 training images: images of 96 x 96,
a map of 6 x 6. The last checkpoint of each run is scored on the 1,000 development images by beam search; nothing is
selected on them. All runs have a process of their own and share the device.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
sys.path.insert(0, str(SOURCE))

ATTENTION = "model.decoder.attention"
VARIANTS: dict[str, list[str]] = {
    "soft attention": [],
    "hard attention": [f"{ATTENTION}={{kind: hard, score: additive}}"],
    "Transformer": [
        "model.decoder={kind: transformer, width: 256, heads: 4, layers: 3, hidden: 1024}", "model.dropout=0.3",
    ],
    "no attention": [f"{ATTENTION}=null"],
}  # fmt: skip
SCORES = ("bleu1", "bleu4", "rouge_l", "cider_d")


def train(root: str, variant: str, seed: int, steps: int, quick: bool) -> dict[str, Any]:
    """One run: its scores on the development images, and its minutes."""
    import heedful
    from heedful.tasks import task_of
    from heedful.tasks.base import HeldOut

    settings = [
        f"data.root={root}",
        f"train.seed={seed}",
        f"train.budget.steps={steps}",
        "train.use=last",
        *VARIANTS[variant],
    ]
    settings += [f"train.evaluate_every={steps + 1}", f"train.save_every={steps}", "train.threads=1"]
    if quick:
        settings += ["train.batch_examples=8", "data.size=[32, 32]", "model.encoder.size=[32, 32]", "decode.beams=1"]
        settings += ["model.encoder.widths=[8, 8, 8]", "train.log_every=1"]
    recipe = heedful.load_recipe("flickr8k", settings)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for _ in heedful.train(recipe, Path(folder, "run")):
            pass
        minutes = (time.perf_counter() - begin) / 60
        captioner: Any = heedful.load(Path(folder, "run"))
        task: Any = task_of(recipe)
        read = task.read("valid")
        read = type(read)(read.pixels[:50], read.captions[:50], read.names[:50]) if quick else read
        encoded = task.encode(read, captioner.tokenizer)
        result = task.evaluate(captioner, HeldOut(read, encoded, task.loss(captioner, encoded), steps, "valid"))
    scores = {score.name: score.value for score in result.scores}
    samples = [list(sample) for sample in result.samples]
    return {"scores": scores, "loss": result.loss, "minutes": minutes, "samples": samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True, help="folder of Flickr8k's files, see the recipe")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=12, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=1e9, help="end what still runs then; results so far are kept")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--one", nargs=2, metavar=("VARIANT", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps = 2 if options.quick else options.steps
    if options.one:
        found = train(options.root, options.one[0], int(options.one[1]), steps, options.quick)
        print("RESULT " + json.dumps(found))
        return
    command = [sys.executable, __file__, "--root", options.root, "--steps", str(steps), *["--quick"] * options.quick]
    environment = os.environ | {"PYTHONPATH": str(SOURCE) + os.pathsep + os.environ.get("PYTHONPATH", "")}
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    seeds = range(1 if options.quick else options.seeds)
    names = [(variant, seed) for seed in seeds for variant in VARIANTS]
    begin, results = time.perf_counter(), dict[str, list[dict[str, Any]]]()
    waiting, running = list(names), dict[tuple[str, int], subprocess.Popen[str]]()
    while waiting or running:
        while waiting and len(running) < (1 if options.quick else options.jobs):
            name = waiting.pop(0)
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "env": environment}
            running[name] = subprocess.Popen([*command, "--one", name[0], str(name[1])], **pipes)
        time.sleep(1)
        minutes = (time.perf_counter() - begin) / 60
        for name in [name for name, child in running.items() if child.poll() is not None]:
            out, _ = running.pop(name).communicate()
            lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
            if not lines:
                print(f"{name[0]}, seed {name[1]}, failed; its errors are above", flush=True)
                continue
            results.setdefault(name[0], []).append({"seed": name[1], **json.loads(lines[0][7:])})
            print(f"{name[0]}, seed {name[1]}: done after {minutes:.1f} minutes", flush=True)
            if options.out:
                found = {"steps": steps, "minutes": minutes, "runs": results}
                options.out.write_text(json.dumps(found, indent=1) + "\n")
        if minutes > options.minutes:
            print(f"out of time: {len(waiting) + len(running)} runs are not measured", flush=True)
            for child in running.values():
                child.kill()
            break
    heads = "".join(f"{name:>17}" for name in SCORES)
    print(f"\n{'decoder':<16}{heads}{'loss':>9}{'minutes':>9}")
    for variant, runs in results.items():
        cells = []
        for name in SCORES:
            values = [run["scores"][name] for run in runs]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}")
        means = [statistics.mean(run[name] for run in runs) for name in ("loss", "minutes")]
        print(f"{variant:<16}{''.join(f'{cell:>17}' for cell in cells)}{means[0]:>9.3f}{means[1]:>9.2f}")
    for variant, runs in results.items():
        print(f"\n{variant}: " + "; ".join(sample[2] for sample in runs[0]["samples"][:3]))


if __name__ == "__main__":
    main()
