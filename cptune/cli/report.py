"""`cptune report`: a run as one page."""

from __future__ import annotations

from pathlib import Path

from cptune.cli.app import Format, app
from cptune.cli.outputs import check_outputs
from cptune.cli.runs import files_of_run, find_run
from cptune.printing import print_answer


@app.command
def report(
    run: str,
    /,
    *,
    out: Path | None = None,
    runs: Path = Path("runs"),
    format: Format = Format.TABLE,
) -> int:
    """Write one self-contained HTML page about a run: the recipe, why to believe it, what it costs.

    A sweep writes it at its end; a run that is still going, was ended early or found nothing has
    one too. The page loads nothing and shows its numbers without scripts.

    Args:
        run: Name of a run, or the path of its directory.
        out: Where to write it; report.html in the run directory if omitted.
        runs: Where run directories are.
        format: How to print where the page is.
    """
    if out is not None:  # before anything is read
        check_outputs({"--out": out})
    directory = find_run(run, runs)
    from cptune.report.run_view import report_view
    from cptune.reporting.report import REPORT, write_report

    path = out or directory / REPORT
    kept = files_of_run(directory)
    check_outputs({"--out": path}, inputs=[one for one in kept if one != directory / REPORT])
    written = write_report(directory, out=path)
    print_answer(written.to_json(), as_json=format is Format.JSON, view=report_view)
    return 0
