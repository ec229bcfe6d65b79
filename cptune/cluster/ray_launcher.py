"""Trials on Ray: a job to every rank, one deadline, and the whole gang replaced after a failure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import ray

from cptune.bench.job import GRACE_S, RankJob, Rendezvous
from cptune.cluster.failures import most_telling
from cptune.cluster.gang import Gang
from cptune.domain.candidate import Candidate
from cptune.domain.devices import DeviceKind
from cptune.domain.outcome import Failure, Measurement, OutcomeKind, RankReport, measurement_from
from cptune.domain.placement import Device, Placement, RankPlace, place
from cptune.domain.study import SweepSpec, TraceKind
from cptune.errors import ClusterError

_TIMED_SHARE = 0.5  # of the trial deadline: no step is added after it
_COLLECTIVE_SHARE = 0.5  # of the trial deadline: a stuck collective must time out well before it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    place: RankPlace
    ref: ray.ObjectRef[RankReport | Failure]


class RayLauncher:
    """Runs candidates on a gang of warm actors.

    Args:
        gang: Started actors.
        devices: The devices in placement order.
        spec: The resolved spec.
        capacity_bytes: Budget of one rank.
        lengths: What the documents of a sequence are drawn from; empty without documents.
    """

    def __init__(
        self,
        gang: Gang,
        *,
        devices: Sequence[Device],
        spec: SweepSpec,
        capacity_bytes: int,
        lengths: Sequence[int] = (),
    ) -> None:
        self._gang, self._devices, self._spec = gang, tuple(devices), spec
        self._capacity_bytes, self._lengths = capacity_bytes, tuple(lengths)

    def on(self, spec: SweepSpec) -> RayLauncher:
        """Another launcher on the same gang, for another workload, model or budget."""
        return RayLauncher(
            self._gang,
            devices=self._devices,
            spec=spec,
            capacity_bytes=self._capacity_bytes,
            lengths=self._lengths,
        )

    def place(self, candidate: Candidate) -> Placement:
        """Rank r on device r: tp groups on neighbours, cp groups next."""
        return place(candidate.layout, self._devices)

    def launch(self, candidate: Candidate, placement: Placement) -> Measurement | Failure:
        """Run the candidate on every rank. After any failure the gang is replaced.

        Raises:
            ClusterError: when the actors do not come up.
        """
        host, port = self._gang.ready()
        rendezvous = Rendezvous(
            host=host,
            port=port,
            prefix=self._gang.next_prefix(),
            timeout_s=self._spec.budget.trial_s * _COLLECTIVE_SHARE,
        )
        answers = [
            _Answer(
                place=one,
                ref=self._gang.run(one.device, self._job(candidate, one, rendezvous)),
            )
            for one in placement.ranks
        ]
        reports, failures = self._collect(answers)
        if failures:
            self._gang.replace()
            _refuse_other_devices(failures)
            return most_telling(failures)
        ordered = tuple(sorted(reports, key=lambda report: report.rank))
        return measurement_from(
            ordered,
            tokens_per_step=self._spec.workload.tokens_per_step,
            ci_share=self._spec.budget.ci_share,
        )

    def _job(self, candidate: Candidate, one: RankPlace, rendezvous: Rendezvous) -> RankJob:
        spec = self._spec
        return RankJob(
            rank=one.rank,
            node=one.device.node,
            gpu_uuid=one.device.uuid,
            candidate=candidate,
            model=spec.model,
            workload=spec.workload,
            capacity_bytes=self._capacity_bytes,
            warmup_steps=spec.budget.warmup_steps,
            steps=spec.budget.steps,
            max_steps=spec.budget.max_steps,
            ci_share=spec.budget.ci_share,
            timed_s=min(spec.budget.timed_s, spec.budget.trial_s * _TIMED_SHARE),
            lengths=self._lengths,
            seed=spec.search.seed,
            rendezvous=rendezvous,
            trace=_trace(spec.budget.trace, one.device),
            device=one.device.kind,
        )

    def _collect(self, answers: Sequence[_Answer]) -> tuple[list[RankReport], list[Failure]]:
        waiting = {answer.ref: answer.place for answer in answers}
        reports: list[RankReport] = []
        failures: list[Failure] = []
        deadline = time.monotonic() + self._spec.budget.trial_s
        while waiting:
            left = max(0.0, deadline - time.monotonic())
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
            if not done:
                break
            at = waiting.pop(done[0])
            answer = self._gang.answer(done[0], at.device, rank=at.rank)
            if isinstance(answer, RankReport):
                reports.append(answer)
                continue
            failures.append(answer)
            if answer.kind is OutcomeKind.OUT_OF_MEMORY:
                break
            deadline = min(deadline, time.monotonic() + GRACE_S)
        if waiting and not _explain_silence(failures):
            failures = [self._late(waiting.values())]
        return reports, failures

    def _late(self, silent: Iterable[RankPlace]) -> Failure:
        places = sorted(silent, key=lambda one: one.rank)
        ranks = ", ".join(str(one.rank) for one in places)
        who = f"rank {ranks}" if len(places) == 1 else f"ranks {ranks}"
        return Failure(
            kind=OutcomeKind.TIMEOUT,
            message=f"{who} gave no answer within {self._spec.budget.trial_s:g} s",
            rank=places[0].rank,
            node=places[0].device.node,
        )


def _trace(asked: TraceKind, device: Device) -> TraceKind:
    """On a GPU a step is always traced: nothing else tells what its communication exposes."""
    return TraceKind.STEP if device.kind == DeviceKind.CUDA and asked is TraceKind.OFF else asked


def _refuse_other_devices(failures: Sequence[Failure]) -> None:
    """End the sweep when a rank was not on the device that it was placed on.

    Raises:
        ClusterError: with what the rank said.
    """
    for one in failures:
        if one.kind is OutcomeKind.NOT_APPLIED:
            raise ClusterError(f"rank {one.rank} on {one.node}: {one.message}")


def _explain_silence(failures: Sequence[Failure]) -> bool:
    """Whether what was answered says why others did not answer.

    Those who timed out, and those who lost them as their peers, were waiting for a silent rank.
    """
    kinds = {failure.kind for failure in failures}
    return bool(kinds) and (
        OutcomeKind.TIMEOUT not in kinds
        or not kinds <= {OutcomeKind.TIMEOUT, OutcomeKind.COMMUNICATION}
    )
