"""The main job, from a spec to a recipe: resolve, refuse early, search, choose, keep.

Everything that the user can get wrong is refused before a process is started or a file is written.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from cptune.cluster.connection import LOCAL, RayNode, knock
from cptune.cluster.gang_calls import RunOnGang
from cptune.cluster.session import Ready, joined_cluster, ready_for_trials
from cptune.domain.candidate import Candidate
from cptune.domain.study import SweepSpec, TraceKind
from cptune.logs import SWEEP_FINISHED, SWEEP_STARTED
from cptune.opening import has_run, open_log, open_run
from cptune.predict.found import trial_machine
from cptune.predict.limits import RateGuard, hardware_of
from cptune.proving import Prover
from cptune.recipe.caveats import caveats_of
from cptune.report.observers import Logged
from cptune.reporting.report import keep_report
from cptune.seams import Observer
from cptune.search.depths import with_depths
from cptune.search.devices import settle_devices
from cptune.search.prepare import narrow, prepare
from cptune.searching import Opened, Sweep, World, open_sampler, read_documents, search
from cptune.store.launcher import RAY, settle_launcher
from cptune.store.run_directory import RunDirectory
from topology.discover import discover
from topology.nouns import Topology


def run_sweep(
    spec: SweepSpec,
    *,
    runs: Path,
    observer: Observer,
    address: str = LOCAL,
    resume: bool = False,
    only: Candidate | None = None,
) -> Sweep:
    """Run the whole sweep and keep its result in `runs/<name>`.

    Args:
        spec: What to search.
        runs: Where run directories are.
        observer: Told what happens.
        address: "local", or the address of a Ray cluster.
        resume: Continue the run of this name instead of refusing it.
        only: The one candidate of the legal set that is tried; None: all of it.

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
        prepared = narrow(prepare(spec, topology), only)
        documents = read_documents(prepared.spec)
        is_there = has_run(runs / spec.name)
        run = stack.enter_context(open_run(prepared.spec, runs / spec.name, resume=resume))
        settle_launcher(run.path, RAY, is_there=is_there)
        sampler = stack.enter_context(open_sampler(prepared, run))
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
        world = _world(prepared.spec, ready, topology=topology, run=run)
        for caveat in caveats_of(world.environment, versions=ready.gang.versions()):
            logged.note(caveat)
        opened = Opened(run=run, sampler=sampler, documents=documents)
        done = search(prepared, opened, world=world, observer=logged)
        log.write(SWEEP_FINISHED, recipe=done.chosen_key)
    keep_report(done.directory, observer)  # Ray is gone, and another driver may come
    return done


def _world(spec: SweepSpec, ready: Ready, *, topology: Topology, run: RunDirectory) -> World:
    """The gang of a cluster as who answers the trials of a spec."""
    capacity = ready.capacity_bytes
    return World(
        topology=topology,
        topology_hash=topology.content_hash,
        machine=trial_machine(spec.cluster, topology, capacity_bytes=capacity),
        full=ready.launcher,
        finals=ready.launcher.on(_of_finals(spec)),
        launcher=with_depths(ready.launcher, launcher_of=ready.launcher.on, spec=spec),
        environment=ready.gang.environment(),
        versions=ready.gang.versions(),
        guard=RateGuard(spec, hardware=hardware_of(spec.cluster, topology)),
        prove=partial(_prover, spec, ready, run),
    )


def _prover(spec: SweepSpec, ready: Ready, run: RunDirectory, execution: str) -> Prover:
    return Prover(spec, run=RunOnGang(ready.gang), directory=run.path, execution=execution)


def _of_finals(spec: SweepSpec) -> SweepSpec:
    """The spec with what follows a finalist's steps; nothing where nothing is to be traced."""
    budget = spec.budget
    trace = budget.trace if budget.trace is TraceKind.OFF else budget.finalist_trace
    return replace(spec, budget=replace(budget, trace=trace))
