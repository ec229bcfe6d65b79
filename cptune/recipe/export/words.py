"""The comment above an exported text: whose it is, what it was checked against, what it leaves."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from cptune.domain.recipe import Recipe
from cptune.domain.workload import AttentionMask, Mlp, Norm
from cptune.recipe.export.order import Order

_WIDTH = 98
_NORMS = {Norm.RMS: "RMSNorm", Norm.LAYER: "LayerNorm"}


def header(recipe: Recipe, order: Order, *, notes: Iterable[str]) -> str:
    """Comment lines: the identity of the recipe, its sizes, and what is not in the text."""
    lay, prints, versions = order.layout, recipe.fingerprints, recipe.versions
    said = [
        f"cptune recipe {recipe.spec.name}: {recipe.candidate.key}",
        f"convergence {prints.get('convergence', 'unknown')}",
        f"execution {prints.get('execution', 'unknown')}",
        f"topology {prints.get('topology', 'unknown')}, run {recipe.run_id or 'unknown'}",
        f"found by cptune {versions.get('cptune', 'unknown')}; for {order.tool.title} "
        f"{order.tool.version}",
        f"{lay.world_size} ranks = tp {lay.tp} x cp {lay.cp} x dp {lay.dp} x pp {lay.pp}, "
        f"tp fastest; {order.batches} micro-batches of {order.candidate.micro_batch} a step and "
        "data-parallel rank",
        *notes,
        *_left(recipe, order),
    ]
    return "".join(f"# {line}\n" for one in said for line in _folded(one))


def _folded(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_long_words=False)


def _left(recipe: Recipe, order: Order) -> Iterator[str]:
    """What a recipe says that no setting here does, and what it does not know."""
    model, seen = order.model, recipe.measurement
    gate = "gated SwiGLU" if model.mlp == Mlp.SWIGLU else "GELU"
    if seen.kernel is not None:
        yield (
            f"measured with the attention kernel {seen.kernel} of cptune's trial; "
            f"{order.tool.title} chooses its own"
        )
    yield (
        f"of a decoder with {_NORMS[model.norm]}, {gate}, no biases, a vocabulary of "
        f"{model.vocab}, {'tied' if model.tied_embeddings else 'untied'} embeddings, optimizer "
        f"{order.workload.optimizer}"
    )
    if order.workload.mask is AttentionMask.DOCUMENT:
        yield f"documents of lengths {order.workload.lengths}: the data loader must pack such"
    yield "not of the recipe: data, tokenizer, learning rate, RoPE base, checkpoints, logging"
    for caveat in recipe.caveats:
        yield f"caveat: {caveat}"
