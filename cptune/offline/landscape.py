"""What every candidate of one workload came to, so that any search of it can be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cptune.domain.candidate import Candidate
from cptune.domain.outcome import OutcomeKind
from cptune.domain.rules import Setting
from cptune.domain.study import SweepSpec
from cptune.domain.trial import Predicted
from cptune.planning.explain import setting_of
from cptune.planning.machine import build_case
from cptune.predict.case import Case
from cptune.predict.facts import read_gpu
from cptune.predict.found import cpu_machine
from cptune.predict.memory import MemoryModel
from cptune.predict.prediction import Predictor
from cptune.predict.trial_memory import memory_of
from cptune.search.space import SearchSpace, enumeration_order

#: Outcomes with a step time; the simulated ones are in tables of simulated runs.
TIMED = (OutcomeKind.MEASURED, OutcomeKind.PREDICTED, OutcomeKind.REPLAYED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a table says of one candidate; `step_s` None: it failed.

    Exposed seconds by axis are None where the table does not tell all four.
    """

    kind: OutcomeKind
    step_s: float | None
    peak_bytes: int | None
    exposed_s: Mapping[str, float] | None = None
    reason: str = ""


class Foresight:
    """Predicts the candidates of one case, with their peaks for a search.

    Args:
        case: Everything but the candidate.
        memory: Of the case; None: that of its device.
    """

    def __init__(self, case: Case, memory: MemoryModel | None = None) -> None:
        self.predictor = Predictor(case, memory=memory or memory_of(case))

    @property
    def case(self) -> Case:
        """Everything but the candidate."""
        return self.predictor.case

    @property
    def setting(self) -> Setting:
        """The rules of a layout on this machine."""
        return setting_of(self.case)

    def predict(self, candidate: Candidate) -> Predicted:
        """Step time and memory band."""
        return self.predictor.predict(candidate).as_predicted()

    def fastest(self, candidates: Iterable[Candidate], *, count: int) -> list[Candidate]:
        """The best predicted, first those whose likely peak leaves the margin; ties by key."""

        def order(candidate: Candidate) -> tuple[bool, float, str]:
            seen = self.predictor.predict(candidate)
            return self.predictor.is_tight(seen.memory), seen.time.step_s, candidate.key

        return sorted(candidates, key=order)[:count]


def foresee(spec: SweepSpec) -> Foresight:
    """What is predicted of a spec without its hardware; of CPU processes as of trials on them.

    Raises:
        SpecError: when the spec does not say enough of the hardware.
    """
    case = build_case(spec)
    if case.machine.gpu.generation == "cpu":
        per_node = spec.cluster.gpus_per_node or case.machine.world_size
        nodes = max(1, case.machine.world_size // per_node)
        capacity = spec.cluster.device_memory_bytes or read_gpu("cpu").memory_bytes
        cluster = replace(spec.cluster, world_size=case.machine.world_size)
        case = replace(case, machine=cpu_machine(cluster, nodes=nodes, capacity_bytes=capacity))
    return Foresight(case)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Landscape:
    """One workload: its candidates, what each came to, and what was predicted.

    `pruned` are candidates that a search leaves out, since even their lowest predicted peak is
    too much.
    """

    name: str
    space: SearchSpace
    results: Mapping[str, Result]
    foresight: Foresight
    pruned: frozenset[str]

    @property
    def best_s(self) -> float:
        """The shortest step of all, pruned ones included."""
        return min(one.step_s for one in self.results.values() if one.step_s is not None)

    @property
    def false_prunes(self) -> int:
        """Candidates that were pruned and ran."""
        return sum(self.results[key].step_s is not None for key in self.pruned)

    @property
    def prunes_best(self) -> bool:
        """Whether the best candidate is among them."""
        best = self.best_s
        return all(
            one.step_s != best for key, one in self.results.items() if key not in self.pruned
        )


def landscape_of(name: str, results: Mapping[Candidate, Result], foresight: Foresight) -> Landscape:
    """A landscape of these results, of which at least one has a step time."""
    # A table may be sorted by what nobody knows before.
    candidates = tuple(sorted(results, key=enumeration_order))
    space = SearchSpace(
        world_size=foresight.case.machine.world_size,
        candidates=candidates,
        excluded={},
        reasons=(),
        illegal_cps={},
        untriable={},
    )
    pruned = (one.key for one in candidates if foresight.predictor.is_too_big(one))
    return Landscape(
        name=name,
        space=space,
        results={one.key: result for one, result in results.items()},
        foresight=foresight,
        pruned=frozenset(pruned),
    )
