"""A recipe as the text that another trainer takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cptune.domain.recipe import Recipe
from cptune.errors import CptuneError
from cptune.recipe.export.accelerate import accelerate_text
from cptune.recipe.export.megatron import megatron_text
from cptune.recipe.export.megatron_bridge import bridge_text
from cptune.recipe.export.order import Order, order_of
from cptune.recipe.export.refusals import why_not
from cptune.recipe.export.tools import ToolName
from cptune.recipe.export.torchtitan import torchtitan_text

_HINT = "sweep again with values that it can express: [axes] sharding, strategy, data_parallel ..."
_TEXTS: Mapping[ToolName, Callable[[Recipe, Order], str]] = {
    ToolName.MEGATRON: megatron_text,
    ToolName.MEGATRON_BRIDGE: bridge_text,
    ToolName.TORCHTITAN: torchtitan_text,
    ToolName.ACCELERATE: accelerate_text,
}


def export_text(recipe: Recipe, name: ToolName) -> str:
    """The recipe in the words of a trainer.

    Raises:
        CptuneError: when it cannot be expressed there, with every reason and the nearest that can.
    """
    order = order_of(recipe, name)
    if why := why_not(order):
        others = [other for other in ToolName if not why_not(order_of(recipe, other))]
        raise CptuneError(
            f"{recipe.candidate.key} cannot be expressed in {order.tool.title} "
            f"{order.tool.version}:\n" + "\n".join(f"  {one}" for one in why),
            hint=f"--to {' or '.join(others)} can express it" if others else _HINT,
        )
    return _TEXTS[name](recipe, order)


def exportable(recipe: Recipe) -> list[ToolName]:
    """The trainers that can express it."""
    return [name for name in ToolName if not why_not(order_of(recipe, name))]
