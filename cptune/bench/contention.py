"""What the neighbours cost a ring: its exchanges alone, then with all groups of the job at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch.distributed as dist

from cptune.bench.ablation import ROUNDS, exchange
from cptune.bench.attention import MeasuredContextParallel
from cptune.bench.device import CPU, RankDevice
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import Mesh
from cptune.domain.outcome import EdgeReport
from cptune.domain.study import TraceKind


def contended_edges(
    kind: TraceKind,
    edges: Sequence[EdgeReport],
    *,
    mesh: Mesh,
    cp: MeasuredContextParallel,
    memory: TensorBudget,
    device: RankDevice = CPU,
) -> tuple[EdgeReport, ...]:
    """The same edges with their idle and busy seconds. Collective over all ranks of the job.

    One pass of attention, forward and backward, with nothing computed. Alone is only the context
    group of rank 0: the idle seconds of the others' edges stay unknown. Without another group there
    is no neighbour, and nothing is tried. Where the host's clock does not see how long a message
    takes, every edge has the seconds of the whole pass.
    """
    layout = mesh.layout
    if kind is not TraceKind.ABLATION or layout.cp in (1, layout.world_size):
        return tuple(edges)
    is_first = (mesh.at.tp, mesh.at.dp, mesh.at.pp) == (0, 0, 0)
    idle: dict[int, list[float]] = defaultdict(list)
    busy: dict[int, list[float]] = defaultdict(list)
    with memory.uncounted(), cp.without_compute():
        for _ in range(ROUNDS):
            dist.barrier()
            if is_first:
                _count(cp, idle, device=device)
            dist.barrier()
            _count(cp, busy, device=device)
    members = dist.get_process_group_ranks(mesh.cp)
    found = {
        members[peer]: (median(idle[peer]) if is_first else None, median(busy[peer]))
        for peer in busy
    }
    return tuple(
        replace(edge, idle_s=found[edge.peer_rank][0], busy_s=found[edge.peer_rank][1])
        for edge in edges
    )


def _count(
    cp: MeasuredContextParallel, seconds: dict[int, list[float]], *, device: RankDevice
) -> None:
    cp.traffic.reset()
    start_s = device.clock.restart()
    exchange(cp, device=device)
    pass_s = device.clock.settle() - start_s
    for peer, traffic in cp.traffic.peers.items():
        seconds[peer].append(traffic.seconds if device.host_sees_transfers else pass_s)
