"""The later facts of a GPU: optional in JSON, and only the lasting ones in the hash."""

from dataclasses import replace

import pytest

from topology import Gpu, Nic, Node, Topology, TopologyError
from topology.gpu import C2c, Fabric, FabricState, Nvlinks, Pcie
from topology.wiring import FarEnd, GpuReading, MachineReading, NvlinkEnd, PairReading, build_links

WHOLE = Gpu(
    index=0,
    name="H100",
    pcie=Pcie(generation=5, width=16, now_generation=1, now_width=16),
    nvlink=Nvlinks(count=18, active=18, version="4.0", bytes_per_s=26.562e9),
    fabric=Fabric(state=FabricState.COMPLETED, cluster_uuid="u", clique=3),
    c2c=C2c(count=10, bytes_per_s=45e9),
    mig_uuids=("MIG-a",),
)
LATER = ("pcie", "nvlink", "fabric", "c2c", "mig_uuids")


def hash_of(gpu, *, nics=()):
    node = Node(name="n", gpus=(gpu,), nics=nics)
    return Topology(source="nvml", nodes=(node,)).content_hash


def ends(count, *, speed=26.562e9, version="4.0"):
    end = NvlinkEnd(far_end=FarEnd.SWITCH, bus_id=None, version=version, bytes_per_s=speed)
    return (end,) * count


def test_the_whole_gpu_makes_the_round_trip():
    assert Gpu.from_json(WHOLE.to_json()) == WHOLE


def test_a_document_without_the_later_facts_is_read_and_keeps_its_hash():
    old = {name: value for name, value in WHOLE.to_json().items() if name not in LATER}

    gpu = Gpu.from_json(old)

    assert gpu == Gpu(index=0, name="H100")
    assert hash_of(gpu) == hash_of(replace(gpu, pcie=Pcie(now_generation=1), fabric=Fabric()))


@pytest.mark.parametrize(
    "change",
    [
        {"pcie": Pcie(generation=5, width=16, now_generation=5, now_width=8)},
        {"fabric": Fabric(state=FabricState.IN_PROGRESS, cluster_uuid="u", clique=3)},
    ],
)
def test_what_passes_is_not_in_the_hash(change):
    assert hash_of(replace(WHOLE, **change)) == hash_of(WHOLE)


@pytest.mark.parametrize(
    "change",
    [
        {"pcie": Pcie(generation=4, width=16)},
        {"nvlink": Nvlinks(count=18, active=17, version="4.0", bytes_per_s=26.562e9)},
        {"fabric": Fabric(state=FabricState.COMPLETED, cluster_uuid="u", clique=4)},
        {"c2c": None},
        {"mig_uuids": None},
    ],
)
def test_what_lasts_is_in_the_hash(change):
    assert hash_of(replace(WHOLE, **change)) != hash_of(WHOLE)


def test_the_link_layer_of_a_nic_is_hashed_and_its_state_is_not():
    nic = Nic(name="mlx5_0", link_layer="InfiniBand", state="ACTIVE")

    assert hash_of(WHOLE, nics=(nic,)) == hash_of(WHOLE, nics=(replace(nic, state="DOWN"),))
    assert hash_of(WHOLE, nics=(nic,)) != hash_of(WHOLE, nics=(replace(nic, link_layer=None),))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("pcie", {"generation": 0, "width": None, "now_generation": None, "now_width": None}),
        ("fabric", {"state": "ready", "cluster_uuid": None, "clique": None}),
        ("c2c", {"count": -1, "bytes_per_s": None}),
        ("nvlink", {"count": 18}),
        ("mig_uuids", ["MIG-a", 1]),
    ],
)
def test_a_wrong_fact_is_refused_with_its_path(field, wrong):
    with pytest.raises(TopologyError, match=field):
        Gpu.from_json(WHOLE.to_json() | {field: wrong})


@pytest.mark.parametrize(
    ("fabric", "domain"),
    [
        (WHOLE.fabric, ("u", 3)),
        (replace(WHOLE.fabric, state=FabricState.FAILED), None),
        (replace(WHOLE.fabric, cluster_uuid=None), None),
        (replace(WHOLE.fabric, clique=None), None),
        (Fabric(), None),
    ],
)
def test_a_domain_needs_a_completed_fabric_with_cluster_and_clique(fabric, domain):
    assert fabric.domain == domain


@pytest.mark.parametrize(
    ("reading", "ports"),
    [
        ({}, None),
        ({"nvlink_count": 18}, Nvlinks(count=18)),
        ({"nvlinks": ()}, Nvlinks(active=0)),
        (
            {"nvlink_count": 18, "nvlinks": ends(18)},
            Nvlinks(count=18, active=18, version="4.0", bytes_per_s=26.562e9),
        ),
        (
            {"nvlinks": (*ends(2, speed=25e9, version="10.0"), *ends(1, version="3.0"))},
            Nvlinks(active=3, version="3.0", bytes_per_s=25e9),
        ),
        (
            {"nvlinks": (*ends(2), *ends(1, speed=None, version=None))},
            Nvlinks(active=3, version="4.0"),
        ),
    ],
)
def test_ports_are_the_links_in_numbers(reading, ports):
    assert GpuReading(index=0, **reading).ports == ports


@pytest.mark.parametrize(
    ("reading", "oddities"),
    [
        ({}, []),
        ({"nvlink_count": 18, "nvlinks": ends(18)}, []),
        ({"nvlink_count": 18, "nvlinks": ends(17)}, ["17 of 18 NVLinks are active"]),
        ({"nvlink_count": 12, "nvlinks": ()}, []),  # a PCIe board without a bridge
        ({"pcie": Pcie(width=16, now_width=4)}, ["PCIe has 4 of 16 lanes now"]),
        ({"pcie": Pcie(generation=5, now_generation=1, width=16, now_width=16)}, []),
        ({"fabric": Fabric(state=FabricState.NOT_SUPPORTED)}, []),
        (
            {"fabric": Fabric(state=FabricState.FAILED)},
            ["NVLink fabric is failed: in no domain across hosts"],
        ),
    ],
)
def test_oddities_are_what_is_less_than_could_be(reading, oddities):
    assert GpuReading(index=0, **reading).oddities == oddities


@pytest.mark.parametrize(
    ("speed_b", "rate"),
    [(26.562e9, 18 * 26.562e9), (20e9, 18 * 20e9), (None, pytest.approx(478.1e9, rel=1e-3))],
)
def test_the_rate_is_what_the_driver_tells_of_both_else_of_their_generation(speed_b, rate):
    gpus = tuple(
        GpuReading(index=index, compute_capability="9.0", nvlinks=ends(18, speed=speed))
        for index, speed in enumerate([26.562e9, speed_b])
    )
    machine = MachineReading(gpus=gpus, pairs=(PairReading(a=0, b=1, nvlink_p2p=True),))

    ((link,), _) = build_links(machine)

    assert link.bytes_per_s == rate
