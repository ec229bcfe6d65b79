"""Context-parallel attention against a perfect split of one rank's kernel and against a relay ring.

Bytes and live tensors are counted, so their claims are exact; seconds are ratios of one run.
"""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import median

import torch

from bench import attention_speed
from bench.attention_rank import PERFECT, STRATEGIES, Cost, Seen, Sizes, measure
from bench.ranks import run_on_ranks
from bench.record import Claim, Report, Table, at_most, exactly
from cptune.attention import Mask, Partition, Pattern, Sharding

TIMED = (2, 4)  # ranks
REPEATS = 5
SIZES = Sizes(seq_len=4096)
GROWN = (2, 4, 8)  # ranks, each with as many rows as the next
ROWS_EACH = 256
SHARDINGS = ("contiguous", "zigzag")
# A packed sequence: one long document, some middling ones, many short ones, an empty one.
DOCS = (1900, 0, 600, 500, 1, 400, 100, 100, 100, 95, 200, 100)
PACK = 65536  # tokens of a pack whose balance is counted, over BALANCED ranks
BALANCED = 8
PACKS = 6

FORWARD_MOST = 0.76  # of the relay's keys and values, causal zigzag
BACKWARD_MOST = 0.67  # of the relay's keys, values and fp32 gradients, causal zigzag
BALANCE_MOST = 1.01  # work of the busiest rank over the mean, balanced
BUSY_MOST = 1.3  # times the relay's busiest rank; wide, since caches are shared with others
GROWTH_MOST = 1.15  # peak of a ring from 4 to 8 ranks at equal rows; linear growth would be 2
DIFFERENCE_MOST = 1e-5  # fp32, of values about 1

NOTES = (
    f"batch 1, {SIZES.heads} heads, {SIZES.kv_heads} kv heads of {SIZES.head_dim}; each "
    "rank has one thread. KV is the keys and values of one rank.",
    "perfect split: each of the P ranks attends the whole sequence for its P-th of the heads in "
    "one kernel call. The same pairs, cores and threads, no message, no imbalance, no merge.",
    "relay: ring-flash-attention's schedule, written in bench/relay.py on our kernel and merge. "
    "Whole blocks in P-1 hops; in backward their fp32 gradients travel with them for P hops.",
    f"wall s: forward + backward of the slowest rank, median of {REPEATS} turns in which every "
    "scheme runs once, after one turn to warm up. Ratios are medians over turns. With fewer free "
    "cores than ranks it is the work of all ranks, whatever the balance.",
    "busy s: seconds that the busiest rank had a core, messages included and waiting not. It "
    "hardly depends on what else runs; with a core for every rank the wall comes down to it.",
    "bytes: sent by all ranks, counted where they are posted. Peaks: live tensors of the worst "
    "rank beside its inputs; output and log-sum-exp are among them.",
    "imbalance: query-key pairs, or busy seconds, of the busiest rank over the mean.",
)


def run() -> Report:
    """Time two group sizes, count bytes in two types, and grow the group at equal rows."""
    tables: list[Table] = []
    claims: list[Claim] = []
    for world in TIMED:
        seen = run_on_ranks(measure, world=world, sizes=SIZES, repeats=1 + REPEATS)
        tables += [_times(seen, SIZES), _counts(seen, SIZES)]
        claims += [*_byte_claims(seen, SIZES), *_run_claims(seen)]
    half = replace(SIZES, dtype=torch.bfloat16)
    seen = run_on_ranks(measure, world=TIMED[-1], sizes=half, repeats=0)
    tables.append(_counts(seen, half))
    claims += _byte_claims(seen, half)
    packed = replace(SIZES, docs=DOCS)
    seen = run_on_ranks(measure, world=TIMED[-1], sizes=packed, repeats=1 + REPEATS)
    tables += [_times(seen, packed), _counts(seen, packed)]
    claims += _document_claims(seen)
    for table, found in (_grow(), _balance(), attention_speed.compare()):
        tables.append(table)
        claims += found
    return Report(notes=NOTES, tables=tables, claims=claims)


def _times(seen: list[Seen], sizes: Sizes) -> Table:
    perfect = [_slowest(seen, PERFECT), _busiest(seen, PERFECT)]
    relay = [_slowest(seen, "relay zigzag"), _busiest(seen, "relay zigzag")]
    rows: list[list[str]] = []
    for name in seen[0].turns:
        mine = [_slowest(seen, name), _busiest(seen, name)]
        work_s = [median(turn.busy_s for turn in rank.turns[name][1:]) for rank in seen]
        cost = seen[0].costs.get(name)
        rows.append(
            [
                name,
                *(f"{median(one):.3f}" for one in mine),
                *(f"{_ratio(a, b):.2f}" for a, b in zip(perfect, mine, strict=True)),
                *(f"{_ratio(a, b):.2f}" for a, b in zip(mine, relay, strict=True)),
                f"{cost.imbalance:.3f}" if cost else "1.000",
                f"{max(work_s) * len(seen) / sum(work_s):.3f}",
            ]
        )
    return Table(
        title=f"Time, P = {len(seen)}, {_what(sizes)}",
        columns=[
            *("scheme", "wall s", "busy s", "perfect / this, wall", "busy"),
            *("this / relay zigzag, wall", "busy", "imbalance, pairs", "busy"),
        ],
        rows=rows,
    )


def _counts(seen: list[Seen], sizes: Sizes) -> Table:
    world, block = len(seen), sizes.block_bytes(len(seen))
    rows: list[list[str]] = []
    for name in seen[0].costs:
        mine = _totals(seen, name)
        relay = _totals(seen, f"relay {name.split()[1]}")
        rows.append(
            [
                name,
                *(f"{count / world / block:.3f}" for count in mine[:2]),
                *(f"{a / b:.3f}" for a, b in zip(mine[:2], relay[:2], strict=True)),
                *(f"{count / block:.2f}" for count in mine[2:]),
                *(f"{a / b:.2f}" for a, b in zip(mine[2:], relay[2:], strict=True)),
            ]
        )
    return Table(
        title=f"Bytes and peaks, P = {world}, {_what(sizes)}: KV a rank, "
        "and over the relay of the same sharding",
        columns=[
            *("scheme", "fwd sent", "bwd sent", "fwd / relay", "bwd / relay"),
            *("fwd peak", "bwd peak", "fwd peak / relay", "bwd peak / relay"),
        ],
        rows=rows,
    )


def _byte_claims(seen: list[Seen], sizes: Sizes) -> list[Claim]:
    """The counters against the plan, against the formulas, and against the relay."""
    world, block = len(seen), sizes.block_bytes(len(seen))
    hops = world - 1
    relay_backward = hops + world * 4 / sizes.dtype.itemsize  # the gradients are fp32
    where = f"P = {world}, {_word(sizes)}"
    claims: list[Claim] = []
    for sharding, share in (("contiguous", 0.5), ("zigzag", 0.75)):
        staged = (share * hops, 2 * share * hops, 0)
        for strategy in STRATEGIES:
            name = f"{strategy} {sharding}"
            forward, backward = (count / world / block for count in _totals(seen, name)[:2])
            unplanned = sum(not _as_planned(rank.costs[name]) for rank in seen)
            wanted = (float(hops), relay_backward, 0) if strategy == "relay" else staged
            what = f"{name} (KV sent forward, backward, ranks off their plan), {where}"
            claims.append(exactly(what, (forward, backward, unplanned), wanted))
    pairs = zip(_totals(seen, "ring zigzag"), _totals(seen, "relay zigzag"), strict=True)
    forward, backward, *_ = (a / b for a, b in pairs)
    return [
        *claims,
        at_most(f"ring / relay zigzag forward bytes, {where}", forward, FORWARD_MOST),
        at_most(f"ring / relay zigzag backward bytes, {where}", backward, BACKWARD_MOST),
    ]


def _run_claims(seen: list[Seen]) -> list[Claim]:
    where = f"P = {len(seen)}, fp32"
    busy = _ratio(_busiest(seen, "ring zigzag"), _busiest(seen, "relay zigzag"))
    difference = max(rank.difference for rank in seen)
    return [
        at_most(f"largest difference of ring and relay, {where}", difference, DIFFERENCE_MOST),
        at_most(f"ring / relay zigzag busy seconds, {where}", busy, BUSY_MOST),
    ]


def _grow() -> tuple[Table, list[Claim]]:
    """Peaks as ranks and sequence grow together: a ring's must stay, O(S/P)."""
    peaks: dict[str, list[tuple[float, float]]] = {}
    for world in GROWN:
        sizes = replace(SIZES, seq_len=ROWS_EACH * world)
        seen = run_on_ranks(measure, world=world, sizes=sizes, repeats=0)
        for name in seen[0].costs:
            _, _, forward, backward = _totals(seen, name)
            block = sizes.block_bytes(world)
            peaks.setdefault(name, []).append((forward / block, backward / block))
    claims: list[Claim] = []
    for sharding in SHARDINGS:
        (before, after) = peaks[f"ring {sharding}"][-2:]
        for half, at in (("forward", 0), ("backward", 1)):
            what = f"ring {sharding} {half} peak, P = {GROWN[-1]} / P = {GROWN[-2]}"
            claims.append(at_most(what, after[at] / before[at], GROWTH_MOST))
    cells = {
        name: [f"{seen[half]:.2f}" for half in (0, 1) for seen in found]
        for name, found in peaks.items()
    }
    table = Table(
        title=f"Peaks at {ROWS_EACH} rows a rank, fp32, KV",
        columns=["scheme", *(f"{half} P = {world}" for half in ("fwd", "bwd") for world in GROWN)],
        rows=[[name, *row] for name, row in cells.items()],
    )
    return table, claims


def _totals(seen: list[Seen], name: str) -> tuple[int, int, int, int]:
    """Forward and backward bytes of all ranks, forward and backward peak of the worst."""
    costs = [rank.costs[name] for rank in seen]
    return (
        sum(cost.forward_bytes for cost in costs),
        sum(cost.backward_bytes for cost in costs),
        max(cost.forward_peak_bytes for cost in costs),
        max(cost.backward_peak_bytes for cost in costs),
    )


def _as_planned(cost: Cost) -> bool:
    return cost.planned in (None, (cost.forward_bytes, cost.backward_bytes))


def _slowest(seen: list[Seen], name: str) -> list[float]:
    """Wall seconds of the slowest rank in each turn; the first turn warms up."""
    return [
        max(turn.wall_s for turn in at_once)
        for at_once in zip(*(rank.turns[name] for rank in seen), strict=True)
    ][1:]


def _busiest(seen: list[Seen], name: str) -> list[float]:
    """Busy seconds of the busiest rank in each turn; the first turn warms up."""
    return [
        max(turn.busy_s for turn in at_once)
        for at_once in zip(*(rank.turns[name] for rank in seen), strict=True)
    ][1:]


def _ratio(mine: list[float], others: list[float]) -> float:
    return median(a / b for a, b in zip(mine, others, strict=True))


def _document_claims(seen: list[Seen]) -> list[Claim]:
    """Documents: what moves is what was planned, and no scheme moves more than the relay."""
    where = f"P = {len(seen)}, documents"
    claims: list[Claim] = []
    for name in seen[0].costs:
        unplanned = sum(not _as_planned(rank.costs[name]) for rank in seen)
        claims.append(exactly(f"{name} (ranks off their plan), {where}", unplanned, 0))
    balanced = seen[0].costs["ring balanced"].imbalance
    claims.append(at_most(f"imbalance of balanced, {where}", balanced, 1.02))
    difference = max(rank.difference for rank in seen)
    return [
        *claims,
        at_most(f"largest difference of ring and relay, {where}", difference, DIFFERENCE_MOST),
    ]


def _balance() -> tuple[Table, list[Claim]]:
    """Pairs of the busiest of 8 ranks over the mean, for packs of documents with long tails."""
    rows: list[list[str]] = []
    worst = 0.0
    for seed in range(PACKS):
        docs = _pack(seed)
        pattern = Pattern(mask=Mask.DOCUMENT, seq_len=PACK, docs=docs)
        found: list[float] = []
        for sharding in Sharding:
            part = Partition(seq_len=PACK, cp_size=BALANCED, sharding=sharding, pattern=pattern)
            work = [sum(map(pattern.pairs, part.intervals(rank))) for rank in range(BALANCED)]
            found.append(max(work) * BALANCED / sum(work))
        rows.append([f"{len(docs)} documents", *(f"{one:.4f}" for one in found)])
        worst = max(worst, found[list(Sharding).index(Sharding.BALANCED)])
    table = Table(
        title=f"Imbalance, P = {BALANCED}, packs of {PACK} tokens, documents up to a quarter",
        columns=["pack", *Sharding],
        rows=rows,
    )
    what = f"imbalance of balanced, P = {BALANCED}, worst of {PACKS} packs"
    return table, [at_most(what, worst, BALANCE_MOST)]


def _pack(seed: int) -> tuple[int, ...]:
    source = random.Random(seed)
    docs: list[int] = []
    while (left := PACK - sum(docs)) > 0:
        docs.append(min(int(source.lognormvariate(7.0, 1.5)) + 1, PACK // 4, left))
    return tuple(docs)


def _what(sizes: Sizes) -> str:
    mask = f"{sum(map(bool, sizes.docs))} documents" if sizes.docs else "causal"
    return f"{sizes.seq_len} tokens, {mask}, {_word(sizes)}"


def _word(sizes: Sizes) -> str:
    return str(sizes.dtype).removeprefix("torch.")
