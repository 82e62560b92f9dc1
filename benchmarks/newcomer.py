"""From a CSV to a served classifier, as a newcomer types it: the seconds after each command.

python benchmarks/newcomer.py SST-2/train.tsv.gz

The CSV has 6,000 sentences of eight words or more, with an id, a date and the names of the classes.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

ROWS, WORDS = 6000, 8
TEXTS = ["A wonderful film.", "Dull, and far too long."]
HEEDFUL = [sys.executable, "-m", "heedful"]


def write_table(source: Path, target: Path) -> None:
    """A table of reviews, as it may lie around."""
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines][1:]
    rng = random.Random(0)
    chosen = rng.sample([row for row in rows if len(row[0].split()) >= WORDS], ROWS)
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "date", "review", "sentiment"])
        for number, (text, label) in enumerate(chosen, 1):
            day = f"2024-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
            writer.writerow([number, day, text.strip(), "positive" if label == "1" else "negative"])


def ask(port: int) -> list[str]:
    """The labels that the server answers, once it does."""
    body = json.dumps({"inputs": TEXTS}).encode()
    request = Request(f"http://127.0.0.1:{port}/v1/predict", body, {"Content-Type": "application/json"})
    while True:
        with suppress(URLError, ConnectionError), urlopen(request, timeout=60) as answer:
            return [one["label"] for one in json.load(answer)["predictions"]]
        time.sleep(0.2)


def main() -> None:
    source = Path(sys.argv[1]).resolve()
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_table(source, Path("reviews.csv"))
        begin = time.perf_counter()
        for line in (
            "init classify --data reviews.csv", "check classify.yaml", "train classify.yaml", "eval runs/classify",
        ):  # fmt: skip
            out = subprocess.run([*HEEDFUL, *line.split()], check=True, capture_output=True, text=True).stdout
            print(f"{time.perf_counter() - begin:6.1f} s  heedful {line}")
        serve = [*HEEDFUL, "serve", "runs/classify", "--port", str(port)]
        with subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            labels = ask(port)
            print(f"{time.perf_counter() - begin:6.1f} s  heedful serve runs/classify, and an answer: {labels}")
            server.terminate()
    print(out)
    print(f"{os.environ.get('OMP_NUM_THREADS', 'all')} threads, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
