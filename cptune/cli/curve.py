"""`cptune curve`: peak memory by sequence length and CP degree, from real trials."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cptune.cli.app import Format, app, end_on_signals, say_stopped
from cptune.cli.outputs import check_outputs
from cptune.domain.asked import CurveAsked
from cptune.printing import print_answer, program, say


@app.command
def curve(  # noqa: PLR0913 - one argument for each flag
    spec: Path,
    /,
    *,
    asked: Annotated[CurveAsked | None, Parameter(name="*")] = None,
    runs: Path = Path("runs"),
    name: str | None = None,
    address: str = "local",
    resume: Annotated[bool, Parameter(negative=())] = False,
    format: Format = Format.TABLE,
) -> int:
    """Measure peak bytes by sequence length for each CP, and where CP begins to help.

    Real trials of a few steps; the longest length that fits is found by bisection.

    Args:
        spec: A sweep.toml; the layout but for CP is its baseline, or the first value of each axis.
        asked: Lengths, degrees and files.
        runs: Where the run directory is made.
        name: Name of the run; a free one from the spec's if omitted, or its last one to resume.
        address: "local" starts a Ray on this machine; else the address of a Ray cluster.
        resume: Continue a curve where it ended.
        format: How to print the result.
    """
    from cptune.curve import Told, run_curve
    from cptune.opening import curve_directory
    from cptune.report.curve import curve_page, progress_line
    from cptune.spec import load
    from cptune.store.curve import write_curve

    asked, chosen = asked or CurveAsked(), load(spec)
    check_outputs({"--out": asked.out, "--figure": asked.figure}, inputs=[spec])
    kept = curve_directory(chosen, runs=runs, name=name, resume=resume)
    end_on_signals()
    try:
        found = run_curve(
            chosen,
            asked,
            directory=kept,
            address=address,
            resume=resume,
            told=Told(
                row=lambda row: say(progress_line(row)),
                note=lambda note: say(f"note: {note}"),
            ),
        )
    except (KeyboardInterrupt, SystemExit) as exc:
        say_stopped(exc, f"stopped; go on with: {_again(kept, asked)}")
        raise
    if asked.out:
        write_curve(asked.out, found.rows)
    if asked.figure:
        from cptune.report.figures import curve_figure
        from cptune.store.files import write_durably

        write_durably(asked.figure, curve_figure(found).encode())
    print_answer(found.to_json(), as_json=format is Format.JSON, view=lambda _: curve_page(found))
    if format is Format.JSON:
        for warning in found.warnings():
            say(f"warning: {warning}")
    say(f"kept in {kept}")
    return 0 if any(found.longest_fitting(cp) for cp in found.cps) else 1


def _again(kept: Path, asked: CurveAsked) -> str:
    """The command that goes on with a curve; what it was asked is in its directory."""
    files = {"--out": asked.out, "--figure": asked.figure}
    given = [str(word) for flag, path in files.items() if path for word in (flag, path)]
    words = ["curve", str(kept / "spec.toml"), "--runs", str(kept.parent), "--name", kept.name]
    return shlex.join([program("cptune"), *words, "--resume", *given])
