"""Exposed communication without a single interval: the same plan run without its transfers.

`exposed = step - step without the transfers of one axis`; and `communication`, the transfers of the
attention alone, as the plan posts them, with no kernel and no linear layer between. Weights are no
good afterwards: it is the last thing that a trial does.

Where ranks move different amounts, one also waits for a peer that is still receiving. Without
transfers that wait is gone, so it counts here, as it does in the union of intervals. A peer that is
late because it computes makes the other wait in both kinds of step. Only where transfers delayed
that compute does the wait go too: it counts here, and in the union for the delayed peer alone.
Compute that transfers slow down counts here and not there, and so does writing the whole steps
down; on more ranks than cores, compute beside which nobody waits is slower, which counts against
it.

Shapes: B batch, S rows of this rank, H query heads, K kv heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from statistics import median

import torch
import torch.distributed as dist

from cptune.bench.attention import MeasuredContextParallel
from cptune.bench.collectives import CutCollectives
from cptune.bench.device import CPU, RankDevice
from cptune.bench.memory import TensorBudget
from cptune.bench.mesh import Mesh
from cptune.bench.readings import Clock
from cptune.bench.sharding import ReplicaClock
from cptune.bench.step import Sample, TrainStep
from cptune.domain.candidate import Recompute
from cptune.domain.layout import Axis
from cptune.domain.timeline import ABLATION, Exposed

ROUNDS = 3  # of each kind of step, in turn: what drifts drifts for all of them
_WHOLE = "whole"

_Cut = Callable[[], AbstractContextManager[None]]


def ablate(
    step: TrainStep,
    samples: Sequence[Sample],
    *,
    whole: Callable[[], float],
    mesh: Mesh,
    cp: MeasuredContextParallel,
    memory: TensorBudget,
) -> tuple[Exposed, ...]:
    """A row for every axis with more than one rank. Collective over all ranks of the job.

    Args:
        step: What is run, whole and cut.
        samples: Of each step.
        whole: Runs one whole step on all ranks and returns its seconds on this one.
        mesh: This rank's groups.
        cp: Its attention.
        memory: The budget that sees its collectives.
    """
    tensors = CutCollectives()
    cuts = _cuts(mesh, cp=cp, replicas=step.clock, tensors=(memory, tensors))
    seconds: dict[str, list[float]] = {name: [] for name in (_WHOLE, *cuts)}
    for _ in range(ROUNDS):
        for name, taken in seconds.items():
            cp.calls.count = 0
            if name == _WHOLE:
                taken.append(whole())
                continue
            with cuts[name]():
                taken.append(_timed(lambda: step.run(samples), step.device.clock))
    if tensors.kept:
        seconds[Axis.TP.value].clear()
    forwards = 2 if step.candidate.recompute is Recompute.FULL else 1
    alone_s = None
    if mesh.layout.cp > 1:
        alone_s = transfers_alone(cp, forwards=forwards, device=step.device)
    return tuple(
        Exposed(
            axis=axis.value,
            layer=None,
            whole=True,
            method=ABLATION,
            communication_s=alone_s if axis is Axis.CP else None,
            exposed_s=difference_s(seconds[_WHOLE], seconds.get(axis.value, [])),
        )
        for axis in Axis
        if _size(mesh, axis) > 1
    )


def difference_s(whole: Sequence[float], cut: Sequence[float]) -> float | None:
    """How much longer the whole step takes; None where the two cannot be told apart.

    They can be when every whole step took longer than every one that was cut.
    """
    if not cut or min(whole) <= max(cut):
        return None
    return median(whole) - median(cut)


def transfers_alone(
    cp: MeasuredContextParallel, *, forwards: int, device: RankDevice = CPU
) -> float:
    """Seconds of the attention's exchanges of a step when nothing is computed beside them.

    Args:
        cp: Has just run a step, whose calls it counted.
        forwards: Of each backward; 2 where it is computed again.
        device: Of the rank.
    """
    count = cp.calls.count // forwards

    def run() -> None:
        for _ in range(count):
            exchange(cp, forwards=forwards, device=device)

    with cp.without_compute():
        return median(_timed(run, device.clock) for _ in range(ROUNDS))


def exchange(cp: MeasuredContextParallel, *, forwards: int = 1, device: RankDevice = CPU) -> None:
    """One forward and backward of attention on zeros shaped as its last inputs."""
    calls = cp.calls
    q, k, v = (
        torch.zeros(one, dtype=calls.dtype, device=device.torch, requires_grad=True)
        for one in calls.shapes
    )
    for _ in range(forwards - 1):
        with torch.no_grad():
            cp.attend(q, k, v)
    out_BSHD = cp.attend(q, k, v)
    torch.autograd.grad(out_BSHD, (q, k, v), torch.zeros_like(out_BSHD))


def _timed(run: Callable[[], object], clock: Clock) -> float:
    dist.barrier()
    start = clock.restart()
    run()
    return clock.settle() - start


def _size(mesh: Mesh, axis: Axis) -> int:
    """Ranks of an axis; the replicas of dp are those of cp too."""
    layout = mesh.layout
    return layout.dp * layout.cp if axis is Axis.DP else int(getattr(layout, axis.value))


def _cuts(
    mesh: Mesh,
    *,
    cp: MeasuredContextParallel,
    replicas: ReplicaClock,
    tensors: tuple[TensorBudget, CutCollectives],
) -> dict[str, _Cut]:
    """How the transfers of an axis are left out. A pipeline's cannot be: its stages need them."""
    cuts: dict[str, _Cut] = {}
    if mesh.layout.cp > 1:
        cuts[Axis.CP.value] = cp.without_transfer
    if _size(mesh, Axis.DP) > 1:
        cuts[Axis.DP.value] = lambda: _without_replicas(replicas)
    if mesh.layout.tp > 1:
        cuts[Axis.TP.value] = lambda: _without_tensors(*tensors)
    return cuts


@contextmanager
def _without_replicas(clock: ReplicaClock) -> Generator[None]:
    clock.moves = False
    try:
        yield
    finally:
        clock.moves = True


@contextmanager
def _without_tensors(memory: TensorBudget, cut: CutCollectives) -> Generator[None]:
    memory.collectives = cut
    try:
        yield
    finally:
        memory.collectives = None
