"""A whole sweep in which nothing runs: the run directory of a real one, told apart everywhere."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cptune.domain.candidate import Candidate
from cptune.domain.launcher import LauncherName
from cptune.domain.study import SweepSpec
from cptune.errors import SpecError
from cptune.logs import SWEEP_FINISHED, SWEEP_STARTED
from cptune.offline.landscape import Foresight, Landscape, foresee
from cptune.offline.launchers import ReplayLauncher, RooflineLauncher, imagined_devices
from cptune.offline.replay import read_landscapes
from cptune.opening import has_run, open_log, open_run
from cptune.planning.machine import read_topology
from cptune.report.observers import Logged
from cptune.reporting.report import keep_report
from cptune.seams import Launcher, Observer
from cptune.search.prepare import Prepared, prepare
from cptune.search.space import SearchSpace
from cptune.searching import Opened, Sweep, World, open_sampler, read_documents, search
from cptune.store.launcher import Told, settle_launcher
from topology.nouns import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineAsked:
    """Who answers instead of hardware; `table` for a replay, noise as a share of the step."""

    launcher: LauncherName
    noise: float = 0.0
    table: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What is searched; `landscape` None: the prediction answers."""

    prepared: Prepared
    landscape: Landscape | None
    caveats: tuple[str, ...]


def run_offline(
    spec: SweepSpec, asked: OfflineAsked, *, runs: Path, observer: Observer, resume: bool = False
) -> Sweep:
    """Run the whole sweep without Ray and keep its result in `runs/<name>`.

    Args:
        spec: What to search; its cluster says of which hardware.
        asked: Who answers.
        runs: Where run directories are.
        observer: Told what happens.
        resume: Continue the run of this name, which the same launcher began.

    Raises:
        SpecError: when the input is wrong; nothing was written.
        LedgerError: when the run directory cannot be read or written.
    """
    machine = foresee(spec).case.machine
    if not machine.capacity_bytes:
        raise SpecError(
            f"cluster.device_memory_bytes | the memory of {machine.gpu.name!r} is not known, and "
            "nothing runs that could tell; wanted a number of bytes"
        )
    cluster = replace(spec.cluster, world_size=machine.world_size)
    prepared = prepare(replace(spec, cluster=cluster), None)
    answer = _answer(prepared, asked)
    prepared = answer.prepared
    documents = read_documents(prepared.spec)
    told = _told(prepared.spec, asked)
    with ExitStack() as stack:
        is_there = has_run(runs / spec.name)
        run = stack.enter_context(open_run(prepared.spec, runs / spec.name, resume=resume))
        settle_launcher(run.path, told, is_there=is_there)
        sampler = stack.enter_context(open_sampler(prepared, run))
        if not resume:
            sampler.refuse_trials()
        log = stack.enter_context(closing(open_log(run.path / "log.jsonl")))
        log.write(SWEEP_STARTED, resume=resume, pid=os.getpid(), **told)
        logged = Logged(observer, log)
        for caveat in answer.caveats:
            logged.note(caveat)
        opened = Opened(run=run, sampler=sampler, documents=documents)
        world = _world(answer, asked, told=told)
        done = search(prepared, opened, world=world, observer=logged)
        log.write(SWEEP_FINISHED, recipe=done.chosen_key)
    keep_report(done.directory, observer)
    return done


def _told(spec: SweepSpec, asked: OfflineAsked) -> Told:
    """What decides the answers: a run of another one is not gone on with."""
    table = None if asked.table is None else _digest_of(asked.table)
    seed = spec.search.seed
    return {"launcher": asked.launcher.value, "noise": asked.noise, "seed": seed, "table": table}


def _digest_of(table: Path) -> str:
    """The SHA-256 of a table, or of all trials of a run."""
    files = sorted((table / "trials").glob("*.parquet")) if table.is_dir() else [table]
    each = [hashlib.sha256(one.read_bytes()).hexdigest() for one in files]
    return hashlib.sha256("\n".join(each).encode()).hexdigest()


def _world(answer: _Answer, asked: OfflineAsked, *, told: Told) -> World:
    spec = answer.prepared.spec
    foresight = foresee(spec)
    machine, path = foresight.case.machine, spec.cluster.topology
    facts = json.dumps({"machine": asdict(machine), **told}, sort_keys=True)
    found = Topology(source="planned", nodes=()) if path is None else read_topology(Path(path))
    return World(
        name=asked.launcher,
        topology=found,
        topology_hash=hashlib.sha256(facts.encode()).hexdigest(),
        machine=machine,
        launcher=_launcher(answer, asked, foresight),
        caveats=answer.caveats,
        flags=_flags(asked),
    )


def _flags(asked: OfflineAsked) -> tuple[str, ...]:
    table = () if asked.table is None else ("--table", str(asked.table))
    return ("--launcher", asked.launcher.value, "--noise", f"{asked.noise:g}", *table)


def _launcher(answer: _Answer, asked: OfflineAsked, foresight: Foresight) -> Launcher:
    devices = imagined_devices(foresight.case.machine, owner=asked.launcher.value)
    seed, landscape = answer.prepared.spec.search.seed, answer.landscape
    if landscape is None:
        return RooflineLauncher(foresight, devices=devices, noise=asked.noise, seed=seed)
    return ReplayLauncher(landscape, devices=devices, noise=asked.noise, seed=seed)


def _answer(prepared: Prepared, asked: OfflineAsked) -> _Answer:
    """What can be asked about, and what speaks against the answers."""
    how = f"under {asked.noise:.1%} noise, and nothing ran"
    if asked.table is None:
        caveat = (
            "PREDICTED, not measured: --launcher roofline answered every trial with the model's "
            f"own prediction {how}"
        )
        return _Answer(prepared=prepared, landscape=None, caveats=(caveat,))
    landscape = _matching(prepared.spec, read_landscapes(asked.table).landscapes, asked.table)
    caveats = [
        "REPLAYED, not measured: --launcher replay answered every trial from "
        f"{asked.table.name} {how}"
    ]
    timed = [one for one in landscape.results.values() if one.step_s is not None]
    caveats += [
        f"{what} is not in the table for {count} of {len(timed)} candidates: there its limit was "
        "not applied"
        for what, count in (
            ("exposed communication", sum(one.exposed_s is None for one in timed)),
            ("peak memory", sum(one.peak_bytes is None for one in timed)),
        )
        if count
    ]
    confined = _confined(prepared, landscape)
    return _Answer(prepared=confined, landscape=landscape, caveats=tuple(caveats))


def _matching(spec: SweepSpec, landscapes: list[Landscape], table: Path) -> Landscape:
    """The landscape of the model, batch and world of a spec."""
    wanted = (replace(spec.model, preset=None), spec.workload, spec.cluster.world_size)
    for one in landscapes:
        case = one.foresight.case
        seen = (replace(case.model, preset=None), case.workload, case.machine.world_size)
        if seen == wanted:
            return one
    names = ", ".join(repr(one.name) for one in landscapes)
    raise SpecError(
        f"{table} has no workload with the model, the batch and the {spec.cluster.world_size} "
        f"ranks of {spec.name!r}; it has {names}",
        hint="[model] and [workload] of the spec must be those of the table, field by field",
    )


def _confined(prepared: Prepared, landscape: Landscape) -> Prepared:
    """The legal candidates that the table knows; the others can be neither tried nor judged."""
    space, results = prepared.space, landscape.results
    known = tuple(one for one in space.candidates if one.key in results)
    if not known:
        theirs, ours = next(iter(results)), space.candidates[0].key
        raise SpecError(
            f"the table knows none of the {len(space.candidates)} legal candidates of the spec: it "
            f"has {theirs}, and the spec {ours}",
            hint="[axes] of the spec must have values of the table",
        )
    missing = dict(space.untriable)
    for one in space.candidates:
        if one.key not in results:
            missing[one.layout.cp] = missing.get(one.layout.cp, 0) + 1
    baseline = _baseline(prepared, known)
    confined: SearchSpace = replace(space, candidates=known, untriable=missing)
    return replace(prepared, space=confined, baseline=baseline)


def _baseline(prepared: Prepared, known: tuple[Candidate, ...]) -> Candidate:
    return prepared.baseline if prepared.baseline in known else known[0]
