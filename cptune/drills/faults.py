"""Faults of a rank: something else in the place of one function of it, until it is lifted.

Made without torch, which only ranks need.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cptune.domain.candidate import Recompute
from cptune.domain.workload import ModelShape
from cptune.proof.planting import put

if TYPE_CHECKING:
    from cptune.attention.wire import GroupWire, Messages, Work
    from cptune.bench.decoder import Block
    from cptune.bench.job import RankJob
    from cptune.bench.probe import Ends, _Buffers
    from cptune.bench.step import TrainStep

#: Puts a fault into this process, and takes it out again.
Fault = Callable[[], AbstractContextManager[None]]

_PLANTED = ExitStack()  # of this process, from one call of its driver to another


def plant(fault: Fault) -> None:
    """Have a fault in this rank until `lift`."""
    _PLANTED.enter_context(fault())


def lift(_: None) -> None:
    """Be as before."""
    _PLANTED.close()


def recomputed() -> AbstractContextManager[None]:
    """Every block computes its activations again in backward, whatever its candidate says."""
    from cptune.bench.decoder import Block

    honest = Block.__init__

    def init(self: Block, shape: ModelShape, recompute: Recompute) -> None:
        del recompute
        honest(self, shape, Recompute.FULL)

    return put(Block, "__init__", init)


def half_batch() -> AbstractContextManager[None]:
    """Every data-parallel group trains on the first half of its samples."""
    from cptune.bench import rank

    honest = rank.sample_ids

    def sample_ids(*, dp_rank: int, dp_size: int, global_batch_seqs: int) -> range:
        ids = honest(dp_rank=dp_rank, dp_size=dp_size, global_batch_seqs=global_batch_seqs)
        return ids[: max(1, len(ids) // 2)]

    return put(rank, "sample_ids", sample_ids)


@dataclass(frozen=True, slots=True)
class _Late:
    """A message that is not there before its time."""

    work: Work
    at_s: float

    def wait(self) -> None:
        self.work.wait()
        time.sleep(max(0.0, self.at_s - time.monotonic()))


def slow_wires(*, bytes_per_s: float) -> AbstractContextManager[None]:
    """What a rank receives for its attention comes at this rate, message beside message."""
    from cptune.attention.wire import GroupWire

    honest = GroupWire.post

    def post(self: GroupWire, *, recv: Messages, send: Messages) -> Sequence[Work]:
        works = honest(self, recv=recv, send=send)
        size = sum(tensor.nbytes for _, tensor in recv)
        at_s = time.monotonic() + size / bytes_per_s
        return [_Late(work, at_s) for work in works]

    return put(GroupWire, "post", post)


def slow_edge(*, a_rank: int, b_rank: int, bytes_per_s: float) -> AbstractContextManager[None]:
    """One rank sends to one other no faster than this."""
    from cptune.bench import probe

    honest = probe._exchange

    def exchange(edges: Sequence[Ends], *, buffers: _Buffers) -> dict[Ends, float]:
        if buffers.rank == a_rank and (a_rank, b_rank) in edges:
            time.sleep(buffers.payload.nbytes / bytes_per_s)
        return honest(edges, buffers=buffers)

    return put(probe, "_exchange", exchange)


def killed(*, victim: int) -> AbstractContextManager[None]:
    """The process of one rank is ended while its trial runs, as by a node that goes away."""
    from cptune.bench import rank

    build = rank._build_step

    def build_step(job: RankJob, **parts: object) -> TrainStep:
        if job.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return build(job, **parts)  # pyrefly: ignore[bad-argument-type]

    return put(rank, "_build_step", build_step)
