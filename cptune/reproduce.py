"""A recipe run once more, alone and from its file, and compared with what the file says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cptune.cluster.connection import LOCAL, knock
from cptune.domain.candidate import Candidate
from cptune.domain.recipe import Recipe
from cptune.domain.reported import sum_of_reports
from cptune.domain.standing import Condition, Likeness, Row, Standing
from cptune.domain.study import Axes, SweepSpec
from cptune.errors import SpecError
from cptune.kept import Kept, read_recipe, refuse_simulated
from cptune.opening import check_path
from cptune.recipe.reproduce import Again, compare, is_reproduced
from cptune.requalify import requalify
from cptune.seams import Observer
from cptune.store.run_directory import free_name
from cptune.sweep import Sweep, run_sweep

_OPEN = (Likeness.UNKNOWN, Likeness.NOT_JUDGED)
_NEEDED = ("run.cluster", "run.budget", "run.seed", "measurement.steps_s", "measurement.batch_hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """What became of it; `run` None: not run, since a condition has changed."""

    conditions: tuple[Condition, ...]
    rows: tuple[Row, ...]
    run: Path | None

    @property
    def changed(self) -> list[str]:
        """The conditions that are not as they were."""
        return [one.what for one in self.conditions if one.standing is Standing.CHANGED]

    @property
    def reproduced(self) -> bool:
        """Whether it was run, and nothing differs."""
        return self.run is not None and is_reproduced(self.rows)

    @property
    def summary(self) -> str:
        """What it came to, in a sentence."""
        if self.run is None:
            return (
                f"reproduce: {', '.join(self.changed)} changed, so it was not run; --changed goes "
                "on, and does not judge time and memory"
            )
        if differing := [row.what for row in self.rows if row.verdict is Likeness.DIFFERS]:
            return f"not reproduced in {self.run}: {', '.join(differing)} differ"
        open_ = [row.what for row in self.rows if row.verdict in _OPEN]
        return f"reproduced in {self.run}" + (f"; open: {', '.join(open_)}" if open_ else "")


def reproduce(
    path: Path,
    *,
    runs: Path,
    observer: Observer,
    address: str = LOCAL,
    name: str | None = None,
    changed: bool = False,
) -> Reproduction:
    """Requalify, prove the layout again, run its candidate alone, and compare.

    Args:
        path: A recipe.json.
        runs: Where the run directory is made.
        observer: Told what happens.
        address: "local", or the address of a Ray cluster.
        name: Of the run; the recipe's with -again if omitted.
        changed: Go on where a condition has changed: what takes time or memory is not judged then.

    Raises:
        SpecError: when the file is no recipe, lacks what this needs, or the name is wrong.
        ClusterError: when the cluster cannot do it.
        LedgerError: when the run directory cannot be written.
    """
    kept = read_recipe(path)
    refuse_simulated(kept)
    refuse_older(kept)
    spec = spec_again(kept.recipe, runs=runs, name=name)
    knock(address)
    conditions = tuple(requalify(path, address=address))
    found = Reproduction(conditions=conditions, rows=(), run=None)
    if found.changed and not changed:
        return found
    done = run_sweep(
        spec, runs=runs, observer=observer, address=address, only=kept.recipe.candidate
    )
    rows = compare(kept.recipe, again_of(done), same_execution=not found.changed)
    return replace(found, rows=tuple(rows), run=done.directory)


def refuse_older(kept: Kept) -> None:
    """Refuse a file from before it held what another run needs.

    Raises:
        SpecError: with what it lacks, and the command that makes a new one.
    """
    lacks = [
        place
        for part, _, name in (one.partition(".") for one in _NEEDED)
        if name not in kept.content.get(part, {})
        for place in (f"{part}.{name}",)
    ]
    if lacks:
        command = next(iter(kept.recipe.commands), "cptune sweep SPEC")
        raise SpecError(
            f"{kept.path} cannot be reproduced, it lacks {', '.join(lacks)}: an older cptune "
            "wrote it",
            hint=f"make a new one: {command}",
        )


def spec_again(recipe: Recipe, *, runs: Path, name: str | None) -> SweepSpec:
    """The spec of the other run: that of the recipe, with the values of its candidate alone.

    Raises:
        SpecError: when the name cannot be one, or is taken.
    """
    stem = f"{recipe.spec.name}-again"
    check_path(runs / (name or stem))
    if name is not None and (runs / name).exists():
        raise SpecError(f"run {name!r} exists in {runs}", hint="give another --name")
    try:
        return replace(
            recipe.spec,
            name=name or free_name(runs, stem),
            cluster=replace(recipe.spec.cluster, topology=None),
            axes=_axes_of(recipe.candidate),
            budget=replace(recipe.spec.budget, trials=1, depths=()),
        )
    except ValueError as exc:
        raise SpecError(f"--name | {exc}") from exc


def again_of(done: Sweep) -> Again:
    """What a run of one candidate came to.

    Raises:
        SpecError: when its time budget ended before the candidate was tried.
    """
    if not done.choice.verdicts:
        raise SpecError(
            f"nothing was tried within the {done.spec.budget.wall_s:g} s of run.budget.wall_s"
        )
    verdict = done.choice.verdicts[0]
    trial, chosen = verdict.trial, done.choice.trial is not None
    seen = trial.measurement
    return Again(
        convergence=trial.convergence_fingerprint,
        ruling=verdict.word,
        reason="" if chosen else verdict.reason,
        measurement=seen,
        reported=None if seen is None else sum_of_reports(seen, trial.candidate.layout),
        proof=None if done.recipe is None else done.recipe.proof,
    )


def _axes_of(candidate: Candidate) -> Axes:
    lay = candidate.layout
    return Axes(
        tp=(lay.tp,),
        cp=(lay.cp,),
        pp=(lay.pp,),
        vpp=(lay.vpp,),
        micro_batch=(candidate.micro_batch,),
        sharding=(candidate.sharding,),
        strategy=(candidate.strategy,),
        stages=(candidate.stages,) if candidate.stages else (),
        recompute=(candidate.recompute,),
        loss=(candidate.loss,),
        data_parallel=(candidate.data_parallel,),
    )
