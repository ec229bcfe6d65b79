"""One thing that can be tried: a layout and how the context is cut, moved and computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from cptune.domain.checks import require_positive
from cptune.domain.layout import ParallelLayout
from cptune.domain.workload import divisors


class ShardingKind(StrEnum):
    """How a sequence is cut over context ranks."""

    CONTIGUOUS = "contiguous"
    ZIGZAG = "zigzag"
    BALANCED = "balanced"


class Strategy(StrEnum):
    """How keys and values reach the queries."""

    RING = "ring"
    ALL_GATHER = "all_gather"
    ULYSSES = "ulysses"
    HYBRID = "hybrid"


def ulysses_degrees(strategy: Strategy, cp: int) -> list[int]:
    """Ranks that may trade heads under a strategy: all, some or none of the context group."""
    if strategy is Strategy.ULYSSES:
        return [cp]
    return divisors(cp)[1:-1] if strategy is Strategy.HYBRID else [1]


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class LossKind(StrEnum):
    """How the logits are held."""

    FULL = "full"
    CHUNKED = "chunked"


class DataParallelKind(StrEnum):
    """What data-parallel ranks share out."""

    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    FSDP = "fsdp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A complete recipe to try. Two candidates with one key are the same run.

    `stages` is the number of exchanges in which the ring's keys and values arrive: ring - 1 is a
    ring, 1 an all-gather, 0 where nothing is exchanged.
    """

    layout: ParallelLayout
    sharding: ShardingKind = ShardingKind.ZIGZAG
    strategy: Strategy = Strategy.RING
    stages: int = 0
    micro_batch: int = 1
    recompute: Recompute = Recompute.NONE
    loss: LossKind = LossKind.FULL
    data_parallel: DataParallelKind = DataParallelKind.DDP
    kernel: str = "auto"

    def __post_init__(self) -> None:
        require_positive(self, "micro_batch")
        if self.stages < 0:
            raise ValueError(f"stages is {self.stages}; wanted 0 or more")

    @property
    def key(self) -> str:
        """A readable, stable name: equal for equal runs, different for different ones."""
        lay = self.layout
        words = [
            f"tp{lay.tp}",
            f"cp{lay.cp}",
            f"pp{lay.pp}",
            f"dp{lay.dp}",
            f"mb{self.micro_batch}",
        ]
        if lay.vpp > 1:
            words.append(f"vpp{lay.vpp}")
        if lay.cp > 1:
            words += [self.sharding, self.strategy.replace("_", ""), f"st{self.stages}"]
        if lay.ulysses > 1:
            words.append(f"u{lay.ulysses}")
        if lay.ep > 1:
            words.append(f"ep{lay.ep}")
        return "-".join([*words, self.recompute, self.loss, self.data_parallel, self.kernel])

    def canonical(self) -> Candidate:
        """The same run with every axis that has no effect set to its one spelling."""
        lay = self.layout
        if lay.pp == 1 and lay.vpp != 1:
            lay = replace(lay, vpp=1)
        if lay.cp == 1:
            return replace(
                self, layout=lay, sharding=ShardingKind.CONTIGUOUS, strategy=Strategy.RING, stages=0
            )
        if self.strategy is Strategy.ULYSSES:  # each rank attends whole heads, however it is cut
            return replace(self, layout=lay, sharding=ShardingKind.CONTIGUOUS)
        if self.strategy in (Strategy.RING, Strategy.ALL_GATHER) and self.stages == 1:
            one_hop = Strategy.RING if lay.cp == 2 else Strategy.ALL_GATHER
            return replace(self, layout=lay, strategy=one_hop)
        return replace(self, layout=lay)

    def axes(self) -> dict[str, int | str]:
        """Every searched axis by its plain name, as the trials table and Optuna show it."""
        lay = self.layout
        return {
            "tp": lay.tp,
            "cp": lay.cp,
            "pp": lay.pp,
            "vpp": lay.vpp,
            "dp": lay.dp,
            "ulysses": lay.ulysses,
            "ep": lay.ep,
            "sharding": self.sharding.value,
            "strategy": self.strategy.value,
            "stages": self.stages,
            "micro_batch": self.micro_batch,
            "recompute": self.recompute.value,
            "loss": self.loss.value,
            "data_parallel": self.data_parallel.value,
            "kernel": self.kernel,
        }

    def describe(self) -> str:
        """The layout in words of a table row, without the axes that say nothing."""
        lay = self.layout
        words = [f"tp{lay.tp} cp{lay.cp} dp{lay.dp}"]
        words += [f"{name}{size}" for name, size in (("pp", lay.pp), ("ep", lay.ep)) if size > 1]
        if lay.cp > 1:
            degree = f"{lay.ulysses}x{lay.ring}" if self.strategy is Strategy.HYBRID else ""
            words.append(f"{self.sharding} {self.strategy}{degree}/{self.stages}")
        if self.micro_batch > 1:
            words.append(f"mb{self.micro_batch}")
        if self.recompute is not Recompute.NONE:
            words.append(f"recompute-{self.recompute}")
        if self.loss is not LossKind.FULL:
            words.append(f"{self.loss}-loss")
        if self.data_parallel is not DataParallelKind.DDP:
            words.append(str(self.data_parallel))
        return " ".join(words)


def candidate_from_axes(axes: dict[str, int | str]) -> Candidate:
    """The candidate whose `axes()` these are; rows of before `ep` was kept have none, as trials do.

    Raises:
        ValueError: when a value is not legal for its axis.
        KeyError: when an axis is missing.
    """
    sizes = {name: int(axes[name]) for name in ("tp", "cp", "pp", "vpp", "dp", "ulysses")}
    return Candidate(
        layout=ParallelLayout(**sizes, ep=int(axes.get("ep") or 1)),
        sharding=ShardingKind(axes["sharding"]),
        strategy=Strategy(axes["strategy"]),
        stages=int(axes["stages"]),
        micro_batch=int(axes["micro_batch"]),
        recompute=Recompute(axes["recompute"]),
        loss=LossKind(axes["loss"]),
        data_parallel=DataParallelKind(axes["data_parallel"]),
        kernel=str(axes["kernel"]),
    )
