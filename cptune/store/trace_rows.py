"""Traced steps as rows of the ranks and exposures tables, and back without their spans."""

from __future__ import annotations

from collections.abc import Sequence

from cptune.domain.timeline import Exposed, RankTrace
from cptune.domain.trial import Trial
from cptune.store.row import Row, reports_of, trial_key

_SECONDS = ("communication_s", "exposed_s", "blocked_s", "late_s")


def exposure_rows(trial: Trial) -> list[Row]:
    """The rows of the exposures table: by rank, axis, layer and method."""
    return [
        trial_key(trial) | {"rank": report.rank} | _exposed_row(one)
        for report in reports_of(trial)
        if report.trace is not None
        for one in report.trace.exposed
    ]


def trace_columns(trace: RankTrace | None) -> Row:
    """The columns of the ranks table; null where no step was traced."""
    if trace is None:
        return {}
    return {
        "traced_step_s": trace.step_s,
        "clock_offset_s": trace.clock_offset_s,
        "clock_error_s": trace.clock_error_s,
    }


def was_traced(rank: Row) -> bool:
    """Whether a row of the ranks table says that its rank traced a step."""
    return rank.get("traced_step_s") is not None


def trace_from_rows(rank: Row, exposures: Sequence[Row]) -> RankTrace | None:
    """The trace that a rank's rows were made from; None where it has none."""
    if not was_traced(rank):
        return None
    return RankTrace(
        step_s=rank["traced_step_s"],
        clock_offset_s=rank["clock_offset_s"],
        clock_error_s=rank["clock_error_s"],
        exposed=tuple(_exposed(row) for row in exposures if row["rank"] == rank["rank"]),
    )


def _exposed_row(one: Exposed) -> Row:
    return {
        "axis": one.axis,
        "layer": one.layer,
        "whole_axis": one.whole,
        "method": one.method,
        **{name: getattr(one, name) for name in _SECONDS},
        "bytes": one.bytes,
    }


def _exposed(row: Row) -> Exposed:
    return Exposed(
        axis=row["axis"],
        layer=row["layer"],
        whole=row["whole_axis"],
        method=row["method"],
        **{name: row[name] for name in _SECONDS},
        bytes=row["bytes"],
    )
