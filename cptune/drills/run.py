"""Runs drills: those that need none first, then all others on four ranks that start once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from cptune.cluster.connection import LOCAL
from cptune.cluster.gang import Gang
from cptune.cluster.gang_calls import RunOnGang
from cptune.cluster.probe import measure_plan
from cptune.cluster.ray_launcher import RayLauncher
from cptune.cluster.session import joined_cluster, ready_for_calls
from cptune.domain.probe import EdgeReading, ProbeAsk, ProbePlan
from cptune.domain.study import SweepSpec
from cptune.drills.finding import Drill, Drilled
from cptune.drills.ranks import RANKS, Ranks
from cptune.seams import Launcher

Provoke = Callable[[Ranks], object]


def run_drills(
    drills: Sequence[Drill],
    *,
    address: str = LOCAL,
    on_drilled: Callable[[Drilled], None],
) -> tuple[Drilled, ...]:
    """Provoke every failure and put it before its guard; in the order that they were given.

    Args:
        drills: What to provoke.
        address: "local", or the address of a Ray cluster; not used where no drill needs ranks.
        on_drilled: Told of each as it ends.

    Raises:
        ClusterError: when the cluster cannot do it, or a rank fails that should not.
    """
    found: dict[str, Drilled] = {}
    seen: dict[Provoke, object] = {}
    ordered = sorted(drills, key=lambda one: (one.provoke is not None, one.comes_last))
    with ExitStack() as stack:
        ranks: Ranks | None = None
        for drill in ordered:
            if drill.provoke is not None and drill.provoke not in seen:
                ranks = ranks or stack.enter_context(_started(address))
                seen[drill.provoke] = drill.provoke(ranks)
            finding = drill.judge(seen[drill.provoke] if drill.provoke else None)
            found[drill.name] = Drilled(drill=drill, finding=finding)
            on_drilled(found[drill.name])
    return tuple(found[drill.name] for drill in drills)


def drills_json(drilled: Sequence[Drilled]) -> dict[str, object]:
    """What `cptune drill --format json` prints."""
    return {"drills": [one.to_json() for one in drilled]}


@contextmanager
def _started(address: str) -> Generator[Ranks]:
    with (
        joined_cluster(address, ranks=RANKS) as (nodes, topology),
        ready_for_calls(nodes=nodes, topology=topology, ranks=RANKS) as run,
    ):
        yield ranks_of(run.gang)


def ranks_of(gang: Gang) -> Ranks:
    """The ranks of a started gang."""

    def launcher_of(spec: SweepSpec, capacity_bytes: int) -> Launcher:
        return RayLauncher(gang, devices=gang.devices, spec=spec, capacity_bytes=capacity_bytes)

    def probe(plan: ProbePlan, ask: ProbeAsk) -> tuple[EdgeReading, ...]:
        return measure_plan(gang, replace(plan, devices=gang.devices), ask=ask)

    return Ranks(run=RunOnGang(gang), launcher_of=launcher_of, probe=probe)
