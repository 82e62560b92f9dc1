"""The lecture's autoencoders on a CPU: `heedful train` compared with plain torch and Keras in the same run.

    python benchmarks/autoencoder.py --data FOLDER --keras PYTHON --out FILE
    python benchmarks/autoencoder.py --quick                    # a few synthetic images, as a smoke test

FOLDER holds the files of MNIST; without it the images are made up. Keras is not needed by Heedful: `pip install keras
"jax[cpu]"` here, or name a Python that has it with --keras; a peer that is not installed is skipped with a note.

Dense 784-100-20-100-784 on 60,000 images, and the convolutional denoising net on 2,560 (noise of 0.5, clipped); ReLU,
mean squared error, RMSprop, shuffled batches of 128. Heedful goes through the loop that `heedful train` runs, its data
bytes, its noise sampled in every step and its loss and gradients checked; the others have their images and their noise
ready as floats. Every contender has a process of its own. Heedful's has the variables that `heedful train` sets, and
its loop makes glibc keep its memory; each peer is run as it is, with glibc set the same, and with the variables
too, and the best counts. All get ready, then they are timed in turn, one at a
time, round after round; rates are medians, with the lowest and the highest beside. The loss is the mean over the last
epoch: Keras puts epsilon under the root, the others after it, which makes the dense net learn faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]
from lecture_nets import PARAMETERS, given_to_keras, keras_net, mnist  # noqa: E402

CORES = len(os.sched_getaffinity(0))
BATCH, DEVIATION = 128, 0.5
IMAGES = {"dense": 60_000, "denoising": 2_560}
SET = {"OMP_WAIT_POLICY": "PASSIVE"}  # by `heedful train`
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
DECIDED_HERE = ("OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_", "KERAS_", "XLA_")  # variables that are not handed on

Train = Callable[[int], float]  # epochs -> the mean loss of the last


# ------------------------------------------------------------------ contenders: images (N, 28, 28) in a file -> Train
def heedful(net: str, file: Path, threads: int) -> Train:
    """The steps of `heedful train`, from its own loop, as an experiment calls it."""
    import torch

    from heedful.models import build
    from heedful.runs.recipe import load_recipe
    from heedful.tasks import task_of
    from heedful.training.loop import Counters, Epoch, epochs_to_steps, fit

    recipe = load_recipe(
        f"mnist-{net}",
        [
            f"data={{kind: array, root: {json.dumps(str(file.parent))}, train: {{file: {file.name}}}}}",
            f"train.threads={threads}", "train.device=cpu", "train.budget={epochs: 100000}",
            "train.evaluate_every=1000000000", "train.save_every=1000000000",
        ],
    )  # fmt: skip
    task: Any = task_of(recipe)
    read = task.read("train")
    vocabulary = task.learn(read)
    encoded = task.encode(read, vocabulary)
    torch.manual_seed(recipe.train.seed)
    model: Any = build(task.fitted(recipe.model, vocabulary, "model"))
    require_size(net, sum(weight.numel() for weight in model.parameters()))
    torch.set_num_threads(threads)
    batches, loss_of = task.batches(encoded, False, False), task.loss_of(model, False)
    settings = epochs_to_steps(recipe.train, batches)
    events = fit(model, loss_of, batches, settings, torch.device("cpu"), None, {}, Counters(), records=task.records)

    def train(epochs: int) -> float:
        passed = (event for event in events if isinstance(event, Epoch))
        return [event.loss for event in islice(passed, epochs)][-1]

    return train


def plain(net: str, file: Path, threads: int, loader: bool = False, last: bool = False) -> Train:
    """As people write it: nn.Sequential, and a loop over a DataLoader or over slices of tensors."""
    import numpy as np
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    def conv(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]

    def dense(before: int, after: int) -> list[nn.Module]:
        return [nn.Linear(before, after), nn.ReLU()]

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    images = torch.from_numpy(np.load(file)).float() / 255
    if net == "dense":
        layers = [*dense(784, 100), *dense(100, 20), *dense(20, 100), *dense(100, 784)]
        given = wanted = images.flatten(1)
    else:
        layers = [
            *conv(1, 32), nn.MaxPool2d(2), *conv(32, 32), nn.MaxPool2d(2),
            *conv(32, 32), nn.Upsample(scale_factor=2), *conv(32, 32), nn.Upsample(scale_factor=2), *conv(32, 1),
        ]  # fmt: skip
        wanted = images[:, None]
        given = (wanted + DEVIATION * torch.randn_like(wanted)).clamp(0, 1)
    model = nn.Sequential(*layers)
    require_size(net, sum(weight.numel() for weight in model.parameters()))
    if last:
        model = model.to(memory_format=torch.channels_last)
        given, wanted = (x.contiguous(memory_format=torch.channels_last) for x in (given, wanted))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, eps=1e-7)
    batches = DataLoader(TensorDataset(given, wanted), BATCH, shuffle=True)

    def slices() -> Iterator[tuple[Any, Any]]:
        for rows in torch.randperm(len(given)).split(BATCH):
            some = given[rows]
            yield some, some if wanted is given else wanted[rows]

    def train(epochs: int) -> float:
        for _ in range(epochs):
            total = torch.zeros(())
            for x, y in batches if loader else slices():
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(x)
        return float(total) / len(given)

    return train


def keras(net: str, file: Path, threads: int) -> Train:
    """The lecture's `fit`; jax takes as many threads as there are cores."""
    import keras as library
    import numpy as np

    if library.backend.backend() == "torch":
        import torch

        torch.set_num_threads(threads)
    library.utils.set_random_seed(0)
    given = wanted = given_to_keras(net, np.load(file))
    if net == "denoising":
        given = np.clip(wanted + DEVIATION * np.random.normal(size=wanted.shape), 0, 1).astype("float32")
    model = keras_net(net)
    model.compile(optimizer="RMSprop", loss="mean_squared_error")

    def train(epochs: int) -> float:
        return float(model.fit(given, wanted, batch_size=BATCH, epochs=epochs, verbose=0).history["loss"][-1])

    return train


def require_size(net: str, size: int) -> None:
    """Check that the network has the size of the lecture's."""
    assert size == PARAMETERS[net], (net, size)


CONTENDERS: dict[str, Callable[[str, Path, int], Train]] = {
    "heedful": heedful,
    "torch, DataLoader": lambda *given: plain(*given, loader=True),
    "torch, slices": plain,
    "torch, channels last": lambda *given: plain(*given, last=True),
    "keras on torch": keras,
    "keras on jax": keras,
}
NETS = {"dense": [name for name in CONTENDERS if name != "torch, channels last"], "denoising": list(CONTENDERS)}
GOALS = {
    "dense": {"torch, DataLoader": 2.0, "keras on jax": 1.0},
    "denoising": {"torch, DataLoader": 1.4, "torch, slices": 1.4, "keras on torch": 1.0, "keras on jax": 1.0},
}


def work(name: str, net: str, file: Path, threads: int) -> None:
    """Prepare, then train N epochs for each line N of the input, and print the seconds and the loss."""
    try:
        train = CONTENDERS[name](net, file, threads)
    except ModuleNotFoundError as missing:
        print("RESULT " + json.dumps({"missing": missing.name}), flush=True)
        return
    print("RESULT " + json.dumps({}), flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        loss = train(int(line))
        print("RESULT " + json.dumps({"seconds": time.perf_counter() - begin, "loss": loss}), flush=True)


# ------------------------------------------------------------------ the run
def made_up(count: int) -> Any:
    """Images of bytes with sixteen hidden factors, so that there is something to learn."""
    import numpy as np

    chance = np.random.default_rng(0)
    hidden, mixing = chance.standard_normal((count, 16)), chance.standard_normal((16, 784))
    return (255 / (1 + np.exp(-hidden @ mixing))).astype(np.uint8).reshape(count, 28, 28)


def start_worker(name: str, settings: dict[str, str], net: str, file: Path, options: argparse.Namespace) -> Any:
    """A contender's process; of variables that decide about threads and memory it has only those given here."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(DECIDED_HERE)}
    own |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"} | settings | (KEEP if options.keep else {})
    if name.startswith("keras"):
        own["KERAS_BACKEND"] = name.split()[-1]
    python = options.keras if name.startswith("keras") else sys.executable
    words = [python, __file__, "--threads", str(options.threads), "--contender", name, net, str(file)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own)


def result(child: Any, name: str) -> dict[str, Any]:
    for line in child.stdout:
        if line.startswith("RESULT "):
            return json.loads(line[7:])
    sys.exit(f"{name} failed; its errors are above")


def read_result(child: Any, name: str, epochs: int) -> dict[str, Any]:
    child.stdin.write(f"{epochs}\n")
    child.stdin.flush()
    return result(child, name)


def compare(net: str, file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The rates of all contenders for one network, with every set of environment variables; Heedful sets its own."""
    ways: dict[str, dict[str, str]] = {"defaults": {}, "memory": KEEP, "all": SET | KEEP}
    keys = [(name, way) for name in NETS[net] for way in ways if name != "heedful"] + [("heedful", "own")]
    ways["own"] = SET
    children = {key: start_worker(key[0], ways[key[1]], net, file, options) for key in keys}
    for name, way in keys:
        if missing := result(children[name, way], name).get("missing"):
            print(f"left out: {name} ({way}), for want of {missing}; pip install keras 'jax[cpu]', or see --keras")
            children.pop((name, way)).wait()
    rates: dict[tuple[str, str], list[float]] = {key: [] for key in children}
    losses = {}
    for turn in range(options.warm + options.rounds):
        for key, child in children.items():
            seen = read_result(child, key[0], options.epochs)
            losses[key] = seen["loss"]
            if turn >= options.warm:
                rates[key].append(options.epochs / seen["seconds"])
    for child in children.values():
        child.stdin.close()
        child.wait()
    found: dict[str, Any] = {}
    for (name, way), some in rates.items():
        row = {"rate": statistics.median(some), "low": min(some), "high": max(some), "loss": losses[name, way]}
        found.setdefault(name, {})[way] = row
    return found


def better(ways: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return max(ways.items(), key=lambda item: item[1]["rate"])


def show(net: str, found: dict[str, Any], count: int) -> Iterator[str]:
    """A line for each contender with its best variables, and the relative speed of Heedful."""
    _, mine = better(found["heedful"])
    head = f"{net}, {count:,} images"
    yield f"\n{head:<28} {'epochs/s':>9} {'spread':>18} {'images/s':>10} {'loss':>8}  better with    heedful is"
    for name, ways in found.items():
        way, row = better(ways)
        spread, goal = f"{row['low']:.3f} to {row['high']:.3f}", GOALS[net].get(name)
        ratio = mine["rate"] / row["rate"]
        verdict = "" if goal is None else f", goal {goal:.1f}x {'met' if ratio >= goal else 'MISSED'}"
        beside = "" if name == "heedful" else f"{ratio:.2f}x as fast{verdict}"
        rate = row["rate"]
        yield f"  {name:<26} {rate:>9.3f} {spread:>18} {rate * count:>10,.0f} {row['loss']:>8.4f}  {way:<14} {beside}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the files of MNIST; else synthetic images")
    parser.add_argument("--keras", metavar="PYTHON", default=sys.executable, help="a Python with keras, jax and torch")
    parser.add_argument("--only", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--rounds", type=int, default=7, help="that are timed")
    parser.add_argument("--warm", type=int, default=1, help="rounds before them")
    parser.add_argument("--epochs", type=int, default=3, help="in a round")
    parser.add_argument("--threads", type=int, default=CORES, help="of every contender")
    parser.add_argument("--keep", action="store_true", help="let glibc keep freed memory, for all contenders")
    parser.add_argument("--quick", action="store_true", help="few images and rounds; the rates mean nothing")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--contender", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        name, net, file = options.contender
        work(name, net, Path(file), options.threads)
        return
    if options.quick:
        options.rounds, options.epochs = 2, 1
    import numpy as np

    found: dict[str, Any] = {
        "threads": options.threads, "cores": CORES, "processor": platform.processor() or platform.machine(),
        "images": "MNIST" if options.data else "synthetic", "glibc keeps memory": options.keep,
        "epochs a round": options.epochs, "rounds": options.rounds, "load before": round(os.getloadavg()[0], 2),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        for net in options.only:
            count = IMAGES[net] // 10 if options.quick else IMAGES[net]
            file = Path(place, f"{net}.npy")
            np.save(file, mnist(options.data, "train")[:count] if options.data else made_up(count))
            found[net] = {"images": count, "epochs/s": compare(net, file, options)}
            print("\n".join(show(net, found[net]["epochs/s"], count)), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
