"""`cptune explain`: one layout, every broken rule at once, or what it costs and what binds."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from cptune.domain.asked import Asked
from cptune.domain.candidate import (
    Candidate,
    DataParallelKind,
    LossKind,
    Recompute,
    ShardingKind,
    Strategy,
    ulysses_degrees,
)
from cptune.domain.checks import MOST_RANKS, require_range
from cptune.domain.layout import ParallelLayout
from cptune.domain.rules import Setting, why_infeasible
from cptune.domain.study import SweepSpec
from cptune.domain.support import PLANNED
from cptune.errors import SpecError
from cptune.planning.machine import build_case, island_rule
from cptune.planning.nearest import exchanged, lighter, nearest_legal
from cptune.planning.row import illegal_json, layout_json, mesh_json, row_json, shortage
from cptune.predict.case import Case
from cptune.predict.prediction import Predictor
from cptune.predict.trial_memory import memory_of

_Word = TypeVar("_Word")

_SIZES = ("tp", "cp", "pp", "vpp", "ulysses", "ep", "micro_batch")


def setting_of(case: Case) -> Setting:
    """The rules of the layout alone, on this machine."""
    return Setting(
        model=case.model,
        workload=case.workload,
        world_size=case.machine.world_size,
        support=PLANNED,
        island_size=island_rule(case),
    )


def explain(
    spec: SweepSpec, asked: Asked, *, mesh: bool = False, flops: bool = False
) -> dict[str, object]:
    """Judge and predict one layout.

    Args:
        spec: Model, workload and cluster.
        asked: The layout.
        mesh: Add every rank's coordinates.
        flops: Add the MFU by every published convention.

    Raises:
        SpecError: when a size is below one, or the spec does not say enough.
    """
    case = build_case(spec)
    predictor, setting = Predictor(case, memory=memory_of(case)), setting_of(case)
    as_asked = _candidate(spec, asked, case.machine.world_size)
    candidate = as_asked.canonical()
    violations = why_infeasible(candidate, setting)
    if violations:
        answer = illegal_json(candidate, predictor, [one.message for one in violations])
        near = nearest_legal(as_asked, setting)
        answer["nearest_legal"] = [layout_json(one, predictor) for one in near]
        return answer
    prediction = predictor.predict(candidate)
    answer = row_json(candidate, predictor, prediction)
    if prediction.fits != "yes" and case.machine.capacity_bytes:
        answer["short_bytes"] = round(shortage(prediction, predictor))
        answer["lighter"] = lighter(candidate, predictor, setting)
    if flops:
        answer["conventions"] = predictor.conventions(candidate, prediction)
    if mesh:
        answer["mesh"] = mesh_json(candidate)
    return answer


def _candidate(spec: SweepSpec, asked: Asked, world_size: int) -> Candidate:
    try:
        require_range(asked, 1, MOST_RANKS, *_SIZES)
        require_range(asked, 0, MOST_RANKS, "stages")
    except ValueError as exc:
        raise SpecError(str(exc)) from exc
    _refuse_unused(asked)
    axes = spec.axes
    rest = asked.tp * asked.cp * asked.pp
    layout = ParallelLayout(
        tp=asked.tp,
        cp=asked.cp,
        pp=asked.pp,
        vpp=asked.vpp,
        dp=max(1, world_size // rest),
        ulysses=asked.ulysses,
        ep=asked.ep,
    )
    candidate = Candidate(
        layout=layout,
        sharding=asked.sharding or _first(axes.sharding, ShardingKind.ZIGZAG),
        strategy=asked.strategy or _first(axes.strategy, Strategy.RING),
        micro_batch=asked.micro_batch or min(axes.micro_batch, default=1),
        recompute=asked.recompute or _first(axes.recompute, Recompute.NONE),
        loss=asked.loss or _first(axes.loss, LossKind.FULL),
        data_parallel=asked.data_parallel or _first(axes.data_parallel, DataParallelKind.DDP),
    )
    return _with_stages(candidate, asked)


def _refuse_unused(asked: Asked) -> None:
    """Refuse a strategy that the Ulysses degree is not of: it would be another without a word."""
    if asked.strategy is None or asked.cp == 1:
        return
    legal = ulysses_degrees(asked.strategy, asked.cp)
    if asked.ulysses not in legal:
        degrees = ", ".join(map(str, legal)) or "between 1 and cp, which this cp has none of"
        raise SpecError(
            f"--strategy {asked.strategy} over --cp {asked.cp} goes with --ulysses {degrees}; "
            f"seen {asked.ulysses}"
        )


def _with_stages(candidate: Candidate, asked: Asked) -> Candidate:
    divides = candidate.layout.cp % candidate.layout.ulysses == 0
    placed = exchanged(candidate) if divides else candidate
    if asked.stages is not None:
        placed = replace(placed, stages=asked.stages)
    return placed


def _first(values: tuple[_Word, ...], otherwise: _Word) -> _Word:
    return values[0] if values else otherwise
