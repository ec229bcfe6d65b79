"""The rate that a cluster cannot exceed: a step that is faster was not that step."""

from __future__ import annotations

from dataclasses import dataclass

from cptune.domain.candidate import Candidate, Recompute
from cptune.domain.devices import DeviceKind, kind_of_trials
from cptune.domain.guards import why_too_fast
from cptune.domain.outcome import Failure, Measurement
from cptune.domain.study import ClusterSpec, SweepSpec
from cptune.predict.facts import GpuFacts, read_gpu
from cptune.predict.flops import step_flop
from cptune.predict.found import found_gpu
from topology.nouns import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What computes: the cores of each node, or so many GPUs. None: not known."""

    cores: tuple[int | None, ...]
    gpu: GpuFacts | None = None


def hardware_of(cluster: ClusterSpec, topology: Topology) -> Hardware:
    """What the trials of a resolved spec run on."""
    if kind_of_trials(cluster, topology) is DeviceKind.CUDA:
        return Hardware(cores=(None,), gpu=found_gpu(topology))
    return Hardware(cores=tuple(node.cpus for node in topology.nodes))


class RateGuard:
    """Refuses a measurement whose rate no hardware of today reaches.

    Args:
        spec: The resolved spec.
        hardware: What computes; where it is not known, nothing is refused.
    """

    def __init__(self, spec: SweepSpec, *, hardware: Hardware) -> None:
        cores, gpu = hardware.cores, hardware.gpu
        known = [count for count in cores if count is not None]
        limit = read_gpu("cpu").limit_flop_per_s(spec.workload.precision)
        whole = limit is not None and len(known) == len(cores) > 0
        self._limit_flop_per_s = limit * sum(known) if limit is not None and whole else None
        if gpu is not None:
            peak = gpu.limit_flop_per_s(spec.workload.precision)
            self._limit_flop_per_s = None if peak is None else peak * (spec.cluster.world_size or 1)
        self._flop = step_flop(spec.model, spec.workload, Recompute.NONE).model

    def __call__(self, measurement: Measurement, candidate: Candidate) -> Failure | None:
        """A failure when the rate is above the limit; every candidate does the same step."""
        del candidate
        limit = self._limit_flop_per_s
        return why_too_fast(measurement, flop=self._flop, peak_flop_per_s=limit)
