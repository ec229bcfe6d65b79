"""Communication that no compute hides, by axis, on the links that each group spans."""

from __future__ import annotations

from cptune.domain.candidate import Candidate, DataParallelKind
from cptune.domain.layout import Axis
from cptune.domain.stack import Stack
from cptune.predict.case import Case
from cptune.predict.links import (
    Span,
    axis_span,
    gather_seconds,
    reduce_seconds,
    send_seconds,
    span_of,
)
from cptune.predict.rates import Passes
from cptune.predict.shares import layer_parameters, micro_batches
from cptune.predict.traffic import (
    context_bytes,
    gathers_weights,
    gradient_bytes,
    pipeline_bytes,
    tensor_bytes,
    weight_bytes,
)


def tensor_exposed(case: Case, candidate: Candidate) -> Passes:
    """Sequence parallelism: four gathers or scatters of the activations each way.

    The two gathers that weight gradients need again run behind them (Megatron-LM).
    """
    span = axis_span(case, candidate.layout, Axis.TP)
    one = gather_seconds(case, span, tensor_bytes(case, candidate))
    seconds = 4 * one * (1 - case.constants.tp_overlap)
    return Passes(forward=seconds, backward=seconds)


def expert_exposed(case: Case, candidate: Candidate) -> Passes:
    """Experts: tokens go to their ranks and come back, each way (DeepSpeed-MoE, all-to-all)."""
    model, lay = case.model, candidate.layout
    if lay.ep == 1:
        return Passes(forward=0.0, backward=0.0)
    span = span_of(case, size=lay.ep, stride=lay.tp)
    sent = tensor_bytes(case, candidate) * model.experts_per_token / lay.tp
    one = send_seconds(case, span, sent * (lay.ep - 1) / lay.ep)
    return Passes(forward=2 * one, backward=2 * one)


def context_exposed(case: Case, candidate: Candidate, attention: Passes) -> Passes:
    """What the attention kernel does not hide, stage by stage; an all-to-all hides nothing."""
    lay, moved = candidate.layout, context_bytes(case, candidate)
    if lay.cp == 1:
        return Passes(forward=0.0, backward=0.0)
    heads = 0.0
    if lay.ulysses > 1:
        near = span_of(case, size=lay.ulysses, stride=lay.tp)
        heads = 4 * case.constants.collective_latency_s + moved.heads / near.edge_bytes_per_s
    ring = span_of(case, size=lay.ring, stride=lay.tp * lay.ulysses)
    forward = _staged(case, candidate, ring, (moved.ring_forward, attention.forward))
    backward = _staged(case, candidate, ring, (moved.ring_backward, attention.backward))
    return Passes(forward=forward + heads, backward=backward + heads)


def _staged(case: Case, candidate: Candidate, span: Span, work: tuple[float, float]) -> float:
    """Exposed seconds of a staged exchange, `work` being its bytes and the compute beside it.

    The first stage arrives during the own block, 1/R of the work; each later one during the
    stage before it.
    """
    if span.size == 1:
        return 0.0
    sent_bytes, compute_s = work
    stages = max(1, candidate.stages)
    one = send_seconds(case, span, sent_bytes / stages)
    own = compute_s / span.size
    during = compute_s * (span.size - 1) / span.size / stages
    return max(0.0, one - own) + (stages - 1) * max(0.0, one - during)


def data_exposed(
    case: Case, candidate: Candidate, parameters: float, *, layers: float, passes: Passes
) -> float:
    """Data-parallel seconds of a step that neither backward nor forward hides.

    ddp and zero1 reduce during the last backward. zero1 gathers its weights during the first
    forward (Megatron Core), or before the optimizer step returns (nanotron and torch's own).
    fsdp gathers each layer twice and scatters its gradient in every micro-batch. A bucket is
    about a layer.
    """
    span = axis_span(case, candidate.layout, Axis.DP)
    if span.size == 1:
        return 0.0
    kind, batches = candidate.data_parallel, micro_batches(candidate, case.workload)
    if kind is DataParallelKind.FSDP:
        return batches * _layer_by_layer(case, candidate, span, layers=layers, passes=passes)
    collective = reduce_seconds if kind is DataParallelKind.DDP else gather_seconds
    reduce = collective(case, span, gradient_bytes(case, parameters), pieces=layers)
    times = batches if kind is DataParallelKind.ZERO2 else 1
    gather = 0.0
    if gathers_weights(kind):
        gather = gather_seconds(case, span, weight_bytes(case, parameters), pieces=layers)
    if case.stack_of(candidate) is Stack.FUSED:
        gather = _behind(case, gather, passes.forward)
    return times * _behind(case, reduce, passes.backward) + gather


def _layer_by_layer(
    case: Case, candidate: Candidate, span: Span, *, layers: float, passes: Passes
) -> float:
    parameters = layer_parameters(case.model, candidate.layout.tp)
    gather = gather_seconds(case, span, weight_bytes(case, parameters))
    scatter = gather_seconds(case, span, gradient_bytes(case, parameters))
    forward = _behind(case, gather, passes.forward / layers)
    return layers * (forward + _behind(case, gather + scatter, passes.backward / layers))


def _behind(case: Case, comm_s: float, compute_s: float) -> float:
    """Communication behind compute: what is longer, and what it slows the compute by."""
    hidden = min(comm_s, compute_s)
    return comm_s - hidden + case.constants.overlap_cost * hidden


def pipeline_exposed(case: Case, candidate: Candidate, batches: int) -> float:
    """Sends between stages: half of them wait, all of vpp's chunks send."""
    lay = candidate.layout
    if lay.pp == 1:
        return 0.0
    span = axis_span(case, lay, Axis.PP)
    one = send_seconds(case, span, pipeline_bytes(case, candidate))
    return 2 * batches * lay.vpp * one * (1 - case.constants.pp_overlap)
