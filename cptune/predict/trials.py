"""What is expected of the trials of a sweep on CPU processes, before they run."""

from __future__ import annotations

from cptune.domain.candidate import Candidate
from cptune.domain.documents import DocumentLoad
from cptune.domain.study import SweepSpec
from cptune.domain.trial import Predicted
from cptune.predict.case import Case, Machine
from cptune.predict.facts import read_gpu
from cptune.predict.prediction import Predictor

#: gloo between two ranks of one host, each way at once: 32 MB in 75 to 95 ms on two cores.
_LOOPBACK_BYTES_PER_S = 0.4e9


class TrialPredictor:
    """Predicts the candidates of a resolved spec with the constants of the `cpu` device.

    Args:
        spec: The resolved spec.
        nodes: Nodes that the ranks are spread over.
        capacity_bytes: Budget of a rank.
        documents: What the lengths of the workload come to, where its mask uses them.
    """

    def __init__(
        self,
        spec: SweepSpec,
        *,
        nodes: int,
        capacity_bytes: int,
        documents: DocumentLoad | None = None,
    ) -> None:
        assert spec.cluster.world_size is not None, "the spec is resolved"
        node_size = max(1, spec.cluster.world_size // nodes)
        machine = Machine(
            gpu=read_gpu("cpu"),
            world_size=spec.cluster.world_size,
            node_size=node_size,
            island_size=node_size,
            island_bytes_per_s=_LOOPBACK_BYTES_PER_S,
            network_bytes_per_s=spec.cluster.network_bytes_per_s or _LOOPBACK_BYTES_PER_S,
            capacity_bytes=capacity_bytes,
            memory_margin=spec.cluster.memory_margin,
        )
        case = Case(model=spec.model, workload=spec.workload, machine=machine, documents=documents)
        self._predictor = Predictor(case)

    def predict(self, candidate: Candidate) -> Predicted:
        """The step time and the memory band of one candidate."""
        seen = self._predictor.predict(candidate)
        return Predicted(
            step_s=seen.time.step_s,
            peak_lo_bytes=round(seen.memory.low_bytes),
            peak_bytes=round(seen.memory.likely_bytes),
            peak_hi_bytes=round(seen.memory.high_bytes),
            model_version=seen.model_version,
        )

    def attention_share(self, candidate: Candidate) -> float:
        """Attention's share of the step of one candidate, were all data-parallel groups even."""
        return self._predictor.predict(candidate).time.attention_share
