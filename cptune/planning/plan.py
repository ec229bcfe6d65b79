"""`cptune plan`: the legal set, what memory prunes, the ranking, and what is worth measuring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cptune.domain.candidate import Candidate
from cptune.domain.study import SweepSpec
from cptune.planning.enumerate import enumerate_legal
from cptune.planning.explain import setting_of
from cptune.planning.machine import build_case
from cptune.planning.nearest import lighter
from cptune.planning.row import layout_json, row_json, shortage_bytes
from cptune.predict.prediction import Prediction, Predictor

_MEMORY = "memory"
_SHORTLIST = 6
#: Rows that are printed unless told otherwise: in JSON, and in a table.
TOP, TABLE_ROWS = 1000, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A candidate that may be tried, with its prediction."""

    candidate: Candidate
    prediction: Prediction


def plan(spec: SweepSpec, *, top: int = TOP) -> dict[str, object]:
    """Enumerate, prune by memory, predict and rank.

    Args:
        spec: Model, workload, cluster and axes.
        top: Print only so many rows, 0 for all; the counts are always of all.

    Raises:
        SpecError: when the spec does not say enough.
    """
    case = build_case(spec)
    predictor, setting = Predictor(case), setting_of(case)
    legal = enumerate_legal(spec.axes, setting)
    kept = [one for one in legal.candidates if not predictor.is_too_big(one)]
    excluded = legal.excluded + Counter({_MEMORY: len(legal.candidates) - len(kept)})
    ranked = sorted(
        (Planned(candidate=one, prediction=predictor.predict(one)) for one in kept),
        key=lambda planned: _order(planned, predictor),
    )
    shown = ranked[:top] if top else ranked
    answer: dict[str, object] = {
        "counts": {
            "legal": len(ranked),
            "excluded": {rule: count for rule, count in sorted(excluded.items()) if count},
        },
        "rows": [row_json(one.candidate, predictor, one.prediction) for one in shown],
        "pareto": [one.candidate.key for one in pareto(ranked)],
        "measure": [one.candidate.key for one in worth_measuring(ranked)],
    }
    if not ranked:
        closest = _closest(legal.candidates, predictor)
        answer["nothing_fits"] = _nothing_fits(closest, predictor)
        if closest is not None:
            answer["lighter"] = lighter(closest, predictor, setting)
    return answer


def _order(planned: Planned, predictor: Predictor) -> tuple[object, ...]:
    """What likely fits first, then the fastest; ties to the smaller CP and the simpler layout."""
    tight = predictor.is_tight(planned.prediction.memory)
    lay = planned.candidate.layout
    return (tight, planned.prediction.time.step_s, lay.cp, lay.tp, lay.pp, planned.candidate.key)


def pareto(ranked: Sequence[Planned]) -> list[Planned]:
    """The front of throughput and CP: no other is as fast with as small a CP."""
    best: dict[int, Planned] = {}
    for planned in ranked:
        best.setdefault(planned.candidate.layout.cp, planned)
    front = list[Planned]()
    for cp in sorted(best):
        if not front or best[cp].prediction.time.step_s < front[-1].prediction.time.step_s:
            front.append(best[cp])
    return front


def worth_measuring(ranked: Sequence[Planned]) -> list[Planned]:
    """The shortest list: the best, the front, and the smallest CP whose fit is not known.

    One run at the edge of memory teaches more about the band than five inside it.
    """
    edge = [one for one in ranked if one.prediction.fits == "unknown"]
    edge.sort(key=lambda one: (one.candidate.layout.cp, one.prediction.time.step_s))
    chosen: dict[str, Planned] = {}
    for planned in [*ranked[:2], *pareto(ranked), *edge[:1]]:
        chosen.setdefault(planned.candidate.key, planned)
    return list(chosen.values())[:_SHORTLIST]


def _closest(candidates: Sequence[Candidate], predictor: Predictor) -> Candidate | None:
    """The layout that needs least, where any is legal."""
    return min(
        candidates,
        key=lambda one: (predictor.lowest_bytes(one), one.layout.cp, one.key),
        default=None,
    )


def _nothing_fits(closest: Candidate | None, predictor: Predictor) -> dict[str, object]:
    """By how much the lightest legal layout is too large; no layout where none is legal."""
    capacity = predictor.case.machine.capacity_bytes
    if closest is None:
        return {"short_bytes": None, "capacity_bytes": capacity, "closest": None}
    low = predictor.lowest_bytes(closest)
    return {
        "short_bytes": round(shortage_bytes(low, predictor)),
        "capacity_bytes": capacity,
        "closest": layout_json(closest, predictor),
    }
