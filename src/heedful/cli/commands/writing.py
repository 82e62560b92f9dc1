"""Commands for models that generate texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.cli.options import Batch, CheckpointOption, Dark, EncoderFolder, Json, Overrides, RunFolder, Texts
from heedful.errors import UserError
from heedful.training.checkpoint.choice import checkpoint_path


def translate(
    run: RunFolder,
    texts: Texts = None,
    to: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="The target language, of a model of several languages.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Number of translations to show, with their scores.")] = 1,
    align: Annotated[bool, typer.Option("--align", help="Print the alignment: the cross-attention weights.")] = False,
    align_to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the alignment: .png, .svg or .pdf.")
    ] = None,
    dark: Dark = False,
    as_json: Json = False,
    sample: Annotated[bool, typer.Option("--sample", help="Sample translations instead of searching.")] = False,
    batch: Batch = 64,
    checkpoint: CheckpointOption = None,
    **settings: Any,
) -> None:
    """Translate texts, or lines of stdin. Lines stay in order, and empty ones stay empty."""
    from heedful.cli.translate import translate_command
    from heedful.decode.settings import TranslationSettings

    beams, sampling = settings.pop("beams"), TranslationSettings(**settings)
    if not sample and sampling != TranslationSettings():
        raise UserError(
            "--temperature, --top-k, --top-p and --seed need --sample", todo="add --sample, or leave them out"
        )
    translate_command(
        checkpoint_path(run, checkpoint), texts or [], beams, top, sampling if sample else None, as_json, align,
        align_to, batch, "dark" if dark else "light", to,
    )  # fmt: skip


def chat(
    run: RunFolder,
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Reply to these utterances, one per line, and end.")
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample replies instead of searching.")] = False,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
    **settings: Any,
) -> None:
    """Talk to a dialogue model, or pipe lines into it. Each line is an utterance; /reset starts over."""
    from heedful.cli.chat import chat_command
    from heedful.decode.settings import ReplySettings

    beams, sampling = settings.pop("beams"), ReplySettings(**settings)
    if not sample and sampling != ReplySettings():
        raise UserError(
            "--temperature, --top-k, --top-p and --seed need --sample", todo="add --sample, or leave them out"
        )
    chat_command(checkpoint_path(run, checkpoint), history, beams, sampling if sample else None, as_json)


def predict(
    run: EncoderFolder,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Rows: .csv, .tsv, .jsonl, .parquet or text, plain or gzip; images: a folder or .zip."
        ),
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="OUT", help="The file to write, in the format of its name; by default stdout."
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The column to read, by default as in training; repeat it for several."),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add a column for the probability of each class.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file, or begin again.")] = False,
    batch: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Rows at a time; by default 1024, or 128 of written texts.")
    ] = None,
    checkpoint: CheckpointOption = None,
    **settings: Any,
) -> None:
    """Predict for every row of a file. Writes the rows with their predictions; a stopped command continues."""
    from heedful.cli.predict import Options, predict_command

    options = Options(field or [], probabilities, settings["beams"], batch, force, overrides or [])
    predict_command(checkpoint_path(run, checkpoint), source, out, options)


def generate(
    run: EncoderFolder,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="Texts to continue, or - for lines of stdin.")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the most probable token.")] = False,
    special: Annotated[
        bool, typer.Option("--special", help="Read <|endoftext|> in a prompt as the special token.")
    ] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Weights in bfloat16: faster on a GPU.")] = False,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
    **settings: Any,
) -> None:
    """Generate text from prompts. When the model's context is full, its older half is dropped."""
    from heedful.cli.generate import generate_command

    generate_command(checkpoint_path(run, checkpoint), prompts or [], settings, greedy, special, bf16, as_json)


def interpolate(
    run: RunFolder,
    first: Annotated[str, typer.Argument(metavar="FIRST", help="The sentence to start from.")],
    last: Annotated[str, typer.Argument(metavar="LAST", help="The sentence to end at.")],
    steps: Annotated[int, typer.Option(help="Sentences from the first to the last.")] = 7,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
    **settings: Any,
) -> None:
    """Decode the codes on the line between those of two sentences."""
    from heedful.cli.sentences import interpolate_command

    interpolate_command(checkpoint_path(run, checkpoint), first, last, steps, settings["beams"], as_json)


def sample(
    run: RunFolder,
    count: Annotated[int, typer.Option(min=1, max=100_000, help="Number of sentences.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the codes.")] = 0,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
    **settings: Any,
) -> None:
    """Sample codes from the prior of a sentence autoencoder, and decode them."""
    from heedful.cli.sentences import sample_command

    sample_command(checkpoint_path(run, checkpoint), count, seed, settings["beams"], as_json)


def predict_word(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text with ___ in place of a word.")],
    causal: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A language model, which sees the text before the gap.")
    ] = None,
    masked: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A BERT, which sees both sides of the gap.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="Words to show.")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Draw a bar chart: .png, .svg or .pdf.")
    ] = None,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
    **settings: Any,
) -> None:
    """Predict the word for a gap, by a causal model, a masked one, or both."""
    from heedful.cli.texts import predict_word_command

    causal, masked = (run and checkpoint_path(run, checkpoint) for run in (causal, masked))
    predict_word_command(text, causal, masked, top, out, as_json, settings["start_token"], "dark" if dark else "light")
