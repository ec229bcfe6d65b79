"""What the driver tells of the NVLink fabric that joins GPUs of several hosts."""

import ctypes
import uuid

from topology.driver import FUNCTION_NOT_FOUND, VERSION_MISMATCH, Driver
from topology.gpu import Fabric, FabricState

_STATES = {  # NVML_GPU_FABRIC_STATE_
    0: FabricState.NOT_SUPPORTED,
    1: FabricState.NOT_STARTED,
    2: FabricState.IN_PROGRESS,
    3: FabricState.COMPLETED,
}
# The form most drivers know, a later one, and the first; a wrong one is answered as a mismatch.
_FORMS = (
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
    ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)
_ANOTHER_FORM = (VERSION_MISMATCH, FUNCTION_NOT_FOUND)


def read_fabric(driver: Driver, *, subject: str, handle: object) -> Fabric | None:
    """The fabric of one GPU; None where the driver does not tell, with a note."""
    for call, form in _FORMS:
        info: ctypes.Structure = getattr(driver.nvml, form)()
        driver.ask(call, handle, ctypes.byref(info))
        if not driver.last_code:
            return _fabric(info)
        if driver.last_code not in _ANOTHER_FORM:
            break
    driver.note("GPU", subject, "fabric")
    return None


def _fabric(info: ctypes.Structure) -> Fabric:
    words = bytes(getattr(info, "clusterUuid", b""))
    state = _STATES.get(getattr(info, "state", -1))
    if state is FabricState.COMPLETED and getattr(info, "status", 0):
        state = FabricState.FAILED
    if not any(words):  # a board of one host: it is complete, and joins nobody
        return Fabric(state=state)
    return Fabric(
        state=state,
        cluster_uuid=str(uuid.UUID(bytes=words)),
        clique=getattr(info, "cliqueId", None),
    )
