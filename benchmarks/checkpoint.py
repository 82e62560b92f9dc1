"""The cost of a checkpoint: a save compared with a plain `safetensors` write, and how long training waits.

    python benchmarks/checkpoint.py                # Transformer-base and its Adam state, about 760 MB, on the CPU
    python benchmarks/checkpoint.py --device cuda
    python benchmarks/checkpoint.py --size small --json result.json

The same tensors are written in turn, round after round, by `save_file` alone, by `save_file` with an fsync of files and
folders, and by Heedful, which also checks that all is finite, hashes every byte and seals the folder. All three write a
new folder and then delete their oldest but two. Then a model trains three times: without saves, with saves that wait,
and with saves in the background. Times are medians; the longest step stands beside the longest of a run without saves.
The folder of --folder (here, by default) must be on a real disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import torch
from safetensors.torch import save_file

from heedful.files import writing as files
from heedful.models import build
from heedful.models.transformer.config import TransformerConfig
from heedful.training.checkpoint.folder import RunFolder
from heedful.training.checkpoint.saver import Saver

SIZES = {
    "base": TransformerConfig(vocab=37_000, width=512, heads=8, encoder_layers=6, decoder_layers=6, hidden=2048),
    "small": TransformerConfig(vocab=8_000, width=256, heads=4, encoder_layers=3, decoder_layers=3, hidden=1024),
}
KEPT = 2  # checkpoints that every contender leaves in its folder
GOAL = 1.3
Tensors = dict[str, dict[str, torch.Tensor]]


class Training:
    """A model that learns random pairs, one small batch a step."""

    def __init__(self, size: str, device: str) -> None:
        torch.manual_seed(0)
        config = SIZES[size]
        self.device = device
        self.model = build(config).to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.source, self.target = torch.randint(4, config.vocab, (2, 8, 16), device=device)
        self.step()

    def step(self) -> None:
        """One step, done when the call returns."""
        logits, _ = self.model(self.target[:, :-1], self.model.start(self.source))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.target[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        loss.item()

    def tensors(self) -> Tensors:
        """All that a checkpoint holds."""
        model = {name: value.detach() for name, value in self.model.state_dict().items()}
        states = ((name, self.optimizer.state[weight]) for name, weight in self.model.named_parameters())
        return {
            "model": model,
            "optimizer": {f"{key}.{n}": value for n, state in states for key, value in state.items()},
        }


def plain_save(folder: Path, tensors: Tensors, synced: bool) -> float:
    """Write a new folder with `save_file` and delete the oldest but two; the seconds of the deleting are returned."""
    path = folder / f"step-{time.time_ns()}"
    path.mkdir()
    for stem, group in tensors.items():
        save_file(group, path / f"{stem}.safetensors")
    for written in [*path.iterdir(), path, folder] if synced else []:
        descriptor = os.open(written, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    begin = time.perf_counter()
    for old in sorted(folder.iterdir())[:-KEPT]:
        shutil.rmtree(old)
    return time.perf_counter() - begin


def our_save(run: RunFolder, tensors: Tensors, step: int) -> float:
    """Save as a run does, and return the seconds of the deleting."""
    spent, discard = [0.0], files.delete_tree

    def timed_discard(path: Path) -> None:
        begin = time.perf_counter()
        discard(path)
        spent[0] = time.perf_counter() - begin  # the outermost call ends last

    files.delete_tree = timed_discard
    try:
        run.save(step, tensors, {"step": step}, {"seed": 0})
    finally:
        files.delete_tree = discard
    return spent[0]


def time_saves(folder: Path, run: RunFolder, tensors: Tensors, rounds: int) -> dict[str, Any]:
    """Seconds of each contender: of all, and of writing alone, without the deleting."""
    contenders: dict[str, Callable[[int], float]] = {
        "plain": lambda step: plain_save(folder / "plain", tensors, synced=False),
        "synced": lambda step: plain_save(folder / "synced", tensors, synced=True),
        "heedful": lambda step: our_save(run, tensors, step),
    }
    for name in ("plain", "synced"):
        (folder / name).mkdir()
    whole: dict[str, list[float]] = {name: [] for name in contenders}
    writing: dict[str, list[float]] = {name: [] for name in contenders}
    for step in range(1, rounds + KEPT + 2):
        for name, save in contenders.items():
            os.sync()
            begin = time.perf_counter()
            deleting = save(step)
            seconds = time.perf_counter() - begin
            if step > KEPT + 1:  # the first rounds have nothing to delete and find cold memory
                whole[name].append(seconds)
                writing[name].append(seconds - deleting)
    return {
        name: {
            "seconds": statistics.median(whole[name]),
            "writing": statistics.median(writing[name]),
            "spread": (max(whole[name]) - min(whole[name])) / statistics.median(whole[name]),
        }
        for name in contenders
    }


def time_copy(tensors: Tensors, device: str) -> float:
    """The seconds of a copy of all tensors to memory that is there already."""
    given = [tensor for group in tensors.values() for tensor in group.values()]
    rooms = [torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda) for tensor in given]
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        for room, tensor in zip(rooms, given, strict=True):
            room.copy_(tensor, non_blocking=True)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def time_steps(training: Training, saver: Saver | None, first: int, steps: int, every: int) -> list[float]:
    """The seconds of each step, with the save after it if one is due."""
    times = []
    for step in range(first + 1, first + steps + 1):
        begin = time.perf_counter()
        training.step()
        if saver is not None and step % every == 0:
            saver.save(step, training.tensors(), {"step": step}, {"seed": 0})
            saver.finished()
        times.append(time.perf_counter() - begin)
    if saver is not None:
        saver.wait()
        saver.finished()
    return times


def time_loop(training: Training, run: RunFolder, saves: int, every: int) -> dict[str, Any]:
    """Steps without saves, with saves that wait, and with saves in the background."""
    steps, found = saves * every, {}
    for number, (name, background) in enumerate({"none": None, "waiting": False, "background": True}.items(), 1):
        saver = None if background is None else Saver(run, background)
        if saver is not None:  # the first save finds cold memory
            saver.save(number * steps * 10 - 1, training.tensors(), {}, {})
            saver.wait()
        times = time_steps(training, saver, number * steps * 10, steps, every)
        found[name] = {
            "median": statistics.median(times),
            "longest": max(times),
            "with_save": statistics.median(times[every - 1 :: every]),
            "seconds": sum(times),
        }
    return found


def report(found: dict[str, Any]) -> None:
    saves, loop, copy = found["saves"], found["loop"], found["copy"]
    print(
        f"\n{found['bytes'] / 1e6:,.0f} MB in {found['tensors']} tensors, {found['device']}, {found['threads']} threads"
    )
    print(f"{'a save':<34} {'seconds':>8} {'ratio':>7}   {'writing alone':>13} {'ratio':>7}   spread")
    titles = {"plain": "save_file", "synced": "save_file, fsync", "heedful": "heedful"}
    for name, title in titles.items():
        ratios = [saves[name][key] / saves["synced"][key] for key in ("seconds", "writing")]
        whole = f"{saves[name]['seconds']:>8.3f} {ratios[0]:>6.2f}x"
        print(f"{title:<34} {whole}   {saves[name]['writing']:>13.3f} {ratios[1]:>6.2f}x   {saves[name]['spread']:.0%}")
    print(f"goal: at most {GOAL}x of save_file with fsync\n")
    print(
        f"{'a training loop, saves':<34} {'median':>8} {'with save':>10} {'longest':>8}   longest - median step - copy"
    )
    for name, times in loop.items():
        over = times["longest"] - loop["none"]["median"] - copy
        row = f"{times['median']:>8.3f} {times['with_save']:>10.3f} {times['longest']:>8.3f}   {over:+.3f}"
        print(f"{name:<34} {row}")
    print(f"the copy alone takes {copy:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--rounds", type=int, default=11, help="saves of each contender that are counted")
    parser.add_argument("--saves", type=int, default=6, help="saves in each training loop")
    parser.add_argument("--every", type=int, default=10, help="steps between two saves")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write")
    parser.add_argument("--json", type=Path, help="write all numbers here as JSON")
    options = parser.parse_args()
    training = Training(options.size, options.device)
    tensors = training.tensors()
    values = [tensor for group in tensors.values() for tensor in group.values()]
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "size": options.size,
        "bytes": sum(tensor.nbytes for tensor in values),
        "tensors": len(values),
        "load_before": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        with RunFolder.create_or_open(folder / "run", "benchmark: checkpoint\n", keep=KEPT) as run:
            found["saves"] = time_saves(folder, run, tensors, options.rounds)
            found["copy"] = time_copy(tensors, options.device)
            found["loop"] = time_loop(training, run, options.saves, options.every)
    found["load_after"] = os.getloadavg()[0]
    report(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
