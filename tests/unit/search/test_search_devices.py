"""What trials run on: the GPUs of the nodes where there are some, CPU processes on demand."""

from dataclasses import replace
from itertools import combinations

import pytest
from fakes import sweep_spec

from cptune.domain.devices import DeviceKind, gpu_devices, kind_of_trials
from cptune.errors import SpecError
from cptune.predict.found import trial_machine
from cptune.predict.limits import Hardware, hardware_of
from cptune.search.devices import settle_devices
from topology.nouns import Gpu, Link, LinkKind, Nic, Node, Topology

H100, H200, GIB = "NVIDIA H100 80GB HBM3", "NVIDIA H200", 1 << 30


def node(name="node0", *, gpus=2, kind=H100, mig=False):
    return Node(
        name=name,
        cpus=4,
        gpus=tuple(
            Gpu(
                index=at, name=kind, uuid=f"GPU-{name}-{at}", memory_bytes=80 * GIB, mig=mig or None
            )
            for at in range(gpus)
        ),
        gpu_links=tuple(
            Link(a=a, b=b, kind=LinkKind.NVLINK, bytes_per_s=450e9)
            for a, b in combinations(range(gpus), 2)
        ),
        nics=(Nic(name="mlx5_0", speed_bytes_per_s=50e9),),
    )


def found(*nodes):
    return Topology(source="nvml", nodes=nodes)


def spec_of(**cluster):
    spec = sweep_spec()
    return replace(spec, cluster=replace(spec.cluster, world_size=None, **cluster))


def refusal(spec, topology):
    with pytest.raises(SpecError) as caught:
        settle_devices(spec, topology)
    return str(caught.value), caught.value.hint


def test_the_gpu_that_is_found_is_named_as_the_tables_do():
    two = found(node(), node("node1"))

    assert settle_devices(spec_of(), two).cluster.gpu == "H100-SXM-80GB"
    assert settle_devices(spec_of(gpu="H100-SXM-80GB"), two).cluster.gpu == "H100-SXM-80GB"


def test_cpu_means_cpu_processes_on_gpu_nodes_too():
    spec, gpus = spec_of(gpu="cpu"), found(node())

    assert settle_devices(spec, gpus) is spec
    assert kind_of_trials(spec.cluster, gpus) is DeviceKind.CPU
    assert kind_of_trials(spec_of().cluster, gpus) is DeviceKind.CUDA
    assert kind_of_trials(spec_of().cluster, found(node(gpus=0))) is DeviceKind.CPU


def test_a_gpu_of_no_table_is_measured_without_a_name():
    one = found(node(kind="NVIDIA B9000"))
    spec = settle_devices(spec_of(), one)

    assert spec.cluster.gpu is None
    assert kind_of_trials(spec.cluster, one) is DeviceKind.CUDA
    assert hardware_of(spec.cluster, one) == Hardware(cores=(None,), gpu=None)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ((node(), node("node1", gpus=0)), f"node0 has 2 {H100}, node1 has no GPU"),
        ((node(), node("node1", gpus=1)), f"node0 has 2 {H100}, node1 has 1 {H100}"),
        ((node(), node("node1", kind=H200)), f"node0 has 2 {H100}, node1 has 2 {H200}"),
    ],
)
def test_nodes_that_differ_are_refused_with_what_each_has(nodes, says):
    message, hint = refusal(spec_of(), found(*nodes))

    assert message.startswith("cluster | the nodes are not alike: ")
    assert says in message
    assert 'cluster.gpu = "cpu"' in hint


def test_another_gpu_than_the_spec_names_is_refused_with_the_one_that_is_there():
    message, _ = refusal(spec_of(gpu="H200-SXM-141GB"), found(node()))

    assert message == (
        f"cluster.gpu | 'H200-SXM-141GB' asked, and the nodes have {H100} (H100-SXM-80GB); "
        "nearest legal: H100-SXM-80GB"
    )


def test_a_gpu_that_no_node_has_is_not_silently_a_cpu():
    message, hint = refusal(spec_of(gpu="H100-SXM-80GB"), found(node(gpus=0)))

    assert message == (
        "cluster.gpu | 'H100-SXM-80GB' asked, and no node has a GPU; nearest legal: 'cpu'"
    )
    assert "cptune plan" in hint


def test_more_ranks_or_bytes_than_there_are_are_refused_with_the_nearest():
    spec = spec_of()
    many = replace(spec, cluster=replace(spec.cluster, world_size=3))
    assert "3 ranks, and there are 2 GPUs; nearest legal: 2" in refusal(many, found(node()))[0]
    assert (
        f"nearest legal: {80 * GIB}"
        in refusal(spec_of(device_memory_bytes=81 * GIB), found(node()))[0]
    )
    assert settle_devices(spec_of(device_memory_bytes=80 * GIB), found(node()))


def test_gpus_in_parts_are_refused_by_name():
    assert "MIG mode: node0/0, node0/1" in refusal(spec_of(), found(node(mig=True)))[0]


def test_ranks_fill_node_after_node():
    devices = gpu_devices(found(node(), node("node1")), world_size=3)

    assert [(one.node, one.index) for one in devices] == [("node0", 0), ("node0", 1), ("node1", 0)]
    assert {one.kind for one in devices} == {"cuda"}
    assert devices[2].uuid == "GPU-node1-0"
    assert devices[2].memory_bytes == 80 * GIB


def test_the_machine_is_that_of_the_inventory():
    two = found(node(), node("node1"))
    spec = settle_devices(spec_of(), two)
    cluster = replace(spec.cluster, world_size=4)

    machine = trial_machine(cluster, two, capacity_bytes=80 * GIB)

    assert machine.gpu.name == "H100-SXM-80GB"
    assert (machine.node_size, machine.island_size) == (2, 2)
    assert (machine.island_bytes_per_s, machine.network_bytes_per_s) == (450e9, 25e9)
    assert hardware_of(cluster, two).gpu == machine.gpu


def test_cpu_processes_keep_the_rates_of_no_processor_in_particular():
    cluster = replace(spec_of(gpu="cpu").cluster, world_size=4)

    machine = trial_machine(cluster, found(node()), capacity_bytes=GIB)

    assert machine.gpu.generation == "cpu"
    assert machine.island_bytes_per_s == machine.network_bytes_per_s
