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


def content(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def test_spans_come_back_equal_for_every_rank(tmp_path):
    write_trace(tmp_path, TRIAL)

    path = trace_path(tmp_path, TRIAL)
    assert path == tmp_path / "traces" / "7-1.json.gz"
    order = sorted(SPANS, key=repr)
    assert {rank: sorted(spans, key=repr) for rank, spans in read_spans(path).items()} == {
        0: order,
        1: order,
    }


def test_a_process_is_a_rank_and_a_thread_is_compute_or_an_axis(tmp_path):
    write_trace(tmp_path, TRIAL)

    events = content(trace_path(tmp_path, TRIAL))["traceEvents"]

    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(set(named.values())) == ["compute", "cp", "cp 2", "dp"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes[1] == "rank 1 (tp0 cp1 dp0 pp0) node0/cpu1"
    first = next(e for e in events if e["ph"] == "X" and e["ts"] == 1e6)
    assert (first["name"], first["dur"]) == ("keys and values, layer 3", 2e6)
    assert (first["args"]["bytes"], first["args"]["layer"], first["args"]["peer"]) == (4096, 3, 1)


def test_slices_of_one_thread_never_overlap(tmp_path):
    write_trace(tmp_path, TRIAL)

    ends = {}
    for event in content(trace_path(tmp_path, TRIAL))["traceEvents"]:
        if event["ph"] == "X":
            thread = event["pid"], event["tid"]
            assert ends.get(thread, 0) <= event["ts"]
            ends[thread] = event["ts"] + event["dur"]


def test_a_trial_without_a_traced_step_leaves_no_file(tmp_path):
    write_trace(tmp_path, trial_of(candidate(cp=2), measured(ranks=2)))

    assert list(tmp_path.iterdir()) == []


def test_the_ledger_keeps_the_trace_and_gives_the_trial_back_without_its_spans(tmp_path):
    ledger = ParquetLedger(tmp_path, writable=True)
    ledger.append(TRIAL)

    (back,) = ledger.read()

    assert back == TRIAL.without_spans()
    assert back != TRIAL
    assert back.measurement.ranks[0].trace == replace(rank_trace(), spans=())
    assert trace_path(tmp_path, back).exists()


@pytest.mark.parametrize("data", [b"", b"text", gzip.compress(b"{}"), gzip.compress(b"[1")])
def test_a_damaged_trace_is_an_error_that_names_it(tmp_path, data):
    path = tmp_path / "7-1.json.gz"
    path.write_bytes(data)

    with pytest.raises(LedgerError, match=r"7-1.json.gz cannot be read"):
        read_spans(path)
