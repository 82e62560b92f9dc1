"""Several processes are one run: the same samples, gradients and files, and one error when a process dies."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.distributed.fsdp  # once, before the processes fork
from numpy.typing import NDArray

from heedful.blocks.losses import Loss, weighted_sum
from heedful.data.embedded import NumberWords
from heedful.data.labelled.batches import LabelledBatches, encode_texts
from heedful.data.pairs.batches import PairBatches, encode_pairs
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.heads.config import ClassifierConfig
from heedful.models.seq2seq.config import AttentionConfig, RecurrentEncoder, Seq2SeqConfig
from heedful.models.transformer.config import TransformerConfig
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train as train_recipe
from heedful.tasks.classification.predictor import class_loss
from heedful.tasks.translation.predictor import translation_loss
from heedful.training.carry import stateless
from heedful.training.checkpoint.folder import RunFolder, newest
from heedful.training.checkpoint.saver import Saver
from heedful.training.configs import Budget, TrainConfig
from heedful.training.distributed import team as distributed
from heedful.training.distributed.heartbeat import Heartbeat
from heedful.training.distributed.shards import local, shard_like, whole
from heedful.training.distributed.team import Parallel, ProcessInfo, Team, find_process, first_host
from heedful.training.loop import Counters, Step, fit
from heedful.training.optim import AdamW, load_optimizer, make_optimizer, optimizer_tensors
from heedful.training.step import PlainStep
from patience import until
from tolerance import close, near

CPU = torch.device("cpu")
LEARNED = 2**13  # epsilons, 1e-3 of the largest: errors of rounding grow from step to step
PAIRS = NumberWords(train=101, valid=1, test=1).pairs("train")[:101]
TOKENIZER = TrainedTokenizer.train(WordPiece(vocab=90), [text for pair in PAIRS for text in pair])
ENCODED = encode_pairs(PAIRS, TOKENIZER, longest=60)
WORDS = BertTokenizer.train(WordPiece(vocab=90), [text for pair in PAIRS for text in pair])
MODEL = TransformerConfig(
    vocab=TOKENIZER.vocab, width=16, heads=2, encoder_layers=1, decoder_layers=2, hidden=32, context=60, dropout=0.0
)


def run_team(world: int, work: Callable[[Team], Any], folder: Path, expected: int = 0) -> list[Any]:
    """The result of a function in each process of a team, as JSON; each must exit with the expected code."""
    if torch.cuda.is_initialized():
        pytest.skip("a process that has used the GPU cannot fork others that do")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sys.stdout.flush()
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            code = 1
            try:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
                with open(folder / f"said-{rank}", "wb") as stream:
                    os.dup2(stream.fileno(), 2)
                with Team(find_process(os.environ)) as team:
                    result = work(team)
                    (folder / f"result-{rank}").write_text(json.dumps(result))
                code = 0
            except UserError as error:
                os.write(2, f"error: {error}\n".encode())
                code = error.exit_code
            except Exception:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [expected] * world, [(folder / f"said-{rank}").read_text() for rank in range(world)]
    return [] if expected else [json.loads((folder / f"result-{rank}").read_text()) for rank in range(world)]


def settings(**changes: Any) -> TrainConfig:
    # Adam turns the rounding of gradients that should be 0 into whole steps, unless eps is larger than that.
    usual = {"batch_tokens": 512, "evaluate_every": 99, "save_every": 4, "optimizer": AdamW(lr=1e-2, eps=1e-4)}
    return TrainConfig(**{"budget": Budget(steps=8), **usual, **changes})


# ------------------------------------------------------------------ ranks
def test_single_process_has_no_rank() -> None:
    assert find_process({}) is None
    assert find_process({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}) is None  # a batch script
    alone = Team()
    assert (alone.rank, alone.world, alone.leads, alone.distributed) == (0, 1, True, False)
    assert alone.broadcast("x") == "x"
    assert alone.sum([1.5, 2]) == [1.5, 2]


def test_torchrun_environment() -> None:
    variables = {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "one",
        "MASTER_PORT": "1234",
    }  # fmt: skip
    assert find_process(variables) == ProcessInfo(5, 8, 1, 4, "one", 1234)
    assert find_process({"RANK": "1", "WORLD_SIZE": "2"}) == ProcessInfo(1, 2, 1, 2, "127.0.0.1", 29500)
    apart = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "elsewhere"}  # one process per machine
    assert find_process(apart) == ProcessInfo(1, 2, 0, 1, "elsewhere", 29500)
    with pytest.raises(UserError, match="the environment variable RANK"):
        find_process({"RANK": "one", "WORLD_SIZE": "2"})


def test_slurm_environment() -> None:
    variables = {
        "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_STEP_NODELIST": "gpu[03-04,09]", "SLURM_JOB_ID": "41007",
    }  # fmt: skip
    assert find_process(variables) == ProcessInfo(3, 5, 1, 2, "gpu03", 21007)
    assert find_process({**variables, "SLURM_NODEID": "2"}) == ProcessInfo(3, 5, 1, 1, "gpu03", 21007)
    assert find_process({**variables, "MASTER_ADDR": "lead", "MASTER_PORT": "99"}) == ProcessInfo(
        3, 5, 1, 2, "lead", 99
    )


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("gpu[3-5]", "gpu3"), ("gpu[09,11-12],b", "gpu09"), ("n[01-02]-ib,c", "n01-ib")],
)
def test_first_host_of_a_node_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


# ------------------------------------------------------------------ the same samples
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("accumulate", [1, 2, 3, 4, 6])
def test_processes_split_a_step_completely(world: int, accumulate: int) -> None:
    batches = PairBatches(ENCODED, 0, 256)
    for position in range(0, 40, accumulate):
        shares = []
        for rank in range(world):
            team = Team(ProcessInfo(rank, world, 0, 1, "", 0))
            shares.append([batches.at(*place) for _, place in team.batch_indices(position, accumulate)])
        assert len({len(share) for share in shares}) == 1  # equal numbers of batches, or the others would wait forever
        found = [int(number) for share in shares for batch in share for number in batch.indices if number >= 0]
        wanted = [number for step in range(accumulate) for number in batches.at(position + step).indices.tolist()]
        assert sorted(found) == sorted(wanted)
        tokens = sum(batch.tokens for share in shares for batch in share)
        assert tokens == sum(batches.tokens(position + step) for step in range(accumulate))


def test_whole_batches_are_distributed_with_their_dropout() -> None:
    shares = [list(Team(ProcessInfo(rank, 2, 0, 1, "", 0)).batch_indices(10, 4)) for rank in (0, 1)]
    assert [[(number, place.position, place.parts) for number, place in share] for share in shares] == [
        [(0, 10, 1), (2, 12, 1)],
        [(1, 11, 1), (3, 13, 1)],
    ]


@pytest.mark.parametrize("packed", [False, True])
def test_empty_share_has_no_gradient(packed: bool) -> None:
    model: Any = build(MODEL)
    batches = PairBatches(ENCODED, 0, 64, packed)
    rows = (batches.at(0).indices >= 0).sum()
    empty = batches.at(0, int(rows) + 1, int(rows) + 2)
    loss = translation_loss(model, empty, 0.1)
    loss.total.backward()
    assert (empty.tokens, float(loss.total.detach()), int(loss.count)) == (0, 0.0, 0)
    assert all(weight.grad is None or not weight.grad.any() for weight in model.parameters())


# ------------------------------------------------------------------ the same gradients
def gradients(
    team: Team,
    how: Parallel,
    accumulate: int,
    packed: bool,
    file: Path,
    made: TransformerConfig | Seq2SeqConfig = MODEL,
    at: int = 3,
) -> float:
    """The gradients of a step's share, added up over the team, written to a file by the leader; their norm."""
    torch.manual_seed(0)
    model: Any = build(made).train()
    config = settings(accumulate=accumulate, clip=0.25)
    batches = PairBatches(ENCODED, 0, 512, packed)
    spread = team.parallelize(model, stateless(partial(translation_loss, model, label_smoothing=0.1)), how)
    step = PlainStep(model, spread, make_optimizer(config.optimizer, model, CPU), config, CPU, None)
    micro = [batches.at(*place) for _, place in team.batch_indices(at, accumulate)]
    tokens = sum(batches.tokens(at + number) for number in range(accumulate))
    for index, batch in enumerate(micro):
        step.gradients(batch, tokens, last=index == len(micro) - 1)
    norm = float(step.norm())
    flat = torch.cat([whole(weight.grad).flatten() for weight in model.parameters()])
    if team.leads:
        np.save(file, flat.numpy())
    return norm


@pytest.mark.parametrize(
    ("world", "how", "accumulate", "packed"),
    [
        (2, "ddp", 1, False), (2, "fsdp", 1, False), (2, "ddp", 3, False), (2, "fsdp", 2, True), (3, "ddp", 2, True),
        pytest.param(3, "fsdp", 1, False, marks=pytest.mark.slow), (1, "ddp", 1, False), (1, "fsdp", 2, False),
    ],
)  # fmt: skip
def test_gradients_equal_one_process(tmp_path: Path, world: int, how: Parallel, accumulate: int, packed: bool) -> None:
    wanted = gradients(Team(), "ddp", accumulate, packed, tmp_path / "one.npy")
    norms = run_team(
        world, lambda team: gradients(team, how, accumulate, packed, tmp_path / "many.npy"), tmp_path
    )  # fmt: skip
    one, many = np.load(tmp_path / "one.npy"), np.load(tmp_path / "many.npy")
    assert np.linalg.norm(one - many) <= 1e-6 * np.linalg.norm(one)
    assert norms == pytest.approx([wanted] * world, rel=1e-6)
    assert wanted > 0.25  # so that clipping has an effect
    assert np.linalg.norm(many) == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize(
    ("how", "feed"),
    [
        ("ddp", "output"),
        ("fsdp", "input"),
        pytest.param("ddp", "input", marks=pytest.mark.slow),
        pytest.param("fsdp", "output", marks=pytest.mark.slow),
    ],
)
def test_gradients_of_decoders_with_unequal_steps_equal_one_process(
    tmp_path: Path, how: Parallel, feed: Literal["input", "output"]
) -> None:
    batches = PairBatches(ENCODED, 0, 512)
    at = next(n for n in range(20) if len({batches.at(n, part, 2).target.shape[1] for part in (0, 1)}) == 2)
    made = Seq2SeqConfig(
        vocab=TOKENIZER.vocab, width=16, encoder=RecurrentEncoder(layers=2, hidden=16), layers=2, hidden=16,
        attention=AttentionConfig(feed=feed), context=60, dropout=0.0,
    )  # fmt: skip
    gradients(Team(), "ddp", 1, False, tmp_path / "one.npy", made, at)
    run_team(2, lambda team: gradients(team, how, 1, False, tmp_path / "many.npy", made, at), tmp_path)
    one, many = np.load(tmp_path / "one.npy"), np.load(tmp_path / "many.npy")
    assert np.linalg.norm(one - many) <= 1e-6 * np.linalg.norm(one)


def tuned_gradients(team: Team, how: Parallel, freeze: bool, packed: bool, file: Path) -> None:
    """The gradients of a classifier's step, added up over the team, written to a file by the leader."""
    torch.manual_seed(0)
    encoder = BertConfig(vocab=WORDS.vocab, width=16, heads=2, layers=2, hidden=24, context=60, dropout=0.0)
    encoder = encoder.model_copy(update={"attention_dropout": 0.0})
    made = ClassifierConfig(encoder=encoder, labels=("long", "short"), dropout=0.0, freeze=freeze)
    model: Any = build(made).train()
    texts = [(pair.source, pair.target) for pair in PAIRS]
    batches = LabelledBatches(encode_texts(texts, np.arange(len(texts)) % 2, WORDS, 60), 0, 512, 16, packed)
    config = settings(clip=None)
    spread = team.parallelize(model, stateless(partial(class_loss, model)), how)
    step = PlainStep(model, spread, make_optimizer(config.optimizer, model, CPU), config, CPU, None)
    for _, place in team.batch_indices(2, 1):
        step.gradients(batches.at(*place), batches.tokens(2))
    learns = [whole(weight.grad).flatten() for weight in model.parameters() if weight.requires_grad]
    assert len(learns) == 2 if freeze else len(learns) > 2
    if team.leads:
        np.save(file, torch.cat(learns).numpy())


@pytest.mark.parametrize(
    ("how", "freeze", "packed"), [("ddp", True, False), ("fsdp", True, True), ("fsdp", False, False)]
)
def test_gradients_of_a_classifier_equal_one_process(tmp_path: Path, how: Parallel, freeze: bool, packed: bool) -> None:
    tuned_gradients(Team(), "ddp", freeze, packed, tmp_path / "one.npy")
    run_team(2, lambda team: tuned_gradients(team, how, freeze, packed, tmp_path / "many.npy"), tmp_path)
    one, many = np.load(tmp_path / "one.npy"), np.load(tmp_path / "many.npy")
    assert np.linalg.norm(one) > 0
    assert np.linalg.norm(one - many) <= 1e-6 * np.linalg.norm(one)


def test_shards_are_gathered_and_split_again(tmp_path: Path) -> None:
    def work(team: Team) -> list[float]:
        torch.manual_seed(0)
        model: Any = build(MODEL)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        team.parallelize(model, stateless(partial(translation_loss, model)), "fsdp")
        optimizer = make_optimizer(AdamW(), model, CPU)
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        state = {name: whole(value) for name, value in optimizer_tensors(optimizer, model).items()}
        again = make_optimizer(AdamW(), model, CPU)
        load_optimizer(again, model, state)
        same = [
            torch.equal(whole(value), state[name]) and local(value).numel() <= state[name].numel()
            for name, value in optimizer_tensors(again, model).items()
        ]
        weights = dict(model.named_parameters())
        cut = [torch.equal(local(shard_like(before[name], weights[name])), local(weights[name])) for name in weights]
        held = sum(local(weight).numel() for weight in weights.values())
        return [float(all(same)), float(any(cut)), held / sum(value.numel() for value in before.values())]

    for same, cut, share in run_team(2, work, tmp_path):
        assert same
        assert not cut  # the optimizer has moved them all
        assert 0.4 < share < 0.6


# ------------------------------------------------------------------ the same run
def train(team: Team, folder: Path, config: TrainConfig, until: int = 99, dropout: float = 0.0) -> list[Any]:
    """A run of the training loop, which its last process stops after a step."""
    torch.manual_seed(config.seed)
    model: Any = build(MODEL.model_copy(update={"dropout": dropout}))
    batches = PairBatches(ENCODED, config.seed, config.batch_tokens, config.batching == "packed")
    run = RunFolder.create_or_open(folder, "a: 1\n", keep=9) if team.leads else None
    checkpoint = run.latest() if run else None
    counters = Counters(**json.loads(team.broadcast(json.dumps(checkpoint.state if checkpoint else {}))))
    stems = ("model", "optimizer") if counters.step else ()
    saved = {stem: team.broadcast_tensors(checkpoint.load(stem) if checkpoint else None) for stem in stems}
    learn = partial(translation_loss, model, label_smoothing=0.1)
    saver = Saver(run, config.save_behind) if run else None

    def stop() -> bool:
        return team.rank == team.world - 1 and counters.step >= until - team.distributed

    events = list(fit(model, learn, batches, config, CPU, saver, {}, counters, saved, stop, team))
    if run:
        run.close()
    return [[event.step, event.loss] for event in events if isinstance(event, Step)]


def state(folder: Path, step: int = 8) -> dict[str, NDArray[np.float32]]:
    point = next(point for point in newest(folder, 99)[0] if point.step == step)
    return {
        f"{stem}/{name}": value.numpy() for stem in ("model", "optimizer") for name, value in point.load(stem).items()
    }


def close_states(found: dict[str, NDArray[np.float32]], expected: dict[str, NDArray[np.float32]]) -> None:
    """Assert that states differ by rounding, relative to the largest number of a kind: weights, or moments of Adam."""
    assert found.keys() == expected.keys()
    kinds = {name: name.partition("." if name.startswith("optimizer/") else "/")[0] for name in expected}
    for name, value in expected.items():
        largest = max(float(np.abs(expected[one]).max()) for one in expected if kinds[one] == kinds[name])
        close(found[name], value, 2**10, of=largest, msg=name)


@pytest.mark.parametrize(
    ("how", "world", "accumulate"),
    [
        pytest.param("ddp", 2, 1, marks=pytest.mark.slow),
        ("ddp", 3, 2),
        pytest.param("fsdp", 2, 1, marks=pytest.mark.slow),
    ],
)
def test_stopped_run_resumes_bit_for_bit(tmp_path: Path, how: Parallel, world: int, accumulate: int) -> None:
    config = settings(parallel=how, accumulate=accumulate)
    whole_run = run_team(world, lambda team: train(team, tmp_path / "whole", config, dropout=0.2), tmp_path)
    parts: list[list[Any]] = [[] for _ in range(world)]
    for last in (3, 6, 99):
        logged = run_team(world, lambda team: train(team, tmp_path / "parts", config, last, dropout=0.2), tmp_path)  # noqa: B023
        parts = [former + more for former, more in zip(parts, logged, strict=True)]
    assert parts == whole_run
    assert all(logged == whole_run[0] for logged in whole_run)  # every process logs the same
    assert [step for step, _ in whole_run[0]] == list(range(1, 9))
    one, other = state(tmp_path / "whole"), state(tmp_path / "parts")
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.claim("M24")
@pytest.mark.parametrize("how", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_parts_of_a_loss_are_those_of_one_process(tmp_path: Path, how: Parallel) -> None:
    config = settings(parallel=how, accumulate=3)

    def work(team: Team) -> list[Any]:
        torch.manual_seed(0)
        model: Any = build(MODEL)

        def in_parts(batch: Any) -> Loss:
            loss = translation_loss(model, batch)
            return weighted_sum(loss.count, {"words": (1.0, loss.total), "twice": (0.1, 2 * loss.total)})

        batches = PairBatches(ENCODED, config.seed, config.batch_tokens)
        events = fit(model, in_parts, batches, config, CPU, None, {}, Counters(), team=team)
        return [[event.step, event.loss, event.parts] for event in events if isinstance(event, Step)]

    one, other = run_team(2, work, tmp_path)
    assert one == other
    for (step, loss, parts), (_, expected, parts_of_one) in zip(one, work(Team()), strict=True):
        assert parts.keys() == parts_of_one.keys() == {"words", "twice"}, step
        assert [loss, *parts.values()] == near([expected, *parts_of_one.values()], LEARNED)


def test_workers_do_not_change_the_run(tmp_path: Path) -> None:
    alone = run_team(2, lambda team: train(team, tmp_path / "alone", settings(), dropout=0.2), tmp_path)
    helped = run_team(2, lambda team: train(team, tmp_path / "helped", settings(workers=2), dropout=0.2), tmp_path)
    assert helped == alone
    one, other = state(tmp_path / "alone"), state(tmp_path / "helped")
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_number_of_processes_may_change_between_resumes(tmp_path: Path, accumulate: int) -> None:
    """With 101 pairs, one, two and three processes take the same steps; a batch that is not split keeps its dropout."""
    dropout = 0.2 if accumulate == 2 else 0.0
    config = settings(accumulate=accumulate)
    sharded = settings(accumulate=accumulate, parallel="fsdp")
    alone = train(Team(), tmp_path / "alone", config, dropout=dropout)
    mixed = train(Team(), tmp_path / "mixed", config, 2, dropout)
    mixed += run_team(2, lambda team: train(team, tmp_path / "mixed", config, 4, dropout), tmp_path)[0]
    mixed += run_team(2, lambda team: train(team, tmp_path / "mixed", sharded, 6, dropout), tmp_path)[0]
    mixed += train(Team(), tmp_path / "mixed", config, dropout=dropout)
    assert [step for step, _ in mixed] == [step for step, _ in alone]
    assert [loss for _, loss in mixed] == near([loss for _, loss in alone])
    close_states(state(tmp_path / "mixed"), state(tmp_path / "alone"))


# ------------------------------------------------------------------ lanes with a carry
XL = "model={kind: transformer_xl, width: 8, heads: 2, layers: 2, hidden: 12, context: 6, memory: 8, dropout: 0.0}"


SHORT = [
    "train.device=cpu", "train.budget.steps=12", "train.save_every=4", "train.keep=9", "train.evaluate_every=12",
    "train.accumulate=2", "train.optimizer={kind: adamw, lr: 0.01, eps: 1.0e-4}",
]  # fmt: skip


def train_lanes(team: Team, folder: Path, how: Parallel, until: int = 99, *changes: str) -> list[Any]:
    """A run of a recurrent net, or another model, that carries its state from step to step."""
    words = "\n".join(f"{number} mice ate {number * 7 % 13} cheeses." for number in range(40))
    if team.leads:
        (folder.parent / "text.txt").write_text(words)
    team.wait()
    settings = [
        f"data.root={folder.parent}", "data.train=text.txt", "task.carry=true", "model.width=8", "model.hidden=8",
        "model.context=6", "model.dropout=0", "train.batch_tokens=30", *SHORT, f"train.parallel={how}", *changes,
    ]  # fmt: skip
    return run_steps(load_recipe("language-model", settings), team, folder, until)


def train_orders(team: Team, folder: Path, how: Parallel, until: int = 99) -> list[Any]:
    """A run of XLNet that predicts tokens in random orders, and carries its memory from step to step."""
    words = "\n\n".join("\n".join(f"{n} mice ate {n * 7 % k} cheeses." for n in range(8)) for k in range(5, 12))
    if team.leads:
        (folder.parent / "text.txt").write_text(words)
    team.wait()
    part = "[{kind: text, files: [text.txt], between: blank_lines, sentences: lines}]"
    settings = [
        f"data={{kind: documents, root: {folder.parent}, train: {part}, held_out: 0.3}}", "task.memory=8",
        "tokenizer.vocab=60", "model={kind: xlnet, width: 8, heads: 2, layers: 2, hidden: 12, context: 16, dropout: 0}",
        "train.batch_tokens=80", "train.schedule={kind: constant}", *SHORT, f"train.parallel={how}",
    ]  # fmt: skip
    return run_steps(load_recipe("xlnet-prose", settings), team, folder, until)


def run_steps(recipe: Any, team: Team, folder: Path, until: int) -> list[Any]:
    """The steps of a run and their losses, stopped after one of them."""
    at = 0

    def stop() -> bool:
        return at >= until - team.distributed

    losses = []
    for event in train_recipe(recipe, folder, stop, team):
        if isinstance(event, Step):
            at = event.step
            losses.append([event.step, event.loss])
    return losses


def carries(folder: Path) -> dict[int, bytes]:
    """The carry of each regular checkpoint, byte for byte."""
    points = {point.step: point.path for point in newest(folder, 99)[0] if point.step % 4 == 0}
    return {step: (path / "carry.safetensors").read_bytes() for step, path in points.items()}


LANES: dict[str, Callable[[Team, Path, Parallel, int], list[Any]]] = {
    "recurrent": train_lanes,
    "memory": lambda team, folder, how, until: train_lanes(team, folder, how, until, XL),
    "permutation": train_orders,
}


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        pytest.param("recurrent", "ddp"),
        pytest.param("memory", "fsdp", marks=pytest.mark.slow),
        pytest.param("permutation", "ddp", marks=pytest.mark.slow),
        pytest.param("memory", "ddp", marks=pytest.mark.slow),
        pytest.param("recurrent", "fsdp"),
    ],
)
def test_lanes_of_two_processes_resume_bit_for_bit(tmp_path: Path, how: Parallel, kind: str) -> None:
    """Five lanes: three in one process, two in the other."""
    run = LANES[kind]
    whole_run = run_team(2, lambda team: run(team, tmp_path / "whole", how, 99), tmp_path)
    parts = []
    for last in (3, 8, 99):
        parts += run_team(2, lambda team: run(team, tmp_path / "parts", how, last), tmp_path)[0]  # noqa: B023
    assert parts == whole_run[0] == whole_run[1]
    assert [step for step, _ in parts] == list(range(1, 13))
    assert carries(tmp_path / "parts") == carries(tmp_path / "whole")
    assert len(carries(tmp_path / "whole")) == 3
    one, other = state(tmp_path / "whole", 12), state(tmp_path / "parts", 12)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_lanes_resume_with_another_number_of_processes(tmp_path: Path) -> None:
    alone = train_lanes(Team(), tmp_path / "alone", "ddp")
    mixed = train_lanes(Team(), tmp_path / "mixed", "ddp", 4)
    mixed += run_team(3, lambda team: train_lanes(team, tmp_path / "mixed", "ddp", 8), tmp_path)[0]
    mixed += run_team(2, lambda team: train_lanes(team, tmp_path / "mixed", "fsdp"), tmp_path)[0]
    assert [step for step, _ in mixed] == [step for step, _ in alone]
    assert [loss for _, loss in mixed] == near([loss for _, loss in alone])
    one, other = (newest(tmp_path / name, 1)[0][0].load("carry") for name in ("alone", "mixed"))
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].shape == (5, 8)
        close(other[name], one[name], LEARNED)


def test_permutations_of_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    alone = train_orders(Team(), tmp_path / "alone", "ddp")
    two = run_team(2, lambda team: train_orders(team, tmp_path / "two", "ddp"), tmp_path)[0]
    assert [step for step, _ in two] == [step for step, _ in alone] == list(range(1, 13))
    assert [loss for _, loss in two] == near([loss for _, loss in alone], LEARNED)


def test_more_processes_than_lanes_are_rejected(tmp_path: Path) -> None:
    run_team(6, lambda team: train_lanes(team, tmp_path / "run", "ddp"), tmp_path, expected=2)
    assert any("more processes than lanes" in line for line in error_lines(tmp_path, 6))


# ------------------------------------------------------------------ a process dies
def error_lines(folder: Path, world: int = 2) -> list[str]:
    return [line for rank in range(world) for line in (folder / f"said-{rank}").read_text().splitlines()]


def test_error_of_one_process_ends_all_and_is_reported_once(tmp_path: Path) -> None:
    def work(team: Team) -> None:
        if team.rank == 1:
            raise UserError("no such file", where="x.txt", exit_code=7)
        team.wait()

    run_team(2, work, tmp_path, expected=7)
    assert error_lines(tmp_path) == ["error: x.txt: rank 1: no such file"]


def test_waiting_process_reports_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "JOIN_TIMEOUT", timedelta(seconds=1))
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # set by the team, restored afterwards
    with (
        pytest.raises(UserError, match="rank 1 cannot reach the other processes") as error,
        Team(ProcessInfo(1, 2, 1, 2, "127.0.0.1", 9)),
    ):
        pass
    assert error.value.where == "127.0.0.1:9"


def test_different_data_is_reported(tmp_path: Path) -> None:
    run_team(2, lambda team: team.require_same("sky", f"colour {team.rank}", "look again"), tmp_path, expected=2)
    assert error_lines(tmp_path)[0] == "error: rank 1: the sky differs from that of rank 0"


def test_process_that_exits_normally_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Heartbeat.leave

    def slowly(heartbeat: Heartbeat) -> None:
        time.sleep(1.5 if heartbeat.rank == 0 else 0)  # long enough for the others to exit, and to be noticed
        real(heartbeat)

    monkeypatch.setattr(Heartbeat, "leave", slowly)
    assert run_team(3, lambda team: time.sleep(1.2), tmp_path) == [None] * 3
    assert error_lines(tmp_path, 3) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_process_ends_all(tmp_path: Path, victim: int) -> None:
    def work(team: Team) -> None:
        team.report_step(5)
        team.wait()
        until(lambda: team.heartbeat is not None and 1 - team.rank in team.heartbeat.signs)
        until(lambda: team.heartbeat is not None and team.heartbeat.signs[1 - team.rank].step == 5)
        if team.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        team.wait()

    with pytest.raises(AssertionError) as codes:
        run_team(2, work, tmp_path)
    assert ("[-9, 75]" if victim == 0 else "[75, -9]") in str(codes.value)
    lines = [line for line in error_lines(tmp_path) if line.startswith("error")]
    assert len(lines) == 1
    # The launcher may notice the exit of a process first, and then its signal is a guess.
    killed = (
        rf"error: rank {victim} was killed,? by SIGKILL \(signal 9\)( or in a crash)?, at step 5; the run has ended"
    )
    assert re.match(killed, lines[0]), lines
