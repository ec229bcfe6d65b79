"""The traced step of a trial as a file that Chrome and Perfetto open, and back.

Trace-event format (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU):
a process is a rank, a thread is compute or one axis, times are microseconds. Slices of one thread
must nest, so transfers that overlap are laid on further threads of their axis.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cptune.domain.placement import RankPlace
from cptune.domain.timeline import RankTrace, Span, SpanKind, Stamp
from cptune.domain.trial import Trial
from cptune.errors import LedgerError
from cptune.store.files import write_durably
from cptune.store.row import reports_of

TRACES = "traces"
TRACE_SCHEMA = 1
_ROWS = ("compute", "tp", "cp", "dp", "pp", "world")
_LANES = 100  # threads of one axis
_US = 1e6


def trace_path(directory: Path, trial: Trial) -> Path:
    """Where the trace of a trial is in its run directory."""
    return directory / TRACES / f"{trial.number}-{trial.attempt}.json.gz"


def write_trace(directory: Path, trial: Trial) -> None:
    """Keep the spans of a trial; nothing where no step was traced.

    Raises:
        LedgerError: when the file cannot be written.
    """
    traces = [(one.rank, one.trace) for one in reports_of(trial) if one.trace and one.trace.spans]
    if not traces:
        return
    path = trace_path(directory, trial)
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as exc:
        raise LedgerError(f"cannot make {path.parent}: {exc.strerror}") from exc
    text = json.dumps(_content(trial, dict(traces)), separators=(",", ":"))
    write_durably(path, gzip.compress(text.encode(), mtime=0))


def read_spans(path: Path) -> dict[int, list[Span]]:
    """The spans of each rank.

    Raises:
        LedgerError: when the file cannot be read.
    """
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
        found: dict[int, list[Span]] = {}
        for event in content["traceEvents"]:
            if event["ph"] == "X":
                found.setdefault(event["pid"], []).append(_span(event))
    except (OSError, EOFError, KeyError, TypeError, ValueError) as exc:
        raise LedgerError(f"{path} cannot be read: {exc}") from exc
    return found


def _content(trial: Trial, traces: dict[int, RankTrace]) -> dict[str, Any]:
    places = {place.rank: place for place in trial.placement.ranks}
    return {
        "traceEvents": [
            event for rank, trace in traces.items() for event in _events(places[rank], trace.spans)
        ],
        "displayTimeUnit": "ms",
        "otherData": {
            "schema": TRACE_SCHEMA,
            "candidate_key": trial.candidate.key,
            "number": trial.number,
            "attempt": trial.attempt,
            "clocks": [
                {
                    "rank": rank,
                    "step_s": trace.step_s,
                    "offset_s": trace.clock_offset_s,
                    "error_s": trace.clock_error_s,
                }
                for rank, trace in traces.items()
            ],
        },
    }


def _events(place: RankPlace, spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    at = place.at
    named = f"rank {place.rank} (tp{at.tp} cp{at.cp} dp{at.dp} pp{at.pp}) {place.device.name}"
    yield _name("process_name", named, pid=place.rank, tid=0)
    for row, axis in enumerate(_ROWS):
        own = [span for span in spans if (span.axis or _ROWS[0]) == axis]
        for lane, held in enumerate(_lanes(own)):
            tid = row * _LANES + lane
            yield _name("thread_name", axis if lane == 0 else f"{axis} {lane + 1}", place.rank, tid)
            yield from (_slice(span, pid=place.rank, tid=tid) for span in held)


def _lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans shared out so that none of a lane overlap: each goes to the first that is free."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda one: one.start_s):
        free = (lane for lane in lanes if lane[-1].stop_s <= span.start_s)
        lane = next(free, None)
        if lane is None:
            lanes.append([span])
        else:
            lane.append(span)
    return lanes


def _name(kind: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(span: Span, *, pid: int, tid: int) -> dict[str, Any]:
    args = {
        "axis": span.axis,
        "layer": span.layer,
        "bytes": span.bytes,
        "peer": span.peer,
        "posted_us": None if span.posted_s is None else span.posted_s * _US,
        "stamp": span.stamp,
    }
    return {
        "ph": "X",
        "name": span.name if span.layer is None else f"{span.name}, layer {span.layer}",
        "cat": span.kind,
        "pid": pid,
        "tid": tid,
        "ts": span.start_s * _US,
        "dur": (span.stop_s - span.start_s) * _US,
        "args": {key: value for key, value in args.items() if value is not None},
    }


def _span(event: dict[str, Any]) -> Span:
    args = event["args"]
    layer, posted_us, stamp = args.get("layer"), args.get("posted_us"), args.get("stamp")
    return Span(
        kind=SpanKind(event["cat"]),
        name=event["name"].removesuffix(f", layer {layer}"),
        start_s=event["ts"] / _US,
        stop_s=(event["ts"] + event["dur"]) / _US,
        axis=args.get("axis"),
        posted_s=None if posted_us is None else posted_us / _US,
        layer=layer,
        bytes=args.get("bytes"),
        peer=args.get("peer"),
        stamp=None if stamp is None else Stamp(stamp),
    )
