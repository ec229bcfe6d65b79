"""Measurements of ranks that did what a drill says, joined as those of real ranks are."""

from __future__ import annotations

from collections.abc import Mapping

from cptune.domain.candidate import Candidate
from cptune.domain.outcome import Measurement, RankReport, measurement_from
from cptune.domain.timeline import RankTrace
from cptune.drills.ranks import SPEC

_PEAK_BYTES = 1 << 20
_STEPS = 2


def measured(
    candidate: Candidate,
    *,
    step_s: float,
    trace: RankTrace | None = None,
    exposed_s: Mapping[str, float] | None = None,
) -> Measurement:
    """What equal ranks measured.

    Args:
        candidate: That they ran.
        step_s: Of each step.
        trace: The traced step; None: `exposed_s` is what the ranks stood still.
        exposed_s: Seconds of each step by axis; the others 0.
    """
    stood = exposed_s or {}
    reports = tuple(
        RankReport(
            rank=rank,
            node="a",
            pid=0,
            gpu_uuid=None,
            step_s=(step_s,) * _STEPS,
            tp_exposed_s=(stood.get("tp", 0.0),) * _STEPS,
            cp_exposed_s=(stood.get("cp", 0.0),) * _STEPS,
            dp_exposed_s=(stood.get("dp", 0.0),) * _STEPS,
            pp_exposed_s=(stood.get("pp", 0.0),) * _STEPS,
            forward_peak_bytes=_PEAK_BYTES,
            backward_peak_bytes=_PEAK_BYTES,
            peak_allocated_bytes=_PEAK_BYTES,
            peak_reserved_bytes=_PEAK_BYTES,
            attended_pairs=1,
            planned_sent_bytes=0,
            sent_bytes=0,
            kernel="none",
            first_loss=1.0,
            first_grad_norm=1.0,
            sample_hash="0",
            trace=trace,
        )
        for rank in range(candidate.layout.world_size)
    )
    return measurement_from(reports, tokens_per_step=SPEC.workload.tokens_per_step)
