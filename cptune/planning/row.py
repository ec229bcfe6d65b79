"""One layout as JSON: the row that `explain` prints and `plan` ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from cptune.domain.candidate import Candidate
from cptune.domain.fit import Fit
from cptune.predict.exports import megatron_json
from cptune.predict.memory import MemoryBand
from cptune.predict.prediction import Prediction, Predictor
from cptune.predict.shares import micro_batches


def layout_json(candidate: Candidate, predictor: Predictor) -> dict[str, object]:
    """Every axis by its plain name, and the accumulation that the global batch leaves."""
    accumulation = micro_batches(candidate, predictor.case.workload)
    return {**candidate.axes(), "accumulation": accumulation}


def stack_json(candidate: Candidate, predictor: Predictor) -> dict[str, object]:
    """Whose software a candidate is predicted for; assumed where the spec does not say."""
    case = predictor.case
    return {"kind": case.stack_of(candidate).value, "assumed": case.stack is None}


def fit_of(band: MemoryBand, predictor: Predictor) -> Fit:
    """The band beside the bounds of the device."""
    machine = predictor.case.machine
    return Fit(
        low_bytes=band.low_bytes,
        likely_bytes=band.likely_bytes,
        high_bytes=band.high_bytes,
        capacity_bytes=machine.capacity_bytes,
        inside_bytes=round(machine.capacity_bytes * (1 - machine.memory_margin)),
    )


def _memory_json(prediction: Prediction, predictor: Predictor) -> dict[str, object]:
    """What decides the verdict, beside it; null where the capacity is not known."""
    fit = fit_of(prediction.memory, predictor)
    bounds = (fit.capacity_bytes or None, fit.inside_bytes or None)
    return dict(zip(("capacity_bytes", "inside_margin_bytes"), bounds, strict=True))


def row_json(
    candidate: Candidate, predictor: Predictor, prediction: Prediction
) -> dict[str, object]:
    """A legal layout with its prediction."""
    said = prediction.to_json()
    memory = cast("dict[str, object]", said["memory"])
    return {
        "layout": layout_json(candidate, predictor),
        "legal": True,
        "violations": [],
        "stack": stack_json(candidate, predictor),
        **said,
        "memory": memory | _memory_json(prediction, predictor),
        "exports": {"megatron": megatron_json(candidate, predictor.case.workload)},
    }


def illegal_json(
    candidate: Candidate, predictor: Predictor, violations: Sequence[str]
) -> dict[str, object]:
    """A layout that breaks rules: nothing is predicted for it."""
    empty = dict.fromkeys(
        ("memory", "step_s", "tokens_per_s_per_gpu", "mfu", "time", "bound_by"), None
    )
    return {
        "layout": layout_json(candidate, predictor),
        "legal": False,
        "violations": list(violations),
        "stack": stack_json(candidate, predictor),
        **empty,
        "exports": {"megatron": megatron_json(candidate, predictor.case.workload)},
        "model_version": predictor.case.constants.version,
    }


def mesh_json(candidate: Candidate) -> list[dict[str, int]]:
    """Mesh coordinates of every rank."""
    lay = candidate.layout
    found = list[dict[str, int]]()
    for rank in range(lay.world_size):
        at = lay.coordinates(rank)
        found.append({"rank": rank, "tp": at.tp, "cp": at.cp, "dp": at.dp, "pp": at.pp})
    return found


def shortage(prediction: Prediction, predictor: Predictor) -> float:
    """Bytes by which even the lowest peak exceeds the device; 0 where it may fit."""
    return shortage_bytes(prediction.memory.low_bytes, predictor)


def shortage_bytes(low_bytes: float, predictor: Predictor) -> float:
    """As `shortage`, of a lowest peak."""
    capacity = predictor.case.machine.capacity_bytes
    return max(0.0, low_bytes - capacity) if capacity else 0.0
