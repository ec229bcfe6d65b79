"""The nearest layouts that would do: legal beside an illegal one, lighter beside a big one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import log2

from cptune.domain.candidate import (
    Candidate,
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
)
from cptune.domain.rules import Setting, why_infeasible
from cptune.domain.workload import divisors, nearest_divisor
from cptune.planning.row import layout_json, shortage_bytes
from cptune.predict.prediction import Predictor

_SHOWN = 3
_CHANGES = 2


def exchanged(candidate: Candidate) -> Candidate:
    """The candidate with strategy and stages that its ulysses degree and ring allow."""
    lay = candidate.layout
    strategy = candidate.strategy
    if lay.ulysses > 1:
        strategy = Strategy.ULYSSES if lay.ulysses == lay.cp else Strategy.HYBRID
    elif strategy in (Strategy.ULYSSES, Strategy.HYBRID):
        strategy = Strategy.RING
    stages = 1 if strategy is Strategy.ALL_GATHER else lay.ring - 1
    return replace(candidate, strategy=strategy, stages=min(stages, max(0, lay.ring - 1)))


def nearest_legal(candidate: Candidate, setting: Setting) -> list[Candidate]:
    """The legal candidates that differ least in their sizes, in factors of two."""
    world = setting.world_size
    sizes = divisors(world)
    found = list[tuple[float, str, Candidate]]()
    for tp, cp, pp in product(sizes, repeat=3):
        if world % (tp * cp * pp):
            continue
        dp = world // (tp * cp * pp)
        layout = replace(candidate.layout, tp=tp, cp=cp, pp=pp, dp=dp)
        for changed in _variants(replace(candidate, layout=layout)):
            distance = _distance(candidate, changed)
            if len(found) >= _SHOWN and distance > found[_SHOWN - 1][0]:
                continue
            if not why_infeasible(changed, setting):
                found.append((distance, changed.key, changed))
                found.sort(key=lambda one: one[:2])
    return [one.canonical() for _, _, one in found[:_SHOWN]]


def _variants(candidate: Candidate) -> Iterator[Candidate]:
    lay = candidate.layout
    for micro_batch in sorted({candidate.micro_batch, 1}):
        for vpp in sorted({lay.vpp, 1}):
            for ulysses in sorted({nearest_divisor(lay.cp, lay.ulysses), 1}):
                layout = replace(lay, vpp=vpp, ulysses=ulysses)
                yield exchanged(replace(candidate, layout=layout, micro_batch=micro_batch))


def _distance(a: Candidate, b: Candidate) -> float:
    one, two = a.layout, b.layout
    pairs = [(getattr(one, n), getattr(two, n)) for n in ("tp", "cp", "pp", "vpp", "ulysses")]
    pairs.append((a.micro_batch, b.micro_batch))
    return sum(abs(log2(x / y)) for x, y in pairs)


def lighter(
    candidate: Candidate, predictor: Predictor, setting: Setting
) -> list[dict[str, object]]:
    """The two single changes that lower the likely peak most, and what is still missing after."""
    found = list[tuple[float, str, Candidate]]()
    for words, changed in _single_changes(candidate):
        if not why_infeasible(changed, setting):
            found.append((predictor.memory(changed).likely_bytes, words, changed))
    found.sort(key=lambda one: one[:2])
    before = predictor.memory(candidate).likely_bytes
    return [
        {
            "change": words,
            "peak_bytes": round(peak),
            "short_bytes": round(shortage_bytes(predictor.memory(changed).low_bytes, predictor)),
            "layout": layout_json(changed, predictor),
        }
        for peak, words, changed in found[:_CHANGES]
        if peak < before
    ]


def _single_changes(candidate: Candidate) -> Iterator[tuple[str, Candidate]]:
    half = candidate.micro_batch // 2 or 1
    options = (
        ("recompute", replace(candidate, recompute=Recompute.SELECTIVE)),
        ("recompute", replace(candidate, recompute=Recompute.FULL)),
        ("loss", replace(candidate, loss=LossKind.CHUNKED)),
        ("data_parallel", replace(candidate, data_parallel=DataParallelKind.ZERO1)),
        ("data_parallel", replace(candidate, data_parallel=DataParallelKind.FSDP)),
        ("micro_batch", replace(candidate, micro_batch=half)),
    )
    for name, changed in options:
        if changed != candidate:
            yield f"{name} {getattr(candidate, name)} -> {getattr(changed, name)}", changed
    lay = candidate.layout
    if lay.dp % 2:
        return
    wider = (
        ("tp", replace(lay, tp=2 * lay.tp, dp=lay.dp // 2)),
        ("cp", replace(lay, cp=2 * lay.cp, dp=lay.dp // 2)),
        ("pp", replace(lay, pp=2 * lay.pp, dp=lay.dp // 2)),
    )
    for name, layout in wider:
        words = f"{name} {getattr(lay, name)} -> {getattr(layout, name)}"
        sharding = ShardingKind.ZIGZAG if lay.cp == 1 else candidate.sharding
        changed = exchanged(replace(candidate, layout=layout, sharding=sharding)).canonical()
        yield f"{words}, dp {lay.dp} -> {layout.dp}", changed
