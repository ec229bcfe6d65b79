"""The trace of a trial: what Chrome and Perfetto read, and what is read back."""

import gzip
import json
from dataclasses import replace

import pytest
from fakes import candidate, measured, rank_report, rank_trace, trial_of

from cptune.domain.outcome import measurement_from
from cptune.domain.timeline import Span, SpanKind, Stamp
from cptune.errors import LedgerError
from cptune.store.ledger import ParquetLedger
from cptune.store.traces import read_spans, trace_path, write_trace


def transfer(start_s, stop_s, **changes):
    fields = {
        "kind": SpanKind.COMMUNICATION,
        "name": "keys and values",
        "start_s": start_s,
        "stop_s": stop_s,
        "axis": "cp",
        "posted_s": 0.5,
        "layer": 3,
        "bytes": 4096,
        "peer": 1,
        "stamp": Stamp.COMPLETED,
    }
    return Span(**(fields | changes))


SPANS = (
    Span(kind=SpanKind.COMPUTE, name="forward", start_s=0.0, stop_s=1.5, layer=3),
    transfer(1.0, 3.0),
    transfer(2.0, 2.5, layer=None, peer=None, axis="dp", stamp=Stamp.WAIT_RETURN),
    transfer(2.0, 4.0),
)
TRIAL = trial_of(
    candidate(cp=2),
    measurement_from(
        tuple(rank_report(rank, trace=rank_trace(spans=SPANS)) for rank in range(2)),
        tokens_per_step=1,
    ),
    number=7,
    attempt=1,
)

RUN = "0" * 32


def content(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def test_spans_come_back_equal_for_every_rank(tmp_path):
    write_trace(tmp_path, TRIAL, run_id=RUN)

    path = trace_path(tmp_path, TRIAL)
    assert path == tmp_path / "traces" / "7-1.json.gz"
    order = sorted(SPANS, key=repr)
    assert {rank: sorted(spans, key=repr) for rank, spans in read_spans(path).items()} == {
        0: order,
        1: order,
    }


def test_a_process_is_a_rank_and_a_thread_is_compute_or_an_axis(tmp_path):
    write_trace(tmp_path, TRIAL, run_id=RUN)

    events = content(trace_path(tmp_path, TRIAL))["traceEvents"]

    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(set(named.values())) == ["compute", "cp", "cp 2", "dp"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes[1] == "rank 1 (tp0 cp1 dp0 pp0) node0/cpu1"
    first = next(e for e in events if e["ph"] == "X" and e["ts"] == 1e6)
    assert (first["name"], first["dur"]) == ("keys and values, layer 3", 2e6)
    assert (first["args"]["bytes"], first["args"]["layer"], first["args"]["peer"]) == (4096, 3, 1)


def test_slices_of_one_thread_never_overlap(tmp_path):
    write_trace(tmp_path, TRIAL, run_id=RUN)

    ends = {}
    for event in content(trace_path(tmp_path, TRIAL))["traceEvents"]:
        if event["ph"] == "X":
            thread = event["pid"], event["tid"]
            assert ends.get(thread, 0) <= event["ts"]
            ends[thread] = event["ts"] + event["dur"]


def test_a_trial_without_a_traced_step_leaves_no_file(tmp_path):
    write_trace(tmp_path, trial_of(candidate(cp=2), measured(ranks=2)), run_id=RUN)

    assert list(tmp_path.iterdir()) == []


def test_the_ledger_keeps_the_trace_and_gives_the_trial_back_without_its_spans(tmp_path):
    ledger = ParquetLedger(tmp_path, writable=True)
    ledger.append(TRIAL)

    (back,) = ledger.read()

    assert back == TRIAL.without_spans()
    assert back != TRIAL
    assert back.measurement.ranks[0].trace == replace(rank_trace(), spans=())
    assert trace_path(tmp_path, back).exists()


@pytest.mark.parametrize(
    "data", [b"", b"text", gzip.compress(b"{}", mtime=0), gzip.compress(b"[1", mtime=0)]
)
def test_a_damaged_trace_is_an_error_that_names_it(tmp_path, data):
    path = tmp_path / "7-1.json.gz"
    path.write_bytes(data)

    with pytest.raises(LedgerError, match=r"7-1.json.gz cannot be read"):
        read_spans(path)


def spoiled(path, **changes):
    """The trace with other values in one event, or beside the events."""
    whole = content(path)
    for name, value in changes.items():
        if name in whole:
            whole[name] = value
        elif name in whole["otherData"]:
            whole["otherData"][name] = value
        else:
            next(e for e in whole["traceEvents"] if e["ph"] == "X")[name] = value
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))


@pytest.mark.parametrize(
    "changes",
    [
        {"traceEvents": None},
        {"traceEvents": [1]},
        {"traceEvents": "text"},
        {"otherData": []},
        {"schema": 2},
        {"pid": "0"},
        {"pid": 99},
        {"ts": "soon"},
        {"ts": float("nan")},
        {"dur": None},
        {"args": []},
        {"args": {"bytes": "many"}},
        {"args": {"peer": [1]}},
        {"cat": "unknown"},
        {"name": 7},
    ],
)
def test_a_foreign_trace_is_an_error_that_says_what_was_wanted(tmp_path, changes):
    write_trace(tmp_path, TRIAL, run_id=RUN)
    path = trace_path(tmp_path, TRIAL)
    spoiled(path, **changes)

    with pytest.raises(LedgerError, match=r"7-1.json.gz cannot be read: .*; wanted the trace"):
        read_spans(path, trial=TRIAL)


def test_a_trace_that_is_cut_or_altered_in_its_bytes_is_an_error(tmp_path):
    write_trace(tmp_path, TRIAL, run_id=RUN)
    path = trace_path(tmp_path, TRIAL)
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[len(whole) // 2] ^= 0xFF
    for data in (whole[:-9], whole[: len(whole) // 2], bytes(altered), b"[" * 100_000):
        path.write_bytes(data)
        with pytest.raises(LedgerError, match="cannot be read"):
            read_spans(path, trial=TRIAL)
    path.write_bytes(gzip.compress(b"[" * 100_000))
    with pytest.raises(LedgerError, match="cannot be read"):
        read_spans(path)


@pytest.mark.parametrize(
    ("number", "attempt", "key"), [(8, 1, None), (7, 0, None), (7, 1, candidate(cp=4))]
)
def test_the_trace_of_another_trial_is_an_error_that_names_both(tmp_path, number, attempt, key):
    other = replace(TRIAL, number=number, attempt=attempt, candidate=key or TRIAL.candidate)
    write_trace(tmp_path, TRIAL, run_id=RUN)
    trace_path(tmp_path, TRIAL).rename(tmp_path / "moved.json.gz")

    with pytest.raises(LedgerError) as caught:
        read_spans(tmp_path / "moved.json.gz", trial=other)

    assert f"is the trace of trial 7, attempt 1 ({TRIAL.candidate.key})" in str(caught.value)
    assert f"wanted that of trial {number}, attempt {attempt} ({other.candidate.key})" in str(
        caught.value
    )
