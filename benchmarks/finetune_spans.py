"""Names (CoNLL-2003) and answers (SQuAD v1.1) with models of `transformers`: the baselines of `finetune.py`.

The usual ways: words tagged by their first piece; windows over long passages, an answer that is elsewhere at [CLS], and
the best span by the sum of its logits. The scores are by functions of ours, which the tests hold equal to seqeval and
to SQuAD's script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

CONLL = ("eng.train.gz", "eng.testa.gz")
SQUAD = ("train-subset-v1.1.json.gz", "dev-v1.1.json.gz")
LONGEST, STRIDE, ANSWER = 512, 128, 30  # tokens: of a sequence, that windows share, of an answer


def tagging(args: Any) -> dict[str, float]:
    """BertForTokenClassification on CoNLL-2003; F1 on the development set."""
    import torch
    from finetune import began, loop

    from heedful.data.formats.conll import Conll, collect_labels
    from heedful.training.span_metrics import chunk_scores

    source = Conll(root=args.data, train=CONLL[0], valid=CONLL[1])
    train, valid = source.read("train").sentences, source.read("valid").sentences
    labels = collect_labels(train)
    model, tokenizer = began(args, "BertForTokenClassification", num_labels=len(labels))

    def encoded(sentences: Sequence[Any]) -> tuple[Any, Any]:
        """Ids, and the number of the tag of each word's first piece, -100 elsewhere."""
        found = tokenizer([list(each.words) for each in sentences], is_split_into_words=True, truncation=True,
                          max_length=LONGEST, padding=True, return_tensors="pt")  # fmt: skip
        targets = torch.full(found["input_ids"].shape, -100)
        for row, each in enumerate(sentences):
            before = None
            for place, word in enumerate(found.word_ids(row)):
                if word is not None and word != before:
                    targets[row, place] = labels.index(each.tags[word])
                before = word
        return found.to(args.device), targets

    def loss_of(rows: list[int]) -> Any:
        found, targets = encoded([train[row] for row in rows])
        return model(**found, labels=targets.to(args.device)).loss

    steps = loop(model, len(train), loss_of, args)
    guesses: list[list[str]] = []
    with torch.inference_mode():
        for start in range(0, len(valid), 128):
            some = valid[start : start + 128]
            found, targets = encoded(some)
            best = model(**found).logits.argmax(-1).cpu()
            for row, each in enumerate(some):
                tags = [labels[number] for number in best[row][targets[row] != -100].tolist()]
                guesses.append(tags + ["O"] * (len(each.tags) - len(tags)))
    scores = chunk_scores(guesses, [each.tags for each in valid])
    return {score.name: score.value for score in scores} | {"steps": steps}


def answering(args: Any) -> dict[str, float]:
    """BertForQuestionAnswering on SQuAD; F1 and exact match on the development set."""
    import torch
    from finetune import began, loop

    from heedful.data.formats.squad import Squad
    from heedful.training.span_metrics import answer_scores

    source = Squad(root=args.data, train=SQUAD[0], valid=SQUAD[1])
    train, valid = source.read("train").questions, source.read("valid").questions
    model, tokenizer = began(args, "BertForQuestionAnswering")

    def encoded(questions: Sequence[Any]) -> Any:
        return tokenizer([each.question.strip() for each in questions], [each.passage for each in questions],
                         truncation="only_second", max_length=LONGEST, stride=STRIDE, return_overflowing_tokens=True,
                         return_offsets_mapping=True)  # fmt: skip

    windows = encoded(train)
    examples = []
    for row, number in enumerate(windows["overflow_to_sample_mapping"]):
        text, start = train[number].answers[0]
        places = [place for place, side in enumerate(windows.sequence_ids(row)) if side == 1]
        offsets = windows["offset_mapping"][row]
        inside = [n for n in places if offsets[n][1] > start and offsets[n][0] < start + len(text)]
        whole = offsets[places[0]][0] <= start and offsets[places[-1]][1] >= start + len(text)
        examples.append((row, (inside[0], inside[-1]) if inside and whole else (0, 0)))

    def padded(found: Any, rows: Sequence[int]) -> dict[str, Any]:
        """Ids, segments and what is real of some windows, as tensors."""
        names = ("input_ids", "token_type_ids", "attention_mask")
        width = max(len(found["input_ids"][row]) for row in rows)
        filled = {name: [found[name][row] + [0] * (width - len(found[name][row])) for row in rows] for name in names}
        return {name: torch.tensor(values, device=args.device) for name, values in filled.items()}

    def loss_of(rows: list[int]) -> Any:
        starts, ends = torch.tensor([examples[row][1] for row in rows], device=args.device).T
        return model(**padded(windows, rows), start_positions=starts, end_positions=ends).loss

    steps = loop(model, len(examples), loss_of, args)
    best: list[tuple[float, str]] = [(-math.inf, "")] * len(valid)
    for begin in range(0, len(valid), 128):
        some = valid[begin : begin + 128]
        found = encoded(some)
        with torch.inference_mode():
            out = model(**padded(found, range(len(found["input_ids"]))))
        starts, ends = out.start_logits.float().cpu(), out.end_logits.float().cpu()
        for row, number in enumerate(found["overflow_to_sample_mapping"]):
            places = torch.tensor([place for place, side in enumerate(found.sequence_ids(row)) if side == 1])
            sums = starts[row, places][:, None] + ends[row, places]  # (P, P)
            near = torch.ones_like(sums, dtype=torch.bool).triu().tril(ANSWER - 1)
            score, flat = sums.masked_fill(~near, -math.inf).flatten().max(0)
            first, last = (int(places[at]) for at in divmod(int(flat), len(places)))
            offsets = found["offset_mapping"][row]
            text = some[number].passage[offsets[first][0] : offsets[last][1]]
            best[begin + number] = max(best[begin + number], (float(score), text))
    scores = answer_scores([text for _, text in best], [[answer.text for answer in each.answers] for each in valid])
    return {score.name: score.value for score in scores} | {"steps": steps}
