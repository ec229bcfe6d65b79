"""One rank's part of a probe: every edge alone, then all at once, over the transport of the trials.

Only the receiver times, from a barrier to the return of its wait. A payload should take much longer
than the skew of the barrier, some tenths of a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from cptune.bench.job import ProbeJob
from cptune.bench.mesh import joined
from cptune.domain.probe import EdgeReading

_WARM_UP = 1  # opens the connection and touches the buffers

Ends = tuple[int, int]  # (sending rank, receiving rank)


def probe_rank(job: ProbeJob) -> tuple[EdgeReading, ...]:
    """Measure every edge that ends at this rank. Collective over all ranks of the job.

    Raises:
        RuntimeError: when a peer is lost or an exchange times out (torch.distributed).
    """
    with joined(job.rendezvous, rank=job.rank, world_size=job.world_size):
        return measure_edges(
            job.edges, rank=job.rank, payload_bytes=job.payload_bytes, repeats=job.repeats
        )


def measure_edges(
    edges: Sequence[Ends], *, rank: int, payload_bytes: int, repeats: int
) -> tuple[EdgeReading, ...]:
    """As `probe_rank`, inside a default group that exists."""
    buffers = _Buffers(edges, rank=rank, size=payload_bytes)
    idle_s: dict[Ends, float] = {}
    for edge in edges:
        idle_s |= _measure([edge], buffers=buffers, repeats=repeats)
    busy_s = _measure(edges, buffers=buffers, repeats=repeats)
    return tuple(
        EdgeReading(
            a_rank=edge[0],
            b_rank=edge[1],
            payload_bytes=payload_bytes,
            idle_s=seconds,
            busy_s=busy_s[edge],
        )
        for edge, seconds in idle_s.items()
    )


class _Buffers:
    """What this rank sends and where its edges land, made once so that no page is new."""

    def __init__(self, edges: Sequence[Ends], *, rank: int, size: int) -> None:
        self.rank = rank
        self.payload = torch.ones(size, dtype=torch.uint8)
        self.landing = {
            edge: torch.zeros(size, dtype=torch.uint8) for edge in edges if edge[1] == rank
        }


def _measure(edges: Sequence[Ends], *, buffers: _Buffers, repeats: int) -> dict[Ends, float]:
    """Median seconds of each of these edges that ends here, when they are used at once."""
    samples: dict[Ends, list[float]] = {edge: [] for edge in edges if edge in buffers.landing}
    for index in range(_WARM_UP + repeats):
        dist.barrier()
        for edge, seconds in _exchange(edges, buffers=buffers).items():
            if index >= _WARM_UP:
                samples[edge].append(seconds)
    return {edge: median(times) for edge, times in samples.items()}


def _exchange(edges: Sequence[Ends], *, buffers: _Buffers) -> dict[Ends, float]:
    arriving = [edge for edge in edges if edge in buffers.landing]
    ops = [dist.P2POp(dist.irecv, buffers.landing[edge], edge[0]) for edge in arriving]
    ops += [
        dist.P2POp(dist.isend, buffers.payload, edge[1])
        for edge in edges
        if edge[0] == buffers.rank
    ]
    start_s = perf_counter()
    works = dist.batch_isend_irecv(ops) if ops else []
    found: dict[Ends, float] = {}
    for edge, work in zip(arriving, works, strict=False):  # gloo: one work for each message
        work.wait()
        found[edge] = perf_counter() - start_s
    for work in works[len(arriving) :]:
        work.wait()
    return found
