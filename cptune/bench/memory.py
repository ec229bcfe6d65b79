"""Live tensor bytes of a CPU rank, held to a budget, and the process memory beside them.

A dispatch mode sees every tensor that an operator returns, in forward and backward, and counts its
storage until the storage is freed. Scratch memory inside an operator is not seen; the process's
own high-water mark, `peak_reserved_bytes`, holds it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from cptune.bench.collectives import CutCollectives, TensorCollectives
from cptune.bench.job import MemoryBudgetExceededError
from cptune.bench.parts import Part, Parts, Stored, local_tensors
from cptune.bench.peaks import Peaks, process_peak_bytes, restart_process_peak
from cptune.domain.memory import MemorySplit

_COLLECTIVES = "_c10d_functional"
#: Operators whose arguments are what is sent, or where it arrives.
_MESSAGES = frozenset({"c10d", _COLLECTIVES})
#: Of FSDP2, which frees gathered weights by resizing their storage to nothing and back.
_GATHERED = "fsdp"
_active: list[TensorBudget] = []


class TensorBudget(TorchDispatchMode):
    """Counts live storages, refuses the one that exceeds the capacity, times tensor collectives.

    Active as a context manager around everything a rank does in a trial.

    Args:
        capacity_bytes: Budget of the rank.
    """

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__()
        self.capacity_bytes = capacity_bytes
        self.live_bytes = 0
        self.peak_bytes: dict[str, int] = {}
        #: Seconds inside DTensor's collectives and their waits, since the start.
        self.collective_s = 0.0
        #: Stands between an operator of DTensor's collectives and its call; None: nothing does.
        self.collectives: TensorCollectives | CutCollectives | None = None
        self.parts = Parts()
        self._peak_parts: dict[str, dict[Part, int]] = {}
        self._unsettled: str | None = None  # the phase whose peak is now
        self._phase = "set-up"
        self._birth = Part.TRANSIENT
        self._serial = 0
        self._storages: dict[int, tuple[weakref.ref[Any], Stored]] = {}
        self._elastic: set[int] = set()
        self._saving = saved_tensors_hooks(self._save, _Saved.unpack)

    def __enter__(self) -> Self:
        """Watch, and see what is saved for backward."""
        super().__enter__()
        self._saving.__enter__()
        _active.append(self)
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:  # noqa: ANN401
        """Stop watching."""
        _active.remove(self)
        self._saving.__exit__()
        super().__exit__(exc_type, exc_val, exc_tb)

    @contextmanager
    def phase(self, name: str, *, keeps: Part | None = None) -> Generator[None]:
        """Count the peak of what runs inside under this name.

        Args:
            name: Of the phase.
            keeps: What is born inside and still lives at the end becomes this part.
        """
        before, self._phase = self._phase, name
        start = self._serial
        self._settle()
        self._raise_peak()
        try:
            yield
        finally:
            self._phase = before
            if keeps is not None:
                self.adopt(keeps, since=start)
            self._settle()

    @contextmanager
    def born_as(self, part: Part) -> Generator[None]:
        """Count what is born inside as this part."""
        before, self._birth = self._birth, part
        try:
            yield
        finally:
            self._birth = before

    def adopt(self, part: Part, *, since: int = 0) -> None:
        """Count all that lives, of what was born after some serial number, as this part."""
        # Storages are forgotten at any moment, also by threads that end a transfer.
        for _, stored in tuple(self._storages.values()):
            if stored.serial > since:
                self.parts.change(stored, base=part)

    def tag(self, values: object, part: Part) -> None:
        """Count these tensors as a part from now on."""
        for stored in self._stored(values):
            self.parts.change(stored, base=part)

    def mark_loss(self, x: Tensor, loss: Tensor) -> None:
        """Count what backward makes between the loss and what its head read as logits."""

        def begin(_: Tensor) -> None:
            self._birth = Part.LOGITS

        def end(grad: Tensor) -> None:
            self._birth = Part.TRANSIENT
            self.tag(grad, Part.TRANSIENT)

        if loss.requires_grad and x.requires_grad:
            loss.register_hook(begin)
            x.register_hook(end)

    def restart_peaks(self) -> None:
        """Start the high-water mark of the process anew."""
        restart_process_peak()

    def peaks(self) -> Peaks:
        """The highest of each phase, of all, and of the process."""
        return Peaks(
            forward_bytes=self.peak_bytes["forward"],
            backward_bytes=self.peak_bytes["backward"],
            allocated_bytes=max(self.peak_bytes.values()),
            reserved_bytes=process_peak_bytes(),
        )

    def split(self) -> MemorySplit:
        """What the highest peak was made of."""
        self._settle()
        highest = max(self.peak_bytes, key=lambda phase: self.peak_bytes[phase])
        parts = {f"{part}_bytes": size for part, size in self._peak_parts[highest].items()}
        return MemorySplit(**parts, optimizer_peak_bytes=self.peak_bytes.get("optimizer", 0))

    @contextmanager
    def uncounted(self) -> Generator[None]:
        """Active inside, but neither held to the capacity nor raising a peak."""
        self._settle()
        kept = self.capacity_bytes, dict(self.peak_bytes), dict(self._peak_parts)
        self.capacity_bytes = sys.maxsize
        try:
            with nullcontext() if self in _active else self:
                yield
        finally:
            self.capacity_bytes, self.peak_bytes, self._peak_parts = kept
            self._unsettled = None

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run one operator and count what it returned."""
        # Operators on these are made of operators on local tensors, and of waits for them, which
        # come here one by one.
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented
        namespace = getattr(func, "namespace", "")
        if namespace in _MESSAGES:
            self._tag_messages(args)
        elif namespace == _GATHERED:
            self._tag_gathered((kwargs or {}).get("out"))
        if namespace == _COLLECTIVES:
            start = perf_counter()
            run = func if self.collectives is None else self.collectives.around(func)
            out = run(*args, **(kwargs or {}))
            self.collective_s += perf_counter() - start
        else:
            out = func(*args, **(kwargs or {}))
        for tensor in local_tensors(out):  # what wraps one has no bytes of its own
            self._count(tensor)
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        identity = storage._cdata
        if identity in self._storages:
            return
        self._resize()
        size = storage.nbytes()
        free = self.capacity_bytes - self.live_bytes
        if size > free:
            raise MemoryBudgetExceededError(size, free, self.capacity_bytes, self._phase)
        self._serial += 1
        stored = Stored(size, base=self._birth, serial=self._serial)

        def forget(_: object) -> None:
            self._settle()
            self.live_bytes -= stored.size
            self.parts.remove(stored)
            self._elastic.discard(identity)
            del self._storages[identity]

        self._storages[identity] = weakref.ref(storage, forget), stored
        self.live_bytes += size
        self.parts.add(stored)
        self._raise_peak()

    def _raise_peak(self) -> None:
        if self.live_bytes > self.peak_bytes.get(self._phase, -1):
            self.peak_bytes[self._phase] = self.live_bytes
            self._unsettled = self._phase

    def _settle(self) -> None:
        """Keep what the peak is made of, at the last moment that it lasts.

        What a tensor is for shows only after its birth, which is when a peak is reached.
        """
        if self._unsettled is not None:
            self._peak_parts[self._unsettled] = dict(self.parts.live_bytes)
            self._unsettled = None

    def _stored(self, values: object) -> list[Stored]:
        found = (
            self._storages.get(tensor.untyped_storage()._cdata) for tensor in local_tensors(values)
        )
        return [entry[1] for entry in found if entry is not None]

    def _tag_messages(self, args: object) -> None:
        for stored in self._stored(args):
            if stored.base is Part.TRANSIENT:
                self.parts.change(stored, base=Part.COMM)

    def _tag_gathered(self, weights: object) -> None:
        self.tag(weights, Part.STATES)
        self._elastic |= {one.untyped_storage()._cdata for one in local_tensors(weights)}
        self._resize()
        self._raise_peak()

    def _resize(self) -> None:
        """Follow the storages that change their size."""
        for identity in tuple(self._elastic):
            if identity not in self._storages:
                continue
            ref, stored = self._storages[identity]
            storage = ref()
            grown = storage.nbytes() - stored.size if storage is not None else 0
            if grown:
                self._settle()
                self.live_bytes += grown
                self.parts.resize(stored, stored.size + grown)

    def _save(self, tensor: Tensor) -> _Saved:
        stored = self._stored(tensor)
        for one in stored:
            self.parts.change(one, saves=1)
        return _Saved(tensor, stored, self)

    def _release(self, stored: list[Stored]) -> None:
        self._settle()
        for one in stored:
            self.parts.change(one, saves=-1)


class _Saved:
    """A tensor that the graph holds for backward, until the graph lets go of it."""

    __slots__ = ("_budget", "_stored", "tensor")

    def __init__(self, tensor: Tensor, stored: list[Stored], budget: TensorBudget) -> None:
        self.tensor, self._stored, self._budget = tensor, stored, budget

    def unpack(self) -> Tensor:
        """The tensor, for backward."""
        return self.tensor

    def __del__(self) -> None:
        self._budget._release(self._stored)


def recomputation() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of a checkpoint's forward and of its recomputation (torch's `context_fn`).

    What a recomputation leaves behind is held for backward like what forward would have kept.
    """
    if not _active:
        return nullcontext(), nullcontext()
    return nullcontext(), _active[-1].phase("backward", keeps=Part.ACTIVATIONS)
