"""`cptune topology` with a Ray of its own: the inventory, and probes that leave nothing behind."""

import json
import subprocess
import sys

import pyarrow.parquet as pq
from sweep_process import SweepProcesses

from topology import Gpu, Link, LinkKind, Node, Topology


def topology_of(processes: SweepProcesses, *words: object) -> subprocess.CompletedProcess[str]:
    process = start(processes, *words)
    out, err = process.communicate(timeout=100)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start(processes: SweepProcesses, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cptune", "topology", *words]
    return processes.start(command, cwd=processes.folder)


def pair(rate: float) -> str:
    """Two GPUs of one node, joined at this rate, as a recorded inventory."""
    link = Link(a=0, b=1, kind=LinkKind.PIX, bytes_per_s=rate)
    node = Node(name="recorded", gpus=(Gpu(index=0), Gpu(index=1)), gpu_links=(link,))
    return json.dumps(Topology(source="test", nodes=(node,)).to_json())


def test_the_inventory_of_a_local_ray_is_that_of_this_node(processes):
    alone = topology_of(processes, "--format", "json")
    found = topology_of(processes, "--address", "local", "--format", "json")

    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["nodes"] == json.loads(alone.stdout)["nodes"]
    assert found.stderr == ""


def test_ranks_of_cpus_are_measured_stored_and_promised_nothing(processes):
    done = topology_of(
        *(processes, "probe", "--cp", "2", "--payload-mib", "1"),
        *("--format", "json", "--out", "edges.parquet"),
    )

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["transport"] == "gloo"
    assert [(one["a_rank"], one["b_rank"]) for one in answer["edges"]] == [(0, 1), (1, 0)]
    assert {one["verdict"] for one in answer["edges"]} == {"nothing promised"}
    assert all(0 < one["seconds"] < 10 > one["busy_seconds"] > 0 for one in answer["edges"])
    assert pq.read_table(processes.folder / "edges.parquet").to_pylist() == answer["edges"]
    assert "measuring 2 edges over gloo: 2 processes on " in done.stderr


def test_a_recorded_inventory_of_one_node_is_held_to_this_one(processes):
    # A true one, that is held to what was measured, is in tests/net.
    path = processes.folder / "recorded.json"
    path.write_text(pair(1e15))

    done = topology_of(processes, "probe", "--cp", "2", "--payload-mib", "1", path)

    assert done.returncode == 1, done.stderr
    assert "edges of kind PIX tell what those get" in " ".join(done.stdout.split())
    assert "error: recorded/cuda0 -> recorded/cuda1 (ranks 0 -> 1, PIX)" in done.stderr


def test_nodes_that_the_cluster_does_not_have_are_refused(processes):
    path = processes.folder / "cluster.json"
    nodes = (Node(name="east"), Node(name="west"))
    path.write_text(json.dumps(Topology(source="test", nodes=nodes).to_json()))

    done = topology_of(processes, "probe", "--cp", "2", path)

    assert done.returncode == 2
    assert "the rings go over east, west, unknown to Ray; its nodes are " in done.stderr
