"""The legal set: every candidate that the axes allow and no rule forbids, each run once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from cptune.domain.candidate import (
    Candidate,
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
    ulysses_degrees,
)
from cptune.domain.layout import ParallelLayout
from cptune.domain.rules import Setting, Violation, describe, why_infeasible
from cptune.domain.study import Axes, Baseline
from cptune.domain.workload import divisors
from cptune.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The legal candidates in order of CP, and what was left out by which rule."""

    world_size: int
    candidates: tuple[Candidate, ...]
    excluded: Mapping[str, int]
    reasons: tuple[str, ...]  # one message for each excluded candidate
    illegal_cps: Mapping[int, str]  # degrees that no backend could run, with the nearest reason
    untriable: Mapping[int, int]  # by degree: layouts that only the backend's limits exclude

    @property
    def cps(self) -> list[int]:
        """The CP degrees that have a legal layout, ascending."""
        return sorted({candidate.layout.cp for candidate in self.candidates})

    def with_cp(self, cp: int) -> list[Candidate]:
        """The legal candidates of one CP degree."""
        return [candidate for candidate in self.candidates if candidate.layout.cp == cp]


def explicit(axes: Axes, *, world_size: int, global_batch_seqs: int) -> Axes:
    """The axes with every empty list filled.

    Sizes are divisors of the world, micro-batches powers of two in the batch, the rest all words.
    """
    fill = tuple(divisors(world_size))
    batches = tuple(size for size in divisors(global_batch_seqs) if size & (size - 1) == 0)
    return replace(
        axes,
        tp=axes.tp or fill,
        cp=axes.cp or fill,
        pp=axes.pp or fill,
        vpp=axes.vpp or (1,),
        micro_batch=axes.micro_batch or batches,
        sharding=axes.sharding or tuple(ShardingKind),
        strategy=axes.strategy or tuple(Strategy),
        recompute=axes.recompute or tuple(Recompute),
        loss=axes.loss or tuple(LossKind),
        data_parallel=axes.data_parallel or tuple(DataParallelKind),
    )


def build_space(axes: Axes, setting: Setting) -> SearchSpace:
    """Enumerate, canonicalise, deduplicate and judge every combination of the axes.

    Raises:
        SpecError: when nothing is legal; the message says how often each rule was broken.
    """
    legal: dict[str, Candidate] = {}
    excluded: dict[str, tuple[Candidate, tuple[Violation, ...]]] = {}
    for candidate in _combinations(axes, setting):
        canonical = candidate.canonical()
        violations = why_infeasible(canonical, setting)
        if violations:
            excluded[canonical.key] = (canonical, violations)
        else:
            legal[canonical.key] = canonical
    counts = Counter(
        violation.rule for _, violations in excluded.values() for violation in violations
    )
    reasons = tuple(describe(candidate, found) for candidate, found in excluded.values())
    if not legal:
        raise _nothing_legal(setting, counts, reasons)
    ordered = sorted(legal.values(), key=enumeration_order)
    return SearchSpace(
        world_size=setting.world_size,
        candidates=tuple(ordered),
        excluded=counts,
        reasons=reasons,
        illegal_cps=_illegal_cps(setting, legal={one.layout.cp for one in ordered}),
        untriable=Counter(
            candidate.layout.cp
            for candidate, violations in excluded.values()
            if not any(violation.intrinsic for violation in violations)
        ),
    )


def _illegal_cps(setting: Setting, *, legal: set[int]) -> dict[int, str]:
    """Degrees whose every layout breaks a rule of its own, with the one that breaks fewest.

    Over all divisors of the world, whatever the axes of this search: nothing else is a proof.
    """
    fill = divisors(setting.world_size)
    found: dict[int, str] = {}
    for cp in (cp for cp in fill if cp not in legal):
        nearest: list[tuple[int, str]] = []
        for tp, pp in product(fill, fill):
            if setting.world_size % (tp * cp * pp):
                continue
            dp = setting.world_size // (tp * cp * pp)
            layout = ParallelLayout(tp=tp, cp=cp, pp=pp, dp=dp)
            candidate = Candidate(
                layout=layout, sharding=ShardingKind.CONTIGUOUS, stages=max(0, layout.ring - 1)
            )
            own = [one for one in why_infeasible(candidate, setting) if one.intrinsic]
            nearest.append((len(own), describe(candidate, own)))
        broken, reason = min(nearest)
        if broken:
            found[cp] = reason
    return found


def choose_baseline(space: SearchSpace, baseline: Baseline, setting: Setting) -> Candidate:
    """Trial 0: the user's configuration of today, else the first legal one (the smallest CP).

    Raises:
        SpecError: when the configuration asked for is not among the legal ones.
    """
    wanted = {
        name: getattr(baseline, name)
        for name in ("tp", "cp", "pp", "micro_batch")
        if getattr(baseline, name) is not None
    }
    for candidate in space.candidates:
        axes = candidate.axes()
        if all(axes[name] == value for name, value in wanted.items()):
            return candidate
    seen = " ".join(f"{name}={value}" for name, value in wanted.items())
    near = space.candidates[0].describe()
    raise SpecError(
        f"baseline | {seen} is not in the legal set of {len(space.candidates)} candidates "
        f"for {setting.world_size} ranks; the smallest legal one is {near}"
    )


def _combinations(axes: Axes, setting: Setting) -> Iterator[Candidate]:
    world = setting.world_size
    full = explicit(axes, world_size=world, global_batch_seqs=setting.workload.global_batch_seqs)
    rest = (full.micro_batch, full.sharding, full.recompute, full.loss, full.data_parallel)
    for tp, cp, pp, vpp in product(full.tp, full.cp, full.pp, full.vpp):
        dp = max(1, world // (tp * cp * pp))
        layout = ParallelLayout(tp=tp, cp=cp, pp=pp, vpp=vpp, dp=dp)
        for strategy, ulysses, stages in _exchanges(full, cp):
            for micro_batch, sharding, recompute, loss, data_parallel in product(*rest):
                yield Candidate(
                    layout=replace(layout, ulysses=ulysses),
                    sharding=sharding,
                    strategy=strategy,
                    stages=stages,
                    micro_batch=micro_batch,
                    recompute=recompute,
                    loss=loss,
                    data_parallel=data_parallel,
                )


def _exchanges(axes: Axes, cp: int) -> Iterator[tuple[Strategy, int, int]]:
    """Strategy, Ulysses degree and stages of every way to move the context."""
    for strategy in axes.strategy:
        for ulysses in ulysses_degrees(strategy, cp):
            for stages in _stages(strategy, cp // ulysses, axes.stages):
                yield strategy, ulysses, stages


def _stages(strategy: Strategy, ring: int, asked: Iterable[int]) -> list[int]:
    if ring == 1:
        return [0]
    if strategy is Strategy.ALL_GATHER:
        return [1]
    return list(asked) or [ring - 1]


def enumeration_order(candidate: Candidate) -> tuple[object, ...]:
    """Where a candidate stands in a legal set: the smallest CP first, then the simplest."""
    lay = candidate.layout
    plain = candidate.sharding is ShardingKind.CONTIGUOUS
    return (lay.cp, lay.tp, lay.pp, candidate.micro_batch, plain, -candidate.stages, candidate.key)


def _nothing_legal(setting: Setting, counts: Counter[str], reasons: tuple[str, ...]) -> SpecError:
    by_rule = ", ".join(f"{rule} x{count}" for rule, count in counts.most_common())
    nearest = min(reasons, key=lambda reason: (reason.count(";"), len(reason)))
    return SpecError(
        f"no layout of {setting.world_size} ranks is legal: {len(reasons)} combinations of the "
        f"axes break rules ({by_rule})",
        hint=f"the nearest one, {nearest}",
    )
