import numpy as np
import pytest
import torch

from heedful.data.formats.squad import Answer, Question, WindowsConfig
from heedful.data.labelled.answering import AnswerBatches, encode_questions
from heedful.data.tokenizers.wordpiece import NAMES, BertTokenizer
from heedful.models.bert.config import BertConfig
from heedful.models.heads.answerer import Answerer
from heedful.models.heads.config import AnswererConfig
from heedful.tasks.answering.predictor import (
    QuestionAnswerer,
    answer_loss,
    best_spans,
    mean_loss,
    merge_windows,
    passage_scores,
)
from tolerance import near

TOKENIZER = BertTokenizer.from_vocab([*NAMES, "ann", "bob", "saw", "rome", "who", "##a", "##s", ".", "?"], True, "here")
CPU = torch.device("cpu")
LONG = "Ann saw Rome. Bobas saw Anns . " * 4


def model(context: int = 24) -> Answerer:
    encoder = BertConfig(vocab=TOKENIZER.vocab, width=16, heads=2, layers=2, hidden=20, context=context, pooler=False,
                         masked_words=False, next_sentence=False)  # fmt: skip
    found = Answerer(AnswererConfig(encoder=encoder)).eval()
    with torch.no_grad():
        for weight in found.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return found


def questions() -> list[Question]:
    return [
        Question("1", "Who saw Rome?", "Ann saw Rome.", (Answer("Ann", 0),)),
        Question("2", "Who?", LONG, (Answer("Anns", LONG.rindex("Anns")),)),
        Question("3", "Saw who?", "Bob saw Ann.", (Answer("Ann", 8), Answer("Bob", 0))),
    ]


# ------------------------------------------------------------------ loss
@pytest.mark.parametrize("context", [64, 16])
def test_mean_loss_is_over_all_answers(context: int) -> None:
    answerer = model(context)
    encoded = encode_questions(questions(), TOKENIZER, context, WindowsConfig(stride=4))
    losses = [answer_loss(answerer, encoded.batch(np.array([row]))) for row in encoded.with_targets.tolist()]
    mean = sum(float(loss.plain) for loss in losses) / len(encoded.with_targets)
    assert mean_loss(answerer, encoded, CPU) == pytest.approx(mean, rel=1e-5)
    assert (len(encoded.with_targets) > 3) == (context == 16)


def test_packed_and_padded_batches_have_same_loss() -> None:
    answerer, encoded = model(), encode_questions(questions(), TOKENIZER, 24, WindowsConfig(stride=4))
    losses = [answer_loss(answerer, AnswerBatches(encoded, 0, 999, 99, packed).at(0)) for packed in (False, True)]
    assert int(losses[0].count) == int(losses[1].count) == len(encoded.with_targets)
    assert float(losses[0].plain) == pytest.approx(float(losses[1].plain), rel=1e-5)


def test_empty_share_has_zero_loss_and_gradient() -> None:
    answerer, encoded = model(), encode_questions(questions(), TOKENIZER, 24, WindowsConfig())
    loss = answer_loss(answerer, AnswerBatches(encoded, 0, 24, 1).at(0, 1, 2))
    assert float(loss.plain) == 0 and int(loss.count) == 0
    loss.total.backward()
    assert all(weight.grad is not None and not bool(weight.grad.any()) for weight in answerer.parameters())


# ------------------------------------------------------------------ the search
def test_best_spans_match_an_exhaustive_search() -> None:
    scores = np.random.default_rng(0).normal(size=(9, 2))
    every = best_spans(scores, 4, 1000)
    assert len(every) == 9 + 8 + 7 + 6
    assert best_spans(scores, 4, 5) == every[:5]
    assert sum(span.probability for span in every) == pytest.approx(1)
    assert [span.probability for span in every] == sorted((span.probability for span in every), reverse=True)
    assert best_spans(np.zeros((0, 2)), 4, 5) == []
    assert best_spans(np.array([[1.0, -1.0]]), 30, 5) == [(0, 0, 1.0)]


def test_large_scores_do_not_overflow() -> None:
    assert best_spans(np.array([[1e4, 0.0], [-1e4, 1e4]]), 30, 1) == [(0, 1, 1.0)]


def test_tokens_are_scored_in_their_best_window() -> None:
    answerer, windows = model(16), WindowsConfig(stride=3)
    encoded = encode_questions([Question("", "who?", LONG, ())], TOKENIZER, 16, windows)
    (found,) = passage_scores(answerer, encoded, CPU)
    assert len(found) == len(encoded.offsets[0])
    for token in (0, 5, 11, len(found) - 1):
        context = [min(token - first, first + size - 1 - token)
                   for first, size in zip(encoded.firsts, encoded.sizes, strict=True)]  # fmt: skip
        best = context.index(max(context))
        batch = encoded.batch(np.array([best]))
        with torch.inference_mode():
            alone = answerer.encoder(batch.ids, batch.segments)[0, encoded.begins[best] + token - encoded.firsts[best]]
            expected = answerer.head(alone).tolist()
        assert found[token].tolist() == near(expected, 1024)


def test_windows_are_merged_token_by_token() -> None:
    scores = [np.full((4, 2), float(number)) for number in range(3)]
    assert merge_windows(scores, np.array([0, 2, 4]))[:, 0].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]


# ------------------------------------------------------------------ the answerer
def test_answers_are_spans_of_the_passage_in_any_batch() -> None:
    answerer = QuestionAnswerer(model(), TOKENIZER, CPU, WindowsConfig(stride=4, longest=5), 24)
    asked = [(question.question, question.passage) for question in questions()]
    found = answerer.answer(asked, top=3)
    for (question, passage), answers in zip(asked, found, strict=True):
        (alone,) = answerer.answer([(question, passage)], top=3)
        assert [(answer.start, answer.end) for answer in alone] == [(answer.start, answer.end) for answer in answers]
        for answer in answers:
            assert passage[answer.start : answer.end] == answer.text != ""
            assert len(TOKENIZER.ids([answer.text])[0]) <= 5
        assert len({(answer.start, answer.end) for answer in answers}) == 3
        assert answers[0].probability >= answers[1].probability >= answers[2].probability > 0
    assert answerer.answer([]) == []
    assert answerer.answer([("who?", "\u200d")]) == [[]]
    with pytest.raises(TypeError):
        answerer.answer([("who?")])  # type: ignore[list-item]
