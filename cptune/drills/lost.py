"""A rank whose process ends in the middle of a trial."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cptune.domain.candidate import Candidate
from cptune.domain.layout import ParallelLayout
from cptune.domain.outcome import Failure, Measurement, OutcomeKind
from cptune.drills.faults import killed
from cptune.drills.finding import Finding
from cptune.drills.ranks import Ranks
from cptune.drills.searching import search

_VICTIM = 2
_FIRST = Candidate(layout=ParallelLayout(cp=4), stages=3)
_NEXT = Candidate(layout=ParallelLayout(cp=2, dp=2), stages=1)
_CAPACITY_BYTES = 64_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The trial that lost a rank, and the one after it."""

    lost: Measurement | Failure
    after: Measurement | Failure


def provoke(ranks: Ranks) -> Trials:
    """Lose a rank, and try the next candidate on those that take the place of all."""
    with ranks.planted(partial(killed, victim=_VICTIM)):
        lost = ranks.launch(_FIRST, capacity_bytes=_CAPACITY_BYTES)
    return Trials(lost=lost, after=ranks.launch(_NEXT, capacity_bytes=_CAPACITY_BYTES))


def judge(seen: Trials) -> Finding:
    """The loop must keep a row that names the rank, and go on."""
    found = search([(_FIRST, seen.lost), (_NEXT, seen.after)])
    row, lost = found.trials[0], seen.lost
    kinds = (OutcomeKind.CRASHED, OutcomeKind.NODE_LOST)
    return Finding(
        refused=row.kind in kinds and isinstance(lost, Failure) and lost.rank == _VICTIM,
        said=found.reason(_FIRST),
        controls={"the next trial is measured and chosen": found.chosen == _NEXT},
        figures={"lost_rank": _VICTIM, "outcome": row.kind.value},
    )
