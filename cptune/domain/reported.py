"""What the ranks of a measurement reported, in sum: what recipe.json keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from cptune.domain.guards import batch_hash
from cptune.domain.layout import ParallelLayout
from cptune.domain.outcome import Measurement, slowest_steps
from cptune.domain.timeline import Exposed

#: Of a row of `exposures` in recipe.json.
EXPOSED_FIELDS = ("axis", "method", "communication_s", "exposed_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The reports of all ranks, in sum.

    Args:
        steps_s: Each timed step, as long as its slowest rank took; empty where it was not kept.
        batch_hash: Of the samples of the first step, over the whole batch; None likewise.
        exposures: Exposed communication of each axis that moved anything, by both methods.
        cross_checked: Whether ablation was tried.
        ring_edges: Each edge of the context rings with its bytes and seconds.
    """

    steps_s: tuple[float, ...]
    batch_hash: str | None
    exposures: tuple[Exposed, ...]
    cross_checked: bool
    ring_edges: tuple[Mapping[str, object], ...]

    def to_json(self) -> dict[str, object]:
        """What it adds to `measurement` of recipe.json."""
        return {
            "steps_s": list(self.steps_s),
            "batch_hash": self.batch_hash,
            "cross_checked": self.cross_checked,
            "exposures": [
                {name: getattr(one, name) for name in EXPOSED_FIELDS} for one in self.exposures
            ],
        }


def sum_of_reports(measurement: Measurement, layout: ParallelLayout) -> Reported:
    """The reports of a measurement's ranks, in sum."""
    return Reported(
        steps_s=tuple(slowest_steps(measurement.ranks)),
        batch_hash=f"{batch_hash(measurement, layout):016x}" if measurement.ranks else None,
        exposures=tuple(measurement.exposures),
        cross_checked=bool(measurement.exposures) and not measurement.lacks_ablation,
        ring_edges=tuple(
            {"rank": one.rank, **asdict(edge)} for one in measurement.ranks for edge in one.edges
        ),
    )
