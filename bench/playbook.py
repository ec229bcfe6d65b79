"""The playbook's rows without pipelines, the one group that misses: by size, floor and kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.floor import Floor, Reached, floor_of, floor_table, noise_of
from bench.kinds import Kind, Told, by_kind, every_pipeline, kind_of, with_check
from bench.published import Published
from bench.record import Claim, Table, at_most
from bench.repeats import by_size
from bench.scoring import (
    MANY_NODES,
    by,
    errors,
    group,
    ranked_rate,
    ratio,
    real_rate,
    spearman,
    tail,
    workload,
)

RANK_WANTED = 0.85
_TAIL_WANTED = 0.30
_STEADY = 256
_SMALL = 64  # where rows with pipelines have not collapsed
_WIDE = 4  # tensor parallelism whose checks show beside what the device does


def playbook(rows: Sequence[Published]) -> tuple[list[Table], list[Claim]]:
    """Tables and claims of the sweep over many nodes; what is wanted stays wanted.

    Args:
        rows: Every published step.
    """
    many = [one for one in rows if group(one) == MANY_NODES]
    staged = [one for one in rows if "rest" in group(one)]
    pipelines = [
        one for one in staged if one.world_size <= _SMALL and one.candidate.layout.tp >= _WIDE
    ]
    noise = noise_of(many)
    groups = {MANY_NODES: many, **dict(sorted(by(many, workload).items()))}
    floors = {
        name: floor_of(found, noise, rank=spearman, tail=tail) for name, found in groups.items()
    }
    checks, told, chosen_tail = with_check(many, pipelines)
    reached = {name: _reached(found, told) for name, found in groups.items()}
    kinds = {
        MANY_NODES: many,
        f"pipelines, up to {_SMALL} GPUs, tp {_WIDE} and more": pipelines,
    }
    tables = [
        by_size(many, ratio, sorted({one.world_size for one in many})),
        floor_table(floors, reached, whole=MANY_NODES),
        by_kind(kinds, told),
        *checks,
        every_pipeline(staged, pipelines),
    ]
    claims = _tails(many, reached[MANY_NODES], chosen_tail)
    return tables, [*claims, *_ranks(floors, reached)]


def _reached(rows: Sequence[Published], told: Told) -> Reached:
    checked = [told(one) for one in rows]
    real = [*map(real_rate, rows)]
    return Reached(
        tail=tail(map(ratio, rows)),
        checked_tail=tail(map(ratio, checked)),
        rank=spearman([*map(ranked_rate, rows)], real),
        checked_rank=spearman([*map(ranked_rate, checked)], real),
    )


def _tails(many: Sequence[Published], reached: Reached, chosen_tail: float) -> list[Claim]:
    middle = errors(map(ratio, many))[0]
    missed = [one for one in many if abs(ratio(one) - 1) > _TAIL_WANTED]
    again = [one for one in many if kind_of(one) is Kind.AGAIN]
    other = [one for one in many if kind_of(one) is not Kind.AGAIN]
    steady = [one for one in many if one.world_size <= _STEADY]
    known = (
        f"{sum(one in again for one in missed)} of the {len(missed)} rows beyond it are among the "
        f"{len(again)} whose peaks say gathered again, which no row publishes; told so, and with "
        f"the check that pipelines of other sizes say, it is {reached.checked_tail:.1%}, or "
        f"{chosen_tail:.1%} where other sizes choose the rule that tells"
    )
    name = f"step time, {MANY_NODES}"
    return [
        at_most(f"{name}, median error", middle, 0.12),
        replace(at_most(f"{name}, 90th percentile", reached.tail, _TAIL_WANTED), known_miss=known),
        at_most(f"{name}, 90th percentile, as known", reached.tail, 0.45),
        replace(
            at_most(f"{name}, 90th percentile, checked by peak", chosen_tail, _TAIL_WANTED),
            known_miss="by a rule that the rows of other sizes choose for each size",
        ),
        at_most(f"{name}, 90th percentile, checked by peak, as known", chosen_tail, 0.33),
        at_most(f"{name} up to {_STEADY} GPUs, 90th", tail(map(ratio, steady)), _TAIL_WANTED),
        at_most(f"{name}, {len(other)} not gathered again, 90th", tail(map(ratio, other)), 0.30),
    ]


def _ranks(floors: dict[str, Floor], reached: dict[str, Reached]) -> list[Claim]:
    """The lowest rank correlation, as wanted, and against what a perfect prediction reaches."""
    what = f"Spearman inside a workload, {MANY_NODES}"
    found = [one for name, one in reached.items() if name != MANY_NODES]
    claims = list[Claim]()
    noisy = {name: one.drawn_rank[1] for name, one in floors.items() if _is_noisy(name, one)}
    said = ", ".join(f"{value:.3f} ({_short(name)})" for name, value in noisy.items())
    known = f"under the noise of twins a perfect prediction reaches {said} in the median draw"
    lowest = min(one.rank for one in found)
    claims.append(rank_claim(f"{what}, lowest", lowest, known_miss=known if noisy else ""))
    for name, value in noisy.items():
        claims.append(
            rank_claim(
                f"{what}, against the floor of {_short(name)}",
                reached[name].rank,
                wanted=value,
                known_miss="rows of both kinds; the table has it with the check of the slow kind",
            )
        )
    steady = min(one.rank for name, one in reached.items() if name not in {*noisy, MANY_NODES})
    claims.append(rank_claim(f"{what}, lowest where the floor allows it", steady))
    return claims


def _is_noisy(name: str, floor: Floor) -> bool:
    """Would a perfect prediction miss what is wanted in half of the draws?"""
    return name != MANY_NODES and floor.drawn_rank[1] < RANK_WANTED


def _short(name: str) -> str:
    return name.removeprefix(f"{MANY_NODES}: ").split(",")[0]


def rank_claim(
    what: str, value: float, *, wanted: float = RANK_WANTED, known_miss: str = ""
) -> Claim:
    """Claim that a rank correlation reaches what is wanted."""
    return Claim(
        what=what,
        seen=f"{value:.3f}",
        wanted=f"at least {wanted:.3g}",
        holds=value >= wanted,
        known_miss=known_miss,
    )
