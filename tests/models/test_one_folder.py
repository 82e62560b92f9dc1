"""A second encoder is one folder and one line: recipes name it, it is trained, loaded, tuned and exchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import heedful

BERT = Path(heedful.__file__).parent / "models" / "bert"
SCRIPT = """
import sys
from pathlib import Path

import heedful.models
from heedful.models import MODELS, Model

heedful.models.__path__.append(sys.argv[1])
MODELS["twin"] = Model("encoder", "TwinConfig")

import heedful
from heedful.hub import pretrained, write
from heedful.runs.recipe import load_recipe, schema_text
from heedful.tasks import TASKS

assert "twin" in TASKS["pretraining"].models and '"const": "twin"' in schema_text()
SIZE = "{kind: twin, width: 16, heads: 2, layers: 1, hidden: 32, context: 24}"
SMALL = ["train.budget={steps: 3}", "train.device=cpu", "train.batch_tokens=256", "tokenizer.vocab=80"]
Path("text.txt").write_text("The cat sat on the mat. It was old.\\nA dog ran. Birds fly.\\n\\n" * 40)
TEXT = "{kind: text, files: [text.txt], between: blank_lines}"
DOCUMENTS = f"data={{kind: documents, root: ., train: [{TEXT}], test: [{TEXT}], held_out: 0.1}}"
recipe = load_recipe("bert-prose", [DOCUMENTS, *SMALL, f"model={SIZE}"])
run = Path("run")
list(heedful.train(recipe, run))
reader = heedful.load(run)
assert type(reader.model).__name__ == "Twin" and (run / "report.html").exists()

write(Path("theirs"), pretrained(run))
assert '"model_type": "twin"' in Path("theirs/config.json").read_text()
assert type(heedful.load("theirs").model).__name__ == "Twin"
assert pretrained(Path("theirs")).config == reader.model.config

DATA = ["data.train=40", "data.valid=8", "data.test=8"]
for start in (["start={folder: run}", "tokenizer=null", "model={kind: classifier}"],
              ["tokenizer.vocab=80", f"model={{kind: classifier, encoder: {SIZE}}}"]):
    tuned = load_recipe("number-languages", [*SMALL[:3], "train.batch_examples=null", *DATA, *start])
    assert tuned.encoder.kind == "twin"
    folder = Path(f"tuned{len(start[0])}")
    list(heedful.train(tuned, folder))
    assert type(heedful.load(folder).model.encoder).__name__ == "Twin"
    write(folder / "theirs", pretrained(folder))
    assert pretrained(folder / "theirs").head.kind == "classifier"
print("done")
"""


def test_copy_of_bert_is_one_folder_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "twin").mkdir()
    for file in BERT.glob("*.py"):
        text = file.read_text(encoding="utf-8").replace("heedful.models.bert", "heedful.models.twin")
        text = re.sub(r"\bBert(Config)?\b", r"Twin\1", text).replace('"model.Bert"', '"model.Twin"')
        text = text.replace('Literal["bert"] = "bert"', 'Literal["twin"] = "twin"').replace('("bert",)', '("twin",)')
        text = text.replace('"bert_config.json"', '"twin_config.json"')
        (tmp_path / "twin" / file.name).write_text(text, encoding="utf-8")
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("done\n"), done.stderr
