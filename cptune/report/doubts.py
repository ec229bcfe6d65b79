"""What speaks against a page about a run: said before anything that speaks for it."""

from __future__ import annotations

from cptune.domain.recipe import Recipe
from cptune.report.proof_words import proof_word, proof_words
from cptune.report.run import ReportedRun, RunState
from cptune.report.summary import certainty_line, certificate_lines

_MOST = 4  # layouts that are named


def doubts_of(run: ReportedRun) -> list[str]:
    """Every sentence that speaks against the run or its recipe, the gravest kind first."""
    return [
        *([run.state_note] if run.state is not RunState.FINISHED else []),
        *(f"quarantined: {one}" for one in run.quarantined),
        *run.doubts,
        *([] if run.recipe is None else _of_recipe(run.recipe)),
        *_of_others(run),
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


def _of_others(run: ReportedRun) -> list[str]:
    """Which rejected layouts were timed too badly to be sure that they are slower."""
    if run.recipe is None:
        return []
    key = run.recipe.candidate.key
    noisy = [
        one.trial.candidate.describe()
        for one in run.judged
        if one.trial.measurement is not None
        and one.trial.measurement.noisy
        and one.trial.candidate.key != key
    ]
    if not noisy:
        return []
    more = f" and {len(noisy) - _MOST} more" if len(noisy) > _MOST else ""
    return [f"rejected on noisy timings: {', '.join(noisy[:_MOST])}{more}"]
