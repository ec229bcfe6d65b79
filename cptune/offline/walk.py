"""One search of a landscape, and what it came to after each trial.

Regret is the true step of what looks best so far over the best step of the landscape, less one;
1.0 before the first success. Without noise, what looks best is the best so far.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

from cptune.domain.candidate import Candidate
from cptune.domain.launcher import LauncherName
from cptune.domain.outcome import OutcomeKind
from cptune.domain.placement import Placement
from cptune.domain.study import SamplerName, SearchSettings
from cptune.domain.trial import Trial
from cptune.offline.answers import failure_of, measurement_of
from cptune.offline.landscape import Landscape, Result
from cptune.seams import Sampler
from cptune.search.sampler import OptunaSampler

#: Trials after which regret is told.
AFTER = (1, 2, 3, 5, 8, 10)
#: Regrets whose first trial is told.
WITHIN = (0.05, 0.02)
#: Longer searches are cut: what they have not reached by then is not reached.
MOST_TRIALS = 64
NO_SUCCESS = 1.0
_SEEDS = 3  # as in a sweep, TPE begins with so many of the best predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """One search: the regret after each trial, and what was asked that should not have been.

    `out_of_memory` counts the trials that ran out, of the first `AFTER[-1]`.
    """

    regrets: tuple[float, ...]
    duplicates: int
    illegal_asks: int
    out_of_memory: int

    def regret_after(self, trials: int) -> float:
        """Regret after so many trials, or after all where there are fewer."""
        return self.regrets[min(trials, len(self.regrets)) - 1] if self.regrets else NO_SUCCESS

    def trials_to(self, regret: float) -> int | None:
        """The first trial with no more regret than this; None where there is none."""
        return next((at for at, one in enumerate(self.regrets, 1) if one <= regret), None)


def open_sampler(landscape: Landscape, name: SamplerName, *, seed: int) -> OptunaSampler:
    """A sampler of the product as a sweep would open it, in memory and without a baseline."""
    sampler = OptunaSampler(
        landscape.space,
        settings=SearchSettings(sampler=name, seed=seed),
        study_name="replay",
        storage=None,
        baseline=None,
    )
    foresight = landscape.foresight
    open_ones = [one for one in landscape.space.candidates if one.key not in landscape.pruned]
    sampler.seed(foresight.fastest(open_ones, count=_SEEDS))
    sampler.lead(foresight.predict, room_bytes=foresight.case.machine.capacity_bytes)
    return sampler


def walk(landscape: Landscape, sampler: Sampler, *, noise: float = 0.0, seed: int = 0) -> Walk:
    """Let a sampler search until it is within the least of `WITHIN`, and `AFTER` is told.

    Args:
        landscape: What each candidate came to.
        sampler: Who is asked; nothing is known of it.
        noise: Standard deviation of log(step), as every trial reads it.
        seed: Of the noise.
    """
    among = [one.key for one in landscape.space.candidates if one.key not in landscape.pruned]
    confined = set(among) if landscape.pruned else None
    read, regrets = dict[str, float | None](), list[float]()
    duplicates = illegal = spent = 0
    while len(regrets) < MOST_TRIALS and (one := sampler.ask(among=confined)) is not None:
        result = landscape.results.get(one.key)
        duplicates += one.key in read
        illegal += result is None
        result = result or Result(kind=OutcomeKind.INFEASIBLE, step_s=None, peak_bytes=None)
        spent += result.kind is OutcomeKind.OUT_OF_MEMORY and len(regrets) < AFTER[-1]
        read[one.key] = noisy_step(one, result, noise=noise, seed=seed)
        sampler.tell(_trial(landscape, one, result, step_s=read[one.key], number=len(regrets)))
        regrets.append(_regret(landscape, read))
        if len(regrets) >= AFTER[-1] and regrets[-1] <= min(WITHIN):
            break
    return Walk(
        regrets=tuple(regrets), duplicates=duplicates, illegal_asks=illegal, out_of_memory=spent
    )


def noisy_step(candidate: Candidate, result: Result, *, noise: float, seed: int) -> float | None:
    """What a trial reads: the step times a log-normal factor that seed and candidate decide."""
    if result.step_s is None:
        return None
    draw = random.Random(f"{seed} {candidate.key}").gauss(0.0, noise)
    return result.step_s * exp(draw)


def _regret(landscape: Landscape, read: Mapping[str, float | None]) -> float:
    timed = {key: step_s for key, step_s in read.items() if step_s is not None}
    if not timed:
        return NO_SUCCESS
    true_s = landscape.results[min(timed, key=timed.__getitem__)].step_s
    assert true_s is not None, "what was read has a step"
    return true_s / landscape.best_s - 1


def _trial(
    landscape: Landscape, candidate: Candidate, result: Result, *, step_s: float | None, number: int
) -> Trial:
    """The trial as a sampler is told it; nobody asks where it ran."""
    case = landscape.foresight.case
    if step_s is None:
        outcome = failure_of(result, capacity_bytes=case.machine.capacity_bytes)
    else:
        tokens = case.workload.tokens_per_step
        outcome = measurement_of(
            result, step_s=step_s, tokens_per_step=tokens, ranks=case.machine.world_size
        )
    return Trial(
        number=number,
        attempt=0,
        candidate=candidate,
        placement=Placement(ranks=()),
        outcome=outcome,
        convergence_fingerprint="",
        execution_fingerprint="",
        started_at="",
        finished_at="",
        launcher=LauncherName.REPLAY,
    )
