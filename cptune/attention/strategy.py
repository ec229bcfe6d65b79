"""What the named strategies mean: a Ulysses degree, and a number of stages of the ring inside."""

from enum import StrEnum


class Strategy(StrEnum):
    """How the ranks of a context group share a sequence."""

    RING = "ring"  # one peer a stage unless told otherwise
    ALL_GATHER = "all_gather"  # all peers in one stage
    ULYSSES = "ulysses"  # heads traded among all ranks, no ring
    HYBRID = "hybrid"  # heads traded inside groups, a ring among them


def count_ulysses(strategy: Strategy, *, cp_size: int, ulysses: int) -> int:
    """Ranks that trade heads with each other.

    Raises:
        ValueError: `ulysses` contradicts the strategy or the group.
    """
    if strategy in (Strategy.RING, Strategy.ALL_GATHER) and ulysses != 1:
        raise ValueError(
            f"ulysses is {ulysses}, wanted 1 for strategy {strategy}; nearest is 1 (strategy "
            f"hybrid takes the divisors of {cp_size})"
        )
    if strategy is Strategy.ULYSSES:
        if ulysses not in (1, cp_size):
            raise ValueError(
                f"ulysses is {ulysses}, wanted {cp_size} or 1 (all ranks) for strategy ulysses; "
                f"nearest is {cp_size}"
            )
        return cp_size
    if ulysses < 1 or cp_size % ulysses:
        divisors = [d for d in range(1, cp_size + 1) if cp_size % d == 0]
        nearest = min(divisors, key=lambda d: abs(d - ulysses))
        raise ValueError(
            f"ulysses is {ulysses}, wanted a divisor of the {cp_size} ranks; nearest is {nearest}"
        )
    return ulysses


def count_stages(strategy: Strategy, *, cp_size: int, stages: int | None) -> int:
    """Number of stages that `strategy` and an optional explicit `stages` mean.

    Args:
        strategy: Its name.
        cp_size: Ranks of the ring: of the context group over its Ulysses degree.
        stages: As asked.

    Raises:
        ValueError: `stages` contradicts the strategy or the group; Plan checks its range.
    """
    most = cp_size - 1
    if stages is None:
        return min(1, most) if strategy is Strategy.ALL_GATHER else most
    if most == 0:
        raise ValueError(f"stages is {stages}, wanted None: one rank exchanges nothing")
    if strategy is Strategy.ALL_GATHER and stages != 1:
        raise ValueError(
            f"stages is {stages}, wanted 1 for strategy all_gather; nearest is 1 "
            f"(strategy ring takes 1..{most})"
        )
    return stages
