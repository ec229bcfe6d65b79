"""Stops that Python throws away: a signal's exception inside a callback that cannot raise."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

_SOON_S = 0.05

_Hook = Callable[["sys.UnraisableHookArgs"], object]


def keep_stops() -> None:
    """Raise an exit or Ctrl-C again that ended in a finalizer or in a callback of a fork.

    Python prints an exception that such code raises and goes on. One that a signal's handler raised
    there would be lost: repeated signals are ignored from the first on.
    """
    if not isinstance(sys.unraisablehook, _KeepStops):
        sys.unraisablehook = _KeepStops(sys.unraisablehook)


class _KeepStops:
    def __init__(self, others: _Hook) -> None:
        self._others = others

    def __call__(self, seen: sys.UnraisableHookArgs) -> None:
        stop = seen.exc_value
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and isinstance(stop, SystemExit | KeyboardInterrupt):
            _raise_soon(stop)
        else:
            self._others(seen)


def _raise_soon(stop: SystemExit | KeyboardInterrupt) -> None:
    """By a timer: here it would be lost once more, and a timer's may be, and comes again."""

    def again(*_: object) -> NoReturn:
        raise stop

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, _SOON_S)
