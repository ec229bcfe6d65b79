"""Asking a driver: types and return codes of fields, and what is remembered of refusals."""

import ctypes
from types import SimpleNamespace

import pytest

from topology.driver import Driver
from topology.fabric import read_fabric
from topology.gpu import Fabric, FabricState


class Value(ctypes.Union):
    _fields_ = (
        ("dVal", ctypes.c_double),
        ("uiVal", ctypes.c_uint),
        ("ullVal", ctypes.c_ulonglong),
        ("sllVal", ctypes.c_longlong),
    )


class FieldValue(ctypes.Structure):
    _fields_ = (("valueType", ctypes.c_int), ("nvmlReturn", ctypes.c_int), ("value", Value))


class Info(ctypes.Structure):
    _fields_ = (
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_int),
        ("cliqueId", ctypes.c_uint),
        ("state", ctypes.c_uint),
    )


class Refused(Exception):  # noqa: N818 - as pynvml's own
    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value


def driver_of(**calls):
    forms = dict.fromkeys(
        ["c_nvmlGpuFabricInfo_v2_t", "c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_t"], Info
    )
    return Driver(nvml=SimpleNamespace(NVMLError=Refused, NVML_ERROR_UNKNOWN=999, **forms, **calls))


def refuse(code):
    def call(*args):
        raise Refused(code)

    return call


def field_of(*, kind, code=0, **value):
    array = (FieldValue * 1)(FieldValue(valueType=kind, nvmlReturn=code, value=Value(**value)))
    return driver_of(nvmlDeviceGetFieldValues=lambda *args: array)


@pytest.mark.parametrize(
    ("kind", "value", "answer"),
    [
        (0, {"dVal": 18.0}, 18),
        (1, {"uiVal": 26562}, 26562),
        (3, {"ullVal": 2**40}, 2**40),
        (4, {"sllVal": -1}, -1),
        (99, {"uiVal": 7}, 7),
    ],
)
def test_a_field_is_read_by_its_type(kind, value, answer):
    assert field_of(kind=kind, **value).ask_field(None, name=91) == answer


def test_a_field_has_a_return_code_of_its_own():
    driver = field_of(kind=1, code=3, uiVal=18)

    assert driver.ask_field(None, name=91) is None
    driver.note("GPU", "0", "links")
    assert driver.notes() == ["GPU 0: links not told (NVML: error 3)"]


def test_fields_that_are_all_refused_are_none():
    driver = driver_of(nvmlDeviceGetFieldValues=refuse(15))

    assert driver.ask_field(None, name=91) is None
    assert driver.last_code == 15


def test_refusals_fold_over_facts_and_subjects():
    driver = driver_of(call=refuse(3))
    for subject in ("0", "1"):
        for fact in ("name", "uuid", "name"):
            assert driver.ask("call") is None
            driver.note("GPU", subject, fact)

    assert driver.notes() == ["GPU 0, 1: name, uuid not told (NVML: error 3)"]


def test_what_is_told_leaves_no_note():
    driver = driver_of(whole=lambda: 5, text=lambda: "x", empty=lambda: "")

    assert (driver.ask_whole("whole"), driver.ask_whole("text")) == (5, None)
    assert (driver.ask_text("text"), driver.ask_text("empty")) == ("x", None)
    driver.note("GPU", "0", "all")
    assert driver.notes() == []


def test_text_that_is_none_is_an_unknown_error():
    driver = driver_of(call=lambda: b"\xff".decode())

    assert driver.ask_text("call") is None
    assert driver.last_code == 999


def told(*, state, words=b"\1" * 16, clique=0, status=0):
    def call(handle, pointer):
        info = pointer._obj
        info.clusterUuid[:] = list(words)
        info.state, info.cliqueId, info.status = state, clique, status

    return call


@pytest.mark.parametrize(
    ("state", "status", "word"),
    [
        (0, 0, FabricState.NOT_SUPPORTED),
        (1, 0, FabricState.NOT_STARTED),
        (2, 0, FabricState.IN_PROGRESS),
        (3, 0, FabricState.COMPLETED),
        (3, 999, FabricState.FAILED),
        (9, 0, None),
    ],
)
def test_the_state_of_the_fabric(state, status, word):
    driver = driver_of(nvmlDeviceGetGpuFabricInfoV=told(state=state, status=status, clique=5))

    assert read_fabric(driver, subject="0", handle=None) == Fabric(
        state=word, cluster_uuid="01010101-0101-0101-0101-010101010101", clique=5
    )


def test_a_cluster_of_zeros_is_none_at_all():
    driver = driver_of(nvmlDeviceGetGpuFabricInfoV=told(state=3, words=bytes(16)))

    assert read_fabric(driver, subject="0", handle=None) == Fabric(state=FabricState.COMPLETED)


@pytest.mark.parametrize("code", [13, 25])
def test_the_first_form_of_the_call_is_the_last_resort(code):
    driver = driver_of(
        nvmlDeviceGetGpuFabricInfoV=refuse(code), nvmlDeviceGetGpuFabricInfo=told(state=3)
    )

    fabric = read_fabric(driver, subject="0", handle=None)

    assert fabric.state is FabricState.COMPLETED
    assert driver.notes() == []


@pytest.mark.parametrize("code", [3, 15])
def test_another_refusal_ends_the_asking_with_a_note(code):
    driver = driver_of(nvmlDeviceGetGpuFabricInfoV=refuse(code))

    assert read_fabric(driver, subject="0", handle=None) is None
    driver.last_code = 0
    assert driver.notes() == [f"GPU 0: fabric not told (NVML: error {code})"]
