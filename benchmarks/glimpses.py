"""Glimpses beside ConvNets of equal compute: MNIST's digits at random places of 60 x 60 pixels, among clutter.

    python benchmarks/glimpses.py FOLDER --out benchmarks/results/glimpses-h200.json           # on one GPU, minutes
    python benchmarks/glimpses.py FOLDER --out quick.json --quick                              # tiny, on the CPU

FOLDER has MNIST's four files in it. A recurrent attention model (Mnih et al., 2014; patches of 12 x 12 at three scales)
is trained with 4, 6 and 8 glimpses, and a ConvNet (LeNet with ReLU and max pooling) with filters such that it takes as
many multiply-adds an image, on the same images in the same order, three seeds each. Recorded are the test error, with
places at their means, the reward (accuracy with sampled places) and the loss by training step, and the length of the
path. Each run is a process; a step is one CUDA graph. A run that reaches --limit seconds ends early, with its learning
rate lowered in time, and says at which step.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from heedful.blocks.losses import Loss  # noqa: E402
from heedful.data.images.cluttered import ClutteredImages  # noqa: E402
from heedful.data.images.image_spec import ImageSpec  # noqa: E402
from heedful.data.images.labelled_batches import (  # noqa: E402
    EncodedLabelledImages,
    LabelledImageBatch,
    encode_labelled_images,
)
from heedful.data.images.normalization import channel_statistics, normalize  # noqa: E402
from heedful.data.images.sources import IdxImages, ImageFiles  # noqa: E402
from heedful.data.order import permutation  # noqa: E402
from heedful.models import build  # noqa: E402
from heedful.models.lenet.config import LeNetConfig  # noqa: E402
from heedful.models.recurrent_attention.config import RecurrentAttentionConfig  # noqa: E402
from heedful.tasks.image_classification.glimpses import glimpse_loss  # noqa: E402
from heedful.tasks.image_classification.predictor import image_loss  # noqa: E402

PAIRS = {4: 4, 6: 5, 8: 6}  # glimpses, and filters of the first convolution of a ConvNet of equal compute
NAMES = [f"{kind}-{count}" for count in PAIRS for kind in ("glimpses", "convnet")]
LR, WARMUP, CLIP = 1e-3, 0.02, 1.0
POINTS = 40  # of a curve


# ------------------------------------------------------------------ data and models
def data_of(folder: Path, copies: int, seed: int = 0) -> ClutteredImages:
    """Cluttered MNIST, with places and pieces of a seed."""
    files = {
        name: ImageFiles(images=f"{part}-images-idx3-ubyte.gz", labels=f"{part}-labels-idx1-ubyte.gz")
        for name, part in (("train", "train"), ("test", "t10k"))
    }
    return ClutteredImages(images=IdxImages(root=str(folder), **files), copies=copies, seed=seed)


def model_of(name: str) -> nn.Module:
    """A model of the table."""
    kind, _, count = name.partition("-")
    if kind == "glimpses":
        return build(RecurrentAttentionConfig(glimpses=int(count), classes=10))
    first = PAIRS[int(count)]
    return build(LeNetConfig(size=(60, 60), filters=(first, 2 * first), activation="relu", pooling="max", classes=10))


def multiply_adds(model: nn.Module) -> int:
    """Multiply-adds of one image, in linear layers and convolutions."""
    total = 0

    def count(module: Any, _: Any, output: Tensor) -> None:
        nonlocal total
        total += output.numel() * module.weight[0].numel()

    layers = [module for module in model.modules() if isinstance(vars(module)["_parameters"].get("weight"), Tensor)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        model.eval()(torch.zeros(1, 1, 60, 60))
    for hook in hooks:
        hook.remove()
    return total


# ------------------------------------------------------------------ training
class Trainer:
    """A model, its optimizer, and a step that is replayed as a CUDA graph."""

    def __init__(self, name: str, known: EncodedLabelledImages, batch: int, device: torch.device) -> None:
        self.model: Any = model_of(name).to(device)
        self.hard: bool = self.model.config.hard
        self.pixels, self.labels = known.pixels.to(device), torch.from_numpy(known.labels).to(device)
        self.spec, self.device, self.size = known.spec, device, batch
        self.lr = torch.tensor(LR, device=device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr, capturable=device.type == "cuda")
        self.rows = torch.zeros(batch, dtype=torch.long, device=device)
        self.ones = torch.ones(batch, device=device)
        self.sums = torch.zeros(2, device=device)  # losses and rewards
        self.graph: Any = None

    def step(self, rows: Tensor) -> None:
        """Learn from the images of these numbers."""
        self.rows.copy_(rows)
        if self.device.type == "cpu":
            self._step()
            return
        if self.graph is None:
            self._capture()
        self.graph.replay()

    def _capture(self) -> None:
        """Record a step, after a few on another stream, whose changes are taken back."""
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self.model.load_state_dict(state)
        for values in self.optimizer.state.values():
            for value in values.values():
                value.zero_()
        self.sums.zero_()
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    def _step(self) -> None:
        batch = self._batch()
        logits = list[Tensor]()
        loss = self._loss(batch, logits)
        self.optimizer.zero_grad(set_to_none=True)
        (loss.total / self.size).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP, foreach=True)
        self.optimizer.step()
        reward = (logits[0].argmax(-1) == batch.targets).sum()
        self.sums += torch.stack([loss.plain.detach(), reward.float()]) / self.size

    def _batch(self) -> LabelledImageBatch:
        targets = self.labels[self.rows]
        mean, std = self.spec.mean, self.spec.std
        return LabelledImageBatch(self.pixels[self.rows], targets, targets, self.ones, self.ones, self.rows, mean, std)

    def _loss(self, batch: LabelledImageBatch, logits: list[Tensor]) -> Loss:
        """The loss of a batch; its logits are added to a list."""

        def head(states: Tensor) -> Tensor:
            logits.append(self.model.head(states))
            return logits[0]

        if self.hard:
            return glimpse_loss(self.model.look, head, batch)
        return image_loss(lambda x: [(1.0, head(self.model.features(x)))], batch)


def factor(share: float) -> float:
    """The learning rate: a linear warmup, then half a cosine down to 0."""
    return share / WARMUP if share < WARMUP else 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def run(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train a model, and test it."""
    device = torch.device(args.device)
    torch.manual_seed(seed)
    data = data_of(args.folder, args.copies)
    read, tests = data.read("train"), data.read("test")
    spec = ImageSpec(read.pixels.shape[1:], read.names, *channel_statistics(read.pixels[:: args.copies]))
    known = encode_labelled_images(read, spec)
    trainer = Trainer(name, known, args.batch, device)
    trainer.model.train()
    curve, begin, step = list[dict[str, float]](), time.perf_counter(), 0
    every = max(1, args.steps // POINTS)
    order = torch.empty(0, dtype=torch.long)
    epoch = 0
    while step < args.steps and (spent := time.perf_counter() - begin) < args.limit:
        if len(order) < args.batch:
            order, epoch = torch.from_numpy(permutation(seed, epoch, len(known))).to(device), epoch + 1
        trainer.lr.fill_(LR * factor(max((step + 1) / args.steps, spent / args.limit)))
        trainer.step(order[: args.batch])
        order, step = order[args.batch :], step + 1
        if step % every == 0:
            loss, reward = (trainer.sums / every).tolist()
            trainer.sums.zero_()
            curve.append({"step": step, "loss": round(loss, 4), "reward": round(reward, 4)})
            ms = 1e3 * (time.perf_counter() - begin) / step
            print(
                f"{name} seed {seed} step {step:,} reward {reward:.3f} {ms:.2f} ms a step", file=sys.stderr, flush=True
            )
    seconds = time.perf_counter() - begin
    found = {"name": name, "seed": seed, "steps": step, "batch": args.batch, "seconds": round(seconds, 1)}
    found |= {"parameters": trainer.model.config.parameters(), "multiply_adds": multiply_adds(model_of(name))}
    return found | test(trainer, encode_labelled_images(tests, spec)) | {"curve": curve}


@torch.inference_mode()
def test(trainer: Trainer, tests: EncodedLabelledImages) -> dict[str, float]:
    """The error in percent, and of glimpses the mean length of a path and of its steps, in pixels."""
    model = trainer.model.eval()
    wrong, lengths, steps = 0, list[Tensor](), list[Tensor]()
    for batch in tests.in_order(1000):
        x = normalize(batch.pixels.to(trainer.device), batch.mean, batch.std)
        wrong += int((model(x).argmax(-1).cpu() != batch.targets).sum())
        if trainer.hard:
            moved = (30 * model.look(x).places.diff(dim=1)).norm(dim=-1)  # (B, T - 1)
            lengths.append(moved.sum(1))
            steps.append(moved.mean(0))
    found = {"error": round(100 * wrong / len(tests), 3)}
    if trainer.hard:
        found["path"] = round(float(torch.cat(lengths).mean()), 2)
        found |= {f"move{n}": round(v, 2) for n, v in enumerate(torch.stack(steps).mean(0).tolist(), 1)}
    return found


# ------------------------------------------------------------------ all of them
def main() -> None:
    """Run all, several at a time, and write their results and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="MNIST's files")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--names", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--steps", type=int, default=8_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--copies", type=int, default=4, help="images made of each training image")
    parser.add_argument("--limit", type=float, default=300, help="seconds of training of one run, at most")
    parser.add_argument("--jobs", type=int, default=18, help="runs at a time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a few steps of two models on the CPU")
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.device, args.steps, args.batch, args.copies, args.jobs = "cpu", 30, 64, 1, 1
        args.seeds, args.names = args.seeds[:1], ["glimpses-4", "convnet-4"]
    if args.worker:
        torch.set_num_threads(1)
        print(json.dumps(run(args.worker[0], int(args.worker[1]), args)))
        return
    found = in_parallel([(name, seed) for name in args.names for seed in args.seeds], args)
    report = {"settings": {key: str(value) for key, value in vars(args).items() if key != "worker"}}
    if args.device == "cuda":
        report["settings"]["gpu"] = torch.cuda.get_device_name()
    rows = table(found)
    args.out.write_text(json.dumps(report | {"table": rows, "runs": found}, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(json.dumps(row))


def in_parallel(jobs: list[tuple[str, int]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """The results of all jobs, each in a process of its own, `args.jobs` at a time."""
    given = [str(args.folder), "--out", str(args.out), "--device", args.device]
    given += [f"--{name}={getattr(args, name)}" for name in ("steps", "batch", "copies", "limit")]
    waiting, running, found = list(jobs), dict[tuple[str, int], subprocess.Popen[str]](), list[dict[str, Any]]()
    while waiting or running:
        while waiting and len(running) < args.jobs:
            name, seed = waiting.pop(0)
            command = [sys.executable, __file__, *given, "--worker", name, str(seed)]
            running[name, seed] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for job, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[job]
            output = process.stdout.read() if process.stdout else ""
            if process.returncode:
                print(f"{job} failed with {process.returncode}", file=sys.stderr)
            else:
                found.append(json.loads(output.splitlines()[-1]))
        time.sleep(0.2)
    return sorted(found, key=lambda one: (NAMES.index(one["name"]), one["seed"]))


def table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds, and the spread of the error."""
    rows = []
    mean: Callable[[list[float]], float] = lambda values: round(statistics.mean(values), 3)  # noqa: E731
    for name in NAMES:
        runs = [one for one in found if one["name"] == name]
        if not runs:
            continue
        errors = [one["error"] for one in runs]
        row = {"name": name, "multiply_adds": runs[0]["multiply_adds"], "parameters": runs[0]["parameters"]}
        row |= {"error": mean(errors), "errors": errors, "steps": mean([one["steps"] for one in runs])}
        rows.append(row | ({"path": mean([one["path"] for one in runs])} if "path" in runs[0] else {}))
    return rows


if __name__ == "__main__":
    main()
