"""Image models compared with timm in the same run: training steps and loading on a GPU, inference on a CPU.

    python benchmarks/vision.py --only speed --out speed.json      # a GPU: ResNet-50 and ViT-B/16, bf16, 224 x 224
    python benchmarks/vision.py --only loader --out loader.json    # a GPU: both fed from a folder of JPEGs
    python benchmarks/vision.py --only cpu --out cpu.json          # ResNet-18 and ViT-tiny, with onnxruntime
    python benchmarks/vision.py --quick                            # all of it in small, to see that it works

Speed: timm runs compiled, with channels_last, autocast, fused AdamW and cuDNN's benchmark mode; its batches lie on the
GPU as bytes, and are normalized in the compiled function. Heedful takes the steps of `heedful train` with
compile: true, copies every batch from the host, clips gradients, and looks at loss and norm after every step. Both
start from the same weights and must have the same loss before the first step. Each has a process of its own; the two
of a model get ready at once, then they are timed one after the other. Times are medians.

Loader: the share of time that the GPU waits, compared with batches that are ready in memory, for JPEGs of two sizes,
and how many images 1 and 8 workers load without it; beside torch's DataLoader with Pillow and, where it is installed,
torchvision. The stall is the larger of what was measured while the workers' stock of batches lasted, and of what
follows from their rate alone.
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
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]
from contenders import time_contenders  # noqa: E402

MODELS = {"resnet-50": ("resnet", "resnet50"), "vit-b16": ("vit", "vit_base_patch16_224")}
GOALS = {"resnet-50": 1.1, "vit-b16": 1.3}
CPU_MODELS = {"resnet-18": ("resnet", "resnet18"), "vit-tiny": ("vit", "vit_tiny_patch16_224")}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SOURCES = {"224 x 224": (224, 224), "375 x 500": (375, 500)}
FIRST = next(iter(SOURCES))  # on which the others train too
CLASSES = 1000
STEPS, REPEATS = 10, 5  # in a measurement, and how many there are
CPU_ROUNDS = {1: 60, 32: 12}  # by the images in a batch


def is_quick() -> bool:
    return "--quick" in sys.argv


def device() -> Any:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@cache
def config_of(name: str) -> Any:
    """The settings of a model; small ones to try."""
    from heedful.models.resnet.config import SIZES as RESNETS
    from heedful.models.vit.config import SIZES as VITS

    sizes = {**RESNETS, **VITS}
    names = {"vit-b16": "vit-base-16", "vit-tiny": "vit-tiny-16"}
    found = sizes[names.get(name, name)].model_copy(update={"classes": CLASSES, "size": (224, 224)})
    return found.model_copy(update={"size": (64, 64)}) if is_quick() and found.kind == "resnet" else found


def images_at_once() -> int:
    return 2 if is_quick() else 256


def ours(name: str) -> Any:
    import torch

    from heedful.models import build

    torch.manual_seed(0)
    return build(config_of(name))


def peer(name: str, models: dict[str, tuple[str, str]]) -> Any:
    """The same model of timm with the same weights."""
    import timm

    from heedful.hub.image_folders import find_image_exchange
    from heedful.hub.rules import write_tensors

    kind, theirs = models[name]
    mine, exchange = ours(name), find_image_exchange(kind)
    assert exchange is not None
    model = timm.create_model(theirs, num_classes=CLASSES)
    state, _ = write_tensors(mine.state_dict(), exchange.tables(mine.config)["timm"])
    model.load_state_dict(state)
    return model


def batches(name: str) -> list[Any]:
    """Four batches of random bytes with random classes."""
    import torch

    generator, count, shape = torch.Generator().manual_seed(1), images_at_once(), config_of(name).input
    made = []
    for _ in range(4):
        pixels = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
        made.append(batch_of(pixels, torch.randint(0, CLASSES, (count,), generator=generator)))
    return made


def batch_of(pixels: Any, targets: Any) -> Any:
    import torch

    from heedful.data.images.labelled_batches import LabelledImageBatch

    count = len(pixels)
    ones = torch.ones(count)
    return LabelledImageBatch(pixels, targets, targets, ones, ones, torch.arange(count), MEAN, STD)


class Prepared:
    """Batches that are ready in memory, in turn."""

    few_shapes = one_shape = True

    def __init__(self, ready: list[Any]) -> None:
        self.ready, self.kind = ready, type(ready[0])

    def at(self, position: int, part: int = 0, parts: int = 1) -> Any:
        return self.ready[position % len(self.ready)]

    def epoch_of(self, position: int) -> int:
        return position // len(self.ready)

    def tokens(self, position: int) -> int:
        return len(self.ready[0].targets)


def wait() -> None:
    """Say that a contender is ready, and wait until it is its turn."""
    print("READY", flush=True)
    sys.stdin.readline()


def synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measured(step: Any, loss: float, warm: int = 10) -> dict[str, Any]:
    """Steps one after the other, as training takes them."""
    import torch

    warm, steps, repeats = (1, 1, 2) if is_quick() else (warm, STEPS, REPEATS)
    for _ in range(warm):
        step()
    synchronize()
    wait()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        synchronize()
        times.append((time.perf_counter() - begin) / steps)
    middle = statistics.median(times)
    memory = torch.cuda.max_memory_reserved() / 2**30 if torch.cuda.is_available() else 0.0
    spread = (max(times) - min(times)) / middle
    return {"rate": images_at_once() / middle, "ms": 1e3 * middle, "spread": spread, "loss": loss, "gib": memory}


# ------------------------------------------------------------------ training steps
def train_peer(name: str) -> dict[str, Any]:
    import torch
    import torch.nn.functional as F

    torch.backends.cudnn.benchmark = True
    where = device()
    model = peer(name, MODELS).to(where, memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=where.type == "cuda")
    data = [(batch.pixels, batch.targets) for batch in (one.to(where) for one in batches(name))]
    mean, std = (torch.tensor(values, device=where)[:, None, None] for values in (MEAN, STD))

    def loss_of(pixels: Any, targets: Any) -> Any:
        x = ((pixels.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(model(x).float(), targets)

    with torch.no_grad():
        first = float(loss_of(*data[0]))
    compiled: Any = loss_of if is_quick() else torch.compile(loss_of, dynamic=False)
    turn = iter(range(10**9))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(where.type, torch.bfloat16):
            loss = compiled(*data[next(turn) % len(data)])
        loss.backward()
        optimizer.step()

    return measured(step, first)


def training(name: str, model: Any, source: Any, workers: int = 0, compiled: Any = None) -> Iterator[Any]:
    """The steps of `heedful train` with compile: true."""
    from heedful.tasks.image_classification.predictor import image_loss
    from heedful.training.configs import Budget, TrainConfig
    from heedful.training.loop import Counters, Step, fit

    config = TrainConfig(
        budget=Budget(steps=10**6), batch_examples=images_at_once(), compile=compiled is not None, precision="bf16",
        workers=workers, evaluate_every=10**6, save_every=10**6,
    )  # fmt: skip
    loss = partial(image_loss, model.training_logits, compiled=compiled)
    events = fit(model, loss, source, config, device(), None, {}, Counters())
    return (event for event in events if isinstance(event, Step))


def compiled_loss() -> Any:
    import torch

    from heedful.tasks.image_classification.predictor import loss_sums

    return None if is_quick() else torch.compile(loss_sums, dynamic=False)


def train_ours(name: str) -> dict[str, Any]:
    import torch

    from heedful.tasks.image_classification.predictor import image_loss

    where = device()
    model, data = ours(name).to(where).train(), batches(name)
    with torch.no_grad():
        first = float(image_loss(model.training_logits, data[0].to(where)).total) / images_at_once()
    steps = training(name, model, Prepared(data), compiled=compiled_loss())
    return measured(partial(next, steps), first)


def matmul_rate() -> float:
    """Operations a second of a large matrix product in bf16."""
    import torch

    size = 256 if is_quick() else 8192
    a, b = (torch.randn(size, size, device=device(), dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(12):
        synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            a @ b
        synchronize()
        times.append((time.perf_counter() - begin) / 10)
    return 2 * size**3 / statistics.median(times[2:])


def operations(name: str) -> int:
    """Operations of a training step for one image: three times those of the forward pass, all of it."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = ours(name).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.map(torch.zeros(1, *config_of(name).input))
    return 3 * int(counter.get_total_flops())


def speed(found: dict[str, Any], out: Path | None) -> None:
    def line(name: str, r: dict[str, Any]) -> str:
        rest = f"{100 * r['spread']:>6.1f} {r['gib']:>6.1f} {r['loss']:>9.4f}"
        return f"{name:<28} {r['ms']:>8.2f} {r['rate']:>8,.0f} {rest}"

    found["matmul"] = matmul_rate()
    if device().type == "cuda":
        import torch

        torch.cuda.empty_cache()
    print(f"{'a training step':<28} {'ms':>8} {'images/s':>8} {'+- %':>6} {'GiB':>6} {'first loss':>9}", flush=True)
    for name in MODELS:
        names = [f"speed {name}: timm", f"speed {name}: heedful"]
        found |= time_contenders(command(), names, line)
        write(found, out)
        theirs, mine = (found[one] for one in names)
        if not (theirs and mine):
            continue
        shares = [operations(name) * one["rate"] / found["matmul"] for one in (mine, theirs)]
        found[f"share {name}"] = shares
        print(
            f"{name}: {theirs['ms'] / mine['ms']:.2f}x timm (goal {GOALS[name]}); {100 * shares[0]:.0f} % of the rate "
            f"of a matrix product ({found['matmul'] / 1e12:.0f} TFLOP/s), timm {100 * shares[1]:.0f} %", flush=True,
        )  # fmt: skip
        if abs(theirs["loss"] - mine["loss"]) > 2e-2:
            print("the contenders are not the same model: their first losses differ", flush=True)
    write(found, out)


# ------------------------------------------------------------------ loading
def write_jpegs(folder: Path, rows: int, columns: int, count: int) -> None:
    """Smooth random pictures with some noise, in ten classes; many files share their bytes."""
    import io

    import numpy as np
    from PIL import Image

    luck, contents = np.random.default_rng(0), []
    for _ in range(20):
        small = luck.integers(0, 256, (rows // 16 + 1, columns // 16 + 1, 3), np.uint8)
        smooth = np.asarray(Image.fromarray(small).resize((columns, rows), Image.Resampling.BICUBIC), np.int16)
        noisy = (smooth + luck.integers(-8, 9, smooth.shape)).clip(0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noisy).save(buffer, "JPEG", quality=90)
        contents.append(buffer.getvalue())
    for number in range(count):
        place = folder / f"class{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06}.jpg").write_bytes(contents[number % len(contents)])


def loading(source: Any, workers: int, own: bool) -> float:
    """Images a second that workers load and augment alone; those of others are started by the source."""
    from heedful.data.workers import BatchIndex, load_batches

    batches = load_batches(source, lambda: (BatchIndex(number) for number in range(10**9)), workers if own else 0)
    warm, taken = 3 * workers, 2 * workers  # each has some batches ready at first
    for _ in range(warm):
        next(batches)
    begin = time.perf_counter()
    for _ in range(taken):
        next(batches)
    seconds = time.perf_counter() - begin
    batches.close()
    return taken * images_at_once() / seconds


class Fed:
    """A model that is trained from several sources, and its rate when batches are ready in memory."""

    def __init__(self, name: str) -> None:
        self.name, self.model, self.compiled = name, ours(name).to(device()).train(), compiled_loss()
        self.whole = self.rate(Prepared(batches(name)), 0)

    def rate(self, source: Any, workers: int) -> float:
        """Images a second."""
        warm, steps = (1, 2) if is_quick() else (16, 48)
        run = training(self.name, self.model, source, workers, self.compiled)
        for _ in range(warm):
            next(run)
        begin = time.perf_counter()
        for _ in range(steps):
            next(run)
        seconds = time.perf_counter() - begin
        run.close()  # type: ignore[attr-defined]
        return steps * images_at_once() / seconds


def loader(found: dict[str, Any], out: Path | None, workers: int) -> None:
    import torch
    from jpeg_loaders import Jpegs, Loaded, changes

    from heedful.data.images.augmentation import Augmentation
    from heedful.data.images.image_spec import ImageSpec
    from heedful.data.images.labelled_batches import LabelledImageBatch, LabelledImageBatches, encode_labelled_images
    from heedful.data.images.sources import ImageFolders

    started, count, shape = time.perf_counter(), 40 if is_quick() else 5_120, config_of("resnet-50").input
    fed = [Fed(name) for name in (["resnet-50"] if is_quick() else MODELS)]
    for one in fed:
        found[f"loader in memory, {one.name}"] = one.whole
        print(f"{one.name + ', ready in memory':<40} {one.whole:>8,.0f} images/s", flush=True)

    def compare(title: str, source: Any, counts: tuple[int, ...], models: list[Fed], own: bool = True) -> None:
        """Rates of some numbers of workers, and stalls with the last."""
        loads = {number: loading(source(number), number, own) for number in counts}
        alone = loads[counts[-1]]
        rates = {one.name: one.rate(source(workers), workers if own else 0) for one in models}
        stalls = {one.name: 1 - min(rates[one.name], alone, one.whole) / one.whole for one in models}
        found[f"loader {title}"] = {"loads": loads, "trains": rates, "stall": stalls}
        parts = [f"{name} {rates[name]:,.0f}, stall {100 * stall:.1f} %" for name, stall in stalls.items()]
        text = ", ".join(f"{loaded:,.0f} by {number}" for number, loaded in loads.items())
        print(f"{title:<52} {text:<24} {'; '.join(parts)}", flush=True)
        write(found, out)

    print(f"{'images/s (goal: a stall of 3 %)':<52} {'workers alone':<24} training", flush=True)
    for title, (rows, columns) in SOURCES.items():
        with tempfile.TemporaryDirectory() as folder:
            write_jpegs(Path(folder, "train"), rows, columns, count)
            settings: dict[str, Any] = {"size": shape[1:], "resample": "bilinear", "keep": "files"}
            images = ImageFolders(root=folder, test=None, **settings).read("train")
            encoded = encode_labelled_images(images, ImageSpec(shape, images.names, MEAN, STD))
            for name, augmentation in (
                ("crop, flip", Augmentation(crop=16, flip=0.5)),
                ("resized crop, flip", Augmentation(resized_crop=(0.25, 1.0), flip=0.5)),
            ):
                ready = LabelledImageBatches(encoded, 0, images_at_once(), augmentation=augmentation)
                counts, models = ((1, workers), fed) if name == "crop, flip" else ((workers,), [])
                compare(f"{title}, {name}: heedful", lambda number, ready=ready: ready, counts, models)
            for name, change in changes(shape[1:]).items():
                data = Jpegs(Path(folder, "train"), shape[1:], change)

                def plain(number: int, data: Jpegs = data) -> Loaded:
                    return Loaded(data, images_at_once(), number, LabelledImageBatch, batch_of)

                compare(f"{title}, crop, flip: {name}", plain, (workers,), fed if title == FIRST else [], own=False)
    found["loader seconds"] = time.perf_counter() - started
    print(f"{found['loader seconds']:.0f} s", flush=True)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# ------------------------------------------------------------------ inference on a CPU
def infer(name: str, how: str, count: int) -> None:
    """Batches one by one, each when the parent asks for it; prints the seconds of each."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    images = torch.randn(count, *config_of(name).input, generator=torch.Generator().manual_seed(2))
    makers = {"heedful": infer_ours, "timm": infer_peer, "onnxruntime": infer_onnx}
    run = makers[how.partition(" ")[0]](name, how, images)
    with torch.inference_mode():
        logits = torch.as_tensor(run()).float()
        run()
        print(f"READY {float(logits.sum())}", flush=True)
        for _ in sys.stdin:
            begin = time.perf_counter()
            run()
            print(time.perf_counter() - begin, flush=True)


def infer_ours(name: str, how: str, images: Any) -> Any:
    """As `classifier.for_cpu()` and `for_cpu(bf16=True)` do it."""
    import torch

    from heedful.blocks.folded import fold

    half = torch.bfloat16 if how.endswith("bf16") else torch.float32
    return partial(fold(ours(name), half), images.to(half))


def infer_peer(name: str, how: str, images: Any) -> Any:
    import torch

    half = torch.bfloat16 if how.endswith("bf16") else torch.float32
    model = peer(name, CPU_MODELS).eval().to(half).to(memory_format=torch.channels_last)
    return partial(model, images.to(half).to(memory_format=torch.channels_last))


def infer_onnx(name: str, how: str, images: Any) -> Any:
    import onnxruntime as ort
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.onnx"))
        torch.onnx.export(peer(name, CPU_MODELS).eval(), (images,), path, dynamo=False, opset_version=17)
        options = ort.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # not while others are timed
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name_in, array = session.get_inputs()[0].name, images.numpy()
    return lambda: session.run(None, {name_in: array})[0]


def in_turns(names: list[str], rounds: int) -> dict[str, Any]:
    """The times of contenders that run one batch each in turn, so that a busy machine is as busy for all."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = {name: subprocess.Popen([*command(), "--contender", name], **pipes) for name in names}
    sums = {}
    for name, child in children.items():
        ready = next((line for line in child.stdout if line.startswith("READY ")), None)
        if ready is None:
            sys.exit(f"{name} failed; its errors are above")
        sums[name] = float(ready.split()[1])
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, child in children.items():
            child.stdin.write("go\n")
            child.stdin.flush()
            times[name].append(float(child.stdout.readline()))
    for child in children.values():
        child.communicate()
    return {
        name: {"ms": 1e3 * statistics.median(found), "least_ms": 1e3 * min(found), "sum": sums[name], "rounds": rounds}
        for name, found in times.items()
    }


def cpu(found: dict[str, Any], out: Path | None) -> None:
    ways = ("timm fp32", "timm bf16", "onnxruntime", "heedful fp32", "heedful bf16")
    print(f"{'inference on a CPU':<36} {'ms':>9} {'least ms':>9} {'images/s':>9} {'sum':>10}", flush=True)
    for name in CPU_MODELS:
        for count in (1, 2 if is_quick() else 32):
            names = [f"cpu {name}: {how}: {count}" for how in ways]
            results = in_turns(names, 2 if is_quick() else CPU_ROUNDS[count])
            for one, r in results.items():
                rate = 1e3 * count / r["ms"]
                print(f"{one:<36} {r['ms']:>9.2f} {r['least_ms']:>9.2f} {rate:>9.1f} {r['sum']:>10.3f}", flush=True)
            found |= results
            write(found, out)


def command() -> list[str]:
    return [sys.executable, __file__, *(["--quick"] if is_quick() else [])]


def write(found: dict[str, Any], out: Path | None) -> None:
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["speed", "loader", "cpu"], choices=["speed", "loader", "cpu"])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="small models and batches, to see that it works")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        part, rest = options.contender.split(" ", 1)
        name, how, *count = rest.split(": ")
        if part == "cpu":
            infer(name, how, int(count[0]))
        else:
            print("RESULT " + json.dumps((train_peer if how == "timm" else train_ours)(name)))
        return
    import torch

    what = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = {"torch": torch.__version__, "device": what, "cores": len(os.sched_getaffinity(0))}
    if "speed" in options.only:
        speed(found, options.out)
    if "loader" in options.only:
        loader(found, options.out, 2 if options.quick else options.workers)
    if "cpu" in options.only:
        cpu(found, options.out)


if __name__ == "__main__":
    main()
