"""Accuracy of image models beside plain loops with the same budget, three seeds each, in one run.

    python benchmarks/vision_results.py --data FOLDER --out vision-results.json         # on one GPU, minutes
    python benchmarks/vision_results.py --data FOLDER --only "heedful vit" "plain vit"  # jobs whose names contain it
    python benchmarks/vision_results.py --data FOLDER --quick                           # tiny, on a CPU

FOLDER has mnist/ (the four idx files) and cifar10-subset/ (10,000 training and 2,000 test images) in it.

MNIST: LeNet-5 by the recipe mnist-lenet, and by a loop in plain torch. CIFAR-10's subset: a ResNet of 18 layers in its
small form, half as wide, and ViT-tiny with patches of 4 x 4 pixels, by Heedful and by a loop with timm's models; then
Heedful's again on the first 500, 1,000, 2,500 and 5,000 images, for the same number of steps. Loops have the same
steps, batches, augmentation (random crops of padded images; on CIFAR-10 flips), AdamW, schedule and bf16. Nothing was
tuned on test images. Jobs are processes, several at a time; the JSON file is written after each, and results in it are
not computed again. --minutes ends what still runs then.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

SEEDS = (0, 1, 2)
SIZES = (500, 1000, 2500, 5000, 10_000)
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCH, SMOOTHING = 128, 0.1
BETAS, EPS = (0.9, 0.98), 1e-9  # Heedful's defaults
MODELS: dict[str, dict[str, Any]] = {
    "resnet": {"kind": "resnet", "block": "basic", "depths": [2, 2, 2, 2], "widths": [32, 64, 128, 256],
               "stem": "small", "stem_width": 64, "channels": 3, "size": [32, 32]},
    "vit": {"kind": "vit", "patch": 4, "width": 192, "heads": 3, "layers": 12, "hidden": 768, "channels": 3,
            "size": [32, 32]},
}  # fmt: skip
RATES = {"resnet": (2e-3, 0.05), "vit": (1e-3, 0.05), "lenet": (3e-3, 0.01)}  # learning rate and weight decay


def is_quick() -> bool:
    return "--quick" in sys.argv


def steps_of(name: str) -> int:
    if is_quick():
        return 3
    return 20 * 469 if name == "lenet" else 20 * 79


def warmup_of(name: str) -> int:
    return 200 if name == "lenet" else 150


# ------------------------------------------------------------------ data
def idx(path: Path) -> NDArray[np.uint8]:
    with gzip.open(path) as file:
        content = file.read()
    shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def cifar(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (N, 3, 32, 32) and labels."""
    with lzma.open(path) as file:
        rows = np.frombuffer(file.read(), np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def data(folder: Path, name: str, count: int | None = None) -> dict[str, Any]:
    """Training and test images with their labels; of the training images, the first `count`."""
    if name == "lenet":
        parts = {
            "train": (
                idx(folder / "mnist/train-images-idx3-ubyte.gz"),
                idx(folder / "mnist/train-labels-idx1-ubyte.gz"),
            ),
            "test": (idx(folder / "mnist/t10k-images-idx3-ubyte.gz"), idx(folder / "mnist/t10k-labels-idx1-ubyte.gz")),
        }
        parts = {split: (pixels[:, None], labels) for split, (pixels, labels) in parts.items()}
    else:
        parts = {
            "train": cifar(folder / "cifar10-subset/data_batch_1.bin.xz"),
            "test": cifar(folder / "cifar10-subset/test_batch_first2000.bin.xz"),
        }
    if is_quick():
        count, parts = 300, parts | {"test": tuple(part[:100] for part in parts["test"])}  # type: ignore[dict-item]
    return parts | {"train": tuple(part[:count] for part in parts["train"])}


# ------------------------------------------------------------------ Heedful
def recipe_text(name: str, folder: Path, seed: int) -> str:
    rate, decay = RATES[name]
    shape = [1, 28, 28] if name == "lenet" else [3, 32, 32]
    steps = steps_of(name)
    settings = {
        "task": {"kind": "image_classification", "label_smoothing": 0.0 if name == "lenet" else SMOOTHING},
        "data": {
            "kind": "array", "root": str(folder), "shape": shape,
            "train": {"file": "train.npz", "key": "images", "labels": "labels"},
            "test": {"file": "test.npz", "key": "images", "labels": "labels"},
        },
        "augment": {"crop": 2} if name == "lenet" else {"crop": 4, "flip": 0.5},
        "model": {"kind": "lenet"} if name == "lenet" else MODELS[name],
        "train": {
            "seed": seed, "budget": {"steps": steps}, "batch_examples": BATCH, "clip": 1.0,
            "optimizer": {"lr": rate, "weight_decay": decay, "betas": list(BETAS), "eps": EPS},
            "schedule": {"kind": "cosine", "warmup": warmup_of(name)},
            "log_every": 10**6, "evaluate_every": steps, "save_every": steps, "samples": 0, "use": "last",
        },
    }  # fmt: skip
    return json.dumps(settings)


def train_ours(name: str, folder: Path, count: int | None, seed: int) -> float:
    """The accuracy on the test images."""
    from heedful.runs.fit import fit
    from heedful.runs.recipe import recipe_of

    parts = data(folder, name, count)
    with tempfile.TemporaryDirectory() as place:
        for split, (pixels, labels) in parts.items():
            np.savez(Path(place, f"{split}.npz"), images=pixels, labels=labels.astype(np.int64))
        classifier: Any = fit(recipe_of(recipe_text(name, Path(place), seed), "recipe"), Path(place, "run"))
    pixels, labels = parts["test"]
    found = [int(one.label) for one in classifier.predict(list(pixels), top=1)]
    return float(np.mean(np.array(found) == labels))


# ------------------------------------------------------------------ plain loops
def plain_model(name: str) -> Any:
    from torch import nn

    if name == "lenet":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10),
        )  # fmt: skip
    if name == "resnet":
        from timm.models.resnet import BasicBlock, ResNet

        model = ResNet(BasicBlock, (2, 2, 2, 2), num_classes=10, channels=(32, 64, 128, 256))
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
        return model
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=12, num_heads=3, num_classes=10)


def train_plain(name: str, folder: Path, count: int | None, seed: int) -> float:
    import torch
    import torch.nn.functional as F

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    parts = data(folder, name, count)
    pixels = torch.from_numpy(parts["train"][0].copy()).to(device)
    labels = torch.from_numpy(parts["train"][1].astype(np.int64)).to(device)
    scaled = pixels.float() / 255
    mean, std = (value[:, None, None] for value in (scaled.mean((0, 2, 3)), scaled.std((0, 2, 3))))
    model = plain_model(name).to(device).train()
    rate, decay = RATES[name]
    matrices, vectors = ([w for w in model.parameters() if (w.dim() > 1) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=BETAS, eps=EPS)
    steps, warm, smoothing = steps_of(name), warmup_of(name), 0.0 if name == "lenet" else SMOOTHING
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / warm) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    padding, side = 2 if name == "lenet" else 4, pixels.shape[-1]
    padded = F.pad(pixels, (padding,) * 4)
    order, place = torch.randperm(len(labels), device=device), 0
    for _ in range(steps):
        if place >= len(labels):
            order, place = torch.randperm(len(labels), device=device), 0
        rows = order[place : place + BATCH]
        place += BATCH
        top, left = (torch.randint(0, 2 * padding + 1, (len(rows), 1), device=device) for _ in range(2))
        y, x = top + torch.arange(side, device=device), left + torch.arange(side, device=device)
        images = (
            padded[rows]
            .permute(0, 2, 3, 1)[torch.arange(len(rows), device=device)[:, None, None], y[:, :, None], x[:, None]]
            .permute(0, 3, 1, 2)
        )
        if name != "lenet":
            mirrored = torch.rand(len(rows), 1, 1, 1, device=device) < 0.5
            images = torch.where(mirrored, images.flip(-1), images)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model((images.float() / 255 - mean) / std)
        loss = F.cross_entropy(logits.float(), labels[rows], label_smoothing=smoothing)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    test = torch.from_numpy(parts["test"][0].copy()).to(device)
    with torch.inference_mode():
        found = torch.cat([model((some.float() / 255 - mean) / std).argmax(-1) for some in test.split(500)])
    return float((found.cpu().numpy() == parts["test"][1]).mean())


# ------------------------------------------------------------------ jobs
def jobs() -> list[str]:
    """What is trained, the comparisons first, then Heedful's models by the number of images."""
    seeds = SEEDS[:1] if is_quick() else SEEDS
    sizes = SIZES[:1] if is_quick() else SIZES[::-1]
    ways = ("heedful", "plain")
    return [
        *(f"{how} {name} {sizes[0]} {seed}" for name in ("vit", "resnet") for seed in seeds for how in ways),
        *(f"{how} lenet all {seed}" for seed in seeds for how in ways),
        *(f"heedful {name} {size} {seed}" for seed in seeds for size in sizes[1:] for name in ("vit", "resnet")),
    ]


def run_job(job: str, folder: Path) -> None:
    how, name, count, seed = job.split()
    begin = time.monotonic()
    train = train_ours if how == "heedful" else train_plain
    accuracy = train(name, folder, None if count == "all" else int(count), int(seed))
    print("RESULT " + json.dumps({"accuracy": accuracy, "seconds": time.monotonic() - begin}), flush=True)


def run_all(options: argparse.Namespace, found: dict[str, Any]) -> None:
    end = time.monotonic() + 60 * options.minutes
    waiting = [job for job in jobs() if job not in found and any(part in job for part in options.only)]
    running: dict[str, subprocess.Popen[str]] = {}
    command = [sys.executable, __file__, "--data", str(options.data), *(["--quick"] if is_quick() else [])]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    while waiting or running:
        while waiting and len(running) < options.jobs:
            job = waiting.pop(0)
            running[job] = subprocess.Popen([*command, "--job", job], stdout=subprocess.PIPE, text=True, env=env)
        for job, child in list(running.items()):
            if child.poll() is None:
                continue
            out = child.stdout.read() if child.stdout else ""
            del running[job]
            lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
            if not lines:
                print(f"{job} failed; its errors are above", flush=True)
                continue
            found[job] = json.loads(lines[0][7:])
            print(f"{job:<28} {100 * found[job]['accuracy']:>6.2f} %  {found[job]['seconds']:>5.0f} s", flush=True)
            if options.out:
                write(found, options.out)
        if time.monotonic() > end:
            print(f"time is up; missing: {', '.join([*running, *waiting])}", flush=True)
            for child in running.values():
                child.kill()
            return
        time.sleep(0.2)


def write(found: dict[str, Any], out: Path) -> None:
    """Write the file at once, or leave it as it was."""
    new = out.with_suffix(".new")
    new.write_text(json.dumps(found, indent=1) + "\n")
    new.replace(out)


def summary(found: dict[str, Any]) -> None:
    """Mean and range over the seeds."""
    rows: dict[str, list[float]] = {}
    for job, result in found.items():
        if isinstance(result, dict):
            rows.setdefault(job.rpartition(" ")[0], []).append(100 * result["accuracy"])
    print("\naccuracy in percent: mean, least and greatest over the seeds")
    for name, values in sorted(rows.items()):
        print(f"{name:<24} {statistics.mean(values):>6.2f}  {min(values):>6.2f}  {max(values):>6.2f}  ({len(values)})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist/ and cifar10-subset/")
    parser.add_argument("--jobs", type=int, default=14, help="processes at a time")
    parser.add_argument("--only", nargs="+", default=[""], help="the jobs whose names contain one of these")
    parser.add_argument("--minutes", type=float, default=math.inf, help="when to stop")
    parser.add_argument("--quick", action="store_true", help="a few steps each, to see that it works")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON; those in it are kept")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        run_job(options.job, options.data)
        return
    import torch

    found: dict[str, Any] = {}
    if options.out and options.out.exists():
        found = json.loads(options.out.read_text())
    found |= {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
    run_all(options, found)
    summary(found)


if __name__ == "__main__":
    main()
