"""`cptune drill`: failures on purpose, and the guards that must catch them."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from cptune.cli.app import Format, app, end_on_signals
from cptune.errors import SpecError
from cptune.printing import print_answer, say


@app.command
def drill(
    name: str | None = None,
    /,
    *,
    list_: Annotated[bool, Parameter(name="--list", negative=())] = False,
    address: str = "local",
    format: Format = Format.TABLE,
) -> int:
    """Provoke each known failure on purpose and show which guard catches it.

    Each has a control beside it: the same without the fault must pass. Ends with 1 when a failure
    is missed, or a control does not hold. All take about a minute on two cores.

    Args:
        name: Which to provoke, more with commas between them; all if omitted.
        list_: Say what there is, and provoke nothing.
        address: "local" starts a Ray on this machine; else the address of a Ray cluster.
        format: How to print the result.
    """
    from cptune.drills.registry import find_drills
    from cptune.report.drill import drill_view, list_view, word

    is_json = format is Format.JSON
    names = [] if name is None else [one.strip() for one in name.split(",")]
    drills = find_drills(names)
    if list_:
        if names:
            raise SpecError(f"--list shows all drills; wanted no name, or no --list, not {name!r}")
        print_answer({"drills": [one.to_json() for one in drills]}, as_json=is_json, view=list_view)
        return 0
    from cptune.drills.run import drills_json, run_drills

    end_on_signals()
    done = run_drills(
        drills,
        address=address,
        on_drilled=lambda one: say(f"{word(one.finding.caught)}: {one.drill.name}"),
    )
    print_answer(drills_json(done), as_json=is_json, view=drill_view)
    caught = sum(one.finding.caught for one in done)
    say(f"{caught} of {len(done)} failures caught")
    return 0 if caught == len(done) else 1
