"""Two shallow trials in place of a deep one, for a model with more layers than they have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cptune.domain.candidate import Candidate
from cptune.domain.outcome import Failure, Measurement
from cptune.domain.placement import Placement
from cptune.domain.study import SweepSpec
from cptune.predict.depth import Line, extrapolate
from cptune.seams import Launcher

#: The launcher of the trials of another spec, on the same devices.
LauncherOf = Callable[[SweepSpec], Launcher]


class TwoDepthLauncher:
    """Measures a candidate at two layer counts and draws the line to the whole model.

    Sequence, batch, vocabulary and groups are those of the whole model. A candidate whose pipeline
    chunks do not divide both counts runs at full depth, and so does one whose step took no longer
    with more layers: two such points tell the machine's noise. A shallow trial that fails fails the
    candidate: what does not fit with few layers does not fit with all.

    Args:
        full: Runs the whole model.
        launcher_of: A launcher for the same model with fewer layers.
        spec: The resolved spec, with two depths in its budget.
    """

    def __init__(self, full: Launcher, *, launcher_of: LauncherOf, spec: SweepSpec) -> None:
        self._spec = spec
        self.full = full
        shallow, deep = spec.budget.depths
        self._line = Line(shallow=shallow, deep=deep, layers=spec.model.layers)
        self._launchers = [
            launcher_of(replace(spec, model=replace(spec.model, layers=layers)))
            for layers in (shallow, deep)
        ]

    def place(self, candidate: Candidate) -> Placement:
        """As for the whole model."""
        return self.full.place(candidate)

    def launch(self, candidate: Candidate, placement: Placement) -> Measurement | Failure:
        """Run both depths and extrapolate, or the whole model where they cannot be cut like it."""
        line, chunks = self._line, candidate.layout.pp * candidate.layout.vpp
        if line.shallow % chunks or line.deep % chunks or line.layers % chunks:
            return self.full.launch(candidate, placement)
        seen: list[Measurement] = []
        for launcher, layers in zip(self._launchers, (line.shallow, line.deep), strict=True):
            outcome = launcher.launch(candidate, placement)
            if isinstance(outcome, Failure):
                message = f"with {layers} of {line.layers} layers: {outcome.message}"
                return replace(outcome, message=message)
            seen.append(outcome)
        if seen[1].step_s <= seen[0].step_s:
            return self.full.launch(candidate, placement)
        tokens = self._spec.workload.tokens_per_step
        return extrapolate(seen[0], seen[1], line, tokens_per_step=tokens)


def with_depths(full: Launcher, *, launcher_of: LauncherOf, spec: SweepSpec) -> Launcher:
    """A launcher of two depths where the spec asks for them and the model is deeper than both."""
    depths = spec.budget.depths
    if not depths or spec.model.layers <= depths[-1]:
        return full
    return TwoDepthLauncher(full, launcher_of=launcher_of, spec=spec)
