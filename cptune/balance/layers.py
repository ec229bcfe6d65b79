"""Layer kinds of a model: full and sliding-window layers, and the mean layer of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cptune.balance.spread import Layers
from cptune.balance.work import Work
from cptune.errors import SpecError
from topology.words import suggestion

_MOST_DIGITS = 6  # of a number of layers
_KINDS = (Layers.FULL.value, Layers.WINDOW.value)


def read_work(layers: str | None, *, window: int | None, token_keys: float) -> Work:
    """The cost of a document in the mean layer; a step waits for the sum over its layers.

    Args:
        layers: How many of each kind, like "full=1,window=5"; None for one kind.
        window: Of the window layers.
        token_keys: As of `Work`.

    Raises:
        SpecError: when a kind, a number or the window is wrong.
    """
    full_share = 0.0
    if layers is not None:
        counts = _read_counts(layers)
        if counts[Layers.WINDOW] and window is None:
            raise SpecError(f"layers is {layers!r}, but there is no window; wanted --window")
        if window is not None and not counts[Layers.WINDOW]:
            raise SpecError(f"window is {window}, but layers {layers!r} have none with a window")
        full_share = 0.0 if window is None else counts[Layers.FULL] / sum(counts.values())
    try:
        return Work(window=window, token_keys=token_keys, full_share=full_share)
    except ValueError as exc:
        raise SpecError(str(exc)) from exc


def works_by_kind(work: Work) -> dict[Layers, Work]:
    """The cost in each kind of layer that a cost is made of, and itself last."""
    if work.window is None:
        return {Layers.FULL: work}
    window = replace(work, full_share=0.0)
    if not work.full_share:
        return {Layers.WINDOW: window}
    full = Work(token_keys=work.token_keys)
    return {Layers.FULL: full, Layers.WINDOW: window, Layers.MIXTURE: work}


def _read_counts(layers: str) -> Mapping[Layers, int]:
    counts = dict.fromkeys((Layers.FULL, Layers.WINDOW), 0)
    for part in layers.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        if name not in _KINDS or not number.isascii() or not number.isdigit():
            near = "" if name in _KINDS else suggestion(name, _KINDS)
            raise SpecError(f"layers is {layers!r}: {part!r} is not full=N or window=N{near}")
        if len(number) > _MOST_DIGITS:
            raise SpecError(f"layers is {layers!r}; wanted 0 to {10**_MOST_DIGITS - 1:,} of a kind")
        counts[Layers(name)] += int(number)
    if not sum(counts.values()):
        raise SpecError(f"layers is {layers!r}; wanted one layer or more")
    return counts
