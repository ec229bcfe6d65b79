"""`cptune curve`: peak memory by sequence length and CP degree, from real trials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cptune.cli.app import Format, app, end_on_signals, refuse_overwriting, say_stopped
from cptune.domain.asked import CurveAsked
from cptune.printing import print_answer, say


@app.command
def curve(
    spec: Path,
    /,
    *,
    asked: Annotated[CurveAsked | None, Parameter(name="*")] = None,
    runs: Path = Path("runs"),
    address: str = "local",
    format: Format = Format.TABLE,
) -> int:
    """Measure peak bytes by sequence length for each CP, and where CP begins to help.

    Real trials of a few steps; the longest length that fits is found by bisection.

    Args:
        spec: A sweep.toml; the layout but for CP is its baseline, or the first value of each axis.
        asked: Lengths, degrees and files.
        runs: Where the run directory is made.
        address: "local" starts a Ray on this machine; else the address of a Ray cluster.
        format: How to print the result.
    """
    from cptune.curve import run_curve
    from cptune.report.curve import curve_page, progress_line
    from cptune.spec import load
    from cptune.store.curve import write_curve

    asked, chosen = asked or CurveAsked(), load(spec)
    refuse_overwriting({"--out": asked.out, "--figure": asked.figure}, inputs=[spec])
    end_on_signals()
    try:
        found, kept = run_curve(
            chosen,
            asked,
            runs=runs,
            address=address,
            on_row=lambda row: say(progress_line(row)),
        )
    except (KeyboardInterrupt, SystemExit) as exc:
        where = f"{runs / chosen.name}-curve*/curve.parquet"
        say_stopped(exc, f"stopped; the rows so far are in {where}")
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
