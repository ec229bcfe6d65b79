"""From `[cluster]` of a spec, or a recorded inventory, to the machine that is predicted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cptune.domain.documents import DocumentLoad
from cptune.domain.stack import Stack
from cptune.domain.study import ClusterSpec, SweepSpec
from cptune.domain.support import PLANNED
from cptune.domain.workload import FULL_LENGTHS, Workload
from cptune.errors import SpecError
from cptune.predict.case import Case, Machine
from cptune.predict.facts import gpu_of_driver, read_curve, read_gpu
from cptune.predict.found import (
    NETWORK_BYTES_PER_S,
    PCIE_BYTES_PER_S,
    island_of,
    network_of,
    smallest_node,
)
from topology.errors import TopologyError
from topology.inputs import cannot_read
from topology.nouns import Topology
from topology.words import suggestion

if TYPE_CHECKING:
    from cptune.balance.work import Tokens

_NODE_SIZE = 8


def build_case(spec: SweepSpec) -> Case:
    """Everything that a prediction needs of a spec.

    Raises:
        SpecError: when the GPU is not known, the number of ranks is not given, the attention
            kernel has no rates on it, the optimizer's states are not known, or the lengths are
            wrong.
    """
    optimizer, known = spec.workload.optimizer, PLANNED.optimizers
    if optimizer not in known:
        near = suggestion(optimizer, known)
        raise SpecError(f"workload.optimizer | {optimizer!r} has states of unknown size{near}")
    machine = build_machine(spec.cluster)
    try:
        read_curve(machine.gpu.generation, spec.stack.kernel, spec.model.head_dim)
    except SpecError as exc:
        raise SpecError(f"stack.kernel | {exc}", hint=exc.hint) from exc
    # CPU processes run the trials' own modules.
    trials = Stack.EAGER if machine.gpu.generation == "cpu" else None
    return Case(
        model=spec.model,
        workload=spec.workload,
        machine=machine,
        stack=spec.stack.kind or trials,
        kernel=spec.stack.kernel,
        pipeline=spec.stack.pipeline,
        tp_inputs=spec.stack.tp_inputs,
        check_s=spec.stack.check_s,
        documents=read_documents(spec.workload, world_size=machine.world_size),
    )


def read_documents(workload: Workload, *, world_size: int) -> DocumentLoad | None:
    """What the lengths of a workload come to; None where its mask does not use them.

    Raises:
        SpecError: when the lengths are no file and no distribution, or the file is wrong.
    """
    if workload.lengths == FULL_LENGTHS:
        return None
    from cptune.balance.expected import expect_load  # brings numpy

    return expect_load(workload, world_size=world_size, open_file=_open_lengths)


def _open_lengths(path: Path, column: str | None) -> Iterable[Tokens]:
    from cptune.store.balance import open_lengths  # brings pyarrow

    return open_lengths(path, column)


def build_machine(cluster: ClusterSpec) -> Machine:
    """The machine of a cluster, from its inventory where there is one.

    Raises:
        SpecError: when the GPU is not known, the number of ranks is not given, or the inventory is
            not there or lists fewer GPUs.
    """
    found = None if cluster.topology is None else read_topology(Path(cluster.topology))
    gpu = read_gpu(_gpu_name(cluster, found))
    world = cluster.world_size or _gpus(found)
    if not world:
        raise SpecError(
            "cluster.world_size | missing, wanted the number of ranks to plan for",
            hint="set cluster.world_size, or cluster.topology to an inventory that lists the GPUs",
        )
    if found is not None and gpu.generation != "cpu":
        _refuse_crowding(world, found, listed_in=cluster.topology)
    node_size = cluster.gpus_per_node or smallest_node(found) or _NODE_SIZE
    island, link = island_of(gpu, node_size, found)
    network = cluster.network_bytes_per_s or network_of(found) or NETWORK_BYTES_PER_S
    return Machine(
        gpu=gpu,
        world_size=world,
        node_size=node_size,
        island_size=island,
        island_bytes_per_s=link,
        network_bytes_per_s=network,
        capacity_bytes=cluster.device_memory_bytes or gpu.memory_bytes,
        memory_margin=cluster.memory_margin,
        gather_hops=cluster.gather_hops,
        reduce_hops=cluster.reduce_hops,
    )


def read_topology(path: Path) -> Topology:
    """A recorded inventory.

    Raises:
        SpecError: when the file cannot be read or is no inventory.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise ValueError("it is empty")
        return Topology.from_json(json.loads(text))
    except (OSError, ValueError, TopologyError) as exc:
        raise SpecError(
            f"cluster.topology | {cannot_read(path, exc)}",
            hint="wanted what `cptune topology --out FILE` writes, by a path that is relative to "
            "the folder of the spec",
        ) from exc


def _gpu_name(cluster: ClusterSpec, found: Topology | None) -> str | None:
    if found is None:
        return cluster.gpu
    names = {gpu.name for node in found.nodes for gpu in node.gpus if gpu.name}
    known = {gpu_of_driver(name) or name for name in names}
    if cluster.gpu is not None:
        ours = {gpu_of_driver(name) for name in names}  # None: a source's own word, as H100
        if cluster.gpu != "cpu" and ours and ours.isdisjoint({cluster.gpu, None}):
            raise SpecError(
                f"cluster.gpu | {cluster.gpu!r} asked, and the inventory has "
                f"{', '.join(sorted(known))}",
                hint="leave cluster.gpu out, or give the inventory of what is planned for",
            )
        return cluster.gpu
    if len(known) > 1:
        raise SpecError(
            f"cluster.gpu | the inventory has {', '.join(sorted(known))}",
            hint="a plan is for one kind: set cluster.gpu",
        )
    return known.pop() if known else None


def _refuse_crowding(world: int, found: Topology, *, listed_in: str | None) -> None:
    """Refuse more ranks than the inventory has GPUs; CPU processes have no such bound.

    Hosts that only the network names have GPUs that nobody counted: nothing is known then.
    """
    listed = _gpus(found)
    named = {host for tier in found.network.tiers for host in tier.nodes}
    if 0 < listed < world and named <= {node.name for node in found.nodes}:
        raise SpecError(
            f"cluster.world_size | {world} ranks, and {listed_in} lists {listed} GPUs; "
            f"nearest legal: {listed}",
            hint="to plan for more nodes like these, leave cluster.topology out and give gpu, "
            "gpus_per_node and network_bytes_per_s",
        )


def _gpus(found: Topology | None) -> int:
    return 0 if found is None else sum(len(node.gpus) for node in found.nodes)


def island_rule(case: Case) -> int | None:
    """How many ranks of tp one island holds; None where nothing is known to be fast."""
    machine = case.machine
    fast = machine.island_bytes_per_s > PCIE_BYTES_PER_S
    return machine.island_size if fast else None
