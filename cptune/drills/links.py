"""Exposed communication: a large CP that waits for its links, and links that are only busy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from cptune.domain.candidate import Candidate
from cptune.domain.layout import Axis, ParallelLayout
from cptune.domain.outcome import Failure, Measurement
from cptune.domain.timeline import RankTrace, Stamp
from cptune.drills.faults import slow_wires
from cptune.drills.finding import Figure, Finding
from cptune.drills.ranks import SPEC, Ranks
from cptune.drills.reports import measured
from cptune.drills.searching import search

#: The largest CP of four ranks.
_LARGEST = Candidate(layout=ParallelLayout(cp=4), stages=3)
_CAPACITY_BYTES = 64_000_000
#: Little to compute, so that a step over slow wires takes a second and hides next to nothing.
_SPEC = replace(
    SPEC,
    model=replace(SPEC.model, layers=2),
    workload=replace(SPEC.workload, global_batch_seqs=1),
    budget=replace(SPEC.budget, steps=1, max_steps=1),
)
_SLOW_BYTES_PER_S = 4e5
#: Four ranks on few cores wait for each other a good deal; for slow wires, nearly all the time.
_BUDGET_SHARE = 0.6
_STEP_S = 1.0
_TRANSFERS = 19  # of 50 ms each, one after the other
_TRANSFER_S = 0.05
_STILL_SHARE = 0.8  # of each transfer, in which the rank does nothing but wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The largest CP over the wires as they are, and over slow ones."""

    honest: Measurement | Failure
    slow: Measurement | Failure


def provoke(ranks: Ranks) -> Trials:
    """Run both trials."""
    honest = ranks.launch(_LARGEST, capacity_bytes=_CAPACITY_BYTES, spec=_SPEC)
    with ranks.planted(partial(slow_wires, bytes_per_s=_SLOW_BYTES_PER_S)):
        slow = ranks.launch(_LARGEST, capacity_bytes=_CAPACITY_BYTES, spec=_SPEC)
    return Trials(honest=honest, slow=slow)


def judge_largest(seen: Trials) -> Finding:
    """The choice must refuse it although it fits, and name the axis that binds."""
    slow, honest = (
        search([(_LARGEST, one)], capacity_bytes=_CAPACITY_BYTES, exposed_comm_share=_BUDGET_SHARE)
        for one in (seen.slow, seen.honest)
    )
    said = slow.reason(_LARGEST)
    fits = isinstance(seen.slow, Measurement) and seen.slow.peak_allocated_bytes <= _CAPACITY_BYTES
    return Finding(
        refused=slow.chosen is None and said.startswith("exposed: ") and "over cp" in said,
        said=said,
        controls={
            "with the fault it fits": fits,
            "without the fault it is chosen": honest.chosen == _LARGEST,
        },
        figures={
            "capacity_bytes": _CAPACITY_BYTES,
            **_figures("slow", seen.slow),
            **_figures("honest", seen.honest),
        },
    )


def _figures(name: str, seen: Measurement | Failure) -> dict[str, Figure]:
    if isinstance(seen, Failure):
        return {f"{name}_outcome": seen.kind.value}
    return {
        f"{name}_peak_bytes": seen.peak_allocated_bytes,
        f"{name}_step_s": seen.traced_step_s or seen.step_s,
        f"{name}_exposed_share": seen.exposed_share,
    }


def judge_busy(_: object) -> Finding:
    """Of two steps with links as busy, the one that hides nothing must be refused."""
    still, hidden = _trace(still_share=_STILL_SHARE), _trace(still_share=0.0)
    found = {
        name: search(
            [(_LARGEST, measured(_LARGEST, step_s=_STEP_S, trace=trace))],
            exposed_comm_share=_BUDGET_SHARE,
        )
        for name, trace in (("still", still), ("hidden", hidden))
    }
    return Finding(
        refused=found["still"].chosen is None,
        said=found["still"].reason(_LARGEST),
        controls={
            "the links of both are as busy": _busy_share(still) == _busy_share(hidden),
            "hidden by compute, the same transfers pass": found["hidden"].chosen == _LARGEST,
        },
        figures={
            "busy_share": _busy_share(still),
            "exposed_share": _exposed_share(still),
            "exposed_share_hidden": _exposed_share(hidden),
        },
    )


def _trace(*, still_share: float) -> RankTrace:
    """A step whose transfers follow each other without a pause."""
    from cptune.bench.clocks import ClockOffset
    from cptune.bench.recorder import Recorder, Transfer
    from cptune.bench.trace import rank_trace

    recorder = Recorder({})
    for index in range(_TRANSFERS):
        start_s = index * _TRANSFER_S
        transfer = Transfer(
            axis=Axis.CP.value,
            name="keys and values",
            layer=0,
            bytes=1 << 20,
            channel="keys and values 1>0",
            index=index,
            posted_s=start_s,
        )
        transfer.end(start_s + _TRANSFER_S, Stamp.COMPLETED)
        recorder.transfers.append(transfer)
        still_from_s = start_s + _TRANSFER_S * (1 - still_share)
        if still_share:
            recorder.blocked.append((transfer, (still_from_s, start_s + _TRANSFER_S)))
    recorder.close()
    return rank_trace(
        recorder, window=(0.0, _STEP_S), ready={}, waits={}, clock=ClockOffset(0.0, 0.0), zero_s=0.0
    )


def _busy_share(trace: RankTrace) -> float:
    """What a counter of the link would say: how much of the step it moved something."""
    row = trace.whole(Axis.CP.value)
    return 0.0 if row is None else (row.communication_s or 0.0) / trace.step_s


def _exposed_share(trace: RankTrace) -> float:
    row = trace.whole(Axis.CP.value)
    return 0.0 if row is None else (row.exposed_s or 0.0) / trace.step_s
