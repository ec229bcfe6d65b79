"""Cells of a table as values of our nouns: a text or a number, and nothing that is neither."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from math import isfinite, isnan
from typing import Any, TypeVar

from cptune.domain.aliases import meant

Word = TypeVar("Word", bound=StrEnum)
Hops = tuple[tuple[int, float], ...]

_YES_NO = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Cells:
    """One row, read cell by cell.

    Args:
        row: By column. A cell that is None, empty or not a number is taken as not there.
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = {name: value for name, value in row.items() if not _is_blank(value)}

    def has(self, name: str) -> bool:
        """Whether the row says something there."""
        return name in self._row

    def text(self, name: str, default: str | None = None) -> str:
        """A text.

        Raises:
            ValueError: when it is not there and has no default.
        """
        return self._read(name, str, default)

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number.

        Raises:
            ValueError: when it is another, or not there and has no default.
        """
        return self._read(name, _whole, default)

    def real(self, name: str, default: float | None = None) -> float:
        """A finite number.

        Raises:
            ValueError: when it is another, or not there and has no default.
        """
        return self._read(name, _real, default)

    def yes(self, name: str, *, default: bool) -> bool:
        """A truth.

        Raises:
            ValueError: when it is no such word.
        """
        return self._read(name, _truth, default)

    def word(self, name: str, words: type[Word], default: Word | None = None) -> Word:
        """One of some words.

        Raises:
            ValueError: when it is none of them, with the one that was meant.
        """

        def read(seen: object) -> Word:
            try:
                return words(str(seen))
            except ValueError:
                known = [one.value for one in words]
                wanted = ", ".join(known)
                raise ValueError(f"wanted one of {wanted}{meant(seen, known)}") from None

        return self._read(name, read, default)

    def hops(self, name: str) -> Hops:
        """Pairs of ranks and seconds, as a list or its JSON; none where it is not there.

        Raises:
            ValueError: when it is no list of pairs.
        """
        return self._read(name, _hops, ())

    def _read(self, name: str, read: Callable[[Any], Any], default: Any) -> Any:  # noqa: ANN401
        if name not in self._row:
            if default is None:
                raise ValueError(f"{name} is missing")
            return default
        try:
            return read(self._row[name])
        except (TypeError, ValueError, OverflowError) as exc:
            raise ValueError(f"{name} is {self._row[name]!r}: {exc}") from exc


def _is_blank(value: object) -> bool:
    if isinstance(value, float):
        return isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())


def _real(seen: object) -> float:
    number = float(str(seen))
    if not isfinite(number):
        raise ValueError("wanted a finite number")
    return number


def _whole(seen: object) -> int:
    number = _real(seen)
    if number != int(number):
        raise ValueError("wanted a whole number")
    return int(number)


def _truth(seen: object) -> bool:
    word = str(seen).strip().lower()
    if word not in _YES_NO:
        raise ValueError("wanted true or false")
    return _YES_NO[word]


def _hops(seen: Any) -> Hops:  # noqa: ANN401
    pairs = json.loads(seen) if isinstance(seen, str) else seen
    return tuple((int(ranks), float(seconds)) for ranks, seconds in pairs)
