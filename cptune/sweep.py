"""The main job, from a spec to a recipe: resolve, refuse early, search, choose, keep.

Everything that the user can get wrong is refused before a process is started or a file is written.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cptune import spec as specs
from cptune.cluster.connection import LOCAL, RayNode
from cptune.cluster.session import joined_cluster, ready_for_trials
from cptune.domain.recipe import Recipe
from cptune.domain.stamp import Stamp
from cptune.domain.study import SweepSpec
from cptune.domain.trial import Trial
from cptune.errors import LedgerError, SpecError
from cptune.logs import EventLog
from cptune.predict.limits import RateGuard
from cptune.predict.trials import TrialPredictor
from cptune.recipe.fingerprint import stamp_of
from cptune.report.observers import Logged
from cptune.seams import Launcher, Observer
from cptune.search.choose import Choice, Limits
from cptune.search.depths import with_depths
from cptune.search.loop import Seams, SearchLoop
from cptune.search.prepare import SQLITE, Prepared, prepare, refuse_gpus
from cptune.search.sampler import OptunaSampler
from cptune.search.space import SearchSpace
from cptune.store.files import write_durably
from cptune.store.ledger import ParquetLedger
from cptune.store.recipes import remove_recipe, write_recipe
from cptune.store.run_directory import RunDirectory, free_name
from topology.discover import discover
from topology.nouns import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a finished sweep came to; `recipe` None: no candidate passed."""

    spec: SweepSpec
    directory: Path
    space: SearchSpace
    trials: tuple[Trial, ...]
    choice: Choice
    recipe: Recipe | None


class SystemClock:
    """The clocks of this machine."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    def utc(self) -> str:
        """Now, to the millisecond."""
        return datetime.now(UTC).isoformat(timespec="milliseconds")


def load_spec(path: Path | None, *, runs: Path, name: str | None, resume: bool) -> SweepSpec:
    """The spec to run: a file's, or the built-in quickstart under a name that is free in `runs`.

    Raises:
        SpecError: when the file or the name is wrong.
    """
    if path is None and resume:
        path = runs / (name or specs.QUICKSTART) / "spec.toml"
    _check_path(runs / (name or specs.QUICKSTART))
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
    with ExitStack() as stack:
        nodes: list[RayNode] | None = None
        topology = discover() if address == LOCAL else None
        if topology is None and spec.cluster.world_size is None:
            nodes, topology = stack.enter_context(joined_cluster(address, ranks=0))
        prepared = prepare(spec, topology)
        run = stack.enter_context(_open_run(prepared.spec, runs / spec.name, resume=resume))
        sampler = stack.enter_context(_open_sampler(prepared, run))
        if not resume:
            sampler.refuse_trials()
        if nodes is None or topology is None:
            ranks = prepared.spec.cluster.world_size or 0
            nodes, topology = stack.enter_context(joined_cluster(address, ranks=ranks))
            refuse_gpus(prepared.spec, topology)
        log = stack.enter_context(closing(_open_log(run.path / "log.jsonl")))
        log.write("sweep_started", resume=resume, address=address, pid=os.getpid())
        observer = Logged(observer, log)
        ready = stack.enter_context(ready_for_trials(prepared.spec, nodes=nodes, topology=topology))
        seams = Seams(
            sampler=sampler,
            launcher=with_depths(ready.launcher, launcher_of=ready.launcher.on, spec=prepared.spec),
            ledger=ParquetLedger(run.path, writable=True),
            clock=SystemClock(),
            observer=observer,
            predict=TrialPredictor(
                prepared.spec, nodes=len(topology.nodes), capacity_bytes=ready.capacity_bytes
            ).predict,
            guard=RateGuard(prepared.spec, cores=[node.cpus for node in topology.nodes]),
        )
        limits = _limits(prepared.spec, capacity_bytes=ready.capacity_bytes)
        return _search(
            prepared,
            run=run,
            topology=topology,
            limits=limits,
            seams=seams,
            full=ready.launcher,
        )


def _open_run(spec: SweepSpec, path: Path, *, resume: bool) -> RunDirectory:
    """The run directory, held by this process, with the resolved spec in it."""
    _check_path(path)
    if path.exists() and not (path / "spec.toml").exists() and _holds_files(path):
        raise SpecError(
            f"{path} is no run directory: it holds files and no spec.toml",
            hint="use another name, or another --runs DIR",
        )
    if (path / "spec.toml").exists() and not resume:
        raise SpecError(
            f"run {spec.name!r} exists in {path.parent}",
            hint="add --resume to continue it, or give the spec another name",
        )
    run = RunDirectory(path)
    try:
        _keep_spec(spec, run)
    except BaseException:
        run.close()
        raise
    return run


def _open_log(path: Path) -> EventLog:
    try:
        return EventLog(path)
    except OSError as exc:
        raise LedgerError(f"cannot write {path}: {exc.strerror}") from exc


def _check_path(path: Path) -> None:
    """Refuse a path that this system, or SQLite, cannot name."""
    try:
        str(path).encode()
        path.exists()
    except (OSError, UnicodeEncodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise SpecError(f"run directory {str(path)!a} cannot be used: {reason}") from exc


def _holds_files(path: Path) -> bool:
    if not path.is_dir():
        return True
    return any(entry.name != "lock" for entry in path.iterdir())


def _keep_spec(spec: SweepSpec, run: RunDirectory) -> None:
    if not run.spec_path.exists():
        write_durably(run.spec_path, specs.write_toml(spec).encode())
        return
    changes = specs.spec_changes(specs.load(run.spec_path), spec)
    if changes:
        raise SpecError(
            f"run {spec.name!r} was started with another spec: " + "; ".join(changes),
            hint="resume with the same spec, or give the changed one another name",
        )


def _limits(spec: SweepSpec, *, capacity_bytes: int) -> Limits:
    return Limits(
        capacity_bytes=capacity_bytes,
        memory_margin=spec.cluster.memory_margin,
        objective=spec.objective,
    )


def _search(
    prepared: Prepared,
    *,
    run: RunDirectory,
    topology: Topology,
    limits: Limits,
    seams: Seams,
    full: Launcher,
) -> Sweep:
    spec, space = prepared.spec, prepared.space
    write_durably(run.topology_path, json.dumps(topology.to_json(), indent=1).encode())
    stamp = stamp_of(spec, topology_hash=topology.content_hash)
    loop = SearchLoop(space, limits=limits, budget=spec.budget, stamp=stamp, seams=seams)
    loop.run()
    choice = loop.confirm(full)
    return Sweep(
        spec=spec,
        directory=run.path,
        space=space,
        trials=tuple(loop.trials),
        choice=choice,
        recipe=_keep_recipe(run, _recipe(prepared, choice, limits=limits, run=run, stamp=stamp)),
    )


def _open_sampler(prepared: Prepared, run: RunDirectory) -> OptunaSampler:
    spec = prepared.spec
    return OptunaSampler(
        prepared.space,
        settings=spec.search,
        study_name=spec.name,
        storage=run.study_path if spec.storage.study == SQLITE else spec.storage.study,
        baseline=prepared.baseline,
    )


def _recipe(
    prepared: Prepared, choice: Choice, *, limits: Limits, run: RunDirectory, stamp: Stamp
) -> Recipe | None:
    trial = choice.trial
    if trial is None or trial.measurement is None:
        return None
    return Recipe(
        spec=prepared.spec,
        candidate=trial.candidate,
        placement=trial.placement,
        measurement=trial.measurement,
        predicted=trial.predicted,
        capacity_bytes=limits.capacity_bytes,
        certificate=choice.certificate,
        controls=choice.controls,
        versions=stamp.versions,
        fingerprints=stamp.fingerprints,
        commands=(f"cptune sweep {run.spec_path} --name {prepared.spec.name}-again",),
    )


def _keep_recipe(run: RunDirectory, recipe: Recipe | None) -> Recipe | None:
    if recipe is None:
        remove_recipe(run.path)
    else:
        write_recipe(run.path, recipe)
    return recipe
