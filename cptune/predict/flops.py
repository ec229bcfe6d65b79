"""FLOPs of a step: GQA, SwiGLU and causal halves counted; both published conventions."""

from __future__ import annotations

from dataclasses import dataclass

from cptune.domain.candidate import Recompute
from cptune.domain.documents import DocumentLoad
from cptune.domain.workload import AttentionMask, ModelShape, Workload
from cptune.predict.lengths import pairs_per_sequence
from cptune.predict.shares import active_ffn, mlp_matrices

#: Backward over forward: a matrix product has two gradients.
_TRAIN = 3
#: FlashAttention's backward computes the scores again: 5 products against 2 (arXiv:2307.08691).
ATTENTION_BACKWARD = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFlop:
    """FLOPs of one optimizer step over the whole job.

    `model` counts what the mask leaves and no recomputation: the MFU that cptune reports, and
    Megatron-Bridge's. `full_square` counts attention as if nothing were masked: the convention of
    DGXC, PaLM and MosaicML. `hardware` is what the GPUs really compute.
    """

    model: float
    full_square: float
    hardware: float


def layer_matrix_flop(model: ModelShape) -> float:
    """Forward FLOPs of a layer's matrix products for one token."""
    heads = 2 * (model.heads + model.kv_heads) * model.head_dim
    return 2.0 * model.hidden * (heads + mlp_matrices(model) * active_ffn(model))


def attention_flop(model: ModelShape, pairs: float) -> float:
    """Forward FLOPs of one layer's attention over that many query-key pairs."""
    return 4.0 * pairs * model.heads * model.head_dim


def step_flop(
    model: ModelShape,
    workload: Workload,
    recompute: Recompute,
    documents: DocumentLoad | None = None,
) -> StepFlop:
    """FLOPs of a step by convention."""
    tokens = workload.tokens_per_step
    matrices = model.layers * layer_matrix_flop(model) * tokens
    head = 2.0 * model.hidden * model.vocab * tokens
    pairs = pairs_per_sequence(workload, documents) * workload.global_batch_seqs
    square = float(workload.seq_len) ** 2 * workload.global_batch_seqs
    attention = model.layers * attention_flop(model, pairs)
    again = matrices + attention if recompute is Recompute.FULL else 0.0
    return StepFlop(
        model=_TRAIN * (matrices + head + attention),
        full_square=_TRAIN * (matrices + head + model.layers * attention_flop(model, square)),
        hardware=_TRAIN * (matrices + head) + attention * (1 + ATTENTION_BACKWARD) + again,
    )


def mfu(flop: float, *, step_s: float, world_size: int, peak_flop_per_s: float) -> float:
    """Model FLOPs utilisation.

    Raises:
        ValueError: when the rate is above the peak, so the time or the count is wrong.
    """
    share = flop / (step_s * world_size * peak_flop_per_s)
    if share > 1:
        raise ValueError(
            f"{flop:.4g} FLOP in {step_s:.4g} s on {world_size} devices is {share:.2f} of their "
            f"peak of {peak_flop_per_s:.4g} FLOP/s; wanted at most 1"
        )
    return share


def is_causal(workload: Workload) -> bool:
    """Does the mask leave about half of the square?"""
    return workload.mask is not AttentionMask.FULL
