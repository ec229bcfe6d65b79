"""Every rank gets the GPU that it was placed on, whatever order Ray hands them out in."""

from itertools import permutations

import pytest

from cptune.cluster.connection import RayNode
from cptune.cluster.seats import CpuSeats, GpuSeats, Seen
from cptune.domain.placement import Device
from cptune.errors import ClusterError

NODE = RayNode(node_id="a", name="node0", cpus=10.0, gpus=4.0)


def device(index, *, uuid=True):
    return Device(node="node0", kind="cuda", index=index, uuid=f"GPU-{index}" if uuid else None)


def seen(index, *, uuid=True):
    name = f"GPU-{index}" if uuid else None
    return Seen(node_id="a", pid=100 + index, gpu_id=str(index), gpu_uuid=name)


@pytest.mark.parametrize("order", list(permutations(range(4))))
@pytest.mark.parametrize("uuid", [True, False])
def test_devices_find_their_actors_in_any_order(order, uuid):
    actors = [seen(index, uuid=uuid) for index in order]
    devices = [device(index, uuid=uuid) for index in (2, 0, 3)]

    places = GpuSeats().match(devices, actors)

    assert [actors[place].gpu_id for place in places] == ["2", "0", "3"]


def test_a_uuid_counts_more_than_a_number():
    renumbered = Seen(node_id="a", pid=1, gpu_id="0", gpu_uuid="GPU-3")
    other = Seen(node_id="a", pid=2, gpu_id="3", gpu_uuid="GPU-0")

    assert GpuSeats().match([device(3), device(0)], [renumbered, other]) == [0, 1]


@pytest.mark.parametrize("actors", [[seen(0)], [], [Seen(node_id="a", pid=1)]])
def test_a_gpu_that_no_actor_has_is_an_error_that_names_it(actors):
    with pytest.raises(ClusterError, match=r"no actor of node0 has GPU 2 \(GPU-2\)"):
        GpuSeats().match([device(2)], actors)


def test_one_actor_is_not_two_devices():
    twin = Device(node="node0", kind="cuda", index=7, uuid=None)
    actors = [Seen(node_id="a", pid=1, gpu_id="7", gpu_uuid="GPU-0")]

    with pytest.raises(ClusterError, match="held by one actor"):
        GpuSeats().match([device(0), twin], actors)


def test_a_whole_node_is_reserved_and_every_gpu_of_it_gets_an_actor():
    assert GpuSeats().reserved(NODE) == {"CPU": 10.0, "GPU": 4.0}
    assert GpuSeats().count([device(0)], NODE) == 4
    assert GpuSeats().options(NODE, sharing=4) == {"num_gpus": 1, "num_cpus": 2.5}
    assert CpuSeats().reserved(NODE) == {"CPU": 10.0}
    assert CpuSeats().count([device(0)], NODE) == 1
    assert CpuSeats().options(NODE, sharing=3) == {"num_cpus": 3.33}


def test_ray_without_gpu_resources_is_told_how_to_start():
    bare = RayNode(node_id="a", name="node0", cpus=10.0, gpus=0.0)

    with pytest.raises(ClusterError, match="Ray has 0 GPUs of node0") as caught:
        GpuSeats().count([device(0), device(1)], bare)
    assert "ray start --num-gpus=2" in caught.value.hint
