"""What a traced step was seen to do: its intervals, and the communication that no compute hid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

#: Rows of `Exposed` by the union of intervals of a traced step.
INTERVAL_UNION = "interval-union"
#: The same of a GPU: intervals between events in the queues of the device.
DEVICE_INTERVALS = "device-intervals"
#: Rows by the intervals of a traced step; which of them says whose clock it was.
BY_INTERVALS = frozenset({INTERVAL_UNION, DEVICE_INTERVALS})
#: Rows of `Exposed` by running the same plan without its transfers.
ABLATION = "ablation"
#: Seconds that a rank stood still in waits and blocking collectives, for whatever reason.
BLOCKED_IN_WAIT = "blocked-in-wait"

#: The `axis` of a collective over all ranks of the job: the loss and the gradient norm.
WORLD = "world"


class SpanKind(StrEnum):
    """What a rank did in an interval."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    WAIT = "wait"  # for a late peer that itself stood still for a transfer, here or further on


class Stamp(StrEnum):
    """How the end of a transfer was seen."""

    COMPLETED = "completed"  # by a thread that only waited for it, or a blocking call's return
    WAIT_RETURN = "wait-return"  # the step's own wait returned: no later than that


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An interval of a traced step, in seconds since its start on the clock of rank 0.

    Args:
        start_s: Of a transfer, when the last of its partners was ready for it; before that nothing
            can move, and a rank that waits waits for a late peer.
        posted_s: When this rank was ready for it; None for compute and for a wait.
        axis: "tp", "cp", "dp", "pp" or "world"; None for compute. Of a wait, the axis of what
            moves at the end of the chain of ranks that wait for each other.
        layer: Number in the whole model; None where the interval belongs to no layer. Of a wait, as
            its axis.
        bytes: Payload of this rank: received, or sent by a send.
        peer: Global rank of the other end of a message; None for a collective.
    """

    kind: SpanKind
    name: str
    start_s: float
    stop_s: float
    axis: str | None = None
    posted_s: float | None = None
    layer: int | None = None
    bytes: int | None = None
    peer: int | None = None
    stamp: Stamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """Communication of one rank over one axis in one step. None: it could not be told.

    By intervals, a transfer is under way from when the last of its partners was ready for
    it. Until then a rank that stands still waits for a late peer. While that peer stands still for
    a transfer itself, or for a third rank that does, the wait is communication, of the axis and
    layer of the transfer that moves at the end of the chain; while it computes, it is imbalance.

    Args:
        axis: "tp", "cp", "dp", "pp" or "world".
        layer: Number in the whole model; None for what belongs to no layer, and for a whole axis.
        whole: Whether this is the row of the whole axis.
        method: One of `BY_INTERVALS`, or `ABLATION`.
        communication_s: How long a transfer was under way, or a late peer was waited for which
            stood still for one.
        exposed_s: How much of it no compute of this rank hid.
        blocked_s: How long this rank stood still in waits of this axis, late peers included.
        late_s: How much of that for a peer that computed, while nothing moved: load imbalance.
        bytes: Payload, in and out.
    """

    axis: str
    layer: int | None
    whole: bool
    method: str
    communication_s: float | None
    exposed_s: float | None
    blocked_s: float | None = None
    late_s: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """The traced step of one rank.

    Args:
        step_s: How long the traced step took on this rank.
        clock_offset_s: This rank's monotonic clock minus that of rank 0.
        clock_error_s: Bound of the error of that; 0 where both ranks read one clock.
        exposed: By axis and layer, and by method.
        spans: Every interval; empty where the trace was read back from the tables.
    """

    step_s: float
    clock_offset_s: float
    clock_error_s: float
    exposed: tuple[Exposed, ...]
    spans: tuple[Span, ...] = ()

    def whole(self, axis: str, *, method: str | None = None) -> Exposed | None:
        """The row of a whole axis; by the intervals of the step, whatever clock gave them."""
        wanted = BY_INTERVALS if method is None else {method}
        found = (one for one in self.exposed if one.whole and one.axis == axis)
        return next((one for one in found if one.method in wanted), None)


def of_whole_axes(traces: Sequence[RankTrace]) -> list[Exposed]:
    """Each axis that moved anything by both methods, mean over ranks.

    None where a rank could not tell, or where nobody tried that method.
    """
    moved = [row for trace in traces for row in trace.exposed if row.whole and row.bytes]
    return [
        _mean_over(traces, axis, method)
        for axis in dict.fromkeys(row.axis for row in moved)
        for method in (None, ABLATION)
    ]


def _mean_over(traces: Sequence[RankTrace], axis: str, method: str | None) -> Exposed:
    rows = [trace.whole(axis, method=method) for trace in traces]
    used = [row.method for row in rows if row is not None]

    def mean(name: str) -> float | None:
        known = [value for row in rows if (value := getattr(row, name, None)) is not None]
        return fmean(known) if len(known) == len(rows) else None

    return Exposed(
        axis=axis,
        layer=None,
        whole=True,
        method=method or next(iter(used), INTERVAL_UNION),
        communication_s=mean("communication_s"),
        exposed_s=mean("exposed_s"),
        blocked_s=mean("blocked_s"),
    )
