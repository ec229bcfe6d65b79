"""The run directory of a sweep or a curve: made, continued or refused."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from cptune import spec as specs
from cptune.domain.study import SweepSpec
from cptune.domain.workload import Workload
from cptune.errors import LedgerError, SpecError
from cptune.logs import EventLog
from cptune.search.prepare import trial_stack
from cptune.store.curve import ASKED, ROWS
from cptune.store.files import write_durably
from cptune.store.run_directory import RunDirectory, free_name, last_name


class RunKind(StrEnum):
    """Which command a run directory is of."""

    SWEEP = "sweep"
    CURVE = "curve"


#: What a run directory has only as one of this kind.
_ONLY_OF = {RunKind.SWEEP: ("trials",), RunKind.CURVE: (ROWS, ASKED)}


def open_run(
    spec: SweepSpec, path: Path, *, resume: bool, kind: RunKind = RunKind.SWEEP
) -> RunDirectory:
    """The run directory, held by this process, with the resolved spec in it.

    Args:
        spec: Resolved.
        path: The run directory.
        resume: Whether it may be there.
        kind: Of the run; one of another kind is not gone on with.

    Raises:
        SpecError: when the path cannot be used, the run exists and is not resumed, it is one of
            another kind, or it was started with another spec.
    """
    check_path(path)
    _refuse_other_kind(path, kind)
    if path.exists() and not (path / "spec.toml").exists() and _holds_files(path):
        raise SpecError(
            f"{path} is no run directory: it holds files and no spec.toml",
            hint="use another name, or another --runs DIR",
        )
    if (path / "spec.toml").exists() and not resume:
        raise SpecError(
            f"run {path.name!r} exists in {path.parent}",
            hint="add --resume to continue it, or give the spec another name",
        )
    run = RunDirectory(path)
    try:
        _keep_spec(spec, run)
    except BaseException:
        run.close()
        raise
    return run


def load_spec(path: Path | None, *, runs: Path, name: str | None, resume: bool) -> SweepSpec:
    """The spec to run: a file's, or the built-in quickstart under a name that is free in `runs`.

    Raises:
        SpecError: when the file or the name is wrong.
    """
    if path is None and resume:
        path = runs / (name or specs.QUICKSTART) / "spec.toml"
    if name == "":
        raise SpecError("--name is empty; wanted the name of a run directory")
    check_path(runs / (name or specs.QUICKSTART))
    if path is None:
        return specs.load_quickstart(name or free_name(runs, specs.QUICKSTART))
    spec = specs.load(path)
    try:
        return spec if name is None else replace(spec, name=name)
    except ValueError as exc:
        raise SpecError(f"--name | {exc}") from exc


def has_run(path: Path) -> bool:
    """Whether this is the directory of a run that was begun."""
    return (path / "spec.toml").exists()


def curve_directory(spec: SweepSpec, *, runs: Path, name: str | None, resume: bool) -> Path:
    """Where a curve is kept: a fresh `runs/<name>-curve`, or the last one of these to resume.

    Raises:
        SpecError: when the name cannot be one, or there is nothing to resume.
    """
    try:
        named = None if name is None else replace(spec, name=name).name
    except ValueError as exc:
        raise SpecError(f"--name | {exc}") from exc
    stem = f"{spec.name}-curve"
    check_path(runs / (named or stem))
    if not resume:
        return runs / (named or free_name(runs, stem))
    kept = runs / (named or last_name(runs, stem))
    if not kept.exists():
        raise SpecError(f"no curve {kept} to resume", hint="leave --resume out to start one")
    return kept


def open_log(path: Path) -> EventLog:
    """The event log of a run, appended to.

    Raises:
        LedgerError: when it cannot be written.
    """
    try:
        return EventLog(path)
    except OSError as exc:
        raise LedgerError(f"cannot write {path}: {exc.strerror}") from exc


def check_path(path: Path) -> None:
    """Refuse a path that this system, or SQLite, cannot name.

    Raises:
        SpecError: with the path and the reason.
    """
    try:
        str(path).encode()
        path.exists()
    except (OSError, UnicodeEncodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise SpecError(f"run directory {str(path)!a} cannot be used: {reason}") from exc


def _refuse_other_kind(path: Path, kind: RunKind) -> None:
    for other, names in _ONLY_OF.items():
        odd = [name for name in names if other is not kind and (path / name).exists()]
        if odd:
            raise SpecError(
                f"run {path.name!r} in {path.parent} is a {other}, not a {kind}: it holds {odd[0]}",
                hint=f"give the {kind} another --name",
            )


def _holds_files(path: Path) -> bool:
    if not path.is_dir():
        return True
    return any(entry.name != "lock" for entry in path.iterdir())


def _keep_spec(spec: SweepSpec, run: RunDirectory) -> None:
    if not run.spec_path.exists():
        write_durably(run.spec_path, specs.write_toml(spec).encode())
        return
    before = specs.load(run.spec_path)
    kept = replace(
        before,
        stack=trial_stack(before.stack),
        workload=_moved(before, spec),
        cluster=replace(before.cluster, topology=spec.cluster.topology),  # of plans alone
    )
    changes = specs.spec_changes(kept, spec)
    if changes:
        raise SpecError(
            f"run {run.path.name!r} was started with another spec: " + "; ".join(changes),
            hint="resume with the same spec, or give the changed one another name",
        )
    if kept.workload != before.workload:
        write_durably(run.spec_path, specs.write_toml(spec).encode())


def _moved(before: SweepSpec, spec: SweepSpec) -> Workload:
    """The workload of before, with its file of lengths where it is now.

    Whether it still holds the same is for the fingerprint of the trials to say.
    """
    old, new = before.workload.lengths, spec.workload.lengths
    both_files = Path(old).is_absolute() and Path(new).is_absolute()
    return replace(before.workload, lengths=new) if both_files else before.workload
