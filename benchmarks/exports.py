"""Exported files side by side: sizes, and CPU time beside Heedful's own, of an encoder, a translator and a GPT.

    python benchmarks/exports.py FOLDER          # a folder of sentence-transformers, such as MiniLM-L6

The translator and the GPT have random weights and generate 32 tokens for each text, greedily. Each contender has a
process of its own and one thread, and they take turns; the figure is the least CPU time of a call. `--quick` takes tiny
models.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
os.environ["OMP_NUM_THREADS"] = "1"
LENGTH = 32  # tokens that are generated
TARGETS = {  # contender -> options of `heedful export`
    "onnx": ["--to", "onnx"],
    "onnx int8": ["--to", "onnx", "--int8"],
    "torch.export": ["--to", "torch"],
    "AOTInductor": ["--to", "aotinductor"],
    "CTranslate2": ["--to", "ctranslate2"],
    "CTranslate2 int8": ["--to", "ctranslate2", "--int8"],
}
KINDS = ("translator", "gpt", "encoder")
BATCHES = (1, 16)
ROUNDS = 2


# ------------------------------------------------------------------ models
def make(folder: Path, kind: str, quick: bool) -> None:
    """Write a model folder with random weights and a tokenizer of random words."""
    import torch

    from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2Tokenizer
    from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
    from heedful.models import build, config_class
    from heedful.tasks.language_model.predictor import TextGenerator
    from heedful.tasks.translation.predictor import Translator

    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlucmfw", k=rng.randint(3, 9))) for _ in range(500 if quick else 20_000)]
    vocab, device = 400 if quick else 8000, torch.device("cpu")
    torch.manual_seed(0)
    sizes = {"width": 32, "heads": 2, "context": 128} if quick else {"width": 512, "heads": 8, "context": 128}
    if kind == "translator":
        tokenizer = TrainedTokenizer.train(WordPiece(vocab=vocab), [" ".join(words)])
        layers = {"encoder_layers": 2, "decoder_layers": 2} if quick else {"encoder_layers": 3, "decoder_layers": 3}
        config = config_class("transformer")(vocab=tokenizer.vocab, **sizes, **layers)
        Translator(build(config).eval(), tokenizer, config.context, device).save(folder)
    else:
        text = Gpt2Tokenizer.train(Gpt2Bpe(vocab=vocab), [" ".join(words)])
        config = config_class("gpt")(vocab=text.vocab, **sizes, layers=2 if quick else 4)
        TextGenerator(build(config).eval(), text, device).save(folder)


def texts(count: int) -> list[str]:
    """Texts of 12 words, the same in every process."""
    rng = random.Random(1)
    return [" ".join("".join(rng.choices("etaoinshrd", k=4)) for _ in range(12)) for _ in range(count)]


# ------------------------------------------------------------------ contenders, each in its own process
def ours(kind: str, folder: Path, precision: str) -> Callable[[dict[str, Any]], Any]:
    """Heedful's predictor."""
    import heedful

    predictor: Any = heedful.load(folder, "cpu")
    if kind == "encoder":
        if precision != "fp32":
            predictor = predictor.int8() if precision == "int8" else predictor.bfloat16()
        return lambda given: predictor.embed(given["texts"])
    if kind == "translator":
        predictor.settings = predictor.settings.but(max_length=LENGTH)
        return lambda given: predictor.search(given["texts"], beams=1)
    return lambda given: predictor.generate(given["texts"], length=LENGTH, temperature=0)


def ctranslate2(kind: str, folder: Path) -> Callable[[dict[str, Any]], Any]:
    """CTranslate2, without torch in the process."""
    import ctranslate2 as engine

    names = json.loads((folder / ("shared_vocabulary.json" if kind == "translator" else "vocabulary.json")).read_text())
    options = {**json.loads((folder / "export.json").read_text())["files"][0]["options"], "beam_size": 1}

    def spelled(rows: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[names[number] for number in row] for row in rows]

    if kind == "translator":
        translator = engine.Translator(str(folder), intra_threads=1)
        return lambda given: translator.translate_batch(spelled(given["ids"]), max_decoding_length=LENGTH, **options)
    generator = engine.Generator(str(folder), intra_threads=1)
    options["include_prompt_in_result"] = False
    return lambda given: generator.generate_batch(spelled(given["ids"]), max_length=LENGTH, **options)


def graphs(kind: str, folder: Path, target: str) -> Callable[[dict[str, Any]], Any]:
    """The files of ONNX or of PyTorch, with the loop of the documentation."""
    import numpy as np

    about = {one["file"].partition(".")[0]: one for one in json.loads((folder / "export.json").read_text())["files"]}

    def opened(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        one, path = about[name], str(folder / about[name]["file"])
        if target.startswith("onnx"):
            import onnxruntime

            settings = onnxruntime.SessionOptions()
            settings.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
            taken = {it.name for it in session.get_inputs()}
            outputs = [it.name for it in session.get_outputs()]
            return lambda given: dict(
                zip(outputs, session.run(None, {key: given[key] for key in taken}), strict=True)
            )  # fmt: skip
        import torch

        call: Any = (
            torch.export.load(path).module() if target == "torch.export" else torch._inductor.aoti_load_package(path)  # type: ignore[attr-defined]
        )

        def run(given: dict[str, Any]) -> dict[str, Any]:
            with torch.no_grad():
                found = call(*(torch.as_tensor(given[key]).contiguous() for key in one["inputs"]))
            return dict(zip(one["outputs"], found if isinstance(found, tuple | list) else (found,), strict=True))

        return run

    def padded(given: dict[str, Any]) -> dict[str, Any]:
        rows = given["ids"]
        most = max(map(len, rows))
        ids = np.array([[0] * (most - len(row)) + row for row in rows])
        real = np.array([[0] * (most - len(row)) + [1] * len(row) for row in rows])
        return {"input_ids": ids, "attention_mask": real, "token_type_ids": 0 * ids, "padding": (1 - real).sum(1)}

    if kind == "encoder":
        model = opened("model")
        return lambda given: model(padded(given))["sentence_embedding"]
    start, step = opened("start"), opened("step")

    def greedy(given: dict[str, Any]) -> Any:
        inputs, found = padded(given), []
        outputs = start(inputs)
        tokens = np.full((len(given["ids"]), 1), 2) if kind == "translator" else inputs["input_ids"]
        for _ in range(LENGTH):
            state = {name.replace("next.", "state.", 1): value for name, value in outputs.items()}
            outputs = step({"tokens": tokens, **state})
            tokens = np.asarray(outputs["logits"]).argmax(-1)[:, None]
            found.append(tokens)
        return found

    return greedy


def measure(kind: str, folder: Path, contender: str, given: str) -> None:
    """Print the least CPU milliseconds of a call, for each batch."""
    if contender.startswith("Heedful"):
        import torch

        torch.set_num_threads(1)
        run = ours(kind, folder, contender.partition(" ")[2] or "fp32")
    elif contender.startswith("CTranslate2"):
        run = ctranslate2(kind, folder)
    else:
        run = graphs(kind, folder, contender)
    found = {}
    for count, batch in json.loads(Path(given).read_text()).items():
        seconds = []
        for _ in range(4):
            before = time.process_time()
            run(batch)
            seconds.append(time.process_time() - before)
        found[count] = 1000 * min(seconds[1:])
    print(json.dumps(found))


# ------------------------------------------------------------------ the table
def inputs(kind: str, folder: Path, into: Path) -> None:
    """Write texts and their ids as each contender takes them; of a language model, of one length."""
    import heedful

    predictor: Any = heedful.load(folder, "cpu")
    found = {}
    for count in BATCHES:
        some = texts(count)
        if kind == "encoder":
            ids = predictor.tokenize(some).rows
        elif kind == "translator":
            ids = predictor.source_ids(some)
        else:
            shortest = min(len(predictor.prompt_ids(text)) for text in some)
            ids = [predictor.prompt_ids(text)[:shortest] for text in some]
        found[count] = {"texts": some, "ids": ids}
    into.write_text(json.dumps(found))


def run(*command: str) -> str:
    """The output of a process of this script, or of Heedful."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return done.stdout


def compare(kind: str, folder: Path, work: Path) -> dict[str, Any]:
    """The sizes and times of a model's contenders."""
    given = work / f"{kind}.json"
    run(__file__, "inputs", kind, str(folder), str(given))
    folders = {"Heedful": folder}
    folders |= {"Heedful bf16": folder, "Heedful int8": folder} if kind == "encoder" else {}
    rows: dict[str, Any] = {}
    for name, options in TARGETS.items():
        if kind == "encoder" and name.startswith("CTranslate2"):
            continue
        folders[name] = work / f"{kind}-{name.replace(' ', '-')}"
        start = time.perf_counter()
        run("-m", "heedful", "export", str(folder), str(folders[name]), *options)
        rows[name] = {
            "megabytes": sum(path.stat().st_size for path in folders[name].glob("*") if path.suffix != ".json") / 1e6,
            "export_seconds": time.perf_counter() - start,
        }
        print(kind, name, rows[name], flush=True)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6
    rows = {"Heedful": {"megabytes": size}} | {name: rows.get(name, {"megabytes": size}) for name in folders} | rows
    least: dict[str, dict[str, float]] = {name: {} for name in rows}
    for _ in range(ROUNDS):
        for name in rows:
            found = json.loads(run(__file__, "measure", kind, str(folders[name]), name, str(given)).splitlines()[-1])
            least[name] = {count: min(ms, least[name].get(count, ms)) for count, ms in found.items()}
    for name, row in rows.items():
        row["cpu_ms"] = least[name]
        row["times_heedful"] = {count: least["Heedful"][count] / ms for count, ms in least[name].items()}
        speeds = "  ".join(f"{ms:9.1f} ms {row['times_heedful'][at]:5.2f} x" for at, ms in least[name].items())
        print(f"{kind:<12}{name:<18}{row['megabytes']:8.1f} MB  {speeds}", flush=True)
    return rows


def main() -> None:
    if sys.argv[1:2] == ["measure"]:
        return measure(sys.argv[2], Path(sys.argv[3]), *sys.argv[4:6])
    if sys.argv[1:2] == ["inputs"]:
        return inputs(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    if sys.argv[1:2] == ["make"]:
        return make(Path(sys.argv[3]), sys.argv[2], sys.argv[4] == "quick")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=KINDS, help="one of the models")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {"command": "python benchmarks/exports.py FOLDER", "batches": BATCHES, "tokens": LENGTH}
    out = args.out or RESULTS / f"exports-cpu{'-quick' if args.quick else ''}.json"
    with tempfile.TemporaryDirectory() as work:
        for kind in (args.only,) if args.only else KINDS:
            folder = args.folder if kind == "encoder" else Path(work) / kind
            if kind != "encoder":
                run(__file__, "make", kind, str(folder), "quick" if args.quick else "whole")
            found[kind] = compare(kind, folder, Path(work))
            out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {out}")
    return None


if __name__ == "__main__":
    main()
