"""What a candidate is predicted against: model, workload, machine and the set of constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cptune.domain.candidate import Candidate, DataParallelKind
from cptune.domain.documents import DocumentLoad, has_documents
from cptune.domain.workload import ModelShape, Workload
from cptune.predict.facts import Constants, GpuFacts, read_constants
from cptune.predict.shares import StageShare, stage_shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The hardware as far as a prediction needs it.

    `island_size` GPUs reach each other over NVLink; `island_bytes_per_s` and
    `network_bytes_per_s` are one way and per GPU. `ring_hop_s` is what each rank of a ring
    adds to a collective that leaves its island, where somebody measured it: slow fabrics have 30
    to 50 us, good ones next to nothing.
    """

    gpu: GpuFacts
    world_size: int
    node_size: int
    island_size: int
    island_bytes_per_s: float
    network_bytes_per_s: float
    capacity_bytes: int = 0  # 0: not known
    memory_margin: float = 0.08
    ring_hop_s: float = 0.0


class Stack(StrEnum):
    """Who launches the kernels: it decides how many elementwise passes a layer takes."""

    FUSED = "fused"  # Megatron Core, Transformer Engine, XLA
    EAGER = "eager"  # torch modules one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything but the candidate.

    Without a `stack` the distributed optimizer (zero1) is taken for Megatron's and the rest for
    torch's own. `documents` is what the workload's lengths come to, where its mask uses them.
    """

    model: ModelShape
    workload: Workload
    machine: Machine
    stack: Stack | None = None
    constants: Constants = field(default_factory=read_constants)
    documents: DocumentLoad | None = None

    def __post_init__(self) -> None:
        if has_documents(self.workload) != (self.documents is not None):
            raise ValueError(
                f"lengths {self.workload.lengths!r} under mask {self.workload.mask} "
                f"{'lack' if self.documents is None else 'take no'} documents"
            )

    def stack_of(self, candidate: Candidate) -> Stack:
        """The stack given, else the one that the kind of data parallelism suggests."""
        if self.stack is not None:
            return self.stack
        zero1 = candidate.data_parallel is DataParallelKind.ZERO1
        return Stack.FUSED if zero1 else Stack.EAGER

    def shares(self, candidate: Candidate) -> tuple[StageShare, ...]:
        """Layers of each stage; a stack that is known to be torch's own balances them by cost."""
        balanced = self.stack is Stack.EAGER
        return stage_shares(self.model, candidate.layout, balanced=balanced)
