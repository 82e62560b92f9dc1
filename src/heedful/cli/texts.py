"""Commands that read texts with a trained model: classes, tags, answers, masked and next words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from heedful.cli.answer_story import answer_about_story
from heedful.cli.classify_images import classify_images
from heedful.cli.loading import load_as, load_run, wrong_command_error
from heedful.cli.output import json_line, say
from heedful.cli.reading import MAX_LINE, Line, Source, text_or_none
from heedful.data.formats.sources import lines
from heedful.data.trees.treebank import Tree, parse_tree
from heedful.errors import UserError, printable, shown
from heedful.files.reading import is_file
from heedful.plots.figures import bars
from heedful.plots.style import Style, require_figure, save
from heedful.tasks.answering.predictor import Answer, QuestionAnswerer
from heedful.tasks.classification.numbers import MultiRegressor, TextNumbers
from heedful.tasks.classification.predictor import Classification, Regression, TextClassifier, TextOrPair, TextRegressor
from heedful.tasks.image_classification.glimpses import GlimpseClassifier
from heedful.tasks.image_classification.predictor import ImageClassifier
from heedful.tasks.language_model.next_word import WordPredictions, masked_words, next_words, split_at_blank
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.multi_label.predictor import MultiLabelClassifier, TextLabels
from heedful.tasks.multiple_choice.predictor import MultipleChoiceAnswerer
from heedful.tasks.pretraining.predictor import MaskPredictions, TextEncoder, TokenPrediction
from heedful.tasks.story_answering.predictor import StoryAnswerer
from heedful.tasks.style_transfer.predictor import StyledText, TextStyleTransfer
from heedful.tasks.tagging.predictor import Entity, TaggedText, TokenTagger
from heedful.tasks.tree_classification.predictor import TreeClassification, TreeClassifier, check_arity, class_name

QUESTIONS = 64  # in a batch
Classified = Classification | Regression | TextNumbers | TextLabels


# ------------------------------------------------------------------ classes
def classify_command(
    run: Path, texts: Sequence[str], pair: bool, as_json: bool, top: int = 5, picture: Path | None = None
) -> None:
    """Print the class of each text, pair of texts or image, or the number that a regressor predicts."""
    predictor = load_run(run)
    if picture is not None and not isinstance(predictor, GlimpseClassifier):
        raise UserError(
            "this model has no glimpses to draw", where="--picture", found=str(run),
            expected="a model with glimpses, as heedful train digits-glimpse makes", todo="leave --picture out",
        )  # fmt: skip
    if isinstance(predictor, ImageClassifier):
        classify_images(predictor, run, texts, top, as_json, picture)
        return
    inputs = join_pairs(texts) if pair else texts
    source = Source(inputs, f'heedful classify {run} "some text"', "pair" if pair else "text")
    if not isinstance(predictor, TextClassifier | TextRegressor | MultiRegressor | MultiLabelClassifier):
        raise wrong_command_error(predictor, run)
    width = max(map(len, predictor.labels)) if isinstance(predictor, TextClassifier) else 0
    truncated = 0

    def predict(batch: list[TextOrPair]) -> Sequence[Classified]:
        nonlocal truncated
        results: Sequence[Classified] = predictor.predict(batch)
        truncated += sum(one.cut > 0 for one in results)
        return results

    def line(inputs: TextOrPair, result: Classified) -> Iterator[str]:
        text = inputs if isinstance(inputs, str) else " || ".join(inputs)
        if isinstance(result, Regression):
            yield f"{result.value:8.3f}  {text}"
        elif isinstance(result, TextNumbers):
            yield f"{', '.join(f'{name} {value:.3f}' for name, value in result.values.items())}  {text}"
        elif isinstance(result, TextLabels):
            yield f"{', '.join(f'{one} {result.probabilities[one]:.0%}' for one in result.labels) or '-'}  {text}"
        else:
            yield f"{result.label:<{width}} {result.probability:4.0%}  {text}"

    def record(inputs: TextOrPair, result: Classified) -> dict[str, Any]:
        texts = {"text": inputs} if isinstance(inputs, str) else {"text": inputs[0], "pair": inputs[1]}
        return texts | result.to_dict()

    source.show(predict, line, as_json, parse=parse_pair if pair else text_or_none, record=record)
    if truncated:
        typer.echo(f"note: texts truncated to {predictor.context} tokens: {truncated:,}", err=True)


def transfer_command(run: Path, texts: Sequence[str], style: str, as_json: bool) -> None:
    """Print each text in another style."""
    source = Source(texts, f'heedful transfer {run} "some text" --style NAME')
    model = load_as(TextStyleTransfer, run)
    if style not in model.styles:
        raise UserError(
            "the model does not know this style" if style else "there is no style to write", where="--style",
            found=shown(style), expected="one of " + ", ".join(map(shown, model.styles)),
        )  # fmt: skip
    unknown: set[str] = set()
    truncated = 0

    def transfer(batch: list[str]) -> Sequence[StyledText]:
        nonlocal truncated
        found = model.transfer(batch, style)
        unknown.update(word for one in found for word in one.unknown)
        truncated += sum(one.cut > 0 for one in found)
        return found

    def record(text: str, found: StyledText) -> dict[str, Any]:
        return {"source": text} | found.to_dict()

    source.show(transfer, lambda text, found: [printable(found.text)], as_json, parse=text_or_none, record=record)
    if unknown:
        typer.echo(f"note: words that the model does not know: {', '.join(map(shown, sorted(unknown)[:20]))}", err=True)
    if truncated:
        typer.echo(f"note: texts truncated to {model.context} tokens: {truncated:,}", err=True)


def join_pairs(texts: Sequence[str]) -> Sequence[str]:
    """Each two arguments as one line with a tab between them, as on stdin."""
    if list(texts) in ([], ["-"]):
        return texts
    if len(texts) % 2:
        raise UserError("a pair has two texts", where="--pair", found=f"{len(texts)} texts", todo="give one more")
    clean = [text.replace("\t", " ") for text in texts]
    return [f"{first}\t{second}" for first, second in zip(clean[::2], clean[1::2], strict=True)]


def parse_pair(line: Line) -> tuple[str, str] | None:
    """The two texts of a line, separated by a tab; None for a blank line."""
    first, tab, second = line.text.partition("\t")
    if line.blank:
        return None
    if not tab or "\t" in second:
        raise UserError(
            "this is not a pair of texts", where=line.where, found=shown(line.text),
            expected="two texts with one tab between them",
        )  # fmt: skip
    return first, second


def classify_tree_command(run: Path, trees: Sequence[str], nodes: bool, as_json: bool) -> None:
    """Print the class of each tree, and with `nodes` of every node."""
    source = Source(trees, f"heedful classify-tree {run} '(2 (2 not) (2 bad))'", "tree")
    classifier = load_as(TreeClassifier, run)
    classes = classifier.classes

    def parse(line: Line) -> Tree | None:
        if source.piped and line.blank:
            return None
        tree = parse_tree(line.text, line.where, None)
        check_arity(tree, classifier.model.config, line.where)
        return tree

    def tree_lines(tree: Tree, found: TreeClassification) -> Iterator[str]:
        yield f"{class_name(found.label, classes):<14} {found.probabilities[found.label]:4.0%}  {tree.text}"
        yield from node_lines(tree, found, classes) if nodes else ()

    def record(tree: Tree, found: TreeClassification) -> dict[str, Any]:
        return {"text": tree.text, "name": class_name(found.label, classes)} | found.to_dict()

    source.show(classifier.classify, tree_lines, as_json, parse=parse, record=record)


def node_lines(tree: Tree, found: TreeClassification, classes: int) -> Iterator[str]:
    """A line per node, indented by its depth: its class and its words."""
    spans: list[str] = []  # of each node, children before parents
    for word, children in zip(tree.words, tree.children, strict=True):
        spans.append(" ".join([*([word] if word else []), *(spans[child] for child in children)]))
    stack = [(len(tree) - 1, 1)]
    while stack:
        node, depth = stack.pop()
        yield f"{'  ' * depth}{class_name(found.nodes[node], classes):<14} {spans[node]}"
        stack += [(child, depth + 1) for child in reversed(tree.children[node])]


def choose_command(run: Path, text: str, choices: Sequence[str], as_json: bool) -> None:
    """Print the probability of each choice, the most probable first."""
    if len(choices) < 2:
        raise UserError(
            "there are too few choices", where="CHOICE", found=f"{len(choices)} choices",
            expected="two or more", todo=f'heedful choose {run} "a text" "one continuation" "another"',
        )  # fmt: skip
    found = load_as(MultipleChoiceAnswerer, run).choose(text, choices)
    if as_json:
        say(json_line({"text": text, "choices": list(choices)} | found.to_dict()))
        return
    for probability, choice in sorted(zip(found.probabilities, choices, strict=True), key=lambda pair: -pair[0]):
        say(f"{probability:4.0%}  {choice}")


# ------------------------------------------------------------------ spans
def tag_command(run: Path, texts: Sequence[str], as_json: bool) -> None:
    """Print the entities of each text, or every word with its tag."""
    source = Source(texts, f'heedful tag {run} "some text"')
    tagger = load_as(TokenTagger, run)

    def rows(text: str, found: TaggedText) -> Iterator[str]:
        yield text
        entities: Sequence[Entity] = found.entities
        if not tagger.has_chunks:
            parts = zip(found.tags, found.words, found.spans, found.probabilities, strict=True)
            entities = [Entity(tag, word, *span, share) for tag, word, span, share in parts]
        width = max((len(one.kind) for one in entities), default=0)
        for one in entities:
            yield f"  {one.kind:<{width}}  {one.probability:4.0%}  {f'{one.start}-{one.end}':>9}  {one.text}"

    source.show(tagger.tag, rows, as_json, parse=text_or_none)


def answer_command(
    run: Path, passage: str, questions: Sequence[str], top: int, as_json: bool, picture: Path | None = None
) -> None:
    """Print the answers to each question about a passage or a story, with what supports them."""
    text = read_passage(passage)
    source = Source(questions, f'heedful answer {run} --passage FILE "some question"', "question")
    answerer = load_run(run)
    if isinstance(answerer, StoryAnswerer):
        answer_about_story(answerer, text, source, top, as_json, picture)
        return
    if not isinstance(answerer, QuestionAnswerer):
        raise wrong_command_error(answerer, run)
    if picture is not None:
        raise UserError(
            "this model has no hops to draw", where="--picture", found=str(run),
            expected="a memory network, as heedful train stories-2 makes", todo="leave --picture out",
        )  # fmt: skip

    def rows(question: str, found: Sequence[Answer]) -> Iterator[str]:
        yield question
        for one in found:
            yield f"  {one.probability:4.0%}  {f'{one.start}-{one.end}':>11}  {' '.join(one.text.split())}"

    def record(question: str, found: Sequence[Answer]) -> dict[str, Any]:
        return {"question": question, "answers": [one.to_dict() for one in found]}

    source.show(
        lambda batch: answerer.answer([(question, text) for question in batch], top),
        rows, as_json, parse=text_or_none, record=record, size=QUESTIONS,
    )  # fmt: skip


def read_passage(argument: str) -> str:
    """The text of a file, or the argument itself; a single word is taken for a mistyped file name."""
    path = Path(argument)
    from_file = is_file(path)
    text = "\n".join(lines(path, MAX_LINE)) if from_file else argument
    if not text.strip():
        raise UserError("there is no passage", where="--passage", found=shown(text), expected="a file, or a text")
    if not from_file and len(text.split()) == 1:
        raise UserError("there is no such file", where="--passage", found=shown(text), expected="a file, or a text")
    return text


# ------------------------------------------------------------------ masked and next words
def fill_mask_command(run: Path, texts: Sequence[str], top: int, as_json: bool) -> None:
    """Print the most probable words for every mask of each text."""
    source = Source(texts, f'heedful fill-mask {run} "the [MASK] sat"')
    encoder = load_as(TextEncoder, run)
    source.show(
        lambda batch: (encoder.fill(text, top) for text in batch),
        mask_lines, as_json,
        parse=lambda line: None if source.piped and line.blank else line.text,
        record=lambda text, found: found.to_dict() | {"dependence": found.dependence},
    )  # fmt: skip


def mask_lines(text: str, found: MaskPredictions) -> Iterator[str]:
    """The words for each mask; for several masks, also their joint probabilities, computed in three ways."""
    yield text
    for number, words in enumerate(found.predictions, 1):
        yield from [f"  mask {number}"] if len(found.predictions) > 1 else []
        yield from probability_lines(words, max(len(one.word) for each in found.predictions for one in each))
    if not found.joint:
        return
    spelled = [" ... ".join(one.words) for one in found.joint]
    width = max(map(len, [*spelled, "all masks"]))
    yield f"  {'all masks':<{width}}  independent   forward  backward   difference in nats"
    for words_, one in zip(spelled, found.joint, strict=True):
        shares = "  ".join(f"{math.exp(log):8.2%}" for log in (one.independent, one.forward, one.backward))
        yield f"  {words_:<{width}}     {shares}   {one.forward - one.independent:+10.2f}"
    yield f"  predicted independently, these lose {found.dependence:.3f} nats on average"


def probability_lines(words: Sequence[TokenPrediction], width: int) -> Iterator[str]:
    """A line per word with its probability."""
    return (f"    {one.word:<{width}}  {one.probability:6.1%}" for one in words)


ABOUT = {
    "causal": "sees only the text before the gap; probabilities are those of first tokens",
    "masked": "sees the text on both sides of the gap",
}


def predict_word_command(
    text: str,
    causal: Path | None,
    masked: Path | None,
    top: int,
    out: Path | None,
    as_json: bool,
    start_token: bool | None = None,
    style: Style = "light",
) -> None:
    """Print the most probable words for the gap of a text by a causal model, a masked one, or both."""
    split_at_blank(text)
    if causal is None and masked is None:
        raise UserError(
            "no model was given", todo="add --causal RUN, a language model, or --masked RUN, a BERT, or both"
        )
    if out is not None:
        require_figure(out, "--out")
    found: list[WordPredictions] = []
    if causal is not None:
        generator = load_as(TextGenerator, causal)
        generator.start_token = generator.start_token if start_token is None else start_token
        found.append(next_words(generator, text, top))
    found += [] if masked is None else [masked_words(load_as(TextEncoder, masked), text, top)]
    if as_json:
        say(json_line({"text": text} | {one.kind: _words(one) for one in found}))
    else:
        say(text)
        width = max(len(word.word) for one in found for word in one.predictions)
        for one in found:
            for line in (f"  {one.kind}: {one.seen}", f"    ({ABOUT[one.kind]})"):
                say(line)
            for line in probability_lines(one.predictions, width):
                say(line)
    if out is not None:
        charts = {
            f"{one.kind}: {one.seen}": (ABOUT[one.kind], [(word.word, word.probability) for word in one.predictions])
            for one in found
        }
        save(bars(charts, text, style), out)


def _words(found: WordPredictions) -> dict[str, Any]:
    return {"seen": found.seen, "words": [word.to_dict() for word in found.predictions]}
