"""What the driver tells of the NVLinks of one GPU: how many, which are up, how fast, where to."""

from topology.driver import INVALID_ARGUMENT, NOT_SUPPORTED, Driver
from topology.sysfs import normal_bus_id
from topology.wiring import FarEnd, NvlinkEnd

_NO_SUCH_LINK = (NOT_SUPPORTED, INVALID_ARGUMENT)  # what a link beyond the board answers
_CAP_P2P = 0  # NVML_NVLINK_CAP_P2P_SUPPORTED
# NVML_FI_DEV_NVLINK_ of nvml.h; the scope of the first three is the link
_SPEED, _STATE, _VERSION = 164, 165, 166
_LINK_COUNT = 91
# SPEED_MBPS_L0 to L11 and _COMMON, of drivers that do not know the above
_OLD_SPEEDS = (84, 85, 86, 87, 88, 89, 132, 133, 134, 135, 136, 137)
_OLD_SPEED_OF_ALL = 90
_VERSIONS = {  # NVML_NVLINK_VERSION_: 4 is not NVLink 4
    1: "1.0",
    2: "2.0",
    3: "2.2",
    4: "3.0",
    5: "3.1",
    6: "4.0",
    7: "5.0",
    8: "6.0",
}
_FAR_ENDS = {0: FarEnd.GPU, 1: FarEnd.OTHER, 2: FarEnd.SWITCH}
_MEGA = 1e6


def read_nvlinks(
    driver: Driver, *, subject: str, handle: object
) -> tuple[int | None, tuple[NvlinkEnd, ...] | None]:
    """How many NVLinks the board has, and those that are active and can carry peer traffic."""
    count = driver.ask_field(handle, name=_LINK_COUNT)
    bound = int(driver.nvml.NVML_NVLINK_MAX_LINKS) if count is None else count
    ends: list[NvlinkEnd] = []
    for link in range(bound):
        active = driver.ask_whole("nvmlDeviceGetNvLinkState", handle, link)
        if active is None and driver.last_code != INVALID_ARGUMENT:
            refused = driver.last_code
            active = driver.ask_field(handle, name=_STATE, scope=link)
            driver.last_code = refused if driver.last_code else 0
        if driver.last_code not in (0, *_NO_SUCH_LINK):
            driver.note("GPU", subject, "NVLink state")
            return count, None
        if active == 1 and _carries_peers(driver, handle=handle, link=link):
            ends.append(_read_end(driver, subject=subject, handle=handle, link=link))
    return count, tuple(ends)


def read_bus_id(pci: object) -> str | None:
    """In virtual machines the far end's address may be empty or not printable."""
    try:
        return normal_bus_id(str(getattr(pci, "busId", "")))
    except UnicodeDecodeError:
        return None


def _carries_peers(driver: Driver, *, handle: object, link: int) -> bool:
    """False only where the driver says so: NCCL drops such links too."""
    return driver.ask_whole("nvmlDeviceGetNvLinkCapability", handle, link, _CAP_P2P) != 0


def _read_end(driver: Driver, *, subject: str, handle: object, link: int) -> NvlinkEnd:
    kind = driver.ask_whole("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    remote = driver.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    far_end = FarEnd.UNKNOWN if kind is None else _FAR_ENDS.get(kind, FarEnd.UNKNOWN)
    version = driver.ask_whole("nvmlDeviceGetNvLinkVersion", handle, link)
    if version is None:
        version = driver.ask_field(handle, name=_VERSION, scope=link)
    driver.note("GPU", subject, "NVLink version")
    speed = _read_speed(driver, handle=handle, link=link)
    driver.note("GPU", subject, "NVLink speed")
    return NvlinkEnd(
        far_end=far_end,
        bus_id=read_bus_id(remote),
        version=None if version is None else _VERSIONS.get(version),
        bytes_per_s=None if not speed else speed * _MEGA,
    )


def _read_speed(driver: Driver, *, handle: object, link: int) -> int | None:
    speed = driver.ask_field(handle, name=_SPEED, scope=link)
    if speed is None and link < len(_OLD_SPEEDS):
        speed = driver.ask_field(handle, name=_OLD_SPEEDS[link])
    if speed is None:
        speed = driver.ask_field(handle, name=_OLD_SPEED_OF_ALL)
    return speed
