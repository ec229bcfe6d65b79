"""Two hosts and a slow link: what the planner's order saves, and that a false promise is found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from cptune.domain.probe import EdgeReading, ProbeAsk, join_readings
from cptune.domain.probe_plan import plan_probe
from cptune.report.probe import below_lines
from topology import Edge, Network, Node, Topology

ROOT = Path(__file__).parents[2]
PORT = 29573
LINK_BYTES_PER_S = 25e6  # 200 Mbit/s
PLACES = ("a/cpu0", "a/cpu1", "b/cpu0", "b/cpu1")  # the processes, two on each host
NAIVE = [0, 2, 1, 3]  # a b a b
OF_NAIVE = 0.65


def two_nodes(bytes_per_s: float) -> Topology:
    link = Edge(a="a", b="b", bytes_per_s=bytes_per_s)
    return Topology(
        source="test", nodes=(Node(name="a"), Node(name="b")), network=Network(edges=(link,))
    )


def planned_order() -> list[int]:
    plan = plan_probe(two_nodes(LINK_BYTES_PER_S), tp=1, cp=4)
    return [PLACES.index(device.name) for device in plan.devices]


def crossings(order: list[int]) -> int:
    hosts = [place // 2 for place in order]
    return sum(a != b for a, b in zip(hosts, [*hosts[1:], hosts[0]], strict=True))


def run_ranks(hosts, orders: dict[str, list[int]]) -> list[dict]:
    """The answers of the processes, by place."""
    ranks = []
    for place in range(len(PLACES)):
        host = hosts[place // 2]
        words = [sys.executable, "-m", "order_rank", str(place), host.device]
        words += [hosts[0].address, str(PORT), json.dumps(orders)]
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": host.device,
            "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}",
        }
        ranks.append(
            subprocess.Popen(
                host.command(*words), env=environment, stdout=subprocess.PIPE, text=True
            )
        )
    try:
        return [json.loads(one.communicate(timeout=110)[0].splitlines()[-1]) for one in ranks]
    finally:
        for one in ranks:
            one.kill()


def probe_against(found: list[dict], *, promised_bytes_per_s: float):
    """What was measured, held to a topology that makes this promise of the link."""
    plan = plan_probe(two_nodes(promised_bytes_per_s), tp=1, cp=4)
    readings = tuple(EdgeReading(**one) for answer in found for one in answer["readings"])
    return join_readings(plan, readings, ask=ProbeAsk(cp=4), transport="gloo")


@pytest.mark.timeout(150)
def test_the_planned_order_crosses_a_slow_link_half_as_often_and_a_false_promise_is_found(
    two_hosts,
) -> None:
    planned = planned_order()
    found = run_ranks(two_hosts, {"naive": NAIVE, "planned": planned})

    sent = {}
    for name in ("naive", "planned"):
        answers = [answer["orders"][name] for answer in found]
        both = answers[0]["host_bytes"] + answers[2]["host_bytes"]
        sent[name] = both / answers[0]["edge_bytes"]
    seconds = {
        name: median(
            max(turn)
            for turn in zip(*(one["orders"][name]["seconds"] for one in found), strict=True)
        )
        for name in sent
    }
    sys.stderr.write(f"rings' edges over the link {sent}, step s {seconds}\n")
    assert (crossings(planned), crossings(NAIVE)) == (2, 4)
    # Headers, answers and barriers come on top of the payload: some hundredths.
    assert {name: round(edges) for name, edges in sent.items()} == {"planned": 2, "naive": 4}, sent
    assert seconds["planned"] <= OF_NAIVE * seconds["naive"], seconds

    truth = probe_against(found, promised_bytes_per_s=LINK_BYTES_PER_S)
    rates = [edge.reading.idle_bytes_per_s for edge in truth.edges]
    assert max(rates[1], rates[3]) < 1.05 * LINK_BYTES_PER_S
    assert min(rates[0], rates[2]) > 5 * LINK_BYTES_PER_S
    assert truth.below == ()
    fast = probe_against(found, promised_bytes_per_s=10e9)
    assert [line.partition(" (")[0] for line in below_lines(fast)] == [
        "a/cpu1 -> b/cpu0",
        "b/cpu1 -> a/cpu0",
    ]
