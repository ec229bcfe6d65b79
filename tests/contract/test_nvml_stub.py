"""The real pynvml on a C library that answers the NVML ABI: what `discover` makes of machines."""

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import nvml_scenarios as nv
import pytest
from nvml_scenarios import SCRIPT

ROOT = Path(__file__).parents[2]


def only_node(found):
    (node,) = found["nodes"]
    return node


def kinds(node):
    return {(link["a"], link["b"]): link["kind"] for link in node["gpu_links"]}


def notes_about(node, word):
    return [note for note in node["notes"] if word in note]


def test_eight_h100_on_nvswitch_are_one_island_of_eighteen_lanes(discover):
    found = discover(nv.h100_hgx())

    node = only_node(found)
    assert found["source"] == "nvml"
    assert node["driver_version"] == "550.54.15"
    assert node["islands"] == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert [(link["a"], link["b"]) for link in node["gpu_links"]] == list(combinations(range(8), 2))
    for link in node["gpu_links"]:
        assert (link["kind"], link["lanes"], link["p2p"]) == ("NVLINK", 18, True)
        assert link["bytes_per_s"] == pytest.approx(478e9, rel=0.001)
    assert not notes_about(node, "GPUs")


def test_facts_of_a_gpu_come_over_the_real_abi(discover):
    gpu = only_node(discover(nv.h100_hgx()))["gpus"][3]

    assert gpu == {
        "index": 3,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-00000003",
        "pci_bus_id": nv.sysfs_bus(3),
        "memory_bytes": 80 * 2**30,
        "numa_node": None,
        "cpu_affinity": "0-15,32-47",
        "mig": False,
        "pcie": {"generation": 5, "width": 16, "now_generation": 1, "now_width": 16},
        "nvlink": {"count": 18, "active": 18, "version": "4.0", "bytes_per_s": 26.562e9},
        "fabric": {"state": "completed", "cluster_uuid": None, "clique": None},
        "c2c": {"count": 0, "bytes_per_s": None},
        "mig_uuids": None,
    }


def test_a_pcie_pair_has_the_common_ancestor_and_no_lanes(discover):
    answers = nv.machine(2, name="NVIDIA L40S", capability="8.9")
    answers["nvmlDeviceGetTopologyCommonAncestor"] = nv.SINGLE
    answers[f"nvmlDeviceGetP2PStatus 1 0 {nv.READ}"] = nv.NO_P2P

    node = only_node(discover(answers))

    assert node["gpu_links"] == [
        {"a": 0, "b": 1, "kind": "PIX", "lanes": None, "bytes_per_s": None, "p2p": False}
    ]
    assert node["islands"] == [[0], [1]]
    assert not notes_about(node, "NVLink")


def test_links_that_name_each_other_are_nvlink(discover):
    (link,) = only_node(discover(nv.bridged_pair()))["gpu_links"]

    assert (link["kind"], link["lanes"], link["bytes_per_s"]) == ("NVLINK", 4, 100e9)


def test_a_symbol_missing_in_an_old_driver_is_unknown_and_noted(discover):
    answers = nv.bridged_pair()

    node = only_node(discover(answers, age="old"))

    assert [gpu["mig"] for gpu in node["gpus"]] == [None, None]
    assert notes_about(node, "MIG mode") == [
        "GPU 0, 1: MIG mode, fabric not told (NVML: Function Not Found)"
    ]
    assert kinds(node) == {(0, 1): "NVLINK"}  # the far end's PCI address still names the peer


def test_an_old_driver_shows_a_switch_by_its_pci_class(discover, tmp_path):
    answers = nv.h100_hgx()
    for switch in range(4):
        folder = tmp_path / "sys/bus/pci/devices" / f"0000:{switch:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "class").write_text("0x068000\n")

    with_class = only_node(discover(answers, age="old", sysfs=tmp_path / "sys"))
    without = only_node(discover(answers, age="old", sysfs=tmp_path / "nothing"))

    assert {link["lanes"] for link in with_class["gpu_links"]} == {18}
    assert {link["lanes"] for link in without["gpu_links"]} == {None}
    assert set(kinds(without).values()) == {"NVLINK"}
    assert notes_about(without, "far ends are not told")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetName", "name"),
        ("nvmlDeviceGetUUID", "uuid"),
        ("nvmlDeviceGetPciInfo", "pci_bus_id"),
        ("nvmlDeviceGetMemoryInfo", "memory_bytes"),
        ("nvmlDeviceGetCpuAffinity", "cpu_affinity"),
    ],
)
def test_a_fact_not_supported_is_null_with_a_note(discover, call, field):
    answers = nv.machine(1, name="NVIDIA L40S", capability="8.9")
    answers |= {call: nv.NOT_SUPPORTED, f"{call} 0": nv.NOT_SUPPORTED}

    node = only_node(discover(answers))

    (gpu,) = node["gpus"]
    assert [name for name, value in gpu.items() if value is None] == sorted(
        {field, "numa_node", "mig_uuids"}, key=list(gpu).index
    )
    assert notes_about(node, "Not Supported")


def test_an_unknown_pcie_ancestor_is_a_null_kind(discover):
    answers = nv.machine(2, name="NVIDIA L40S", capability="8.9")
    answers["nvmlDeviceGetTopologyCommonAncestor"] = nv.INVALID_ARGUMENT

    node = only_node(discover(answers))

    assert kinds(node) == {(0, 1): None}
    assert notes_about(node, "PCIe ancestor") == [
        "GPUs 0-1: PCIe ancestor not told (NVML: Invalid Argument)"
    ]


def test_a_gpu_without_mig_has_mig_off_and_no_note(discover):
    answers = nv.machine(1, name="Tesla V100", capability="7.0")
    answers["nvmlDeviceGetMigMode"] = nv.NOT_SUPPORTED

    node = only_node(discover(answers))

    assert node["gpus"][0]["mig"] is False
    assert not notes_about(node, "MIG")


def test_mig_mode_on_is_told(discover):
    answers = nv.machine(1, name="NVIDIA A100", capability="8.0") | {"nvmlDeviceGetMigMode": 1}

    assert only_node(discover(answers))["gpus"][0]["mig"] is True


@pytest.mark.parametrize("handle_too", [True, False])
def test_a_lost_gpu_is_kept_with_a_note_and_the_others_keep_their_links(discover, handle_too):
    answers = nv.lose(nv.h100_hgx(), index=5)
    if handle_too:
        answers["nvmlDeviceGetHandleByIndex 5"] = nv.GPU_IS_LOST

    node = only_node(discover(answers))

    lost = node["gpus"][5]
    assert {name for name, value in lost.items() if value is not None} == {"index"}
    assert any(note.startswith("GPU 5:") and "GPU is lost" in note for note in node["notes"])
    assert node["islands"] == [[0, 1, 2, 3, 4, 6, 7], [5]]
    assert {kind for pair, kind in kinds(node).items() if 5 in pair} == {None}
    assert {kind for pair, kind in kinds(node).items() if 5 not in pair} == {"NVLINK"}


def test_a_gpu_whose_links_are_down_leaves_the_island(discover):
    answers = nv.h100_hgx()
    for link in range(18):
        answers[f"nvmlDeviceGetNvLinkState 2 {link}"] = 0

    node = only_node(discover(answers))

    assert node["islands"] == [[0, 1, 3, 4, 5, 6, 7], [2]]
    assert kinds(node)[0, 2] == "NODE"
    assert kinds(node)[2, 4] == "SYS"


def test_lanes_are_those_both_ends_have_active(discover):
    answers = nv.h100_hgx() | {
        "nvmlDeviceGetNvLinkState 1 7": 0,
        "nvmlDeviceGetNvLinkCapability 1 8 0": 0,  # active, but carries no peer traffic
    }

    links = only_node(discover(answers))["gpu_links"]

    lanes = {(link["a"], link["b"]): link["lanes"] for link in links}
    assert (lanes[0, 1], lanes[1, 2], lanes[0, 2]) == (16, 16, 18)


def test_switch_links_without_peer_access_are_pcie_and_noted(discover):
    answers = nv.h100_hgx() | {f"nvmlDeviceGetP2PStatus 1 0 {nv.NVLINK}": nv.NO_P2P}

    node = only_node(discover(answers))

    assert kinds(node)[0, 1] == "NODE"  # one direction is enough to refuse
    assert kinds(node)[0, 2] == "NVLINK"
    assert len(notes_about(node, "GPUs 0-1: active links to an NVSwitch")) == 1


def test_nvlink_seen_from_one_side_only_is_not_nvlink(discover):
    answers = nv.bridged_pair()
    for link in range(4):
        answers[f"nvmlDeviceGetNvLinkState 1 {link}"] = 0

    node = only_node(discover(answers))

    assert kinds(node) == {(0, 1): "NODE"}
    assert notes_about(node, "one side only")


@pytest.mark.parametrize("far_end", ["empty", "unprintable", nv.NOT_SUPPORTED])
def test_a_switch_needs_no_pci_address(discover, far_end):
    answers = {
        call: far_end if "RemotePciInfo" in call else answer
        for call, answer in nv.h100_hgx().items()
    }

    node = only_node(discover(answers))

    assert {link["lanes"] for link in node["gpu_links"]} == {18}


def test_link_state_by_field_where_the_call_is_not_supported(discover):
    answers = {
        call: answer for call, answer in nv.bridged_pair().items() if "NvLinkState" not in call
    }
    for a in range(2):
        answers |= {f"nvmlDeviceGetFieldValues {a} {nv.STATE_FIELD} {link}": 1 for link in range(4)}

    (link,) = only_node(discover(answers))["gpu_links"]

    assert (link["kind"], link["lanes"]) == ("NVLINK", 4)


def test_a_link_whose_traffic_is_disabled_is_no_lane(discover):
    answers = {
        call: answer for call, answer in nv.bridged_pair().items() if "NvLinkState" not in call
    }
    for a in range(2):
        answers |= {
            f"nvmlDeviceGetFieldValues {a} {nv.STATE_FIELD} {link}": 3 if link == 2 else 1
            for link in range(4)
        }

    (link,) = only_node(discover(answers))["gpu_links"]

    assert link["lanes"] == 3


def test_peer_access_that_the_driver_calls_unknown_is_null(discover):
    answers = nv.machine(2, name="NVIDIA L40S", capability="8.9")
    answers[f"nvmlDeviceGetP2PStatus 0 1 {nv.WRITE}"] = nv.P2P_UNKNOWN

    (link,) = only_node(discover(answers))["gpu_links"]

    assert link["p2p"] is None


def test_nvlink_that_the_driver_fails_to_tell_is_unknown_not_absent(discover):
    answers = nv.machine(2, name="NVIDIA A100", capability="8.0")
    answers["nvmlDeviceGetNvLinkState"] = nv.UNKNOWN_ERROR
    for a in range(2):
        answers[f"nvmlDeviceGetP2PStatus {a} {1 - a} {nv.NVLINK}"] = nv.P2P_UNKNOWN

    node = only_node(discover(answers))

    assert kinds(node) == {(0, 1): None}
    assert notes_about(node, "NVLink state") == [
        "GPU 0, 1: NVLink state not told (NVML: Unknown Error)"
    ]


def test_a_name_that_is_no_text_is_unknown(discover):
    answers = nv.machine(1, name="unprintable", capability="8.9")

    node = only_node(discover(answers))

    assert node["gpus"][0]["name"] is None
    assert notes_about(node, "GPU 0: name not told")


def test_a_gpu_generation_without_a_sourced_rate_has_no_rate(discover):
    answers = nv.bridged_pair() | {"nvmlDeviceGetCudaComputeCapability": "99.0"}

    (link,) = only_node(discover(answers))["gpu_links"]

    assert (link["kind"], link["lanes"], link["bytes_per_s"]) == ("NVLINK", 4, None)


def test_a_driver_that_is_not_loaded_is_an_inventory_without_gpus(discover):
    found = discover({"nvmlInitWithFlags": nv.DRIVER_NOT_LOADED})

    assert found["source"] == "sysfs"
    assert only_node(found)["gpus"] == []
    assert notes_about(only_node(found), "no GPUs listed") == [
        "no GPUs listed: NVML cannot be opened: Driver Not Loaded"
    ]


def test_a_driver_that_cannot_count_its_gpus_says_so(discover):
    found = discover({"nvmlDeviceGetCount": nv.GPU_IS_LOST})

    assert found["source"] == "sysfs"
    assert notes_about(only_node(found), "how many GPUs there are: GPU is lost")


def test_a_driver_with_no_gpu_says_so(discover):
    found = discover({"nvmlDeviceGetCount": 0, "nvmlSystemGetDriverVersion": "550.54.15"})

    assert found["source"] == "nvml"
    assert notes_about(only_node(found), "NVML lists no GPU")


def test_a_library_that_cannot_be_loaded_is_no_crash(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "libnvidia-ml.so.1").write_bytes(b"not a library")
    environment = os.environ | {"LD_LIBRARY_PATH": str(broken), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["source"] == "sysfs"
    assert notes_about(only_node(found), "NVML Shared Library Not Found")


def test_without_pynvml_the_reason_is_noted(tmp_path):
    script = f"import sys; sys.modules['pynvml'] = None\n{SCRIPT}"
    command = [sys.executable, "-c", script, str(tmp_path)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert notes_about(only_node(json.loads(done.stdout)), "pynvml cannot be imported")


def test_numa_node_and_nearest_nic_come_from_sysfs(discover, tmp_path):
    answers = nv.machine(2, name="NVIDIA H100 PCIe", capability="9.0")
    answers |= {"nvmlDeviceGetCpuAffinity": nv.NOT_SUPPORTED}
    tree = tmp_path / "sys"
    for index, near in enumerate(["0000:10:01.0", "0000:20:01.0"]):
        root = tree / f"devices/pci{near[:7]}" / near
        (root / nv.sysfs_bus(index)).mkdir(parents=True)
        (root / nv.sysfs_bus(index) / "numa_node").write_text(f"{index}\n")
        (root / nv.sysfs_bus(index) / "local_cpulist").write_text(f"{index * 8}-{index * 8 + 7}\n")
        (tree / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (tree / "bus/pci/devices" / nv.sysfs_bus(index)).symlink_to(root / nv.sysfs_bus(index))
        nic = root / f"0000:{index + 0x40:02x}:00.0"
        port = nic / f"infiniband/mlx5_{index}/ports/1"
        port.mkdir(parents=True)
        (nic / "numa_node").write_text(f"{index}\n")
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
        (port.parents[1] / "device").symlink_to(nic)
        (tree / "class/infiniband").mkdir(parents=True, exist_ok=True)
        (tree / f"class/infiniband/mlx5_{index}").symlink_to(port.parents[1])

    node = only_node(discover(answers, sysfs=tree))

    assert [gpu["numa_node"] for gpu in node["gpus"]] == [0, 1]
    assert not notes_about(node, "NUMA node not told")
    assert [gpu["cpu_affinity"] for gpu in node["gpus"]] == ["0-7", "8-15"]
    assert node["nearest_nics"] == {"0": ["mlx5_0"], "1": ["mlx5_1"]}
    assert {(pair["gpu"], pair["nic"]): pair["kind"] for pair in node["gpu_nics"]} == {
        (0, "mlx5_0"): "PIX",
        (0, "mlx5_1"): "SYS",
        (1, "mlx5_0"): "SYS",
        (1, "mlx5_1"): "PIX",
    }
    assert [nic["speed_bytes_per_s"] for nic in node["nics"]] == [50e9, 50e9]


def test_a_numa_node_that_sysfs_does_not_tell_is_null_and_noted(discover, tmp_path):
    folder = tmp_path / "sys/devices/pci0000:00" / nv.sysfs_bus(0)
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("-1\n")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices" / nv.sysfs_bus(0)).symlink_to(folder)

    node = only_node(discover(nv.machine(1, name="A100", capability="8.0"), sysfs=tmp_path / "sys"))

    assert node["gpus"][0]["numa_node"] is None
    assert notes_about(node, "NUMA node") == ["GPU 0: NUMA node not told by sysfs"]


def test_the_command_prints_the_same_machine_as_a_table(nvml_library, tmp_path):
    file = tmp_path / "answers.txt"
    file.write_text(nv.render(nv.h100_hgx()))
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(nvml_library["new"]),
        "NVML_STUB_ANSWERS": str(file),
    }

    done = subprocess.run(
        [sys.executable, "-m", "topology"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "8 GPUs" in done.stdout
    assert done.stdout.count("NV18") == 8 * 7
    assert "islands: {0,1,2,3,4,5,6,7}" in done.stdout
