"""Peak memory of the worst rank as a band: states, activations, logits, buffers, reserve.

States are those of ZeRO (arXiv:1910.02054), sharded over data- and context-parallel ranks
together, since context ranks hold the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cptune.domain.candidate import Candidate, DataParallelKind
from cptune.domain.layout import ParallelLayout
from cptune.domain.stack import Stack, TensorInputs
from cptune.domain.workload import Precision
from cptune.predict.activations import (
    EAGER,
    FUSED,
    HEAVY,
    LEAN,
    Footprint,
    activation_bytes,
    exchange_bytes,
    logits_bytes,
)
from cptune.predict.case import Case
from cptune.predict.shares import (
    StageShare,
    expert_parameters,
    layer_parameters,
    stage_parameters,
)

_CONTEXT_BYTES = 600 << 20  # CUDA context and library workspaces of one process on a H100
_COMMUNICATOR_BYTES = 200 << 20  # NCCL channels of one process group over NVLink
_WORKSPACE_BYTES = 512 << 20  # inside the allocator: of products and of collectives in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What one rank of a stage holds at its peak. `reserve_bytes` is outside the allocator."""

    stage: int
    rank: int
    states_bytes: float
    activation_bytes: float
    logits_bytes: float
    comm_bytes: float
    workspace_bytes: float
    reserve_bytes: float

    @property
    def allocated_bytes(self) -> float:
        """What the allocator holds."""
        moved = self.comm_bytes + self.workspace_bytes
        return self.states_bytes + self.activation_bytes + self.logits_bytes + moved


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBand:
    """The worst rank's peak: lowest, likely and highest."""

    worst: StageMemory
    low_bytes: float
    likely_bytes: float
    high_bytes: float

    def fits(self, capacity_bytes: int, margin: float) -> str:
        """`no` only when even the lowest is too much, `yes` only when the highest keeps the margin.

        What lies between is `unknown` and gets tried; so does everything on an unknown capacity.
        """
        if capacity_bytes <= 0:
            return "unknown"
        if self.low_bytes > capacity_bytes:
            return "no"
        return "yes" if self.high_bytes <= capacity_bytes * (1 - margin) else "unknown"


def state_bytes(
    parameters: float,
    candidate: Candidate,
    case: Case,
    footprint: Footprint = FUSED,
    *,
    ranks: int | None = None,
) -> float:
    """Weights, gradients and optimizer states of one rank.

    bf16 holds 2 bytes of weight, 4 of gradient and 12 of master weight and moments; the
    distributed optimizer (zero1) leaves 6 + 12/(dp*cp). `ranks` share the parameters, dp*cp
    unless said otherwise.
    """
    weight, gradient, optimizer = 2.0, footprint.grad_bytes, 12.0
    if case.workload.precision is Precision.FP32:
        weight, gradient, optimizer = 4.0, 4.0, 8.0
    if case.workload.precision is Precision.FP8:
        weight = 3.0  # a bf16 weight and the 8-bit copy that products read
    lay, kind = candidate.layout, candidate.data_parallel
    ranks = lay.dp * lay.cp if ranks is None else ranks
    if kind is DataParallelKind.DDP:
        return parameters * (weight + gradient + optimizer)
    if kind is DataParallelKind.ZERO1:
        return parameters * (weight + gradient + optimizer / ranks)
    if kind is DataParallelKind.ZERO2:
        return parameters * (weight + (gradient + optimizer) / ranks)
    gathered = 2 * weight * layer_parameters(case.model, lay.tp) if ranks > 1 else 0.0
    return parameters * (weight + gradient + optimizer) / ranks + gathered


def reserve_bytes(layout: ParallelLayout) -> float:
    """CUDA context and communicators: outside the allocator, inside the card."""
    groups = sum(size > 1 for size in (layout.tp, layout.cp, layout.pp, layout.dp * layout.cp))
    return _CONTEXT_BYTES + groups * _COMMUNICATOR_BYTES


def stage_memory(
    case: Case, candidate: Candidate, share: StageShare, footprint: Footprint
) -> StageMemory:
    """What a rank of this stage holds at its peak, but for exchange buffers."""
    lay = candidate.layout
    parameters = stage_parameters(case.model, lay, share)
    on_gpu = case.machine.gpu.generation != "cpu"
    return StageMemory(
        stage=share.index,
        rank=share.index * lay.tp * lay.cp * lay.dp,
        states_bytes=state_bytes(parameters, candidate, case, footprint)
        + _expert_states(case, candidate, share, footprint),
        activation_bytes=activation_bytes(case, candidate, share, footprint),
        logits_bytes=logits_bytes(case, candidate, share, footprint),
        comm_bytes=0.0,
        workspace_bytes=_WORKSPACE_BYTES if on_gpu else 0.0,
        reserve_bytes=reserve_bytes(lay) if on_gpu else 0.0,
    )


def _expert_states(
    case: Case, candidate: Candidate, share: StageShare, footprint: Footprint
) -> float:
    """States of a rank's experts: only dp*cp/ep ranks hold the same ones."""
    if not case.model.experts:
        return 0.0
    lay = candidate.layout
    parameters = share.layers * expert_parameters(case.model, lay)
    ranks = max(1, lay.dp * lay.cp // lay.ep)
    return state_bytes(parameters, candidate, case, footprint, ranks=ranks)


class MemoryModel:
    """Memory of the candidates of one case; remembers what those of one layout share."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._held: dict[tuple[object, ...], StageMemory] = {}

    def worst(self, candidate: Candidate, footprint: Footprint) -> StageMemory:
        """The stage with the highest peak, exchange buffers apart: those are every stage's."""
        lay = candidate.layout
        sizes = (lay.tp, lay.cp, lay.pp, lay.vpp, lay.dp, lay.ep, candidate.micro_batch)
        kinds = (candidate.recompute, candidate.loss, candidate.data_parallel)
        key = (footprint, *sizes, *kinds)
        if key not in self._held:
            shares = self._case.shares(candidate)
            stages = (stage_memory(self._case, candidate, one, footprint) for one in shares)
            self._held[key] = max(stages, key=lambda stage: stage.allocated_bytes)
        return self._held[key]

    def lowest_bytes(self, candidate: Candidate) -> float:
        """The least that the worst rank gets by with: what prunes, so it must not be too high."""
        low, _ = self._case.constants.memory_band
        moved = exchange_bytes(self._case, candidate)
        return low * (self.worst(candidate, self._with_inputs(LEAN)).allocated_bytes + moved)

    def band(self, candidate: Candidate) -> MemoryBand:
        """The band of the rank with the highest peak.

        The highest is that of torch's own modules that keep what they gathered, unless the stack
        is known to gather it again, with an allocator that cannot use a part of what it holds, and
        what lies outside the allocator.
        """
        moved = exchange_bytes(self._case, candidate)
        own = self._case.stack_of(candidate) is Stack.EAGER
        likely = self._with_inputs(EAGER if own else FUSED)
        worst = replace(self.worst(candidate, likely), comm_bytes=moved)
        heavy = self.worst(candidate, self._with_inputs(HEAVY))
        _, high = self._case.constants.memory_band
        return MemoryBand(
            worst=worst,
            low_bytes=self.lowest_bytes(candidate),
            likely_bytes=worst.allocated_bytes,
            high_bytes=high * (heavy.allocated_bytes + moved) + heavy.reserve_bytes,
        )

    def _with_inputs(self, footprint: Footprint) -> Footprint:
        """The footprint with what the stack is known to do with gathered inputs."""
        inputs = self._case.tp_inputs
        if inputs is None:
            return footprint
        return replace(footprint, gathered=HEAVY.gathered if inputs is TensorInputs.KEPT else 0.0)
