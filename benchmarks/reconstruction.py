"""The lecture's loss curves: Heedful's recipes and Keras with the same settings on the same images, seed by seed.

    python benchmarks/reconstruction.py --data FOLDER --only dense                    # 50 epochs, three seeds, on a CPU
    python benchmarks/reconstruction.py --data FOLDER --only denoising --epochs 3
    python benchmarks/reconstruction.py --data FOLDER --only denoising conv --device cuda --jobs 4

FOLDER holds the four files of MNIST. Keras is not needed by Heedful: `pip install keras "jax[cpu]"` here, or name a
Python that has it with --keras; on a GPU it runs on torch. Both sides train with RMSprop, the mean squared error and
batches of 128 in float32, and the dense net once more with batches of 32. Each is run with epsilon under the root, as
Keras has had it since 2.11, and after the root, as it had it when the lecture was written. Losses are means over an
epoch, as Keras prints them. The denoising net of Keras is trained on noise sampled once, as printed in the lecture, and
on noise sampled again for each epoch, which is what Heedful does. Nets that end in a ReLU can die at the first steps,
Keras as with us, and then put out black images; such seeds are named, and left out of the ranges.

Every run is a process of its own; what it came to is kept in a JSON file at once, and runs that are in it are not done
again, so that the sides can be run apart, and a call that ran out of time is resumed by the next.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent)]
from lecture_nets import PARAMETERS, given_to_keras, keras_net, keras_rmsprop, mnist  # noqa: E402

PRINTED = {  # in the lecture, by epoch
    "dense": {"1": 0.0390, "2": 0.0281, "49": 0.0145, "50": 0.0145},
    "denoising": {"1": 0.0293, "2": 0.0162, "3": 0.0144, "49": 0.0106, "50": 0.0106},
}
PLACES, SIDES, DEVIATION = ("under_root", "after_root"), ("ours", "keras"), 0.5
DARK = 0.1  # a black image is 0.112 away from one of MNIST


@dataclass(frozen=True)
class Run:
    """One training: its network, its library and its settings."""

    net: str
    side: str
    batch: int
    eps_place: str
    noise: str  # none, printed or fresh
    epochs: int
    seed: int

    @property
    def name(self) -> str:
        return "/".join(map(str, asdict(self).values()))


def selected_losses(losses: list[float]) -> dict[str, float]:
    """The losses that the lecture prints: of the first three epochs and of the last two."""
    numbers = sorted({1, 2, 3, len(losses) - 1, len(losses)} & set(range(1, len(losses) + 1)))
    return {str(number): round(losses[number - 1], 6) for number in numbers}


# ------------------------------------------------------------------ the two sides
def heedful(run: Run, data: Path, device: str, until: float) -> dict[str, Any]:
    """The losses of `heedful train`, from the files of the run."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        words = [
            sys.executable, "-m", "heedful", "train", f"mnist-{run.net}", "--run", str(folder),
            f"data.root={data.resolve()}", f"train.seed={run.seed}", f"train.device={device}", "train.precision=fp32",
            f"train.batch_examples={run.batch}", f"train.optimizer.eps_place={run.eps_place}",
            f"train.budget.epochs={run.epochs}", "train.evaluate_every=1000000", "train.save_every=1000000",
        ]  # fmt: skip
        call(words, {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}, until)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        environment = json.loads((folder / "env.json").read_text(encoding="utf-8"))
        test = json.loads((folder / "results.json").read_text(encoding="utf-8"))["loss"]
    losses = [line["loss"] for line in lines if line["kind"] == "epoch"]
    return {
        "losses": selected_losses(losses),
        "test": round(test, 6),
        "with": f"torch {environment['torch']} on {environment['device']}",
    }


def keras_side(run: Run, data: Path, device: str, until: float, python: str) -> dict[str, Any]:
    """The losses of Keras, in its own process."""
    backend = {"KERAS_BACKEND": "torch" if device == "cuda" else "jax", "JAX_PLATFORMS": "cpu"}
    hidden = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    words = [python, __file__, "--data", str(data), "--worker", json.dumps(asdict(run))]
    out = call(words, backend | hidden, until)
    return json.loads(next(line for line in out.splitlines() if line.startswith("RESULT "))[7:])


def call(words: list[str], settings: dict[str, str], until: float) -> str:
    """What a process writes; where it fails, the end of what it complains of."""
    left = max(1.0, until - time.monotonic())
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | settings, timeout=left)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-1500:])
    return done.stdout


def train_keras(run: Run, data: Path) -> dict[str, Any]:
    """The lecture's lines, with its optimizer as it is now or as it was then."""
    import keras
    import numpy as np

    def noisy(x: Any) -> Any:
        if run.noise == "none":
            return x
        return np.clip(x + DEVIATION * np.random.normal(loc=0.0, scale=1.0, size=x.shape), 0, 1).astype("float32")

    keras.utils.set_random_seed(run.seed)
    x, x_test = (given_to_keras(run.net, mnist(data, split)) for split in ("train", "test"))
    net = keras_net(run.net)
    net.compile(optimizer=keras_rmsprop(run.eps_place), loss="mean_squared_error")
    losses: list[float] = []
    given, given_test = noisy(x), noisy(x_test)
    for _ in range(run.epochs if run.noise == "fresh" else 1):
        epochs = 1 if run.noise == "fresh" else run.epochs
        losses += net.fit(given, x, batch_size=run.batch, epochs=epochs, verbose=0).history["loss"]
        given = noisy(x) if run.noise == "fresh" else given
    test = float(net.evaluate(given_test, x_test, batch_size=1000, verbose=0))
    return {"losses": selected_losses(losses), "test": round(test, 6), "with": keras_version(keras)}


def keras_version(keras: Any) -> str:
    """Which Keras it is, and what it runs on."""
    from importlib.metadata import version

    backend = keras.backend.backend()
    device = "cpu"
    if backend == "torch":
        import torch

        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return f"keras {keras.__version__}, {backend} {version(backend)} on {device}"


# ------------------------------------------------------------------ all runs
def wanted(options: argparse.Namespace) -> Iterator[Run]:
    """All requested runs; batches of 32 only for the dense network and the first seed."""
    for net in options.only:
        for seed in options.seeds:
            for batch in options.batch:
                if batch != 128 and (net != "dense" or seed != options.seeds[0]):
                    continue
                for place in options.eps_place:
                    for side in options.side:
                        for noise in noises(net, side):
                            yield Run(net, side, batch, place, noise, epochs_of(net, options), seed)


def epochs_of(net: str, options: argparse.Namespace) -> int:
    return options.epochs or (3 if net != "dense" and options.device == "cpu" else 50)


def noises(net: str, side: str) -> tuple[str, ...]:
    if net != "denoising":
        return ("none",)
    return ("printed", "fresh") if side == "keras" else ("fresh",)


def has_keras(python: str) -> bool:
    """Whether a Python has what the other side needs."""
    look = "import importlib.util as u, sys; sys.exit(not u.find_spec('keras'))"
    return subprocess.run([python, "-c", look]).returncode == 0


def recorded(file: Path) -> dict[str, Any]:
    """What earlier calls came to."""
    return json.loads(file.read_text()) if file.is_file() else {}


def every(options: argparse.Namespace) -> dict[str, Any]:
    """All runs that are not done yet, several at a time, until the time is up."""
    found = recorded(options.out)
    if "keras" in options.side and not has_keras(options.keras):
        print(f"left out: {options.keras} has no keras; pip install keras 'jax[cpu]', or name another with --keras")
        options.side = [side for side in options.side if side != "keras"]
    until = time.monotonic() + 60 * options.minutes

    def done(run: Run) -> dict[str, Any]:
        if run.side == "keras":
            return keras_side(run, options.data, options.device, until, options.keras)
        return heedful(run, options.data, options.device, until)

    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(done, run): run for run in wanted(options) if run.name not in found}
        for future in as_completed(waiting):
            name = waiting[future].name
            try:
                found = recorded(options.out) | {name: future.result()}  # another call may have written meanwhile
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{name} failed: {error}", file=sys.stderr)
                continue
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{name}  {found[name]}", flush=True)
    return found


def summary(found: dict[str, Any], options: argparse.Namespace) -> Iterator[str]:
    """Every loss over the seeds beside what the lecture prints; how far ours is from Keras, and whether ranges meet."""
    both = argparse.Namespace(**vars(options) | {"side": SIDES})
    groups: dict[tuple[Any, ...], dict[str, list[dict[str, float]]]] = {}
    for run in wanted(both):
        if run.name in found:
            one = found[run.name]
            if list(one["losses"].values())[-1] > DARK:
                yield f"left out: {run.name}, whose last ReLU has died: what it puts out is black"
                continue
            row = run.side if run.noise == "none" else f"{run.side}, {run.noise} noise"
            group = groups.setdefault((run.net, run.batch, run.eps_place, run.epochs), {})
            group.setdefault(row, []).append(one["losses"] | {"test": one["test"]})
    for (net, batch, place, epochs), rows in groups.items():
        columns = list(next(iter(rows.values()))[0])
        printed = PRINTED.get(net, {}) if batch == 128 else {}
        yield f"\n{net}, batches of {batch}, epsilon {place.replace('_', ' the ')}, {epochs} epochs"
        yield line("", [column if column == "test" else f"epoch {column}" for column in columns])
        yield line("the lecture", [f"{printed[column]:.4f}" if column in printed else "" for column in columns])
        for name, some in rows.items():
            yield line(f"{name} ({len(some)})", [format_range([one[column] for one in some]) for column in columns])
        mine = next((some for name, some in rows.items() if name.startswith("ours")), [])
        for name, some in rows.items() if mine else ():
            if name.startswith("keras"):
                yield line(f"to {name}", [apart([one[c] for one in mine], [one[c] for one in some]) for c in columns])


def line(name: str, cells: list[str]) -> str:
    return f"  {name:<24}" + "".join(f"{cell:>18}" for cell in cells)


def format_range(values: list[float]) -> str:
    """The middle of what the seeds came to, and how far they are from it."""
    low, high = min(values), max(values)
    return f"{(low + high) / 2:.4f} +- {(high - low) / 2:.4f}"


def apart(mine: list[float], others: list[float]) -> str:
    """How far the means are apart, and, where there are several seeds, whether their ranges meet."""
    meet = min(mine) <= max(others) and min(others) <= max(mine)
    several = min(len(mine), len(others)) > 1
    verdict = ("meet" if meet else "APART") if several else ""
    return f"{statistics.mean(mine) / statistics.mean(others) - 1:+.1%} {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the four files of MNIST")
    parser.add_argument("--only", nargs="+", default=list(PARAMETERS), choices=list(PARAMETERS))
    parser.add_argument("--side", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--batch", nargs="+", type=int, default=[128, 32], choices=[128, 32])
    parser.add_argument("--eps-place", nargs="+", default=list(PLACES), choices=PLACES)
    parser.add_argument("--epochs", type=int, help="else 50, and 3 where the convolutions run on a CPU")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--keras", metavar="PYTHON", default=sys.executable, help="a Python with keras, jax or torch")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which whatever still runs is ended")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "reconstruction.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print("RESULT " + json.dumps(train_keras(Run(**json.loads(options.worker)), options.data)))
        return
    found = every(options)
    print("\n".join(summary(found, options)))


if __name__ == "__main__":
    main()
