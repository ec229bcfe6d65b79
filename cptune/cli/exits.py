"""Running the command line: every way it can end has its exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from cyclopts import Argument, CoercionError, CycloptsError, MissingArgumentError, Token

from cptune.cli.app import SIGNALLED, STOP_SAID, app
from cptune.cli.outputs import joined
from cptune.domain.aliases import meant
from cptune.errors import CptuneError
from cptune.printing import say
from topology.errors import TopologyError

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    _print_anything()
    sys.exit(run([word for word in arguments if word != "--debug"], debug=debug))


def _print_anything() -> None:
    """Let a name that is no text, as paths and files of others may hold, be printed escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def run(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run one command; returns its exit code.

    Args:
        arguments: The words after `cptune`.
        debug: Show the traceback of an error instead of its message.
    """
    try:
        code = app(
            joined(arguments), exit_on_error=False, print_error=False, result_action="return_value"
        )
    except (KeyboardInterrupt, SystemExit) as exc:
        _say_stop(exc)
        if isinstance(exc, SystemExit) or debug:
            raise
        return _INTERRUPTED
    except (CycloptsError, CptuneError, TopologyError, OSError) as exc:
        if debug and not isinstance(exc, CycloptsError):
            raise
        return _code_of(exc)
    return code if isinstance(code, int) else 0


def _say_stop(exc: KeyboardInterrupt | SystemExit) -> None:
    """One line of our own, unless the command has said one that tells more."""
    if STOP_SAID in getattr(exc, "__notes__", ()):
        return
    if isinstance(exc, KeyboardInterrupt):
        say("stopped by Ctrl-C")
    elif isinstance(exc.code, int) and exc.code > SIGNALLED:
        say(f"stopped by {signal.Signals(exc.code - SIGNALLED).name}")


def _code_of(exc: BaseException) -> int:
    """Say what went wrong; returns the exit code."""
    match exc:
        case MissingArgumentError(argument=Argument(name=name)):
            say(f"error: {name} is missing")
            return 2
        case CoercionError(argument=Argument() as argument, token=Token() as token) if (
            choices := argument.get_choices(force=True)
        ):
            say(
                f"error: {token.keyword or argument.name} is {token.value!r}; wanted "
                f"{_listed(choices)}{meant(token.value, choices)}"
            )
            return 2
        case CptuneError() | TopologyError():
            say(f"error: {exc}")
            if exc.hint:
                say(f"hint: {exc.hint}")
            return exc.exit_code if isinstance(exc, CptuneError) else 1
        case OSError():
            return _lost_output(exc)
        case _:
            say(f"error: {exc}")
            return 2


def _listed(words: Sequence[str]) -> str:
    *first, last = map(repr, words)
    return f"{', '.join(first)} or {last}" if first else last


def _lost_output(exc: OSError) -> int:
    """What was to be printed cannot be; what a run keeps in its directory is kept."""
    with suppress(OSError, ValueError):
        why = "its reader went away" if isinstance(exc, BrokenPipeError) else exc.strerror
        say(f"error: {exc}" if exc.filename else f"error: cannot print: {why}")
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
    return 1
