"""How a world of ranks is cut into tensor, context, data and pipeline groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from cptune.domain.checks import require_positive


class Axis(StrEnum):
    """A mesh axis."""

    TP = "tp"
    CP = "cp"
    DP = "dp"
    PP = "pp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where one rank stands in the mesh."""

    tp: int
    cp: int
    dp: int
    pp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """The degrees of every axis; `cp` is `ulysses` x `ring`; `ep` lies inside dp x cp.

    Ranks follow Megatron's order `tp-cp-ep-dp-pp`, tp fastest:
    `rank = tp + TP*(cp + CP*(dp + DP*pp))`, so a recipe exports unchanged.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    dp: int = 1
    ulysses: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "tp", "cp", "pp", "vpp", "dp", "ulysses", "ep")

    @property
    def ring(self) -> int:
        """Context ranks that exchange keys and values with each other."""
        return self.cp // self.ulysses

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.tp * self.cp * self.pp * self.dp

    def rank(self, at: Coordinates) -> int:
        """The global rank at these coordinates."""
        return at.tp + self.tp * (at.cp + self.cp * (at.dp + self.dp * at.pp))

    def coordinates(self, rank: int) -> Coordinates:
        """The coordinates of a global rank.

        Raises:
            ValueError: when the rank is outside the world.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside 0..{self.world_size - 1}")
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        pp, dp = divmod(rest, self.dp)
        return Coordinates(tp=tp, cp=cp, dp=dp, pp=pp)

    def stage_layers(self, layers: int) -> list[range]:
        """The layers of each of the pp * vpp pipeline chunks, in order of the model.

        Even where they divide; else the embedding and the head count as a layer each, so that the
        first and the last chunk hold one layer less (Llama 3 405B: 126 + 2 over 16 stages).

        Raises:
            ValueError: when neither divides.
        """
        chunks = self.pp * self.vpp
        if layers % chunks == 0:
            starts = [layers // chunks * chunk for chunk in range(chunks + 1)]
        elif (layers + 2) % chunks == 0:
            each = (layers + 2) // chunks
            starts = [0, *(each * chunk - 1 for chunk in range(1, chunks)), layers]
        else:
            raise ValueError(f"{layers} layers do not divide over {chunks} pipeline chunks")
        return [range(start, stop) for start, stop in pairwise(starts)]

    def groups(self, axis: Axis) -> list[list[int]]:
        """The rank groups of one axis; ranks of a group differ in that coordinate alone."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            at = self.coordinates(rank)
            rest = tuple(getattr(at, other) for other in Axis if other is not axis)
            found.setdefault(rest, []).append(rank)
        return list(found.values())
