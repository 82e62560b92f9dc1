"""Searches against enumeration, against each other and against the model's own probabilities."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from generators import drain_generator
from heedful.blocks.state import Shared
from heedful.decode.rules import Generated, MinLength, NoRepeatNgram, Rule, SuppressTokens, Temperature, TopK, TopP
from heedful.decode.search import Paths, Prompt, beam, drain, greedy, grouped_topk, sample
from tolerance import close, near

EOS, BOS, V = 0, 1, 4


@dataclass(frozen=True)
class History:
    """All tokens of a hypothesis, and the sentence that its logits depend on."""

    tokens: Tensor
    sentence: Shared[Tensor]


class Toy:
    """Logits that are a fixed random function of the sentence and of all tokens so far."""

    def __init__(self, vocab: int = V, spread: float = 1.5) -> None:
        self.vocab, self.spread = vocab, spread

    def start(self, *sentences: int) -> History:
        return History(torch.zeros(len(sentences), 0, dtype=torch.long), Shared(torch.tensor(sentences)))

    def after(self, sentence: int, past: Sequence[int]) -> Tensor:
        seed = sentence + 1
        for token in past:
            seed = (seed * 1_000_003 + token + 17) % (1 << 61)
        return self.spread * torch.randn(self.vocab, generator=torch.Generator().manual_seed(seed))

    def __call__(self, tokens: Tensor, state: History) -> tuple[Tensor, History]:
        whole = torch.cat([state.tokens, tokens], 1)
        sentences = state.sentence.value
        owner = sentences.repeat_interleave(len(whole) // len(sentences)).tolist()
        rows = [
            torch.stack([self.after(owner[r], row[: n + 1]) for n in range(state.tokens.shape[1], whole.shape[1])])
            for r, row in enumerate(whole.tolist())
        ]
        return torch.stack(rows), History(whole, state.sentence)

    def log(self, sentence: int, path: Sequence[int]) -> float:
        """log p(path), token by token."""
        past, total = [BOS], 0.0
        for token in path:
            total += float(self.after(sentence, past).log_softmax(-1)[token])
            past.append(token)
        return total


def begin(*limits: int) -> dict[str, Any]:
    return {"prefix": torch.full((len(limits), 1), BOS), "limit": torch.tensor(limits), "eos": EOS}


def words(paths: Paths, row: int = 0, rank: int = 0) -> list[int]:
    return paths.tokens[row, rank, : int(paths.lengths[row, rank])].tolist()


def so_far(tokens: Tensor, chosen: int) -> Generated:
    """Rows without a prompt."""
    none = torch.zeros(len(tokens), 1, dtype=torch.long)
    return Generated(tokens, none, torch.tensor(chosen), none + chosen)


def every_path(limit: int, vocab: int = V) -> list[tuple[int, ...]]:
    """All strings that end with eos, and those that the limit cuts."""
    inner = [t for t in range(vocab) if t != EOS]
    ended = [(*head, EOS) for n in range(limit) for head in product(inner, repeat=n)]
    return [*ended, *product(inner, repeat=limit)]


# ------------------------------------------------------------------ greedy and beam
@pytest.mark.parametrize("sentence", range(20))
def test_one_beam_equals_greedy(sentence: int) -> None:
    toy = Toy()
    one = drain(greedy(toy, toy.start(sentence), **begin(7)))
    two = drain(beam(toy, toy.start(sentence), **begin(7), beams=1))
    assert words(one) == words(two)
    assert float(one.logs[0, 0]) == near(float(two.logs[0, 0]))
    past = [BOS]
    expected: list[int] = []
    while len(expected) < 7 and EOS not in expected:
        expected.append(int(toy.after(sentence, past).argmax()))
        past.append(expected[-1])
    assert words(one) == expected


@pytest.mark.parametrize("rules", [(), (SuppressTokens((2, 3)),), (MinLength(3, EOS),), (NoRepeatNgram(1),)], ids=str)
@pytest.mark.parametrize("vocab", [4, 9])
def test_one_row_takes_the_same_steps_as_one_beam(rules: tuple[Rule, ...], vocab: int) -> None:
    toy, limits, rows = Toy(vocab=vocab), (7, 1, 4, 6, 2, 7), range(6)
    one, lean = drain_generator(greedy(toy, toy.start(*rows), **begin(*limits), rules=rules))
    two, wide = drain_generator(beam(toy, toy.start(*rows), **begin(*limits), beams=1, rules=rules))
    finite = wide.scores.isfinite()
    for name in ("tokens", "lengths", "logs", "scores"):
        mine, its = getattr(lean, name), getattr(wide, name)
        close(mine[finite], its[finite])
    assert lean.scores.isfinite().equal(finite)
    assert len(one) == len(two)
    for mine_, its_ in zip(one, two, strict=True):
        assert mine_.done.equal(its_.done)
        for row in (~its_.done).nonzero()[:, 0].tolist():
            best = its_.logs[row, :1] > -math.inf  # the beam considers a second candidate
            assert mine_.kept[row].equal(its_.kept[row, :1]) or not bool(best) or bool(its_.tokens[row, 0] == EOS)
            assert mine_.tokens[row].equal(its_.tokens[row, :1])
            assert mine_.ended[row].equal(its_.ended[row, :1])
            assert mine_.parents[row].tolist() == [0]
            close(mine_.logs[row], its_.logs[row, :1])


def test_rules_and_random_numbers_continue_after_a_prompt() -> None:
    toy, rules = Toy(vocab=9), [NoRepeatNgram(1), SuppressTokens((EOS,))]
    whole = drain(sample(toy, toy.start(0), **begin(8), seeds=[4], rules=rules))
    first = drain(sample(toy, toy.start(0), **begin(3), seeds=[4], rules=rules))
    assert words(first) == words(whole)[:3]
    given = Prompt(torch.tensor([[7, 7, *words(first)]]), torch.tensor([3]), torch.tensor([3]))
    start = torch.tensor([[BOS, *words(first)]]), torch.tensor([5]), EOS
    rest = drain(sample(toy, toy.start(0), *start, seeds=[4], rules=rules, given=given))
    assert words(first) + words(rest) == words(whole)
    for search in (greedy, beam):
        found = words(drain(search(toy, toy.start(0), *start, rules=[NoRepeatNgram(1)], given=given)))  # type: ignore[operator]
        assert not set(found) & set(words(first))
        late = words(drain(search(toy, toy.start(0), *start, rules=[MinLength(5, EOS)], given=given)))  # type: ignore[operator]
        assert EOS not in late[:2]


def test_nothing_is_found_when_rules_forbid_every_token() -> None:
    toy = Toy(vocab=3)
    for search in (greedy, beam):
        paths = drain(search(toy, toy.start(0, 1), **begin(4, 4), rules=[SuppressTokens((0, 1, 2))]))  # type: ignore[operator]
        assert paths.scores.tolist() == [[-math.inf]] * 2


@pytest.mark.parametrize("penalty", [0.0, 1.0, 0.6])
@pytest.mark.parametrize("sentence", range(6))
def test_wide_beam_finds_the_best_of_all_strings(sentence: int, penalty: float) -> None:
    toy, limit = Toy(), 4
    paths = every_path(limit)
    truth = sorted(paths, key=lambda path: -toy.log(sentence, path) / len(path) ** penalty)
    wide = beam(toy, toy.start(sentence), **begin(limit), beams=len(paths), top=12, penalty=penalty, exact=True)
    found = drain(wide)
    assert [tuple(words(found, 0, rank)) for rank in range(12)] == truth[:12]
    for rank in range(12):
        log = toy.log(sentence, truth[rank])
        assert float(found.logs[0, rank]) == near(log)
        assert float(found.scores[0, rank]) == near(log / len(truth[rank]) ** penalty)


@pytest.mark.parametrize("beams", [1, 2, 3])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("exact", [False, True])
def test_narrow_beam_matches_the_textbook_search(beams: int, penalty: float, exact: bool) -> None:
    toy, limit = Toy(), 6
    for sentence in range(15):
        start = toy.start(sentence)
        found = drain(beam(toy, start, **begin(limit), beams=beams, top=beams, penalty=penalty, exact=exact))
        expected = textbook(toy, sentence, limit, beams, penalty, exact)
        assert [tuple(words(found, 0, r)) for r in range(len(expected))] == expected


def test_exact_search_continues_while_a_longer_path_may_win() -> None:
    toy, differ = Toy(), 0
    for sentence in range(40):
        quick, exact = (
            drain(beam(toy, toy.start(sentence), **begin(6), beams=2, penalty=1.0, exact=exact)).scores.item()
            for exact in (False, True)
        )
        assert exact >= quick
        differ += exact > quick
    assert differ > 0


def textbook(toy: Toy, sentence: int, limit: int, beams: int, penalty: float, exact: bool) -> list[tuple[int, ...]]:
    """Beam search in plain lists: extend, sort, set finished ones aside, keep the best others."""
    open_: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, limit + 1):
        more = [
            (log + float(toy.after(sentence, [BOS, *path]).log_softmax(-1)[t]), (*path, t))
            for log, path in open_
            for t in range(toy.vocab)
        ]
        more = sorted(more, reverse=True)[: 2 * beams]
        done += [(log / length**penalty, path) for log, path in more[:beams] if path[-1] == EOS]
        open_ = [(log, path) for log, path in more if path[-1] != EOS][:beams]
        if length == limit:
            done += [(log / length**penalty, path) for log, path in open_]
        done = sorted(done, reverse=True)[:beams]
        if len(done) == beams and done[-1][0] >= open_[0][0] / (limit if exact else length) ** penalty:
            break
    return [path for _, path in done]


def test_batch_equals_single_rows_with_their_own_limits() -> None:
    toy, limits = Toy(), (7, 1, 4, 6, 2)
    together = drain(beam(toy, toy.start(*range(5)), **begin(*limits), beams=3, top=3))
    chosen = drain(greedy(toy, toy.start(*range(5)), **begin(*limits)))
    for row, limit in enumerate(limits):
        alone = drain(beam(toy, toy.start(row), **begin(limit), beams=3, top=3))
        finite = alone.scores[0].isfinite()
        close(together.scores[row][finite], alone.scores[0][finite])
        for rank in range(int(finite.sum())):
            assert words(together, row, rank) == words(alone, 0, rank)
            assert len(words(alone, 0, rank)) <= limit
        assert words(chosen, row) == words(drain(greedy(toy, toy.start(row), **begin(limit))))


def test_scores_are_the_log_probability_of_the_path() -> None:
    toy = Toy(vocab=9)
    for search in (
        greedy(toy, toy.start(0, 1, 2), **begin(6, 6, 6)),
        sample(toy, toy.start(0, 1, 2), **begin(6, 6, 6), seeds=[1, 2, 3]),
        beam(toy, toy.start(0, 1, 2), **begin(6, 6, 6), beams=4, top=4, penalty=0.5),
        beam(toy, toy.start(0, 1, 2), **begin(6, 6, 6), beams=4, top=4, rules=[NoRepeatNgram(1), MinLength(3, EOS)]),
    ):
        paths = drain(search)
        for row in range(3):
            for rank in range(paths.tokens.shape[1]):
                if paths.scores[row, rank].isfinite():
                    path = words(paths, row, rank)
                    assert float(paths.logs[row, rank]) == near(toy.log(row, path), 1024)


def test_top_is_between_one_and_the_number_of_beams() -> None:
    toy = Toy()
    paths = drain(beam(toy, toy.start(0), **begin(5), beams=4, top=2))
    assert paths.tokens.shape[:2] == (1, 2)
    assert bool((paths.scores[:, :-1] >= paths.scores[:, 1:]).all())
    for top in (0, 5):
        with pytest.raises(ValueError, match="between 1 and the number of beams, 4"):
            beam(toy, toy.start(0), **begin(5), beams=4, top=top)


def test_wide_exact_beam_is_never_worse_than_greedy() -> None:
    toy = Toy()
    for sentence in range(10):
        one = drain(greedy(toy, toy.start(sentence), **begin(5)))
        wide = drain(beam(toy, toy.start(sentence), **begin(5), beams=300, penalty=0.0, exact=True))
        assert float(wide.logs[0, 0]) >= float(one.logs[0, 0]) - 1e-6


def test_longer_prefix_is_read_and_not_repeated() -> None:
    toy = Toy()
    prefix = torch.tensor([[BOS, 3, 2]])
    path = words(drain(greedy(toy, toy.start(4), prefix, torch.tensor([5]), EOS)))
    assert path[0] == int(toy.after(4, [BOS, 3, 2]).argmax())


@pytest.mark.parametrize(
    "rules",
    [[SuppressTokens((2, 3))], [MinLength(4, EOS)], [NoRepeatNgram(1)], [NoRepeatNgram(2), MinLength(2, EOS)]],
    ids=str,
)
def test_rules_hold_in_every_search(rules: list[Rule]) -> None:
    toy = Toy(vocab=7)
    for search in (
        greedy(toy, toy.start(0, 1), **begin(6, 6), rules=rules),
        sample(toy, toy.start(0, 1), **begin(6, 6), seeds=[0, 1], rules=rules),
        beam(toy, toy.start(0, 1), **begin(6, 6), beams=3, top=3, rules=rules),
    ):
        paths = drain(search)
        for row, rank in product(range(2), range(paths.tokens.shape[1])):
            if paths.scores[row, rank].isfinite():
                path = words(paths, row, rank)
                for at, token in enumerate(path):
                    history = torch.tensor([[*path[:at], *[0] * (6 - at)]])
                    logits = torch.zeros(1, 7)
                    for rule in rules:
                        logits = rule(logits, so_far(history, at))
                    assert logits[0, token] == 0


# ------------------------------------------------------------------ sampling
def frequencies(rules: Sequence[Rule], rows: int = 4000) -> tuple[list[int], Tensor]:
    """How often each first token was drawn, and the logits it was drawn from."""
    toy = Toy(vocab=6)
    logits = toy.after(3, [BOS])
    same = lambda tokens, state: (logits.expand(len(tokens), tokens.shape[1], -1), state)  # noqa: E731
    paths = drain(sample(same, None, **begin(*[1] * rows), seeds=range(rows), rules=rules))
    counts = Counter(paths.tokens[:, 0, 0].tolist())
    return [counts[v] for v in range(6)], logits


@pytest.mark.parametrize(
    "rules", [(), (Temperature(0.5),), (Temperature(3.0),), (TopK(3),), (TopP(0.8),), (SuppressTokens((1,)),)], ids=str
)
def test_sampled_frequencies_match_the_probabilities(rules: tuple[Rule, ...]) -> None:
    counts, logits = frequencies(rules)
    ruled = logits[None]
    for rule in rules:
        ruled = rule(ruled.clone(), so_far(torch.zeros(1, 1, dtype=torch.long), 0))
    p = ruled[0].double().softmax(-1).tolist()
    assert all(count == 0 for count, share in zip(counts, p, strict=True) if share == 0)
    chi = sum((count - 4000 * share) ** 2 / (4000 * share) for count, share in zip(counts, p, strict=True) if share)
    assert chi < 20.5  # five degrees of freedom: one in a thousand is beyond


def test_samples_depend_on_the_seed_and_not_on_the_batch() -> None:
    toy, seeds = Toy(vocab=9), [5, 77, 2**40]
    together = drain(sample(toy, toy.start(0, 1, 2), **begin(6, 6, 4), seeds=seeds))
    again = drain(sample(toy, toy.start(0, 1, 2), **begin(6, 6, 4), seeds=seeds))
    assert together.tokens.equal(again.tokens)
    for row, (seed, limit) in enumerate(zip(seeds, (6, 6, 4), strict=True)):
        alone = drain(sample(toy, toy.start(row), **begin(limit), seeds=[seed]))
        assert words(together, row) == words(alone)
    other = drain(sample(toy, toy.start(0, 1, 2), **begin(6, 6, 4), seeds=[6, 78, 1]))
    assert not together.tokens.equal(other.tokens)


def test_random_number_zero_never_picks_a_banned_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda room, generator: torch.zeros(room))
    toy = Toy(vocab=5)
    paths = drain(sample(toy, toy.start(0), **begin(3), seeds=[1], rules=[SuppressTokens((0, 1))]))
    assert words(paths) == [2, 2, 2]


# ------------------------------------------------------------------ the tree
@pytest.mark.parametrize("spread", [1.5, 0.0], ids=["usual", "all ties"])
def test_steps_form_a_tree_with_every_returned_path(spread: float) -> None:
    toy, beams, rows = Toy(vocab=5, spread=spread), 3, 4
    found, paths = drain_generator(beam(toy, toy.start(*range(rows)), **begin(6, 5, 3, 6), beams=beams, top=beams))
    for row in range(rows):
        open_: list[tuple[int, ...]] = [()]
        ended: dict[tuple[int, ...], float] = {}
        for step in found:
            if step.done[row]:
                assert not step.ended[row].any()
                continue
            grown = []
            for c, (token, parent, log) in enumerate(
                zip(*(x[row].tolist() for x in (step.tokens, step.parents, step.logs)), strict=True)
            ):
                if log == -math.inf:
                    assert not step.kept[row, c]
                    continue
                path = (*open_[parent], token)
                assert log == near(toy.log(row, path), 1024)
                if step.kept[row, c]:
                    assert token != EOS
                    grown.append(path)
                if step.ended[row, c]:
                    ended[path] = log
            assert bool((step.logs[row, :-1] >= step.logs[row, 1:]).all())
            assert len(grown) <= beams
            open_ = grown
        for rank in range(beams):
            if paths.scores[row, rank].isfinite():
                path = tuple(words(paths, row, rank))
                assert ended[path] == near(float(paths.logs[row, rank]))


def test_largest_by_groups_equals_topk() -> None:
    x = torch.randn(5, 3000)
    for count in (1, 4, 5):
        values, places = grouped_topk(x, count)
        expected = x.topk(count, 1)
        assert values.equal(expected.values)
        assert x.gather(1, places).equal(values)
    short = torch.randn(2, 50)
    assert grouped_topk(short, 3)[1].equal(short.topk(3, 1).indices)
    last = torch.zeros(1, 1030)
    last[0, 1029] = 1.0
    assert grouped_topk(last, 1)[1].item() == 1029
