"""Bytes that one rank sends, by axis; the same counts as `cptune.attention`'s plan."""

from __future__ import annotations

from dataclasses import dataclass

from cptune.domain.candidate import Candidate, DataParallelKind
from cptune.predict.case import Case
from cptune.predict.shares import local_kv_heads, local_tokens


def element_bytes(case: Case) -> int:
    """Bytes of an activation on the wire."""
    return 4 if case.workload.precision == "fp32" else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBytes:
    """What context parallelism moves for one layer and micro-batch, on the busiest rank.

    `ring_forward` keys and values of peers; backward fetches them again and returns gradients.
    `heads` is one all-to-all pass of Ulysses, the same forward and backward.
    """

    ring_forward: float
    ring_backward: float
    heads: float


def context_bytes(case: Case, candidate: Candidate) -> ContextBytes:
    """Ring: (R-1) key-value shards forward, twice that backward (need-only, gradients in bf16).

    A contiguous causal cut needs each shard on later ranks alone; the busiest rank, the last,
    needs all of them, as the first does under zigzag. Ulysses: (U-1)/U of queries, keys, values
    and outputs (arXiv:2309.14509), its keys replicated where there are fewer heads than ranks.
    """
    model, lay, width = case.model, candidate.layout, element_bytes(case)
    tokens = local_tokens(candidate, case.workload)
    keys = max(local_kv_heads(model, lay.tp), lay.ulysses) if lay.ulysses > 1 else None
    kv_heads = keys or local_kv_heads(model, lay.tp)
    shard = 2.0 * width * kv_heads * model.head_dim * tokens
    ring = (lay.ring - 1) * shard
    heads = 2.0 * width * (model.heads / lay.tp + kv_heads) * model.head_dim * tokens
    return ContextBytes(
        ring_forward=ring,
        ring_backward=2 * ring,
        heads=heads * (lay.ulysses - 1) / lay.ulysses,
    )


def tensor_bytes(case: Case, candidate: Candidate) -> float:
    """One gathered activation of a layer: b*s*h elements, of which a rank sends (t-1)/t."""
    return element_bytes(case) * local_tokens(candidate, case.workload) * case.model.hidden


def pipeline_bytes(case: Case, candidate: Candidate) -> float:
    """One stage boundary of one micro-batch, one way."""
    return tensor_bytes(case, candidate) / candidate.layout.tp


def gradient_bytes(case: Case, parameters: float) -> float:
    """The buffer that data-parallel ranks reduce."""
    return case.constants.grad_bytes * parameters


def weight_bytes(case: Case, parameters: float) -> float:
    """The buffer that data-parallel ranks gather."""
    return element_bytes(case) * parameters


def gathers_weights(kind: DataParallelKind) -> bool:
    """Are weights gathered once after the optimizer?"""
    return kind in (DataParallelKind.ZERO1, DataParallelKind.ZERO2)
