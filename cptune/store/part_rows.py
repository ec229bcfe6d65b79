"""The memory and the depth of a measurement as columns and back."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from cptune.domain.depth import Depth
from cptune.domain.memory import Kept, MemorySplit

_SPLIT = tuple(field.name for field in fields(MemorySplit))
_KEPT = {
    "attention_bytes": "kept_attention_bytes",
    "planned_attention_bytes": "planned_kept_attention_bytes",
    "peak_bytes": "kept_peak_bytes",
    "planned_peak_bytes": "planned_kept_peak_bytes",
}


def split_columns(split: MemorySplit | None) -> dict[str, Any]:
    """The columns of what a peak was made of; none where it is not known."""
    return {} if split is None else asdict(split)


def split_from(row: dict[str, Any]) -> MemorySplit | None:
    """What a peak was made of; None in a row of an older run."""
    if row["states_bytes"] is None:
        return None
    return MemorySplit(**{name: row[name] for name in _SPLIT})


def kept_columns(kept: Kept | None) -> dict[str, Any]:
    """The columns of what was kept for backward."""
    return {} if kept is None else {_KEPT[name]: size for name, size in asdict(kept).items()}


def kept_from(row: dict[str, Any]) -> Kept | None:
    """What was kept for backward; None in a row of an older run."""
    if row["kept_peak_bytes"] is None:
        return None
    return Kept(**{name: row[column] for name, column in _KEPT.items()})


def depth_columns(depth: Depth | None) -> dict[str, Any]:
    """The columns that say whether a figure was measured or drawn from two depths."""
    if depth is None:
        return {"extrapolated": False}
    return asdict(depth) | {"extrapolated": True, "layers_measured": list(depth.layers_measured)}


def depth_from(row: dict[str, Any]) -> Depth | None:
    """How a figure was drawn; None where it was measured, as always in older runs."""
    if not row["extrapolated"]:
        return None
    names = ("step_lo_s", "step_hi_s", "peak_lo_bytes", "peak_hi_bytes", "layers")
    shallow, deep = row["layers_measured"]
    return Depth(layers_measured=(shallow, deep), **{name: row[name] for name in names})
