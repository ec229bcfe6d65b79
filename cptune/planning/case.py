"""The case of a spec, whose inventory is there and large enough for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from cptune.domain.stack import Stack
from cptune.domain.study import ClusterSpec, SweepSpec
from cptune.errors import SpecError
from cptune.planning.machine import build_case
from cptune.predict.case import Case
from topology.inputs import cannot_read

_MISSING = "No such file or directory"  # as the system says it


def case_of(spec: SweepSpec) -> Case:
    """Everything that a prediction needs of a spec.

    Raises:
        SpecError: as `build_case`; when the inventory is not there or lists fewer GPUs than ranks.
    """
    path = None if spec.cluster.topology is None else Path(spec.cluster.topology)
    if path is not None and not _is_there(path):
        raise SpecError(
            f"cluster.topology | {cannot_read(path, _MISSING)}",
            hint="wanted what `cptune topology --out FILE` writes, by a path that is relative to "
            "the folder of the spec",
        )
    case = build_case(spec)
    if path is not None:
        _refuse_crowding(spec.cluster, path)
    if case.stack is None and case.machine.gpu.generation == "cpu":
        return replace(case, stack=Stack.EAGER)  # CPU processes run the trials' own modules
    return case


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or a NUL
        return False


def _refuse_crowding(cluster: ClusterSpec, path: Path) -> None:
    """Refuse more ranks than the inventory has GPUs; CPU processes have no such bound.

    Hosts that only the network names have GPUs that nobody counted: nothing is known then.
    """
    world = cluster.world_size
    if world is None or cluster.gpu == "cpu":
        return
    found = json.loads(path.read_text(encoding="utf-8"))  # read and checked before
    nodes = found["nodes"]
    named = {host for tier in found["network"]["tiers"] for host in tier["nodes"]}
    listed = sum(len(node["gpus"]) for node in nodes)
    if 0 < listed < world and named <= {node["name"] for node in nodes}:
        raise SpecError(
            f"cluster.world_size | {world} ranks, and {path} lists {listed} GPUs; "
            f"nearest legal: {listed}",
            hint="to plan for more nodes like these, leave cluster.topology out and give gpu, "
            "gpus_per_node and network_bytes_per_s",
        )
