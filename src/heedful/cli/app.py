"""The command line. Torch and the other heavy packages are imported only by the verbs that compute."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from heedful.errors import EXIT_MEMORY, UserError, drop_output, lacks_memory, printable
from heedful.files.writing import EXIT_DISK
from heedful.training.checkpoint.choice import at

app = typer.Typer(
    name="heedful",
    help="Train, check and look into the models of the attention era.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def recipe_names(incomplete: str) -> list[str]:
    """The recipes that a word may become: shipped ones and YAML files nearby."""
    from heedful.runs.recipe import shipped

    return [name for name in (*shipped(), *map(str, sorted(Path().glob("*.yaml")))) if name.startswith(incomplete)]


RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.", autocompletion=recipe_names),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as train.seed=3.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
EncoderFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run or of a model, ours or of Hugging Face's make.")
]


def _run_path(text: str) -> Path:
    if not text:
        raise UserError("--run is empty", expected="the folder of a run", todo="name one, or leave --run out")
    return Path(text)


RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        "--folder",
        metavar="DIR",
        parser=_run_path,
        help="The run's folder, else runs/NAME; torchrun lets only --folder through.",
    ),
]
Beams = Annotated[int | None, typer.Option(min=1, max=1000, help="Hypotheses kept; else as the recipe says.")]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")]
Batch = Annotated[int, typer.Option(min=1, max=100_000, help="Lines translated together.")]
Which = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="NAME|STEP", help="best, last, average or a step; else the final model."),
]


NO_MEMORY = "there is not enough memory for this; take a smaller model or smaller batches, or free some memory"


def _version(wanted: bool) -> None:
    if wanted:
        from heedful import __version__

        typer.echo(f"heedful {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Train, check and look into the models of the attention era."""


@app.command()
def init(
    template: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="translate, language-model, gpt, trees, pretrain, classify, tag, answer or autoencode.",
        ),
    ],
    path: Annotated[Path | None, typer.Argument(metavar="PATH", help="The file to write; else TASK.yaml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write even where a file is in the way.")] = False,
) -> None:
    """Write a commented recipe to start from. The schema beside it lets an editor complete it."""
    from heedful.runs.recipe import init_recipe

    recipe, schema = init_recipe(template, path or Path(f"{template}.yaml"), force=force)
    typer.echo(f"wrote {recipe} and {schema}")
    typer.echo(f"next: edit {recipe}, then `heedful check {recipe}` and `heedful train {recipe}`")


@app.command()
def show(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Print a recipe in full, defaults and overrides included. Of an autoencoder, also a table of its layers."""
    from heedful.config import render
    from heedful.runs.recipe import load_recipe

    shown = load_recipe(recipe, overrides or [])
    typer.echo(render(shown), nl=False)
    if shown.task.kind == "reconstruction":
        typer.echo("".join(f"# {line}\n" for line in str(shown.model.summary()).splitlines()), nl=False)


@app.command()
def check(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Look for mistakes in a recipe. The files that it names are looked for too; nothing is trained."""
    from heedful.runs.recipe import check_recipe, find_recipe, load_recipe, told_size
    from heedful.tasks.recipe_parts import with_article

    checked = load_recipe(recipe, overrides or [])
    check_recipe(checked)
    typer.echo(f"{find_recipe(recipe)}: no mistakes; {with_article(checked.model.kind)} of {told_size(checked)}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from heedful.runs.recipe import schema_text

    typer.echo(schema_text(), nl=False)


@app.command()
def recipes() -> None:
    """List the recipes that come with Heedful."""
    from heedful.runs.recipe import shipped, summary

    for name, path in shipped().items():
        typer.echo(f"{name:<20} {summary(path)}")


@app.command()
def train(recipe: RecipeName, overrides: Overrides = None, run: RunOption = None) -> None:
    """Train a recipe, or go on with its run. Ctrl-C stops it and loses nothing; the same command goes on."""
    from heedful.cli.train import train_verb

    train_verb(recipe, overrides or [], run)


@app.command()
def tokenize(
    recipe: RecipeName,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write, which must not exist yet.")
    ],
    overrides: Overrides = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Processes that tokenize running text; as many as cores.")
    ] = None,
) -> None:
    """Turn a recipe's text into token files, for pre-training or a language model. They are read as needed."""
    from heedful.cli.tokenize import tokenize_verb

    tokenize_verb(recipe, overrides or [], out, jobs)


@app.command("eval")
def evaluate(
    run: RunFolder,
    split: Annotated[Literal["test", "valid"], typer.Option(help="Which part of the recipe's data.")] = "test",
    beams: Beams = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens that a gpt predicts in each of its windows, which overlap.")
    ] = None,
    as_json: Json = False,
    checkpoint: Which = None,
) -> None:
    """Score a trained model on its data. The scores come with their signatures, and samples."""
    from heedful.cli.evaluate import eval_verb

    eval_verb(at(run, checkpoint), split, beams, as_json, stride)


@app.command()
def translate(
    run: RunFolder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts, or - for lines of stdin.")] = None,
    beams: Beams = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Best translations shown, with their scores.")] = 1,
    align: Annotated[bool, typer.Option("--align", help="Show where the model looked for each piece.")] = False,
    align_to: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw that into a PNG file.")] = None,
    as_json: Json = False,
    sample: Annotated[bool, typer.Option("--sample", help="Draw a translation by chance.")] = False,
    temperature: Annotated[float, typer.Option(min=0.01, max=100, help="Over 1 more daring, under 1 less.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(min=1e-6, max=1, help="Draw from this share of likelihood.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which chance.")] = 0,
    batch: Batch = 64,
    checkpoint: Which = None,
) -> None:
    """Translate texts, or lines that are piped in. Lines stay in order, and empty ones stay empty."""
    from heedful.cli.translate import Sampling, translate_verb

    sampling = Sampling(temperature, top_k, top_p, seed)
    if not sample and sampling != Sampling(1.0, None, None, 0):
        raise UserError(
            "--temperature, --top-k, --top-p and --seed are about chance", todo="add --sample, or leave them out"
        )
    translate_verb(
        at(run, checkpoint), texts or [], beams, top, sampling if sample else None, as_json, align, align_to, batch
    )


StartToken = Annotated[
    bool | None,
    typer.Option(
        "--start-token/--no-start-token",
        help="Read the text after the token that documents begin with; else as the model's folder says.",
    ),
]


@app.command()
def generate(
    run: EncoderFolder,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="Texts to go on with, or - for lines of stdin.")
    ] = None,
    length: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Tokens written; else as trained.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.01, max=100, help="Over 1 more daring, under 1 less.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(min=1e-6, max=1, help="Draw from this share of likelihood.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which chance.")] = 0,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="Texts a prompt; of beams, the best ones.")] = 1,
    greedy: Annotated[bool, typer.Option("--greedy", help="The likeliest token each time, without chance.")] = False,
    beams: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Search for the likeliest text; prompt and text must fit the context."),
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0, max=10, help="Beams compare log p / length^this; else 1.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(min=0.01, max=100, help="Over 1, words of the text so far are less likely.")
    ] = None,
    no_repeat: Annotated[
        int | None, typer.Option(min=1, max=1000, help="So many tokens in a row never occur twice.")
    ] = None,
    at_least: Annotated[
        int | None, typer.Option(min=0, max=1_000_000, help="Tokens written before the text may end.")
    ] = None,
    special: Annotated[
        bool, typer.Option("--special", help="<|endoftext|> in a prompt is the token, not text.")
    ] = False,
    start_token: StartToken = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Weights in half precision: faster on a GPU.")] = False,
    as_json: Json = False,
    checkpoint: Which = None,
) -> None:
    """Go on with texts, token by token. What is longer than the model's context is forgotten, the older half first."""
    from heedful.cli.generate import Wish, generate_verb

    manner = {
        "length": length, "temperature": temperature, "top_k": top_k, "top_p": top_p, "beams": beams,
        "length_penalty": length_penalty, "repetition_penalty": repetition_penalty, "no_repeat": no_repeat,
        "at_least": at_least,
    }  # fmt: skip
    wish = Wish(manner, greedy, samples, seed, special, bf16, start_token)
    generate_verb(at(run, checkpoint), prompts or [], wish, as_json)


@app.command()
def judge(
    run: RunFolder,
    trees: Annotated[list[str] | None, typer.Argument(metavar="TREE", help="Trees, or - for lines of stdin.")] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Show what is said of every part.")] = False,
    as_json: Json = False,
    checkpoint: Which = None,
) -> None:
    """Say the class of trees, as (2 (2 not) (2 bad)). Their labels are not read, and may be any word."""
    from heedful.cli.judge import judge_verb

    judge_verb(at(run, checkpoint), trees or [], nodes, as_json)


@app.command()
def classify(
    run: EncoderFolder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts, or - for lines of stdin.")] = None,
    pair: Annotated[
        bool, typer.Option("--pair", help="Texts come two and two; in a line of stdin, with a tab between.")
    ] = False,
    as_json: Json = False,
    checkpoint: Which = None,
) -> None:
    """Say the class of texts, or their number. Lines stay in order, and empty ones stay empty."""
    from heedful.cli.classify import classify_verb

    classify_verb(at(run, checkpoint), texts or [], pair, as_json)


@app.command()
def choose(
    run: EncoderFolder,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text to go on from.")],
    choices: Annotated[list[str], typer.Argument(metavar="CHOICE", help="Two or more ways to go on.")],
    as_json: Json = False,
    checkpoint: Which = None,
) -> None:
    """Say which of several texts goes on best from another, the likeliest first."""
    from heedful.cli.choose import choose_verb

    choose_verb(at(run, checkpoint), text, choices, as_json)


@app.command()
def tag(
    run: EncoderFolder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts, or - for lines of stdin.")] = None,
    as_json: Json = False,
    checkpoint: Which = None,
) -> None:
    """Mark names and the like in texts. Says what each is, how sure that is, and at which characters it stands."""
    from heedful.cli.tag import tag_verb

    tag_verb(at(run, checkpoint), texts or [], as_json)


@app.command()
def answer(
    run: EncoderFolder,
    passage: Annotated[str, typer.Option(metavar="FILE|TEXT", help="The text that the answers stand in.")],
    questions: Annotated[
        list[str] | None, typer.Argument(metavar="QUESTION", help="Questions, or - for lines of stdin.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many answers to show, the likeliest first.")] = 1,
    as_json: Json = False,
    checkpoint: Which = None,
) -> None:
    """Answer questions about a passage. An answer is a part of it: how sure, and at which characters it stands."""
    from heedful.cli.answer import answer_verb

    answer_verb(at(run, checkpoint), passage, questions or [], top, as_json)


def _only_reads() -> None:
    """Let threads wait a moment before they sleep: a model that only reads has one team, which is soon needed again."""
    os.environ.setdefault("GOMP_SPINCOUNT", "100000")  # about 0.1 ms; it must be said before torch is imported


@app.command()
def embed(
    run: EncoderFolder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts, or - for lines of stdin.")] = None,
    layers: Annotated[
        Literal["first", "last", "second_to_last", "sum_last_four", "concat_last_four", "sum_all"],
        typer.Option(help="Which of the encoder's layers; first: the embeddings, sum_all: all blocks."),
    ] = "last",
    pooling: Annotated[
        Literal["mean", "first"] | None,
        typer.Option(help="The tokens' mean, or the first one; else as the model says."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the vectors there: .npy, .safetensors or .jsonl.")
    ] = None,
    similar: Annotated[bool, typer.Option("--similar", help="Show how alike a few texts are.")] = False,
    eight_bits: Annotated[
        bool, typer.Option("--int8", help="Eight bits, on a CPU: faster, a little less exact.")
    ] = False,
    checkpoint: Which = None,
) -> None:
    """Turn texts into vectors. Lines stay in order, however many there are; without --out, each is a JSON object."""
    _only_reads()
    from heedful.cli.embed import embed_verb

    embed_verb(at(run, checkpoint), texts or [], layers, pooling, out, similar, eight_bits)


@app.command()
def fill(
    run: EncoderFolder,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts with [MASK] in them, or - for lines of stdin.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="How many words to show for each gap.")] = 5,
    as_json: Json = False,
    checkpoint: Which = None,
) -> None:
    """Tell the words that [MASK] hides. Where there are several, says how much they depend on each other."""
    _only_reads()
    from heedful.cli.fill import fill_verb

    fill_verb(at(run, checkpoint), texts or [], top, as_json)


@app.command("next")
def next_word(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text with ___ where a word is to be told.")],
    causal: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A language model, which sees what stands before the gap.")
    ] = None,
    masked: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A BERT, which sees both sides of the gap.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="How many words to show.")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Draw them side by side into a PNG file.")
    ] = None,
    start_token: StartToken = None,
    as_json: Json = False,
    checkpoint: Which = None,
) -> None:
    """Tell the word for a gap, in both directions. Words behind the gap change nothing for a causal model."""
    from heedful.cli.next import next_verb

    chosen = [run and at(run, checkpoint) for run in (causal, masked)]
    next_verb(text, chosen[0], chosen[1], top, out, as_json, start_token)


Pictured = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="IMAGE", help="Pictures, folders, .npy or .npz arrays, idx files; else the run's own test images."
    ),
]
Drawn = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The picture to draw: .png or .svg.")]
Shown = Annotated[int | None, typer.Option("--count", min=1, max=1000, help="How many images to show; else 10.")]
NoiseSeed = Annotated[int, typer.Option(min=0, max=2**62, help="Which noise.")]


@app.command()
def reconstruct(
    run: RunFolder,
    out: Drawn,
    images: Pictured = None,
    beside: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Another run, in columns of its own; may be repeated.")
    ] = None,
    pca: Annotated[bool, typer.Option("--pca", help="Show what PCA leaves with as many numbers as a code.")] = False,
    walk: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Walk from one image's code to another's: numbers of test images, or files."),
    ] = None,
    count: Shown = None,
    seed: NoiseSeed = 0,
    as_json: Json = False,
    checkpoint: Which = None,
) -> None:
    """Draw images beside what an autoencoder makes of them. Their errors stand beneath."""
    from heedful.cli.reconstruct import reconstruct_verb

    reconstruct_verb(at(run, checkpoint), images or [], out, beside or [], pca, walk, count, seed, as_json)


@app.command()
def denoise(
    run: RunFolder,
    out: Drawn,
    images: Pictured = None,
    noise: Annotated[float | None, typer.Option(min=0, max=100, help="Deviation of noise; else as trained.")] = None,
    noisy_already: Annotated[bool, typer.Option("--given", help="The images are noisy already: add none.")] = False,
    count: Shown = None,
    seed: NoiseSeed = 0,
    as_json: Json = False,
    checkpoint: Which = None,
) -> None:
    """Draw images, what noise leaves of them, and what an autoencoder restores."""
    from heedful.cli.reconstruct import denoise_verb

    denoise_verb(at(run, checkpoint), images or [], out, noise, noisy_already, count, seed, as_json)


@app.command()
def encode(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write: .npy, .npz or .csv.")],
    images: Pictured = None,
    checkpoint: Which = None,
) -> None:
    """Write the codes that an autoencoder makes of images. With their labels, where these are known."""
    from heedful.cli.reconstruct import encode_verb

    encode_verb(at(run, checkpoint), images or [], out)


@app.command()
def predict(
    run: RunFolder,
    source: Annotated[Path, typer.Argument(metavar="IN.JSONL", help="A file with one JSON object a line.")],
    to: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.JSONL", help="The file to write.")],
    field: Annotated[str, typer.Option(help="The key that holds the text.")] = "source",
    beams: Beams = None,
    force: Annotated[bool, typer.Option("--force", help="Write even where a file is in the way.")] = False,
    batch: Batch = 64,
    checkpoint: Which = None,
) -> None:
    """Translate a file of JSON lines. Every object gets a "prediction"."""
    from heedful.cli.translate import predict_verb

    predict_verb(at(run, checkpoint), source, to, field, beams, force, batch)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A folder with a BERT or GPT: ours or of others.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The folder, or the .onnx file, to write.")],
    to: Annotated[
        Literal["heedful", "hf", "onnx"] | None, typer.Option(help="What to write; else by the names.")
    ] = None,
    ledger: Annotated[bool, typer.Option("--ledger", help="Print what became of each tensor.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is in the way.")] = False,
    checkpoint: Which = None,
) -> None:
    """Turn a BERT or GPT into another kind of folder. Every tensor is accounted for, and no code of others is run."""
    from heedful.cli.convert import convert_verb

    convert_verb(at(source, checkpoint), target, to, ledger, force)


@app.command()
def runs(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look.")] = Path("runs")) -> None:
    """List the runs below a folder. Says how far each is, and how good."""
    from heedful.cli.runs import runs_verb

    runs_verb(folder)


@app.command()
def figure(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which one; without it, all are listed.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, such as seed=3.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The PNG file to write; else NAME.png.")] = None,
    as_json: Json = False,
) -> None:
    """Draw what the lectures show. Each figure is computed or trained on the spot, and prints its numbers."""
    if name is None:
        from heedful.lectures import FIGURES

        for one, (_, about) in FIGURES.items():
            typer.echo(f"{one:<20} {about}")
        return
    from heedful.cli.figure import figure_verb

    figure_verb(name, overrides or [], out, as_json)


@app.command()
def scaling(
    recipe: RecipeName,
    sizes: Annotated[str, typer.Option(metavar="LIST", help="Models: layers x width, such as 2x64,3x96,4x128.")],
    tokens: Annotated[str, typer.Option(metavar="LIST", help="Tokens that each is trained on, such as 1e6,2e6,4e6.")],
    overrides: Overrides = None,
    predict: Annotated[
        str | None, typer.Option(metavar="LIST", help="Larger runs that are predicted, not fitted: 6x192:8e6.")
    ] = None,
    train: Annotated[bool, typer.Option("--train/--no-train", help="Whether to train these too, and compare.")] = True,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The sweep's folder, else runs/scaling-NAME.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Runs side by side; else as cores and memory allow, or one for each GPU."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit scaling laws to a sweep of runs. Trains every size on every budget; the same command goes on where it was."""
    from heedful.cli.scaling import scaling_verb

    scaling_verb(recipe, overrides or [], sizes, tokens, predict, train, out, jobs, as_json)


VectorFile = Annotated[
    Path, typer.Argument(metavar="VECTORS", help="A file of word2vec's or GloVe's make, plain or gzip.")
]
FirstWords = Annotated[int | None, typer.Option(min=1, help="Read only so many words from the file's top.")]
Likest = Annotated[int, typer.Option(min=1, max=1000, help="How many words to show, the likest first.")]


@app.command()
def vectors(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT", help="Files of text, plain or gzip.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write: .bin, or .txt for text; .gz packs.")
    ],
    width: Annotated[int | None, typer.Option(help="Numbers of a vector; else 100.")] = None,
    window: Annotated[int | None, typer.Option(help="Words to either side that a word may see; else 5.")] = None,
    negatives: Annotated[
        int | None, typer.Option(help="Words drawn by chance, for each pair of neighbours; else 5.")
    ] = None,
    at_least: Annotated[int | None, typer.Option(help="Times that a word must stand in the text; else 5.")] = None,
    sample: Annotated[
        float | None, typer.Option(help="Share of the text above which words are thinned out; else 0.001.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Times that the text is gone through; else 5.")] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate at the beginning; else 0.05.")] = None,
    keep_case: Annotated[bool, typer.Option("--keep-case", help="Tell capital letters from small ones.")] = False,
    seed: Annotated[int | None, typer.Option(help="Which chance; else 0.")] = None,
) -> None:
    """Learn vectors of the words of a text: skip-gram with negative sampling. The same command gives the same file."""
    from heedful.cli.vectors import vectors_verb

    settings = {
        "width": width, "window": window, "negatives": negatives, "at_least": at_least, "sample": sample,
        "epochs": epochs, "rate": rate, "lowercase": not keep_case, "seed": seed,
    }  # fmt: skip
    vectors_verb(texts, out, {name: value for name, value in settings.items() if value is not None})


@app.command()
def neighbours(
    vectors: VectorFile,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Words to ask about.")],
    top: Likest = 10,
    first: FirstWords = None,
    as_json: Json = False,
) -> None:
    """Tell the words that are most like a word. By the cosine between their vectors."""
    from heedful.cli.vectors import neighbours_verb

    neighbours_verb(vectors, words, top, first, as_json)


@app.command()
def analogy(
    vectors: VectorFile,
    a: Annotated[str, typer.Argument(metavar="A", help="As in: man")],
    b: Annotated[str, typer.Argument(metavar="B", help="is to king")],
    c: Annotated[str, typer.Argument(metavar="C", help="as woman is to ...")],
    top: Likest = 5,
    first: FirstWords = None,
    as_json: Json = False,
) -> None:
    """Tell what is to C as B is to A. The words nearest to B - A + C, these three left out."""
    from heedful.cli.vectors import analogy_verb

    analogy_verb(vectors, (a, b, c), top, first, as_json)


@app.command()
def lookup(
    vectors: VectorFile,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Words to look up.")],
    columns: Annotated[int, typer.Option(min=1, max=1000, help="How many numbers of each to print.")] = 10,
    drawn: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="Draw a map of the words into a PNG file.")
    ] = None,
    first: FirstWords = None,
    as_json: Json = False,
) -> None:
    """Print the vectors of words, a row each."""
    from heedful.cli.vectors import lookup_verb

    lookup_verb(vectors, words, columns, drawn, first, as_json)


@app.command()
def explore(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or models, ours or of Hugging Face's make.")
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; any other than this one asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Else 8765, or a free one; 0: a free one.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one view as an HTML file instead of serving the page.")
    ] = None,
    view: Annotated[str | None, typer.Option(metavar="NAME", help="Which view to write, such as heads.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="What its address would say: text=..., layer=2."),
    ] = None,
    checkpoint: Which = None,
) -> None:
    """Look inside models in the browser. Opens a local page on runs and models; nothing leaves this machine."""
    from heedful.cli.explore import explore_verb

    explore_verb([at(folder, checkpoint) for folder in folders], host, port, browser, out, view, settings or [])


@app.command()
def claims() -> None:
    """Print the claim sheet, in Markdown. It says what the lectures claim, and which test proves it here."""
    from heedful.lectures.claims import render, sheet

    typer.echo(render(sheet()), nl=False)


@app.command()
def demo(run: RunOption = None) -> None:
    """Train a small model in a minute. It turns English number words into German ones, and shows where it looks."""
    from heedful.cli.demo import demo_verb

    demo_verb(run or Path("runs/demo"))


def main() -> None:
    """Run the command line: exit code 2 for a mistake of the user's, 130 when interrupted."""
    # Idle OpenMP threads that spin take the cores from the busy ones; it must be said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # what torch warns of when a connection ends is said by us
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter is no reason to fail
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # what cannot be written is known now, not when Python ends
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        if lacks_memory(error):
            typer.echo(f"error: {NO_MEMORY}", err=True)
            sys.exit(EXIT_MEMORY)
        if not isinstance(error, OSError):
            raise
        what = f"{error.filename}: " if error.filename else "cannot write the output: "
        typer.echo(f"error: {printable(what + (error.strerror or str(error)))}", err=True)
        drop_output()
        sys.exit(EXIT_DISK)


def _open_closed() -> None:
    """Give a program that was started with a closed stream one that is empty, or that takes everything."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            place = os.open(os.devnull, os.O_RDWR)
            if place != number:
                os.dup2(place, number)
                os.close(place)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))
