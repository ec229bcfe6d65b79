"""The prediction of one candidate: what is stored beside its measurement, and printed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cptune.domain.candidate import Candidate
from cptune.domain.trial import Predicted
from cptune.predict.calibrate import UNCALIBRATED, Calibration
from cptune.predict.case import Case
from cptune.predict.flops import mfu, step_flop
from cptune.predict.memory import MemoryBand, MemoryModel
from cptune.predict.step_time import LayerTime, StepTime, layer_time, predict_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Memory and time of one candidate, with the version of the constants behind them."""

    memory: MemoryBand
    time: StepTime
    fits: str  # yes | no | unknown
    tokens_per_s_per_gpu: float
    mfu: float | None
    model_version: str
    has_experts: bool = False

    def _planned_only(self) -> dict[str, object]:
        """What is said of a model with experts, which no trial runs yet."""
        if not self.has_experts:
            return {}
        return {"ep_exposed_s": self.time.ep_exposed_s, "planned_only": "mixture of experts"}

    def as_predicted(self) -> Predicted:
        """What is kept beside a trial."""
        return Predicted(
            step_s=self.time.step_s,
            peak_lo_bytes=round(self.memory.low_bytes),
            peak_bytes=round(self.memory.likely_bytes),
            peak_hi_bytes=round(self.memory.high_bytes),
            model_version=self.model_version,
        )

    def to_json(self) -> dict[str, object]:
        """Memory and time as `cptune explain` prints them: bytes and seconds.

        The straggler's seconds are part of `compute_s`.
        """
        band, worst, time = self.memory, self.memory.worst, self.time
        return {
            "memory": {
                "states_bytes": round(worst.states_bytes),
                "activation_bytes": round(worst.activation_bytes),
                "logits_bytes": round(worst.logits_bytes),
                "comm_bytes": round(worst.comm_bytes),
                "workspace_bytes": round(worst.workspace_bytes),
                "reserve_bytes": round(worst.reserve_bytes),
                "peak_lo_bytes": round(band.low_bytes),
                "peak_bytes": round(band.likely_bytes),
                "peak_hi_bytes": round(band.high_bytes),
                "fits": self.fits,
                "worst_stage": worst.stage,
                "worst_rank": worst.rank,
            },
            "step_s": time.step_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "mfu": self.mfu,
            "time": {
                "compute_s": time.compute_s,
                "tp_exposed_s": time.tp_exposed_s,
                "cp_exposed_s": time.cp_exposed_s,
                "dp_exposed_s": time.dp_exposed_s,
                "pp_bubble_s": time.pp_bubble_s,
            },
            "straggler": {"factor": time.straggler_factor, "seconds": time.straggler_s},
            **self._planned_only(),
            "bound_by": time.bound_by.value,
            "model_version": self.model_version,
        }


class Predictor:
    """Predicts the candidates of one case; remembers what many of them share.

    Args:
        case: Everything but the candidate.
        calibration: What finished trials taught.
        memory: Of the case; None: that of stacks in general.
    """

    def __init__(
        self,
        case: Case,
        calibration: Calibration = UNCALIBRATED,
        memory: MemoryModel | None = None,
    ) -> None:
        self.case = case
        self._calibration = calibration
        self._memory = memory or MemoryModel(case)
        self._layers: dict[tuple[object, ...], LayerTime] = {}
        self._steps: dict[tuple[object, ...], StepTime] = {}

    def memory(self, candidate: Candidate) -> MemoryBand:
        """The memory band alone, which is cheap and prunes most candidates."""
        band = self._memory.band(candidate)
        if self._calibration is UNCALIBRATED:
            return band
        low, likely, high = self._calibration.narrow(
            band.low_bytes, band.likely_bytes, band.high_bytes
        )
        return replace(band, low_bytes=low, likely_bytes=likely, high_bytes=high)

    def is_too_big(self, candidate: Candidate) -> bool:
        """Does even the lowest peak exceed the device? The only reason to prune by memory."""
        capacity = self.case.machine.capacity_bytes
        return bool(capacity) and self.lowest_bytes(candidate) > capacity

    def lowest_bytes(self, candidate: Candidate) -> float:
        """The lowest peak of the worst rank."""
        if self._calibration.peak_ratio is not None:
            return self.memory(candidate).low_bytes
        return self._memory.lowest_bytes(candidate)

    def fits(self, band: MemoryBand) -> str:
        """yes, no or unknown on this machine."""
        machine = self.case.machine
        return band.fits(machine.capacity_bytes, machine.memory_margin)

    def is_tight(self, band: MemoryBand) -> bool:
        """Does the likely peak leave less than the margin? Allocators then retry, steps crawl."""
        return self.beyond_bytes(band) > 0

    def beyond_bytes(self, band: MemoryBand) -> float:
        """By how much the likely peak exceeds what leaves the margin; 0 on an unknown capacity."""
        machine = self.case.machine
        room = machine.capacity_bytes * (1 - machine.memory_margin)
        needed = band.likely_bytes + band.worst.reserve_bytes
        return max(0.0, needed - room) if machine.capacity_bytes else 0.0

    def predict(self, candidate: Candidate, band: MemoryBand | None = None) -> Prediction:
        """Memory and time.

        Args:
            candidate: A legal one.
            band: Its memory where it is known already.
        """
        case, machine = self.case, self.case.machine
        band = band or self.memory(candidate)
        time = self._step(candidate)
        flop = step_flop(case.model, case.workload, candidate.recompute, case.documents).model
        return Prediction(
            memory=band,
            time=time,
            fits=self.fits(band),
            tokens_per_s_per_gpu=case.workload.tokens_per_step / time.step_s / machine.world_size,
            mfu=self._mfu(flop, step_s=time.step_s),
            has_experts=case.model.experts > 0,
            model_version=self._calibration.model_version(case.constants.version),
        )

    def _mfu(self, flop: float, *, step_s: float) -> float | None:
        """None where trials taught a rate above the peak that the tables know of this device."""
        machine = self.case.machine
        peak = machine.gpu.peak_flop_per_s(self.case.workload.precision)
        if self._calibration.version and flop > step_s * machine.world_size * peak:
            return None
        return mfu(flop, step_s=step_s, world_size=machine.world_size, peak_flop_per_s=peak)

    def conventions(self, candidate: Candidate, prediction: Prediction) -> dict[str, float]:
        """The rate of a step over the peak, as other tools would print it."""
        case, machine = self.case, self.case.machine
        flop = step_flop(case.model, case.workload, candidate.recompute, case.documents)
        peak = machine.gpu.peak_flop_per_s(case.workload.precision) * machine.world_size
        second = prediction.time.step_s * peak
        return {
            "mfu_causal_half": flop.model / second,
            "mfu_full_square": flop.full_square / second,
            "hfu": flop.hardware / second,
        }

    def _step(self, candidate: Candidate) -> StepTime:
        """The step, the same however the logits are held."""
        key = (candidate.layout, candidate.recompute, *self._layer_key(candidate))
        found = self._steps.get(key)
        if found is None:
            known, layer = self._calibration, self._layer(candidate)
            found = self._steps[key] = predict_step(self.case, candidate, layer).scaled(
                compute=known.compute_factor, exposed=known.exposed_factor
            )
        return found

    def _layer(self, candidate: Candidate) -> LayerTime:
        key = self._layer_key(candidate)
        found = self._layers.get(key)
        if found is None:
            found = self._layers[key] = layer_time(self.case, candidate)
        return found

    @staticmethod
    def _layer_key(candidate: Candidate) -> tuple[object, ...]:
        """What a layer's time depends on."""
        lay = candidate.layout
        return (
            lay.tp,
            lay.cp,
            lay.ulysses,
            lay.dp,
            lay.ep,
            candidate.micro_batch,
            candidate.sharding,
            candidate.stages,
            candidate.data_parallel,
            candidate.kernel,
        )
