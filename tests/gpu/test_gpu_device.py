"""The clock, the memory and the driver's facts of one real GPU."""

import subprocess
import sys
import time

import pytest
import torch
from staged import register
from trial_jobs import device_of

from cptune.bench.cuda import CudaDevice, device_uuid, open_cuda
from cptune.bench.cuda_memory import DeviceBudget
from cptune.bench.job import DeviceMemoryError, DirtyDeviceError, OtherDeviceError
from cptune.bench.parts import Part
from cptune.bench.readings import Stalls
from cptune.bench.recorder import Recorder
from cptune.domain.outcome import OomKind
from cptune.domain.timeline import DEVICE_INTERVALS
from topology.nvml import read_machine, read_processes, read_uuids

pytestmark = pytest.mark.gpu
MIB = 1 << 20
CYCLES = 100_000_000  # some 50 ms at 2 GHz


@pytest.fixture(scope="module")
def device(gpu: torch.device) -> CudaDevice:
    return device_of("cuda")


@pytest.fixture
def busy_s(device: CudaDevice) -> float:
    """How long the device is busy with `CYCLES`, warmed up."""
    for _ in range(2):
        start = device.clock.restart()
        torch.cuda._sleep(CYCLES)
        seconds = device.clock.settle() - start
    assert seconds > 5e-3
    return seconds


def test_readings_are_when_the_device_came_there(device: CudaDevice, busy_s: float) -> None:
    clock = device.clock
    start_s = clock.restart()
    first = clock.now()
    torch.cuda._sleep(CYCLES)
    last = clock.now()
    queued_s = time.perf_counter() - start_s
    stop_s = clock.settle()

    assert queued_s < busy_s / 2  # the host did not wait
    assert clock.seconds(last) - clock.seconds(first) == pytest.approx(busy_s, rel=0.2)
    assert start_s - 1e-3 <= clock.seconds(first)
    assert clock.seconds(last) <= stop_s + 1e-3


def test_a_wait_stalls_the_compute_for_as_long_as_the_other_stream_takes(
    device: CudaDevice, busy_s: float
) -> None:
    clock, stalls = device.clock, Stalls(device.clock)

    def stalled_s(*, computes: bool) -> float:
        stalls.forget()
        clock.restart()
        side, done = torch.cuda.Stream(), torch.cuda.Event()
        with torch.cuda.stream(side):
            torch.cuda._sleep(CYCLES)
            done.record()
        if computes:
            torch.cuda._sleep(2 * CYCLES)
        with stalls.standing_still("cp"):
            torch.cuda.current_stream().wait_event(done)
        clock.settle()
        return stalls.seconds("cp")

    assert stalled_s(computes=False) == pytest.approx(busy_s, rel=0.3)
    assert stalled_s(computes=True) < busy_s * 0.2  # hidden


class _OnStream:
    """A work whose wait holds the current stream for another one, as NCCL's does."""

    def __init__(self, done: torch.cuda.Event) -> None:
        self._done = done

    def wait(self) -> None:
        self._done.wait()


def test_a_transfer_ends_when_its_stream_does_and_holds_the_compute(
    device: CudaDevice, busy_s: float
) -> None:
    device.clock.restart()
    recorder = Recorder({}, clock=device.clock)
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    transfer = recorder.post("keys", axis="cp", size_bytes=8, channel="0>1")
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        done.record()
    watched = recorder.watch(_OnStream(done), transfer)
    torch.cuda._sleep(CYCLES // 2)  # hides a part
    watched.wait()
    recorder.close()

    assert recorder.method == DEVICE_INTERVALS
    assert transfer.stop_s - transfer.posted_s == pytest.approx(busy_s, rel=0.3)
    ((_, (start_s, stop_s)),) = recorder.blocked
    assert 0.2 * busy_s < stop_s - start_s < 0.8 * busy_s
    assert stop_s == pytest.approx(transfer.stop_s, abs=0.2 * busy_s)


def test_waits_of_the_compute_alone_are_seen(device: CudaDevice) -> None:
    stalls = Stalls(device.clock)
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    event.record()
    plain = torch.cuda.Stream.wait_event
    device.clock.restart()
    with device.seeing_waits(lambda: stalls.standing_still("dp")):
        side.wait_event(event)
        assert not stalls._spans
        torch.cuda.current_stream().wait_event(event)
        assert len(stalls._spans) == 1
    assert torch.cuda.Stream.wait_event is plain
    with torch.cuda.stream(side):
        assert not device.is_computing()
    assert device.is_computing()


def test_peaks_are_the_allocators_by_phase(device: CudaDevice) -> None:
    memory = device.start_trial(1 << 40)
    assert isinstance(memory, DeviceBudget)
    with memory:
        with memory.phase("forward", keeps=Part.ACTIVATIONS):
            kept = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        with memory.phase("backward"):
            torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
        host = torch.empty(64 * MIB, dtype=torch.uint8)
    with memory.phase("optimizer"):
        unseen = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    peaks = memory.peaks()
    with memory.uncounted():
        torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    assert memory.peaks().allocated_bytes == peaks.allocated_bytes

    assert peaks.forward_bytes == pytest.approx(8 * MIB, abs=MIB)
    assert peaks.backward_bytes == pytest.approx(24 * MIB, abs=MIB)
    assert peaks.allocated_bytes == peaks.backward_bytes
    assert 24 * MIB <= peaks.reserved_bytes < 256 * MIB
    split = memory.split()
    assert split.activations_bytes + split.transient_bytes == pytest.approx(24 * MIB, abs=MIB)
    assert split.optimizer_peak_bytes == pytest.approx(12 * MIB, abs=MIB)
    assert memory.live_bytes == kept.nbytes  # neither the host's nor what nobody watched
    del kept, unseen, host


@pytest.mark.parametrize(
    ("limit", "asked", "kind"),
    [(None, 1 << 50, OomKind.CAPACITY), (64, 80, OomKind.CAPACITY), (64, 40, OomKind.TENSOR)],
)
def test_memory_that_runs_out_is_typed(device: CudaDevice, limit, asked, kind) -> None:
    device.start_trial(limit * MIB if limit else 1 << 40)
    size = asked * MIB if limit else asked
    held = []

    def ask() -> None:
        for _ in range(2 if kind is OomKind.TENSOR else 1):
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))  # noqa: PERF401

    try:
        with pytest.raises(DeviceMemoryError) as caught, device.typed_shortage():
            ask()
        shortage = caught.value.shortage
        assert shortage is not None, str(caught.value)
        assert shortage.kind is kind
        assert shortage.asked_bytes == pytest.approx(size, rel=0.01)
        assert shortage.short_bytes > 0
        assert "out of memory on cuda:0: asked" in str(caught.value)
    finally:
        held.clear()
        device.start_trial(1 << 40)


def test_holes_that_are_too_small_are_fragmentation(device: CudaDevice) -> None:
    device.start_trial(200 * MIB)
    blocks = [torch.empty(2 * MIB, dtype=torch.uint8, device="cuda") for _ in range(90)]
    del blocks[::2]  # half is free, in holes of 2 MiB
    try:
        with pytest.raises(DeviceMemoryError) as caught, device.typed_shortage():
            torch.empty(60 * MIB, dtype=torch.uint8, device="cuda")
        assert caught.value.shortage is not None
        assert caught.value.shortage.kind is OomKind.FRAGMENTATION
    finally:
        blocks.clear()
        device.start_trial(1 << 40)


def test_the_driver_and_cuda_name_the_same_gpu(device: CudaDevice) -> None:
    facts = {one.uuid: one for one in read_machine().gpus}

    assert device.uuid == device_uuid(0)
    assert device.uuid in facts
    assert device.uuid in read_uuids().values()
    total = torch.cuda.get_device_properties(0).total_memory
    assert total == pytest.approx(facts[device.uuid].memory_bytes, rel=0.05)
    assert open_cuda(expected_uuid=device.uuid).uuid == device.uuid
    with pytest.raises(OtherDeviceError, match="wanted GPU-else"):
        open_cuda(expected_uuid="GPU-else")


HOLDER = """
import sys, torch
held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("held", flush=True)
sys.stdin.readline()
"""


def test_another_process_on_the_device_is_named(gpu: torch.device) -> None:
    device = CudaDevice(backend=register(), patience_s=0.5)
    if not read_processes(device.uuid):
        pytest.skip("the driver lists no process of this GPU here, as in some containers")
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(DirtyDeviceError, match=r"process \d+ holds"):
            device.start_trial(1 << 40)
        other.communicate("\n")
    device.start_trial(1 << 40)
    assert device.used_bytes() is None or device.used_bytes() > 0
