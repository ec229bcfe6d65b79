"""Finalists: the few candidates that the choice lies between, measured again in turns.

A trial is timed once, at its own moment of the machine's load; two that are close then differ by
the moment more than by themselves. Measured in turns, A B C A B C, they share every moment, and
the steps of all complete rounds together speak for each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cptune.domain.outcome import (
    RETRIED,
    Measurement,
    RankReport,
    measurement_from,
    slowest_steps,
)
from cptune.domain.timeline import ABLATION, RankTrace
from cptune.domain.timing import median_interval
from cptune.domain.trial import Trial, searched

_MOST = 3


def choose_finalists(passed: Sequence[Trial], *, slack: float) -> tuple[Trial, ...]:
    """Those of the passed trials that the choice lies between; empty when it is settled.

    Open is each whose interval reaches within the slack of the slow end of the fastest's. Of those,
    the first by the order of the choice, the fastest, and who comes next; none where the first one
    by that order is alone.

    Args:
        passed: What passed every gate but that of speed, in the order of the choice.
        slack: Share of the best throughput that a recipe may lose.
    """
    if not passed:
        return ()
    spans = {trial.candidate.key: _span(trial) for trial in passed}
    fastest = min(passed, key=lambda trial: _seen(trial).step_s)
    bound_s = spans[fastest.candidate.key][1] / (1 - slack)
    open_ones = [trial for trial in passed if spans[trial.candidate.key][0] <= bound_s]
    if len(open_ones) < 2:
        return ()
    ordered = dict.fromkeys([open_ones[0].candidate.key, fastest.candidate.key])
    ordered |= dict.fromkeys(trial.candidate.key for trial in open_ones)
    first = list(ordered)[:_MOST]
    return tuple(trial for trial in open_ones if trial.candidate.key in first)


def pool(trials: Sequence[Trial], *, finalists: Collection[str], ci_share: float) -> list[Trial]:
    """One trial a candidate: that of the search, or all complete rounds of finals together.

    A finalist that failed in a round is judged by that failure, unless it says nothing of the
    candidate, such as a lost node.

    Args:
        trials: All attempts, in order.
        finalists: Keys of those that are measured again.
        ci_share: Above it a timing is noisy.
    """
    latest = {trial.candidate.key: trial for trial in searched(trials)}
    finals: dict[str, dict[int, Trial]] = {key: {} for key in finalists}
    for trial in trials:
        if trial.round and trial.candidate.key in finals and trial.kind not in RETRIED:
            finals[trial.candidate.key][trial.round] = trial
    complete = complete_rounds(finals)
    for key, rounds in finals.items():
        failed = [one for one in rounds.values() if one.measurement is None]
        if failed:
            latest[key] = failed[-1]
        elif complete:
            latest[key] = _joined([rounds[number] for number in complete], ci_share=ci_share)
    return list(latest.values())


def complete_rounds(finals: Mapping[str, Mapping[int, Trial]]) -> list[int]:
    """Rounds that every finalist has, those aside that failed: nobody is compared by a moment.

    A single one that is left has nobody to be compared with, and its rounds count.
    """
    sound = [
        set(rounds)
        for rounds in finals.values()
        if all(one.measurement is not None for one in rounds.values())
    ]
    return sorted(set.intersection(*sound)) if sound else []


def _joined(rounds: Sequence[Trial], *, ci_share: float) -> Trial:
    """The last of some measured trials, with the steps of all of them."""
    seen = [_seen(trial) for trial in rounds]
    reports = [_joined_reports(same) for same in zip(*(one.ranks for one in seen), strict=True)]
    tokens_per_step = round(seen[-1].tokens_per_s * seen[-1].step_s)
    joined = measurement_from(tuple(reports), tokens_per_step=tokens_per_step, ci_share=ci_share)
    return replace(rounds[-1], outcome=joined)


def _joined_reports(reports: Sequence[RankReport]) -> RankReport:
    """What one rank saw over several trials of one candidate: all steps, the largest peaks."""
    last = reports[-1]
    joined: dict[str, Any] = {
        name: tuple(value for one in reports for value in getattr(one, name))
        for name in ("step_s", "tp_exposed_s", "cp_exposed_s", "dp_exposed_s", "pp_exposed_s")
    }
    joined |= {
        name: max(getattr(one, name) for one in reports)
        for name in (
            "forward_peak_bytes",
            "backward_peak_bytes",
            "peak_allocated_bytes",
            "peak_reserved_bytes",
        )
    }
    return replace(last, **joined, trace=_joined_trace([one.trace for one in reports]))


def _joined_trace(traces: Sequence[RankTrace | None]) -> RankTrace | None:
    """The last of some traces of one rank, with the newest ablation of any."""
    last = traces[-1]
    ablated = [
        rows
        for trace in traces
        if trace is not None
        and (rows := tuple(row for row in trace.exposed if row.method == ABLATION))
    ]
    if last is None or not ablated:
        return last
    seen = tuple(row for row in last.exposed if row.method != ABLATION)
    return replace(last, exposed=(*seen, *ablated[-1]))


def _seen(trial: Trial) -> Measurement:
    assert trial.measurement is not None, "only measured trials pass the gates"
    return trial.measurement


def _span(trial: Trial) -> tuple[float, float]:
    """Where the median of the steps lies; all steps where they are too few for an interval."""
    if not _seen(trial).ranks:  # simulated
        return _seen(trial).step_p10_s, _seen(trial).step_p90_s
    steps = slowest_steps(_seen(trial).ranks)
    return median_interval(steps) or (min(steps), max(steps))
