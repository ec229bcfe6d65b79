"""A gang on the GPUs of a Ray whose nodes answer by an NVML stub; none of them is real.

`python -m gpu_gang LIBRARY_FOLDER RAY_GPUS ANSWERS...`; prints what was found as JSON.
"""

import json
import os
import sys
from contextlib import closing

import ray
from fakes import candidate, sweep_spec
from ray.cluster_utils import Cluster

from cptune.cluster.connection import connected
from cptune.cluster.gang import Gang
from cptune.cluster.inventory import discover_cluster
from cptune.cluster.ray_launcher import RayLauncher
from cptune.cluster.seats import GpuSeats
from cptune.domain.devices import gpu_devices
from cptune.domain.placement import place
from cptune.errors import ClusterError
from cptune.search.devices import settle_devices

GIB = 1 << 30


def held(gang):
    """The UUID that each device's actor sees, by the device's own."""
    gang.ready()
    return {
        device.uuid: ray.get(gang._actors[device.name].identify.remote()).gpu_uuid
        for device in gang.devices
    }


def look(nodes):
    topology = discover_cluster(nodes)
    spec = settle_devices(sweep_spec("[cluster]\nworld_size = 3\n"), topology)
    devices = gpu_devices(topology, world_size=3)
    answer = {"gpu": spec.cluster.gpu, "devices": [one.uuid for one in devices]}
    try:
        gang = Gang(devices, nodes=nodes, threads=1, seats=GpuSeats())
    except ClusterError as exc:
        return answer | {"refused": f"{exc} | {exc.hint}"}
    with closing(gang):
        gang.start()
        answer["held"] = held(gang)
        launcher = RayLauncher(gang, devices=devices, spec=spec, capacity_bytes=GIB)
        one = candidate(dp=3)
        failure = launcher.launch(one, place(one.layout, devices))
        answer |= {"kind": failure.kind.value, "message": failure.message}
        answer["after"] = held(gang)  # of new actors: the gang was replaced
    return answer


def main(library: str, gpus: str, *files: str) -> None:
    cluster = Cluster()
    try:
        for file in files:
            cluster.add_node(
                num_cpus=2,
                num_gpus=int(gpus),
                object_store_memory=80_000_000,
                env_vars={"LD_LIBRARY_PATH": library, "NVML_STUB_ANSWERS": file},
            )
        with connected(cluster.address, cpus=1) as nodes:
            answer = look(nodes)
        sys.stdout.write(json.dumps(answer))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    main(*sys.argv[1:])
