"""Commands for models that read texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from heedful.cli.options import CheckpointOption, EncoderFolder, Json, RunFolder, Texts
from heedful.models.heads.config import Feature
from heedful.training.checkpoint.choice import checkpoint_path


def _spin_briefly() -> None:
    """Let idle threads spin briefly before they sleep: an encoder's next operation needs them again soon."""
    os.environ.setdefault("GOMP_SPINCOUNT", "100000")  # about 0.1 ms; must be set before torch is imported


def classify_tree(
    run: RunFolder,
    trees: Annotated[list[str] | None, typer.Argument(metavar="TREE", help="Trees, or - for lines of stdin.")] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Print the class of every node.")] = False,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Classify trees, such as (2 (2 not) (2 bad)). Labels in the trees are ignored, and may be any word."""
    from heedful.cli.texts import classify_tree_command

    classify_tree_command(checkpoint_path(run, checkpoint), trees or [], nodes, as_json)


def classify(
    run: EncoderFolder,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT|IMAGE", help="Texts, or - for lines of stdin; images, folders or zip files."),
    ] = None,
    pair: Annotated[
        bool, typer.Option("--pair", help="Read pairs of texts; on stdin, with a tab between the two.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Of images, classes to show, the most probable first.")] = 5,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of a model with glimpses, draw where it looked: .png, .svg or .pdf."),
    ] = None,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Classify texts or images, or predict a number for texts. Lines stay in order, and empty ones stay empty."""
    from heedful.cli.texts import classify_command

    classify_command(checkpoint_path(run, checkpoint), texts or [], pair, as_json, top, picture)


def transfer(
    run: RunFolder,
    texts: Texts = None,
    style: Annotated[str, typer.Option(metavar="NAME", help="The style to write, one of the model's.")] = "",
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Say texts in another style. Lines stay in order, and empty ones stay empty."""
    from heedful.cli.texts import transfer_command

    transfer_command(checkpoint_path(run, checkpoint), texts or [], style, as_json)


def choose(
    run: EncoderFolder,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The beginning of a text.")],
    choices: Annotated[list[str], typer.Argument(metavar="CHOICE", help="Two or more continuations.")],
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Choose the best continuation of a text, and rank the others."""
    from heedful.cli.texts import choose_command

    choose_command(checkpoint_path(run, checkpoint), text, choices, as_json)


def tag(
    run: EncoderFolder,
    texts: Texts = None,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Tag the words of texts, or find named entities, with probabilities and character positions."""
    from heedful.cli.texts import tag_command

    tag_command(checkpoint_path(run, checkpoint), texts or [], as_json)


def answer(
    run: EncoderFolder,
    passage: Annotated[str, typer.Option(metavar="FILE|TEXT", help="The text to find the answers in, or the story.")],
    questions: Annotated[
        list[str] | None, typer.Argument(metavar="QUESTION", help="Questions, or - for lines of stdin.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Answers to show, the most probable first.")] = 1,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of a memory network, draw what each hop attended to: .png, .svg or .pdf."),
    ] = None,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Answer questions about a passage with parts of it, or about a story, with probabilities and what supports them.

    Of a passage, the character positions; of a story, the sentence that each hop attended to most.
    """
    from heedful.cli.texts import answer_command

    answer_command(checkpoint_path(run, checkpoint), passage, questions or [], top, as_json, picture)


def embed(
    run: EncoderFolder,
    texts: Texts = None,
    layers: Annotated[
        Feature,
        typer.Option(help="Layers of the encoder; first: the embeddings, sum_all: the sum of all blocks."),
    ] = "last",
    pooling: Annotated[
        Literal["mean", "first", "max", "weighted_mean", "mean_sqrt_length"] | None,
        typer.Option(
            help="How token vectors are pooled; by default as the model's own folder says, with its Dense layers."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file for the vectors: .npy, .safetensors or .jsonl.")
    ] = None,
    similarity: Annotated[
        bool, typer.Option("--similarity", help="Print the cosine similarities of a few texts.")
    ] = False,
    eight_bits: Annotated[
        bool, typer.Option("--int8", help="8-bit weights on a CPU: faster, slightly less accurate.")
    ] = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Embed texts as vectors. Lines stay in order; without --out, each is a JSON object."""
    _spin_briefly()
    from heedful.cli.embed import embed_command

    embed_command(checkpoint_path(run, checkpoint), texts or [], layers, pooling, out, similarity, eight_bits)


def fill_mask(
    run: EncoderFolder,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts with [MASK] in them, or - for lines of stdin.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="Words to show for each mask.")] = 5,
    as_json: Json = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Predict masked tokens. For several masks, also how much they depend on each other."""
    _spin_briefly()
    from heedful.cli.texts import fill_mask_command

    fill_mask_command(checkpoint_path(run, checkpoint), texts or [], top, as_json)
