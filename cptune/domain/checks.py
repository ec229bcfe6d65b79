"""Small refusals that the nouns share, so that each says the value seen and the value wanted."""

from __future__ import annotations

from pathlib import Path

#: More ranks than any cluster has.
MOST_RANKS = 1 << 20
#: Of one device or one sequence: the longest published contexts have 1 << 24.
MOST_TOKENS = 1 << 30
#: The deepest published models have a thousand layers (DeepNet: arXiv:2203.00555).
MOST_LAYERS = 10_000
#: Of a model: its hidden size, feed-forward width, heads, experts, vocabulary.
MOST_WIDE = 1 << 24
#: Of a global batch.
MOST_SEQUENCES = 1 << 24
#: Trials of a search, steps of a trial, payloads of an edge: none ends in a year.
MOST_REPEATS = 1_000_000
#: Of one device.
MOST_BYTES = 1 << 50
#: Of one training step: beyond them what follows is no number.
SHORTEST_STEP_S, LONGEST_STEP_S = 1e-30, 1e9
#: Of one device over a network, one way.
MOST_BYTES_PER_S = 10**15
#: Of numpy, which Optuna's samplers draw from.
LARGEST_SEED = (1 << 32) - 1
#: No size of a model, a batch or a cluster comes near it, and divisors of less are found quickly.
_TOO_LARGE = 1 << 48


def require_positive(noun: object, *names: str) -> None:
    """Refuse a field that is below one, or no size that the world holds.

    Raises:
        ValueError: naming every field at fault and its value.
    """
    require_range(noun, 1, _TOO_LARGE - 1, *names)


def require_range(noun: object, least: float, most: float, *names: str) -> None:
    """Refuse a field, or a value of a list, outside [least, most]; so that NaN fails.

    Raises:
        ValueError: naming every field at fault and its value.
    """
    bad = [
        (name, value)
        for name in names
        for value in _values(getattr(noun, name))
        if not least <= value <= most
    ]
    if bad:
        seen = ", ".join(f"{name} is {value}" for name, value in bad)
        above = any(value > most for _, value in bad)
        raise ValueError(f"{seen}; wanted {least:,} {f'to {most:,}' if above else 'or more'}")


def _values(field: float | tuple[float, ...] | None) -> tuple[float, ...]:
    if field is None:
        return ()
    return field if isinstance(field, tuple) else (field,)


def is_file(path: Path) -> bool:
    """Whether this is a file; a text that no file can be named by is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or a NUL
        return False


def require_share(noun: object, *names: str) -> None:
    """Refuse a field outside [0, 1).

    Raises:
        ValueError: naming every field at fault and its value.
    """
    bad = [f"{name} is {getattr(noun, name)}" for name in names if not 0 <= getattr(noun, name) < 1]
    if bad:
        raise ValueError(f"{', '.join(bad)}; wanted a share from 0 up to, not including, 1")


def require_hops(noun: object, *names: str) -> None:
    """Refuse pairs of ranks and seconds that are not ascending in ranks, from two, or below zero.

    Raises:
        ValueError: naming the field and the pair at fault.
    """
    for name in names:
        least = 2
        for ranks, seconds in getattr(noun, name):
            if not (least <= ranks <= MOST_RANKS and 0 <= seconds < 1):
                raise ValueError(
                    f"{name} has [{ranks}, {seconds}]; wanted [ranks, seconds], ranks ascending "
                    f"from {least}, seconds from 0 to below 1"
                )
            least = ranks + 1
