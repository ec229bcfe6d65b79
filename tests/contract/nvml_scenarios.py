"""Machines for the NVML stub: what each driver call answers, as lines of its answer file."""

OK, NO_P2P, P2P_UNKNOWN = 0, 5, 6
INVALID_ARGUMENT, NOT_SUPPORTED, DRIVER_NOT_LOADED = "!2", "!3", "!9"
GPU_IS_LOST, UNKNOWN_ERROR = "!15", "!999"
SWITCH, GPU = 2, 0
SYSTEM, NODE, SINGLE = 50, 40, 10
READ, WRITE, NVLINK = 0, 1, 2
STATE_FIELD, COUNT_FIELD = 165, 91

Answers = dict[str, object]


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
    }
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
        f"nvmlDeviceGetFieldValues 0 {COUNT_FIELD}": 18,
        "nvmlDeviceGetNvLinkState": INVALID_ARGUMENT,
        "nvmlDeviceGetNvLinkCapability": 1,
    }
    for a in range(8):
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


def bridged_pair() -> Answers:
    """Two A100 joined by four NVLinks that name each other."""
    answers = machine(2, name="NVIDIA A100 80GB PCIe", capability="8.0")
    answers |= {"nvmlDeviceGetNvLinkState": NOT_SUPPORTED, "nvmlDeviceGetNvLinkCapability": 1}
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
