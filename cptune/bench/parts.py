"""Which part of the memory a tensor belongs to, decided by what happens to it while it lives.

A storage is born into a part, and moves when it is saved for backward, sent, or kept as a state, so
that at any moment the bytes of the parts add up to all live bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from torch import Tensor
from torch.distributed.tensor import DTensor


class Part(StrEnum):
    """What live bytes are for."""

    STATES = "states"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    COMM = "comm"
    TRANSIENT = "transient"


#: A weight that is saved for backward stays a state; so do logits.
_STAYS = frozenset({Part.STATES, Part.LOGITS})


class Stored:
    """One live storage: its size, what it was born or made into, and how often it is saved."""

    __slots__ = ("base", "saves", "serial", "size")

    def __init__(self, size: int, *, base: Part, serial: int) -> None:
        self.size, self.base, self.serial = size, base, serial
        self.saves = 0

    @property
    def part(self) -> Part:
        """Where its bytes count now."""
        return Part.ACTIVATIONS if self.saves and self.base not in _STAYS else self.base


class Parts:
    """Live bytes by part, and the most that were saved at once.

    Every change of a storage goes through `change`, which keeps the sums.
    """

    def __init__(self) -> None:
        self.live_bytes = dict.fromkeys(Part, 0)
        #: Storages that were saved, one after the other, since the start.
        self.saved_bytes = 0
        self.peak_saved_bytes = 0

    def add(self, stored: Stored) -> None:
        """Count a new storage."""
        self.live_bytes[stored.part] += stored.size

    def remove(self, stored: Stored) -> None:
        """Forget one that was freed."""
        self.live_bytes[stored.part] -= stored.size

    def resize(self, stored: Stored, size: int) -> None:
        """Count a storage that grew or shrank."""
        self.remove(stored)
        stored.size = size
        self.add(stored)

    def change(self, stored: Stored, *, base: Part | None = None, saves: int = 0) -> None:
        """Give a storage another base, or more or fewer saves."""
        self.remove(stored)
        if saves > 0 and not stored.saves:
            self.saved_bytes += stored.size
        stored.base = base or stored.base
        stored.saves += saves
        self.add(stored)
        self.peak_saved_bytes = max(self.peak_saved_bytes, self.live_bytes[Part.ACTIVATIONS])


def local_tensors(values: object) -> Iterator[Tensor]:
    """The plain tensors in an operator's argument or result, however they are nested or wrapped."""
    if isinstance(values, DTensor):
        yield from local_tensors(values._local_tensor)
    elif isinstance(values, Tensor):
        yield getattr(values, "elem", values)  # of a collective that was not waited for
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from local_tensors(value)
