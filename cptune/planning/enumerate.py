"""Every candidate of a spec's axes that the rules allow, judged once for each layout.

The legal set of a large world is mostly ruled out by a few sizes, so sizes are judged first and
the axes that no rule reads are multiplied in afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd

from cptune.domain.candidate import Candidate, ShardingKind, Strategy, ulysses_degrees
from cptune.domain.layout import ParallelLayout
from cptune.domain.rules import Setting, why_infeasible
from cptune.domain.study import Axes
from cptune.search.space import explicit

_WORLD = "world-size"
_BATCH = "global-batch"


@dataclass(slots=True)
class LegalSet:
    """The legal candidates, each run once, and how many combinations each rule excludes."""

    candidates: list[Candidate] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)


def enumerate_legal(axes: Axes, setting: Setting) -> LegalSet:
    """Judge every combination of the axes; an empty axis is everything legal."""
    batch = setting.workload.global_batch_seqs
    full = explicit(axes, world_size=setting.world_size, global_batch_seqs=batch)
    found = LegalSet()
    seen = set[Candidate]()
    weight = _free_combinations(full)
    for layout in _layouts(full, setting, found.excluded, weight):
        exchanges = list(_exchanges(full, layout))
        for micro_batch in full.micro_batch:
            if batch % (layout.dp * micro_batch):
                found.excluded[_BATCH] += weight * len(exchanges)
                continue
            for exchange in exchanges:
                one = replace(exchange, micro_batch=micro_batch).canonical()
                if one in seen:
                    continue
                seen.add(one)
                broken = {violation.rule for violation in why_infeasible(one, setting)}
                found.excluded.update(dict.fromkeys(broken, weight))
                if not broken:
                    found.candidates.extend(_free(one, full))
    return found


def _free_combinations(axes: Axes) -> int:
    return len(axes.recompute) * len(axes.loss) * len(axes.data_parallel)


def _free(candidate: Candidate, axes: Axes) -> Iterator[Candidate]:
    for recompute, loss, kind in product(axes.recompute, axes.loss, axes.data_parallel):
        yield replace(candidate, recompute=recompute, loss=loss, data_parallel=kind)


def _layouts(
    axes: Axes, setting: Setting, excluded: Counter[str], weight: int
) -> Iterator[ParallelLayout]:
    """Layouts whose sizes are legal whatever the exchange is; experts as spread as they go."""
    for tp, cp, pp, vpp in product(axes.tp, axes.cp, axes.pp, axes.vpp):
        size = tp * cp * pp
        if setting.world_size % size:
            excluded[_WORLD] += weight
            continue
        dp = setting.world_size // size
        layout = ParallelLayout(
            tp=tp, cp=cp, pp=pp, vpp=vpp, dp=dp, ep=gcd(setting.model.experts or 1, dp * cp)
        )
        plain = Candidate(
            layout=layout, sharding=ShardingKind.CONTIGUOUS, stages=layout.ring - 1
        ).canonical()
        broken = {violation.rule for violation in why_infeasible(plain, setting)} - {_BATCH}
        excluded.update(dict.fromkeys(broken, weight))
        if not broken:
            yield layout


def _exchanges(axes: Axes, layout: ParallelLayout) -> Iterator[Candidate]:
    """Every way to cut and move the context over the layout, with defaults on the other axes."""
    if layout.cp == 1:
        yield Candidate(layout=layout)
        return
    for strategy, sharding in product(axes.strategy, axes.sharding):
        for ulysses in ulysses_degrees(strategy, layout.cp):
            for stages in _stages(strategy, layout.cp // ulysses, axes.stages):
                yield Candidate(
                    layout=replace(layout, ulysses=ulysses),
                    strategy=strategy,
                    sharding=sharding,
                    stages=stages,
                )


def _stages(strategy: Strategy, ring: int, asked: Iterable[int]) -> list[int]:
    if strategy is Strategy.ULYSSES:
        return [0]
    if strategy is Strategy.ALL_GATHER:
        return [1]
    return [stages for stages in asked if stages < ring] or [ring - 1]
