"""What a ranking comes to: the front of throughput and CP, and the few layouts worth measuring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cptune.domain.candidate import Candidate
from cptune.domain.fit import beyond_text
from cptune.planning.row import fit_of
from cptune.predict.prediction import Prediction, Predictor

_SHORTLIST = 6
_EDGE = 3  # where nothing likely fits: how many of the nearest are worth a trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A candidate that may be tried, with its prediction."""

    candidate: Candidate
    prediction: Prediction

    @property
    def cp(self) -> int:
        """Its context-parallel degree."""
        return self.candidate.layout.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """A layout that is worth a trial, and what the trial would tell."""

    planned: Planned
    why: str


def pareto(ranked: Sequence[Planned], predictor: Predictor) -> list[Planned]:
    """The front of throughput and CP among what likely fits: none is as fast with as small a CP."""
    best = _best_by_cp(likely(ranked, predictor))
    front = list[Planned]()
    for cp in sorted(best):
        if not front or best[cp].prediction.time.step_s < front[-1].prediction.time.step_s:
            front.append(best[cp])
    return front


def likely(ranked: Sequence[Planned], predictor: Predictor) -> list[Planned]:
    """Those whose likely peak leaves the margin: what could be chosen."""
    return [one for one in ranked if not predictor.is_tight(one.prediction.memory)]


def worth_measuring(ranked: Sequence[Planned], predictor: Predictor) -> list[Worth]:
    """The shortest list: what could win, and what decides which CP is the smallest.

    The fastest, the front, the smallest CP that likely fits, the CP above it and the one below,
    whose fit is not known: a smaller CP is ruled out by a trial or by its lowest peak alone. Where
    nothing likely fits, those that miss least.
    """
    chosen: dict[str, Worth] = {}
    for planned, why in _wanted(ranked, predictor):
        said = why + _fit_text(planned, predictor)
        chosen.setdefault(planned.candidate.key, Worth(planned=planned, why=said))
    return list(chosen.values())[:_SHORTLIST]


def _wanted(ranked: Sequence[Planned], predictor: Predictor) -> Iterator[tuple[Planned, str]]:
    inside = likely(ranked, predictor)
    if not inside:
        edge = sorted(ranked, key=lambda one: predictor.beyond_bytes(one.prediction.memory))
        yield from ((one, "nothing likely fits; this misses least") for one in edge[:_EDGE])
        return
    best = _best_by_cp(inside)
    smallest = min(best)
    yield inside[0], "the fastest predicted"
    yield best[smallest], f"cp {smallest}: the smallest that likely fits"
    below = [one for one in ranked if one.cp < smallest]
    if below:
        one = min(below, key=lambda one: (-one.cp, predictor.beyond_bytes(one.prediction.memory)))
        yield one, f"cp {one.cp}: whether it fits decides the smallest"
    above = [cp for cp in best if cp > smallest]
    if above:
        yield best[min(above)], f"cp {min(above)}: what a step above the smallest brings"
    for one in inside[1:2]:
        yield one, "the second fastest"
    for one in pareto(ranked, predictor):
        yield one, f"the fastest at cp {one.cp}"


def _best_by_cp(ranked: Sequence[Planned]) -> dict[int, Planned]:
    best: dict[int, Planned] = {}
    for one in ranked:
        best.setdefault(one.cp, one)
    return best


def _fit_text(planned: Planned, predictor: Predictor) -> str:
    """The band and the bounds from which it follows whether it fits."""
    band, fits = planned.prediction.memory, planned.prediction.fits
    verdict = "fits" if fits == "yes" else f"fit {fits}"
    beyond = round(predictor.beyond_bytes(band))
    over = f"; {beyond_text(beyond, round(band.worst.reserve_bytes))}" if beyond else ""
    return f"; {verdict}: {fit_of(band, predictor).band}{over}"
