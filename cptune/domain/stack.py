"""The software that a plan is for: it decides what elementwise work, copies and kernels cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cptune.domain.checks import require_range


class Stack(StrEnum):
    """Who launches the kernels: it decides how many elementwise passes a layer takes."""

    FUSED = "fused"  # Megatron Core, Transformer Engine, XLA
    EAGER = "eager"  # torch modules one by one: nanotron, torchtitan, llm-foundry, these trials


class PipelineSplit(StrEnum):
    """How layers are dealt to pipeline stages."""

    EVEN = "even"
    BALANCED = "balanced"  # the head counts as the layers that cost as much, as in nanotron


class TensorInputs(StrEnum):
    """What backward has of the inputs that tensor parallelism gathered in forward."""

    KEPT = "kept"  # whole on every rank
    GATHERED = "gathered"  # again, as in Megatron Core and nanotron's tp_recompute_allgather


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """The `[stack]` of a sweep.toml.

    `kind` None: fused under zero1, which is Megatron's, and eager under the rest; a sweep writes
    out what its trials are. `kernel` names the attention kernel whose measured rates are used,
    "auto" the usual one of the GPU. `tp_inputs` None: not known, so the memory band spans both.
    `check_s` is what each rank of a group adds to the time that a host takes to check a collective
    before it starts: 0 but where something checks them, as TORCH_DISTRIBUTED_DEBUG=DETAIL does.
    """

    kind: Stack | None = None
    kernel: str = "auto"
    pipeline: PipelineSplit = PipelineSplit.EVEN
    tp_inputs: TensorInputs | None = None
    check_s: float = 0.0

    def __post_init__(self) -> None:
        require_range(self, 0.0, 1.0, "check_s")
