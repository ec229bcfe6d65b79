"""What a candidate is predicted against: model, workload, machine and the set of constants."""

from __future__ import annotations

from dataclasses import dataclass, field

from cptune.domain.candidate import Candidate, DataParallelKind
from cptune.domain.documents import DocumentLoad, has_documents
from cptune.domain.stack import PipelineSplit, Stack, TensorInputs
from cptune.domain.workload import ModelShape, Workload
from cptune.predict.facts import Constants, GpuFacts, read_constants
from cptune.predict.shares import StageShare, stage_shares

#: Group sizes, ascending, and the seconds that each rank of such a group adds.
Hops = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The hardware as far as a prediction needs it.

    `island_size` GPUs reach each other over NVLink; `island_bytes_per_s` and
    `network_bytes_per_s` are one way and per GPU. `gather_hops` and `reduce_hops` are what the
    fabric's own collectives measured: how many seconds each rank adds to an all-gather (a ring) or
    to an all-reduce (which may go by trees) of so many ranks that leaves its island, as (ranks,
    seconds); slow fabrics have 30 to 70 us, good ones next to nothing.
    """

    gpu: GpuFacts
    world_size: int
    node_size: int
    island_size: int
    island_bytes_per_s: float
    network_bytes_per_s: float
    capacity_bytes: int = 0  # 0: not known
    memory_margin: float = 0.08
    gather_hops: Hops = ()
    reduce_hops: Hops = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything but the candidate.

    Without a `stack` the distributed optimizer (zero1) is taken for Megatron's and the rest for
    torch's own. `kernel` speaks for candidates that name none. `documents` is what the workload's
    lengths come to, where its mask uses them. `tp_inputs` and `check_s` are those of a StackSpec.
    """

    model: ModelShape
    workload: Workload
    machine: Machine
    stack: Stack | None = None
    kernel: str = "auto"
    pipeline: PipelineSplit = PipelineSplit.EVEN
    tp_inputs: TensorInputs | None = None
    check_s: float = 0.0
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

    def kernel_of(self, candidate: Candidate) -> str:
        """The kernel that the candidate names, else that of the stack."""
        return self.kernel if candidate.kernel == "auto" else candidate.kernel

    def shares(self, candidate: Candidate) -> tuple[StageShare, ...]:
        """Layers of each stage."""
        balanced = self.pipeline is PipelineSplit.BALANCED
        return stage_shares(self.model, candidate.layout, balanced=balanced)
