"""What forward keeps for backward, and what the last stage and the exchanges hold, by stack.

Formulas: Korthikanti et al. (arXiv:2205.05198) for a block with RMSNorm, GQA, SwiGLU and a fused
attention kernel, checked against saved tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cptune.domain.candidate import Candidate, LossKind, Recompute, Strategy
from cptune.domain.layout import ParallelLayout
from cptune.domain.workload import Mlp, ModelShape, Precision
from cptune.predict.case import Case
from cptune.predict.shares import (
    StageShare,
    active_ffn,
    local_kv_heads,
    local_tokens,
    micro_batches,
)

_CHUNKS = 16  # pieces of a chunked loss that are held one at a time
_FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a stack keeps: bytes of a gradient, and per token of norms, feed-forward and logits.

    Norms in units of hidden, feed-forward of ffn, logits of vocab.
    """

    grad_bytes: float
    norm: float
    swiglu: float
    gelu: float
    logits: float
    selective: tuple[float, float]  # norms and feed-forward under selective recompute
    gathered: float = 0.0  # inputs of products that are kept whole, not divided by tp


#: Gradients in bf16, a fused loss: the least that published runs get by with.
LEAN = Footprint(grad_bytes=2, norm=8, swiglu=6, gelu=4, logits=2, selective=(4, 4))
#: Megatron Core: norm inputs and outputs 4h each; gate, up and product; bf16 logits and their copy.
FUSED = Footprint(grad_bytes=4, norm=8, swiglu=6, gelu=4, logits=6, selective=(4, 4))
#: torch modules: norms keep fp32 x and its normalised copy, SiLU its output (checked with saved
#: tensors), the loss a second fp32 copy; a bf16 gradient stays beside its fp32 sum.
EAGER = Footprint(grad_bytes=6, norm=20, swiglu=8, gelu=6, logits=12, selective=(6, 4))
#: As EAGER, and products keep the two inputs that tensor parallelism gathered: the most that
#: published runs hold.
HEAVY = replace(EAGER, gathered=4)


def layer_activation_bytes(case: Case, candidate: Candidate, footprint: Footprint = FUSED) -> float:
    """Bytes that one layer saves for one micro-batch; tp divides all of it (sequence parallel).

    Per token: norms 8h, Q and O 4ad, K and V 4kd, feed-forward 6f, log-sum-exp 4a.
    """
    model, tp = case.model, candidate.layout.tp
    heads = 4 * model.heads * model.head_dim + 4 * model.heads
    keys = 4 * local_kv_heads(model, tp) * model.head_dim
    whole = footprint.gathered * model.hidden * (1 - 1 / tp)
    per_token = (_kept_bytes(model, candidate.recompute, footprint) + heads) / tp + keys + whole
    return local_tokens(candidate, case.workload) * per_token * _width(case)


def _width(case: Case) -> int:
    return 2 if case.workload.precision is Precision.FP32 else 1


def _kept_bytes(model: ModelShape, recompute: Recompute, footprint: Footprint) -> float:
    """Norms and feed-forward of a token; selective spares norm outputs and the product."""
    gelu = model.mlp == Mlp.GELU
    norm, wide = footprint.norm, footprint.gelu if gelu else footprint.swiglu
    if recompute is Recompute.SELECTIVE:
        norm, wide = footprint.selective
        wide = min(wide, footprint.gelu) if gelu else wide
    routed = 4 * model.hidden * model.experts_per_token if model.experts else 0
    return norm * model.hidden + wide * active_ffn(model) + routed


def layers_in_flight(layout: ParallelLayout, share: StageShare, batches: int) -> float:
    """Layers whose activations a rank holds at once, in layers of one micro-batch.

    1F1B: min(m, p - i) micro-batches. Interleaved: 2(p-i-1) + (v-1)p + 1 chunks (Megatron-LM).
    """
    if layout.vpp == 1 or layout.pp == 1:
        return share.layers * min(batches, layout.pp - share.index)
    chunks = 2 * (layout.pp - share.index - 1) + (layout.vpp - 1) * layout.pp + 1
    return share.layers / layout.vpp * min(chunks, batches * layout.vpp)


def activation_bytes(
    case: Case, candidate: Candidate, share: StageShare, footprint: Footprint = FUSED
) -> float:
    """Saved activations of a stage; full recompute keeps layer inputs and one live layer."""
    one = layer_activation_bytes(case, candidate, footprint)
    flying = layers_in_flight(candidate.layout, share, micro_batches(candidate, case.workload))
    if candidate.recompute is not Recompute.FULL:
        return one * flying
    inputs = 2 * _width(case) * case.model.hidden * local_tokens(candidate, case.workload)
    return inputs / candidate.layout.tp * flying + one


def logits_bytes(
    case: Case, candidate: Candidate, share: StageShare, footprint: Footprint = FUSED
) -> float:
    """Logits of the last stage; a chunked loss holds a sixteenth of them."""
    if not share.head:
        return 0.0
    cells = local_tokens(candidate, case.workload) * case.model.vocab / candidate.layout.tp
    chunks = _CHUNKS if candidate.loss is LossKind.CHUNKED else 1
    extra = 2 if case.workload.precision is Precision.FP32 else 0
    return cells * (footprint.logits + extra) / chunks


def exchange_bytes(case: Case, candidate: Candidate) -> float:
    """Transient buffers of context-parallel attention, backward (the larger pass).

    Two stages of keys and values, one of their gradients, the fp32 query gradient and output
    accumulator; Ulysses holds its heads before and after the exchange.
    """
    model, lay = case.model, candidate.layout
    if lay.cp == 1:
        return 0.0
    tokens = local_tokens(candidate, case.workload)
    keys = 4 * local_kv_heads(model, lay.tp) * model.head_dim * tokens
    queries = model.heads / lay.tp * model.head_dim * tokens
    total = 0.0
    if lay.ulysses > 1 or candidate.strategy is Strategy.ULYSSES:
        total += 4 * queries + keys
    if lay.ring > 1:
        arriving = -(-(lay.ring - 1) // max(1, candidate.stages))
        total += 3 * keys * arriving + 2 * _FP32 * queries
    return total
