"""Matrix products of inference on a CPU: `heedful.blocks.linear` compared with torch's `F.linear`, in turns.

python benchmarks/linear.py                    # one thread, float32; prints ratios
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import torch
import torch.nn.functional as F

from heedful.blocks.linear import linear

SIZES = ((64, 64), (256, 256), (256, 1024), (768, 768), (768, 3072), (3072, 768))
ROWS = (1, 5, 20, 64, 256, 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'F.linear / heedful, by rows':<28}" + "".join(f"{rows:>8,}" for rows in ROWS), flush=True)
    for width, out in SIZES:
        weight, bias, ratios = torch.randn(out, width), torch.randn(out), []
        for rows in ROWS:
            x = torch.randn(rows, width)
            calls = (lambda x=x: F.linear(x, weight, bias), lambda x=x: linear(x, weight, bias))  # noqa: B023
            times: tuple[list[float], list[float]] = ([], [])
            with torch.inference_mode():
                for turn in range(options.rounds + 3):
                    for call, measured in zip(calls, times, strict=True):
                        begin = time.perf_counter()
                        call()
                        if turn >= 3:
                            measured.append(time.perf_counter() - begin)
            theirs, mine = map(statistics.median, times)
            ratios.append(theirs / mine)
        print(f"{f'{width} x {out}':<28}" + "".join(f"{ratio:>7.2f}x" for ratio in ratios), flush=True)


if __name__ == "__main__":
    main()
