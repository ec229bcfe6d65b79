"""Signals to a driver, and a rank that dies: the exit code, what is said, and nothing left."""

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
from sweep_process import SweepProcesses, wait_for

from cptune import spec as specs

ENDLESS = {"steps": 100_000, "trial_s": 100.0}


def start(processes: SweepProcesses, *words: object) -> subprocess.Popen[str]:
    return processes.start([sys.executable, "-m", "cptune", *words], cwd=processes.folder)


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGTERM, 143, "stopped by SIGTERM\n"), (signal.SIGINT, 130, "stopped by Ctrl-C\n")],
    ids=["terminate", "ctrl-c"],
)
def test_a_signal_while_ray_starts_ends_it_with_one_line(processes, number, code, line):
    started = start(processes, "topology", "--address", "local")
    wait_for(lambda: bool(processes.ray_sessions()), within_s=60, what="a Ray that starts")

    started.send_signal(number)
    out, err = started.communicate(timeout=30)

    assert (started.returncode, out, err) == (code, "", line)
    assert processes.wait_gone() == {}


@pytest.mark.parametrize(
    ("number", "to_group", "code"),
    [
        (signal.SIGINT, False, 130),
        (signal.SIGINT, True, 130),
        (signal.SIGTERM, True, 143),
        (signal.SIGHUP, False, 129),
    ],
    ids=["ctrl-c-alone", "ctrl-c-group", "terminate-group", "hang-up-alone"],
)
def test_a_signal_during_a_trial_ends_everything_and_says_how_to_go_on(
    processes, number, to_group, code
):
    sweep = processes.start_sweep(processes.write("cut", budget=ENDLESS))
    wait_for(processes.is_trying, within_s=60, what="a trial")
    send_to_group(sweep, number) if to_group else sweep.send_signal(number)
    _, err = sweep.communicate(timeout=30)
    assert sweep.returncode == code, err
    assert processes.wait_gone() == {}
    kept = processes.runs / "cut" / "spec.toml"
    assert f"cptune sweep {kept} --runs {processes.runs} --resume\n" in err
    assert "Traceback" not in err
    assert specs.load(kept).name == "cut"


def send_to_group(sweep: subprocess.Popen[str], number: int) -> None:
    """As a terminal does: to every process of the foreground group."""
    os.killpg(sweep.pid, number)


def test_ctrl_c_ends_the_actors_of_a_curve_and_says_how_to_go_on(processes):
    path = processes.write("stop", budget={"trial_s": 100.0}, cluster={"world_size": 2})
    words = ("--runs", processes.runs, "--seq-lens", "65536", "--cp", "2")
    curve = start(processes, "curve", path, *words)
    wait_for(processes.is_trying, within_s=60, what="a trial")
    curve.send_signal(signal.SIGINT)
    _, err = curve.communicate(timeout=30)

    assert curve.returncode == 130, err
    _, _, said = next(line for line in err.splitlines() if "go on with" in line).partition(": ")
    kept = processes.runs / "stop-curve"
    words = ["curve", kept / "spec.toml", "--runs", processes.runs, "--name", kept.name, "--resume"]
    assert shlex.split(said)[1:] == [str(word) for word in words]
    assert (kept / "spec.toml").exists()
    assert "Traceback" not in err


def test_a_killed_rank_ends_the_probe_and_is_named(processes):
    words = ("--cp", "2", "--payload-mib", "64", "--repeats", "1000")
    probe = start(processes, "topology", "probe", *words)
    ranks: list[int] = []

    def is_measuring() -> bool:
        words = processes.left().items()
        ranks[:] = [pid for pid, word in words if word.startswith("ray::RankActor.probe")]
        return len(ranks) == 2

    wait_for(is_measuring, within_s=60, what="the measuring ranks")
    time.sleep(1)
    os.kill(ranks[0], signal.SIGKILL)
    out, err = probe.communicate(timeout=60)

    assert probe.returncode == 1
    assert out == ""
    assert "error: the probe failed on " in err
    assert "Traceback" not in err
