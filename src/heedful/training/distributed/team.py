"""Many processes as one run, by torch.distributed: who takes part, what is broadcast, DDP and FSDP2.

A recipe says what a step is; the processes share it. Which pairs make up a step, and which rate and which dropout it
has, is the same for one process and for many, so that a run may resume with another number of them.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.data.pairs.batches import Batch
from heedful.data.workers import BatchIndex
from heedful.errors import UserError
from heedful.training.distributed.heartbeat import Heartbeat

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOOPBACK = ("127.0.0.1", "localhost", "::1")
JOINING = timedelta(minutes=5)  # until the last process has come
LONGEST_STEP = timedelta(minutes=30)
LONGEST_WAIT = timedelta(days=1)  # for a process that evaluates; one that is gone or frozen is noticed by its heartbeat
Carry = Any  # what a model takes along from batch to batch: see `training/carry.py`
LossOf = Callable[[Batch, Carry], tuple[Loss, Carry]]
Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Seat:
    """One process among many, as the launcher numbers them."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    port: int


def find_seat(variables: Mapping[str, str]) -> Seat | None:
    """This process's seat as torchrun or SLURM's srun sets it; None for a single process."""
    if "RANK" in variables and "WORLD_SIZE" in variables:
        address = variables.get("MASTER_ADDR", "127.0.0.1")
        # Without a local rank, each process is taken to be alone on its machine, unless all meet on this one.
        here = (variables["RANK"], variables["WORLD_SIZE"]) if address in LOOPBACK else ("0", "1")
        return Seat(
            _number(variables, "RANK", "0"),
            _number(variables, "WORLD_SIZE", "1"),
            _number(variables, "LOCAL_RANK", here[0]),
            _number(variables, "LOCAL_WORLD_SIZE", here[1]),
            address,
            _number(variables, "MASTER_PORT", "29500"),
        )
    # A batch script has SLURM's variables too; only what srun starts has those of a step.
    if "SLURM_PROCID" in variables and "SLURM_STEP_NUM_TASKS" in variables:
        nodes = variables.get("SLURM_STEP_NODELIST", variables.get("SLURM_NODELIST", "127.0.0.1"))
        job = _number(variables, "SLURM_JOB_ID", "0")
        world = _number(variables, "SLURM_STEP_NUM_TASKS", "1")
        tasks = variables.get("SLURM_STEP_TASKS_PER_NODE", str(world))
        return Seat(
            _number(variables, "SLURM_PROCID", "0"),
            world,
            _number(variables, "SLURM_LOCALID", "0"),
            _tasks_here(tasks, _number(variables, "SLURM_NODEID", "0")),
            variables.get("MASTER_ADDR", first_host(nodes)),
            _number(variables, "MASTER_PORT", str(20_000 + job % 20_000)),
        )
    return None


def first_host(nodes: str) -> str:
    """The first machine of a list in SLURM's shorthand, such as gpu[03-05,09],big1."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else nodes


def _tasks_here(counts: str, node: int) -> int:
    """The tasks on one machine, from a list in SLURM's shorthand: 2(x3),1 is 2, 2, 2, 1."""
    each = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    spread = [int(count) for count, times in each for _ in range(int(times or 1))]
    return spread[node] if node < len(spread) else 1


def _number(variables: Mapping[str, str], name: str, otherwise: str) -> int:
    text = variables.get(name, otherwise)
    if not text.isdecimal() or (name.endswith(("WORLD_SIZE", "NUM_TASKS")) and not int(text)):
        raise UserError(
            "this is not a whole number from 0 on", where=f"the environment variable {name}", found=text or "nothing",
            expected="1 or more" if name.endswith(("WORLD_SIZE", "NUM_TASKS")) else "0 or more",
            todo="start the processes with torchrun or srun, which set it",
        )  # fmt: skip
    return int(text)


class Team:
    """The processes of a run, of which the first leads: it alone writes files, evaluates and prints.

    Without a seat, the team is this process alone, and every word between processes is a word to itself.
    """

    def __init__(self, seat: Seat | None = None) -> None:
        self.rank, self.world = (seat.rank, seat.world) if seat else (0, 1)
        self.local_rank, self.local_world = (seat.local_rank, seat.local_world) if seat else (0, 1)
        self.seat = seat
        self.words = 0  # that were spoken and waited for so far
        self.store: Store | None = None
        self.heartbeat: Heartbeat | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes, evaluates and prints."""
        return self.rank == 0

    @property
    def together(self) -> bool:
        """Whether a launcher started this process as one of a group, be it of one."""
        return self.seat is not None

    def __enter__(self) -> Self:
        if self.seat is None:
            return self
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        if self.local_world == self.world:  # all on one machine: nothing of it listens to others
            loop = "lo" if sys.platform == "linux" else "lo0"
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loop)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", loop)
        seat = self.seat
        settings = {"MASTER_ADDR": seat.address, "MASTER_PORT": seat.port, "RANK": seat.rank, "WORLD_SIZE": seat.world}
        os.environ.update({name: str(value) for name, value in settings.items()})
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        try:
            common: Any = next(rendezvous("env://", timeout=JOINING))[0]
            # A launcher that restarts all processes may keep the store and what the former ones wrote. On several
            # machines the launchers need not agree on how often they restarted.
            here = self.local_world == self.world
            attempt = f"attempt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0') if here else 0}"
            self.store = PrefixStore(attempt, common)
            self.heartbeat = Heartbeat(PrefixStore(attempt, common.clone()), self.rank, self.world)
            self.heartbeat.start()
            dist.init_process_group(
                backend, store=self.store, rank=self.rank, world_size=self.world, timeout=LONGEST_STEP
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"rank {self.rank} does not reach the others",
                where=f"{seat.address}:{seat.port}",
                found=str(error).splitlines()[0],
                todo="start every process with torchrun, the same --rdzv-endpoint on each machine",
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.heartbeat is None:
            return
        import torch.distributed as dist

        if error is not None:
            self.heartbeat.fall(error)
            return
        try:
            self.wait()  # until the last process is done
        except RuntimeError as broken:
            self.heartbeat.fall(broken)
            raise
        self.heartbeat.leave()
        dist.destroy_process_group()

    def environment(self, parallel: Parallel) -> dict[str, object]:
        """What may make two runs differ: the number of processes, and how they share the model."""
        return {"processes": self.world, "parallel": parallel if self.together else None}

    def at_step(self, step: int) -> None:
        """Put the step into this process's heartbeat."""
        if self.heartbeat:
            self.heartbeat.step = step

    def sums(self, values: Sequence[float]) -> list[float]:
        """The elementwise sum of the values of all processes."""
        if self.world == 1:
            return list(values)
        import torch.distributed as dist

        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def wait(self) -> None:
        """A barrier, however long one process evaluates."""
        if self.store is None:
            return
        self.words += 1
        key = f"here/{self.words}"
        if self.store.add(key, 1) == self.world:
            self.store.set(f"{key}/all", "")
        self.store.wait([f"{key}/all"], LONGEST_WAIT)

    def word(self, text: str = "") -> str:
        """Broadcast a text from the leader to all processes."""
        if self.store is None or self.world == 1:
            return text
        self.words += 1
        key = f"word/{self.words}"
        if self.leads:
            self.store.set(key, text)
            return text
        self.store.wait([key], LONGEST_WAIT)
        return self.store.get(key).decode()

    def require_same(self, what: str, value: str, todo: str) -> None:
        """Refuse to train with processes whose value differs from the leader's."""
        if (leader := self.word(value)) != value:
            raise UserError(f"another {what} than that of rank 0", found=value[:60], expected=leader[:60], todo=todo)

    def tensors(self, given: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """The leader's tensors by name, on the CPU of every process."""
        if self.world == 1:
            return dict(given or {})
        import torch.distributed as dist

        shapes = [[name, str(value.dtype)[6:], list(value.shape)] for name, value in (given or {}).items()]
        kinds = json.loads(self.word(json.dumps(shapes)))
        found = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype, shape in kinds}
        for name, value in found.items():
            if given is not None:
                value.copy_(given[name])
            dist.broadcast(value, src=0)
        return found

    def rows(self, own: Tensor, count: int) -> Tensor:
        """All `count` rows, of which process r of n has rows r, r + n, r + 2n, ...; every process must call this."""
        if self.world == 1:
            return own
        import torch.distributed as dist

        found = own.new_empty(count, *own.shape[1:])
        for rank in range(self.world):
            part = own.contiguous() if rank == self.rank else torch.empty_like(found[rank :: self.world])
            dist.broadcast(part, src=rank)
            found[rank :: self.world] = part
        return found

    def places(self, position: int, accumulate: int, lanes: bool = False) -> Iterator[tuple[int, BatchIndex]]:
        """This process's share of a step: the numbers of its batches, and where they or its parts of them are found.

        Whole batches go round as far as they can; where there are fewer than processes, several share each. A batch
        that is not shared has its own dropout seed, so that the result does not depend on which process takes it. Where
        lanes continue from one batch to the next, each process has its own lanes of every batch.
        """
        circle = 1 if lanes else math.gcd(accumulate, self.world)
        parts = self.world // circle
        for micro in range(self.rank // parts, accumulate, circle):
            yield micro, BatchIndex(position + micro, self.rank % parts, parts)

    def spread(self, model: nn.Module, loss_of: LossOf, how: Parallel) -> Spread:
        """A model whose gradients are those of all processes together."""
        if not self.together:
            return Spread(loss_of)
        objective = Objective(model, loss_of)
        if how == "fsdp":
            return Spread(_sharded(objective), objective.sync, self.world)
        from torch.nn.parallel import DistributedDataParallel

        replicated = DistributedDataParallel(objective)
        return Spread(
            lambda batch, carry: _parted(replicated(batch, carry)),
            lambda last: nullcontext() if last else replicated.no_sync(),
            self.world,
        )


@dataclass(frozen=True)
class Spread:
    """A loss whose gradients are averaged over processes: times `share` they are the sum.

    `sync(last)` is the context of a forward and backward pass; gradients travel in the last of a step only.
    """

    loss_of: LossOf
    sync: Callable[[bool], AbstractContextManager[object]] = lambda last: nullcontext()
    share: int = 1


class Objective(nn.Module):
    """A model and its loss as the one module that torch wraps."""

    def __init__(self, model: nn.Module, loss_of: LossOf) -> None:
        super().__init__()
        self.model, self.loss_of = model, loss_of

    def forward(self, batch: Batch, carry: Carry) -> tuple[Tensor, Tensor, Tensor, Carry]:
        loss, carry = self.loss_of(batch, carry)
        return loss.total, loss.plain, loss.count, carry

    def sync(self, last: bool) -> AbstractContextManager[object]:
        """Whether gradients travel, for FSDP."""
        sharded: Any = self
        sharded.set_requires_gradient_sync(last)
        return nullcontext()


def _sharded(objective: Objective) -> LossOf:
    """Each process keeps a shard of every weight; those of a layer's parts come together while they are at work."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    device = next(objective.parameters()).device.type
    mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
    layers = [layer for stack in objective.modules() if isinstance(stack, nn.ModuleList) for layer in stack]
    # What is called as often as a sequence is long, which processes would not agree on, comes together once for all.
    layers = [layer for layer in layers if not getattr(layer, "stepped", False)]
    for part in (part for layer in layers for part in layer.children()):
        if any(weight.dim() > 1 for weight in part.parameters()):
            fully_shard(part, mesh=mesh)
            for entrance in getattr(part, "entrances", ()):
                register_fsdp_forward_method(part, entrance)
    fully_shard(objective, mesh=mesh)
    # Torch fears in-place changes of what a part returns; the blocks make none, and a test holds the gradients equal.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    return lambda batch, carry: _parted(objective(batch, carry))


def _parted(result: tuple[Any, ...]) -> tuple[Loss, Carry]:
    """What an objective returns, which torch knows as a tuple only."""
    *loss, carry = result
    return Loss(*loss), carry
