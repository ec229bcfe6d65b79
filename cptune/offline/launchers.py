"""Launchers that need no hardware: the prediction answers, or a stored table does.

What they answer is no measurement: their trials carry the launcher's name, and their outcome is
`predicted` or `replayed`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import exp

from cptune.domain.candidate import Candidate
from cptune.domain.devices import DeviceKind
from cptune.domain.layout import Axis
from cptune.domain.outcome import Failure, Measurement, OutcomeKind
from cptune.domain.placement import Device, Placement, place
from cptune.offline.answers import failure_of, measurement_of
from cptune.offline.landscape import Foresight, Landscape, Result
from cptune.predict.case import Machine

PREDICTED = "predicted"  # the method of exposed communication that nobody saw
TABLE = "table"


def imagined_devices(machine: Machine, *, owner: str) -> list[Device]:
    """Devices in the place of those of a machine, named after who answers for them."""
    is_cpu = machine.gpu.generation == "cpu"
    return [
        Device(
            node=f"{owner}{rank // machine.node_size}",
            kind=(DeviceKind.CPU if is_cpu else DeviceKind.CUDA).value,
            index=rank % machine.node_size,
            memory_bytes=machine.capacity_bytes or None,
        )
        for rank in range(machine.world_size)
    ]


class RooflineLauncher:
    """Answers with the prediction, its step under seeded noise.

    Args:
        foresight: Predicts.
        devices: In placement order.
        noise: Standard deviation of log(step) between candidates.
        seed: Of the noise; a candidate is answered the same however often it is launched.
    """

    def __init__(
        self, foresight: Foresight, *, devices: Sequence[Device], noise: float, seed: int
    ) -> None:
        self._predictor, self._devices = foresight.predictor, tuple(devices)
        self._noise, self._seed = noise, seed

    def place(self, candidate: Candidate) -> Placement:
        """Rank r on device r."""
        return place(candidate.layout, self._devices)

    def launch(self, candidate: Candidate, placement: Placement) -> Measurement | Failure:
        """What is predicted: out of memory where the likely peak exceeds the device."""
        seen, case = self._predictor.predict(candidate), self._predictor.case
        noisy = exp(_draw(self._seed, candidate) * self._noise)
        time, capacity = seen.time, case.machine.capacity_bytes
        result = Result(
            kind=OutcomeKind.PREDICTED,
            step_s=time.step_s * noisy,
            peak_bytes=round(seen.memory.likely_bytes),
            exposed_s={
                Axis.TP.value: time.tp_exposed_s * noisy,
                Axis.CP.value: time.cp_exposed_s * noisy,
                Axis.DP.value: (time.dp_exposed_s + time.ep_exposed_s) * noisy,
                Axis.PP.value: time.pp_bubble_s * noisy,
            },
        )
        needed = round(seen.memory.likely_bytes + seen.memory.worst.reserve_bytes)
        if 0 < capacity < needed:
            short = Result(
                kind=OutcomeKind.OUT_OF_MEMORY,
                step_s=None,
                peak_bytes=needed,
                reason=f"predicted (model {seen.model_version}), nothing ran",
            )
            return failure_of(short, capacity_bytes=capacity)
        return measurement_of(
            result,
            step_s=time.step_s * noisy,
            tokens_per_step=case.workload.tokens_per_step,
            ranks=len(placement.ranks),
            spread=self._noise,
            method=PREDICTED,
        )


class ReplayLauncher:
    """Answers with a stored table, its steps under seeded noise.

    Args:
        landscape: What each candidate came to.
        devices: In placement order.
        noise: Standard deviation of log(step) between candidates.
        seed: Of the noise.
    """

    def __init__(
        self, landscape: Landscape, *, devices: Sequence[Device], noise: float, seed: int
    ) -> None:
        self._landscape, self._devices = landscape, tuple(devices)
        self._noise, self._seed = noise, seed

    def place(self, candidate: Candidate) -> Placement:
        """Rank r on device r."""
        return place(candidate.layout, self._devices)

    def launch(self, candidate: Candidate, placement: Placement) -> Measurement | Failure:
        """What the table says of the candidate, which must be in it."""
        case = self._landscape.foresight.case
        result = self._landscape.results[candidate.key]
        if result.step_s is None:
            reason = f"{result.kind.value} in the table, nothing ran: {result.reason}".rstrip(": ")
            return failure_of(
                replace(result, reason=reason), capacity_bytes=case.machine.capacity_bytes
            )
        return measurement_of(
            result,
            step_s=result.step_s * exp(_draw(self._seed, candidate) * self._noise),
            tokens_per_step=case.workload.tokens_per_step,
            ranks=len(placement.ranks),
            spread=self._noise,
            method=TABLE,
        )


def _draw(seed: int, candidate: Candidate) -> float:
    """A standard normal number that the seed and the candidate decide."""
    return random.Random(f"{seed} {candidate.key}").gauss(0.0, 1.0)
