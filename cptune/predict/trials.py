"""What is expected of the trials of a sweep, and what finished ones teach."""

from __future__ import annotations

from collections.abc import Iterable

from cptune.domain.candidate import Candidate
from cptune.domain.documents import DocumentLoad
from cptune.domain.outcome import (
    Failure,
    MemoryShortage,
    OomKind,
    OutcomeKind,
)
from cptune.domain.study import SweepSpec
from cptune.domain.trial import Predicted, Trial
from cptune.domain.units import bytes_text
from cptune.predict.calibrate import UNCALIBRATED, Calibration, Residual, calibrate
from cptune.predict.case import Case, Machine
from cptune.predict.prediction import Predictor
from cptune.predict.trial_memory import TrialMemoryModel

_MOST_EXPOSED = 0.99  # so that a step that only waited still says something of its compute


class TrialPredictor:
    """Predicts the candidates of a resolved spec on the machine that the trials run on.

    The first finished trial is believed whole. What is learnt depends on the measured trials alone,
    so a resumed sweep predicts as one that never stopped.

    Args:
        spec: The resolved spec.
        machine: What the trials run on.
        documents: What the lengths of the workload come to, where its mask uses them.
    """

    def __init__(
        self,
        spec: SweepSpec,
        *,
        machine: Machine,
        documents: DocumentLoad | None = None,
    ) -> None:
        self._case = Case(
            model=spec.model,
            workload=spec.workload,
            machine=machine,
            stack=spec.stack.kind,
            pipeline=spec.stack.pipeline,
            documents=documents,
        )
        self._memory = TrialMemoryModel(self._case)
        self._plain = Predictor(self._case, memory=self._memory)
        self._predictor = self._plain
        self._measured: dict[str, Trial] = {}
        self.calibration: Calibration = UNCALIBRATED

    @property
    def model_version(self) -> str:
        """The version that the next prediction carries."""
        return self.calibration.model_version(self._case.constants.version)

    def predict(self, candidate: Candidate) -> Predicted:
        """The step time and the memory band of one candidate."""
        return self._predictor.predict(candidate).as_predicted()

    def attention_share(self, candidate: Candidate) -> float:
        """Attention's share of the step of one candidate, were all data-parallel groups even."""
        return self._predictor.predict(candidate).time.attention_share

    def learn(self, trials: Iterable[Trial]) -> bool:
        """Take finished trials, in any order; True when a new version of the model begins."""
        self._measured |= {one.candidate.key: one for one in trials if _is_whole(one)}
        known = sorted(self._measured.values(), key=lambda trial: trial.number)
        found = calibrate([self._residual(one) for one in known], belief_trials=0.0)
        if found == self.calibration:
            return False
        self.calibration = found
        self._predictor = Predictor(self._case, found, self._memory)
        return True

    def why_too_big(self, candidate: Candidate) -> Failure | None:
        """Why the candidate cannot fit: even the least that it must hold exceeds the budget.

        The bound is that of the model as it ships: what was learnt narrows a band, it proves
        nothing.
        """
        capacity = self._case.machine.capacity_bytes
        low = round(self._plain.lowest_bytes(candidate))
        if not capacity or low <= capacity:
            return None
        return Failure(
            kind=OutcomeKind.INFEASIBLE,
            message=(
                f"predicted, not tried: needs at least {bytes_text(low)} of "
                f"{bytes_text(capacity)}, {bytes_text(low - capacity)} too much "
                f"(model {self._case.constants.version})"
            ),
            shortage=MemoryShortage(kind=OomKind.CAPACITY, asked_bytes=low, free_bytes=capacity),
        )

    def fastest(self, candidates: Iterable[Candidate], *, count: int) -> list[Candidate]:
        """The best predicted, first those whose likely peak leaves the margin; ties by key."""
        predictor = self._predictor

        def order(candidate: Candidate) -> tuple[bool, float, str]:
            seen = predictor.predict(candidate)
            return predictor.is_tight(seen.memory), seen.time.step_s, candidate.key

        return sorted(candidates, key=order)[:count]

    def _residual(self, trial: Trial) -> Residual:
        seen = trial.measurement
        assert seen is not None, "only measured trials are kept"
        said = self._plain.predict(trial.candidate)
        exposed_s = min(seen.exposed_s, _MOST_EXPOSED * seen.step_s)
        return Residual(
            predicted_compute_s=said.time.compute_s,
            measured_compute_s=seen.step_s - exposed_s,
            predicted_exposed_s=said.time.step_s - said.time.compute_s,
            measured_exposed_s=exposed_s,
            predicted_peak_bytes=said.memory.likely_bytes,
            measured_peak_bytes=seen.peak_allocated_bytes,
        )


def _is_whole(trial: Trial) -> bool:
    """Whether it has a step and a peak; a table may tell no peak."""
    return trial.measurement is not None and trial.measurement.peak_allocated_bytes > 0
