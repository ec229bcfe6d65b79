"""Trees of directories and symlinks built like /sys."""

ACTIVE = "4: ACTIVE"
NDR = (("400 Gb/sec (4X NDR)", ACTIVE, "InfiniBand"),)


def add_device(root, *steps, numa_node=None):
    """A PCI device below the given bridges, linked from bus/pci/devices."""
    folder = root.joinpath("devices", *steps)
    folder.mkdir(parents=True)
    links = root / "bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / steps[-1]).symlink_to(folder)
    if numa_node is not None:
        (folder / "numa_node").write_text(f"{numa_node}\n")
    return folder


def add_nic(root, name, *steps, numa_node=None, ports=NDR, interface=None):
    """An RDMA device on a PCI device, linked from class/infiniband."""
    device = add_device(root, *steps, numa_node=numa_node)
    folder = device / "infiniband" / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(device)
    for number, (rate, state, *layer) in enumerate(ports, start=1):
        port = folder / "ports" / str(number)
        port.mkdir(parents=True)
        (port / "rate").write_text(f"{rate}\n")
        (port / "state").write_text(f"{state}\n")
        for word in layer:
            (port / "link_layer").write_text(f"{word}\n")
    if interface is not None:
        (device / "net" / interface).mkdir(parents=True)
    links = root / "class/infiniband"
    links.mkdir(parents=True, exist_ok=True)
    (links / name).symlink_to(folder)


def add_bond(root, bond, *interfaces):
    """A bonding interface and its members."""
    (root / "class/net" / bond / "bonding").mkdir(parents=True)
    for interface in interfaces:
        folder = root / "class/net" / interface
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "master").symlink_to(root / "class/net" / bond)


def add_default_route(proc_root, interface):
    """A routing table with a network of its own and the default route, both by one interface."""
    folder = proc_root / "net"
    folder.mkdir(parents=True)
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"
    rows = [
        "other 0000000A 00000000 0001 0 0 0 000000FF 0 0 0",
        f"{interface} 00000000 0100000A 0003 0 0 0 00000000 0 0 0",
        "down 00000000 0100000A 0002 0 0 0 00000000 0 0 0",
    ]
    (folder / "route").write_text("\n".join([head, *rows]) + "\n")
