"""The inventory of a Ray of several nodes, each on an NVML stub with answers of its own.

`python -m raylets LIBRARY_FOLDER ANSWERS...`; prints the topology as JSON, or why it is refused.
"""

import json
import os
import sys

from ray.cluster_utils import Cluster

from cptune.cluster.connection import connected
from cptune.cluster.inventory import discover_cluster
from topology.errors import TopologyError


def main(library: str, *files: str) -> None:
    cluster = Cluster()
    try:
        for file in files:
            cluster.add_node(
                num_cpus=1,
                num_gpus=0,
                object_store_memory=80_000_000,
                env_vars={"LD_LIBRARY_PATH": library, "NVML_STUB_ANSWERS": file},
            )
        with connected(cluster.address, cpus=1) as nodes:
            try:
                answer = discover_cluster(nodes).to_json()
            except TopologyError as exc:
                answer = {"refused": str(exc)}
        sys.stdout.write(json.dumps(answer))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    main(*sys.argv[1:])
