"""The recipe of a finished search, kept in its run directory."""

from __future__ import annotations

from cptune.domain.proof import Proof
from cptune.domain.recipe import Recipe
from cptune.domain.stamp import Stamp
from cptune.domain.study import SweepSpec
from cptune.recipe.caveats import caveats_of, why_other_execution
from cptune.search.choose import Choice, Limits
from cptune.store.recipes import remove_recipe, write_recipe
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
        versions=stamp.versions,
        fingerprints=stamp.fingerprints,
        environment=stamp.environment,
        caveats=(*caveats_of(stamp.environment), *why_other_execution(judged, stamp.execution)),
        commands=(f"cptune sweep {run.spec_path} --name {spec.name}-again",),
        proof=proof,
        run_id=read_run_id(run.path),
    )
    write_recipe(run.path, recipe)
    return recipe
