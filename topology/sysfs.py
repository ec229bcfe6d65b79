"""NICs, PCIe paths and NUMA nodes from /sys. The root is a parameter, so a built tree is a test."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from topology.nouns import LinkKind, Nic

_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_RATE = re.compile(r"([0-9.]+) Gb/sec")
_ACTIVE = "ACTIVE"
_BRIDGE_CLASS = "0x0680"  # PCI class "other bridge"; an NVSwitch shows as one


def normal_bus_id(text: str) -> str | None:
    """The form sysfs uses (0000:1b:00.0), or None where the text is no PCI address.

    The driver writes eight upper-case digits for the domain: 00000000:1B:00.0.
    """
    match = _BUS_ID.fullmatch(text.strip().lower())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def read_pci_path(bus_id: str | None, *, root: Path) -> tuple[str, ...] | None:
    """Host bridge, bridges and device from the top down; None where sysfs does not show it."""
    if bus_id is None:
        return None
    return _pci_path(root / "bus" / "pci" / "devices" / bus_id)


def read_numa_node(bus_id: str | None, *, root: Path) -> int | None:
    """NUMA node of a PCI device; None where it is not told (-1, as in many virtual machines)."""
    if bus_id is None:
        return None
    return _numa_node(root / "bus" / "pci" / "devices" / bus_id)


def read_cpu_affinity(bus_id: str | None, *, root: Path) -> str | None:
    """CPUs near a PCI device, as 0-47,96-143."""
    if bus_id is None:
        return None
    return _text(root / "bus" / "pci" / "devices" / bus_id / "local_cpulist") or None


def is_switch(bus_id: str, *, root: Path) -> bool:
    """Does the PCI class say NVSwitch? False also where sysfs does not show the device."""
    shown = _text(root / "bus" / "pci" / "devices" / bus_id / "class") or ""
    return shown.startswith(_BRIDGE_CLASS)


def read_nics(root: Path) -> tuple[list[Nic], list[str]]:
    """RDMA network devices by name, and notes on what was missing.

    Every device of `class/infiniband` is listed; which of them rings may use is another question.
    """
    folder = root / "class" / "infiniband"
    if not folder.is_dir():
        return [], [f"no RDMA network device: {folder} does not exist"]
    nics: list[Nic] = []
    notes: list[str] = []
    for entry in sorted(folder.iterdir()):
        port, why = _read_port(entry)
        path = nic_pci_path(entry.name, root=root)
        nics.append(
            Nic(
                name=entry.name,
                pci_bus_id=path[-1] if path else None,
                speed_bytes_per_s=port.speed_bytes_per_s,
                numa_node=_numa_node(entry / "device"),
                link_layer=port.link_layer,
                state=port.state,
            )
        )
        notes += [f"NIC {entry.name}: speed unknown: {why}"] if why else []
        notes += [] if path else [f"NIC {entry.name}: no PCI device behind it"]
    return nics, notes


def nic_pci_path(name: str, *, root: Path) -> tuple[str, ...] | None:
    """As `read_pci_path`, for a device of `class/infiniband`."""
    return _pci_path(root / "class" / "infiniband" / name / "device")


def distance(
    path_a: tuple[str, ...] | None,
    path_b: tuple[str, ...] | None,
    *,
    numa_a: int | None,
    numa_b: int | None,
) -> LinkKind | None:
    """How far apart two PCI devices are, in the words of `nvidia-smi topo -m`.

    Args:
        path_a: As `read_pci_path` answers.
        path_b: As path_a.
        numa_a: NUMA node of a; it decides only where the two have no host bridge in common.
        numa_b: As numa_a.

    Returns:
        None where a path, or a NUMA node that decides, is unknown.
    """
    if not path_a or not path_b:
        return None
    shared = 0
    for step_a, step_b in zip(path_a[:-1], path_b[:-1], strict=False):
        if step_a != step_b:
            break
        shared += 1
    if shared == 0:
        return _across_host_bridges(numa_a, numa_b)
    if shared == 1:
        return LinkKind.PHB
    # Below the common bridge a switch shows one downstream port on each side; more is a cascade.
    ports = max(len(path_a), len(path_b)) - 1 - shared
    return LinkKind.PIX if ports <= 1 else LinkKind.PXB


def _across_host_bridges(numa_a: int | None, numa_b: int | None) -> LinkKind | None:
    if numa_a is None or numa_b is None:
        return None
    return LinkKind.NODE if numa_a == numa_b else LinkKind.SYS


def _pci_path(device: Path) -> tuple[str, ...] | None:
    if not device.exists():
        return None
    parts = device.resolve().parts
    tops = [position for position, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)]
    if not tops:
        return None
    path = tuple(
        part for part in parts[tops[0] :] if _HOST_BRIDGE.fullmatch(part) or _BUS_ID.fullmatch(part)
    )
    return path if _BUS_ID.fullmatch(path[-1]) else None


def _numa_node(device: Path) -> int | None:
    text = _text(device / "numa_node") or ""
    return int(text) if text.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Port:
    """The fastest active port of a NIC, else its first."""

    state: str | None = None
    link_layer: str | None = None
    speed_bytes_per_s: float | None = None


def _read_port(device: Path) -> tuple[_Port, str]:
    """The port that counts, and why its speed is not known, if so."""
    folders = sorted((device / "ports").glob("*"))
    if not folders:
        return _Port(), "it shows no port"
    ports = [_port(folder) for folder in folders]
    active = [port for port in ports if port.state == _ACTIVE]
    if not active:
        states = [_text(folder / "state") or "unknown" for folder in folders]
        told = ", ".join(
            f"port {folder.name} is {state}" for folder, state in zip(folders, states, strict=True)
        )
        return replace(ports[0], speed_bytes_per_s=None), f"no active port ({told})"
    best = max(active, key=lambda port: port.speed_bytes_per_s or 0)
    return best, "" if best.speed_bytes_per_s else "no rate is told"


def _port(folder: Path) -> _Port:
    rate = _RATE.match(_text(folder / "rate") or "")
    return _Port(
        state=(_text(folder / "state") or "").rpartition(":")[2].strip() or None,
        link_layer=_text(folder / "link_layer") or None,
        speed_bytes_per_s=(float(rate.group(1)) * 1e9 / 8 or None) if rate else None,
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # absent, or a driver that refuses the read: either way not told
        return None
