"""The process that holds one device: plain methods, wrapped as a Ray actor by the gang."""

from __future__ import annotations

import os
from typing import TypeVar

import ray

from cptune.bench.calls import RankCall
from cptune.bench.job import ProbeJob, RankJob
from cptune.cluster.failures import attempt
from cptune.cluster.last_words import own_stderr
from cptune.cluster.seats import Seen
from cptune.domain.environment import told_variables
from cptune.domain.outcome import Failure, RankReport
from cptune.domain.probe import EdgeReading
from cptune.versions import installed_versions
from topology.nvml import read_uuids

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


def _uuid(gpu: str) -> str | None:
    """The UUID of a GPU by what Ray calls it, the driver's number or the UUID itself."""
    return read_uuids().get(int(gpu)) if gpu.isdigit() else gpu


class RankActor:
    """Stays warm between trials: torch is imported once, process groups are new each time."""

    def __init__(self, *, threads: int) -> None:
        # Here and not above: the driver knows this class too, and does without torch.
        from cptune.bench import mesh, probe, rank, software

        mesh.use_threads(threads)
        self._open_store = mesh.open_store
        self._run_rank = rank.run_rank
        self._probe_rank = probe.probe_rank
        self._torch_parts = software.torch_parts
        self._store: object = None

    def identify(self) -> Seen:
        """Where this came up. CUDA is left alone: what holds the GPU before is still to be seen."""
        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids().get("GPU", [])
        gpu = gpus[0] if gpus else None
        return Seen(
            node_id=context.get_node_id(),
            pid=os.getpid(),
            gpu_id=gpu,
            gpu_uuid=None if gpu is None else _uuid(gpu),
            environment=told_variables(os.environ),
            versions={**installed_versions(), **self._torch_parts()},
            stderr=own_stderr(),
        )

    def open_store(self) -> tuple[str, int]:
        """Open a TCP store on a free port of this node; returns its address."""
        host = ray.util.get_node_ip_address()
        self._store, port = self._open_store(host)
        return host, port

    def call(self, call: RankCall[_Given, _Found]) -> _Found | Failure:
        """Run one rank's part of a function on all ranks."""
        return attempt(call.run, rank=call.rank, node="")

    def run(self, job: RankJob) -> RankReport | Failure:
        """Run one rank's part of a trial."""
        return attempt(lambda: self._run_rank(job), rank=job.rank, node=job.node)

    def probe(self, job: ProbeJob, node: str) -> tuple[EdgeReading, ...] | Failure:
        """Run one rank's part of a probe."""
        return attempt(lambda: self._probe_rank(job), rank=job.rank, node=node)
