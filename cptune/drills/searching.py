"""The loop of a sweep over candidates whose trials are known, so that its guards judge them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cptune.clock import SystemClock
from cptune.domain.candidate import Candidate
from cptune.domain.environment import RankEnvironment
from cptune.domain.outcome import Failure, Measurement
from cptune.domain.placement import Device, Placement, place
from cptune.domain.stamp import Stamp
from cptune.domain.study import Objective
from cptune.domain.trial import Trial
from cptune.drills.ranks import SPEC
from cptune.search.choose import Choice, Limits
from cptune.search.loop import SearchLoop
from cptune.search.seams import Prove, Seams
from cptune.search.space import SearchSpace

#: A candidate, and what its trial came to.
Known = tuple[Candidate, Measurement | Failure]

_SLACK = 0.1
STAMP = Stamp(
    convergence="0" * 64, execution="0" * 64, topology="0" * 64, versions=RankEnvironment()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What the loop made of the trials."""

    trials: tuple[Trial, ...]
    choice: Choice

    @property
    def chosen(self) -> Candidate | None:
        """The recipe's candidate; None: nothing passed."""
        return None if self.choice.trial is None else self.choice.trial.candidate

    def reason(self, candidate: Candidate) -> str:
        """What is said of a candidate in the end: its failure, or why it is not the recipe."""
        [verdict] = [one for one in self.choice.verdicts if one.trial.candidate == candidate]
        return f"{verdict.word}: {verdict.reason}"


def search(
    known: Sequence[Known],
    *,
    capacity_bytes: int = 1 << 40,
    exposed_comm_share: float = 0.999,
    prove: Prove | None = None,
) -> Searched:
    """Run the loop over these candidates in this order, and choose.

    Args:
        known: What the launcher answers.
        capacity_bytes: Of a device; no margin is kept of it.
        exposed_comm_share: Of a step, that may be exposed; nearly all of it where omitted.
        prove: Proves what is chosen; None: nothing is proven.
    """
    space = SearchSpace(
        world_size=known[0][0].layout.world_size,
        candidates=tuple(candidate for candidate, _ in known),
        excluded={},
        reasons=(),
        illegal_cps={},
        untriable={},
    )
    objective = Objective(exposed_comm_share=exposed_comm_share, throughput_slack=_SLACK)
    loop = SearchLoop(
        space,
        limits=Limits(capacity_bytes=capacity_bytes, memory_margin=0.0, objective=objective),
        budget=SPEC.budget,
        stamp=STAMP,
        seams=Seams(
            sampler=_InOrder(space),
            launcher=_Answers(known),
            ledger=_Kept(),
            clock=SystemClock(),
            observer=_Silent(),
            prove=prove,
        ),
    )
    choice = loop.run()
    return Searched(trials=tuple(loop.trials), choice=choice)


class _InOrder:
    """Asks for every candidate once, as a sampler."""

    def __init__(self, space: SearchSpace) -> None:
        self._left = list(space.candidates)

    def ask(self, *, among: Collection[str] | None = None) -> Candidate | None:
        """As Sampler.ask."""
        asked = next((one for one in self._left if among is None or one.key in among), None)
        if asked is not None:
            self._left.remove(asked)
        return asked

    def tell(self, trial: Trial) -> None:
        """As Sampler.tell."""

    def restore(self, trials: Sequence[Trial]) -> None:
        """As Sampler.restore."""


class _Answers:
    """A launcher that knows what trials came to."""

    def __init__(self, known: Sequence[Known]) -> None:
        self._known = dict(known)

    def place(self, candidate: Candidate) -> Placement:
        """As Launcher.place."""
        return placed(candidate)

    def launch(self, candidate: Candidate, placement: Placement) -> Measurement | Failure:
        """As Launcher.launch."""
        del placement
        return self._known[candidate]


class _Kept:
    """A ledger in memory."""

    def __init__(self) -> None:
        self._trials: list[Trial] = []

    @property
    def quarantined(self) -> Sequence[str]:
        """As Ledger.quarantined."""
        return ()

    def append(self, trial: Trial) -> None:
        """As Ledger.append."""
        self._trials.append(trial)

    def read(self) -> Sequence[Trial]:
        """As Ledger.read."""
        return tuple(self._trials)


class _Silent:
    """An observer that tells nobody."""

    def trial_started(self, candidate: Candidate, *, done: int, total: int) -> None:
        """As Observer.trial_started."""

    def finalist_started(self, candidate: Candidate, *, turn: int, turns: int) -> None:
        """As Observer.finalist_started."""

    def trial_finished(self, trial: Trial, *, best: Trial | None) -> None:
        """As Observer.trial_finished."""

    def note(self, message: str) -> None:
        """As Observer.note."""

    def model_changed(self, message: str) -> None:
        """As Observer.model_changed."""


def placed(candidate: Candidate) -> Placement:
    """The candidate on as many CPU devices of one node."""
    world = candidate.layout.world_size
    return place(
        candidate.layout, [Device(node="a", kind="cpu", index=one) for one in range(world)]
    )
