"""What a run was made with, as hashes that can be compared later."""

from __future__ import annotations

from dataclasses import dataclass, field

from cptune.domain.environment import RankEnvironment
from cptune.domain.launcher import LauncherName


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What a run was made with.

    `convergence` must be equal over a study: model, global batch, sequence, mask, precision,
    optimizer, seed. `execution` changes with the hardware, the libraries or the environment, which
    are those of the ranks. `launcher` says who answers the trials, `caveats` what speaks
    against its answers, and `flags` how it is called again.
    """

    convergence: str
    execution: str
    topology: str
    versions: RankEnvironment
    environment: RankEnvironment = field(default_factory=RankEnvironment)
    launcher: LauncherName = LauncherName.RAY
    caveats: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def fingerprints(self) -> dict[str, str]:
        """The hashes by name, as recipe.json keeps them."""
        return {
            "convergence": self.convergence,
            "execution": self.execution,
            "topology": self.topology,
        }
