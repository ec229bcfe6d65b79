"""A traced step over a slow link: intervals, the link's arithmetic and the ablation agree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trace_rank import CASES

ROOT = Path(__file__).parents[2]
PORT = 29573
FRAME_BYTES, PAYLOAD_BYTES = 1514, 1448  # of an Ethernet frame of a TCP stream with timestamps
LINK_BYTES_PER_S = 200e6 / 8 * PAYLOAD_BYTES / FRAME_BYTES
TOLERANCE = 0.15


def run_ranks(hosts, name) -> list[dict]:
    """The ranks of a case, half of them on each host."""
    ranks = []
    for rank in range(CASES[name].world):
        host = hosts[CASES[name].host(rank)]
        words = [sys.executable, "-m", "trace_rank", name, str(rank)]
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": host.device,
            "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}",
        }
        command = host.command(*words, hosts[0].address, str(PORT))
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        return [json.loads(one.communicate(timeout=200)[0].splitlines()[-1]) for one in ranks]
    finally:
        for one in ranks:
            one.kill()


@pytest.mark.timeout(120)
def test_exposed_time_is_that_of_the_link_less_what_is_hidden_and_that_of_the_ablation(
    two_hosts,
) -> None:
    for found in run_ranks(two_hosts, "full"):
        hidden_s = found["communication_s"] - found["exposed_s"]
        of_link_s = found["crossed_bytes"] / LINK_BYTES_PER_S - hidden_s
        assert of_link_s > found["traced_step_s"] / 3, found  # transfers are most of this step
        assert found["exposed_s"] == pytest.approx(of_link_s, rel=TOLERANCE), found
        assert found["exposed_s"] == pytest.approx(found["ablation_s"], rel=TOLERANCE), found
        # What it is not: the sum of the messages' durations, or the seconds of a free link.
        assert hidden_s > 0, found


@pytest.mark.timeout(240)
def test_exposed_time_of_ranks_that_wait_for_each_other_is_that_of_the_ablation(two_hosts) -> None:
    ranks = run_ranks(two_hosts, "causal")
    into = [sum(one["crossed_bytes"] for one in ranks if one["host"] == host) for host in (0, 1)]
    of_link_s = max(into) / LINK_BYTES_PER_S
    for found in ranks:
        assert found["exposed_s"] == pytest.approx(found["ablation_s"], rel=TOLERANCE), ranks
        # Of the link all that can be said: what of its seconds this rank hid is no more exposed,
        # and its busier direction is under way in nearly all of the rest.
        hidden_s = found["communication_s"] - found["exposed_s"]
        assert found["exposed_s"] >= (1 - TOLERANCE) * (of_link_s - hidden_s), ranks
        assert found["exposed_s"] <= (1 + TOLERANCE) * of_link_s, ranks
