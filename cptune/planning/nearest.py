"""The nearest layouts that would do: legal beside an illegal one, lighter beside a big one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, log2

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
from cptune.planning.row import fit_of, layout_json, shortage_bytes, stack_json
from cptune.predict.memory import MemoryBand
from cptune.predict.prediction import Predictor

_SHOWN = 3
_CHANGES = 2
_CHOICES = ("recompute", "loss", "data_parallel", "micro_batch")
_WIDER = ("tp", "cp", "pp")


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
        for changed in _variants(replace(candidate, layout=layout), experts=setting.model.experts):
            distance = _distance(candidate, changed)
            if len(found) >= _SHOWN and distance > found[_SHOWN - 1][0]:
                continue
            if not why_infeasible(changed, setting):
                found.append((distance, changed.key, changed))
                found.sort(key=lambda one: one[:2])
    return [one.canonical() for _, _, one in found[:_SHOWN]]


def _variants(candidate: Candidate, *, experts: int) -> Iterator[Candidate]:
    """The other sizes as asked, or the nearest that tp, cp, pp, dp and the model allow."""
    lay = candidate.layout
    sizes = product(
        sorted({candidate.micro_batch, 1}),
        sorted({lay.vpp, 1}),
        sorted({nearest_divisor(lay.cp, lay.ulysses), 1}),
        sorted({nearest_divisor(gcd(experts or 1, lay.dp * lay.cp), lay.ep), 1}),
    )
    for micro_batch, vpp, ulysses, ep in sizes:
        layout = replace(lay, vpp=vpp, ulysses=ulysses, ep=ep)
        yield exchanged(replace(candidate, layout=layout, micro_batch=micro_batch))


def _distance(a: Candidate, b: Candidate) -> float:
    one, two = a.layout, b.layout
    pairs = [(getattr(one, n), getattr(two, n)) for n in ("tp", "cp", "pp", "vpp", "ulysses", "ep")]
    pairs.append((a.micro_batch, b.micro_batch))
    return sum(abs(log2(x / y)) for x, y in pairs)


def lighter(
    candidate: Candidate, predictor: Predictor, setting: Setting
) -> list[dict[str, object]]:
    """The two nearest changes that need less memory, first those that fit.

    Single changes; where none of them likely fits, two at once. Of those that fit the fastest come
    first; of those that do not, the ones that miss least.
    """
    found = list(_lighter(candidate, _single_changes(candidate), predictor, setting))
    if not any(one.beyond_bytes == 0 for one in found):
        found += _lighter(candidate, _double_changes(candidate), predictor, setting)
    found.sort(key=lambda one: one.order)
    return [
        {
            "change": one.words,
            "stack": stack_json(one.candidate, predictor),
            "peak_bytes": round(one.band.likely_bytes),
            **_bounds(one.band, predictor),
            "fits": predictor.fits(one.band),
            "beyond_bytes": round(one.beyond_bytes),
            "short_bytes": round(shortage_bytes(one.band.low_bytes, predictor)),
            "layout": layout_json(one.candidate, predictor),
        }
        for one in found[:_CHANGES]
    ]


def _bounds(band: MemoryBand, predictor: Predictor) -> dict[str, int | None]:
    """What decides whether it fits, beside the likely peak."""
    fit = fit_of(band, predictor)
    return {
        "peak_lo_bytes": round(fit.low_bytes),
        "peak_hi_bytes": round(fit.high_bytes),
        "reserve_bytes": round(band.worst.reserve_bytes),
        "capacity_bytes": fit.capacity_bytes or None,
        "inside_margin_bytes": fit.inside_bytes or None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A lighter layout, what changed, and by how much its likely peak still misses."""

    words: str
    candidate: Candidate
    band: MemoryBand
    beyond_bytes: float
    step_s: float

    @property
    def order(self) -> tuple[float, float, str]:
        return self.beyond_bytes, self.step_s, self.words


def _lighter(
    candidate: Candidate,
    changes: Iterable[Candidate],
    predictor: Predictor,
    setting: Setting,
) -> Iterator[_Change]:
    """The legal ones among the changes that lower the likely peak, each layout once."""
    before, seen = predictor.memory(candidate).likely_bytes, set[Candidate]()
    for changed in changes:
        if changed in seen or why_infeasible(changed, setting):
            continue
        seen.add(changed)
        band = predictor.memory(changed)
        if band.likely_bytes < before:
            yield _Change(
                words=_words(candidate, changed, predictor),
                candidate=changed,
                band=band,
                beyond_bytes=predictor.beyond_bytes(band),
                step_s=predictor.predict(changed, band).time.step_s,
            )


def _double_changes(candidate: Candidate) -> Iterator[Candidate]:
    """Two single changes at once, of different axes or of one twice."""
    for once in _single_changes(candidate):
        yield from (twice for twice in _single_changes(once) if twice != candidate)


def _words(before: Candidate, after: Candidate, predictor: Predictor) -> str:
    """What changed, dp last: it gives the ranks that the others take.

    Another kind of data parallelism may be another stack, where the spec names none: its figures
    are then those of other software, which is said.
    """
    old, new = before.axes(), after.axes()
    changed = (name for name in (*_CHOICES, *_WIDER, "ep", "dp") if old[name] != new[name])
    words = [f"{name} {old[name]} -> {new[name]}" for name in changed]
    stacks = [predictor.case.stack_of(one) for one in (before, after)]
    if stacks[0] is not stacks[1]:
        words.append(f"stack {stacks[0]} -> {stacks[1]} (assumed under {after.data_parallel})")
    return ", ".join(words)


def _single_changes(candidate: Candidate) -> Iterator[Candidate]:
    options = (
        replace(candidate, recompute=Recompute.SELECTIVE),
        replace(candidate, recompute=Recompute.FULL),
        replace(candidate, loss=LossKind.CHUNKED),
        replace(candidate, data_parallel=DataParallelKind.ZERO1),
        replace(candidate, data_parallel=DataParallelKind.FSDP),
        replace(candidate, micro_batch=candidate.micro_batch // 2 or 1),
    )
    yield from (changed for changed in options if changed != candidate)
    lay = candidate.layout
    if lay.dp % 2:
        return
    for name in _WIDER:
        layout = replace(lay, dp=lay.dp // 2, **{name: 2 * getattr(lay, name)})
        layout = replace(layout, ep=gcd(lay.ep, layout.dp * layout.cp))
        sharding = ShardingKind.ZIGZAG if lay.cp == 1 else candidate.sharding
        yield exchanged(replace(candidate, layout=layout, sharding=sharding)).canonical()
