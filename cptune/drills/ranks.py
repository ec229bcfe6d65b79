"""The ranks that failures are provoked on, and what they train."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from cptune.bench.calls import RunOnRanks
from cptune.domain.candidate import Candidate
from cptune.domain.outcome import Failure, Measurement
from cptune.domain.probe import EdgeReading, ProbeAsk, ProbePlan
from cptune.domain.study import Budget, ClusterSpec, SweepSpec
from cptune.domain.workload import ModelShape, Precision, Workload
from cptune.drills.faults import Fault, lift, plant
from cptune.seams import Launcher

RANKS = 4
#: Deep enough that what its layers keep for backward is most of its memory.
SPEC = SweepSpec(
    name="drill",
    model=ModelShape(layers=4, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=128, vocab=64),
    workload=Workload(seq_len=512, global_batch_seqs=4, precision=Precision.FP32),
    cluster=ClusterSpec(gpu="cpu", world_size=RANKS),
    budget=Budget(warmup_steps=2, steps=2, max_steps=2, finalist_rounds=0, trial_s=60.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Four processes.

    Args:
        run: Runs a function on each of them.
        launcher_of: Runs trials of a spec on them, each rank with so many bytes.
        probe: Measures the edges of a plan on them, rank by rank in the place of its devices.
    """

    run: RunOnRanks
    launcher_of: Callable[[SweepSpec, int], Launcher]
    probe: Callable[[ProbePlan, ProbeAsk], tuple[EdgeReading, ...]]

    def launch(
        self, candidate: Candidate, *, capacity_bytes: int, spec: SweepSpec = SPEC
    ) -> Measurement | Failure:
        """One trial of a spec, as a sweep runs it."""
        launcher = self.launcher_of(spec, capacity_bytes)
        return launcher.launch(candidate, launcher.place(candidate))

    @contextmanager
    def planted(self, fault: Fault) -> Generator[None]:
        """Every rank has the fault inside.

        An exception leaves it there: it ends the drills, and the ranks with them.
        """
        self.run(plant, fault, ranks=RANKS)
        yield
        self.run(lift, None, ranks=RANKS)
