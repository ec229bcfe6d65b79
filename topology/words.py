"""The legal word that is nearest to one that is not, said alike wherever a word is refused."""

from collections.abc import Iterable
from difflib import SequenceMatcher

_CLOSE = 0.6  # as difflib: above, a slip of the hand
_ALIKE = 0.7  # the same of names that nobody said are the only ones: nope is no slip of notes


def nearest_word(seen: object, known: Iterable[str]) -> str | None:
    """The known word that is spelt most like `seen`, whatever the case; None where none is known.

    Words that begin with what was seen come before the others.
    """
    words = list(known)
    begun = [word for word in words if word.lower().startswith(str(seen).lower())]
    if begun:
        return max(begun, key=lambda word: _likeness(seen, word))
    return max(words, key=lambda word: (_likeness(seen, word), word), default=None)


def suggestion(seen: object, known: Iterable[str]) -> str:
    """The end of a refusal: what was meant, or what is nearest; empty where nothing is known."""
    near = nearest_word(seen, known)
    if near is None:
        return ""
    is_close = _likeness(seen, near) >= _CLOSE
    return f", did you mean '{near}'?" if is_close else f"; nearest legal: {near}"


def slip_of(seen: object, known: Iterable[str]) -> str | None:
    """The known word that `seen` is a slip of the hand of; None where none is spelt alike."""
    words = list(known)
    near = max(words, key=lambda word: (_likeness(seen, word), word), default=None)
    return near if near is not None and _likeness(seen, near) >= _ALIKE else None


def _likeness(seen: object, word: str) -> float:
    return SequenceMatcher(None, str(seen).lower(), word.lower()).ratio()
