"""`cptune drill` with a Ray of its own: a rank that is killed, and a user that has enough."""

import json
import os
import signal
import sys

from sweep_process import SweepProcesses, wait_for


def start(processes: SweepProcesses, *words: object):
    return processes.start([sys.executable, "-m", "cptune", "drill", *words])


def test_a_killed_rank_is_caught_and_the_next_trial_runs(processes):
    drill = start(processes, "killed-rank", "--format", "json")
    out, err = drill.communicate(timeout=100)

    assert drill.returncode == 0, err
    [found] = json.loads(out)["drills"]
    assert found["caught"]
    assert found["evidence"]["said"].startswith("crashed: the process of rank 2 ended: ")
    assert "caught: killed-rank\n1 of 1 failures caught" in err


def test_ctrl_c_in_a_drill_ends_with_130_one_line_and_nothing_left(processes):
    drill = start(processes, "exposed-cp")
    wait_for(processes.is_trying, within_s=60, what="a trial")
    os.kill(drill.pid, signal.SIGINT)
    out, err = drill.communicate(timeout=30)

    assert drill.returncode == 130, err
    assert out == ""
    assert err.endswith("stopped by Ctrl-C\n")
    assert "Traceback" not in err
