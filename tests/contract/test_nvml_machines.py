"""Whole machines through the real pynvml: every kind of board, and boards in trouble."""

from itertools import combinations

import nvml_scenarios as nv
import pytest

RACK = "0123456789abcdef0123456789abcdef"
RACK_UUID = "01234567-89ab-cdef-0123-456789abcdef"


def only_node(found):
    (node,) = found["nodes"]
    return node


def kinds(node):
    return {(link["a"], link["b"]): link["kind"] for link in node["gpu_links"]}


def lanes(node):
    return {(link["a"], link["b"]): link["lanes"] for link in node["gpu_links"]}


def rates(node):
    return {link["lanes"]: link["bytes_per_s"] for link in node["gpu_links"]}


def ports(node):
    return [
        (port["count"], port["active"], port["version"], port["bytes_per_s"])
        for port in (gpu["nvlink"] for gpu in node["gpus"])
    ]


def test_h100_hgx(discover):
    node = only_node(discover(nv.h100_hgx()))

    assert lanes(node) == dict.fromkeys(combinations(range(8), 2), 18)
    assert rates(node) == {18: 18 * 26.562e9}
    assert ports(node) == [(18, 18, "4.0", 26.562e9)] * 8
    assert {gpu["fabric"]["cluster_uuid"] for gpu in node["gpus"]} == {None}
    assert not [note for note in node["notes"] if "NVML" in note]


def test_a100_dgx(discover):
    node = only_node(discover(nv.a100_dgx()))

    assert lanes(node) == dict.fromkeys(combinations(range(8), 2), 12)
    assert rates(node) == {12: 300e9}  # the speed by the fields of old drivers
    assert ports(node) == [(12, 12, "3.0", 25e9)] * 8
    assert [gpu["fabric"] for gpu in node["gpus"]] == [None] * 8
    assert "GPU 0, 1, 2, 3, 4, 5, 6, 7: fabric not told (NVML: Not Supported)" in node["notes"]


def test_v100_hybrid_cube(discover):
    node = only_node(discover(nv.v100_cube()))

    assert {pair: n for pair, n in lanes(node).items() if n} == nv.CUBE
    far = {pair: kind for pair, kind in kinds(node).items() if kind != "NVLINK"}
    assert far == dict.fromkeys(set(combinations(range(8), 2)) - set(nv.CUBE), "SYS")
    assert node["islands"] == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert rates(node) == {None: None, 1: 25.781e9, 2: 2 * 25.781e9}
    assert ports(node) == [(None, 6, "2.0", 25.781e9)] * 8  # the link count is not told
    assert {gpu["mig"] for gpu in node["gpus"]} == {False}


def test_pcie_pairs_with_bridges(discover):
    node = only_node(discover(nv.bridged_pairs()))

    assert node["islands"] == [[0, 2], [1, 3]]
    assert {pair for pair, n in lanes(node).items() if n == 4} == {(0, 2), (1, 3)}
    assert {kind for pair, kind in kinds(node).items() if pair not in {(0, 2), (1, 3)}} == {"NODE"}
    assert rates(node) == {None: None, 4: 4 * 14.062e9}  # no speed told: by the generation
    assert {port[2] for port in ports(node)} == {"3.1"}  # by the field


def test_one_gpu_with_seventeen_of_eighteen_links(discover):
    node = only_node(discover(nv.h100_hgx() | {"nvmlDeviceGetNvLinkState 6 11": 0}))

    assert {n for pair, n in lanes(node).items() if 6 in pair} == {17}
    assert {n for pair, n in lanes(node).items() if 6 not in pair} == {18}
    assert node["gpus"][6]["nvlink"]["active"] == 17
    assert "GPU 6: 17 of 18 NVLinks are active" in node["notes"]
    assert node["islands"] == [[0, 1, 2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("answer", "state"),
    [(f"1 {nv.NO_CLUSTER} 0 0", "not_started"), (f"2 {RACK} 0 0", "in_progress")],
)
def test_fabric_not_ready(discover, answer, state):
    machine = nv.h100_hgx() | {nv.FABRIC: answer}
    for a in range(8):
        machine |= {f"nvmlDeviceGetP2PStatus {a} {b} {nv.NVLINK}": nv.NO_P2P for b in range(8)}

    node = only_node(discover(machine))

    assert {gpu["fabric"]["state"] for gpu in node["gpus"]} == {state}
    assert set(kinds(node).values()) == {"NODE", "SYS"}  # links are up, peers are not reached
    assert len([note for note in node["notes"] if "fabric manager down?" in note]) == 1
    assert [note for note in node["notes"] if "NVLink fabric is" in note] == [
        f"GPU 0, 1, 2, 3, 4, 5, 6, 7: NVLink fabric is {state}: in no domain across hosts"
    ]


def test_a_fabric_across_hosts_tells_cluster_and_clique(discover):
    node = only_node(discover(nv.h100_hgx() | {nv.FABRIC: f"3 {RACK} 7 0"}))

    assert [gpu["fabric"] for gpu in node["gpus"]] == [
        {"state": "completed", "cluster_uuid": RACK_UUID, "clique": 7}
    ] * 8


def test_a_fabric_that_ended_in_an_error_has_failed(discover):
    node = only_node(discover(nv.h100_hgx() | {nv.FABRIC: f"3 {RACK} 7 15"}))

    assert {gpu["fabric"]["state"] for gpu in node["gpus"]} == {"failed"}


@pytest.mark.parametrize(
    "refused",
    [
        {f"{nv.FABRIC} 0 2": nv.VERSION_MISMATCH, f"{nv.FABRIC} 0 3": f"3 {RACK} 7 0"},
        {f"{nv.FABRIC} 0": nv.VERSION_MISMATCH, "nvmlDeviceGetGpuFabricInfo 0": f"3 {RACK} 7 0"},
    ],
)
def test_another_version_of_the_fabric_call_is_tried(discover, refused):
    machine = nv.machine(1, name="NVIDIA GB200", capability="10.0") | refused

    (gpu,) = only_node(discover(machine))["gpus"]

    assert gpu["fabric"] == {"state": "completed", "cluster_uuid": RACK_UUID, "clique": 7}


def test_no_version_of_the_fabric_call_matches(discover):
    machine = nv.machine(1, name="NVIDIA GB200", capability="10.0")
    machine |= {nv.FABRIC: nv.VERSION_MISMATCH, "nvmlDeviceGetGpuFabricInfo": nv.VERSION_MISMATCH}

    node = only_node(discover(machine))

    assert node["gpus"][0]["fabric"] is None
    assert any("fabric not told" in note for note in node["notes"])


def test_mig_on(discover):
    machine = nv.machine(2, name="NVIDIA A100", capability="8.0") | {
        "nvmlDeviceGetMigMode 1": 1,
        "nvmlDeviceGetMaxMigDeviceCount": 4,
        "nvmlDeviceGetMigDeviceHandleByIndex 1": nv.NOT_FOUND,
        "nvmlDeviceGetMigDeviceHandleByIndex 1 0": 100,
        "nvmlDeviceGetMigDeviceHandleByIndex 1 2": 102,
        "nvmlDeviceGetUUID 100": "MIG-a",
        "nvmlDeviceGetUUID 102": "MIG-b",
    }

    node = only_node(discover(machine))

    assert [gpu["mig"] for gpu in node["gpus"]] == [False, True]
    assert [gpu["mig_uuids"] for gpu in node["gpus"]] == [None, ["MIG-a", "MIG-b"]]
    assert not [note for note in node["notes"] if "MIG" in note]


def test_mig_devices_that_are_not_told_are_null_with_a_note(discover):
    machine = nv.machine(1, name="NVIDIA A100", capability="8.0") | {"nvmlDeviceGetMigMode": 1}

    node = only_node(discover(machine))

    assert (node["gpus"][0]["mig"], node["gpus"][0]["mig_uuids"]) == (True, None)
    assert "GPU 0: MIG devices not told (NVML: Not Supported)" in node["notes"]


def test_symbols_missing_in_an_old_driver(discover):
    node = only_node(discover(nv.a100_dgx(), age="old"))

    assert {(gpu["mig"], gpu["fabric"]) for gpu in node["gpus"]} == {(None, None)}
    assert set(kinds(node).values()) == {"NVLINK"}
    assert (
        "GPU 0, 1, 2, 3, 4, 5, 6, 7: MIG mode, fabric not told (NVML: Function Not Found)"
        in (node["notes"])
    )


def test_gpu_lost(discover):
    node = only_node(discover(nv.lose(nv.a100_dgx(), index=2)))

    assert {name for name, value in node["gpus"][2].items() if value is not None} == {"index"}
    assert node["islands"] == [[0, 1, 3, 4, 5, 6, 7], [2]]
    assert {n for pair, n in lanes(node).items() if 2 not in pair} == {12}
    assert any(note.startswith("GPU 2: ") and "GPU is lost" in note for note in node["notes"])


def test_pcie_that_is_narrower_than_it_could_be_is_noted(discover):
    machine = nv.machine(2, name="NVIDIA L40S", capability="8.9")
    machine |= {"nvmlDeviceGetCurrPcieLinkWidth 1": 8}

    node = only_node(discover(machine))

    assert node["gpus"][1]["pcie"] == {
        "generation": 4,
        "width": 16,
        "now_generation": 1,
        "now_width": 8,
    }
    assert "GPU 1: PCIe has 8 of 16 lanes now" in node["notes"]


def test_pcie_that_is_not_supported_is_null_with_a_note(discover):
    machine = nv.machine(1, name="NVIDIA L40S", capability="8.9")
    machine = {call: nv.NOT_SUPPORTED if "Pcie" in call else a for call, a in machine.items()}

    node = only_node(discover(machine))

    assert node["gpus"][0]["pcie"] is None
    assert any("PCIe generation, PCIe width" in note for note in node["notes"])


def test_an_idle_gpu_has_the_hash_of_a_busy_one(discover):
    machine = nv.machine(1, name="NVIDIA L40S", capability="8.9")

    idle = discover(machine)
    busy = discover(machine | {"nvmlDeviceGetCurrPcieLinkGeneration": 4})
    other = discover(machine | {"nvmlDeviceGetMaxPcieLinkWidth": 8})

    assert idle["content_hash"] == busy["content_hash"] != other["content_hash"]


def test_c2c_links_to_the_cpu_of_the_module(discover):
    machine = nv.machine(1, name="NVIDIA GH200 480GB", capability="9.0") | {
        f"nvmlDeviceGetFieldValues 0 {nv.C2C_COUNT_FIELD}": 10,
        f"nvmlDeviceGetFieldValues 0 {nv.C2C_SPEED_FIELD}": 45000,
    }

    (gpu,) = only_node(discover(machine))["gpus"]

    assert gpu["c2c"] == {"count": 10, "bytes_per_s": 45e9}


def test_a_link_speed_that_nobody_tells_is_noted_and_comes_from_the_generation(discover):
    node = only_node(discover(nv.bridged_pair()))

    assert node["gpus"][0]["nvlink"]["bytes_per_s"] is None
    assert node["gpu_links"][0]["bytes_per_s"] == 100e9
    assert "GPU 0, 1: NVLink speed not told (NVML: Not Supported)" in node["notes"]
