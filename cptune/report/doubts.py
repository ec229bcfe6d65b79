"""What speaks against a page about a run: said before anything that speaks for it."""

from __future__ import annotations

from cptune.domain.recipe import Recipe
from cptune.report.proof_words import proof_word, proof_words
from cptune.report.run import ReportedRun, RunState
from cptune.report.summary import certainty_line, certificate_lines


def doubts_of(run: ReportedRun) -> list[str]:
    """Every sentence that speaks against the run or its recipe, the gravest kind first."""
    return [
        *([run.state_note] if run.state is not RunState.FINISHED else []),
        *(f"quarantined: {one}" for one in run.quarantined),
        *run.doubts,
        *([] if run.recipe is None else _of_recipe(run.recipe)),
    ]


def _of_recipe(recipe: Recipe) -> list[str]:
    seen = recipe.measurement
    is_open = [entry.evidence is None for entry in recipe.certificate]
    lines = certificate_lines(recipe) if any(is_open) else []
    found = [f"not certified: {line}" for line, odd in zip(lines, is_open, strict=False) if odd]
    if recipe.proof is None:
        found.append("not proven: no proof against the unsharded model was kept")
    elif not recipe.proof.passed:
        found.append(f"{proof_word(recipe.proof)}: {proof_words(recipe.proof)}")
    if seen.noisy:
        found.append(f"the timing is noisy: {certainty_line(recipe)}")
    if seen.depth is not None:
        shallow, deep = seen.depth.layers_measured
        found.append(f"its figures are drawn from {shallow} and {deep} layers, not measured whole")
    return [*found, *recipe.caveats]
