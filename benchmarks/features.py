"""Which layers of BERT are the best features for named entities? Six runs of one recipe on CoNLL-2003, as a table.

    python benchmarks/features.py --start ENCODER --data FOLDER --out features.json

ENCODER is the folder of a trained BERT, of Hugging Face's make or of ours; FOLDER has the three files of CoNLL-2003.
The encoder stays as it is, and a BiLSTM of two layers reads its layers: `heedful train conll-features`. The published
figures are F1 on the development set with BERT-base (cased), the mean of five runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PUBLISHED = {
    "first": 91.0, "last": 94.9, "sum_all": 95.5, "second_to_last": 95.6, "sum_last_four": 95.9,
    "concat_last_four": 96.1,
}  # fmt: skip


def main() -> None:
    """Run the six rows, and print them with the published ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=Path, required=True, help="folder of the encoder")
    parser.add_argument("--data", type=Path, required=True, help="folder with eng.train.gz, eng.testa.gz, eng.testb.gz")
    parser.add_argument("--runs", type=Path, default=Path("runs/features"), help="where the runs go")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--jobs", type=int, default=6, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=9.0, help="that a run may take")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings to change, such as train.seed=1")
    args = parser.parse_args()
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = dict(zip(PUBLISHED, pool.map(lambda features: row(features, args), PUBLISHED), strict=True))
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{'features':<18} {'valid F1':>9} {'test F1':>9} {'published (valid)':>18} {'seconds':>9}")
    for features, found in rows.items():
        scores = " ".join(f"{found[name]:9.2f}" if name in found else f"{'-':>9}" for name in ("valid", "test"))
        print(f"{features:<18} {scores} {PUBLISHED[features]:18.1f} {found['seconds']:9.1f}")


def row(features: str, args: argparse.Namespace) -> dict[str, float]:
    """A run, and the F1 that its record has at the end."""
    run, began = args.runs / features, time.monotonic()
    words = [
        sys.executable, "-m", "heedful", "train", "conll-features", f"start.folder={args.start}",
        f"data.root={args.data}", f"model.features={features}", *args.overrides, "--run", str(run),
    ]  # fmt: skip
    path = os.pathsep.join([str(SOURCE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60 * args.minutes)
        if done.returncode:
            print(f"{features} failed: {done.stderr.strip()[-1500:]}", file=sys.stderr)
    except subprocess.TimeoutExpired:
        print(f"{features} took more than {args.minutes} minutes; the same command resumes", file=sys.stderr)
    found = {"seconds": round(time.monotonic() - began, 1)}
    metrics = run / "metrics.jsonl"
    for line in map(json.loads, metrics.read_text(encoding="utf-8").splitlines() if metrics.is_file() else ()):
        if line["kind"] == "evaluated":
            found[line["split"]] = line["scores"]["f1"]["value"]
    return found


if __name__ == "__main__":
    main()
