"""A function run on every rank of a gloo group, wherever the ranks are; made without torch.

The ranks may be processes of this machine (`cptune.balance.processes`) or actors of a Ray cluster
(`cptune.cluster.calls`). The function is named by its module, so it must be at the top of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cptune.bench.job import Rendezvous

Given = TypeVar("Given")
Found = TypeVar("Found")
COLLECTIVE_S = 120.0  # that ranks wait for each other, and the caller for all of them


class RunOnRanks(Protocol):
    """Runs a function on so many ranks at once."""

    def __call__(
        self, function: Callable[[Given], Found], argument: Given, *, ranks: int
    ) -> list[Found]:
        """What each rank found, by rank.

        Raises:
            ClusterError: when a rank fails or is late; all are ended.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCall(Generic[Given, Found]):
    """One rank's part of it."""

    function: Callable[[Given], Found]
    argument: Given
    rank: int
    world_size: int
    rendezvous: Rendezvous

    def run(self) -> Found:
        """Join the group of all ranks and call the function; collective over them."""
        from cptune.bench.mesh import joined

        with joined(self.rendezvous, rank=self.rank, world_size=self.world_size):
            return self.function(self.argument)
