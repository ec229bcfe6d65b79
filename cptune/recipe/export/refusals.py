"""Why another trainer cannot express a recipe: every reason at once, with the nearest it can."""

from __future__ import annotations

from collections.abc import Iterator

from cptune.domain.candidate import DataParallelKind, Strategy
from cptune.domain.workload import Precision, nearest_divisor
from cptune.predict.exports import megatron_divisor, nearest_multiples
from cptune.recipe.export.order import Order
from cptune.recipe.export.tools import ToolName

_MEGATRON = (ToolName.MEGATRON, ToolName.MEGATRON_BRIDGE)
_OF_CONTEXT = ("strategy", "sharding")


def why_not(order: Order) -> list[str]:
    """Every reason; none where it can be said."""
    found = [*_words(order), *_sizes(order), *_stages(order), *_sequence(order)]
    rules = _megatron if order.name in _MEGATRON else _torch
    return [*found, *rules(order)]


def divisor_of(order: Order) -> int:
    """What the sequence must divide by.

    Megatron: `cptune.predict.exports`. torchtitan 0.3.0: tp (sequence parallel) * 2 cp, trainer.py.
    Accelerate: 2 cp, torch's head-to-tail load balancer.
    """
    lay = order.layout
    halves = 2 * lay.cp if lay.cp > 1 else 1
    if order.name in _MEGATRON:
        return megatron_divisor(order.candidate, order.workload)
    return lay.tp * halves if order.name is ToolName.TORCHTITAN else halves


def _words(order: Order) -> Iterator[str]:
    for axis, words in order.tool.words.items():
        value = order.value(axis)
        if value in words or not _counts(order, axis):
            continue
        refusal = order.tool.refused[axis]
        yield f"{axis} {value}: {refusal.why}; nearest: {refusal.nearest}"


def _counts(order: Order, axis: str) -> bool:
    """Whether an axis has an effect: a context of one rank is neither cut nor moved.

    Under Ulysses each rank attends whole heads, however the context is cut between.
    """
    if axis == "sharding" and order.strategy is Strategy.ULYSSES:
        return False
    return axis not in _OF_CONTEXT or order.layout.cp > 1


def _sizes(order: Order) -> Iterator[str]:
    for axis, most in order.tool.most.items():
        size = getattr(order.layout, axis)
        if size > most:
            yield f"{axis} {size}: {order.tool.title} has none here; nearest: {axis} {most}"


def _stages(order: Order) -> Iterator[str]:
    """Exchanges of a ring and of an all-gather; nothing between them is known elsewhere."""
    lay, stages = order.layout, order.candidate.stages
    ring = order.strategy in (Strategy.RING, Strategy.HYBRID)
    wanted = lay.ring - 1 if ring else 1
    known = order.strategy in order.tool.words["strategy"]
    if lay.ring == 1 or not known or stages == wanted:
        return
    yield (
        f"stages {stages}: {order.strategy} of {order.tool.title} over {lay.ring} ranks has "
        f"{wanted}; nearest: {wanted}" + (", or all_gather in 1" if ring else "")
    )


def _sequence(order: Order) -> Iterator[str]:
    divisor, seq_len = divisor_of(order), order.workload.seq_len
    if seq_len % divisor:
        below, above = nearest_multiples(seq_len, divisor)
        yield (
            f"seq_len {seq_len}: {order.tool.title} wants a multiple of {divisor} for tp "
            f"{order.layout.tp} and cp {order.layout.cp}; nearest: {below} or {above}"
        )


def _megatron(order: Order) -> Iterator[str]:
    lay, model = order.layout, order.model
    kv_heads = max(1, model.kv_heads // lay.tp)
    if lay.ulysses > 1 and kv_heads % lay.ulysses:
        near = nearest_divisor(kv_heads, lay.ulysses)
        yield (
            f"ulysses {lay.ulysses}: Transformer Engine trades whole kv heads, of which a tp rank "
            f"has {kv_heads}; nearest: ulysses {near}"
        )
    if lay.cp > 1 and order.workload.precision is Precision.FP32 and _says_precision(order):
        yield (
            "precision fp32: Transformer Engine's attention over a context group is bf16 or fp16; "
            "nearest: bf16"
        )
    if lay.vpp > 1 and order.batches % lay.pp:
        yield (
            f"{order.batches} micro-batches: the interleaved schedule wants a multiple of pp "
            f"{lay.pp}; nearest: {' or '.join(map(str, nearest_multiples(order.batches, lay.pp)))}"
        )


def _says_precision(order: Order) -> bool:
    return order.value("precision") in order.tool.words["precision"]


def _torch(order: Order) -> Iterator[str]:
    lay, model = order.layout, order.model
    if model.kv_heads % lay.tp:
        near = nearest_divisor(model.kv_heads, lay.tp)
        yield (
            f"tp {lay.tp}: {order.tool.title} does not replicate the {model.kv_heads} kv heads; "
            f"nearest: tp {near}"
        )
    yield from _replicas(order)
    if order.name is ToolName.TORCHTITAN:
        yield from _schedule(order)


def _replicas(order: Order) -> Iterator[str]:
    lay, kind, title = order.layout, order.candidate.data_parallel, order.tool.title
    is_ddp = kind is DataParallelKind.DDP
    if is_ddp and lay.cp > 1:
        yield (
            f"data_parallel ddp: {title} shards the weights over the context group where cp > 1; "
            "nearest: fsdp"
        )
    if order.name is not ToolName.ACCELERATE:
        return
    if is_ddp and lay.tp > 1:
        yield "data_parallel ddp: Accelerate composes tp with FSDP2 alone; nearest: fsdp"
    if not is_ddp and lay.dp * lay.cp == 1:
        yield (
            f"data_parallel {kind}: dp 1 x cp 1 leaves FSDP2 no rank to shard over; "
            "nearest: dp 2 or cp 2"
        )


def _schedule(order: Order) -> Iterator[str]:
    """Of torch.distributed.pipelining: Schedule1F1B, ScheduleInterleaved1F1B."""
    lay, batches = order.layout, order.batches
    if lay.pp == 1:
        return
    rounds = max(1, batches // lay.pp)
    if lay.vpp == 1 and batches < lay.pp:
        yield f"{batches} micro-batches: 1F1B wants pp {lay.pp} or more; nearest: {lay.pp}"
    if lay.vpp > 1 and batches % rounds:
        yield (
            f"{batches} micro-batches: Interleaved1F1B wants a multiple of its {rounds} rounds; "
            f"nearest: {' or '.join(map(str, nearest_multiples(batches, rounds)))}"
        )
