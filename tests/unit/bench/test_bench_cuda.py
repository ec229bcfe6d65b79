"""A rank's GPU on a fake of torch.cuda: readings, stalls, peaks, limits and who else is there."""

import pytest
import torch
from fake_cuda import GIB, FakeCuda, FakeStream

from cptune.bench import cuda
from cptune.bench.cuda import NCCL, CudaClock, CudaDevice, open_cuda
from cptune.bench.cuda_memory import DeviceBudget, typed_shortage
from cptune.bench.job import (
    DeviceError,
    DeviceMemoryError,
    DirtyDeviceError,
    MemoryBudgetExceededError,
    OtherDeviceError,
)
from cptune.bench.parts import Part
from cptune.bench.readings import Stalls
from cptune.bench.recorder import Recorder
from cptune.cluster.failures import failure_from
from cptune.domain.outcome import OomKind, OutcomeKind
from cptune.domain.timeline import DEVICE_INTERVALS, Stamp
from topology.processes import GpuProcess

CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    return FakeCuda().install(monkeypatch)


def device_of(gpu, **given):
    return CudaDevice(read=gpu.read, patience_s=0.0, **given)


@pytest.fixture
def clock(gpu):
    clock = CudaClock(CUDA)
    clock.restart()
    return clock


def test_a_reading_is_when_the_device_comes_there(gpu, clock):
    start = clock.now()
    gpu.work(3.0)
    stop = clock.now()
    clock.settle()

    assert clock.seconds(stop) - clock.seconds(start) == pytest.approx(3.0)


def test_readings_count_from_the_last_restart(gpu, clock):
    gpu.work(5.0)
    clock.now()
    restart_s = clock.restart()

    assert clock.now() == 0.0
    assert clock.seconds(0.0) == pytest.approx(restart_s)


@pytest.mark.parametrize(("hidden_s", "stall_s"), [(0.0, 4.0), (1.5, 2.5), (6.0, 0.0)])
def test_the_stall_is_what_the_compute_did_not_hide(gpu, clock, hidden_s, stall_s):
    stalls, side = Stalls(clock), FakeStream()
    with gpu.stream(side):
        gpu.work(4.0)
        done = gpu.event()
        done.record()
    gpu.work(hidden_s)
    with stalls.standing_still("cp"):
        gpu.current_stream().wait_event(done)

    assert stalls.seconds("cp") == pytest.approx(stall_s)
    assert stalls.seconds("dp") == 0.0
    stalls.forget()
    assert stalls.seconds("cp") == 0.0


class OnStream:
    """A work as NCCL's: its wait holds the current stream, not the host."""

    def __init__(self, done):
        self.done = done

    def wait(self):
        self.done.wait()


@pytest.mark.parametrize("queued", [True, False])
def test_a_joined_batch_ends_all_its_messages_and_holds_the_compute_once(gpu, queued):
    clock = CudaClock(CUDA, queues_waits=queued)
    clock.restart()
    recorder = Recorder({}, clock=clock)
    posted = [recorder.post("keys", axis="cp", size_bytes=8, channel=channel) for channel in "ab"]
    with gpu.stream(FakeStream()):
        gpu.work(4.0)
        done = gpu.event()
        done.record()
    watched = recorder.watch(OnStream(done), *posted)
    gpu.work(1.0)
    watched.wait()
    recorder.close()

    assert [one.stop_s - one.posted_s for one in posted] == pytest.approx([4.0, 4.0])
    assert {one.stamp for one in posted} == {Stamp.COMPLETED}
    ((_, (start_s, stop_s)),) = recorder.blocked
    assert (start_s - posted[0].posted_s, stop_s - start_s) == pytest.approx((1.0, 3.0))
    assert gpu.compute.at_s == pytest.approx(4.0)
    assert recorder.method == DEVICE_INTERVALS


def test_what_runs_beside_the_compute_blocks_it_only_where_it_is_waited_for(gpu, clock):
    recorder = Recorder({"g": "dp"}, clock=clock)
    side = FakeStream()
    with gpu.stream(side):
        with recorder.collective(
            "gather weights", axis="dp", group_name="g", size_bytes=8, blocks=False
        ):
            gpu.work(4.0)
        done = gpu.event()
        done.record()
    gpu.work(3.0)
    assert not recorder.blocked
    with recorder.waiting_beside():
        gpu.current_stream().wait_event(done)
    recorder.close()

    (transfer,) = recorder.transfers
    ((waited, (start_s, stop_s)),) = recorder.blocked
    assert waited is transfer
    assert transfer.stop_s - transfer.posted_s == pytest.approx(4.0)
    assert stop_s - start_s == pytest.approx(1.0)


def test_peaks_are_the_allocators_and_by_phase(gpu):
    memory = DeviceBudget(torch.device("cpu"))  # whose tensors stand for a GPU's
    memory.restart_peaks()
    with memory:
        with memory.phase("forward", keeps=Part.ACTIVATIONS):
            kept = torch.empty(100, dtype=torch.uint8)
            gpu.allocate(100)
        with memory.phase("backward"):
            gpu.allocate(400)
            gpu.allocate(-400)
    with memory.phase("optimizer"):
        gpu.allocate(50)
    before = memory.peaks()
    with memory.uncounted():
        gpu.allocate(9000)
        gpu.allocate(-9000)

    assert (before.forward_bytes, before.backward_bytes) == (100, 500)
    assert (before.allocated_bytes, before.reserved_bytes) == (500, 500)
    assert memory.peaks().allocated_bytes == 500
    split = memory.split()
    assert (split.activations_bytes, split.transient_bytes, split.peak_bytes) == (100, 400, 500)
    assert split.optimizer_peak_bytes == 150
    assert kept.nbytes == 100


def test_a_tensor_of_the_host_is_not_the_devices(gpu):
    memory = DeviceBudget(CUDA)
    with memory:
        torch.empty(100, dtype=torch.uint8)

    assert memory.live_bytes == 0


def test_a_budget_is_a_share_of_what_cuda_has_and_the_whole_is_no_limit(gpu):
    device = device_of(gpu)
    device.start_trial(20 * GIB)
    assert gpu.fraction == 0.25
    device.start_trial(81 * GIB)  # the driver counts more than CUDA gives out
    assert gpu.fraction == 1.0
    assert gpu.emptied == 2
    with pytest.raises(DeviceError, match="wanted more than 0"):
        device.start_trial(0)


def test_a_process_that_is_not_ours_is_named_with_its_bytes(gpu):
    device = device_of(gpu)
    device.start_trial(GIB)
    gpu.processes += [GpuProcess(pid=7, used_bytes=2 * GIB), GpuProcess(pid=8, used_bytes=None)]

    with pytest.raises(DirtyDeviceError) as caught:
        device.start_trial(GIB)

    assert str(caught.value) == (
        "GPU-1 is not ours alone: process 7 holds 2.00 GiB, process 8 holds what the driver "
        "does not tell"
    )
    assert failure_from(caught.value, rank=1, node="n").kind is OutcomeKind.DIRTY_DEVICE
    device_of(gpu, shared=True).start_trial(GIB)


def test_a_process_that_just_ended_is_waited_for(gpu):
    device = CudaDevice(read=gpu.read, patience_s=30.0)
    gpu.leaves_after(3, GpuProcess(pid=7, used_bytes=GIB))

    device.start_trial(GIB)

    assert [one.pid for one in gpu.processes] == [4242]


def test_a_process_that_was_there_before_ours_is_not_taken_for_ours(monkeypatch):
    gpu = FakeCuda(processes=[GpuProcess(pid=7, used_bytes=GIB)]).install(monkeypatch)
    device = device_of(gpu)

    with pytest.raises(DirtyDeviceError, match="process 7 holds"):
        device.start_trial(GIB)
    gpu.processes.pop(0)
    device.start_trial(GIB)
    assert device.used_bytes() == GIB  # 4242, whatever our own number is


def test_a_driver_that_lists_nobody_refuses_nobody(gpu):
    device = CudaDevice(read=lambda uuid: None)

    device.start_trial(GIB)
    assert device.used_bytes() is None


def test_a_device_stands_for_nccl_events_and_unwatched_steps(gpu):
    device = device_of(gpu)

    assert (device.backend, device.uuid) == (NCCL, "GPU-1")
    assert not device.watches_timed_steps
    assert device.is_computing()
    with gpu.stream(FakeStream()):
        assert not device.is_computing()


def test_waits_of_the_compute_are_seen_and_those_of_other_streams_are_not(gpu):
    device, stalls = device_of(gpu), Stalls(CudaClock(CUDA))
    plain, done = FakeStream.wait_event, gpu.event()
    done.record()
    with device.seeing_waits(lambda: stalls.standing_still("dp")):
        FakeStream().wait_event(done)
        assert not stalls._spans
        gpu.current_stream().wait_event(done)
        assert [axis for axis, _, _ in stalls._spans] == ["dp"]
    assert FakeStream.wait_event is plain


def test_another_gpu_than_the_placement_says_is_no_trial(gpu, monkeypatch):
    monkeypatch.setattr(cuda, "read_processes", gpu.read)
    assert open_cuda(expected_uuid="GPU-1") is open_cuda(expected_uuid=None)

    with pytest.raises(OtherDeviceError, match="has GPU GPU-1, wanted GPU-2") as caught:
        open_cuda(expected_uuid="GPU-2")

    assert failure_from(caught.value, rank=0, node="n").kind is OutcomeKind.NOT_APPLIED


def test_no_cuda_is_said_with_the_build_of_torch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(DeviceError, match="no CUDA device for this rank") as caught:
        open_cuda(expected_uuid="GPU-2")

    assert "wanted GPU GPU-2" in str(caught.value)
    assert failure_from(caught.value, rank=0, node="n").kind is OutcomeKind.CRASHED


TORCH_SAYS = (
    "CUDA out of memory. Tried to allocate 10.00 GiB. GPU 0 has a total capacity of 80.00 GiB of "
    "which 3.00 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 4.00 "
    "GiB is reserved by PyTorch but unallocated."
)


def test_memory_that_ran_out_is_typed_also_below_what_dtensor_made_of_it(gpu):
    def shard():
        try:
            raise torch.cuda.OutOfMemoryError(TORCH_SAYS)
        except RuntimeError as exc:
            raise RuntimeError("Sharding propagation failed") from exc

    with pytest.raises(DeviceMemoryError) as caught, typed_shortage(CUDA):
        shard()

    failure = failure_from(caught.value, rank=2, node="n")
    assert failure.kind is OutcomeKind.OUT_OF_MEMORY
    short = failure.shortage
    assert (short.kind, short.asked_bytes, short.free_bytes) == (OomKind.TENSOR, 10 * GIB, 7 * GIB)
    assert failure.message == (
        "out of memory on cuda:0: asked 10.00 GiB, 7.00 GiB of 80.00 GiB free"
    )


def test_what_the_message_leaves_out_is_asked_of_the_device(gpu):
    with pytest.raises(DeviceMemoryError) as caught, typed_shortage(CUDA):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    short = caught.value.shortage
    assert (short.free_bytes, short.kind) == (4 * GIB, OomKind.TENSOR)


def test_a_library_that_has_no_memory_is_out_of_memory_of_unknown_size(gpu):
    said = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"

    with pytest.raises(DeviceMemoryError, match=said) as caught, typed_shortage(CUDA):
        raise RuntimeError(said)

    assert caught.value.shortage is None
    assert failure_from(caught.value, rank=0, node="n").kind is OutcomeKind.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "other", [RuntimeError("Connection closed by peer"), MemoryBudgetExceededError(1, 0, 1, "a")]
)
def test_what_is_no_shortage_of_the_device_passes(gpu, other):
    with pytest.raises(type(other)) as caught, typed_shortage(CUDA):
        raise other
    assert caught.value is other
