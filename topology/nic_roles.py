"""Which NICs carry a ring: bonds, storage and management NICs are left out, each with its reason.

A rule that would leave no NIC at all is not applied: a machine whose only NICs are bonds uses them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from topology.nouns import GpuNic, LinkKind, Nic

_NEAR = (LinkKind.PIX, LinkKind.PXB)  # below one PCIe switch or a cascade of them
_FAR = "storage or management: far from every GPU, others are near"
# Columns of /proc/net/route: interface, destination, flags, mask; RTF_UP is a flag
_INTERFACE, _DESTINATION, _FLAGS, _MASK, _UP = 0, 1, 3, 7, 0x1


@dataclass(frozen=True, slots=True, kw_only=True)
class NicRole:
    """What else the host does with a NIC."""

    bond: str | None = None  # the bond it belongs to
    default_route: str | None = None  # the interface that the default route leaves by


def read_roles(
    names: Iterable[str], *, sysfs_root: Path, proc_root: Path = Path("/proc")
) -> dict[str, NicRole]:
    """What the host does with each NIC of `class/infiniband`."""
    routes = _default_routes(proc_root)
    roles: dict[str, NicRole] = {}
    for name in names:
        folder = sysfs_root / "class" / "infiniband" / name / "device" / "net"
        interfaces = sorted(entry.name for entry in folder.glob("*"))
        above = {face: (face, *_masters(sysfs_root / "class" / "net", face)) for face in interfaces}
        bonds = [
            member
            for chain in above.values()
            for member in chain
            if (sysfs_root / "class" / "net" / member / "bonding").is_dir()
        ]
        used = [face for face, chain in above.items() if routes & set(chain)]
        roles[name] = NicRole(
            bond=next(iter(bonds), name if "bond" in name else None),
            default_route=next(iter(used), None),
        )
    return roles


def choose_nics(
    nics: Sequence[Nic], *, pairs: Sequence[GpuNic], roles: Mapping[str, NicRole]
) -> tuple[list[Nic], list[str]]:
    """The NICs that a ring may use, and a note for each that is left out.

    Args:
        nics: All of a node.
        pairs: How far each is from each GPU.
        roles: What else the host does with them, as `read_roles` answers.
    """
    near = {pair.nic for pair in pairs if pair.kind in _NEAR}
    unclear = {pair.nic for pair in pairs if pair.kind is None}
    idle = {name: role for name, role in roles.items() if name not in near}
    bonds = {name: f"in the bond {role.bond}" for name, role in idle.items() if role.bond}
    routes = {
        name: f"management: the default route leaves by {role.default_route}"
        for name, role in idle.items()
        if role.default_route
    }
    kept, notes = _without(nics, bonds)
    kept, more = _without(kept, routes)
    notes += more
    kept, more = _without(kept, _of_another_layer(kept))
    notes += more
    if near & {nic.name for nic in kept}:
        far = [nic.name for nic in kept if nic.name not in near | unclear]
        kept, more = _without(kept, dict.fromkeys(far, _FAR))
        notes += more
    return kept, notes


def _without(nics: Sequence[Nic], reasons: Mapping[str, str]) -> tuple[list[Nic], list[str]]:
    """The NICs that have no reason to be left out; all of them where none would remain."""
    rest = [nic for nic in nics if nic.name not in reasons]
    if not rest:
        return list(nics), []
    out = [nic.name for nic in nics if nic.name in reasons]
    return rest, [f"NIC {name}: left out: {reasons[name]}" for name in out]


def _of_another_layer(nics: Sequence[Nic]) -> dict[str, str]:
    """NICs that cannot reach those on the link layer with the most bandwidth."""
    rates: dict[str, float] = {}
    for nic in nics:
        if nic.link_layer is not None:
            rates[nic.link_layer] = rates.get(nic.link_layer, 0.0) + (nic.speed_bytes_per_s or 0.0)
    if len(rates) < 2:
        return {}
    main = max(rates, key=lambda layer: rates[layer])
    return {
        nic.name: f"storage or management: {nic.link_layer}, while most bandwidth is on {main}"
        for nic in nics
        if nic.link_layer not in (None, main)
    }


def _masters(net: Path, interface: str) -> list[str]:
    """The bond or bridge above an interface, and what is above that."""
    chain: list[str] = []
    while (net / interface / "master").exists():
        interface = (net / interface / "master").resolve().name
        if interface in chain:
            break
        chain.append(interface)
    return chain


def _default_routes(proc_root: Path) -> set[str]:
    try:
        lines = (proc_root / "net" / "route").read_text(encoding="utf-8").splitlines()[1:]
    except OSError:  # absent
        return set()
    rows = [line.split() for line in lines]
    return {
        row[_INTERFACE]
        for row in rows
        if len(row) > _MASK
        and set(row[_DESTINATION] + row[_MASK]) == {"0"}
        and int(row[_FLAGS], 16) & _UP
    }
