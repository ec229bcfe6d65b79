"""`cptune plan` and `cptune explain`: layouts judged without hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cptune.cli.app import Format, app
from cptune.domain.asked import Asked
from cptune.domain.candidate import Strategy
from cptune.domain.study import ONE_STAGE, SweepSpec
from cptune.errors import SpecError
from cptune.printing import print_answer, say

_MOST_ROWS = 1_000_000_000


@app.command
def plan(spec: Path, /, *, top: int | None = None, format: Format = Format.TABLE) -> int:
    """Rank the legal layouts of a spec by prediction, without hardware.

    Args:
        spec: A sweep.toml.
        top: How many rows to print, 0 for all; if omitted 20 in a table, 1000 in JSON.
        format: How to print the result.
    """
    from cptune.planning.plan import TABLE_ROWS, TOP
    from cptune.planning.plan import plan as rank
    from cptune.report.plan_tables import plan_view
    from cptune.spec import load

    if top is not None and not 0 <= top <= _MOST_ROWS:
        raise SpecError(f"--top is {top}; wanted 0 to {_MOST_ROWS:,}")
    asked = load(spec)
    _say_notes(asked)
    shown = TABLE_ROWS if format is Format.TABLE else TOP
    answer = rank(asked, top=shown if top is None else top)
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

    loaded = load(spec)
    asked = asked or Asked()
    _say_notes(loaded)
    answer = judge(loaded, asked, mesh=mesh, flops=flops)
    if asked.strategy is Strategy.RING and asked.stages == 1 and asked.cp > 2:
        say(f"note: {ONE_STAGE}")
    print_answer(answer, as_json=format is Format.JSON, view=explain_view)
    return 0 if answer["legal"] else 1


def _say_notes(spec: SweepSpec) -> None:
    for note in spec.notes():
        say(f"note: {note}")
