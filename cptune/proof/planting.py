"""How a fault is planted in honest code, and taken out again."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def put(owner: object, name: str, value: object) -> Generator[None]:
    """Another value for a name of a module or class, until the context ends."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
