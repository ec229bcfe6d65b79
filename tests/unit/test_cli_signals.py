"""A signal before there is anything to clean up: the exit code, one line, and no traceback."""

import signal
import subprocess
import sys

import pytest

from cptune.cli.app import end_on_signals

#: The command line, whose import of one module takes until it is ended.
SLOW = """
import signal, sys, time
class Slow:
    def find_spec(name, *_):
        if name == {module!r}:
            print("importing", flush=True)
            for _ in range(600):  # a signal just before a sleep is heard at the end of it
                time.sleep(0.1)
{before}
sys.meta_path.insert(0, Slow)
sys.argv = ["cptune", "plan", "none.toml"]
from cptune.__main__ import main
main()
"""


#: A signal inside a finalizer, where Python throws away what its handler raises.
LOST = """
import signal, sys, time
from cptune.cli.app import end_on_signals
class Gone:
    def __del__(self):
        {first}
        signal.raise_signal({number})
end_on_signals()
Gone()
time.sleep(3)
"""


def ended(*numbers, module, before=""):
    """Exit code and stderr of a process that these signals are sent to during an import."""
    code = SLOW.format(module=module, before=before)
    started = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout.readline() == "importing\n"
    for number in numbers:
        started.send_signal(number)
    _, err = started.communicate(timeout=30)
    return started.returncode, err


@pytest.mark.parametrize("module", ["cptune.cli", "cptune.planning"])
@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGTERM, 143, "stopped by SIGTERM\n"),
        (signal.SIGHUP, 129, "stopped by SIGHUP\n"),
        (signal.SIGINT, 130, "stopped by Ctrl-C\n"),
    ],
)
def test_a_signal_during_the_imports_ends_with_its_code_and_one_line(module, number, code, line):
    """Of the command line itself, and of what one command needs."""
    assert ended(number, module=module) == (code, line)


def test_a_library_that_crashes_at_the_end_does_not_change_the_exit_code_of_a_stop():
    before = "import atexit, os; atexit.register(os.abort)"
    found = ended(signal.SIGINT, module="cptune.planning", before=before)
    assert found == (130, "stopped by Ctrl-C\n")


def test_a_hang_up_that_is_ignored_stays_so():
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    found = ended(signal.SIGHUP, signal.SIGTERM, module="cptune.cli", before=before)
    assert found == (143, "stopped by SIGTERM\n")


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_command_that_starts_processes_lets_an_ignored_hang_up_be(handler):
    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        signal.signal(signal.SIGHUP, handler)
        end_on_signals()
        assert (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) is (handler is signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        for number, kept in before.items():
            signal.signal(number, kept)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -2)])
def test_a_stop_that_python_threw_away_comes_again(number, code):
    ended = run_lost(number)
    assert ended.returncode == code
    assert "Exception ignored" not in ended.stderr


def test_another_error_of_a_finalizer_is_still_printed():
    ended = run_lost(signal.SIGTERM, first="raise ValueError('of its own')")
    assert ended.returncode == 0
    assert "ValueError: of its own" in ended.stderr


def run_lost(number, *, first="pass"):
    code = LOST.format(number=int(number), first=first)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=15)
