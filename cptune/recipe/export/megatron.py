"""Flags of Megatron-LM's pretrain_gpt.py, as a bash array."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cptune.domain.candidate import DataParallelKind, Recompute, Strategy
from cptune.domain.recipe import Recipe
from cptune.domain.workload import Mlp, Norm, Precision
from cptune.recipe.export.order import Order
from cptune.recipe.export.words import header

_ARRAY = "CPTUNE_RECIPE"
_SHARDED = (DataParallelKind.ZERO2, DataParallelKind.FSDP)


def megatron_text(recipe: Recipe, order: Order) -> str:
    """What goes into a launch script."""
    lines = (f"  {shlex.join(words)}\n" for words in flags(order))
    return (
        header(recipe, order, notes=_notes(order))
        + f"{_ARRAY}=(\n{''.join(lines)})\n"
        + f'# torchrun ... pretrain_gpt.py "${{{_ARRAY}[@]}}" ...\n'
    )


def flags(order: Order) -> list[list[str]]:
    """Every flag with its values."""
    return [
        [f"--{flag}", *map(str, values)]
        for flag, *values in (*_sizes(order), *_batch(order), *_memory(order), *_model(order))
    ]


def _notes(order: Order) -> Iterator[str]:
    lay, sharded = order.layout, order.candidate.data_parallel in _SHARDED
    yield "rank order tp-cp-ep-dp-pp, its default: no --use-tp-pp-dp-mapping"
    if lay.cp > 1:
        yield "it deals the context in zigzag by itself (DualChunkSwap), under every cp_comm_type"
    if sharded:
        yield "Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS unset, or above 1"
    elif lay.tp > 1 or lay.cp > 1:
        yield "before Blackwell it wants CUDA_DEVICE_MAX_CONNECTIONS=1 in the environment"
    yield "it pads the vocabulary to --make-vocab-size-divisible-by (128) x tp"


def _sizes(order: Order) -> Iterator[tuple[object, ...]]:
    lay = order.layout
    yield "tensor-model-parallel-size", lay.tp
    yield "pipeline-model-parallel-size", lay.pp
    yield "context-parallel-size", lay.cp
    if lay.tp > 1:
        yield ("sequence-parallel",)
    if lay.ep > 1:
        yield "expert-model-parallel-size", lay.ep
    if lay.cp > 1:
        yield "cp-comm-type", order.word("strategy")
    if order.strategy is Strategy.HYBRID and lay.cp > 1:
        yield "hierarchical-context-parallel-sizes", lay.ulysses, lay.ring
    if lay.vpp > 1:
        yield "num-virtual-stages-per-pipeline-rank", lay.vpp
    if not order.even:
        yield ("account-for-embedding-in-pipeline-split",)
        yield ("account-for-loss-in-pipeline-split",)


def _batch(order: Order) -> Iterator[tuple[object, ...]]:
    work = order.workload
    yield "seq-length", work.seq_len
    yield "max-position-embeddings", work.seq_len
    yield "micro-batch-size", order.candidate.micro_batch
    yield "global-batch-size", work.global_batch_seqs
    if work.precision is not Precision.FP32:
        yield ("bf16",)
    if work.precision is Precision.FP8:
        yield "fp8-format", order.word("precision")


def _memory(order: Order) -> Iterator[tuple[object, ...]]:
    kind = order.candidate.data_parallel
    if kind is not DataParallelKind.DDP:
        yield ("use-distributed-optimizer",)
    if kind in _SHARDED:
        yield ("use-megatron-fsdp",)
        yield "data-parallel-sharding-strategy", order.word("data_parallel")
        yield "ckpt-format", "fsdp_dtensor"
    if order.candidate.recompute is Recompute.FULL:
        yield "recompute-granularity", "full"
        yield "recompute-method", order.word("recompute")
        yield "recompute-num-layers", 1
    elif order.candidate.recompute is Recompute.SELECTIVE:
        yield "recompute-granularity", "selective"
        yield "recompute-modules", order.word("recompute")


def _model(order: Order) -> Iterator[tuple[object, ...]]:
    model = order.model
    yield "num-layers", model.layers
    yield "hidden-size", model.hidden
    yield "num-attention-heads", model.heads
    yield "kv-channels", model.head_dim
    if model.kv_heads != model.heads:
        yield ("group-query-attention",)
        yield "num-query-groups", model.kv_heads
    yield "ffn-hidden-size", model.ffn
    if model.mlp == Mlp.SWIGLU:
        yield ("swiglu",)
    yield "normalization", "RMSNorm" if model.norm == Norm.RMS else "LayerNorm"
    if not model.tied_embeddings:
        yield ("untie-embeddings-and-output-weights",)
    yield ("disable-bias-linear",)
    yield "position-embedding-type", "rope"
    if model.experts:
        yield "num-experts", model.experts
        yield "moe-router-topk", model.experts_per_token
        yield "moe-ffn-hidden-size", model.expert_ffn
