"""The application that the commands register with, and what they share."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from enum import StrEnum
from math import floor, isfinite
from pathlib import Path
from typing import NoReturn, get_args

from cyclopts import App, ArgumentCollection

from cptune import __version__
from cptune.cli.lost_stops import keep_stops
from cptune.errors import SpecError
from cptune.printing import say
from topology.outputs import why_overwritten

SIGNALLED = 128  # an exit code is this and the signal's number
STOP_SAID = "the command has said that it was stopped"  # a note of the exception


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


def _check_numbers(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Cyclopts rounds 1.5 to the 2 that nobody asked for, and takes a NaN for a number.

    Raises:
        SpecError: naming the flag, the value and what was wanted.
    """
    del app, commands
    for argument in arguments:
        kinds = {argument.hint, *get_args(argument.hint)}
        for value in (token.value for token in argument.tokens):
            if wanted := _why_no_number(value, kinds):
                raise SpecError(f"{argument.name} is {value}; wanted {wanted}")


def _why_no_number(value: str, kinds: set[object]) -> str | None:
    """What was wanted instead of a value; None where it, or what Cyclopts says of it, will do."""
    is_float = float in kinds
    if not is_float and not (int in kinds and "." in value):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not isfinite(number):
        return "a finite number"
    low = floor(number)
    return None if is_float or low == number else f"a whole number, {low} or {low + 1}"


app = App(
    name="cptune",
    version=__version__,
    help="Find the complete parallel recipe for long-context training, with the evidence for it."
    "\n\n--debug shows the traceback of an error.",
    version_flags=["--version"],
    config=_check_numbers,
    suppress_keyboard_interrupt=False,  # it ends with a line of ours
)
app["--help"].group = "Options"
app["--version"].group = "Options"


def refuse_overwriting(outputs: Mapping[str, Path | None], *, inputs: Iterable[Path]) -> None:
    """Refuse to write over what a command reads.

    Raises:
        SpecError: an output is an input, or another output.
    """
    if why := why_overwritten(outputs, inputs=inputs):
        raise SpecError(why)


def say_stopped(exc: BaseException, message: str) -> None:
    """Say what a command that a signal ends leaves, in place of the line that all others say."""
    say(message)
    exc.add_note(STOP_SAID)


def end_on_signals() -> None:
    """Let the first signal run the clean-up of a command that has started processes.

    A hang-up that is ignored, as by nohup, stays so.
    """
    keep_stops()
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)
    signal.signal(signal.SIGINT, _interrupt)


def _terminate(number: int, _: object) -> NoReturn:
    _ignore_repeats()
    raise SystemExit(SIGNALLED + number)


def _interrupt(*_: object) -> NoReturn:
    _ignore_repeats()
    raise KeyboardInterrupt


def _ignore_repeats() -> None:
    """Let the clean-up that the first signal starts come to its end; it takes a few seconds."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
