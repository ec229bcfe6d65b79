"""The way in and out of a Ray cluster: a local one of our own, or an address of somebody else's."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import ray
import ray.exceptions

from cptune.errors import ClusterError

LOCAL = "local"
_OBJECT_STORE_BYTES = 100_000_000  # trials pass a few kilobytes; Ray's default is a third of RAM


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """One living node of the cluster."""

    node_id: str
    name: str
    cpus: float
    gpus: float


@contextmanager
def connected(address: str, *, cpus: int) -> Generator[list[RayNode]]:
    """Connect to Ray and give its nodes; a local Ray is started for this and ended with it.

    Args:
        address: "local", or the address of a running cluster.
        cpus: Logical CPUs of a local Ray: one for each rank, however many cores there are.

    Raises:
        ClusterError: when Ray cannot be started or reached.
    """
    on_terminate = signal.getsignal(signal.SIGTERM)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        if address == LOCAL:
            ray.init(
                address=LOCAL,
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        else:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as exc:
        what = "start a local Ray" if address == LOCAL else f"reach Ray at {address}"
        raise ClusterError(f"cannot {what}: {exc}") from exc
    # Ray puts its own in place, which ends the process with the signal's number.
    signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield _nodes()
    finally:
        ray.shutdown()


def _nodes() -> list[RayNode]:
    alive = [
        RayNode(
            node_id=node["NodeID"],
            name=node["NodeManagerHostname"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(alive, key=lambda node: (node.name, node.node_id))
