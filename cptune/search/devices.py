"""Settles what the trials of a spec run on, once the nodes are known, or says why they cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cptune.domain.devices import DeviceKind, kind_of_trials
from cptune.domain.study import SweepSpec
from cptune.domain.units import bytes_text
from cptune.errors import SpecError
from cptune.predict.facts import gpu_of_driver
from topology.nouns import Gpu, Node, Topology

_TO_CPU = 'set cluster.gpu = "cpu" to try the layouts on CPU processes'


def settle_devices(spec: SweepSpec, topology: Topology) -> SweepSpec:
    """The spec with the GPU of the nodes in `cluster.gpu`, where trials run on GPUs.

    A GPU that no table knows is left out of it: its trials are measured as any others, and what is
    expected of them starts from the rates of no device in particular.

    Raises:
        SpecError: when the nodes are not alike, are not what the spec names, or have too few GPUs
            or too little memory for it.
    """
    if kind_of_trials(spec.cluster, topology) is DeviceKind.CPU:
        _refuse_absent(spec)
        return spec
    nodes = topology.nodes
    _refuse_mixed(nodes)
    gpus = [gpu for node in nodes for gpu in node.gpus]
    _refuse_partitioned(nodes)
    _refuse_small(spec, gpus)
    return replace(spec, cluster=replace(spec.cluster, gpu=_name(spec, gpus)))


def _refuse_absent(spec: SweepSpec) -> None:
    asked = spec.cluster.gpu
    if asked not in (None, DeviceKind.CPU.value):
        raise SpecError(
            f"cluster.gpu | {asked!r} asked, and no node has a GPU; nearest legal: 'cpu'",
            hint=f"{_TO_CPU}; to plan for other hardware, use `cptune plan`",
        )


def gpu_count(topology: Topology) -> int:
    """GPUs of all nodes."""
    return sum(len(node.gpus) for node in topology.nodes)


def _refuse_mixed(nodes: Sequence[Node]) -> None:
    kinds = {(len(node.gpus), *sorted({gpu.name or "?" for gpu in node.gpus})) for node in nodes}
    if len(kinds) == 1 and len(kinds.pop()) == 2:
        return
    seen = ", ".join(f"{node.name} has {_held(node)}" for node in nodes)
    raise SpecError(
        f"cluster | the nodes are not alike: {seen}; wanted the same number of one GPU on each",
        hint=f"start Ray on nodes that are alike, or {_TO_CPU}",
    )


def _held(node: Node) -> str:
    names = [gpu.name or "GPU of unknown name" for gpu in node.gpus]
    counts = [f"{names.count(name)} {name}" for name in dict.fromkeys(names)]
    return " and ".join(counts) or "no GPU"


def _refuse_partitioned(nodes: Sequence[Node]) -> None:
    cut = [f"{node.name}/{gpu.index}" for node in nodes for gpu in node.gpus if gpu.mig]
    if cut:
        raise SpecError(
            f"cluster | GPUs in MIG mode: {', '.join(cut)}; wanted whole GPUs",
            hint=f"nvidia-smi -mig 0 ends the mode, or {_TO_CPU}",
        )


def _refuse_small(spec: SweepSpec, gpus: Sequence[Gpu]) -> None:
    world, asked = spec.cluster.world_size, spec.cluster.device_memory_bytes
    if world is not None and world > len(gpus):
        raise SpecError(
            f"cluster.world_size | {world} ranks, and there are {len(gpus)} GPUs; "
            f"nearest legal: {len(gpus)}",
            hint=_TO_CPU,
        )
    least = min((gpu.memory_bytes for gpu in gpus if gpu.memory_bytes), default=None)
    if least is not None and asked > least:
        raise SpecError(
            f"cluster.device_memory_bytes | {bytes_text(asked)} asked, a GPU has "
            f"{bytes_text(least)}; nearest legal: {least}, or 0 for the device's own"
        )


def _name(spec: SweepSpec, gpus: Sequence[Gpu]) -> str | None:
    """Our name of the GPU, or None where no table has it."""
    seen = gpus[0].name
    found = None if seen is None else gpu_of_driver(seen)
    asked = spec.cluster.gpu
    if asked is None or asked == found:
        return found
    raise SpecError(
        f"cluster.gpu | {asked!r} asked, and the nodes have {seen or 'a GPU of unknown name'}"
        f"{f' ({found})' if found else ''}; nearest legal: {found or 'leave it out'}",
        hint="leave cluster.gpu out to take what is there; to plan for other hardware, "
        "use `cptune plan`",
    )
