"""The command line, the only printer: JSON to stdout alone, messages to stderr, exact exit codes.

Exit 0 done, 1 the run failed or nothing fits, 2 bad input or usage, 130 after Ctrl-C. What a
command needs is imported inside it, so that `--help` stays instant.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import App, CycloptsError, Parameter

from cptune import __version__
from cptune.errors import CptuneError
from topology.errors import TopologyError

if TYPE_CHECKING:
    from cptune.sweep import Sweep

_INTERRUPTED = 130
_TERMINATED = 143
_PIPE_WIDTH = 120  # columns, where no terminal says how wide it is


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


app = App(
    name="cptune",
    version=__version__,
    help="Find the complete parallel recipe for long-context training, with the evidence for it."
    "\n\n--debug shows the traceback of an error.",
    version_flags=["--version"],
)
app["--help"].group = "Options"
app["--version"].group = "Options"


@app.command
def topology(*, format: Format = Format.TABLE, out: Path | None = None) -> int:
    """Show this node's GPUs, NICs and how they are wired.

    Args:
        format: How to print it.
        out: Write the inventory to this file instead, as JSON unless --format says otherwise.
    """
    from topology.cli import main as inventory

    arguments = [] if out is None and format is Format.TABLE else ["--format", format.value]
    if out is not None:
        arguments += ["--out", str(out)]
    return inventory(arguments)


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

    Without SPEC: the built-in quickstart, four CPU processes on this machine, about two minutes.

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

    signal.signal(signal.SIGTERM, _terminate)
    chosen = load_spec(spec, runs=runs, name=name, resume=resume)
    terminal = Terminal()
    try:
        done = run_sweep(chosen, runs=runs, address=address, resume=resume, observer=terminal)
    except (KeyboardInterrupt, SystemExit):
        kept = runs / chosen.name / "spec.toml"
        _say(f"stopped; go on with: {_program('cptune')} sweep {kept} --runs {runs} --resume")
        raise
    finally:
        terminal.close()
    if format is Format.JSON:
        sys.stdout.write(json.dumps(sweep_json(done), indent=2) + "\n")
    else:
        _print_sweep(done)
    return 0 if done.recipe is not None else 1


def sweep_json(done: Sweep) -> dict[str, object]:
    """What `cptune sweep --format json` prints."""
    return {
        "run": str(done.directory),
        "recipe": None if done.recipe is None else done.recipe.to_json(),
        "trials": [
            {
                "number": verdict.trial.number,
                "candidate_key": verdict.trial.candidate.key,
                "outcome": verdict.trial.kind.value,
                "verdict": verdict.word,
                "reason": verdict.reason,
            }
            for verdict in done.choice.verdicts
        ],
        "legal": len(done.space.candidates),
        "excluded": dict(done.space.excluded),
    }


def _print_sweep(done: Sweep) -> None:
    from rich.console import Console

    from cptune.report import summary, tables

    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = _PIPE_WIDTH
    judged = [
        summary.Judged(trial=verdict.trial, word=verdict.word, reason=verdict.reason)
        for verdict in sorted(done.choice.verdicts, key=lambda one: one.trial.number)
    ]
    out.print(tables.trials_table(judged))
    sections = [("Why not", summary.control_lines(judged))]
    if done.recipe is None:
        sections += [("No recipe", summary.nothing_fits_lines(judged))]
    else:
        sections += [("Recipe", summary.recipe_lines(done.recipe))]
        sections += [("Certificate", summary.certificate_lines(done.recipe))]
    sections += [
        (
            "Next",
            summary.next_lines(
                done.directory, has_recipe=done.recipe is not None, program=_program
            ),
        )
    ]
    for title, lines in sections:
        out.print(tables.section(title, lines), soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    sys.exit(run([word for word in arguments if word != "--debug"], debug=debug))


def run(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run one command; returns its exit code.

    Args:
        arguments: The words after `cptune`.
        debug: Show the traceback of an error instead of its message.
    """
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as exc:
        _say(f"error: {exc}")
        return 2
    except (CptuneError, TopologyError) as exc:
        if debug:
            raise
        _say(f"error: {exc}")
        if exc.hint:
            _say(f"hint: {exc.hint}")
        return exc.exit_code if isinstance(exc, CptuneError) else 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code if isinstance(code, int) else 0


def _program(name: str) -> str:
    """How to call a program of this environment: by name when PATH has it, else by its path."""
    ours = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).resolve() == ours.resolve():
        return name
    return os.path.relpath(ours) if ours.is_relative_to(Path.cwd()) else str(ours)


def _say(message: str) -> None:
    sys.stderr.write(message + "\n")


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(_TERMINATED)
