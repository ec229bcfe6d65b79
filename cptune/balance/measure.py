"""Attention kernels timed over sampled batches, in real processes, beside the count of their work.

Every rank runs its own part of each document: the zigzag chunks that ring attention would give it,
against the keys that they see. What travels between ranks is not timed here.

Shapes: B batch, S query rows, R key rows, H heads, D head dim.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention.kernels import Block, Kernel, choose_kernel
from cptune.attention.shard import Partition, Sharding
from cptune.balance.batches import Batches, Timed

_PASSES = 3  # over everything; of each row the fastest counts, since what else runs only adds


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShape:
    """The attention that is timed, forward alone."""

    heads: int = 4
    head_dim: int = 64
    device_type: str = "cpu"
    dtype: torch.dtype = torch.float32


class Stopwatch:
    """Times one rank's part of documents on one kernel."""

    def __init__(self, shape: KernelShape, *, longest: int) -> None:
        self._kernel: Kernel = choose_kernel(
            "auto", device_type=shape.device_type, dtype=shape.dtype
        )
        self._scale = shape.head_dim**-0.5
        size = (3, 1, longest, shape.heads, shape.head_dim)
        seeded = torch.Generator().manual_seed(0)
        inputs = torch.randn(size, generator=seeded).to(shape.device_type, shape.dtype)
        self._q_BSHD, self._k_BRHD, self._v_BRHD = inputs
        self._on_device = shape.device_type != "cpu"

    @property
    def kernel(self) -> str:
        """The kernel that runs."""
        return self._kernel.name

    def seconds(self, documents: Sequence[int], *, cp: int, cp_rank: int) -> float:
        """One run over this rank's part of all documents of a row."""
        begin = self._now()
        for tokens in documents:
            part = Partition(seq_len=tokens, cp_size=cp, sharding=Sharding.ZIGZAG)
            for start, stop in part.intervals(cp_rank):
                if start:
                    self._run(start, stop, keys=slice(0, start), causal=False)
                self._run(start, stop, keys=slice(start, stop), causal=True)
        return self._now() - begin

    def _run(self, start: int, stop: int, *, keys: slice, causal: bool) -> Tensor:
        block = Block(
            self._q_BSHD[:, start:stop],
            self._k_BRHD[:, keys],
            self._v_BRHD[:, keys],
            causal=causal,
            scale=self._scale,
        )
        return self._kernel.forward(block)[0]

    def _now(self) -> float:
        """Seconds of this thread: ranks that share a core do not slow each other's clock."""
        if self._on_device:
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.thread_time()


def time_rank(batches: Batches, shape: KernelShape | None = None) -> Timed:
    """This rank's part of every row; collective over the default group of torch.distributed."""
    rank, world = dist.get_rank(), dist.get_world_size()
    watch = Stopwatch(shape or KernelShape(), longest=batches.longest)
    rows_s: dict[int, dict[int, float]] = {cp: {} for cp in batches.rows}
    alone_s: dict[int, dict[int, float]] = {cp: {} for cp in batches.rows}
    for _ in range(_PASSES):
        for cp, rows in batches.rows.items():
            dist.barrier()
            group, cp_rank = divmod(rank, cp)
            for tokens in batches.calibration:
                run_s = watch.seconds([tokens], cp=cp, cp_rank=cp_rank)
                alone_s[cp][tokens] = min(run_s, alone_s[cp].get(tokens, run_s))
            for row in range(group, len(rows), world // cp):
                run_s = watch.seconds(rows[row], cp=cp, cp_rank=cp_rank)
                rows_s[cp][row] = min(run_s, rows_s[cp].get(row, run_s))
    return Timed(rows_s=rows_s, alone_s=alone_s, kernel=watch.kernel)
