"""A backend for several ranks on one GPU: gloo, with every tensor copied to the host and back.

gloo takes the tensors of a GPU in some collectives alone: send, recv and the gather that DTensor
uses read device memory as if it were the host's (ProcessGroupGloo.cpp of torch 2.13). On the CPU it
does the same with copies, so that what is tested with it can be tested without a GPU.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

NAME = "staged"


class _Landed(dist.Work):
    """A message that lies on the host when it is done, and belongs on the device."""

    def __init__(self, work: dist.Work, host: Tensor, to: Tensor | None) -> None:
        super().__init__()
        self._work, self._host, self._to, self._done = work, host, to, False

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._done:
            self._work.wait()
            self._done = True
            if self._to is not None:
                _land(self._host, self._to)
        return True


def _staged(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


@torch.no_grad()
def _land(host: Tensor, to: Tensor) -> None:
    to.copy_(host)


def _finished() -> dist.Work:
    """Of no tensors: a future that was not told of a GPU takes none of its tensors."""
    future: Future = Future()
    future.set_result(None)
    return _create_work_from_future(future)


class StagedGroup(dist.ProcessGroup):
    def __init__(self, inner: dist.ProcessGroup, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._inner, self._size, self._rank = inner, size, rank
        for device_type in ("cpu", "cuda"):
            self._register_backend(
                torch.device(device_type), dist.ProcessGroup.BackendType.GLOO, inner
            )

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    def allreduce(self, tensors, opts=None):
        hosts = [_staged(one) for one in tensors]
        self._inner.allreduce(hosts, opts or dist.AllreduceOptions()).wait()
        return self._land(hosts, tensors)

    def broadcast(self, tensors, opts):
        hosts = [_staged(one) for one in tensors]
        self._inner.broadcast(hosts, opts).wait()
        return self._land(hosts, tensors)

    def barrier(self, opts=None):
        return self.allreduce([torch.zeros(1)])

    def allgather(self, outputs, inputs, opts=None):
        for parts, one in zip(outputs, inputs, strict=True):
            hosts = [torch.empty_like(part, device="cpu") for part in parts]
            self._inner.allgather([hosts], [_staged(one)]).wait()
            self._land(hosts, parts)
        return _finished()

    def scatter(self, outputs, inputs, opts):
        host = torch.empty_like(outputs[0], device="cpu")
        self._inner.scatter([host], [[_staged(one) for one in row] for row in inputs], opts).wait()
        return self._land([host], outputs)

    def all_gather_single(self, output, one, opts=None):
        parts = output.view(self._size, -1).unbind(0)
        return self.allgather([parts], [one.reshape(-1)])

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        for output, one in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, one)
        return _finished()

    def reduce_scatter_single(self, output, one, opts):
        host = _staged(one)
        reduction = dist.AllreduceOptions()
        reduction.reduceOp = opts.reduceOp
        self._inner.allreduce([host], reduction).wait()
        return self._land([host.view(self._size, -1)[self._rank].view_as(output)], [output])

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        for output, one in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, one, opts)
        return _finished()

    # Their names before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def send(self, tensors, to, tag=0):
        host = _staged(tensors[0])
        return _Landed(self._inner.send([host], to, tag), host, None)

    def recv(self, tensors, source, tag=0):
        host = torch.empty_like(tensors[0], device="cpu")
        return _Landed(self._inner.recv([host], source, tag), host, tensors[0])

    def _land(self, hosts, to):
        for host, one in zip(hosts, to, strict=True):
            _land(host, one)
        return _finished()


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> StagedGroup:
    return StagedGroup(dist.ProcessGroupGloo(store, rank, size, timeout=timeout), rank, size)


def register() -> str:
    """Let torch.distributed know the backend; returns its name."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, devices=["cpu", "cuda"])
    return NAME
