"""`cptune topology probe` on a Ray of two hosts with a slow link: real ranks, real exit codes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from topology import Edge, Network, Node, Topology

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PORT = 6390
LINK_BYTES_PER_S = 25e6  # 200 Mbit/s
UP_S = 60.0
START = ("--block", "--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats")


class Cluster:
    """A head on the first host and a node on the second; the hosts are called a and b."""

    def __init__(self, hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.address = f"{hosts[0].address}:{PORT}"
        self.nodes: list[subprocess.Popen[bytes]] = []

    def environment(self, host) -> dict[str, str]:
        own = {
            "GLOO_SOCKET_IFNAME": host.device,
            "HOME": str(self.folder),
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": str(ROOT),
        }
        return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | own

    def start(self, name: str, *words: str) -> None:
        host = self.hosts[len(self.nodes)]
        ray = [str(BIN / "ray"), "start", *START, f"--node-ip-address={host.address}", *words]
        named = ("unshare", "--uts", "sh", "-c", f"hostname {name}; exec {' '.join(ray)}")
        with (self.folder / f"{name}.log").open("wb") as log:
            self.nodes.append(
                subprocess.Popen(
                    host.command(*named),
                    env=self.environment(host),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def cptune(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`cptune topology WORDS --address ...` on the first host."""
        host = self.hosts[0]
        return subprocess.run(
            host.command(
                *(sys.executable, "-m", "cptune", "topology", *words, "--address", self.address)
            ),
            env=self.environment(host),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=100,
        )

    def nodes_seen(self) -> list[str]:
        seen = self.cptune("--format", "json")
        return (
            [] if seen.returncode else [node["name"] for node in json.loads(seen.stdout)["nodes"]]
        )

    def end(self) -> None:
        for node in self.nodes:
            node.terminate()
        for node in self.nodes:
            node.wait(timeout=30)
        for host in self.hosts:
            left = subprocess.run(
                ["ip", "netns", "pids", host.name], capture_output=True, text=True
            )
            for pid in left.stdout.split():
                os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def cluster(two_hosts) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="cp"))
    made = Cluster(two_hosts, folder)
    try:
        made.start("a", "--head", f"--port={PORT}", "--include-dashboard=false")
        time.sleep(3)  # a node that finds no head gives up
        made.start("b", f"--address={made.address}")
        deadline = time.monotonic() + UP_S
        while (seen := made.nodes_seen()) != ["a", "b"]:
            assert time.monotonic() < deadline, (seen, (folder / "b.log").read_text())
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(240)
def test_a_link_that_is_slower_than_promised_is_named_and_one_as_promised_passes(cluster) -> None:
    answers = {}
    for promised in (10e9, LINK_BYTES_PER_S):
        link = Edge(a="a", b="b", bytes_per_s=promised)
        told = Topology(
            source="test", nodes=(Node(name="a"), Node(name="b")), network=Network(edges=(link,))
        )
        path = cluster.folder / "promise.json"
        path.write_text(json.dumps(told.to_json()))
        answers[promised] = cluster.cptune(
            *("probe", str(path), "--cp", "4", "--payload-mib", "2", "--repeats", "3"),
            *("--format", "json", "--out", "edges.parquet"),
        )

    fast, true = answers[10e9], answers[LINK_BYTES_PER_S]
    assert fast.returncode == 1, fast.stderr
    said = [line for line in fast.stderr.splitlines() if line.startswith("error: ")]
    assert [line.partition(" (")[0] for line in said] == [
        "error: a/cpu1 -> b/cpu0",
        "error: b/cpu1 -> a/cpu0",
    ]
    assert all("10.00 GB/s promised" in line for line in said)
    assert true.returncode == 0, true.stderr
    verdicts = [edge["verdict"] for edge in json.loads(true.stdout)["edges"]]
    assert verdicts == ["nothing promised", "kept", "nothing promised", "kept"]
    kept = pq.read_table(cluster.folder / "edges.parquet").to_pylist()
    assert [row["bytes"] for row in kept] == [2 << 20] * 4
    assert [row["promised_bytes_per_s"] for row in kept] == [None, 25e6, None, 25e6]
    assert all(row["bytes_per_s"] < 1.05 * LINK_BYTES_PER_S for row in (kept[1], kept[3]))
