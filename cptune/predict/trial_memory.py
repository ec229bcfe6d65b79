"""The likely peak of a trial on CPU processes: what its decoder keeps is known to the byte.

A trial's rank counts live tensors, and its model and kernels are ours, so what `saved` counts
takes the place of what stacks in general keep. The lowest peak, which prunes, stays that of the
leanest stack: a formula that is exact today must rule nothing out.
"""

from __future__ import annotations

from dataclasses import replace

from cptune.domain.candidate import Candidate, LossKind
from cptune.domain.workload import Precision
from cptune.predict.activations import EAGER
from cptune.predict.case import Case
from cptune.predict.memory import MemoryBand, MemoryModel, StageMemory, stage_memory
from cptune.predict.saved import rank_saved, rank_tokens
from cptune.predict.shares import StageShare, micro_batches, stage_share
from cptune.predict.traffic import pipeline_bytes

_FP32 = 4
_CHUNK_TOKENS = 512  # of the chunked loss of trials, cptune/bench/loss.py
#: fp32 copies of the logits at the peak: themselves, their softmax and its gradient; the loss that
#: tensor-parallel ranks compute together holds one more.
_COPIES, _COPIES_TP = 3, 4
#: torch.distributed.pipelining allocates a buffer for whatever a chunk receives of any micro-batch
#: and holds what it sent: 1.6 to 1.8 buffers for each receive over 4 and 8 micro-batches.
_BUFFERS = 1.75
#: The highest peak over the likely one; the farthest of 70 layouts lay 1.17 times above it.
_HIGHEST = 1.2


def memory_of(case: Case) -> MemoryModel:
    """Memory on the case's device: CPU processes run our decoder alone, dense layers for now."""
    ours = case.machine.gpu.generation == "cpu" and not case.model.experts
    return TrialMemoryModel(case) if ours else MemoryModel(case)


class TrialMemoryModel(MemoryModel):
    """Memory of trials: the likely peak counted, the band around it as for any stack."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._trials = case

    def band(self, candidate: Candidate) -> MemoryBand:
        """The band of the rank with the highest peak."""
        band = super().band(candidate)
        shares = (
            stage_share(self._trials.model, candidate.layout, index)
            for index in range(candidate.layout.pp)
        )
        stages = (trial_memory(self._trials, candidate, share) for share in shares)
        worst = max(stages, key=lambda stage: stage.allocated_bytes)
        likely = worst.allocated_bytes
        return replace(
            band,
            worst=worst,
            low_bytes=min(band.low_bytes, likely),
            likely_bytes=likely,
            high_bytes=_HIGHEST * likely,
        )


def trial_memory(case: Case, candidate: Candidate, share: StageShare) -> StageMemory:
    """What one rank of a trial holds at its peak: at the loss, or in backward of a layer."""
    saved = rank_saved(case.model, candidate, case.workload, share)
    logits = _logits_bytes(case, candidate) if share.head else 0.0
    at_loss = saved.at_loss_bytes + logits >= saved.at_layer_bytes
    return replace(
        stage_memory(case, candidate, share, EAGER),
        activation_bytes=saved.at_loss_bytes if at_loss else saved.at_layer_bytes,
        logits_bytes=logits if at_loss else 0.0,
        comm_bytes=_pipeline_buffers(case, candidate, share),
    )


def _pipeline_buffers(case: Case, candidate: Candidate, share: StageShare) -> float:
    """What the chunks of a stage send and receive, of every micro-batch of a step."""
    lay = candidate.layout
    if lay.pp == 1:
        return 0.0
    received = 2 * lay.vpp - share.embedding - share.head  # forward and backward, by chunk
    stream = pipeline_bytes(case, candidate)
    return _BUFFERS * received * micro_batches(candidate, case.workload) * stream


def _logits_bytes(case: Case, candidate: Candidate) -> float:
    """Logits of one micro-batch, or of one chunk of it, and what the loss makes of them."""
    tokens, tp = rank_tokens(candidate, case.workload), candidate.layout.tp
    if candidate.loss is LossKind.CHUNKED:
        tokens = min(tokens, candidate.micro_batch * _CHUNK_TOKENS)
    half = 0 if case.workload.precision is Precision.FP32 else 2
    copies = _COPIES if tp == 1 else _COPIES_TP
    return tokens * case.model.vocab / tp * (copies * _FP32 + half)
