"""The recipe of a finished search, kept in its run directory."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from cptune.domain.proof import Proof
from cptune.domain.recipe import Recipe
from cptune.domain.stamp import Stamp
from cptune.domain.study import SweepSpec
from cptune.recipe.caveats import caveats_of, why_other_execution
from cptune.recipe.export.text import exportable
from cptune.search.choose import Choice, Limits
from cptune.store.recipes import RECIPE_FILE, remove_recipe, write_recipe
from cptune.store.run_directory import RunDirectory
from cptune.store.run_id import read_run_id


def keep_recipe(
    spec: SweepSpec,
    choice: Choice,
    *,
    limits: Limits,
    run: RunDirectory,
    stamp: Stamp,
    proof: Proof | None,
) -> Recipe | None:
    """Write what was chosen; None, and what an earlier end left is removed, where nothing was.

    Raises:
        LedgerError: when a file cannot be written.
    """
    trial = choice.trial
    if trial is None or trial.measurement is None:
        remove_recipe(run.path)
        return None
    judged = [verdict.trial for verdict in choice.verdicts]
    recipe = Recipe(
        spec=spec,
        candidate=trial.candidate,
        placement=trial.placement,
        measurement=trial.measurement,
        expectation=limits.expect(trial).to_json(),
        predicted=trial.predicted,
        capacity_bytes=limits.capacity_bytes,
        certificate=choice.certificate,
        controls=choice.controls,
        versions=stamp.versions.texts(),
        fingerprints=stamp.fingerprints,
        environment=stamp.environment,
        caveats=(
            *stamp.caveats,
            *caveats_of(stamp.environment, versions=stamp.versions),
            *why_other_execution(judged, stamp.execution),
        ),
        commands=(),
        proof=proof,
        launcher=stamp.launcher,
        run_id=read_run_id(run.path),
    )
    recipe = replace(recipe, commands=commands_of(recipe, run, flags=stamp.flags))
    write_recipe(run.path, recipe)
    return recipe


def commands_of(recipe: Recipe, run: RunDirectory, *, flags: Sequence[str] = ()) -> tuple[str, ...]:
    """What can be done with a recipe: the sweep again, and its life after the sweep.

    Args:
        recipe: Without its commands.
        run: Where it is kept.
        flags: Of the launcher that answered.
    """
    kept = run.path / RECIPE_FILE
    words = ["show"] if recipe.launcher.is_simulated else ["show", "requalify", "reproduce"]
    again = ("cptune", "sweep", str(run.spec_path), "--name", f"{recipe.spec.name}-again", *flags)
    return (
        shlex.join(again),
        *(shlex.join(["cptune", "recipe", word, str(kept)]) for word in words),
        *(
            shlex.join(["cptune", "recipe", "export", str(kept), "--to", tool])
            for tool in exportable(recipe)
        ),
    )
