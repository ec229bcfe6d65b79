"""`cptune sweep`, the main job."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cptune.cli.app import Format, app, end_on_signals, say_stopped
from cptune.domain.asked import LaunchAsked
from cptune.domain.launcher import LauncherName
from cptune.errors import SpecError
from cptune.printing import print_json, print_sweep, program, say, sweep_json

if TYPE_CHECKING:
    from cptune.domain.study import SearchSettings, SweepSpec
    from cptune.seams import Observer
    from cptune.searching import Sweep


@app.command
def sweep(
    spec: Path | None = None,
    /,
    *,
    runs: Path = Path("runs"),
    name: str | None = None,
    asked: Annotated[LaunchAsked | None, Parameter(name="*")] = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    format: Format = Format.TABLE,
) -> int:
    """Search the legal layouts with real trials and choose the recipe.

    Without SPEC: the built-in quickstart, four CPU processes on this machine, two to three minutes.

    Args:
        spec: A sweep.toml.
        runs: Where run directories are made.
        name: Name of the run; the spec's own if omitted.
        asked: Who answers the trials.
        resume: Continue the run of this name where it ended.
        format: How to print the result.
    """
    from cptune.opening import load_spec
    from cptune.report.observers import Terminal

    end_on_signals()
    asked = asked or LaunchAsked()
    refuse_unused(asked)
    chosen = load_spec(spec, runs=runs, name=name, resume=resume)
    if asked.seed is not None:
        chosen = replace(chosen, search=_search(chosen.search, asked.seed))
    for note in chosen.notes():
        say(f"note: {note}")
    terminal = Terminal()
    try:
        done = _run(chosen, asked, runs=runs, resume=resume, observer=terminal)
    except (KeyboardInterrupt, SystemExit) as exc:
        terminal.close()  # its live line would fold what comes next
        kept = runs / chosen.name / "spec.toml"
        words = (program("cptune"), "sweep", str(kept), "--runs", str(runs), "--resume")
        go_on = shlex.join([*words, *asked.words()])
        say_stopped(exc, f"stopped; go on with: {go_on}")
        raise
    finally:
        terminal.close()
    if format is Format.JSON:
        print_json(sweep_json(done))
    else:
        print_sweep(done)
    return 0 if done.recipe is not None else 1


def _run(
    spec: SweepSpec, asked: LaunchAsked, *, runs: Path, resume: bool, observer: Observer
) -> Sweep:
    """The sweep by whoever answers; without hardware neither Ray nor torch is imported."""
    if asked.launcher.is_simulated:
        from cptune.offline.sweep import OfflineAsked, run_offline

        offline = OfflineAsked(launcher=asked.launcher, noise=asked.shown_noise, table=asked.table)
        return run_offline(spec, offline, runs=runs, resume=resume, observer=observer)
    from cptune.sweep import run_sweep

    return run_sweep(spec, runs=runs, address=asked.address, resume=resume, observer=observer)


def _search(before: SearchSettings, seed: int) -> SearchSettings:
    try:
        return replace(before, seed=seed)
    except ValueError as exc:
        raise SpecError(f"--seed | {exc}") from exc


def refuse_unused(asked: LaunchAsked) -> None:
    """Refuse flags that the launcher does not use, or lacks.

    Raises:
        SpecError: naming the flag.
    """
    name = asked.launcher
    if name is LauncherName.REPLAY and asked.table is None:
        raise SpecError("--table is missing: --launcher replay answers from it")
    if name is not LauncherName.REPLAY and asked.table is not None:
        raise SpecError(f"--table is for --launcher replay, not {name.value}")
    if not name.is_simulated and asked.noise is not None:
        raise SpecError(
            f"--noise is {asked.noise:g}, and trials have their own; wanted it with --launcher "
            "roofline or replay"
        )
    if name.is_simulated and asked.address != LaunchAsked().address:
        raise SpecError(f"--address is for --launcher ray: {name.value} asks no cluster")
    if asked.noise is not None and not 0 <= asked.noise < 1:
        raise SpecError(
            f"--noise is {asked.noise:g}; wanted a share from 0 up to, not including, 1"
        )
