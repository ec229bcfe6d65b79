"""One step beside the timed ones, every transfer and every compute window of it written down.

The timed steps are not disturbed: nothing is recorded in them, and nothing of this step counts in
their figures, in the traffic or in the memory peaks. It is the last of warm-up, which by its rule
is as fast as they are, and so costs a trial no step of its own; with ablation one after them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import torch
import torch.distributed as dist

from cptune.bench.ablation import ablate
from cptune.bench.attention import MeasuredContextParallel
from cptune.bench.clocks import ClockOffset, compare_clocks
from cptune.bench.collectives import TensorCollectives
from cptune.bench.layers import layers_told
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import Mesh
from cptune.bench.partners import Key, Ready, exchange_ready, exchange_waits, moving
from cptune.bench.recorder import Mark, Recorder, Transfer
from cptune.bench.step import Sample, StepResult, TrainStep
from cptune.bench.timeline import Interval, exposure, intersection, seconds, union
from cptune.bench.waits import Causes
from cptune.domain.layout import Axis
from cptune.domain.timeline import (
    WORLD,
    Exposed,
    RankTrace,
    Span,
    SpanKind,
)


def trace_step(
    step: TrainStep,
    samples: Sequence[Sample],
    *,
    mesh: Mesh,
    cp: MeasuredContextParallel,
    memory: TensorBudget,
) -> tuple[StepResult, RankTrace]:
    """Run one step and return its timeline too. Collective over all ranks of the job.

    Raises:
        RuntimeError: when a transfer was posted and never seen to end.
    """
    recorder = Recorder(_axes(mesh), clock=step.device.clock)
    clock = compare_clocks()
    with recording(recorder, step=step, cp=cp, memory=memory):
        dist.barrier()
        result = step.run(samples)
    start_s, stop_s = result.start_s, result.start_s + result.seconds
    recorder.close()
    # The barrier lets the ranks go within its own latency; the step begins for all with the last.
    begun: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(begun, start_s - clock.offset_s)
    ready = exchange_ready(recorder.transfers, clock)
    return result, rank_trace(
        recorder,
        window=(start_s, stop_s),
        ready=ready,
        waits=exchange_waits(recorder, ready, clock),
        clock=clock,
        zero_s=min(begun) + clock.offset_s,
    )


def trace_ablated(
    step: TrainStep,
    samples: Sequence[Sample],
    *,
    mesh: Mesh,
    cp: MeasuredContextParallel,
    memory: TensorBudget,
) -> RankTrace:
    """A timeline and the ablation, of the same steps. Collective over all ranks.

    The timeline is that of the median of the whole steps: what a link gives differs from step to
    step, so the two methods must not speak of different ones.
    """
    traces: list[RankTrace] = []

    def traced() -> float:
        traces.append(trace_step(step, samples, mesh=mesh, cp=cp, memory=memory)[1])
        return traces[-1].step_s

    with memory.uncounted():
        ablated = ablate(step, samples, whole=traced, mesh=mesh, cp=cp, memory=memory)
        trace = traces[_median_step([one.step_s for one in traces])]
    return replace(trace, exposed=(*trace.exposed, *ablated))


def _median_step(own_s: Sequence[float]) -> int:
    """Which of some steps is the median of the slowest ranks. Collective over all ranks."""
    slowest = torch.tensor(own_s, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return int(slowest.argsort()[len(own_s) // 2])


@contextmanager
def recording(
    recorder: Recorder, *, step: TrainStep, cp: MeasuredContextParallel, memory: TensorBudget
) -> Generator[None]:
    """Let everything that moves data tell the recorder, for the time of one step."""
    tellers = (cp, step.clock, step.runner)
    memory.collectives = TensorCollectives(recorder)
    for teller in tellers:
        teller.recorder = recorder
    try:
        with layers_told(step.chunks, recorder):
            yield
    finally:
        memory.collectives = None
        for teller in tellers:
            teller.recorder = None


def _axes(mesh: Mesh) -> dict[str, str]:
    """The axis of each process group that a collective may run on; messages name their own."""
    axes: dict[str, str] = {mesh.replicas.group_name: Axis.DP.value}
    if mesh.tp is not None:
        axes[mesh.tp.get_group().group_name] = Axis.TP.value
    return axes


def rank_trace(
    recorder: Recorder,
    *,
    window: Interval,
    ready: Mapping[Key, Ready],
    waits: Causes,
    clock: ClockOffset,
    zero_s: float,
) -> RankTrace:
    """The intervals of a recorded step and what they expose.

    Args:
        recorder: Closed.
        window: Start and stop of the step, on this rank's clock.
        ready: The last partner of each transfer, on this rank's clock.
        waits: For late peers, as far as they are communication, on this rank's clock.
        clock: Of this rank.
        zero_s: The start of the step of the first rank, on this rank's clock.
    """
    compute = _complement(window, union(interval for _, interval in recorder.blocked))
    moved = [(one, moving(one, ready)) for one in recorder.transfers]
    spans = [
        *_compute_spans(compute, recorder.marks, zero_s),
        *_spans(moved, zero_s),
        *_wait_spans(waits, zero_s),
    ]
    return RankTrace(
        step_s=window[1] - window[0],
        clock_offset_s=clock.offset_s,
        clock_error_s=clock.error_s,
        exposed=tuple(_exposed(recorder, moved, waits=waits, compute=compute)),
        spans=tuple(sorted(spans, key=lambda span: (span.start_s, span.stop_s))),
    )


def _complement(window: Interval, blocked: Sequence[Interval]) -> list[Interval]:
    start, stop = window
    edges = [start, *(edge for interval in blocked for edge in interval), stop]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


def _exposed(
    recorder: Recorder,
    moved: Sequence[tuple[Transfer, Interval]],
    *,
    waits: Causes,
    compute: Sequence[Interval],
) -> Generator[Exposed]:
    """A row for every axis, and below it one for each of its layers."""
    under_way = [interval for _, interval in moved]
    under_way += [interval for found in waits.values() for interval in found]
    for axis in (*(one.value for one in Axis), WORLD):
        of_axis = [(one, interval) for one, interval in moved if one.axis == axis]
        waited = {layer: found for (name, layer), found in waits.items() if name == axis}
        blocked = [interval for one, interval in recorder.blocked if one.axis == axis]
        handed_on = [interval for found in waited.values() for interval in found]
        method = recorder.method
        whole = _row(axis, of_axis, waited=handed_on, compute=compute, method=method)
        late_s = seconds(blocked) - seconds(intersection(blocked, under_way))
        yield replace(whole, whole=True, blocked_s=seconds(blocked), late_s=late_s)
        layers = waited.keys() | {one.layer for one, _ in of_axis}
        for layer in sorted(layers, key=lambda number: (number is None, number or 0)):
            of_layer = [(one, interval) for one, interval in of_axis if one.layer == layer]
            own = waited.get(layer, ())
            row = _row(axis, of_layer, waited=own, compute=compute, method=method)
            yield replace(row, layer=layer)


def _row(
    axis: str,
    moved: Sequence[tuple[Transfer, Interval]],
    *,
    waited: Sequence[Interval],
    compute: Sequence[Interval],
    method: str,
) -> Exposed:
    under_way = [*(interval for _, interval in moved), *waited]
    seen = exposure(compute=compute, communication=under_way)
    return Exposed(
        axis=axis,
        layer=None,
        whole=False,
        method=method,
        communication_s=seen.communication_s,
        exposed_s=seen.exposed_s,
        bytes=sum(one.bytes for one, _ in moved),
    )


def _spans(moved: Iterable[tuple[Transfer, Interval]], zero_s: float) -> Generator[Span]:
    for one, (start, stop) in moved:
        yield Span(
            kind=SpanKind.COMMUNICATION,
            name=one.name,
            start_s=start - zero_s,
            stop_s=stop - zero_s,
            axis=one.axis,
            posted_s=one.posted_s - zero_s,
            layer=one.layer,
            bytes=one.bytes,
            peer=one.peer,
            stamp=one.stamp,
        )


def _wait_spans(waits: Causes, zero_s: float) -> Generator[Span]:
    for (axis, layer), intervals in waits.items():
        for start, stop in intervals:
            yield Span(
                kind=SpanKind.WAIT,
                name="late peer waits",
                start_s=start - zero_s,
                stop_s=stop - zero_s,
                axis=axis,
                layer=layer,
            )


def _compute_spans(
    compute: Sequence[Interval], marks: Sequence[Mark], zero_s: float
) -> Generator[Span]:
    """Compute windows, cut where the rank went on to another layer."""
    whole = Mark(float("-inf"), "beside the layers", None)
    ends = [*(mark.at_s for mark in marks), float("inf")]
    for mark, (start, stop) in zip([whole, *marks], pairwise([whole.at_s, *ends]), strict=True):
        for a, b in intersection(compute, [(start, stop)]):
            yield Span(
                kind=SpanKind.COMPUTE,
                name=mark.name,
                start_s=a - zero_s,
                stop_s=b - zero_s,
                layer=mark.layer,
            )
