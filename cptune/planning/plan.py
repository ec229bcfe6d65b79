"""`cptune plan`: the legal set, what memory prunes, the ranking, and what is worth measuring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cptune.domain.candidate import Candidate
from cptune.domain.study import SweepSpec
from cptune.planning.enumerate import enumerate_legal
from cptune.planning.explain import setting_of
from cptune.planning.machine import build_case
from cptune.planning.nearest import lighter
from cptune.planning.row import layout_json, row_json, shortage_bytes
from cptune.planning.shortlist import Planned, pareto, worth_measuring
from cptune.predict.prediction import Predictor
from cptune.predict.trial_memory import memory_of

_MEMORY = "memory"
#: Rows that are printed unless told otherwise: in JSON, and in a table.
TOP, TABLE_ROWS = 1000, 20


def plan(spec: SweepSpec, *, top: int = TOP) -> dict[str, object]:
    """Enumerate, prune by memory, predict and rank.

    Args:
        spec: Model, workload, cluster and axes.
        top: Print only so many rows, 0 for all; the counts are always of all.

    Raises:
        SpecError: when the spec does not say enough.
    """
    case = build_case(spec)
    predictor, setting = Predictor(case, memory=memory_of(case)), setting_of(case)
    legal = enumerate_legal(spec.axes, setting)
    kept = [one for one in legal.candidates if not predictor.is_too_big(one)]
    excluded = legal.excluded + Counter({_MEMORY: len(legal.candidates) - len(kept)})
    ranked = sorted(
        (Planned(candidate=one, prediction=predictor.predict(one)) for one in kept),
        key=lambda planned: _order(planned, predictor),
    )
    shown = ranked[:top] if top else ranked
    worth = worth_measuring(ranked, predictor)
    answer: dict[str, object] = {
        "counts": {
            "legal": len(ranked),
            "excluded": {rule: count for rule, count in sorted(excluded.items()) if count},
        },
        "rows": [row_json(one.candidate, predictor, one.prediction) for one in shown],
        "pareto": [one.candidate.key for one in pareto(ranked, predictor)],
        "measure": [one.planned.candidate.key for one in worth],
        "measure_why": {one.planned.candidate.key: one.why for one in worth},
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


def _closest(candidates: Sequence[Candidate], predictor: Predictor) -> Candidate | None:
    """The layout that needs least, where any is legal."""
    return min(
        candidates,
        key=lambda one: (predictor.lowest_bytes(one), one.layout.cp, one.key),
        default=None,
    )


def _nothing_fits(closest: Candidate | None, predictor: Predictor) -> dict[str, object]:
    """By how much the lightest legal layout is too large; no layout where none is legal."""
    machine = predictor.case.machine
    bounds: dict[str, object] = {
        "capacity_bytes": machine.capacity_bytes,
        "inside_margin_bytes": round(machine.capacity_bytes * (1 - machine.memory_margin)),
    }
    if closest is None:
        return bounds | dict.fromkeys(("short_bytes", "lowest_bytes", "closest"))
    low = predictor.lowest_bytes(closest)
    return bounds | {
        "short_bytes": round(shortage_bytes(low, predictor)),
        "lowest_bytes": round(low),
        "closest": layout_json(closest, predictor),
    }
