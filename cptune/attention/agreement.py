"""Were all ranks of a group given the same? Found out before the first message, once.

Ranks that differ would wait for messages that nobody sends, end in the library below, or take one
message for another. What is compared is small: a digest from each; the values only if it differs.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeVar, cast

Given = Mapping[str, object]  # plain values by the name of the argument
Read = TypeVar("Read")
_MOST_TOLD = 3  # ranks that differ, of one argument


class Gather(Protocol):
    """Every rank's object, on every rank, by rank of the context group. Collective."""

    def __call__(self, mine: object) -> Sequence[object]:
        """`mine` is this rank's."""
        ...


class _Answer(NamedTuple):
    digest: str
    refused: str | None  # why this rank refuses what it was given


class Agreement:
    """What the instances of one exchange have compared; they share it.

    Args:
        gather: Asks the other ranks.
        size: Ranks of the group.
    """

    def __init__(self, gather: Gather, *, size: int) -> None:
        self._gather, self._size = gather, size
        self.attended = False

    def settle_once(self, read: Callable[[], tuple[Read, Given]]) -> Read:
        """The first time as settle; later what `read` finds, and nobody is asked."""
        if self.attended:
            return read()[0]
        found = self.settle(read)
        self.attended = True
        return found

    def settle(self, read: Callable[[], tuple[Read, Given]]) -> Read:
        """Return what `read` finds, if all ranks were given the same. Collective.

        Args:
            read: Reads the arguments of this rank: what came of them, and their values.

        Raises:
            ValueError: This rank refuses its arguments, another one does, or they differ. All
                ranks raise, so that none waits for another.
        """
        if self._size == 1:  # nobody to ask
            return read()[0]
        found = _try(read)
        refused = f"{found}" if isinstance(found, Exception) else None
        given: Given = {} if isinstance(found, Exception) else found[1]
        digest = sha256(repr(sorted(given.items())).encode()).hexdigest()
        mine = _Answer(digest, refused)
        answers = [cast(_Answer, one) for one in self._gather(mine)]
        if isinstance(found, Exception):
            raise found
        for rank, one in enumerate(answers):
            if one.refused is not None:
                raise ValueError(f"rank {rank} of the group refuses its arguments: {one.refused}")
        if len({one.digest for one in answers}) > 1:
            differ = [cast(Given, one) for one in self._gather(dict(given))]
            raise ValueError(tell_differences(differ))
        return found[0]


def _try(read: Callable[[], tuple[Read, Given]]) -> tuple[Read, Given] | Exception:
    try:
        return read()
    except (ValueError, TypeError) as error:
        return error


def tell_differences(given: Sequence[Given]) -> str:
    """Name each argument that ranks were given differently, with its values and ranks."""
    names = dict.fromkeys(name for one in given for name in one)
    told = [
        said for name in names if (said := _tell_argument(name, [one.get(name) for one in given]))
    ]
    return f"{'; '.join(told)}: wanted the same on all {len(given)} ranks of the group"


def _tell_argument(name: str, values: Sequence[object]) -> str | None:
    usual, held = Counter(map(repr, values)).most_common(1)[0]
    if held == len(values):
        return None
    at = next(rank for rank, value in enumerate(values) if repr(value) == usual)
    others = [rank for rank, value in enumerate(values) if repr(value) != usual]
    told = [_tell_pair(name, (rank, values[rank]), (at, values[at])) for rank in others]
    more = len(told) - _MOST_TOLD
    return ", ".join(told[:_MOST_TOLD]) + (f" and {more} more ranks" if more > 0 else "")


def _tell_pair(name: str, one: tuple[int, object], two: tuple[int, object]) -> str:
    (rank, value), (other_rank, other) = one, two
    if isinstance(value, tuple) and isinstance(other, tuple):  # long: where they part
        pairs = enumerate(zip(value, other, strict=False))
        shared = next((at for at, (a, b) in pairs if a != b), min(len(value), len(other)))
        if shared < min(len(value), len(other)):
            name, value, other = f"{name}[{shared}]", value[shared], other[shared]
        else:
            name, value, other = f"the length of {name}", len(value), len(other)
    return f"{name} is {value!r} on rank {rank}, {other!r} on rank {other_rank}"
