"""Where a ring enters and leaves each node, so that both ends of a network edge are on one rail."""

from collections.abc import Hashable, Sequence
from typing import TypeAlias

Rail: TypeAlias = Hashable
Ends: TypeAlias = tuple[Rail, Rail]  # (rail the ring enters at, rail it leaves at)
_Way: TypeAlias = tuple[int, tuple[int, ...]]  # (changes of rail so far, choice for each node)


def join_rails(choices: Sequence[Sequence[Ends]]) -> tuple[list[int], int]:
    """Choose one way through each node of a ring, so that the fewest edges change the rail.

    Args:
        choices: For each node in ring order, the ways through it, the preferred first.

    Returns:
        (chosen, changes): the position of the choice for each node, and how many of the edges
        between one node and the next, the last and the first included, change the rail.
    """
    best: tuple[list[int], int] | None = None
    for start in dict.fromkeys(enters for enters, _ in choices[0]):
        found = _from(start, choices)
        if best is None or found[1] < best[1]:
            best = found
        if best[1] == 0:
            break
    assert best is not None  # every node has a way through it
    return best


def _from(start: Rail, choices: Sequence[Sequence[Ends]]) -> tuple[list[int], int]:
    """The best choice among those that enter the first node at rail `start`."""
    steps: list[dict[Rail, tuple[int, int, Rail]]] = []  # leaves -> (changes, choice, rail before)
    for number, ways in enumerate(choices):
        before = {rail: changes for rail, (changes, _, _) in steps[-1].items()} if steps else {}
        nearest = min(before, key=before.__getitem__, default=start)
        here: dict[Rail, tuple[int, int, Rail]] = {}
        for choice, (enters, leaves) in enumerate(ways):
            if number == 0 and enters != start:
                continue
            changes, came = before.get(nearest, 0) + (number > 0), nearest
            if number == 0 or before.get(enters, changes) < changes:
                changes, came = before.get(enters, 0), enters
            if leaves not in here or changes < here[leaves][0]:
                here[leaves] = changes, choice, came
        steps.append(here)
    last = min(steps[-1], key=lambda rail: (steps[-1][rail][0] + (rail != start), rail != start))
    changes = steps[-1][last][0] + (last != start)
    chosen: list[int] = []
    for step in reversed(steps):
        _, choice, last = step[last]
        chosen.append(choice)
    return chosen[::-1], changes
