"""Who says which candidate to try next: a Gaussian process over the whole legal set.

The set is finite and small, so the gain is worked out for each open candidate and nothing is
proposed that is not legal. With a prediction the process is over log(seen / predicted), so that
trials correct the prediction where it errs, and the first pick is the best predicted of what likely
fits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import log
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cptune.domain.candidate import Candidate
from cptune.domain.trial import Predicted, Trial
from cptune.search.gaussian_process import (
    Kernel,
    Reals,
    expected_improvement,
    fit_kernel,
    mean_below,
    normal_share,
    posterior,
)
from cptune.search.space import SearchSpace
from cptune.search.telling import is_infeasible

Rows: TypeAlias = NDArray[np.intp]

_SIZES = ("tp", "cp", "pp", "vpp", "dp", "ulysses", "ep", "micro_batch")
_WORDS = ("sharding", "strategy", "recompute", "loss", "data_parallel", "kernel")
_WORD_APART = 0.5**0.5  # two words differ in two of these: together as far as one doubling

_NOISE = 0.03  # of log(step): the same recipe re-run moves by a few percent
#: Of log(seen / predicted), what all share: with more, one bad first trial blames all predictions
#: alike, and its neighbours are tried next.
_OFFSET = 0.5
_FIRST = 3  # without a prediction, so many are drawn before anything is learnt

#: Of log(room / peak). Without a prediction, about two in three candidates are taken to fit.
_UNKNOWN_ROOM, _UNKNOWN_SPREAD = 0.2, 0.5
_LEAST_SPREAD, _MOST_SPREAD = 0.03, 0.5
_SIGMAS = 2 * 1.96  # in the width of a band of 95%
_LIKELY = 0.5  # before there are trials, what is less likely to fit comes after what is more
_NO_GAIN = 1e-12
_LEAST_CHANCE = 1e-12


class Guide:
    """Picks the candidate of the largest expected gain, times the chance that it fits.

    Nothing is kept between two picks, so a resumed search goes on as one that never stopped.

    Args:
        space: The legal set.
        seed: Of the first draws, where nothing is predicted.
        predicted: By key, of every candidate; empty: it learns from trials alone.
        room_bytes: What a peak may come to; 0: not known.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        predicted: Mapping[str, Predicted],
        room_bytes: int,
    ) -> None:
        self._at = {one.key: index for index, one in enumerate(space.candidates)}
        missing = self._at.keys() - predicted.keys() if predicted else ()
        assert not missing, f"no prediction of {sorted(missing)[:3]}"
        self._features = _features(space.candidates)
        self._led = bool(predicted)
        self._room_bytes = room_bytes
        steps = [log(predicted[key].step_s) if predicted else 0.0 for key in self._at]
        self._log_step: Reals = np.array(steps, dtype=np.float64)
        self._log_room, self._room_kernel = self._rooms(predicted)
        keys = list(self._at)
        random.Random(seed).shuffle(keys)
        self._drawn = {key: place for place, key in enumerate(keys)}

    def choose(self, open_keys: Sequence[str], trials: Mapping[str, Trial]) -> str:
        """The key to try next, of those that are open; ties go to the first.

        Args:
            open_keys: At least one.
            trials: The last attempt of each candidate that was tried, by key.
        """
        seen = [one for key, one in trials.items() if one.measurement and key in self._at]
        chances = self._chances(open_keys, trials)
        if not self._led and len(seen) < _FIRST:
            return min(open_keys, key=self._drawn.__getitem__)
        if not seen:
            steps = self._log_step[self._rows(open_keys)]
            return open_keys[int(np.lexsort((steps, chances < _LIKELY))[0])]
        mean, sd, best = self._steps(open_keys, seen)
        gains = np.array(
            [
                chance * expected_improvement(float(m), float(s), best)
                for m, s, chance in zip(mean, sd, chances, strict=True)
            ]
        )
        if gains.max() < _NO_GAIN:
            return open_keys[int(np.argmin(mean - np.log(chances)))]
        return open_keys[int(np.argmax(gains))]

    def _steps(self, keys: Sequence[str], seen: Sequence[Trial]) -> tuple[Reals, Reals, float]:
        """Mean and deviation of log(step) of some candidates, and the best of those seen."""
        rows, known = self._rows(keys), self._rows([one.candidate.key for one in seen])
        log_seen = np.array([log(one.measurement.step_s) for one in seen if one.measurement])
        residual = log_seen - self._log_step[known]
        middle = 0.0 if self._led else float(np.mean(residual))  # seconds have no usual size
        x, y = self._features[known], residual - middle
        kernel = fit_kernel(x, y, offset=_OFFSET, noise=_NOISE)
        asked = np.concatenate([self._features[rows], x])
        mean, sd = posterior(kernel, x, y, asked)
        mean = mean + middle + self._log_step[np.concatenate([rows, known])]
        return mean[: len(rows)], sd[: len(rows)], float(mean[len(rows) :].min())

    def _chances(self, keys: Sequence[str], trials: Mapping[str, Trial]) -> Reals:
        """The chance of each that its peak stays inside the room."""
        told = {
            key: room
            for key, one in trials.items()
            if key in self._at and (room := self._room_seen(one)) is not None
        }
        rows, known = self._rows(keys), self._rows(list(told))
        y = np.array([*told.values()], dtype=np.float64) - self._log_room[known]
        mean, sd = posterior(self._room_kernel, self._features[known], y, self._features[rows])
        z = (mean + self._log_room[rows]) / np.hypot(sd, self._room_kernel.noise)
        return np.array([max(_LEAST_CHANCE, normal_share(float(one))) for one in z])

    def _room_seen(self, trial: Trial) -> float | None:
        """log(room / peak) of a trial; None where it says nothing of memory.

        One that ran out says only that it is below zero: the mean of what is below is read.
        """
        prior = float(self._log_room[self._at[trial.candidate.key]])
        spread = float(np.hypot(self._room_kernel.scale, self._room_kernel.offset))
        if is_infeasible(trial):
            return mean_below(prior, spread, 0.0)
        if trial.measurement is None:
            return None
        peak = trial.measurement.peak_allocated_bytes
        if not self._room_bytes or not peak:
            return -mean_below(-prior, spread, 0.0)
        return log(self._room_bytes / peak)

    def _rooms(self, predicted: Mapping[str, Predicted]) -> tuple[Reals, Kernel]:
        """log(room / peak) as predicted, and how far that errs, from the width of the bands."""
        if not (predicted and self._room_bytes):
            spread = _UNKNOWN_SPREAD
            room = np.full(len(self._at), _UNKNOWN_ROOM)
        else:
            bands = [predicted[key] for key in self._at]
            room = np.array([log(self._room_bytes / one.peak_bytes) for one in bands])
            widths = [log(one.peak_hi_bytes / one.peak_lo_bytes) / _SIGMAS for one in bands]
            spread = min(_MOST_SPREAD, max(_LEAST_SPREAD, float(np.mean(widths))))
        kernel = Kernel(length=2.0, scale=spread, offset=spread, noise=_LEAST_SPREAD)
        return room, kernel

    def _rows(self, keys: Sequence[str]) -> Rows:
        return np.array([self._at[key] for key in keys], dtype=np.intp)


def _features(candidates: Sequence[Candidate]) -> Reals:
    """A row a candidate: sizes in doublings, words apart by as much as one doubling.

    Axes on which all candidates agree are left out.
    """
    axes = [one.axes() for one in candidates]
    columns: list[list[float]] = [[log(float(row[name]), 2) for row in axes] for name in _SIZES]
    columns.append([log(1 + float(row["stages"]), 2) for row in axes])
    for name in _WORDS:
        words = sorted({str(row[name]) for row in axes})
        columns += [[_WORD_APART * (row[name] == word) for row in axes] for word in words]
    kept = [column for column in columns if len({*column}) > 1]
    return np.array(kept, dtype=np.float64).reshape(len(kept), len(axes)).T
