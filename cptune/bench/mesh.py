"""The process groups of one trial, in Megatron's rank order, from one rendezvous."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from cptune.bench.job import Rendezvous
from cptune.domain.layout import Coordinates, ParallelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """This rank's groups. `tp` and `pp` are None where there is one rank of them.

    `replicas` are the ranks that have equal weights, DP x CP: where gradients and token counts are
    summed.
    """

    layout: ParallelLayout
    at: Coordinates
    tp: DeviceMesh | None
    pp: dist.ProcessGroup | None
    cp: dist.ProcessGroup
    replica_mesh: DeviceMesh

    @property
    def replicas(self) -> dist.ProcessGroup:
        """The group of `replica_mesh`."""
        return self.replica_mesh.get_group()


def use_threads(count: int) -> None:
    """Set the torch threads of this process: cores are shared with the other ranks of the node."""
    torch.set_num_threads(count)


def open_store(host: str) -> tuple[dist.TCPStore, int]:
    """Open a store on a free port; it lives as long as it is held."""
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    return store, store.port


@contextmanager
def joined(
    rendezvous: Rendezvous,
    *,
    rank: int,
    world_size: int,
    backend: str = "gloo",
    ends_after_failure: bool = True,
) -> Generator[None]:
    """The default process group for the time of one trial; collective over all its ranks.

    Without `ends_after_failure` the groups of a rank that failed are left as they are: its process
    is about to end, and to end them may mean to wait for peers that never come.
    """
    timeout = timedelta(seconds=rendezvous.timeout_s)
    store = dist.TCPStore(
        rendezvous.host, rendezvous.port, is_master=False, timeout=timeout, wait_for_workers=False
    )
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(rendezvous.prefix, store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )
    failed = True
    try:
        dist.barrier()  # who is done at once must not hang up on a rank that still joins
        yield
        failed = False
    finally:
        if ends_after_failure or not failed:
            dist.destroy_process_group()


def build_mesh(layout: ParallelLayout, *, device_type: str = "cpu") -> Mesh:
    """Cut the default group by the layout; collective over all ranks."""
    device_mesh = init_device_mesh(
        device_type,
        (layout.pp, layout.dp, layout.cp, layout.tp),
        mesh_dim_names=("pp", "dp", "cp", "tp"),
    )
    return Mesh(
        layout=layout,
        at=layout.coordinates(dist.get_rank()),
        tp=device_mesh["tp"] if layout.tp > 1 else None,
        pp=device_mesh["pp"].get_group() if layout.pp > 1 else None,
        cp=device_mesh["cp"].get_group(),
        replica_mesh=device_mesh["dp", "cp"]._flatten("replica"),
    )
