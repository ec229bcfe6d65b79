"""Machines for the NVML stub: what each driver call answers, as lines of its answer file."""

OK, NO_P2P, P2P_UNKNOWN = 0, 5, 6
INVALID_ARGUMENT, NOT_SUPPORTED, DRIVER_NOT_LOADED = "!2", "!3", "!9"
NOT_FOUND, GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN_ERROR = "!6", "!15", "!25", "!999"
SWITCH, GPU = 2, 0
SYSTEM, NODE, PXB, SINGLE = 50, 40, 20, 10
READ, WRITE, NVLINK = 0, 1, 2
STATE_FIELD, COUNT_FIELD, SPEED_FIELD, VERSION_FIELD = 165, 91, 164, 166
OLD_SPEED_FIELDS, COMMON_SPEED_FIELD = (84, 85, 86, 87, 88, 89, 132, 133, 134, 135, 136, 137), 90
C2C_COUNT_FIELD, C2C_SPEED_FIELD = 170, 172
FABRIC, NO_CLUSTER = "nvmlDeviceGetGpuFabricInfoV", "0" * 32

Answers = dict[str, object]

# what a process on top of the stub runs
SCRIPT = """
import json, sys
from pathlib import Path
from topology.discover import discover
found = discover(node_name="node0", sysfs_root=Path(sys.argv[1]))
print(json.dumps(found.to_json()))
"""


def render(answers: Answers) -> str:
    """The answer file."""
    return "".join(f"{call} = {answer}\n" for call, answer in answers.items())


def bus(index: int) -> str:
    """PCI address of GPU `index`, as the driver writes it."""
    return f"00000000:{0x1B + index:02X}:00.0"


def sysfs_bus(index: int) -> str:
    """The same as sysfs writes it."""
    return f"0000:{0x1B + index:02x}:00.0"


def machine(count: int, *, name: str, capability: str) -> Answers:
    """GPUs without NVLink under one root complex."""
    answers: Answers = {
        "nvmlSystemGetDriverVersion": "550.54.15",
        "nvmlDeviceGetCount": count,
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetMemoryInfo": 80 * 2**30,
        "nvmlDeviceGetCudaComputeCapability": capability,
        "nvmlDeviceGetCpuAffinity": "0000ffff0000ffff",
        "nvmlDeviceGetMigMode": 0,
        "nvmlDeviceGetTopologyCommonAncestor": NODE,
        "nvmlDeviceGetP2PStatus": OK,
        "nvmlDeviceGetMaxPcieLinkGeneration": 4,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetCurrPcieLinkGeneration": 1,  # idle
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        FABRIC: f"0 {NO_CLUSTER} 0 0",
    }
    answers |= {f"nvmlDeviceGetFieldValues {a} {C2C_COUNT_FIELD}": 0 for a in range(count)}
    for a in range(count):
        answers[f"nvmlDeviceGetUUID {a}"] = f"GPU-{a:08d}"
        answers[f"nvmlDeviceGetPciInfo {a}"] = bus(a)
        for b in range(count):
            answers[f"nvmlDeviceGetP2PStatus {a} {b} {NVLINK}"] = NO_P2P
    return answers


def h100_hgx() -> Answers:
    """Eight H100 on four NVSwitches; the PCIe ancestor alone would say NODE or SYS."""
    answers = machine(8, name="NVIDIA H100 80GB HBM3", capability="9.0")
    answers |= {
        "nvmlDeviceGetNvLinkState": INVALID_ARGUMENT,
        "nvmlDeviceGetNvLinkCapability": 1,
        "nvmlDeviceGetNvLinkVersion": 6,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        FABRIC: f"3 {NO_CLUSTER} 0 0",  # complete, and joins no other host
    }
    for a in range(8):
        answers[f"nvmlDeviceGetFieldValues {a} {COUNT_FIELD}"] = 18
        answers[f"nvmlDeviceGetFieldValues {a} {SPEED_FIELD}"] = 26562
        for b in range(8):
            answers[f"nvmlDeviceGetP2PStatus {a} {b} {NVLINK}"] = OK
            far_apart = a // 4 != b // 4
            answers[f"nvmlDeviceGetTopologyCommonAncestor {a} {b}"] = SYSTEM if far_apart else NODE
        for link in range(18):
            answers[f"nvmlDeviceGetNvLinkState {a} {link}"] = 1
            answers[f"nvmlDeviceGetNvLinkRemoteDeviceType {a} {link}"] = SWITCH
            answers[f"nvmlDeviceGetNvLinkRemotePciInfo {a} {link}"] = (
                f"00000000:{link % 4:02X}:00.0"
            )
    return answers


def a100_dgx() -> Answers:
    """Eight A100 with twelve NVLinks each to six NVSwitches."""
    answers = machine(8, name="NVIDIA A100-SXM4-80GB", capability="8.0")
    answers |= {
        "nvmlDeviceGetNvLinkState": INVALID_ARGUMENT,
        "nvmlDeviceGetNvLinkCapability": 1,
        "nvmlDeviceGetNvLinkVersion": 4,  # this is NVLink 3
        FABRIC: NOT_SUPPORTED,
    }
    for a in range(8):
        answers[f"nvmlDeviceGetFieldValues {a} {COUNT_FIELD}"] = 12
        for b in range(8):
            answers[f"nvmlDeviceGetP2PStatus {a} {b} {NVLINK}"] = OK
            far_apart = a // 2 != b // 2
            answers[f"nvmlDeviceGetTopologyCommonAncestor {a} {b}"] = SYSTEM if far_apart else PXB
        for link in range(12):
            answers[f"nvmlDeviceGetFieldValues {a} {OLD_SPEED_FIELDS[link]}"] = 25000
            answers[f"nvmlDeviceGetNvLinkState {a} {link}"] = 1
            answers[f"nvmlDeviceGetNvLinkRemoteDeviceType {a} {link}"] = SWITCH
            answers[f"nvmlDeviceGetNvLinkRemotePciInfo {a} {link}"] = (
                f"00000000:{0xC1 + link // 2:02X}:00.0"
            )
    return answers


# GPU -> its peers and how many of its six NVLinks lead there, as `topo -m` of a DGX-1V prints
CUBE = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}


def v100_cube() -> Answers:
    """Eight V100 in the hybrid cube of a DGX-1V; the links name their far ends."""
    answers = machine(8, name="Tesla V100-SXM2-32GB", capability="7.0")
    answers |= {
        "nvmlDeviceGetNvLinkState": INVALID_ARGUMENT,
        "nvmlDeviceGetNvLinkCapability": 1,
        "nvmlDeviceGetNvLinkVersion": 2,
        "nvmlDeviceGetMaxPcieLinkGeneration": 3,
        "nvmlDeviceGetMigMode": NOT_SUPPORTED,
        FABRIC: NOT_SUPPORTED,
    }
    used = dict.fromkeys(range(8), 0)
    for (a, b), lanes in CUBE.items():
        for _ in range(lanes):
            for near, far in ((a, b), (b, a)):
                link = used[near]
                used[near] += 1
                answers[f"nvmlDeviceGetNvLinkState {near} {link}"] = 1
                answers[f"nvmlDeviceGetNvLinkRemoteDeviceType {near} {link}"] = GPU
                answers[f"nvmlDeviceGetNvLinkRemotePciInfo {near} {link}"] = bus(far)
    for a in range(8):
        answers[f"nvmlDeviceGetFieldValues {a} {COMMON_SPEED_FIELD}"] = 25781
        for b in range(8):
            far_apart = a // 4 != b // 4
            answers[f"nvmlDeviceGetTopologyCommonAncestor {a} {b}"] = SYSTEM if far_apart else NODE
            if (min(a, b), max(a, b)) in CUBE:
                answers[f"nvmlDeviceGetP2PStatus {a} {b} {NVLINK}"] = OK
    return answers


def bridged_pairs() -> Answers:
    """Four RTX A6000: 0 and 2 are bridged, 1 and 3 too, all on one root complex."""
    answers = machine(4, name="NVIDIA RTX A6000", capability="8.6")
    answers |= {
        "nvmlDeviceGetNvLinkState": NOT_SUPPORTED,
        "nvmlDeviceGetNvLinkCapability": 1,
        "nvmlDeviceGetNvLinkVersion": NOT_SUPPORTED,
        FABRIC: NOT_SUPPORTED,
    }
    for a in range(4):
        peer = (a + 2) % 4
        answers[f"nvmlDeviceGetP2PStatus {a} {peer} {NVLINK}"] = OK
        answers[f"nvmlDeviceGetFieldValues {a} {VERSION_FIELD}"] = 5
        for link in range(4):
            answers[f"nvmlDeviceGetNvLinkState {a} {link}"] = 1
            answers[f"nvmlDeviceGetNvLinkRemoteDeviceType {a} {link}"] = GPU
            answers[f"nvmlDeviceGetNvLinkRemotePciInfo {a} {link}"] = bus(peer)
    return answers


def bridged_pair() -> Answers:
    """Two A100 joined by four NVLinks that name each other."""
    answers = machine(2, name="NVIDIA A100 80GB PCIe", capability="8.0")
    answers |= {
        "nvmlDeviceGetNvLinkState": NOT_SUPPORTED,
        "nvmlDeviceGetNvLinkCapability": 1,
        "nvmlDeviceGetNvLinkVersion": 4,
    }
    for a in range(2):
        answers[f"nvmlDeviceGetP2PStatus {a} {1 - a} {NVLINK}"] = OK
        for link in range(4):
            answers[f"nvmlDeviceGetNvLinkState {a} {link}"] = 1
            answers[f"nvmlDeviceGetNvLinkRemoteDeviceType {a} {link}"] = GPU
            answers[f"nvmlDeviceGetNvLinkRemotePciInfo {a} {link}"] = bus(1 - a)
    return answers


def lose(answers: Answers, *, index: int) -> Answers:
    """The same machine after GPU `index` fell off the bus."""
    lost = {call: answer for call, answer in answers.items() if not _about(call, index=index)}
    calls = [call for call in {call.split()[0] for call in answers} if "Device" in call]
    lost |= {f"{call} {index}": GPU_IS_LOST for call in calls if call != "nvmlDeviceGetCount"}
    lost[f"nvmlDeviceGetFieldValues {index}"] = GPU_IS_LOST
    count = answers["nvmlDeviceGetCount"]
    assert isinstance(count, int)
    for other in range(count):
        for call in ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor"):
            lost[f"{call} {other} {index}"] = GPU_IS_LOST
            lost[f"{call} {index} {other}"] = GPU_IS_LOST
    return lost


def _about(call: str, *, index: int) -> bool:
    name, *args = call.split()
    pairs = name in ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor")
    return str(index) in (args[:2] if pairs else args[:1])
