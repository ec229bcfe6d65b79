"""The application that the commands register with, and what they share."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from cyclopts import App

from cptune import __version__
from cptune.errors import SpecError
from topology.outputs import why_overwritten

SIGNALLED = 128  # an exit code is this and the signal's number
TERMINATED = SIGNALLED + signal.SIGTERM


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


app = App(
    name="cptune",
    version=__version__,
    help="Find the complete parallel recipe for long-context training, with the evidence for it."
    "\n\n--debug shows the traceback of an error.",
    version_flags=["--version"],
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


def end_on_signals() -> None:
    """Let the first signal run the clean-up of a command that has started processes."""
    signal.signal(signal.SIGTERM, _terminate)
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
