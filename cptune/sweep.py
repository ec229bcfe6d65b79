"""The main job, from a spec to a recipe: resolve, refuse early, search, choose, keep.

Everything that the user can get wrong is refused before a process is started or a file is written.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from cptune import spec as specs
from cptune.balance.expected import expect_load
from cptune.bench.calls import RunOnRanks
from cptune.clock import SystemClock
from cptune.cluster.connection import LOCAL, RayNode, knock
from cptune.cluster.gang_calls import RunOnGang
from cptune.cluster.session import joined_cluster, ready_for_trials
from cptune.domain.documents import DocumentLoad
from cptune.domain.environment import RankEnvironment
from cptune.domain.recipe import Recipe
from cptune.domain.study import SweepSpec, TraceKind
from cptune.domain.trial import Trial
from cptune.errors import SpecError
from cptune.keeping import keep_recipe
from cptune.logs import SWEEP_FINISHED, SWEEP_STARTED
from cptune.opening import check_path, open_log, open_run
from cptune.predict.found import trial_machine
from cptune.predict.limits import RateGuard, hardware_of
from cptune.predict.trials import TrialPredictor
from cptune.proving import Prover
from cptune.recipe.caveats import caveats_of, why_other_execution
from cptune.recipe.fingerprint import stamp_of
from cptune.report.observers import Logged
from cptune.reporting.report import keep_report
from cptune.seams import Launcher, Observer
from cptune.search.choose import Choice, Limits
from cptune.search.depths import with_depths
from cptune.search.devices import settle_devices
from cptune.search.expected import ExpectSteps
from cptune.search.foresight import LearningLedger
from cptune.search.loop import SearchLoop
from cptune.search.prepare import Prepared, prepare, refuse_other_batch
from cptune.search.sampler import JournalFile, OptunaSampler
from cptune.search.seams import Seams
from cptune.search.space import SearchSpace
from cptune.store.balance import open_lengths
from cptune.store.files import write_durably
from cptune.store.ledger import ParquetLedger
from cptune.store.run_directory import RunDirectory, free_name
from topology.discover import discover
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Documents:
    """What the documents of the batch are drawn from, and what they come to over many batches.

    Empty and None where the mask knows no documents.
    """

    pool: tuple[int, ...]
    load: DocumentLoad | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What is held while a sweep runs."""

    run: RunDirectory
    sampler: OptunaSampler
    documents: _Documents


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """The machine of the trials; `launcher` may run fewer layers, `finals` tells more of each."""

    topology: Topology
    launcher: Launcher
    full: Launcher
    finals: Launcher
    capacity_bytes: int
    run: RunOnRanks
    environment: RankEnvironment


def load_spec(path: Path | None, *, runs: Path, name: str | None, resume: bool) -> SweepSpec:
    """The spec to run: a file's, or the built-in quickstart under a name that is free in `runs`.

    Raises:
        SpecError: when the file or the name is wrong.
    """
    if path is None and resume:
        path = runs / (name or specs.QUICKSTART) / "spec.toml"
    check_path(runs / (name or specs.QUICKSTART))
    if path is None:
        return specs.load_quickstart(name or free_name(runs, specs.QUICKSTART))
    spec = specs.load(path)
    try:
        return spec if name is None else replace(spec, name=name)
    except ValueError as exc:
        raise SpecError(f"--name | {exc}") from exc


def run_sweep(
    spec: SweepSpec,
    *,
    runs: Path,
    observer: Observer,
    address: str = LOCAL,
    resume: bool = False,
) -> Sweep:
    """Run the whole sweep and keep its result in `runs/<name>`.

    Args:
        spec: What to search.
        runs: Where run directories are.
        observer: Told what happens.
        address: "local", or the address of a Ray cluster.
        resume: Continue the run of this name instead of refusing it.

    Raises:
        SpecError: when the input is wrong; nothing was started.
        ClusterError: when the cluster cannot do it.
        LedgerError: when the run directory cannot be read or written.
    """
    knock(address)
    with ExitStack() as stack:
        nodes: list[RayNode] | None = None
        topology = discover() if address == LOCAL else None
        if topology is None and spec.cluster.world_size is None:
            nodes, topology = stack.enter_context(joined_cluster(address, ranks=0))
        prepared = prepare(spec, topology)
        documents = _read_documents(prepared.spec)
        run = stack.enter_context(open_run(prepared.spec, runs / spec.name, resume=resume))
        sampler = stack.enter_context(_open_sampler(prepared, run))
        if not resume:
            sampler.refuse_trials()
        if nodes is None or topology is None:
            ranks = prepared.spec.cluster.world_size or 0
            nodes, topology = stack.enter_context(joined_cluster(address, ranks=ranks))
            prepared = replace(prepared, spec=settle_devices(prepared.spec, topology))
        log = stack.enter_context(closing(open_log(run.path / "log.jsonl")))
        log.write(SWEEP_STARTED, resume=resume, address=address, pid=os.getpid())
        logged = Logged(observer, log)
        ready = stack.enter_context(
            ready_for_trials(prepared.spec, nodes=nodes, topology=topology, lengths=documents.pool)
        )
        world = _World(
            topology=topology,
            full=ready.launcher,
            finals=ready.launcher.on(_of_finals(prepared.spec)),
            launcher=with_depths(ready.launcher, launcher_of=ready.launcher.on, spec=prepared.spec),
            capacity_bytes=ready.capacity_bytes,
            run=RunOnGang(ready.gang),
            environment=ready.gang.environment(),
        )
        for caveat in caveats_of(world.environment):
            logged.note(caveat)
        opened = _Opened(run=run, sampler=sampler, documents=documents)
        done = _search(prepared, opened, world=world, observer=logged)
        chosen = None if done.recipe is None else done.recipe.candidate.key
        log.write(SWEEP_FINISHED, recipe=chosen)
    keep_report(done.directory, observer)  # Ray is gone, and another driver may come
    return done


def _of_finals(spec: SweepSpec) -> SweepSpec:
    """The spec with what follows a finalist's steps; nothing where nothing is to be traced."""
    budget = spec.budget
    trace = budget.trace if budget.trace is TraceKind.OFF else budget.finalist_trace
    return replace(spec, budget=replace(budget, trace=trace))


def _read_documents(spec: SweepSpec) -> _Documents:
    assert spec.cluster.world_size is not None, "the spec is resolved"
    world_size = spec.cluster.world_size
    from cptune.balance.documents import read_pool  # brings numpy

    return _Documents(
        load=expect_load(spec.workload, world_size=world_size, open_file=open_lengths),
        pool=read_pool(spec.workload, open_file=open_lengths),
    )


def _search(prepared: Prepared, opened: _Opened, *, world: _World, observer: Observer) -> Sweep:
    spec, space, run, documents = prepared.spec, prepared.space, opened.run, opened.documents
    machine = trial_machine(spec.cluster, world.topology, capacity_bytes=world.capacity_bytes)
    predictor = TrialPredictor(spec, machine=machine, documents=documents.load)
    opened.sampler.seed(predictor.fastest(space.candidates, count=_SEEDS))
    stamp = stamp_of(
        spec,
        topology_hash=world.topology.content_hash,
        lengths=documents.pool,
        environment=world.environment,
    )
    seams = replace(
        _seams(spec, opened, world=world, predictor=predictor, observer=observer),
        prove=Prover(spec, run=world.run, directory=run.path, execution=stamp.execution),
    )
    limits = _limits(spec, documents, predictor=predictor, capacity_bytes=world.capacity_bytes)
    write_durably(run.topology_path, json.dumps(world.topology.to_json(), indent=1).encode())
    loop = SearchLoop(space, limits=limits, budget=spec.budget, stamp=stamp, seams=seams)
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
    )


def _seams(
    spec: SweepSpec,
    opened: _Opened,
    *,
    world: _World,
    predictor: TrialPredictor,
    observer: Observer,
) -> Seams:
    ledger = ParquetLedger(opened.run.path, writable=True)
    return Seams(
        sampler=opened.sampler,
        launcher=world.launcher,
        ledger=LearningLedger(ledger, predictor, observer),
        clock=SystemClock(),
        observer=observer,
        predict=predictor.predict,
        why_too_big=predictor.why_too_big,
        guard=RateGuard(spec, hardware=hardware_of(spec.cluster, world.topology)),
        full=world.full,
        finals=world.finals,
    )


def _open_sampler(prepared: Prepared, run: RunDirectory) -> OptunaSampler:
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


def _limits(
    spec: SweepSpec, documents: _Documents, *, predictor: TrialPredictor, capacity_bytes: int
) -> Limits:
    limits = Limits(
        capacity_bytes=capacity_bytes,
        memory_margin=spec.cluster.memory_margin,
        objective=spec.objective,
        ci_share=spec.budget.ci_share,
    )
    if documents.load is None:
        return limits
    steps = ExpectSteps(documents=documents.load, attention_share=predictor.attention_share)
    return replace(limits, expect=steps)
