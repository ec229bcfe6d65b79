"""What can run a candidate: limits of a backend, which are no rules of the layout itself."""

from __future__ import annotations

from dataclasses import dataclass

from cptune.domain.candidate import (
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
)
from cptune.domain.workload import AttentionMask, Mlp, Norm, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What a trial backend can run; a candidate outside it is refused, with the backend named.

    `lengths` are those that it knows without documents; under the document mask it takes any.
    `pipeline_needs_passes`: it also sends rows of one shape alone from stage to stage.
    """

    backend: str
    sharding: frozenset[ShardingKind]
    strategy: frozenset[Strategy]
    recompute: frozenset[Recompute]
    loss: frozenset[LossKind]
    data_parallel: frozenset[DataParallelKind]
    precision: frozenset[Precision]
    mask: frozenset[AttentionMask]
    mlp: frozenset[Mlp]
    norm: frozenset[Norm]
    pipeline_needs_passes: bool
    tied_embeddings: bool
    kv_replication: bool
    optimizers: frozenset[str]
    lengths: frozenset[str]
    vocab_padding: bool = False
    experts: bool = False


#: What `cptune.bench` trains on torch.distributed today.
TORCH_TRIAL = Support(
    backend="torch trial",
    pipeline_needs_passes=True,
    sharding=frozenset(ShardingKind),
    strategy=frozenset(Strategy),
    recompute=frozenset(Recompute),
    loss=frozenset(LossKind),
    data_parallel=frozenset({DataParallelKind.DDP, DataParallelKind.ZERO1, DataParallelKind.FSDP}),
    precision=frozenset({Precision.FP32, Precision.BF16}),
    mask=frozenset(AttentionMask),
    mlp=frozenset({Mlp.SWIGLU}),
    norm=frozenset({Norm.RMS}),
    tied_embeddings=False,
    kv_replication=True,
    optimizers=frozenset({"adamw-fp32"}),
    lengths=frozenset({"full"}),
)


#: What training stacks together can run: for planning, where the layout's own rules alone count.
PLANNED = Support(
    backend="plan",
    pipeline_needs_passes=False,
    sharding=frozenset(ShardingKind),
    strategy=frozenset(Strategy),
    recompute=frozenset(Recompute),
    loss=frozenset(LossKind),
    data_parallel=frozenset(DataParallelKind),
    precision=frozenset(Precision),
    mask=frozenset(AttentionMask),
    mlp=frozenset(Mlp),
    norm=frozenset(Norm),
    tied_embeddings=True,
    kv_replication=True,
    optimizers=frozenset({"adamw-fp32"}),
    lengths=frozenset({"full"}),
    vocab_padding=True,
    experts=True,
)
