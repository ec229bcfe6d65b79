"""A ring over two hosts: what crosses the slow link, and how long that takes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
WORLD, PORT = 4, 29571
OF_RELAY, OF_FLAT = 0.50, 0.65


def run_ranks(hosts) -> list[dict]:
    """Two ranks on each host."""
    ranks = []
    for rank in range(WORLD):
        host = hosts[rank // 2]
        words = [sys.executable, "-m", "boundary_rank", str(rank), str(WORLD)]
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": host.device,
            "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}",
        }
        ranks.append(
            subprocess.Popen(
                host.command(*words, hosts[0].address, str(PORT)),
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        return [json.loads(one.communicate(timeout=110)[0].splitlines()[-1]) for one in ranks]
    finally:
        for one in ranks:
            one.kill()


@pytest.mark.timeout(150)
def test_two_levels_halve_the_time_of_a_relay_over_a_slow_link(two_hosts) -> None:
    found = run_ranks(two_hosts)
    seconds = {
        name: median(
            max(turn)
            for turn in list(zip(*(one["seconds"][name] for one in found), strict=True))[1:]
        )
        for name in ("relay", "flat", "nested")
    }
    crossed = {
        name: max(sum(one["crossed"][name] for one in found[side : side + 2]) for side in (0, 2))
        for name in seconds
    }
    assert crossed == {"relay": 14, "flat": 10, "nested": 5}
    assert seconds["nested"] <= OF_RELAY * seconds["relay"], seconds
    assert seconds["nested"] <= OF_FLAT * seconds["flat"], seconds
