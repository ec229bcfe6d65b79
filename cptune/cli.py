"""The command line, the only printer: JSON to stdout alone, messages to stderr, exact exit codes.

Exit 0 done, 1 the run failed or nothing fits, 2 bad input or usage, 130 after Ctrl-C. What a
command needs is imported inside it, so that `--help` stays instant.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from cyclopts import App, Argument, CycloptsError, MissingArgumentError, Parameter

from cptune import __version__
from cptune.balance.asked import BalanceAsked
from cptune.domain.asked import Asked
from cptune.errors import CptuneError
from cptune.printing import (
    print_answer,
    print_json,
    print_sweep,
    program,
    say,
    sweep_json,
)
from topology.errors import TopologyError

_INTERRUPTED = 130
_SIGNALLED = 128  # an exit code is this and the signal's number
_TERMINATED = _SIGNALLED + signal.SIGTERM


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


topology = App(name="topology", help="What hardware is here or in files, and how it is wired.")
app.command(topology)


@topology.default
def _inventory(
    *files: Path, format: Literal["table", "json", "tree"] | None = None, out: Path | None = None
) -> int:
    """Show GPUs, NICs and how they are wired: of this node, or as text files tell.

    Args:
        files: Text to read instead (nvidia-smi, NCCL, Slurm, JSON ...); several are merged.
        format: How to print it; a table if omitted.
        out: Write it to this file instead, as JSON unless --format says otherwise.
    """
    from topology.cli import main as inventory

    arguments = [] if format is None else ["--format", format]
    arguments += [] if out is None else ["--out", str(out)]
    return inventory([*arguments, *(["--", *map(str, files)] if files else [])])


@topology.command
def rings(*files: Path, tp: int, cp: int, format: Format = Format.TABLE) -> int:
    """Show where context groups go: each ring, its slowest edge, what leaves an island or a node.

    Args:
        files: Text to read instead of looking at this node.
        tp: Tensor-parallel degree.
        cp: Context-parallel degree.
        format: How to print it.
    """
    from topology.rings_command import main as rings_of

    asked = ["--tp", str(tp), "--cp", str(cp), "--format", format.value]
    return rings_of([*asked, *(["--", *map(str, files)] if files else [])])


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
    signal.signal(signal.SIGHUP, _terminate)
    signal.signal(signal.SIGINT, _interrupt)
    chosen = load_spec(spec, runs=runs, name=name, resume=resume)
    terminal = Terminal()
    try:
        done = run_sweep(chosen, runs=runs, address=address, resume=resume, observer=terminal)
    except (KeyboardInterrupt, SystemExit) as exc:
        terminal.close()  # its live line would fold what comes next
        kept = runs / chosen.name / "spec.toml"
        say(f"stopped; go on with: {program('cptune')} sweep {kept} --runs {runs} --resume")
        # While Ray starts, its own handler ends the process with the signal's number.
        if isinstance(exc, SystemExit) and exc.code == signal.SIGTERM:
            raise SystemExit(_TERMINATED) from None
        raise
    finally:
        terminal.close()
    if format is Format.JSON:
        print_json(sweep_json(done))
    else:
        print_sweep(done)
    return 0 if done.recipe is not None else 1


@app.command
def plan(spec: Path, /, *, top: int | None = None, format: Format = Format.TABLE) -> int:
    """Rank the legal layouts of a spec by prediction, without hardware.

    Args:
        spec: A sweep.toml.
        top: How many rows to print, 0 for all; if omitted 20 in a table, 1000 in JSON.
        format: How to print the result.
    """
    from cptune.planning.plan import TOP
    from cptune.planning.plan import plan as rank
    from cptune.report.plan_tables import plan_view
    from cptune.spec import load

    answer = rank(load(spec), top=TOP if top is None else top)
    print_answer(answer, as_json=format is Format.JSON, view=plan_view)
    return 0 if answer["rows"] else 1


@app.command
def explain(
    spec: Path,
    /,
    *,
    asked: Annotated[Asked | None, Parameter(name="*")] = None,
    mesh: Annotated[bool, Parameter(negative=())] = False,
    flops: Annotated[bool, Parameter(negative=())] = False,
    format: Format = Format.TABLE,
) -> int:
    """Say why one layout is not legal, or what it costs and what binds, without hardware.

    Args:
        spec: A sweep.toml.
        asked: The layout; what is omitted is the first value of the spec's axis.
        mesh: Add the coordinates of every rank.
        flops: Add MFU by every published convention.
        format: How to print the result.
    """
    from cptune.planning.explain import explain as judge
    from cptune.report.plan_tables import explain_view
    from cptune.spec import load

    answer = judge(load(spec), asked or Asked(), mesh=mesh, flops=flops)
    print_answer(answer, as_json=format is Format.JSON, view=explain_view)
    return 0 if answer["legal"] else 1


@app.command
def balance(
    *,
    asked: Annotated[BalanceAsked | None, Parameter(name="*")] = None,
    format: Format = Format.TABLE,
) -> int:
    """Show how unequal attention time is across data-parallel groups as CP grows, and what helps.

    Args:
        asked: The documents, the hardware and the batch.
        format: How to print the result.
    """
    from cptune.balance.answer import answer_asked
    from cptune.report.balance import balance_page, study_lines
    from cptune.store.balance import open_lengths, write_balance

    study = answer_asked(asked or BalanceAsked(), open_file=open_lengths)
    if asked and asked.out:
        write_balance(asked.out, study.rows)
    if asked and asked.figure:
        from cptune.report.figures import balance_figure
        from cptune.store.files import write_durably

        write_durably(asked.figure, balance_figure(study.rows).encode())
    print_answer(study.to_json(), as_json=format is Format.JSON, view=lambda _: balance_page(study))
    if format is Format.JSON:
        say("\n".join(study_lines(study)))
    return 0


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
    except (CycloptsError, CptuneError, TopologyError, OSError, KeyboardInterrupt) as exc:
        if debug and not isinstance(exc, CycloptsError):
            raise
        return _code_of(exc)
    return code if isinstance(code, int) else 0


def _code_of(exc: BaseException) -> int:
    """Say what went wrong; returns the exit code."""
    match exc:
        case KeyboardInterrupt():
            return _INTERRUPTED
        case MissingArgumentError(argument=Argument(name=name)):
            say(f"error: {name} is missing")
            return 2
        case CptuneError() | TopologyError():
            say(f"error: {exc}")
            if exc.hint:
                say(f"hint: {exc.hint}")
            return exc.exit_code if isinstance(exc, CptuneError) else 1
        case OSError():
            return _lost_output(exc)
        case _:
            say(f"error: {exc}")
            return 2


def _lost_output(exc: OSError) -> int:
    """What was to be printed cannot be; what a run keeps in its directory is kept."""
    with suppress(OSError, ValueError):
        why = "its reader went away" if isinstance(exc, BrokenPipeError) else exc.strerror
        say(f"error: {exc}" if exc.filename else f"error: cannot print: {why}")
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
    return 1


def _terminate(number: int, _: object) -> NoReturn:
    _ignore_repeats()
    raise SystemExit(_SIGNALLED + number)


def _interrupt(*_: object) -> NoReturn:
    _ignore_repeats()
    raise KeyboardInterrupt


def _ignore_repeats() -> None:
    """Let the clean-up that the first signal starts come to its end; it takes a few seconds."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
