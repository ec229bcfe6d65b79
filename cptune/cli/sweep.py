"""`cptune sweep`, the main job."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cptune.cli.app import Format, app, end_on_signals, say_stopped
from cptune.printing import print_json, print_sweep, program, say, sweep_json


@app.command
def sweep(
    spec: Path | None = None,
    /,
    *,
    runs: Path = Path("runs"),
    name: str | None = None,
    address: str = "local",
    resume: Annotated[bool, Parameter(negative=())] = False,
    format: Format = Format.TABLE,
) -> int:
    """Search the legal layouts with real trials and choose the recipe.

    Without SPEC: the built-in quickstart, four CPU processes on this machine, two to three minutes.

    Args:
        spec: A sweep.toml.
        runs: Where run directories are made.
        name: Name of the run; the spec's own if omitted.
        address: "local" starts a Ray on this machine; else the address of a Ray cluster.
        resume: Continue the run of this name where it ended.
        format: How to print the result.
    """
    from cptune.report.observers import Terminal
    from cptune.sweep import load_spec, run_sweep

    end_on_signals()
    chosen = load_spec(spec, runs=runs, name=name, resume=resume)
    for note in chosen.notes():
        say(f"note: {note}")
    terminal = Terminal()
    try:
        done = run_sweep(chosen, runs=runs, address=address, resume=resume, observer=terminal)
    except (KeyboardInterrupt, SystemExit) as exc:
        terminal.close()  # its live line would fold what comes next
        kept = runs / chosen.name / "spec.toml"
        words = (program("cptune"), "sweep", str(kept), "--runs", str(runs), "--resume")
        go_on = shlex.join(words)
        say_stopped(exc, f"stopped; go on with: {go_on}")
        raise
    finally:
        terminal.close()
    if format is Format.JSON:
        print_json(sweep_json(done))
    else:
        print_sweep(done)
    return 0 if done.recipe is not None else 1
