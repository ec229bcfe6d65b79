"""What another trainer is to be told: a recipe and the trainer, with what follows from both."""

from __future__ import annotations

from dataclasses import dataclass

from cptune.domain.candidate import Candidate, Strategy
from cptune.domain.layout import ParallelLayout
from cptune.domain.recipe import Recipe
from cptune.domain.workload import ModelShape, Workload
from cptune.predict.shares import micro_batches
from cptune.recipe.export.tools import Tool, ToolName, read_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A candidate of a workload, in the words of a trainer."""

    candidate: Candidate
    model: ModelShape
    workload: Workload
    name: ToolName

    @property
    def tool(self) -> Tool:
        """The trainer."""
        return read_tools()[self.name]

    @property
    def layout(self) -> ParallelLayout:
        """The sizes."""
        return self.candidate.layout

    @property
    def batches(self) -> int:
        """Micro-batches of one data-parallel rank in a step."""
        return micro_batches(self.candidate, self.workload)

    @property
    def even(self) -> bool:
        """Whether the layers divide; else the embedding and the head count as a layer each."""
        return self.model.layers % (self.layout.pp * self.layout.vpp) == 0

    @property
    def strategy(self) -> Strategy:
        """That of the candidate, or what is the same: of two ranks one exchange has two names."""
        same = {Strategy.RING, Strategy.ALL_GATHER}
        own = self.candidate.strategy
        known = [one for one in Strategy if one in self.tool.words["strategy"]]
        if self.layout.cp == 2 and own in same and own not in known:
            return next((one for one in known if one in same), own)
        return own

    def word(self, axis: str) -> str:
        """The trainer's word for the value of an axis.

        Raises:
            KeyError: when it has none; `why_not` says so before.
        """
        return self.tool.words[axis][self.value(axis)]

    def value(self, axis: str) -> str:
        """The value of an axis, of the candidate or of the workload."""
        if axis == "strategy":
            return self.strategy.value
        holder = self.candidate if hasattr(self.candidate, axis) else self.workload
        return str(getattr(holder, axis))


def order_of(recipe: Recipe, name: ToolName) -> Order:
    """What a recipe asks of a trainer."""
    return Order(
        candidate=recipe.candidate,
        model=recipe.spec.model,
        workload=recipe.spec.workload,
        name=name,
    )
