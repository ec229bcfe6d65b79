"""Small refusals that the nouns share, so that each says the value seen and the value wanted."""

from __future__ import annotations


def require_positive(noun: object, *names: str) -> None:
    """Refuse a field that is below one.

    Raises:
        ValueError: naming every field at fault and its value.
    """
    bad = [f"{name} is {getattr(noun, name)}" for name in names if getattr(noun, name) < 1]
    if bad:
        raise ValueError(f"{', '.join(bad)}; wanted 1 or more")


def require_share(noun: object, *names: str) -> None:
    """Refuse a field outside [0, 1).

    Raises:
        ValueError: naming every field at fault and its value.
    """
    bad = [f"{name} is {getattr(noun, name)}" for name in names if not 0 <= getattr(noun, name) < 1]
    if bad:
        raise ValueError(f"{', '.join(bad)}; wanted a share from 0 up to, not including, 1")
