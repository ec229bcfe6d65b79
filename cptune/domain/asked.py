"""One layout as a person asks for it on the command line."""

from __future__ import annotations

from dataclasses import dataclass

from cptune.domain.candidate import (
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The layout asked for; None is the first value of the spec's axis.

    Args:
        tp: Tensor-parallel ranks.
        cp: Context-parallel ranks.
        pp: Pipeline stages.
        vpp: Chunks of a stage.
        ep: Ranks that share a layer's experts, inside dp x cp.
        ulysses: Of cp, the ranks that exchange heads.
        micro_batch: Sequences of a pass.
        recompute: What is computed again in backward.
        loss: How the logits are held.
        data_parallel: What data-parallel ranks share out.
        sharding: How the sequence is cut.
        strategy: How keys and values move.
        stages: Exchanges of a ring.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    ulysses: int = 1
    ep: int = 1
    micro_batch: int | None = None
    recompute: Recompute | None = None
    loss: LossKind | None = None
    data_parallel: DataParallelKind | None = None
    sharding: ShardingKind | None = None
    strategy: Strategy | None = None
    stages: int | None = None
