"""torch.cuda on virtual time: queues, events in them, and the counts of an allocator."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import torch

from cptune.bench import cuda
from topology.processes import GpuProcess

GIB = 1 << 30


class FakeStream:
    """A queue; `at_s` is when the device will have done all that is in it."""

    def __init__(self, device=None):
        self.at_s = 0.0

    def wait_event(self, event):
        event.wait(self)


class FakeCuda:
    """Put in the place of torch.cuda by `install`."""

    def __init__(self, *, uuid="GPU-1", processes=()):
        self.uuid, self.processes = uuid, list(processes)
        self.compute = FakeStream()
        self._local = threading.local()
        self.allocated = self.reserved = self.peak = self.reserved_peak = 0
        self.fraction, self.emptied, self.leaving = None, 0, 0

    def current_stream(self, device=None):
        return getattr(self._local, "stream", self.compute)

    @contextmanager
    def stream(self, stream):
        before, self._local.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._local.stream = before

    def work(self, seconds):
        """Queue so much work on the current stream."""
        self.current_stream().at_s += seconds

    def event(self, enable_timing=False):
        fake = self

        class Event:
            def __init__(self):
                self.at_s = None

            def record(self, stream=None):
                self.at_s = (stream or fake.current_stream()).at_s

            def wait(self, stream=None):
                stream = stream or fake.current_stream()
                stream.at_s = max(stream.at_s, self.at_s)

            def synchronize(self):
                pass

            def elapsed_time(self, other):
                return (other.at_s - self.at_s) * 1e3

        return Event()

    def allocate(self, size):
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.peak = max(self.peak, self.allocated)
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def reset_peaks(self, device=None):
        self.peak, self.reserved_peak = self.allocated, self.reserved

    def stats(self, device=None):
        return {
            "allocated_bytes": {"all": {"peak": self.peak}},
            "reserved_bytes": {"all": {"peak": self.reserved_peak}},
        }

    def make_context(self, device):
        self.processes.append(GpuProcess(pid=4242, used_bytes=GIB))

    def read(self, uuid):
        assert uuid == self.uuid
        found = tuple(self.processes)
        if self.leaving:
            self.leaving -= 1
            if not self.leaving:
                self.processes.pop()
        return found

    def leaves_after(self, looks, process):
        """A process that is gone after so many looks."""
        self.processes.append(process)
        self.leaving = looks

    def install(self, monkeypatch):
        properties = SimpleNamespace(uuid=self.uuid.removeprefix("GPU-"), total_memory=80 * GIB)
        for name, value in {
            "Event": self.event,
            "Stream": FakeStream,
            "stream": self.stream,
            "current_stream": self.current_stream,
            "synchronize": lambda device=None: None,
            "is_available": lambda: True,
            "get_device_properties": lambda index: properties,
            "memory_stats_as_nested_dict": self.stats,
            "reset_peak_memory_stats": self.reset_peaks,
            "set_per_process_memory_fraction": self._limit,
            "empty_cache": self._empty,
            "mem_get_info": lambda device: (3 * GIB, 80 * GIB),
            "memory_reserved": lambda device: 5 * GIB,
            "memory_allocated": lambda device: 4 * GIB,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
        monkeypatch.setattr(cuda, "make_context", self.make_context)
        monkeypatch.setattr(cuda, "_known", {})
        monkeypatch.setattr(cuda, "_opened", {})
        return self

    def _limit(self, fraction, device):
        self.fraction = fraction

    def _empty(self):
        self.emptied += 1
