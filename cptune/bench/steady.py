"""Steps until they are steady: warm-up, then timing, with one decision for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from cptune.bench.step import StepResult
from cptune.domain.timing import StopRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Every step of a trial on this rank, in order."""

    warmup: tuple[StepResult, ...]
    timed: tuple[StepResult, ...]

    @property
    def first(self) -> StepResult:
        """The very first, from the weights that every candidate starts with."""
        return self.warmup[0]


def run_steadily(
    run: Callable[[int], StepResult],
    *,
    rule: StopRule,
    start_timing: Callable[[], None],
    trace: Callable[[int], StepResult] | None = None,
    cold_steps: int = 1,
) -> Steps:
    """Run step 0, 1, ... until the rule has enough. Collective over the default group.

    Args:
        run: Runs one step; its own clock decides what is timed.
        rule: Decides on the seconds of the slowest rank, which are exchanged between steps.
        start_timing: Called between the last step of warm-up and the first that is timed.
        trace: Runs a step and writes it down: in place of `run` from where warm-up may end on, but
            never for the first ones, which are cold.
        cold_steps: Least steps of warm-up that are not written down.
    """
    cold = max(cold_steps, rule.warmup_steps - 1)
    least = cold_steps if trace is None else cold + 1
    rule = replace(rule, warmup_steps=max(least, rule.warmup_steps))
    warming = run if trace is None else lambda index: (trace if index >= cold else run)(index)
    warmup = _until(rule.is_warm, warming, first=0)
    start_timing()
    return Steps(warmup=warmup, timed=_until(rule.is_done, run, first=len(warmup)))


def _until(
    is_enough: Callable[[list[float]], bool], run: Callable[[int], StepResult], *, first: int
) -> tuple[StepResult, ...]:
    results: list[StepResult] = []
    slowest: list[float] = []
    while not is_enough(slowest):
        results.append(run(first + len(results)))
        # Outside of what is timed, and the reason why no rank stops before another.
        seconds = torch.tensor(results[-1].seconds, dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        slowest.append(seconds.item())
    return tuple(results)
