"""From two layer counts to the whole model: T(L) = T0 + t * L, M(L) = M0 + m * L.

Full sequence, full batch, full vocabulary and the same groups at both, so that only the number of
equal layers differs. One depth alone, scaled up, is biased by what does not grow with layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import sqrt
from statistics import median, quantiles
from typing import Any, TypeVar

from cptune.domain.depth import Depth
from cptune.domain.memory import Kept, MemorySplit
from cptune.domain.outcome import EdgeReport, Measurement, RankReport, measurement_from

_Sizes = TypeVar("_Sizes", MemorySplit, Kept)

_DECILES = 2.563  # standard deviations between the 10th and the 90th percentile, normal
_MEDIAN = 1.2533  # standard error of a median over that of a mean, normal: sqrt(pi / 2)
_BAND = 1.96  # standard errors on each side: 95%


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Through what was seen at two layer counts, read at a third."""

    shallow: int
    deep: int
    layers: int

    def __post_init__(self) -> None:
        if not 0 < self.shallow < self.deep < self.layers:
            raise ValueError(
                f"depths are {self.shallow} and {self.deep} of {self.layers} layers; "
                "wanted two that ascend and are below it"
            )

    @property
    def reach(self) -> float:
        """The third count in steps from the first to the second."""
        return (self.layers - self.shallow) / (self.deep - self.shallow)

    def at(self, first: float, second: float) -> float:
        """The value at the third count, not below 0."""
        return max(0.0, first + (second - first) * self.reach)

    def seconds(self, first: float, second: float) -> float:
        """As `at`, and not below the second: layers only add, whatever the noise of both says."""
        return max(second, self.at(first, second))

    def whole(self, first: int, second: int) -> int:
        """As `at`, for counts and bytes."""
        return round(self.at(first, second))

    def steps(
        self, first: Sequence[float | None], second: Sequence[float | None]
    ) -> tuple[float | None, ...]:
        """Quantile by quantile: step i of one run has nothing to do with step i of another.

        Of unknown seconds nothing is known at another depth either.
        """
        count = min(len(first), len(second))
        low, high = _known(first), _known(second)
        if low is None or high is None:
            return (None,) * count
        return tuple(
            self.seconds(one, two)
            for one, two in zip(_spread(low, count), _spread(high, count), strict=True)
        )


def _spread(values: Sequence[float], count: int) -> list[float]:
    """The values in order, as that many quantiles."""
    ordered = sorted(values)
    if len(ordered) == count:
        return ordered
    if count == 1:
        return [median(ordered)]
    return [ordered[0], *quantiles(ordered, n=count - 1, method="inclusive"), ordered[-1]][:count]


def extrapolate(
    first: Measurement, second: Measurement, line: Line, *, tokens_per_step: int
) -> Measurement:
    """The whole model's measurement, marked as drawn from two.

    The first loss and gradient norm are those of the deeper one: they extrapolate to nothing.

    Args:
        first: Measured at `line.shallow` layers.
        second: Measured at `line.deep` layers, on the same ranks.
        line: The three layer counts.
        tokens_per_step: Of the whole job.
    """
    reports = tuple(
        _report(one, two, line) for one, two in zip(first.ranks, second.ranks, strict=True)
    )
    seen = measurement_from(reports, tokens_per_step=tokens_per_step)
    off = _BAND * sqrt(
        ((line.reach - 1) * _standard_error(first)) ** 2
        + (line.reach * _standard_error(second)) ** 2
    )
    phases = ("forward_peak_bytes", "backward_peak_bytes", "peak_allocated_bytes")
    return replace(
        seen,
        **_exposed(first, second, line),
        depth=Depth(
            layers_measured=(line.shallow, line.deep),
            layers=line.layers,
            step_lo_s=max(0.0, seen.step_s - off),
            step_hi_s=seen.step_s + off,
            peak_lo_bytes=seen.peak_allocated_bytes,
            peak_hi_bytes=max(getattr(seen, name) for name in phases),
        ),
    )


_EXPOSED = ("tp_exposed_s", "cp_exposed_s", "dp_exposed_s", "pp_exposed_s", "cp_comm_s")


def _exposed(first: Measurement, second: Measurement, line: Line) -> dict[str, Any]:
    """The line of what the two traced steps exposed; each trace itself stays that of its depth."""
    if first.traced_step_s is None or second.traced_step_s is None:
        return {}
    pairs = {
        name: (getattr(first, name), getattr(second, name)) for name in (*_EXPOSED, "traced_step_s")
    }
    return {
        name: line.seconds(one, two)
        for name, (one, two) in pairs.items()
        if one is not None and two is not None
    }


def _standard_error(seen: Measurement) -> float:
    count = min(len(report.step_s) for report in seen.ranks)
    return _MEDIAN * (seen.step_p90_s - seen.step_p10_s) / _DECILES / sqrt(count)


_LISTS = ("step_s", "tp_exposed_s", "cp_exposed_s", "dp_exposed_s", "pp_exposed_s")
_COUNTS = (
    "forward_peak_bytes",
    "backward_peak_bytes",
    "peak_reserved_bytes",
    "attended_pairs",
    "planned_sent_bytes",
    "sent_bytes",
)


def _report(one: RankReport, two: RankReport, line: Line) -> RankReport:
    memory = None
    if one.memory is not None and two.memory is not None:
        memory = _sizes(one.memory, two.memory, line)
    kept = None
    if one.kept is not None and two.kept is not None:
        kept = _sizes(one.kept, two.kept, line)
        # One call, the same at every depth.
        kept = replace(
            kept,
            attention_bytes=two.kept.attention_bytes,
            planned_attention_bytes=two.kept.planned_attention_bytes,
        )
    peak = line.whole(one.peak_allocated_bytes, two.peak_allocated_bytes)
    changed: dict[str, Any] = {
        name: line.steps(getattr(one, name), getattr(two, name)) for name in _LISTS
    }
    changed |= {name: line.whole(getattr(one, name), getattr(two, name)) for name in _COUNTS}
    return replace(
        two,
        **changed,
        peak_allocated_bytes=peak if memory is None else memory.peak_bytes,
        edges=tuple(_edge(*pair, line) for pair in zip(one.edges, two.edges, strict=True)),
        memory=memory,
        kept=kept,
        used_bytes=None
        if one.used_bytes is None or two.used_bytes is None
        else line.whole(one.used_bytes, two.used_bytes),
    )


def _known(seconds: Sequence[float | None]) -> list[float] | None:
    known = [one for one in seconds if one is not None]
    return known if len(known) == len(seconds) else None


def _sizes(one: _Sizes, two: _Sizes, line: Line) -> _Sizes:
    names = [field.name for field in fields(one)]
    drawn = {name: line.whole(getattr(one, name), getattr(two, name)) for name in names}
    return replace(two, **drawn)


def _edge(one: EdgeReport, two: EdgeReport, line: Line) -> EdgeReport:
    return replace(
        two,
        sent_bytes=line.whole(one.sent_bytes, two.sent_bytes),
        received_bytes=line.whole(one.received_bytes, two.received_bytes),
        seconds=None
        if one.seconds is None or two.seconds is None
        else line.at(one.seconds, two.seconds),
    )
