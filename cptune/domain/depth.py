"""A figure of the whole model, drawn from two shallower ones that were measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Which layer counts were measured, and how far the figures of the whole model may be off.

    The step lies between `step_lo_s` and `step_hi_s` with a probability of 95%, by the spread of
    both measured medians. The peak is the line of the peaks; `peak_hi_bytes` is the highest line of
    any phase, which is another one where the peak moves to another phase on the way.
    """

    layers_measured: tuple[int, int]
    step_lo_s: float
    step_hi_s: float
    peak_lo_bytes: int
    peak_hi_bytes: int
    layers: int | None = None  # of the whole model; None in a row of an older run
