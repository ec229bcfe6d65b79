"""The attention of a trial: its wires tell a recorder, or move nothing; its kernel may be left out.

Three switches of one object, so that a step with transfers, one without them and the transfers
alone follow the same plan.

Shapes: B batch, S rows, H query heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention import ContextParallel
from cptune.attention.kernels import Block, Kernel
from cptune.attention.kernels.block import Capability
from cptune.attention.transport import Transport
from cptune.attention.wire import Messages, Wire, Work, open_wires
from cptune.bench.collectives import watch_all
from cptune.bench.readings import Stalls
from cptune.bench.recorder import Recorder
from cptune.domain.layout import Axis


@dataclass(slots=True)
class Calls:
    """How often attention ran since somebody counted, and on what."""

    count: int = 0
    shapes: tuple[torch.Size, ...] = ()
    dtype: torch.dtype = torch.float32


class MeasuredContextParallel(ContextParallel):
    """`ContextParallel` with the switches of a trial; all off, it is that."""

    @property
    def recorder(self) -> Recorder | None:
        """Told of every message; None: nobody is."""
        return self._switch.recorder

    @recorder.setter
    def recorder(self, recorder: Recorder | None) -> None:
        self._switch.recorder = recorder

    @property
    def stalls(self) -> Stalls | None:
        """Counts the time in which the compute waits for messages; None: nobody does."""
        return self._switch.stalls

    @stalls.setter
    def stalls(self, stalls: Stalls | None) -> None:
        self._switch.stalls = stalls

    @contextmanager
    def without_transfer(self) -> Generator[None]:
        """Inside, no message is sent and what should come is zeros that are there at once."""
        self._switch.moves = False
        try:
            yield
        finally:
            self._switch.moves = True

    @contextmanager
    def without_compute(self) -> Generator[None]:
        """Inside, every block of attention is zeros that cost next to nothing."""
        self._computes = False
        try:
            yield
        finally:
            self._computes = True

    def attend(
        self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, scale: float | None = None
    ) -> Tensor:
        """As ContextParallel.attend."""
        calls = self.calls
        calls.count += 1
        calls.shapes, calls.dtype = (q_BSHD.shape, k_BSKD.shape, v_BSKD.shape), q_BSHD.dtype
        return super().attend(q_BSHD, k_BSKD, v_BSKD, scale)

    def _build_transport(self, group: dist.ProcessGroup | None) -> Transport:
        self._switch, self._computes = _Switch(), True
        self.calls = Calls()
        #: The process groups that its messages go over.
        self.groups: tuple[dist.ProcessGroup, ...] = ()
        if group is None or group.size() == 1:
            return Transport()
        opened = open_wires(group)
        self.groups = tuple(wire.group for wire in opened)
        wires = zip(opened, ("keys and values", "their gradients"), strict=True)
        return Transport(
            *(
                SwitchedWire(wire, members=wire.members, name=name, switch=self._switch)
                for wire, name in wires
            )
        )

    def _choose_kernel(self, q_BSHD: Tensor, k_BSKD: Tensor) -> Kernel:
        kernel = super()._choose_kernel(q_BSHD, k_BSKD)
        return kernel if self._computes else _NoKernel(kernel)


@dataclass(slots=True)
class _Switch:
    recorder: Recorder | None = None
    stalls: Stalls | None = None
    moves: bool = True


@dataclass(frozen=True, slots=True)
class _Counted:
    """A message whose wait is counted."""

    work: Work
    stalls: Stalls

    def wait(self) -> None:
        with self.stalls.standing_still(Axis.CP.value):
            self.work.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedWire:
    """A wire that can be listened to, and cut.

    Args:
        inner: The real one.
        members: Global rank of each rank of the context group.
        name: What it carries.
        switch: What to do, shared by the wires of a rank.
    """

    inner: Wire = field(kw_only=False)
    members: Sequence[int]
    name: str
    switch: _Switch

    def post(self, *, recv: Messages, send: Messages) -> Sequence[Work]:
        """As Wire.post."""
        if not self.switch.moves:
            for _, tensor in recv:
                tensor.zero_()
            return []
        works = self._post(recv=recv, send=send)
        stalls = self.switch.stalls
        return works if stalls is None else [_Counted(work, stalls) for work in works]

    def _post(self, *, recv: Messages, send: Messages) -> Sequence[Work]:
        recorder = self.switch.recorder
        if recorder is None:
            return self.inner.post(recv=recv, send=send)
        own = dist.get_rank()
        ends = [(self.members[peer], own, peer, one) for peer, one in recv]
        ends += [(own, self.members[peer], peer, one) for peer, one in send]
        posted = [
            recorder.post(
                self.name if to == own else f"{self.name}, sent",
                axis=Axis.CP.value,
                size_bytes=one.nbytes,
                channel=f"{self.name} {source}>{to}",
                peer=self.members[peer],
            )
            for source, to, peer, one in ends
        ]
        works = self.inner.post(recv=recv, send=send)
        return watch_all(recorder, works, posted)


@dataclass(frozen=True, slots=True)
class _NoKernel:
    """Zeros of the right shape: what is left of a step without them is its transfers."""

    inner: Kernel

    @property
    def name(self) -> str:
        """That of the kernel which is left out."""
        return self.inner.name

    @property
    def capability(self) -> Capability:
        """That of the kernel which is left out."""
        return self.inner.capability

    def why_missing(self) -> str | None:
        """It never is."""
        return None

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """(zeros, zeros)."""
        batch, rows, heads, _ = block.q.shape
        lse_BHS = torch.zeros(batch, heads, rows, dtype=torch.float32, device=block.q.device)
        return torch.zeros_like(block.q), lse_BHS

    def backward(
        self,
        block: Block,
        *,
        dout_BSHD: Tensor,  # noqa: ARG002 - the protocol of kernels
        out_BSHD: Tensor,  # noqa: ARG002
        lse_BHS: Tensor,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Zeros."""
        return torch.zeros_like(block.q), torch.zeros_like(block.k), torch.zeros_like(block.v)
