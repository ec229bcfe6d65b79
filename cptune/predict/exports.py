"""What other trainers ask of a layout that ours does not: the sequence rule of Megatron."""

from __future__ import annotations

from math import lcm

from cptune.domain.candidate import Candidate, ShardingKind, Strategy
from cptune.domain.workload import Precision, Workload
from cptune.predict.shares import micro_batches

_FP8_TOKENS = 16  # Transformer Engine's 8-bit products take rows by sixteen


def megatron_divisor(candidate: Candidate, workload: Workload) -> int:
    """What the sequence must divide by: cp * lcm(2, tp), under fp8 also 16.

    Two chunks for each context rank (zigzag), each cut again over tp (sequence parallelism).
    """
    lay = candidate.layout
    divisor = lay.cp * lcm(2, lay.tp)
    return lcm(divisor, _FP8_TOKENS) if workload.precision is Precision.FP8 else divisor


def nearest_multiples(length: int, divisor: int) -> list[int]:
    """The legal lengths below and above, both at least one divisor."""
    below = max(1, length // divisor) * divisor
    above = max(1, -(-length // divisor)) * divisor
    return [below, above]


def megatron_json(candidate: Candidate, workload: Workload) -> dict[str, object]:
    """Whether Megatron-LM would take the layout, and what it asks."""
    divisor = megatron_divisor(candidate, workload)
    lay, reasons = candidate.layout, list[str]()
    if workload.seq_len % divisor:
        reasons.append(f"{workload.seq_len} tokens do not divide by {divisor}")
    # Under Ulysses each rank attends whole heads, however the context is cut between.
    is_cut = lay.cp > 1 and candidate.strategy is not Strategy.ULYSSES
    if is_cut and candidate.sharding is not ShardingKind.ZIGZAG:
        reasons.append(f"sharding {candidate.sharding}: Megatron cuts a causal context in zigzag")
    batches = micro_batches(candidate, workload)
    if lay.vpp > 1 and batches % lay.pp:
        reasons.append(f"{batches} micro-batches do not divide by pp {lay.pp}, as vpp needs")
    return {
        "legal": not reasons,
        "divisor": divisor,
        "nearest_seq_len": nearest_multiples(workload.seq_len, divisor),
        "reasons": reasons,
    }
