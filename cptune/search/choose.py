"""The choice: the smallest CP that fits with margin, hides its communication and is fast enough.

The rules apply in order: (1) it was measured, (2) its peak stays inside the margin, (3) its exposed
communication stays inside the budget, (4) its throughput is within the slack of the best of those
that pass 1 to 3, both as expected over many batches where documents make groups uneven, (5) no
smaller CP passes 1 to 4. The certificate says, for each smaller CP, what rules it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from cptune.domain.layout import Axis
from cptune.domain.outcome import Failure, Measurement, OutcomeKind
from cptune.domain.recipe import CertificateEntry, Control, Evidence
from cptune.domain.study import Objective
from cptune.domain.timing import CI_SHARE
from cptune.domain.trial import Trial, searched
from cptune.domain.units import bytes_text
from cptune.domain.workload import divisors
from cptune.search.expected import Expect, as_measured
from cptune.search.finalists import choose_finalists, pool
from cptune.search.space import SearchSpace


class Ruling(StrEnum):
    """The verdict on one trial, from the farthest from shipping to the nearest."""

    FAILED = "failed"
    OVER_MARGIN = "over margin"
    EXPOSED = "exposed"
    SLOWER = "slower"
    LARGER_CP = "larger cp"
    SAME_CP = "same cp"
    CHOSEN = "chosen"


_NEARNESS = tuple(Ruling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is said of one trial. `miss` compares trials of one ruling: the smaller, the nearer."""

    trial: Trial
    ruling: Ruling
    reason: str
    miss: float = 0.0

    @property
    def word(self) -> str:
        """The outcome for a failure, else the ruling."""
        return self.trial.kind.value if self.ruling is Ruling.FAILED else self.ruling.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a recipe must keep to on one device."""

    capacity_bytes: int
    memory_margin: float
    objective: Objective
    expect: Expect = as_measured
    ci_share: float = CI_SHARE

    @property
    def allowed_bytes(self) -> int:
        """The largest peak that leaves the margin free."""
        return int(self.capacity_bytes * (1 - self.memory_margin))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The verdict of every trial; `trial` None: nothing passed, `nearest` came closest."""

    trial: Trial | None
    nearest: Verdict | None
    verdicts: tuple[Verdict, ...]
    certificate: tuple[CertificateEntry, ...]
    controls: tuple[Control, ...]


def finalists_of(trials: Sequence[Trial], limits: Limits) -> tuple[Trial, ...]:
    """The trials of the search that are measured again; the same however often one asks."""
    gated = _gated(searched(trials), limits)
    passed = [verdict.trial for verdict in gated if verdict.ruling is Ruling.CHOSEN]
    slack = limits.objective.throughput_slack
    ordered = sorted(passed, key=lambda trial: _preference(trial, limits))
    return choose_finalists(ordered, slack=slack)


def choose(trials: Sequence[Trial], space: SearchSpace, limits: Limits) -> Choice:
    """Judge every trial and pick the recipe.

    The newest attempt of a candidate speaks for it, or all its complete rounds of finals together.
    """
    speaking, finals = _speaking(trials, limits)
    gated = [_gate(trial, limits) for trial in speaking]
    searched_best = _best(_gated(searched(trials), limits), limits)
    final_best = _best([one for one in gated if one.trial.round], limits)
    # Each is compared with what was timed beside it: finalists among themselves.
    timed = [
        _slack(verdict, final_best if verdict.trial.round else searched_best, limits)
        for verdict in gated
    ]
    passed = [verdict.trial for verdict in timed if verdict.ruling is Ruling.CHOSEN]
    eligible = [trial for trial in passed if trial.candidate.key in finals] or passed
    chosen = min(eligible, key=lambda trial: _preference(trial, limits), default=None)
    verdicts = tuple(_rank(verdict, chosen, limits) for verdict in timed)
    return Choice(
        trial=chosen,
        nearest=None if chosen else min(verdicts, key=_nearness, default=None),
        verdicts=verdicts,
        certificate=() if chosen is None else _certificate(chosen, verdicts, space),
        controls=tuple(_control(verdict) for verdict in verdicts if verdict.trial is not chosen),
    )


def _speaking(trials: Sequence[Trial], limits: Limits) -> tuple[list[Trial], set[str]]:
    """One trial a candidate, and the keys of those that were measured again in complete rounds."""
    if not any(trial.round for trial in trials):
        return list({trial.candidate.key: trial for trial in trials}.values()), set()
    finalists = {trial.candidate.key for trial in finalists_of(trials, limits)}
    pooled = pool(trials, finalists=finalists, ci_share=limits.ci_share)
    return pooled, {trial.candidate.key for trial in pooled if trial.round}


def _gated(trials: Sequence[Trial], limits: Limits) -> list[Verdict]:
    latest = {trial.candidate.key: trial for trial in trials}
    return [_gate(trial, limits) for trial in latest.values()]


def _best(verdicts: Sequence[Verdict], limits: Limits) -> float:
    """The highest rate of those that passed the other gates, tokens per second."""
    passed = (verdict.trial for verdict in verdicts if verdict.ruling is Ruling.CHOSEN)
    return max((limits.expect(trial).tokens_per_s for trial in passed), default=0.0)


def _measured(trial: Trial) -> Measurement:
    assert trial.measurement is not None, "only measured trials pass the gate"
    return trial.measurement


def _preference(trial: Trial, limits: Limits) -> tuple[float, ...]:
    rate, peak_bytes = limits.expect(trial).tokens_per_s, _measured(trial).peak_allocated_bytes
    return (trial.candidate.layout.cp, -rate, peak_bytes)


def _gate(trial: Trial, limits: Limits) -> Verdict:
    outcome = trial.outcome
    if isinstance(outcome, Failure):
        miss = outcome.shortage.short_bytes if outcome.shortage else inf
        return Verdict(trial=trial, ruling=Ruling.FAILED, reason=outcome.message, miss=miss)
    over = outcome.peak_allocated_bytes - limits.allowed_bytes
    if over > 0:
        reason = (
            f"peak {bytes_text(outcome.peak_allocated_bytes)} leaves less than the margin of "
            f"{limits.memory_margin:.0%} of {bytes_text(limits.capacity_bytes)}: "
            f"{bytes_text(over)} too much"
        )
        return Verdict(trial=trial, ruling=Ruling.OVER_MARGIN, reason=reason, miss=over)
    share, budget = outcome.exposed_share, limits.objective.exposed_comm_share
    if share > budget:
        axis = max(Axis, key=lambda one: getattr(outcome, f"{one.value}_exposed_s"))
        reason = (
            f"exposed communication {share:.1%} of the step, most of it over {axis.value}, "
            f"budget {budget:.1%}"
        )
        return Verdict(trial=trial, ruling=Ruling.EXPOSED, reason=reason, miss=share - budget)
    return Verdict(trial=trial, ruling=Ruling.CHOSEN, reason="")


def _slack(verdict: Verdict, best: float, limits: Limits) -> Verdict:
    if verdict.ruling is not Ruling.CHOSEN:
        return verdict
    expected = limits.expect(verdict.trial)
    rate, slack = expected.tokens_per_s, limits.objective.throughput_slack
    if rate >= best * (1 - slack):
        return verdict
    reason = (
        f"{rate:,.0f} tokens/s is {1 - rate / best:.1%} below the best {best:,.0f}"
        f"{'' if verdict.trial.round else ' of the search'}, slack {slack:.1%}"
    )
    seen = _measured(verdict.trial)
    if rate * seen.step_s / seen.step_p10_s >= best * (1 - slack):
        reason += " (its fastest tenth of steps would pass: the timing is noisy)"
    reason = _joined(reason, expected.note)
    return Verdict(trial=verdict.trial, ruling=Ruling.SLOWER, reason=reason, miss=1 - rate / best)


def _joined(reason: str, note: str) -> str:
    return f"{reason}; {note}" if note else reason


def _rank(verdict: Verdict, chosen: Trial | None, limits: Limits) -> Verdict:
    if verdict.ruling is not Ruling.CHOSEN or chosen is None:
        return verdict
    ruling, reason = _place(verdict.trial, chosen)
    reason = _joined(reason, limits.expect(verdict.trial).note)
    return Verdict(trial=verdict.trial, ruling=ruling, reason=reason)


def _place(trial: Trial, chosen: Trial) -> tuple[Ruling, str]:
    """What is said of a trial that passed, beside the chosen one."""
    if trial is chosen:
        return Ruling.CHOSEN, "smallest CP that fits, hides its communication and is fast enough"
    cp, smallest = trial.candidate.layout.cp, chosen.candidate.layout.cp
    if cp > smallest:
        return Ruling.LARGER_CP, f"cp {smallest} does as well within the slack"
    return Ruling.SAME_CP, f"another layout of cp {cp} is faster"


#: Failures that say something about the candidate; the others leave its CP open.
_CONCLUSIVE = frozenset(
    {
        OutcomeKind.INFEASIBLE,
        OutcomeKind.OUT_OF_MEMORY,
        OutcomeKind.WRONG_RESULT,
        OutcomeKind.NOT_APPLIED,
    }
)


def _certificate(
    chosen: Trial, verdicts: Sequence[Verdict], space: SearchSpace
) -> tuple[CertificateEntry, ...]:
    smaller = [cp for cp in divisors(space.world_size) if cp < chosen.candidate.layout.cp]
    return tuple(_entry(cp, verdicts=verdicts, space=space) for cp in smaller)


def _entry(cp: int, *, verdicts: Sequence[Verdict], space: SearchSpace) -> CertificateEntry:
    legal = len(space.with_cp(cp))
    if legal == 0:
        illegal = space.illegal_cps.get(cp)
        reason = f"no legal layout: {illegal}" if illegal else _never_tried(cp, space)
        return CertificateEntry(cp=cp, reason=reason, evidence=Evidence.PROVEN if illegal else None)
    judged = [verdict for verdict in verdicts if verdict.trial.candidate.layout.cp == cp]
    if len(judged) < legal:
        reason = f"not ruled out: {legal - len(judged)} of its {legal} layouts were not tried"
        return CertificateEntry(cp=cp, reason=reason, evidence=None)
    counts = Counter(verdict.word for verdict in judged)
    tally = ", ".join(f"{count} {word}" for word, count in counts.most_common())
    if open_ones := [verdict for verdict in judged if not _is_conclusive(verdict)]:
        reason = f"not ruled out: {tally}; {_name(open_ones[0])}: {open_ones[0].reason}"
        return CertificateEntry(cp=cp, reason=reason, evidence=None)
    near = min(judged, key=_nearness)
    untried = counts[OutcomeKind.INFEASIBLE]
    tried = f"{legal - untried} of {legal}" if untried else f"all {legal}"
    reason = f"{tried} layouts tried: {tally}; nearest, {_name(near)}: {near.reason}"
    if more := space.untriable.get(cp):
        reason += f" ({more} more that these trials cannot run are not judged)"
    evidence = Evidence.PREDICTED if untried or any(map(_is_drawn, judged)) else Evidence.MEASURED
    return CertificateEntry(cp=cp, reason=reason, evidence=evidence)


def _is_drawn(verdict: Verdict) -> bool:
    """Whether a prediction stands in for what would be measured."""
    return verdict.trial.launcher.is_simulated or verdict.trial.depth is not None


def _never_tried(cp: int, space: SearchSpace) -> str:
    if more := space.untriable.get(cp):
        return f"not ruled out: these trials cannot run its {more} layouts"
    return "not ruled out: not among the axes"


def _is_conclusive(verdict: Verdict) -> bool:
    return verdict.ruling is not Ruling.FAILED or verdict.trial.kind in _CONCLUSIVE


def _name(verdict: Verdict) -> str:
    return verdict.trial.candidate.describe()


def _nearness(verdict: Verdict) -> tuple[int, float]:
    """Sorts the nearest to shipping first."""
    return -_NEARNESS.index(verdict.ruling), verdict.miss


def _control(verdict: Verdict) -> Control:
    candidate = verdict.trial.candidate
    return Control(
        candidate_key=candidate.key,
        cp=candidate.layout.cp,
        verdict=verdict.word,
        reason=verdict.reason,
    )
