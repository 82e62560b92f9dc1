"""Commands for models of any kind, and for the lectures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from heedful.cli.complete import figures, lecture_names, lesson_names, notebook_names, run_folders
from heedful.cli.options import CheckpointOption, Json
from heedful.cli.output import print_table
from heedful.training.checkpoint.choice import checkpoint_path


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC", help="A folder with a model: a run, or from Hugging Face, TensorFlow, timm or torchvision."
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The folder, or the .onnx file, to write.")],
    to: Annotated[
        Literal["heedful", "hf", "timm", "torchvision", "onnx"] | None,
        typer.Option(help="The format to write; by default guessed from the names."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", min=4, max=1_048_576, help="Repeat the positions of an encoder, for longer texts."
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Write an encoder with the same weights as another kind, such as bigbird.")
    ] = None,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Print the source and the operation of each tensor.")
    ] = False,
    as_json: Json = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing model.")] = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Convert a text or image model to another format. Every tensor is accounted for, and no external code is run."""
    from heedful.cli.convert import convert_command

    convert_command(checkpoint_path(source, checkpoint), target, to, ledger, force, as_json, context, kind)


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run or a model.", autocompletion=run_folders)
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write.")],
    to: Annotated[str, typer.Option(metavar="TARGET", help="onnx, ctranslate2, torch or aotinductor.")] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="Weights in int8: smaller files, other numbers.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier export.")] = False,
    checkpoint: CheckpointOption = None,
    as_json: Json = False,
) -> None:
    """Write a model for other programs: ONNX, CTranslate2, torch.export; compared with it before it is kept."""
    from heedful.cli.export import export_command

    export_command(checkpoint_path(run, checkpoint), target, to, int8, force, as_json)


def pull(
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="A model on the Hugging Face Hub.")],
    target: Annotated[Path | None, typer.Argument(metavar="DST", help="The new folder; by default NAME.")] = None,
    revision: Annotated[
        str, typer.Option(metavar="REVISION", help="A branch, a tag, or the hash of a commit.")
    ] = "main",
    as_json: Json = False,
) -> None:
    """Download a model from the Hugging Face Hub: safetensors and settings alone, every hash checked."""
    from heedful.cli.remote import pull_command

    pull_command(repository, target, revision, as_json)


def push(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run or a model.", autocompletion=run_folders)
    ],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="A model on the Hugging Face Hub.")],
    public: Annotated[bool, typer.Option("--public", help="A repository that all can see.")] = False,
    checkpoint: CheckpointOption = None,
    as_json: Json = False,
) -> None:
    """Upload a model to the Hugging Face Hub, as a folder that transformers loads."""
    from heedful.cli.remote import push_command

    push_command(checkpoint_path(run, checkpoint), repository, public, as_json)


def explore(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs or of Hugging Face models.", autocompletion=run_folders),
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on; any but the default asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="By default 8765, or a free port; 0: a free port.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one view as an HTML file instead of serving the page.")
    ] = None,
    view: Annotated[
        str | None, typer.Option(metavar="NAME", help="The view to open or to write, such as heads.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the view, as in its address, which counts from 0: text=..., layer=2.",
        ),
    ] = None,
    lesson: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="A lesson to open, or to write with --out.", autocompletion=lesson_names
        ),
    ] = None,
    checkpoint: CheckpointOption = None,
) -> None:
    """Look inside models in the browser. The page is local; nothing leaves this machine."""
    from heedful.cli.explore import explore_command

    paths = [checkpoint_path(folder, checkpoint) for folder in folders]
    explore_command(paths, host, port, browser, out, view, settings or [], lesson)


def lessons(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE", help="A lesson, or the file of one, to check and list.", autocompletion=lesson_names
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the explorer's lessons: what each is about, for which models, and what to type."""
    from heedful.cli.lessons import lessons_command

    lessons_command(name, as_json)


def doctor(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run, a model folder, one of Hugging Face, or code: file.py:function or package.module:function.",
            autocompletion=run_folders,
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="How code is called, such as causal=true or shape=[3,32,32]."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CHECK", help="Run this check alone; may be repeated.")
    ] = None,
    example: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Other arguments of the code by name, in a .safetensors file of a few rows."),
    ] = None,
    package: Annotated[
        Literal["heedful", "transformers"],
        typer.Option("--in", help="The implementation of a Hugging Face folder that is checked."),
    ] = "heedful",
    as_json: Json = False,
) -> None:
    """Check that a model keeps what it promises: padding, batches, causality, caches, precision, files."""
    from heedful.cli.doctor import doctor_command

    doctor_command(model, settings or [], only or [], example, package == "transformers", as_json)


def serve(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs or of Hugging Face models.", autocompletion=run_folders),
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on; any but the default needs an API key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: a free one.")] = 8000,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="API keys, one a line; HEEDFUL_API_KEY is another one.")
    ] = None,
    names: Annotated[
        list[str] | None, typer.Option("--name", metavar="HOST", help="A host name that clients use for this machine.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Texts that a model generates at once.")] = 64,
    waiting: Annotated[
        int, typer.Option(min=1, max=100_000, help="Requests that may wait for a model; others get status 503.")
    ] = 256,
    max_tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="The longest completion, in tokens.")] = 4096,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds to answer a request in.")] = 300.0,
    drain: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds for running requests to end after SIGTERM.")
    ] = 8.0,
    precision: Annotated[
        Literal["fp32", "bf16", "int8"],
        typer.Option(help="Of the weights: bf16 for language models and encoders, int8 for encoders on a CPU."),
    ] = "fp32",
    checkpoint: CheckpointOption = None,
) -> None:
    """Serve models over HTTP: predictions of every task, completions and embeddings as OpenAI's API has them."""
    from heedful.cli.serve import Limits, serve_command

    paths = [checkpoint_path(folder, checkpoint) for folder in folders]
    limits = Limits(slots, waiting, max_tokens, timeout, drain)
    serve_command(paths, host, port, names or [], keys, limits, precision)


def figure(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The figure; without it, all are listed.", autocompletion=figures),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as seed=3; drawing it prints them all."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "--output", "-o", metavar="FILE", help="A .png, .svg or .pdf file; by default NAME.png."),
    ] = None,
    theme: Annotated[
        Literal["light", "dark", "print"], typer.Option(help="The colours: for a light or dark slide, or for paper.")
    ] = "light",
    dark: Annotated[bool, typer.Option("--dark", help="The same as --theme dark.")] = False,
    style: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Matplotlib style sheet (.mplstyle) on top of the theme.")
    ] = None,
    write_style: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the theme as a style sheet that you can change.")
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw all figures into a folder, with an index; takes minutes.")
    ] = None,
    as_json: Json = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing style sheet.")] = False,
) -> None:
    """Draw a figure for slides, and print its settings and, of experiments, numbers. Without a name, list figures."""
    look: Literal["light", "dark", "print"] = "dark" if dark else theme
    if write_style is not None:
        from heedful.cli.figure import style_command

        style_command(write_style, look, force)
    elif gallery is not None:
        from heedful.cli.figure import gallery_command

        gallery_command(gallery, look, style)
    elif name is None:
        from heedful.plots.gallery import EVERY

        every = {one: entry.about + f"; needs {entry.needs}" * bool(entry.needs) for one, entry in EVERY.items()}
        records = ({"figure": one, "about": about} for one, about in every.items())
        print_table((f"{one:<20} {about}" for one, about in every.items()), records, as_json)
    else:
        from heedful.cli.figure import figure_command

        figure_command(name, overrides or [], out, as_json, look, style)


def summary(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A recipe, a run or model folder, or a kind of model, in a tiny size."),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the recipe, such as model.layers=3.")
    ] = None,
    depth: Annotated[int, typer.Option(min=0, max=20, help="How far modules are unfolded; 0: all of them.")] = 1,
    as_json: Json = False,
) -> None:
    """Print the layers of a model with their output shapes and parameters, as Keras does."""
    from heedful.cli.summary import summary_command

    summary_command(model, overrides or [], depth, as_json)


def lectures(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DECK|TOPIC", help="A deck, a topic, or words to search for.", autocompletion=lecture_names
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the lectures' decks and topics: for each what to type, what it shows, the code, and the test of it."""
    from heedful.cli.lectures import lectures_command

    lectures_command(words or [], as_json)


def quiz(
    seed: Annotated[
        int | None, typer.Option(min=0, help="Random seed of the questions; else another each time.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="The number of questions.")] = 10,
    answers: Annotated[bool, typer.Option("--answers", help="Print the questions with their answers.")] = False,
    as_json: Json = False,
) -> None:
    """Take a quiz about the lectures: missing words, and questions whose answers are computed."""
    from heedful.cli.quiz import quiz_command

    quiz_command(seed, count, answers, as_json)


def notebook(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The notebook; without it, all are listed.", autocompletion=notebook_names),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; by default NAME.ipynb.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a notebook for Jupyter: one for each deck of the lectures and each family of models."""
    from heedful.cli.notebook import notebook_command

    notebook_command(name, out, as_json)


def claims(as_json: Json = False) -> None:
    """Print the claim sheet in Markdown: statements of the lectures, and the test that proves each here."""
    from heedful.lectures.claims import render, sheet

    print_table(render(sheet()).splitlines(), (claim._asdict() for claim in sheet()), as_json)
