"""The recipe on the page, and why it is to be believed: certificate, controls, proof."""

from __future__ import annotations

from dataclasses import replace

from cptune.domain.proof import Proof
from cptune.domain.recipe import Recipe
from cptune.report.page_parts import Grid, Line, Section, grid_of
from cptune.report.proof_words import CHECK_COLUMNS, check_cells, proof_word, proof_words
from cptune.report.run import ReportedRun, RunState
from cptune.report.summary import certificate_lines, nothing_fits_lines, recipe_lines

_MESH = ("rank", "node", "device", "GPU UUID", "tp", "cp", "dp", "pp")


def headline(run: ReportedRun) -> str:
    """The answer in one line."""
    recipe = run.recipe
    if recipe is None:
        return nothing_fits_lines(list(run.judged))[0]
    so_far = "" if run.state is RunState.FINISHED else "so far: "
    return so_far + recipe_lines(recipe)[0]


def badges(run: ReportedRun) -> list[tuple[str, bool]]:
    """What the recipe can claim, each with whether it speaks for it."""
    recipe = run.recipe
    found = [(run.state.value, run.state is RunState.FINISHED)]
    if recipe is None:
        return [*found, ("no recipe", False)]
    if recipe.launcher.is_simulated:
        return [*found, (f"{recipe.launcher.success}: nothing ran, nothing certified", False)]
    is_open = sum(entry.evidence is None for entry in recipe.certificate)
    proof, noisy = recipe.proof, recipe.measurement.noisy
    return [
        *found,
        (f"not certified: {is_open} open" if is_open else "certified", not is_open),
        ("not proven", False) if proof is None else (proof_word(proof), proof.passed),
        ("noisy timing" if noisy else "steady timing", not noisy),
    ]


def recipe_section(run: ReportedRun) -> Section:
    """Layout, batch, figures and mesh; or the tally where nothing passes."""
    recipe = run.recipe
    if recipe is None:
        lines = tuple(nothing_fits_lines(list(run.judged)))
        return Section(anchor="recipe", title="No recipe", lines=lines)
    title = "Recipe" if run.state is RunState.FINISHED else "Recipe so far"
    lines = recipe_lines(replace(recipe, caveats=()))  # they stand above it
    lines.append(f"candidate {recipe.candidate.key}")
    if run.chosen is not None:
        lines.append(f"chosen: {run.chosen.reason}")
    return Section(anchor="recipe", title=title, lines=tuple(lines), parts=(_mesh(recipe),))


def _mesh(recipe: Recipe) -> Grid:
    rows = [
        (
            str(place.rank),
            place.device.node,
            place.device.name,
            place.device.uuid or "-",
            *(str(size) for size in (place.at.tp, place.at.cp, place.at.dp, place.at.pp)),
        )
        for place in recipe.placement.ranks
    ]
    return grid_of(_MESH, rows, words=("node", "device", "GPU UUID"), title="Mesh")


def certificate_section(run: ReportedRun) -> Section:
    """Why no smaller CP is the recipe, with the evidence."""
    recipe = run.recipe
    rule = (
        "Chosen is the smallest CP that was measured, fits with its margin, hides its "
        "communication and is fast enough. Proven: a rule that no measurement could change; "
        "measured: every legal layout was tried; predicted: a bound of the model rules out what "
        "was not tried."
    )
    if recipe is None or recipe.candidate.layout.cp == 1:
        none = ["nothing was chosen"] if recipe is None else certificate_lines(recipe)
        return Section(anchor="certificate", title="Certificate", lines=tuple(none))
    lines = tuple(
        Line(
            cells=(str(entry.cp), entry.evidence or "OPEN", entry.reason),
            mark="bad" if entry.evidence is None else "",
        )
        for entry in recipe.certificate
    )
    columns = ("cp", "evidence", "why it is not the recipe")
    grid = Grid(columns=columns, lines=lines, numbers=frozenset({"cp"}))
    return Section(anchor="certificate", title="Certificate", lines=(rule,), parts=(grid,))


def controls_section(run: ReportedRun) -> Section:
    """What was tried and rejected."""
    rows = [
        (str(one.trial.number), one.trial.source, one.word, one.reason)
        for one in run.judged
        if one.word != "chosen"
    ]
    columns = ("#", "layout", "verdict", "reason")
    grid = grid_of(columns, rows, words=columns[1:])
    lines = () if rows else ("nothing else was tried",)
    return Section(
        anchor="controls", title="Rejected controls", lines=lines, parts=(grid,) if rows else ()
    )


def proof_section(run: ReportedRun) -> Section:
    """Every check of the recipe's proof against the unsharded model."""
    proof = None if run.recipe is None else run.recipe.proof
    title = "Equivalence with the unsharded model"
    if proof is None:
        why = "no proof was kept: that it computes what the unsharded model does is not known"
        return Section(anchor="proof", title=title, lines=(why,))
    lines = (
        f"{proof_word(proof)}: {proof_words(proof)}",
        f"proof {proof.id}, fixture {proof.fixture}: a small model of odd sizes in fp64 on this "
        "layout beside plain torch in one process",
    )
    return Section(anchor="proof", title=title, lines=lines, parts=(_checks(proof),))


def _checks(proof: Proof) -> Grid:
    """The checks, those that failed first."""
    ordered = sorted(proof.checks, key=lambda check: check.passed)
    return Grid(
        columns=CHECK_COLUMNS,
        lines=tuple(
            Line(cells=check_cells(check), mark="" if check.passed else "bad") for check in ordered
        ),
        numbers=frozenset({"largest error", "tolerance"}),
    )
