"""How near two ranks come to a perfect split of one kernel call, long and short."""

from __future__ import annotations

from statistics import median

from bench.attention_rank import PERFECT, RING, Sizes, Turn, measure_speed
from bench.ranks import run_on_ranks
from bench.record import Claim, Table, at_least

WORLD = 2  # as many as there are cores, so both schemes keep all of them busy
TURNS = 7  # the first warms up
SPEED_LEAST = {8192: 0.95, 2048: 0.85}  # of the perfect split's, by tokens


def compare() -> tuple[Table, list[Claim]]:
    """Forward and backward, causal zigzag, 8 heads on 2 of 64, one thread a rank."""
    rows: list[list[str]] = []
    claims: list[Claim] = []
    for seq_len, least in SPEED_LEAST.items():
        sizes = Sizes(seq_len=seq_len, kv_heads=2)
        seen = run_on_ranks(measure_speed, world=WORLD, sizes=sizes, repeats=TURNS)
        perfect, ring = (_slowest([one[name] for one in seen]) for name in (PERFECT, RING))
        ratios = [alone / apart for alone, apart in zip(perfect, ring, strict=True)]
        speed = median(ratios)
        rows.append(
            [
                f"{seq_len} tokens",
                *(f"{median(one):.3f}" for one in (perfect, ring)),
                *(f"{one:.3f}" for one in (speed, min(ratios), max(ratios))),
            ]
        )
        what = f"ring zigzag speed over the perfect split's, P = {WORLD}, {seq_len} tokens"
        claims.append(at_least(what, speed, least))
    table = Table(
        title=f"Speed, P = {WORLD}, causal, fp32, 8 heads on 2 kv heads of 64",
        columns=["", "perfect split s", "ring zigzag s", "perfect / ring", "least", "most"],
        rows=rows,
    )
    return table, claims


def _slowest(turns: list[list[Turn]]) -> list[float]:
    """Wall seconds of the slowest rank in each turn but the first."""
    return [max(turn.wall_s for turn in at_once) for at_once in zip(*turns, strict=True)][1:]
