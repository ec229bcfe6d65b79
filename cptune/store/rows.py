"""Trials as table rows and back, without loss; plain dicts, no pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cptune.domain.candidate import candidate_from_axes
from cptune.domain.launcher import LauncherName
from cptune.domain.layout import Coordinates
from cptune.domain.outcome import (
    EdgeReport,
    Failure,
    Measurement,
    MemoryShortage,
    OomKind,
    OutcomeKind,
    RankReport,
)
from cptune.domain.placement import Device, Placement, RankPlace
from cptune.domain.trial import Predicted, Trial
from cptune.store.part_rows import (
    depth_columns,
    depth_from,
    kept_columns,
    kept_from,
    split_columns,
    split_from,
)
from cptune.store.row import Row, launcher_from, origin_from, reports_of, trial_key
from cptune.store.trace_rows import trace_columns, trace_from_rows

_MEASURED = (
    "step_s",
    "step_p10_s",
    "step_p90_s",
    "step_ci_share",
    "slowest_rank",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "forward_peak_bytes",
    "backward_peak_bytes",
    "tp_exposed_s",
    "cp_exposed_s",
    "dp_exposed_s",
    "pp_exposed_s",
    "exposed_method",
    "cp_comm_s",
    "traced_step_s",
    "tp_blocked_s",
    "cp_blocked_s",
    "dp_blocked_s",
    "pp_blocked_s",
    "imbalance",
    "first_loss",
    "first_grad_norm",
)
_PLACED = ("rank", "node", "gpu_uuid")
_REPORTED = (
    "pid",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "forward_peak_bytes",
    "backward_peak_bytes",
    "attended_pairs",
    "planned_sent_bytes",
    "sent_bytes",
    "first_loss",
    "first_grad_norm",
    "sample_hash",
    "used_bytes",
)
_STEP_EXPOSED = ("tp_exposed_s", "cp_exposed_s", "dp_exposed_s", "pp_exposed_s")
_SUCCESS = {one.success for one in LauncherName}
_PREDICTED = {
    "predicted_step_s": "step_s",
    "predicted_peak_lo_bytes": "peak_lo_bytes",
    "predicted_peak_bytes": "peak_bytes",
    "predicted_peak_hi_bytes": "peak_hi_bytes",
    "model_version": "model_version",
}
_KEPT = ("proof_id", "convergence_fingerprint", "execution_fingerprint")
_KEPT += ("started_at", "finished_at")


def trial_row(trial: Trial) -> Row:
    """The row of the trials table."""
    row: Row = trial_key(trial) | {
        "round": trial.round,
        "outcome": trial.kind.value,
        "launcher": trial.launcher.value,
        **trial.candidate.axes(),
        **{name: getattr(trial, name) for name in _KEPT},
    }
    if trial.predicted is not None:
        row |= {column: getattr(trial.predicted, name) for column, name in _PREDICTED.items()}
    return row | outcome_columns(trial.outcome)


def outcome_columns(outcome: Measurement | Failure) -> Row:
    """What a trial came to; what its ranks reported is in other tables."""
    if isinstance(outcome, Measurement):
        return (
            {name: getattr(outcome, name) for name in _MEASURED}
            | {"noisy": outcome.noisy, "kernel_ran": outcome.kernel}
            | split_columns(outcome.memory)
            | depth_columns(outcome.depth)
        )
    row: Row = {
        "reason": outcome.message,
        "failed_rank": outcome.rank,
        "failed_node": outcome.node,
    }
    if (short := outcome.shortage) is not None:
        row |= {
            "oom_kind": short.kind.value,
            "asked_bytes": short.asked_bytes,
            "free_bytes": short.free_bytes,
            "short_bytes": short.short_bytes,
        }
    return row


def rank_rows(trial: Trial) -> list[Row]:
    """The rows of the ranks table: the placement, and the report where there is one."""
    reports = {report.rank: report for report in reports_of(trial)}
    return [trial_key(trial) | _rank_row(place, reports) for place in trial.placement.ranks]


def _rank_row(place: RankPlace, reports: Mapping[int, RankReport]) -> Row:
    device = place.device
    row: Row = {
        "rank": place.rank,
        "node": device.node,
        "device_kind": device.kind,
        "device_index": device.index,
        "gpu_uuid": device.uuid,
        "device_memory_bytes": device.memory_bytes,
        "tp": place.at.tp,
        "cp": place.at.cp,
        "dp": place.at.dp,
        "pp": place.at.pp,
    }
    if place.rank in reports:
        report = reports[place.rank]
        row |= {name: getattr(report, name) for name in _REPORTED}
        row["kernel_ran"] = report.kernel
        row |= trace_columns(report.trace)
        row |= split_columns(report.memory) | kept_columns(report.kept)
    return row


def edge_rows(trial: Trial) -> list[Row]:
    """The rows of the edges table: bytes and seconds per step from rank a to rank b."""
    return [
        trial_key(trial)
        | {
            "a_rank": report.rank,
            "b_rank": edge.peer_rank,
            "axis": edge.axis,
            "bytes": edge.sent_bytes,
            "received_bytes": edge.received_bytes,
            "seconds": edge.seconds,
            "bytes_per_s": edge.sent_bytes / edge.seconds if edge.seconds else None,
            "idle_s": edge.idle_s,
            "busy_s": edge.busy_s,
        }
        for report in reports_of(trial)
        for edge in report.edges
    ]


def step_rows(trial: Trial) -> list[Row]:
    """The rows of the steps table: every step of every rank; warm-up ends at index -1."""
    warmup = [
        trial_key(trial)
        | {
            "rank": report.rank,
            "index": index - len(report.warmup_s),
            "seconds": seconds,
            "is_warmup": True,
        }
        for report in reports_of(trial)
        for index, seconds in enumerate(report.warmup_s)
    ]
    return warmup + [
        trial_key(trial)
        | {"rank": report.rank, "index": index, "seconds": seconds, "is_warmup": False}
        | {name: getattr(report, name)[index] for name in _STEP_EXPOSED}
        for report in reports_of(trial)
        for index, seconds in enumerate(report.step_s)
    ]


def trial_from_rows(
    row: Row,
    *,
    ranks: Sequence[Row],
    edges: Sequence[Row],
    steps: Sequence[Row],
    exposures: Sequence[Row] = (),
) -> Trial:
    """The trial that these rows were made from, without the spans of its traces."""
    ordered = sorted(ranks, key=lambda rank: rank["rank"])
    reports = tuple(
        replace(_report(rank, edges=edges, steps=steps), trace=trace_from_rows(rank, exposures))
        for rank in ordered
        if rank["pid"] is not None
    )
    return Trial(
        number=row["number"],
        attempt=row["attempt"],
        candidate=candidate_from_axes(row),
        placement=Placement(ranks=tuple(_place(rank) for rank in ordered)),
        outcome=outcome_from(row, reports),
        predicted=_predicted(row),
        round=row["round"] or 0,
        origin=origin_from(row),
        launcher=launcher_from(row),
        **{name: row[name] for name in _KEPT},
    )


def _predicted(row: Row) -> Predicted | None:
    if row["predicted_step_s"] is None:
        return None
    return Predicted(**{name: row[column] for column, name in _PREDICTED.items()})


def outcome_from(row: Row, reports: tuple[RankReport, ...]) -> Measurement | Failure:
    """What a trial came to, from its columns and what its ranks reported."""
    kind = OutcomeKind(row["outcome"])
    if kind in _SUCCESS:
        return Measurement(
            **{name: row[name] for name in _MEASURED},
            noisy=bool(row["noisy"]),
            kernel=row["kernel_ran"],
            ranks=reports,
            memory=split_from(row),
            depth=depth_from(row),
        )
    shortage = None
    if row["oom_kind"] is not None:
        shortage = MemoryShortage(
            kind=OomKind(row["oom_kind"]),
            asked_bytes=row["asked_bytes"],
            free_bytes=row["free_bytes"],
        )
    return Failure(
        kind=kind,
        message=row["reason"],
        rank=row["failed_rank"],
        node=row["failed_node"],
        shortage=shortage,
    )


def _place(rank: Row) -> RankPlace:
    device = Device(
        node=rank["node"],
        kind=rank["device_kind"],
        index=rank["device_index"],
        uuid=rank["gpu_uuid"],
        memory_bytes=rank["device_memory_bytes"],
    )
    at = Coordinates(tp=rank["tp"], cp=rank["cp"], dp=rank["dp"], pp=rank["pp"])
    return RankPlace(rank=rank["rank"], device=device, at=at)


def _report(rank: Row, *, edges: Sequence[Row], steps: Sequence[Row]) -> RankReport:
    every = sorted(
        (step for step in steps if step["rank"] == rank["rank"]), key=lambda step: step["index"]
    )
    own = [step for step in every if not step["is_warmup"]]
    fields: Row = {name: rank[name] for name in (*_PLACED, *_REPORTED)}
    fields |= {name: tuple(step[name] for step in own) for name in _STEP_EXPOSED}
    return RankReport(
        **fields,
        step_s=tuple(step["seconds"] for step in own),
        warmup_s=tuple(step["seconds"] for step in every if step["is_warmup"]),
        kernel=rank["kernel_ran"],
        edges=tuple(_edge(edge) for edge in edges if edge["a_rank"] == rank["rank"]),
        memory=split_from(rank),
        kept=kept_from(rank),
    )


def _edge(edge: Row) -> EdgeReport:
    return EdgeReport(
        peer_rank=edge["b_rank"],
        axis=edge["axis"],
        sent_bytes=edge["bytes"],
        received_bytes=edge["received_bytes"],
        seconds=edge["seconds"],
        idle_s=edge["idle_s"],
        busy_s=edge["busy_s"],
    )
