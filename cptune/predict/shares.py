"""What one rank holds and computes: layers of its pipeline stage, parameters, local tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cptune.domain.candidate import Candidate
from cptune.domain.layout import ParallelLayout
from cptune.domain.workload import Mlp, ModelShape, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """What a pipeline stage holds."""

    index: int
    layers: float
    embedding: bool
    head: bool


def stage_shares(
    model: ModelShape, layout: ParallelLayout, *, balanced: bool
) -> tuple[StageShare, ...]:
    """Layers of each stage.

    Where the layers do not divide, embedding and head count as a layer each (Llama 3 405B,
    arXiv:2407.21783, section 3.3.2): the first and the last stage hold one layer less.
    `balanced` counts the head as the layers that cost as much, as nanotron does.
    """
    chunks, last = layout.pp * layout.vpp, layout.pp - 1
    even = model.layers % chunks == 0
    first_spared = last_spared = 0.0 if even else 1.0
    if balanced and layout.pp > 1:
        first_spared, last_spared = 0.0, head_layers(model, layout.pp)
    per_stage = (model.layers + first_spared + last_spared) / layout.pp
    return tuple(
        StageShare(
            index=index,
            layers=per_stage - first_spared * (index == 0) - last_spared * (index == last),
            embedding=index == 0,
            head=index == last,
        )
        for index in _telling(layout.pp)
    )


def stage_share(model: ModelShape, layout: ParallelLayout, index: int) -> StageShare:
    """What one stage of a trial's pipeline holds, all its chunks together."""
    parts = layout.stage_layers(model.layers)
    layers = sum(len(part) for part in parts[index :: layout.pp])
    last = layout.pp - 1
    return StageShare(index=index, layers=layers, embedding=index == 0, head=index == last)


def head_layers(model: ModelShape, pp: int) -> float:
    """Layers that cost as much as the head; at most what leaves one to the last stage."""
    heads = 2 * (model.heads + model.kv_heads) * model.head_dim
    layer = model.hidden * (heads + mlp_matrices(model) * active_ffn(model))
    most = (model.layers - pp) / max(1, pp - 1)
    return max(0.0, min(model.vocab * model.hidden / layer, most))


def _telling(stages: int) -> Iterator[int]:
    """First, second and last stage: those between hold as much as the second and wait less."""
    yield from sorted({0, min(1, stages - 1), stages - 1})


def local_kv_heads(model: ModelShape, tp: int) -> int:
    """Key heads of one tensor-parallel rank; below one head they are replicated."""
    return max(1, model.kv_heads // tp)


def mlp_matrices(model: ModelShape) -> int:
    """Weight matrices of the feed-forward block."""
    return 3 if model.mlp == Mlp.SWIGLU else 2


def layer_parameters(model: ModelShape, tp: int) -> float:
    """Parameters of one layer on one rank that all data ranks hold: norms whole, experts apart."""
    query = 2 * model.hidden * model.heads * model.head_dim / tp
    key = 2 * model.hidden * local_kv_heads(model, tp) * model.head_dim
    if model.experts:
        return query + key + model.hidden * (2 + model.experts)
    return query + key + mlp_matrices(model) * model.hidden * model.ffn / tp + 2 * model.hidden


def expert_parameters(model: ModelShape, layout: ParallelLayout) -> float:
    """Parameters of the experts of one layer on one rank; ep divides them, and tp."""
    held = model.experts / layout.ep / layout.tp
    return held * mlp_matrices(model) * model.hidden * model.expert_ffn


def active_ffn(model: ModelShape) -> int:
    """Feed-forward width that one token passes."""
    return model.experts_per_token * model.expert_ffn if model.experts else model.ffn


def stage_parameters(model: ModelShape, layout: ParallelLayout, share: StageShare) -> float:
    """Parameters of one rank of a stage. A tied embedding is held by both ends of a pipeline."""
    table = model.vocab * model.hidden / layout.tp
    tied_once = model.tied_embeddings and share.embedding and share.head
    tables = share.embedding + share.head - tied_once
    own = share.layers * layer_parameters(model, layout.tp)
    return own + tables * table + model.hidden * share.head


def local_tokens(candidate: Candidate, workload: Workload) -> float:
    """Tokens of one micro-batch on one context rank."""
    return candidate.micro_batch * workload.seq_len / candidate.layout.cp


def micro_batches(candidate: Candidate, workload: Workload) -> int:
    """Micro-batches of one data-parallel rank in a step."""
    return max(1, workload.global_batch_seqs // (candidate.layout.dp * candidate.micro_batch))
