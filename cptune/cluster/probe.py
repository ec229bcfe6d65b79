"""A probe on Ray: one process on every device of the planned rings, measured edge by edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import ray

from cptune.bench.job import GRACE_S, ProbeJob, Rendezvous
from cptune.cluster.connection import RayNode
from cptune.cluster.failures import most_telling
from cptune.cluster.gang import Gang
from cptune.cluster.inventory import unique_names
from cptune.cluster.session import joined_cluster
from cptune.domain.outcome import Failure
from cptune.domain.placement import Device
from cptune.domain.probe import EdgeReading, Probe, ProbeAsk, ProbePlan, join_readings
from cptune.domain.probe_plan import plan_probe
from cptune.errors import ClusterError, SpecError
from topology.graph import NETWORK
from topology.nouns import Topology

TRANSPORT = "gloo"
_EXCHANGE_S = 120.0  # one payload over one edge, and the wait of all other ranks for it


def probe_cluster(
    ask: ProbeAsk,
    *,
    address: str,
    promised: Topology | None = None,
    tell: Callable[[str], None],
) -> Probe:
    """Measure every edge of the planned rings; all processes are gone afterwards.

    Args:
        ask: The rings and how to measure them.
        address: "local", or the address of a running cluster.
        promised: What promises the rates and places the ranks; the cluster's own inventory if None.
        tell: Told what is about to be measured.

    Raises:
        SpecError: when a flag is wrong, or the topology's nodes are not those of the cluster.
        TopologyError: when no ring can be built.
        ClusterError: when the cluster cannot be reached, or a rank fails.
    """
    try:
        ask.check()
    except ValueError as exc:
        raise SpecError(str(exc)) from exc
    if promised is not None:
        plan_probe(promised, tp=ask.tp, cp=ask.cp)  # refuse before anything is started
    with joined_cluster(address, ranks=ask.tp * ask.cp) as (nodes, found):
        plan = plan_probe(promised or found, tp=ask.tp, cp=ask.cp)
        hosts = match_nodes(plan.devices, nodes=nodes)
        tell(
            f"measuring {len(plan.edges)} edges over {TRANSPORT}: {len(plan.devices)} processes on "
            f"{', '.join(node.name for node in hosts.values())}"
        )
        gang = Gang(plan.devices, nodes=list(hosts.values()), threads=1)
        try:
            gang.start()
            readings = measure_plan(gang, plan, ask=ask)
        finally:
            gang.close()
    plan = replace(plan, notes=(*plan.notes, *_note_transport(plan)))
    return join_readings(plan, readings, ask=ask, transport=TRANSPORT)


def _note_transport(plan: ProbePlan) -> list[str]:
    """What this transport does not use, where the topology speaks of it."""
    unused = {kind for edge in plan.edges if (kind := edge.kind) not in (None, NETWORK)}
    if not unused:
        return []
    return [
        f"{TRANSPORT}, the transport of trials on CPU processes, copies through host memory: edges "
        f"of kind {', '.join(sorted(unused))} tell what those get, not what the links could do"
    ]


def match_nodes(devices: Sequence[Device], *, nodes: Sequence[RayNode]) -> dict[str, RayNode]:
    """The Ray node of each node of the topology, by name; the only one is the only one.

    Raises:
        SpecError: when the cluster has no node of that name.
    """
    names = list(dict.fromkeys(device.node for device in devices))
    if len(names) == len(nodes) == 1:
        return {names[0]: nodes[0]}
    known = dict(zip(unique_names(nodes), nodes, strict=True))
    if unknown := [name for name in names if name not in known]:
        raise SpecError(
            f"the rings go over {', '.join(unknown)}, unknown to Ray; its nodes are "
            f"{', '.join(known)}",
            hint="name the nodes of the topology as `cptune topology --address` does",
        )
    return {name: known[name] for name in names}


def measure_plan(gang: Gang, plan: ProbePlan, *, ask: ProbeAsk) -> tuple[EdgeReading, ...]:
    """Measure every edge of a plan on a started gang that holds its devices.

    Raises:
        ClusterError: when a rank fails.
    """
    host, port = gang.ready()
    rendezvous = Rendezvous(host=host, port=port, prefix=gang.next_prefix(), timeout_s=_EXCHANGE_S)
    waiting = {
        gang.probe(
            device,
            ProbeJob(
                rank=rank,
                world_size=len(plan.devices),
                edges=tuple((edge.a_rank, edge.b_rank) for edge in plan.edges),
                payload_bytes=ask.payload_bytes,
                repeats=ask.repeats,
                rendezvous=rendezvous,
            ),
        ): (rank, device)
        for rank, device in enumerate(plan.devices)
    }
    readings, failures = _collect(gang, waiting)
    if failures:
        told = most_telling(failures)
        raise ClusterError(f"the probe failed on {told.node}, rank {told.rank}: {told.message}")
    return readings


def _collect(
    gang: Gang,
    places: Mapping[ray.ObjectRef[tuple[EdgeReading, ...] | Failure], tuple[int, Device]],
) -> tuple[tuple[EdgeReading, ...], list[Failure]]:
    """Every rank's readings; after a first failure only what comes at once."""
    waiting, readings, failures = dict(places), list[EdgeReading](), list[Failure]()
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1, timeout=GRACE_S if failures else None)
        if not done:
            break
        rank, device = waiting.pop(done[0])
        answer = gang.answer(done[0], device, rank=rank)
        if isinstance(answer, Failure):
            failures.append(answer)
        else:
            readings += answer
    return tuple(readings), failures
