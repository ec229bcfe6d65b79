"""A gang on a Ray of two nodes with environments of their own; prints what the ranks have.

`python -m environment_nodes`; the last words are of a process on the node that this is not on.
"""

import json
import os
import sys
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import ray
import ray.exceptions
from ray.cluster_utils import Cluster

from cptune.cluster.connection import connected
from cptune.cluster.gang import Gang
from cptune.cluster.inventory import cpu_devices, discover_cluster
from cptune.recipe.caveats import caveats_of

OF_NODES = (
    {"NCCL_IB_HCA": "mlx5_0", "NCCL_ALGO": "Ring"},
    {"NCCL_ALGO": "Ring", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_PRIVATE_TOKEN": "hush"},
)
OF_JOB = {"NCCL_PROTO": "Simple"}


def aborted(gang, device):
    call = SimpleNamespace(rank=0, run=partial(exec, "import os; os.write(2, b'42!'); os.abort()"))
    try:
        ray.get(gang.call(device, call))
    except ray.exceptions.ActorDiedError:
        return gang.last_words(device)
    return None


def main() -> None:
    cluster = Cluster()
    try:
        for variables in OF_NODES:
            cluster.add_node(num_cpus=2, object_store_memory=80_000_000, env_vars=variables)
        with connected(cluster.address, cpus=1) as nodes:
            devices = cpu_devices(discover_cluster(nodes), world_size=4)
            with closing(Gang(devices, nodes=nodes, threads=1)) as gang:
                gang.start()
                found = gang.environment()
                answer = {
                    "environment": found.to_json(),
                    "versions": gang.versions().texts(),
                    "caveats": caveats_of(found, versions=gang.versions()),
                    "words": [aborted(gang, devices[rank]) for rank in (0, 3)],
                }
        sys.stdout.write(json.dumps(answer))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "NCCL_ALGO": "Tree of the driver",
        # As `ray job submit` gives its runtime environment to the driver.
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"env_vars": OF_JOB}}),
    }
    main()
