"""Edges of a probe in Parquet: the columns of a trial's edges, and what was promised."""

import pyarrow.parquet as pq

from cptune.domain.placement import Device
from cptune.domain.probe import EdgeReading, PlannedEdge, Probe, ProbeAsk, ProbedEdge
from cptune.store import schema
from cptune.store.edges import write_probe
from cptune.store.ledger import decode


def probe_of(*promised):
    devices = [Device(node="a", kind="cpu", index=index) for index in range(2)]
    return Probe(
        ask=ProbeAsk(cp=2),
        transport="gloo",
        topology_hash="0" * 64,
        edges=tuple(
            ProbedEdge(
                planned=PlannedEdge(
                    ring=0, axis="cp", a_rank=0, b_rank=1, kind=None, promised_bytes_per_s=rate
                ),
                a=devices[0],
                b=devices[1],
                reading=EdgeReading(a_rank=0, b_rank=1, payload_bytes=1024, idle_s=0.5, busy_s=1.0),
            )
            for rate in promised
        ),
    )


def test_what_is_stored_is_what_was_measured(tmp_path):
    path = tmp_path / "edges.parquet"

    write_probe(path, probe_of(None, 4096.0))

    unknown, told = decode(path, schema.PROBED_EDGES)
    assert unknown == {
        "ring": 0,
        "a_rank": 0,
        "b_rank": 1,
        "axis": "cp",
        "a_device": "a/cpu0",
        "b_device": "a/cpu1",
        "kind": None,
        "bytes": 1024,
        "seconds": 0.5,
        "bytes_per_s": 2048.0,
        "busy_seconds": 1.0,
        "busy_bytes_per_s": 1024.0,
        "promised_bytes_per_s": None,
        "promised_share": None,
        "verdict": "nothing promised",
    }
    assert (told["promised_share"], told["verdict"]) == (0.5, "kept")


def test_the_file_says_its_units(tmp_path):
    path = tmp_path / "edges.parquet"

    write_probe(path, probe_of(None))

    units = {
        field.name: field.metadata[b"unit"] for field in pq.read_schema(path) if field.metadata
    }
    assert units == {
        "bytes": b"bytes",
        "seconds": b"s",
        "bytes_per_s": b"bytes/s",
        "busy_seconds": b"s",
        "busy_bytes_per_s": b"bytes/s",
        "promised_bytes_per_s": b"bytes/s",
    }


def test_columns_that_trials_have_too_are_of_one_type():
    shared = set(schema.EDGES.names) & set(schema.PROBED_EDGES.names)

    assert shared == {"a_rank", "b_rank", "axis", "bytes", "seconds", "bytes_per_s"}
    assert [n for n in shared if schema.EDGES.field(n) != schema.PROBED_EDGES.field(n)] == []
