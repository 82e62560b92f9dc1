"""Distributed training with torch.distributed: process groups, broadcasts, DDP and FSDP2.

The recipe defines a step, and the processes share it. Its batches, learning rate and dropout do not depend on the
number of processes, so that a run may resume with another number of them.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import warnings
from collections import Counter
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
JOIN_TIMEOUT = timedelta(minutes=5)  # until the last process has joined
STEP_TIMEOUT = timedelta(minutes=30)
WAIT_TIMEOUT = timedelta(days=1)  # while a process evaluates; a dead process is detected by its heartbeat
Carry = Any  # what a model carries from batch to batch: see `training/carry.py`
LossOf = Callable[[Batch, Carry], tuple[Loss, Carry]]
Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class ProcessInfo:
    """One process of a distributed run, as the launcher describes it."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    port: int


def find_process(variables: Mapping[str, str]) -> ProcessInfo | None:
    """This process as torchrun or SLURM's srun describes it; None for a single process."""
    if "RANK" in variables and "WORLD_SIZE" in variables:
        address = variables.get("MASTER_ADDR", "127.0.0.1")
        # Without a local rank, each process is assumed to be alone on its machine, unless all are on this one.
        here = (variables["RANK"], variables["WORLD_SIZE"]) if address in LOOPBACK else ("0", "1")
        return ProcessInfo(
            _number(variables, "RANK", "0"),
            _number(variables, "WORLD_SIZE", "1"),
            _number(variables, "LOCAL_RANK", here[0]),
            _number(variables, "LOCAL_WORLD_SIZE", here[1]),
            address,
            _number(variables, "MASTER_PORT", "29500"),
        )
    # A batch script has SLURM's variables too; only processes started by srun have those of a step.
    if "SLURM_PROCID" in variables and "SLURM_STEP_NUM_TASKS" in variables:
        nodes = variables.get("SLURM_STEP_NODELIST", variables.get("SLURM_NODELIST", "127.0.0.1"))
        job = _number(variables, "SLURM_JOB_ID", "0")
        world = _number(variables, "SLURM_STEP_NUM_TASKS", "1")
        tasks = variables.get("SLURM_STEP_TASKS_PER_NODE", str(world))
        return ProcessInfo(
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
            "this is not a non-negative integer", where=f"the environment variable {name}", found=text or "nothing",
            expected="1 or more" if name.endswith(("WORLD_SIZE", "NUM_TASKS")) else "0 or more",
            todo="start the processes with torchrun or srun, which set it",
        )  # fmt: skip
    return int(text)


class Team:
    """The processes of a run; the first is the leader, which alone writes files, evaluates and prints.

    Without `process`, the team is this process alone, and communication does nothing.
    """

    def __init__(self, process: ProcessInfo | None = None) -> None:
        self.rank, self.world = (process.rank, process.world) if process else (0, 1)
        self.local_rank, self.local_world = (process.local_rank, process.local_world) if process else (0, 1)
        self.process = process
        self.messages = 0  # broadcasts and barriers so far
        self.store: Store | None = None
        self.heartbeat: Heartbeat | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes, evaluates and prints."""
        return self.rank == 0

    @property
    def distributed(self) -> bool:
        """Whether a launcher started this process, even as the only one."""
        return self.process is not None

    def __enter__(self) -> Self:
        if self.process is None:
            return self
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        if self.local_world == self.world:  # all on one machine: do not listen to other machines
            loop = "lo" if sys.platform == "linux" else "lo0"
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loop)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", loop)
        process = self.process
        settings = {
            "MASTER_ADDR": process.address,
            "MASTER_PORT": process.port,
            "RANK": process.rank,
            "WORLD_SIZE": process.world,
        }
        os.environ.update({name: str(value) for name, value in settings.items()})
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        try:
            common: Any = next(rendezvous("env://", timeout=JOIN_TIMEOUT))[0]
            # A launcher that restarts all processes may keep the store with its old keys. On several machines, the
            # launchers may disagree on the number of restarts.
            here = self.local_world == self.world
            attempt = f"attempt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0') if here else 0}"
            self.store = PrefixStore(attempt, common)
            self.heartbeat = Heartbeat(PrefixStore(attempt, common.clone()), self.rank, self.world)
            self.heartbeat.start()
            dist.init_process_group(
                backend, store=self.store, rank=self.rank, world_size=self.world, timeout=STEP_TIMEOUT
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"rank {self.rank} cannot reach the other processes",
                where=f"{process.address}:{process.port}",
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
            self.wait()  # until the last process has finished
        except RuntimeError as broken:
            self.heartbeat.fall(broken)
            raise
        self.heartbeat.leave()
        dist.destroy_process_group()

    def environment(self, parallel: Parallel) -> dict[str, object]:
        """What may make two runs differ: the number of processes, and DDP or FSDP."""
        return {"processes": self.world, "parallel": parallel if self.distributed else None}

    def report_step(self, step: int) -> None:
        """Put the step into this process's heartbeat."""
        if self.heartbeat:
            self.heartbeat.step = step

    def sum(self, values: Sequence[float]) -> list[float]:
        """The elementwise sum of the values of all processes."""
        if self.world == 1:
            return list(values)
        import torch.distributed as dist

        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def sum_tensor(self, values: Tensor) -> Tensor:
        """The elementwise sum of a tensor over all processes."""
        if self.world > 1:
            import torch.distributed as dist

            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """A barrier, with a timeout long enough for an evaluation."""
        if self.store is None:
            return
        self.messages += 1
        key = f"here/{self.messages}"
        if self.store.add(key, 1) == self.world:
            self.store.set(f"{key}/all", "")
        self.store.wait([f"{key}/all"], WAIT_TIMEOUT)

    def broadcast(self, text: str = "") -> str:
        """Broadcast a text from the leader to all processes."""
        if self.store is None or self.world == 1:
            return text
        self.messages += 1
        key = f"word/{self.messages}"
        if self.leads:
            self.store.set(key, text)
            return text
        self.store.wait([key], WAIT_TIMEOUT)
        return self.store.get(key).decode()

    def require_same(self, what: str, value: str, todo: str) -> None:
        """Refuse to train with processes whose value differs from the leader's."""
        if (leader := self.broadcast(value)) != value:
            raise UserError(
                f"the {what} differs from that of rank 0", found=value[:60], expected=leader[:60], todo=todo
            )

    def broadcast_tensors(self, given: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """The leader's tensors by name, on the CPU of every process."""
        if self.world == 1:
            return dict(given or {})
        import torch.distributed as dist

        shapes = [[name, str(value.dtype)[6:], list(value.shape)] for name, value in (given or {}).items()]
        kinds = json.loads(self.broadcast(json.dumps(shapes)))
        found = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype, shape in kinds}
        for name, value in found.items():
            if given is not None:
                value.copy_(given[name])
            dist.broadcast(value, src=0)
        return found

    def gather_rows(self, own: Tensor, count: int) -> Tensor:
        """All `count` rows, where process r of n has rows r, r + n, r + 2n, ...; a collective call."""
        if self.world == 1:
            return own
        import torch.distributed as dist

        found = own.new_empty(count, *own.shape[1:])
        for rank in range(self.world):
            part = own.contiguous() if rank == self.rank else torch.empty_like(found[rank :: self.world])
            dist.broadcast(part, src=rank)
            found[rank :: self.world] = part
        return found

    def parts(self, accumulate: int) -> int:
        """The number of processes that share each micro-batch."""
        return self.world // math.gcd(accumulate, self.world)

    def batch_indices(self, position: int, accumulate: int, lanes: bool = False) -> Iterator[tuple[int, BatchIndex]]:
        """This process's part of a step: the number of each micro-batch, and the index of the batch or a part of it.

        Micro-batches are distributed over the processes; if there are fewer than processes, several processes share
        each. A micro-batch that is not shared has its own dropout seed, so the result does not depend on the process
        that computes it. With lanes, each process has its own lanes of every batch.
        """
        parts = self.world if lanes else self.parts(accumulate)
        circle = self.world // parts
        for micro in range(self.rank // parts, accumulate, circle):
            yield micro, BatchIndex(position + micro, self.rank % parts, parts)

    def parallelize(self, model: nn.Module, loss_of: LossOf, how: Parallel) -> ParallelLoss:
        """The loss with gradients over all processes, by DDP or FSDP."""
        if not self.distributed:
            return ParallelLoss(loss_of)
        objective = Objective(model, loss_of)
        if how == "fsdp":
            return ParallelLoss(_fsdp_loss(objective), objective.sync, self.world)
        from torch.nn.parallel import DistributedDataParallel

        replicated = DistributedDataParallel(objective)
        return ParallelLoss(
            lambda batch, carry: _unpack(replicated(batch, carry)),
            lambda last: nullcontext() if last else replicated.no_sync(),
            self.world,
        )


@dataclass(frozen=True)
class ParallelLoss:
    """A loss whose gradients are averaged over processes; times `share` they are the sum.

    `sync(last)` is the context of a forward and backward pass; gradients are synchronized in the last one of a step.
    """

    loss_of: LossOf
    sync: Callable[[bool], AbstractContextManager[object]] = lambda last: nullcontext()
    share: int = 1


class Objective(nn.Module):
    """A model and its loss as one module, for DDP and FSDP."""

    def __init__(self, model: nn.Module, loss_of: LossOf) -> None:
        super().__init__()
        self.model, self.loss_of = model, loss_of

    def forward(self, batch: Batch, carry: Carry) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor], Carry]:
        loss, carry = self.loss_of(batch, carry)
        return loss.total, loss.plain, loss.count, dict(loss.parts), carry

    def sync(self, last: bool) -> AbstractContextManager[object]:
        """Whether FSDP synchronizes gradients."""
        sharded: Any = self
        sharded.set_requires_gradient_sync(last)
        return nullcontext()


def _fsdp_loss(objective: Objective) -> LossOf:
    """The loss with FSDP: each process stores a shard of every weight; layers are gathered while they compute."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    device = next(objective.parameters()).device.type
    mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
    layers = [layer for stack in objective.modules() if isinstance(stack, nn.ModuleList) for layer in stack]
    # Layers that are called once per step of a sequence, whose length differs between processes, are gathered once.
    layers = [layer for layer in layers if not getattr(layer, "stepped", False)]
    # Weights that several layers share are gathered once too.
    uses = Counter(weight for layer in layers for weight in layer.parameters())
    layers = [layer for layer in layers if all(uses[weight] == 1 for weight in layer.parameters())]
    for part in (part for layer in layers for part in layer.children()):
        if any(weight.dim() > 1 for weight in part.parameters()):
            fully_shard(part, mesh=mesh)
            for entrance in getattr(part, "entrances", ()):
                register_fsdp_forward_method(part, entrance)
    fully_shard(objective, mesh=mesh)
    # Torch warns of in-place changes of outputs; the blocks make none, and a test compares the gradients.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    return lambda batch, carry: _unpack(objective(batch, carry))


def _unpack(result: tuple[Any, ...]) -> tuple[Loss, Carry]:
    """The loss and the carry, from the tuple that DDP and FSDP can return."""
    *loss, carry = result
    return Loss(*loss), carry
