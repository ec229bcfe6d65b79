"""A probe for people: each edge with its rates, and the ones that contradict the topology."""

import io

import pytest
from rich.console import Console

from cptune.domain.placement import Device
from cptune.domain.probe import EdgeReading, PlannedEdge, Probe, ProbeAsk, ProbedEdge
from cptune.report.probe import below_lines, probe_view, rate_text


def edge_of(a, b, *, rate, promised, kind=None):
    nodes = ("a", "a", "b", "b")
    return ProbedEdge(
        planned=PlannedEdge(
            ring=0, axis="cp", a_rank=a, b_rank=b, kind=kind, promised_bytes_per_s=promised
        ),
        a=Device(node=nodes[a], kind="cpu", index=a % 2),
        b=Device(node=nodes[b], kind="cpu", index=b % 2),
        reading=EdgeReading(
            a_rank=a, b_rank=b, payload_bytes=1 << 20, idle_s=2**20 / rate, busy_s=2**21 / rate
        ),
    )


@pytest.fixture
def probe():
    return Probe(
        ask=ProbeAsk(cp=4, payload_mib=1),
        transport="gloo",
        topology_hash="0" * 64,
        edges=(
            edge_of(0, 1, rate=2e9, promised=None),
            edge_of(1, 2, rate=23.9e6, promised=10e9, kind="NET"),
            edge_of(2, 3, rate=2e9, promised=2.2e9, kind="PIX"),
        ),
        notes=("a note",),
    )


def test_an_edge_below_its_promise_is_named_with_devices_rates_and_share(probe):
    assert below_lines(probe) == [
        "a/cpu1 -> b/cpu0 (ranks 1 -> 2, NET): 23.90 MB/s over gloo, 10.00 GB/s promised: "
        "a share of 0.00239, wanted 0.5 or more"
    ]


def test_the_table_shows_every_edge_and_what_nobody_told(probe):
    out = io.StringIO()
    Console(file=out, width=120).print(probe_view(probe.to_json()))
    lines = out.getvalue().splitlines()

    rows = [line.split() for line in lines if " -> " in line and "ring" not in line]
    assert rows[0][-3:] == ["?", "nothing", "promised"]
    assert rows[1][-3:] == ["10.00", "GB/s", "below"]
    assert rows[2][-3:] == ["2.20", "GB/s", "kept"]
    assert "slowest alone: a/cpu1 -> b/cpu0 23.90 MB/s" in out.getvalue()
    assert "slowest, all at once: a/cpu1 -> b/cpu0 11.95 MB/s" in out.getvalue()
    assert "1 kept, 1 below, 1 nothing promised" in out.getvalue()
    assert "a note" in out.getvalue()


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "?"),
        (12, "12 B/s"),
        (1500, "1.50 kB/s"),
        (25e6, "25.00 MB/s"),
        (478e9, "478.00 GB/s"),
    ],
)
def test_a_rate_has_the_unit_that_suits_it(rate, text):
    assert rate_text(rate) == text
