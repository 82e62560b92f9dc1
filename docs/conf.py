"""The documentation as a site: `make docs` builds it into site/, with warnings as errors. No page needs the network."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

project = "Heedful"
html_title = "Heedful"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
exclude_patterns = ["**.json", "**.py"]
html_theme = "furo"
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 4
myst_links_external_new_tab = True
suppress_warnings = ["myst.header"]  # a page of settings has #### below #
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
highlight_language = "text"

# The pages in the order of the sidebar; those that are not listed come last.
SIDEBAR = {
    "Start": "start which-model glossary",
    "Tutorials": """tutorials/translate tutorials/rewards tutorials/recurrent tutorials/language-model
        tutorials/generate tutorials/gpt2 tutorials/scaling tutorials/bert tutorials/pretrain tutorials/fine-tune
        tutorials/own-csv tutorials/tables tutorials/embed tutorials/word-vectors tutorials/trees
        tutorials/autoencoders tutorials/images tutorials/classify-images tutorials/maps""",
    "How to": """how-to/recipes how-to/data how-to/train how-to/tune how-to/predict how-to/checkpoints
        how-to/resume how-to/decode how-to/distributed how-to/convert how-to/export how-to/serve how-to/long-texts
        how-to/explorer how-to/explorer-views how-to/lessons how-to/own-model how-to/own-loop how-to/doctor
        how-to/plots how-to/figures how-to/look-into-image-models
        how-to/look-into-text-classifiers how-to/scikit-learn""",
    "Heedful from Python": """python/README python/predictors python/attention python/inside python/search
        python/language-models python/encoders python/autoencoders python/word-vectors""",
    "API": "api/heedful api/blocks api/models api/decode api/training api/data",
    "Settings and commands": """reference/README reference/recipes reference/tasks reference/data-text
        reference/data-table reference/data-labelled reference/data-tables reference/data-images reference/tokenizers
        reference/models reference/heads reference/training reference/decoding reference/commands
        reference/catalogue""",
    "Models": """models/transformer models/seq2seq models/hred models/bert models/roberta
        models/xlm_roberta models/albert models/distilbert models/xlnet models/linformer models/bigbird
        models/rnn_encoder models/gpt models/transformer_xl models/conv_classifier models/style_transfer models/text_vae
        models/memory_network models/rnn_classifier models/transformer_classifier models/autoencoder models/lenet
        models/alexnet models/vgg models/googlenet models/resnet models/vit models/recurrent_attention
        models/captioner models/paragraph_captioner models/tabular models/agents""",
    "Lectures": """lectures notebooks lectures/smola lectures/pilehvar lectures/xing lectures/han
        lectures/yoon lectures/pictures lectures/timeline lectures/takeaways lectures/references recurrent
        encoders claims""",
    "Results": """results results/translation results/language-models results/classification
        results/autoencoders results/vision results/captions results/tables results/adversarial results/rewards
        results/stories results/dialogues results/doctor results/long results/control results/speed-gpu
        results/speed-family results/speed-cpu results/explorer-peers results/notes""",
    "Project": """reliability mutants docs-check recipes-check design/architecture design/mechanisms
        design/readers design/tries design/first-minute""",
}
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+((?:CONTRIBUTING|CHANGELOG)\.md|[\w/]+)(?:#[\w-]*)?\)")

CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\w$\\])\$([^$\s](?:[^$\n]*[^$\s])?)\$(?![\w$])", re.DOTALL)


def write_math(text: str) -> str:
    """Formulas between dollar signs as MathML, which browsers draw by themselves."""
    from latex2mathml.converter import convert

    pieces: list[str] = []
    last = 0

    def math(found: re.Match[str]) -> str:
        inline = found[1] is None
        formula = found[2] if inline else " ".join(found[1].split())
        drawn = convert(formula, display="inline" if inline else "block")
        if unknown := re.search(r">(\\\w+)", drawn):
            raise ValueError(f"{unknown[1]} in the formula {formula} is unknown to latex2mathml")
        return drawn if inline else f"\n\n{drawn}\n\n"

    for code in CODE.finditer(text):
        pieces += [MATH.sub(math, text[last : code.start()]), code[0]]
        last = code.end()
    return "".join([*pieces, MATH.sub(math, text[last:])])


def name_outside(link: re.Match[str]) -> str:
    """A link to what is not part of the site, as its text and, where that differs, its path."""
    return link[1] if link[1].strip("`") == link[2] else f"{link[1]} (`{link[2]}`)"


def prepare_page(app: Any, name: str, source: list[str]) -> None:
    """Formulas, links to what is not part of the site, and on the first page the sidebar."""
    source[0] = OUTSIDE.sub(name_outside, write_math(source[0]))
    if name == root_doc:
        listed = {page for pages in SIDEBAR.values() for page in pages.split()}
        others = " ".join(sorted(app.env.found_docs - listed - {root_doc}))
        for title, pages in (SIDEBAR | ({"More": others} if others else {})).items():
            lines = "\n".join(pages.split())
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{lines}\n```\n"


def write_index(app: Any, error: Exception | None) -> None:
    """The first page under the name that servers and browsers look for."""
    if error is None and app.builder.name == "html":
        shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def setup(app: Any) -> None:
    """Register the changes above."""
    app.connect("source-read", prepare_page)
    app.connect("build-finished", write_index)
