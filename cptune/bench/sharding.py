"""Cutting a chunk of the model: over tensor-parallel ranks by DTensor, over replicas by FSDP2."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from cptune.bench.decoder import Decoder, KvProjection
from cptune.bench.device import RankDevice
from cptune.bench.readings import Stalls
from cptune.bench.recorder import Recorder
from cptune.domain.layout import Axis
from cptune.domain.timeline import WORLD
from cptune.domain.workload import ModelShape

# Their names from torch 2.13 on, where the old ones warn.
_ALL_GATHER: Any = getattr(dist, "all_gather_single", None) or getattr(
    dist, "all_gather_into_tensor", None
)
_REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or getattr(
    dist, "reduce_scatter_tensor", None
)


def cut_tensors(model: Decoder, tp: DeviceMesh, shape: ModelShape) -> None:
    """Give each tp rank its heads, its part of the feed-forward and its part of the vocabulary.

    Between them, norms and residuals are cut over the rows (sequence parallel, arXiv:2205.05198):
    rows are gathered before a block and scattered after it, instead of summed on all ranks.
    """
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "to_head": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    heads_are_cut = shape.kv_heads % tp.size() == 0
    for layer in model.blocks:
        plan |= _block_plan(f"blocks.{layer}", heads_are_cut=heads_are_cut)
    there = {name for name, _ in model.named_modules()}
    parallelize_module(model, tp, {name: style for name, style in plan.items() if name in there})
    if not heads_are_cut:
        _share_kv_heads(model, tp, shape)


def _block_plan(block: str, *, heads_are_cut: bool) -> dict[str, ParallelStyle]:
    # One conversion a module, so that its input gradient is summed over tp once.
    plan: dict[str, ParallelStyle] = {
        f"{block}.attention_norm": SequenceParallel(),
        f"{block}.attention": PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        f"{block}.attention.q": ColwiseParallel(),
        f"{block}.attention.out": RowwiseParallel(output_layouts=Shard(1)),
        f"{block}.mlp_norm": SequenceParallel(),
        f"{block}.mlp": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        f"{block}.mlp.gate": ColwiseParallel(),
        f"{block}.mlp.up": ColwiseParallel(),
        f"{block}.mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    if heads_are_cut:
        plan |= {f"{block}.attention.{name}": ColwiseParallel() for name in ("k", "v")}
    return plan


def _share_kv_heads(model: Decoder, tp: DeviceMesh, shape: ModelShape) -> None:
    """Keep all kv heads on every tp rank; each computes the one that its query heads read."""
    head = tp.get_local_rank() * shape.kv_heads // tp.size()
    own = slice(head * shape.head_dim, (head + 1) * shape.head_dim)
    for module in model.modules():
        if isinstance(module, KvProjection):
            whole = DTensor.from_local(module.weight.data, tp, [Replicate()], run_check=False)
            module.weight = torch.nn.Parameter(whole)
            module.own = partial(_own_rows, own)


def _own_rows(own: slice, x_BSE: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both as local tensors; this rank's gradients are a part of the sum over tp."""
    assert isinstance(x_BSE, DTensor), "attention is given all rows"
    assert isinstance(weight, DTensor), "the projection is the same on all tp ranks"
    x_local, whole = (one.to_local(grad_placements=[Partial()]) for one in (x_BSE, weight))
    return x_local, whole[own]


class ReplicaClock:
    """Collectives over the replicas, in sight of who counts the time that they block.

    Args:
        device: Of the rank.
        stalls: Counts the waits.
    """

    def __init__(self, device: RankDevice, stalls: Stalls) -> None:
        self._device, self._stalls = device, stalls
        self.recorder: Recorder | None = None
        #: False: nothing is exchanged, and what should come is what was there.
        self.moves = True

    def sum(self, tensor: Tensor, group: dist.ProcessGroup, *, name: str) -> None:
        """Sum a tensor over a group, in place, timed."""
        with self.timed(name, group, size_bytes=tensor.nbytes):
            if self.moves:
                dist.all_reduce(tensor, group=group)

    def sum_everywhere(self, tensor: Tensor, *, name: str) -> None:
        """Sum a tensor over all ranks of the job, in place; no time of the replicas."""
        with self._recorded(name, dist.group.WORLD, axis=WORLD, size_bytes=tensor.nbytes):
            dist.all_reduce(tensor)

    @contextmanager
    def timed(
        self, name: str, group: dist.ProcessGroup, *, size_bytes: int, layer: int | None = None
    ) -> Generator[None]:
        """A collective over the replicas runs inside; FSDP2's may be beside the compute."""
        axis, blocks = Axis.DP.value, self._device.is_computing()
        seen = self._recorded(
            name, group, axis=axis, size_bytes=size_bytes, layer=layer, blocks=blocks
        )
        with self._stalls.standing_still(axis) if blocks else nullcontext(), seen:
            yield

    @contextmanager
    def waiting_beside(self) -> Generator[None]:
        """The compute waits inside for a collective that runs beside it."""
        seen = nullcontext() if self.recorder is None else self.recorder.waiting_beside()
        with self._stalls.standing_still(Axis.DP.value), seen:
            yield

    def _recorded(
        self,
        name: str,
        group: dist.ProcessGroup | None,
        **seen: Any,  # noqa: ANN401
    ) -> AbstractContextManager[None]:
        if self.recorder is None or group is None or group.size() == 1:
            return nullcontext()
        return self.recorder.collective(name, group_name=group.group_name, **seen)


class _Buffer:
    def allocate(self, size: torch.Size, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for one exchange."""
        return torch.empty(size, dtype=dtype, device=device)


class _TimedAllGather(_Buffer, AllGather):
    def __init__(self, clock: ReplicaClock, layer: int | None) -> None:
        self._clock, self._layer = clock, layer

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        del async_op  # done when it returns, so that all of it is seen
        size_bytes, clock = output_tensor.nbytes, self._clock
        with clock.timed("gather weights", group, size_bytes=size_bytes, layer=self._layer):
            if clock.moves:
                _ALL_GATHER(output_tensor, input_tensor, group=group)
            else:
                # FSDP2 gathers in place: the input is a part of the output.
                output_tensor.view(group.size(), -1).copy_(input_tensor.clone().view(1, -1))
        return None


class _TimedReduceScatter(_Buffer, ReduceScatter):
    def __init__(self, clock: ReplicaClock, layer: int | None) -> None:
        self._clock, self._layer = clock, layer

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        del async_op  # done when it returns, so that all of it is seen
        size_bytes, clock = input_tensor.nbytes, self._clock
        with clock.timed("sum gradients", group, size_bytes=size_bytes, layer=self._layer):
            if clock.moves:
                _REDUCE_SCATTER(output_tensor, input_tensor, op=op, group=group)
            else:
                output_tensor.copy_(input_tensor.view(group.size(), -1)[group.rank()])
        return None


def shard_fully(
    model: Decoder, *, mesh: DeviceMesh, clock: ReplicaClock, compute: torch.dtype
) -> None:
    """Shard parameters, gradients and optimizer state over the replicas (FSDP2).

    Gradients are summed, not averaged: the loss is divided by the global token count already.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=compute if compute is torch.bfloat16 else None,
        reduce_dtype=torch.float32 if compute is torch.bfloat16 else None,
    )
    # The embedding goes with the chunk itself: alone it would return a view, which FSDP2 warns of.
    parts = [*model.blocks.values(), *([model.head] if model.chunk.is_last else [])]
    for part in (*parts, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    layers = {block: int(name) for name, block in model.blocks.items()}
    for part in model.modules():
        if isinstance(part, FSDPModule):
            layer = layers.get(part)
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction
            part.set_custom_all_gather(_TimedAllGather(clock, layer))
            part.set_custom_reduce_scatter(_TimedReduceScatter(clock, layer))
