"""The search of a sweep, whoever answers its trials: seams joined, loop run, recipe kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cptune.balance.expected import expect_load
from cptune.clock import SystemClock
from cptune.domain.documents import DocumentLoad
from cptune.domain.environment import RankEnvironment
from cptune.domain.launcher import LauncherName
from cptune.domain.recipe import Recipe
from cptune.domain.stamp import Stamp
from cptune.domain.study import Budget, SweepSpec
from cptune.domain.trial import Trial
from cptune.keeping import keep_recipe
from cptune.predict.case import Machine
from cptune.predict.trials import TrialPredictor
from cptune.recipe.caveats import why_other_execution
from cptune.recipe.fingerprint import stamp_of
from cptune.seams import Launcher, Observer
from cptune.search.choose import Choice, Limits
from cptune.search.expected import ExpectSteps
from cptune.search.foresight import LearningLedger
from cptune.search.loop import SearchLoop
from cptune.search.prepare import Prepared, refuse_other_batch, refuse_other_launcher
from cptune.search.sampler import JournalFile, OptunaSampler
from cptune.search.seams import Guard, Prove, Seams, nothing_wrong
from cptune.search.space import SearchSpace
from cptune.store.balance import open_lengths
from cptune.store.files import write_durably
from cptune.store.ledger import ParquetLedger
from cptune.store.run_directory import RunDirectory
from topology.nouns import Topology

_SEEDS = 3  # asked for after the baseline: with fewer, TPE starts no better than at random


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a finished sweep came to; `recipe` None: no candidate passed."""

    spec: SweepSpec
    directory: Path
    space: SearchSpace
    trials: tuple[Trial, ...]
    choice: Choice
    recipe: Recipe | None
    launcher: LauncherName = LauncherName.RAY
    flags: tuple[str, ...] = ()  # how it is called again, beside its spec

    @property
    def chosen_key(self) -> str | None:
        """The key of the recipe's candidate."""
        return None if self.recipe is None else self.recipe.candidate.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What the documents of the batch are drawn from, and what they come to over many batches.

    Empty and None where the mask knows no documents.
    """

    pool: tuple[int, ...]
    load: DocumentLoad | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What is held while a sweep runs."""

    run: RunDirectory
    sampler: OptunaSampler
    documents: Documents


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Who answers the trials, on which machine.

    `launcher` may run fewer layers than `full`, `finals` tells more of each. `prove` makes the
    prover of an execution fingerprint; None: nothing is proven. `versions` None: there are no
    ranks, and those of this process count. `caveats` and `flags` are those of the stamp.
    """

    name: LauncherName = LauncherName.RAY
    topology: Topology
    topology_hash: str
    machine: Machine
    launcher: Launcher
    full: Launcher | None = None
    finals: Launcher | None = None
    environment: RankEnvironment = field(default_factory=RankEnvironment)
    versions: RankEnvironment | None = None
    guard: Guard = nothing_wrong
    prove: Callable[[str], Prove] | None = None
    caveats: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


def read_documents(spec: SweepSpec) -> Documents:
    """What the documents of a resolved spec are.

    Raises:
        SpecError: when its lengths cannot be read.
    """
    assert spec.cluster.world_size is not None, "the spec is resolved"
    world_size = spec.cluster.world_size
    from cptune.balance.documents import read_pool  # brings numpy

    return Documents(
        load=expect_load(spec.workload, world_size=world_size, open_file=open_lengths),
        pool=read_pool(spec.workload, open_file=open_lengths),
    )


def open_sampler(prepared: Prepared, run: RunDirectory) -> OptunaSampler:
    """The sampler of a spec, with its study where the spec wants it.

    Raises:
        LedgerError: when the storage cannot be opened.
    """
    spec = prepared.spec
    return OptunaSampler(
        prepared.space,
        settings=spec.search,
        study_name=spec.name,
        storage=_study_place(spec, run),
        baseline=prepared.baseline,
    )


def _study_place(spec: SweepSpec, run: RunDirectory) -> Path | JournalFile | str:
    name = spec.storage.file_name
    if name is None:
        return spec.storage.study
    return JournalFile(run.path / name) if spec.storage.is_journal else run.path / name


def search(prepared: Prepared, opened: Opened, *, world: World, observer: Observer) -> Sweep:
    """Search, choose and keep what was chosen.

    Raises:
        SpecError: when the run is of another batch or of another launcher.
        LedgerError: when the run directory cannot be read or written.
    """
    spec, space, run, documents = prepared.spec, prepared.space, opened.run, opened.documents
    predictor = TrialPredictor(spec, machine=world.machine, documents=documents.load)
    limits = _limits(spec, documents, world=world, predictor=predictor)
    opened.sampler.seed(predictor.fastest(space.candidates, count=_SEEDS))
    opened.sampler.lead(predictor.predict, room_bytes=limits.allowed_bytes)
    stamp = _stamp(spec, documents, world)
    seams = _seams(opened, world=world, predictor=predictor, observer=observer)
    if world.prove is not None:
        seams = replace(seams, prove=world.prove(stamp.execution))
    write_durably(run.topology_path, json.dumps(world.topology.to_json(), indent=1).encode())
    loop = SearchLoop(space, limits=limits, budget=_budget(spec, world), stamp=stamp, seams=seams)
    refuse_other_launcher(loop.trials, stamp)
    refuse_other_batch(loop.trials, stamp)
    for caveat in why_other_execution(loop.trials, stamp.execution):
        observer.note(caveat)
    choice = loop.run()
    return Sweep(
        spec=spec,
        directory=run.path,
        space=space,
        trials=tuple(loop.trials),
        choice=choice,
        recipe=keep_recipe(
            spec,
            choice,
            limits=limits,
            run=run,
            stamp=stamp,
            proof=None if choice.trial is None else loop.proof_of(choice.trial.candidate),
        ),
        launcher=world.name,
        flags=world.flags,
    )


def _stamp(spec: SweepSpec, documents: Documents, world: World) -> Stamp:
    stamp = stamp_of(
        spec,
        topology_hash=world.topology_hash,
        lengths=documents.pool,
        environment=world.environment,
        versions=world.versions,
    )
    return replace(stamp, launcher=world.name, caveats=world.caveats, flags=world.flags)


def _budget(spec: SweepSpec, world: World) -> Budget:
    """That of the spec; where nothing runs, nothing is timed again or at fewer layers."""
    if not world.name.is_simulated:
        return spec.budget
    return replace(spec.budget, finalist_rounds=0, depths=())


def _seams(opened: Opened, *, world: World, predictor: TrialPredictor, observer: Observer) -> Seams:
    ledger = ParquetLedger(opened.run.path, writable=True)
    return Seams(
        sampler=opened.sampler,
        launcher=world.launcher,
        ledger=LearningLedger(ledger, predictor, observer),
        clock=SystemClock(),
        observer=observer,
        predict=predictor.predict,
        why_too_big=predictor.why_too_big,
        guard=world.guard,
        full=world.full,
        finals=world.finals,
    )


def _limits(
    spec: SweepSpec, documents: Documents, *, world: World, predictor: TrialPredictor
) -> Limits:
    limits = Limits(
        capacity_bytes=world.machine.capacity_bytes,
        memory_margin=spec.cluster.memory_margin,
        objective=spec.objective,
        ci_share=spec.budget.ci_share,
    )
    if documents.load is None or world.name.is_simulated:  # who predicts has the documents in it
        return limits
    steps = ExpectSteps(documents=documents.load, attention_share=predictor.attention_share)
    return replace(limits, expect=steps)
