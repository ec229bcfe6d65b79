"""What a launcher without hardware answers: figures without ranks, and None for what nobody saw."""

from __future__ import annotations

from math import exp

from cptune.domain.layout import Axis
from cptune.domain.outcome import Failure, Measurement, MemoryShortage, OomKind, OutcomeKind
from cptune.domain.units import bytes_text
from cptune.offline.landscape import Result

NOT_TOLD = "not-told"  # the method of exposed communication that no table tells
_TENTH = 1.2816  # standard deviations from the median of a normal to its 90th percentile


def measurement_of(
    result: Result,
    *,
    step_s: float,
    tokens_per_step: int,
    ranks: int,
    spread: float = 0.0,
    method: str = NOT_TOLD,
) -> Measurement:
    """The figures of one success, as the choice reads them.

    Args:
        result: What is told of it.
        step_s: As this trial reads it.
        tokens_per_step: Of the whole job.
        ranks: Of the whole job.
        spread: Standard deviation of log(step) between steps.
        method: How exposed communication is known, where it is.
    """
    exposed = dict(result.exposed_s or {})
    return Measurement(
        step_s=step_s,
        step_p10_s=step_s * exp(-_TENTH * spread),
        step_p90_s=step_s * exp(_TENTH * spread),
        slowest_rank=None,
        tokens_per_s=tokens_per_step / step_s,
        tokens_per_s_per_gpu=tokens_per_step / step_s / ranks,
        peak_allocated_bytes=result.peak_bytes or 0,
        peak_reserved_bytes=None,
        forward_peak_bytes=None,
        backward_peak_bytes=None,
        tp_exposed_s=exposed.get(Axis.TP.value, 0.0),
        cp_exposed_s=exposed.get(Axis.CP.value, 0.0),
        dp_exposed_s=exposed.get(Axis.DP.value, 0.0),
        pp_exposed_s=exposed.get(Axis.PP.value, 0.0),
        exposed_method=method if result.exposed_s else NOT_TOLD,
        imbalance=None,
        kernel=None,
        first_loss=None,
        first_grad_norm=None,
        ranks=(),
    )


def failure_of(result: Result, *, capacity_bytes: int) -> Failure:
    """The failure of one candidate; what was missing where the table tells its peak."""
    peak = result.peak_bytes
    message = result.reason or f"{result.kind.value} in the table"
    if result.kind is not OutcomeKind.OUT_OF_MEMORY or not (peak and 0 < capacity_bytes < peak):
        return Failure(kind=result.kind, message=message)
    return Failure(
        kind=result.kind,
        message=f"{message}: needs {bytes_text(peak)} of {bytes_text(capacity_bytes)}",
        shortage=MemoryShortage(kind=OomKind.CAPACITY, asked_bytes=peak, free_bytes=capacity_bytes),
    )
