"""A signal while a local Ray starts: the exit code, one line of ours, and nothing left running."""

import signal
import sys

import pytest
from sweep_process import wait_for


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGTERM, 143, "stopped by SIGTERM\n"), (signal.SIGINT, 130, "stopped by Ctrl-C\n")],
    ids=["terminate", "ctrl-c"],
)
def test_a_signal_while_ray_starts_ends_it_with_one_line(processes, number, code, line):
    words = [sys.executable, "-m", "cptune", "topology", "--address", "local"]
    started = processes.start(words)
    wait_for(lambda: bool(processes.ray_sessions()), within_s=60, what="a Ray that starts")

    started.send_signal(number)
    out, err = started.communicate(timeout=30)

    assert (started.returncode, out, err) == (code, "", line)
    assert processes.wait_gone() == {}
