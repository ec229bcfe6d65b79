"""The rate that the cores of a cluster cannot exceed: a step that is faster was not that step."""

from __future__ import annotations

from collections.abc import Sequence

from cptune.domain.candidate import Candidate, Recompute
from cptune.domain.guards import why_too_fast
from cptune.domain.outcome import Failure, Measurement
from cptune.domain.study import SweepSpec
from cptune.predict.facts import read_gpu
from cptune.predict.flops import step_flop


class RateGuard:
    """Refuses a measurement whose rate no hardware of today reaches.

    Args:
        spec: The resolved spec.
        cores: Of each node; None where it is not known, and then nothing is refused.
    """

    def __init__(self, spec: SweepSpec, *, cores: Sequence[int | None]) -> None:
        known = [count for count in cores if count is not None]
        limit = read_gpu("cpu").limit_flop_per_s(spec.workload.precision)
        whole = limit is not None and len(known) == len(cores) > 0
        self._limit_flop_per_s = limit * sum(known) if limit is not None and whole else None
        self._flop = step_flop(spec.model, spec.workload, Recompute.NONE).model

    def __call__(self, measurement: Measurement, candidate: Candidate) -> Failure | None:
        """A failure when the rate is above the limit; every candidate does the same step."""
        del candidate
        limit = self._limit_flop_per_s
        return why_too_fast(measurement, flop=self._flop, peak_flop_per_s=limit)
