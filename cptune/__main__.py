"""`cptune` and `python -m cptune`."""

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

_SIGNALLED = 128  # an exit code is this and the signal's number
_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line; a signal while it is still being imported ends it with one line."""
    _end_on_signals()
    try:
        from cptune.cli import main as run
    except KeyboardInterrupt:
        _say("stopped by Ctrl-C")
        sys.exit(_INTERRUPTED)
    try:
        run()
    except SystemExit as exc:
        if isinstance(exc.code, int) and exc.code > _SIGNALLED:
            _end_now(exc.code)
        raise


def _end_now(code: int) -> NoReturn:
    """End a process that was stopped: all is cleaned up, and Ray's threads may be amid a call.

    Python would end its own parts below them: a crash, whose signal were the exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _end_on_signals() -> None:
    """End at once where nothing was started yet; a command that starts something has its own way.

    What is ignored, as by nohup, stays so. What this process forks ends without a line.
    """
    ours = os.getpid()

    def end(number: int, _: object) -> NoReturn:
        if os.getpid() == ours:
            _say(f"stopped by {signal.Signals(number).name}")
        os._exit(_SIGNALLED + number)  # an exception may be lost in a callback of an import

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


def _say(line: str) -> None:
    with suppress(OSError):  # the shell closed it
        os.write(2, f"{line}\n".encode())


if __name__ == "__main__":
    main()
