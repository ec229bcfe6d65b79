"""Who answers what a candidate comes to: ranks on devices, a prediction, or a stored table."""

from __future__ import annotations

from enum import StrEnum

from cptune.domain.outcome import OutcomeKind


class LauncherName(StrEnum):
    """The word of `--launcher`, kept with every trial."""

    RAY = "ray"
    ROOFLINE = "roofline"
    REPLAY = "replay"

    @property
    def is_simulated(self) -> bool:
        """Whether nothing ran: such a trial is no measurement and proves nothing."""
        return self is not LauncherName.RAY

    @property
    def success(self) -> OutcomeKind:
        """The outcome of a trial with figures."""
        return {
            LauncherName.RAY: OutcomeKind.MEASURED,
            LauncherName.ROOFLINE: OutcomeKind.PREDICTED,
            LauncherName.REPLAY: OutcomeKind.REPLAYED,
        }[self]
