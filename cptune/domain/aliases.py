"""Words of other software for ours: a refusal tells them apart from slips of the hand."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import resources

from topology.words import suggestion


@cache
def _table() -> dict[str, tuple[str, ...]]:
    """Ours, of any set of words, by theirs."""
    text = resources.files("cptune.domain").joinpath("aliases.toml").read_text(encoding="utf-8")
    found: dict[str, tuple[str, ...]] = {}
    for row in tomllib.loads(text)["alias"]:
        for word in row["theirs"]:
            found[_plain(word)] = (*found.get(_plain(word), ()), row["ours"])
    return found


def _plain(word: str) -> str:
    return "".join(one for one in word.lower() if one.isalnum())


def known_as(seen: object, known: Iterable[str]) -> str | None:
    """Our word for what other software calls `seen`; None where it is no such name."""
    words = {_plain(word): word for word in known}
    found = (words.get(_plain(ours)) for ours in _table().get(_plain(str(seen)), ()))
    return next((word for word in found if word is not None), None)


def meant(seen: object, known: Iterable[str]) -> str:
    """The end of a refusal: our word for another's, else the one that is spelt nearest."""
    words = list(known)
    ours = known_as(seen, words)
    return suggestion(seen, words) if ours is None else f"; {str(seen)!r} is '{ours}' here"
