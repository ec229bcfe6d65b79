"""What one rank of a trial keeps for backward, to the byte: the check of what it says it kept.

`activations` predicts the stacks that people train with; this counts our own decoder on CPU
kernels, whose RMSNorm and SiLU are torch's unfused ones. Per token and layer, with hidden h, query
heads a and kv heads k of dimension d, feed-forward f, and w bytes an element:

    2 (8h + wh + 4)  both norms: x and its normalised copy in fp32, one fp32 scale; their output
    2w (a + k) d     q and the output; k and v
    4a               the log-sum-exp in fp32
    4wf              gate, its SiLU, up, and their product

which for w = 2 is 20h + 4ad + 4kd + 8f + 4a + 8: Korthikanti et al. (arXiv:2205.05198) for a block
with GQA, SwiGLU and flash attention, with 20h + 8 in place of 8h for unfused norms and 2f more for
an unfused SiLU. Tensor parallelism divides heads, feed-forward and, over the rows, what norms and
residuals keep; the outputs of norms are gathered before they are kept.
Checked against saved tensors in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from cptune.domain.candidate import Candidate, Recompute
from cptune.domain.layout import ParallelLayout
from cptune.domain.workload import ModelShape, Precision, Workload
from cptune.predict.activations import layers_in_flight
from cptune.predict.shares import StageShare, micro_batches

_FP32 = 4
_INDEX = 8  # a token, as the embedding keeps it
_COMPLEX = 8  # one angle of a rotary position


def width(precision: Precision) -> int:
    """Bytes of an element in the type that the model computes in."""
    return _FP32 if precision is Precision.FP32 else 2


def attention_saved_bytes(
    model: ModelShape, *, tokens: int, layout: ParallelLayout, width: int
) -> int:
    """What one attention call keeps: q, k, v, the output and its log-sum-exp.

    Ulysses attends some heads of more tokens, as many bytes; key heads fewer than its ranks are
    held more than once.
    """
    heads = model.heads // layout.tp
    kv_heads = max(model.kv_heads // layout.tp, layout.ulysses)
    return tokens * (2 * width * (heads + kv_heads) * model.head_dim + _FP32 * heads)


def layer_saved_bytes(
    model: ModelShape, *, tokens: int, layout: ParallelLayout, width: int, recompute: Recompute
) -> int:
    """What one layer keeps; full recompute its input alone, selective the input of its second half.

    After Ulysses the output that went back to its tokens is kept too, for the product after it.

    Args:
        model: The whole model.
        tokens: Of this context rank, all sequences of the micro-batch.
        layout: How many ranks share the heads and the feed-forward.
        width: Bytes of an element.
        recompute: What is computed again.
    """
    stream = tokens // layout.tp * model.hidden * width
    if recompute is Recompute.FULL:
        return stream
    norm = norm_saved_bytes(model, tokens=tokens, width=width, tp=layout.tp)
    attention = attention_saved_bytes(model, tokens=tokens, layout=layout, width=width)
    if layout.ulysses > 1:
        attention += tokens * width * model.heads // layout.tp * model.head_dim
    if recompute is Recompute.SELECTIVE:
        return norm + attention + stream
    return 2 * norm + attention + 4 * tokens * width * (model.ffn // layout.tp)


def norm_saved_bytes(model: ModelShape, *, tokens: int, width: int, tp: int) -> int:
    """What one RMSNorm, of this rank's part of the rows, and the product of all rows keep."""
    return tokens // tp * (2 * _FP32 * model.hidden + _FP32) + tokens * width * model.hidden


def rank_tokens(candidate: Candidate, workload: Workload) -> int:
    """Rows of one micro-batch on one context rank, padding included."""
    layout = candidate.layout
    return candidate.micro_batch * layout.tp * -(-workload.seq_len // (layout.cp * layout.tp))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSaved:
    """What a rank of a stage keeps, at full sharding, at three moments of backward.

    `at_loss_bytes` while the loss is computed; `at_layer_bytes` while a layer is, with what it
    computes again; `most_bytes` bounds both, as if recomputation made a whole layer anew.
    """

    at_loss_bytes: int
    at_layer_bytes: int
    most_bytes: int


def rank_saved(
    model: ModelShape, candidate: Candidate, workload: Workload, share: StageShare
) -> RankSaved:
    """What a rank of a stage keeps for backward."""
    tokens, layout = rank_tokens(candidate, workload), candidate.layout
    size, batches = width(workload.precision), micro_batches(candidate, workload)
    kept, whole, selective = (
        layer_saved_bytes(model, tokens=tokens, layout=layout, width=size, recompute=recompute)
        for recompute in (candidate.recompute, Recompute.NONE, Recompute.SELECTIVE)
    )
    flying = layers_in_flight(layout, share, batches)
    if layout.pp > 1 and share.embedding:
        flying += share.layers / layout.vpp  # torch's first stage holds on to its trial pass
    passes = max(1.0, flying / max(1.0, share.layers))
    angles = tokens // candidate.micro_batch * model.head_dim // 2 * _COMPLEX
    norm = norm_saved_bytes(model, tokens=tokens, width=size, tp=layout.tp) * share.head
    indices = _INDEX * tokens * batches * (share.embedding + share.head)  # of all passes
    live = 0 if candidate.recompute is Recompute.NONE else whole
    again = whole - selective if candidate.recompute is Recompute.SELECTIVE else live
    held = kept * flying + passes * angles + norm + indices
    return RankSaved(
        at_loss_bytes=round(held),
        at_layer_bytes=round(held + again),
        most_bytes=round(held + live),
    )


def rank_saved_bytes(
    model: ModelShape, candidate: Candidate, workload: Workload, share: StageShare
) -> int:
    """The most that a rank of a stage keeps at once, at full sharding."""
    return rank_saved(model, candidate, workload, share).most_bytes
