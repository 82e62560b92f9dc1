import pytest
import torch

from heedful.data.formats.conll import Sentence
from heedful.data.labelled.tagging import TagBatches, encode_tags, encode_words
from heedful.data.tokenizers.wordpiece import NAMES, BertTokenizer
from heedful.models.bert.config import BertConfig
from heedful.models.heads.config import TaggerConfig
from heedful.models.heads.tagger import Tagger
from heedful.tasks.tagging.predictor import Entity, TokenTagger, mean_loss, split, tag_loss

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TOKENIZER = BertTokenizer.from_vocab([*NAMES, "ann", "bob", "saw", "rome", "##a", "##s", "."], True, "here")
CPU = torch.device("cpu")
TEXTS = ["Ann saw Rome.", "", "Bob", "Bobas saw Anns . " * 9, "Rome"]


def model(context: int = 16) -> Tagger:
    encoder = BertConfig(vocab=TOKENIZER.vocab, width=16, heads=2, layers=2, hidden=20, context=context, pooler=False,
                         masked_words=False, next_sentence=False)  # fmt: skip
    found = Tagger(TaggerConfig(encoder=encoder, labels=LABELS))
    with torch.no_grad():
        for weight in found.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return found


def sentences() -> list[Sentence]:
    return [Sentence(("Ann", "saw", "Romeas"), ("B-PER", "O", "B-LOC"), "1"), Sentence(("Bobas",), ("I-PER",), "2")] * 3


# ------------------------------------------------------------------ words of a text
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Peter Blackburn's visit.", "Peter Blackburn 's visit ."),
        ("(Reuters) U.S. Senate, 1996-08-22:", "( Reuters ) U.S. Senate , 1996-08-22 :"),
        ('He said "no" to AT&T at 3.5%', 'He said " no " to AT&T at 3.5 %'),
        ("O'Neill doesn't", "O'Neill doesn't"),
        ("Zürich — São\u00a0Paulo 東京", "Zürich — São Paulo 東京"),
        ("  ", ""),
    ],
)
def test_text_is_split_into_words_with_offsets(text: str, words: str) -> None:
    whole, places = split(text)
    assert whole == text
    assert [text[start:end] for start, end in places] == words.split()


def test_given_words_are_kept() -> None:
    words = ["New York", "U.S.", ",", "x"]
    text, places = split(words)
    assert text == "New York U.S. , x"
    assert [text[start:end] for start, end in places] == words
    assert split([]) == ("", [])


# ------------------------------------------------------------------ loss
@pytest.mark.parametrize("context", [16, 5])
def test_mean_loss_is_over_all_words(context: int) -> None:
    tagger = model(context).eval()
    encoded = encode_tags(sentences(), TOKENIZER, LABELS, context)
    losses = [tag_loss(tagger, encoded.batch(torch.tensor([row]).numpy())) for row in range(len(encoded.ids.lengths))]
    assert sum(int(loss.count) for loss in losses) == 12
    mean = sum(float(loss.plain) for loss in losses) / 12
    assert mean_loss(tagger, encoded, CPU) == pytest.approx(mean, rel=1e-5)


def test_packed_and_padded_batches_have_same_loss() -> None:
    tagger, encoded = model().eval(), encode_tags(sentences(), TOKENIZER, LABELS, 16)
    totals = []
    for packed in (False, True):
        batches = TagBatches(encoded, 0, 64, 100, packed)
        totals.append(float(tag_loss(tagger, batches.at(0)).plain))
        assert int(tag_loss(tagger, batches.at(0)).count) == 12
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)


def test_empty_share_has_zero_loss_and_gradient() -> None:
    tagger = model()
    encoded = encode_tags(sentences(), TOKENIZER, LABELS, 16)
    loss = tag_loss(tagger, TagBatches(encoded, 0, 64, 1).at(0, 1, 2))
    assert float(loss.plain) == 0 and int(loss.count) == 0
    loss.total.backward()
    assert all(weight.grad is not None and not bool(weight.grad.any()) for weight in tagger.parameters())


# ------------------------------------------------------------------ the tagger
def test_tags_do_not_depend_on_the_batch_and_keep_their_order() -> None:
    marker = TokenTagger(model(), TOKENIZER, CPU, LABELS, 16)
    found = marker.tag(TEXTS)
    assert [marked.text for marked in found] == TEXTS
    for text, marked in zip(TEXTS, found, strict=True):
        (alone,) = marker.tag([text])
        assert alone.tags == marked.tags
        assert len(marked.words) == len(marked.tags) == len(split(text)[1])
        for entity in marked.entities:
            assert text[entity.start : entity.end] == entity.text
            assert 0 < entity.probability <= 1
    assert any(marked.entities for marked in found)
    assert marker.tag([]) == [] and marker.tag([""])[0].entities == ()
    with pytest.raises(TypeError):
        marker.tag("Ann")


def test_entities_are_chunks_scored_by_their_least_likely_tag() -> None:
    class FixedPositions(torch.nn.Module):
        def forward(
            self, tokens: torch.Tensor, segments: torch.Tensor, layout: object, words: torch.Tensor
        ) -> torch.Tensor:
            chosen = {TOKENIZER.ids([word])[0][0]: (label, sure) for word, label, sure in SAYS}
            rows = []
            for number in tokens.flatten()[words].tolist():
                label, sure = chosen[number]
                rest = (1 - sure) / 4
                rows.append([sure if each == label else rest for each in LABELS])
            return torch.tensor(rows).log()

    SAYS = [("ann", "I-PER", 0.9), ("bob", "I-PER", 0.6), ("saw", "O", 0.8), ("rome", "B-LOC", 0.7), (".", "O", 1.0)]
    (marked,) = TokenTagger(FixedPositions(), TOKENIZER, CPU, LABELS, 16).tag(["Ann Bob saw Rome."])
    assert marked.tags == ("I-PER", "I-PER", "O", "B-LOC", "O")
    assert marked.spans == ((0, 3), (4, 7), (8, 11), (12, 16), (16, 17))
    assert marked.probabilities == pytest.approx((0.9, 0.6, 0.8, 0.7, 1.0))
    assert marked.entities == (
        Entity("PER", "Ann Bob", 0, 7, pytest.approx(0.6)),  # type: ignore[arg-type]
        Entity("LOC", "Rome", 12, 16, pytest.approx(0.7)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("labels", "marks"),
    [
        (("NOUN", "VERB", "DET"), False),
        (("O", "PER", "LOC"), False),
        (("O", "B_PER", "I_PER"), False),
        (("LABEL_0", "LABEL_1", "LABEL_2"), False),
        (("O", "b-per", "i-per"), False),
        (("O", "B-PER", "I-PER", "PUNCT"), False),
        (("O",), False),
        (("X",), False),
        (("O", "B-PER", "I-PER", "E-PER", "S-PER"), True),
        (("O", "I-PER", "B-PER"), True),
        (("B-NP", "I-NP"), True),
    ],
)
def test_every_label_is_kept_and_only_iob_is_read_as_chunks(labels: tuple[str, ...], marks: bool) -> None:
    encoder = model().config.encoder
    tagger = Tagger(TaggerConfig(encoder=encoder, labels=labels))
    with torch.no_grad():
        tagger.head.weight.mul_(40)
    marker = TokenTagger(tagger, TOKENIZER, CPU, labels, 16)
    (marked,) = marker.tag(["Ann saw Bobas Romes . Rome Ann"])
    encoded = encode_words([marked.words], TOKENIZER, 16)
    assert marked.tags == marker.tags(encoded)[0] and set(marked.tags) <= set(labels)
    assert marker.has_chunks == marks
    assert marked.entities == () if not marks else len(marked.entities) <= len(marked.words)
    assert [marked.text[start:end] for start, end in marked.spans] == list(marked.words)
