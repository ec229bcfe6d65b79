"""Topology: rings of a large cluster, many recorded nodes, one node, and a Ray of three nodes."""

from __future__ import annotations

import json
import os
import random
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from bench.record import Claim, Report, Table, at_most, exactly
from topology import Gpu, GpuNic, Link, LinkKind, Network, Nic, Node, Tier, TierKind, Topology
from topology.gpu import Fabric, FabricState
from topology.merge import join_nodes
from topology.rings import plan_rings

NODES, GPUS, TP, CP = 2048, 8, 8, 16
RACKS = (32, 24, 9, 8)
LEAVES_PER_SPINE = 8
RECORDED = 64
RAYLETS = 3
REPEATS = 3
RINGS_S, MERGE_S, NODE_S, RAYLETS_S = 1.0, 1.0, 0.3, 5.0
CONTRACT = Path(__file__).parents[1] / "tests" / "contract"
RACK_UUID = "01234567-89ab-cdef-0123-456789abcdef"

# Prints seconds of the clock, from the first import of ours to the printed inventory.
OWN_TIME = """
import sys, time
start = time.perf_counter()
from topology.cli import main
code = main(["--format", "json"])
sys.stderr.write(f"{time.perf_counter() - start} {code}")
"""


def run() -> Report:
    """Run everything; half a minute."""
    rows, claims = large_rings()
    others, more = [], list[Claim]()
    for what, seconds, bound in (
        (f"merge {RECORDED} recorded nodes of {GPUS} GPUs, read from JSON", merge_s(), MERGE_S),
        *((what, seconds, NODE_S) for what, seconds in one_node_s()),
        (f"inventory of {RAYLETS} raylets, once Ray is up", raylets_s(), RAYLETS_S),
    ):
        others.append([what, f"{seconds:.3f}", f"{bound:g}"])
        more.append(at_most(f"seconds: {what}", seconds, bound))
    return Report(
        notes=[
            f"{NODES:,} nodes of {GPUS} GPUs, TP={TP}, CP={CP}; names say nothing of racks, "
            f"{LEAVES_PER_SPINE} racks are below a spine, the spines below one core",
            "crossings: edges of rings whose ends are below different leaf switches, or spines",
            "least: 2 for each ring that cannot lie inside one of them, the fewest there can be; "
            "where racks hold no whole group more than two may have to meet, so no claim at 9",
            "by name: groups of nodes in the order of their names",
            f"rings: CPU seconds, median of {REPEATS}; the others on the clock, the best of "
            f"{REPEATS}, but the raylets, which are asked once",
        ],
        tables=[
            Table(
                title="Rings of a shuffled fat tree",
                columns=(
                    *("nodes a rack", "rings", "CPU s"),
                    *("leaf crossings", "least", "by name", "core crossings", "least", "by name"),
                ),
                rows=rows,
            ),
            Table(title="Inventory", columns=("what", "s", "at most"), rows=others),
        ],
        claims=[*claims, *more],
    )


def large_rings() -> tuple[list[Sequence[str]], list[Claim]]:
    """Time and crossings for each size of rack."""
    rows: list[Sequence[str]] = []
    claims: list[Claim] = []
    for rack in RACKS:
        topology, leaf_of, spine_of = fat_tree(rack)
        times = list[float]()
        for _ in range(REPEATS):
            start = process_time()
            plan = plan_rings(topology, tp=TP, cp=CP)
            times.append(process_time() - start)
        orders = [[device.node for device in ring.order] for ring in plan.rings]
        names = [node.name for node in topology.nodes]
        named = [names[start : start + CP] for start in range(0, NODES, CP) for _ in range(TP)]
        cells = [str(rack), str(len(plan.rings)), f"{median(times):.2f}"]
        for level, part_of in (("leaf", leaf_of), ("core", spine_of)):
            seen, least = crossings(orders, part_of), least_crossings(part_of)
            cells += [str(seen), str(least), str(crossings(named, part_of))]
            if level == "core" or rack != 9:
                claims.append(exactly(f"{level} crossings, racks of {rack}", seen, least))
        claims.append(at_most(f"CPU seconds, racks of {rack}", median(times), RINGS_S))
        rows.append(cells)
    return rows, claims


def crossings(orders: Iterable[Sequence[str]], part_of: Mapping[str, int]) -> int:
    """Edges of these rings of nodes that join different parts."""
    return sum(
        part_of[a] != part_of[b]
        for order in orders
        for a, b in zip(order, [*order[1:], order[0]], strict=True)
    )


def least_crossings(part_of: Mapping[str, int]) -> int:
    """Twice the rings that find no room inside one part: each leaves a part and comes back."""
    sizes = dict[int, int]()
    for part in part_of.values():
        sizes[part] = sizes.get(part, 0) + 1
    inside = sum(size // CP for size in sizes.values())
    return 2 * TP * (NODES // CP - inside)


def fat_tree(rack: int) -> tuple[Topology, dict[str, int], dict[str, int]]:
    """The cluster, and the leaf and the spine that each node is below."""
    names = [f"n{number:04}" for number in range(NODES)]
    shuffled = random.Random(0).sample(names, NODES)
    leaf_of = {name: place // rack for place, name in enumerate(shuffled)}
    spine_of = {name: leaf // LEAVES_PER_SPINE for name, leaf in leaf_of.items()}
    tiers = [Tier(name="core", kind=TierKind.SWITCH)]
    tiers += [
        Tier(name=f"spine{spine}", kind=TierKind.SWITCH, parent="core")
        for spine in range(max(spine_of.values()) + 1)
    ]
    tiers += [
        Tier(
            name=f"leaf{leaf}",
            kind=TierKind.SWITCH,
            parent=f"spine{leaf // LEAVES_PER_SPINE}",
            nodes=tuple(shuffled[leaf * rack : (leaf + 1) * rack]),
        )
        for leaf in range(max(leaf_of.values()) + 1)
    ]
    nodes = tuple(h100(name) for name in names)
    network = Network(tiers=tuple(tiers))
    return Topology(source="bench", nodes=nodes, network=network), leaf_of, spine_of


def h100(name: str) -> Node:
    """Eight GPUs behind NVSwitch, each with a NIC of its own."""
    fabric = Fabric(state=FabricState.COMPLETED, cluster_uuid=RACK_UUID, clique=0)
    return Node(
        name=name,
        gpus=tuple(
            Gpu(index=gpu, uuid=f"GPU-{name}-{gpu}", fabric=fabric if name[0] == "r" else None)
            for gpu in range(GPUS)
        ),
        nics=tuple(Nic(name=f"mlx5_{rail}", speed_bytes_per_s=50e9) for rail in range(GPUS)),
        gpu_links=tuple(
            Link(a=a, b=b, kind=LinkKind.NVLINK, lanes=18, bytes_per_s=478e9)
            for a, b in combinations(range(GPUS), 2)
        ),
        gpu_nics=tuple(
            GpuNic(
                gpu=gpu,
                nic=f"mlx5_{rail}",
                kind=LinkKind.PIX if gpu == rail else LinkKind.NODE,
            )
            for gpu in range(GPUS)
            for rail in range(GPUS)
        ),
    )


def best_s(act: Callable[[], object]) -> float:
    """The least seconds of a few tries."""
    found = list[float]()
    for _ in range(REPEATS):
        start = perf_counter()
        act()
        found.append(perf_counter() - start)
    return min(found)


def merge_s() -> float:
    """From the texts of recorded nodes to one topology."""
    texts = [
        json.dumps(Topology(source="nvml", nodes=(h100(f"r{number:02}"),)).to_json())
        for number in range(RECORDED)
    ]
    return best_s(lambda: join_nodes([Topology.from_json(json.loads(text)) for text in texts]))


def one_node_s() -> list[tuple[str, float]]:
    """Our own seconds of `python -m topology`, without the start of Python."""
    found = [("this node", _own_s(os.environ, gpus=None))]
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not CONTRACT.is_dir():
        return found
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = folder / "libnvidia-ml.so.1"
        command = [compiler, "-shared", "-fPIC", "-o", str(library), CONTRACT / "nvml_stub.c"]
        subprocess.run(command, check=True)
        machines = runpy.run_path(str(CONTRACT / "nvml_scenarios.py"))
        (folder / "answers").write_text(machines["render"](machines["h100_hgx"]()))
        stub = {"LD_LIBRARY_PATH": name, "NVML_STUB_ANSWERS": str(folder / "answers")}
        what = "a node of 8 H100 behind the real pynvml, the driver a stub"
        return [*found, (what, _own_s({**os.environ, **stub}, gpus=GPUS))]


def _own_s(environment: Mapping[str, str], *, gpus: int | None) -> float:
    """The least of a few tries, each of which must have seen this many GPUs."""
    found = list[float]()
    for _ in range(REPEATS):
        done = subprocess.run(
            [sys.executable, "-c", OWN_TIME],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds, code = done.stderr.split()
        (node,) = json.loads(done.stdout)["nodes"]
        assert code == "0", done.stderr
        assert gpus in (None, len(node["gpus"])), node["notes"]
        found.append(float(seconds))
    return min(found)


def raylets_s() -> float:
    """The inventory of three raylets of this machine, each asked for the first time."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    from ray.cluster_utils import Cluster

    from cptune.cluster.connection import connected
    from cptune.cluster.inventory import discover_cluster

    cluster = Cluster()
    try:
        for _ in range(RAYLETS):
            cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        with connected(cluster.address, cpus=1) as nodes:
            assert len(nodes) == RAYLETS
            start = perf_counter()
            found = discover_cluster(nodes)
            seconds = perf_counter() - start
        assert len(found.nodes) == RAYLETS
        return seconds
    finally:
        cluster.shutdown()
