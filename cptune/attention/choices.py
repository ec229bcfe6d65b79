"""Reads one word out of a closed set, so that every wrong word gets the same useful message."""

import difflib
from collections.abc import Iterable


def read_choice(value: str, *, what: str, choices: Iterable[str]) -> str:
    """Return `value` when it is one of `choices`.

    Raises:
        ValueError: It is not; the message lists the choices and the nearest one.
    """
    allowed = list(choices)
    if value in allowed:
        return value
    near = difflib.get_close_matches(f"{value}", allowed, n=1, cutoff=0.4)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise ValueError(f"{what} is {value!r}, wanted one of {', '.join(allowed)}{hint}")
