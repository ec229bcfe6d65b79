"""The software that a plan is for: it decides what elementwise work, copies and kernels cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Stack(StrEnum):
    """Who launches the kernels: it decides how many elementwise passes a layer takes."""

    FUSED = "fused"  # Megatron Core, Transformer Engine, XLA
    EAGER = "eager"  # torch modules one by one: nanotron, torchtitan, llm-foundry, these trials


class PipelineSplit(StrEnum):
    """How layers are dealt to pipeline stages."""

    EVEN = "even"
    BALANCED = "balanced"  # the head counts as the layers that cost as much, as in nanotron


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """The `[stack]` of a sweep.toml.

    `kind` None: fused under zero1, which is Megatron's, and eager under the rest; a sweep writes
    out what its trials are. `kernel` names the attention kernel whose measured rates are used,
    "auto" the usual one of the GPU.
    """

    kind: Stack | None = None
    kernel: str = "auto"
    pipeline: PipelineSplit = PipelineSplit.EVEN
