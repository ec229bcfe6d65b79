"""One local Ray with a gang of four for the whole run, and marked processes for each test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest
from sweep_process import SweepProcesses, sweep_processes, tiny_spec

from cptune.bench.job import RankJob
from cptune.cluster.connection import LOCAL
from cptune.cluster.gang import Gang
from cptune.cluster.inventory import cpu_devices
from cptune.cluster.ray_launcher import RayLauncher
from cptune.cluster.session import joined_cluster
from cptune.domain.candidate import Candidate
from cptune.domain.outcome import Failure, Measurement
from cptune.domain.placement import Device

RANKS = 4
AMPLE_BYTES = 64_000_000


class PlannedGang:
    """A gang that changes each rank's job on its way."""

    def __init__(self, gang: Gang, change: Callable[[RankJob], RankJob]) -> None:
        self._gang, self._change = gang, change
        self.ready, self.replace = gang.ready, gang.replace
        self.next_prefix, self.answer = gang.next_prefix, gang.answer

    def run(self, device: Device, job: RankJob) -> object:
        return self._gang.run(device, self._change(job))


@dataclass(frozen=True)
class Trials:
    """Runs candidates on the one gang of this test run."""

    gang: Gang
    devices: list[Device]

    def run(
        self,
        candidate: Candidate,
        *,
        capacity_bytes: int = AMPLE_BYTES,
        change: Callable[[RankJob], RankJob] = lambda job: job,
        **budget: float,
    ) -> Measurement | Failure:
        spec = tiny_spec(cluster={"world_size": RANKS}, workload={"global_batch_seqs": 4})
        spec = replace(spec, budget=replace(spec.budget, **budget))
        gang = PlannedGang(self.gang, change)
        launcher = RayLauncher(gang, devices=self.devices, spec=spec, capacity_bytes=capacity_bytes)
        return launcher.launch(candidate, launcher.place(candidate))


@pytest.fixture(scope="session")
def trials() -> Iterator[Trials]:
    """`trials.run(candidate)` on a local Ray of this process; warm between tests."""
    with sweep_processes() as processes, ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in processes.environment.items():
                patch.setenv(name, value)
            nodes, topology = stack.enter_context(joined_cluster(LOCAL, ranks=RANKS))
        devices = cpu_devices(topology, world_size=RANKS)
        gang = Gang(devices, nodes=nodes, threads=1)
        stack.callback(gang.close)
        gang.start()
        yield Trials(gang, devices)


@pytest.fixture
def processes() -> Iterator[SweepProcesses]:
    """Processes of this test; none may be left at its end."""
    with sweep_processes() as made:
        yield made
