"""The recipe: the candidate to ship, the certificate against each smaller CP, the controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from cptune.domain.candidate import Candidate
from cptune.domain.environment import RankEnvironment
from cptune.domain.launcher import LauncherName
from cptune.domain.outcome import Measurement
from cptune.domain.placement import Placement
from cptune.domain.proof import Proof
from cptune.domain.reported import Reported, sum_of_reports
from cptune.domain.seal import sealed
from cptune.domain.study import SweepSpec
from cptune.domain.trial import Predicted

RECIPE_SCHEMA = 1


class Evidence(StrEnum):
    """How strong a reason of the certificate is."""

    PROVEN = "proven"  # a rule that no measurement could change
    MEASURED = "measured"  # every legal layout of that CP was tried
    PREDICTED = "predicted"  # a bound of the model rules out what was not tried


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateEntry:
    """Why one smaller CP is not the recipe. `evidence` None: it was not ruled out."""

    cp: int
    reason: str
    evidence: Evidence | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A candidate that was tried and rejected, kept beside the one that was not."""

    candidate_key: str
    cp: int
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything needed to believe the choice and to run it again."""

    spec: SweepSpec
    candidate: Candidate
    placement: Placement
    measurement: Measurement
    predicted: Predicted | None
    capacity_bytes: int
    certificate: tuple[CertificateEntry, ...]
    controls: tuple[Control, ...]
    versions: Mapping[str, str]
    fingerprints: Mapping[str, str]
    commands: tuple[str, ...]
    expectation: Mapping[str, object] = field(default_factory=dict)  # over many batches
    proof: Proof | None = None  # None: none was asked for
    environment: RankEnvironment = field(default_factory=RankEnvironment)
    caveats: tuple[str, ...] = ()  # what speaks against the figures
    launcher: LauncherName = LauncherName.RAY
    run_id: str | None = None  # of the run that found it
    told: Reported | None = None  # where it was read from its file, which has no report of a rank

    @property
    def reported(self) -> Reported:
        """What the ranks of its measurement reported, in sum."""
        return self.told or sum_of_reports(self.measurement, self.candidate.layout)

    @property
    def is_certified(self) -> bool:
        """Whether every smaller CP is ruled out, by more than a simulation."""
        ruled_out = all(entry.evidence is not None for entry in self.certificate)
        return ruled_out and not self.launcher.is_simulated

    def _prediction(self) -> dict[str, object]:
        """What was expected, and the measured value over it minus one."""
        if self.predicted is None:
            return {}
        expected, seen = self.predicted, self.measurement
        return {
            **asdict(expected),
            "step_error": seen.step_s / expected.step_s - 1,
            "peak_error": seen.peak_allocated_bytes / expected.peak_bytes - 1,
        }

    def to_json(self) -> dict[str, object]:
        """The content of recipe.json: the recipe, and under `digests` one of each of its parts."""
        return sealed(self._content())

    def _run(self) -> dict[str, object]:
        """What another run of it has to know beside workload and layout."""
        return {
            "id": self.run_id,
            "cluster": asdict(self.spec.cluster),
            "budget": asdict(self.spec.budget),
            "seed": self.spec.search.seed,
        }

    def _content(self) -> dict[str, object]:
        layout = self.candidate.axes()
        per_pass = self.candidate.layout.dp * self.candidate.micro_batch
        layout["accumulation"] = self.spec.workload.global_batch_seqs // per_pass
        reported = self.reported
        measurement = asdict(replace(self.measurement, ranks=()))
        del measurement["ranks"]
        figures: dict[str, object] = {
            **measurement,
            "exposed_share": self.measurement.exposed_share,
            **reported.to_json(),
            "capacity_bytes": self.capacity_bytes,
        }
        simulated = self.launcher.is_simulated
        return {
            "schema": RECIPE_SCHEMA,
            "name": self.spec.name,
            "workload": {"model": asdict(self.spec.model), **asdict(self.spec.workload)},
            "candidate_key": self.candidate.key,
            "layout": layout,
            "mesh": self.placement.mesh(),
            "ring_edges": [dict(edge) for edge in reported.ring_edges],
            "certificate": [asdict(entry) for entry in self.certificate],
            "certified": self.is_certified,
            "controls": [asdict(control) for control in self.controls],
            "launcher": self.launcher.value,
            "measurement": {} if simulated else figures,
            **({"simulation": figures} if simulated else {}),
            "prediction": self._prediction(),
            "expectation": dict(self.expectation),
            "equivalence": None if self.proof is None else self.proof.to_json(),
            "objective": asdict(self.spec.objective)
            | {"memory_margin": self.spec.cluster.memory_margin},
            "versions": dict(self.versions),
            "fingerprints": dict(self.fingerprints),
            "environment": self.environment.to_json(),
            "caveats": list(self.caveats),
            "run": self._run(),
            "commands": list(self.commands),
        }
