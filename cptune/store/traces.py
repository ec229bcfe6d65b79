"""The traced step of a trial as a file that Chrome and Perfetto open, and back.

Trace-event format (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU):
a process is a rank, a thread is compute or one axis, times are microseconds. Slices of one thread
must nest, so transfers that overlap are laid on further threads of their axis.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from cptune.domain.placement import RankPlace
from cptune.domain.timeline import RankTrace, Span, SpanKind, Stamp
from cptune.domain.trial import Trial
from cptune.errors import LedgerError
from cptune.store.files import sha256_of, write_durably
from cptune.store.row import reports_of

TRACES = "traces"
TRACE_SCHEMA = 1
_ROWS = ("compute", "tp", "cp", "dp", "pp", "world")
_LANES = 100  # threads of one axis
_US = 1e6


def trace_path(directory: Path, trial: Trial) -> Path:
    """Where the trace of a trial is in its run directory."""
    return directory / TRACES / f"{trial.number}-{trial.attempt}.json.gz"


def write_trace(directory: Path, trial: Trial, *, run_id: str) -> str | None:
    """Keep the spans of a trial; the SHA-256 of the file, None where no step was traced.

    Raises:
        LedgerError: when the file cannot be written.
    """
    traces = [(one.rank, one.trace) for one in reports_of(trial) if one.trace and one.trace.spans]
    if not traces:
        return None
    path = trace_path(directory, trial)
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as exc:
        raise LedgerError(f"cannot make {path.parent}: {exc.strerror}") from exc
    text = json.dumps(_content(trial, dict(traces), run_id=run_id), separators=(",", ":"))
    data = gzip.compress(text.encode(), mtime=0)
    write_durably(path, data)
    return sha256_of(data)


def read_spans(path: Path, *, trial: Trial | None = None) -> dict[int, list[Span]]:
    """The spans of each rank.

    Args:
        path: A file that `write_trace` wrote.
        trial: Whose trace it must be, and of whose run; None takes any.

    Raises:
        LedgerError: when the file cannot be read, holds the trace of another trial or another run,
            or is not as it was written.
    """
    data = _read(path)
    content = _load(data, path=path)
    try:
        if trial is not None:
            _check_owner(content["otherData"], trial, path=path)
            _check_origin(content["otherData"], trial, path=path, digest=sha256_of(data))
        found: dict[int, list[Span]] = {}
        for event in content["traceEvents"]:
            if event["ph"] == "X":
                found.setdefault(_whole(event["pid"]), []).append(_span(event))
    except KeyError as exc:
        raise _foreign(path, f"it has no {exc}") from exc
    except (AttributeError, TypeError, ValueError) as exc:
        raise _foreign(path, str(exc)) from exc
    if trial is not None:
        _check_ranks(found, trial, path=path)
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise LedgerError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def _load(data: bytes, *, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(gzip.decompress(data))
    except EOFError as exc:
        raise LedgerError(f"{path} cannot be read: it is cut short") from exc
    except (gzip.BadGzipFile, zlib.error, ValueError, RecursionError) as exc:
        raise _foreign(path, f"no gzip with JSON in it ({exc})") from exc
    if not isinstance(content, dict):
        raise _foreign(path, "it is no JSON object")
    return content


def _foreign(path: Path, why: str) -> LedgerError:
    return LedgerError(
        f"{path} cannot be read: {why}; wanted the trace that the run wrote",
        hint="move it away to see the trial without its links",
    )


def _check_owner(told: dict[str, Any], trial: Trial, *, path: Path) -> None:
    """A trace that was moved onto the name of another trial's would lie about its links."""
    if told["schema"] != TRACE_SCHEMA:
        raise ValueError(f"it is of schema {told['schema']!r}, wanted {TRACE_SCHEMA}")
    seen = told["number"], told["attempt"], told["candidate_key"]
    wanted = trial.number, trial.attempt, trial.candidate.key
    if seen != wanted:
        raise LedgerError(
            f"{path} is the trace of {_named(*seen)}; wanted that of {_named(*wanted)}",
            hint="put each trace back under its own name, NUMBER-ATTEMPT.json.gz",
        )


def _check_origin(told: dict[str, Any], trial: Trial, *, path: Path, digest: str) -> None:
    """The same trial of another run has the same name, number and key; its steps are others."""
    origin = trial.origin
    if origin is None:  # kept before runs had an id
        return
    if (seen := told.get("run_id")) != origin.run_id:
        raise LedgerError(
            f"{path} is the trace of trial {trial.number} of another run: of run "
            f"{seen or 'without an id'}, wanted {origin.run_id}",
            hint="put the trace of this run back, or move the file away to see the trial without "
            "its links",
        )
    if digest != origin.trace_sha256:
        raise LedgerError(
            f"{path} is not as it was written: its SHA-256 is {digest[:12]}, wanted "
            f"{(origin.trace_sha256 or 'none')[:12]}, as the row of trial {trial.number} says",
            hint="put the file back, or move it away to see the trial without its links",
        )


def _check_ranks(ranks: Iterable[int], trial: Trial, *, path: Path) -> None:
    odd = set(ranks) - {place.rank for place in trial.placement.ranks}
    if odd:
        raise _foreign(path, f"rank {min(odd)} is none of trial {trial.number}")


def _named(number: object, attempt: object, key: object) -> str:
    return f"trial {number}, attempt {attempt} ({key})"


def _content(trial: Trial, traces: dict[int, RankTrace], *, run_id: str) -> dict[str, Any]:
    places = {place.rank: place for place in trial.placement.ranks}
    return {
        "traceEvents": [
            event for rank, trace in traces.items() for event in _events(places[rank], trace.spans)
        ],
        "displayTimeUnit": "ms",
        "otherData": {
            "schema": TRACE_SCHEMA,
            "run_id": run_id,
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
    start_us = _number(event["ts"])
    return Span(
        kind=SpanKind(event["cat"]),
        name=event["name"].removesuffix(f", layer {layer}"),
        start_s=start_us / _US,
        stop_s=(start_us + _number(event["dur"])) / _US,
        axis=args.get("axis"),
        posted_s=None if posted_us is None else _number(posted_us) / _US,
        layer=None if layer is None else _whole(layer),
        bytes=None if (size := args.get("bytes")) is None else _whole(size),
        peer=None if (peer := args.get("peer")) is None else _whole(peer),
        stamp=None if stamp is None else Stamp(stamp),
    )


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is no whole number")
    return value
