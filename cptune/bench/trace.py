"""One step after the timed ones, every transfer and every compute window of it written down.

The timed steps are not disturbed: nothing is recorded in them, and nothing of this step counts in
their figures, in the traffic or in the memory peaks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import torch.distributed as dist

from cptune.bench.ablation import ablate
from cptune.bench.attention import MeasuredContextParallel
from cptune.bench.clocks import ClockOffset, compare_clocks
from cptune.bench.collectives import TensorCollectives
from cptune.bench.layers import layers_told
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import Mesh
from cptune.bench.recorder import Mark, Recorder, Transfer
from cptune.bench.step import Sample, TrainStep
from cptune.bench.timeline import Interval, exposure, intersection, seconds, union
from cptune.domain.layout import Axis
from cptune.domain.study import TraceKind
from cptune.domain.timeline import (
    INTERVAL_UNION,
    WORLD,
    Exposed,
    RankTrace,
    Span,
    SpanKind,
)

_Key = tuple[str, int]


def trace_step(
    step: TrainStep,
    samples: Sequence[Sample],
    *,
    mesh: Mesh,
    cp: MeasuredContextParallel,
    memory: TensorBudget,
) -> RankTrace:
    """Run one step and return its timeline. Collective over all ranks of the job.

    Raises:
        RuntimeError: when a transfer was posted and never seen to end.
    """
    recorder = Recorder(_axes(mesh))
    clock = compare_clocks()
    with recording(recorder, step=step, cp=cp, memory=memory):
        dist.barrier()
        start_s = perf_counter()
        step.run(samples)
        stop_s = perf_counter()
    recorder.close()
    # The barrier lets the ranks go within its own latency; the step begins for all with the last.
    begun: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(begun, start_s - clock.offset_s)
    ready = _ready(recorder.transfers, clock)
    window = (start_s, stop_s)
    zero_s = min(begun) + clock.offset_s
    return rank_trace(recorder, window=window, ready=ready, clock=clock, zero_s=zero_s)


def trace_trial(
    kind: TraceKind,
    step: TrainStep,
    samples: Sequence[Sample],
    *,
    mesh: Mesh,
    cp: MeasuredContextParallel,
    memory: TensorBudget,
) -> RankTrace | None:
    """What a trial asks for after its timed steps; None for nothing. Collective over all ranks."""
    if kind is TraceKind.OFF:
        return None
    with memory.uncounted():
        trace = trace_step(step, samples, mesh=mesh, cp=cp, memory=memory)
        if kind is TraceKind.STEP:
            return trace
        ablated = ablate(step, samples, mesh=mesh, cp=cp, memory=memory)
    return replace(trace, exposed=(*trace.exposed, *ablated))


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


def _ready(transfers: Iterable[Transfer], clock: ClockOffset) -> dict[_Key, float]:
    """When the last partner of each transfer was ready for it, on this rank's clock.

    Partners name a transfer alike: the index-th of its channel. Collective over all ranks.
    """
    own = {(one.channel, one.index): one.posted_s - clock.offset_s for one in transfers}
    everyone: list[dict[_Key, float]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    last: dict[_Key, float] = defaultdict(lambda: float("-inf"))
    for posted in everyone:
        for key, at_s in posted.items():
            last[key] = max(last[key], at_s)
    return {key: last[key] + clock.offset_s for key in own}


def rank_trace(
    recorder: Recorder,
    *,
    window: Interval,
    ready: Mapping[_Key, float],
    clock: ClockOffset,
    zero_s: float,
) -> RankTrace:
    """The intervals of a recorded step and what they expose.

    Args:
        recorder: Closed.
        window: Start and stop of the step, on this rank's clock.
        ready: When the last partner of each transfer was ready, on this rank's clock.
        clock: Of this rank.
        zero_s: The start of the step of the first rank, on this rank's clock.
    """
    compute = _complement(window, union(interval for _, interval in recorder.blocked))
    moving = [(one, _moving(one, ready)) for one in recorder.transfers]
    spans = [*_compute_spans(compute, recorder.marks, zero_s), *_spans(moving, zero_s)]
    return RankTrace(
        step_s=window[1] - window[0],
        clock_offset_s=clock.offset_s,
        clock_error_s=clock.error_s,
        exposed=tuple(_exposed(recorder, moving, compute)),
        spans=tuple(sorted(spans, key=lambda span: (span.start_s, span.stop_s))),
    )


def _moving(transfer: Transfer, ready: Mapping[_Key, float]) -> Interval:
    """From when all partners were ready to when it was done."""
    assert transfer.stop_s is not None, "a closed recorder has no open transfer"
    start_s = max(transfer.posted_s, ready.get((transfer.channel, transfer.index), 0.0))
    return min(start_s, transfer.stop_s), transfer.stop_s


def _complement(window: Interval, blocked: Sequence[Interval]) -> list[Interval]:
    start, stop = window
    edges = [start, *(edge for interval in blocked for edge in interval), stop]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


def _exposed(
    recorder: Recorder, moving: Sequence[tuple[Transfer, Interval]], compute: Sequence[Interval]
) -> Generator[Exposed]:
    """A row for every axis, and below it one for each of its layers."""
    for axis in (*(one.value for one in Axis), WORLD):
        of_axis = [(one, interval) for one, interval in moving if one.axis == axis]
        blocked = [interval for name, interval in recorder.blocked if name == axis]
        yield _row(axis, of_axis, compute, blocked_s=seconds(blocked))
        layers = {one.layer for one, _ in of_axis}
        for layer in sorted(layers, key=lambda number: (number is None, number or 0)):
            of_layer = [(one, interval) for one, interval in of_axis if one.layer == layer]
            yield _row(axis, of_layer, compute, layer=layer, whole=False)


def _row(
    axis: str,
    moving: Sequence[tuple[Transfer, Interval]],
    compute: Sequence[Interval],
    *,
    blocked_s: float | None = None,
    layer: int | None = None,
    whole: bool = True,
) -> Exposed:
    seen = exposure(compute=compute, communication=(interval for _, interval in moving))
    return Exposed(
        axis=axis,
        layer=layer,
        whole=whole,
        method=INTERVAL_UNION,
        communication_s=seen.communication_s,
        exposed_s=seen.exposed_s,
        blocked_s=blocked_s,
        bytes=sum(one.bytes for one, _ in moving),
    )


def _spans(moving: Iterable[tuple[Transfer, Interval]], zero_s: float) -> Generator[Span]:
    for one, (start, stop) in moving:
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
