"""`cptune balance`: attention time across data-parallel groups."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cptune.balance.asked import BalanceAsked
from cptune.cli.app import Format, app, end_on_signals
from cptune.cli.outputs import check_outputs
from cptune.printing import print_answer, say

if TYPE_CHECKING:
    from cptune.balance.study import Measurer


@app.command
def balance(
    *,
    asked: Annotated[BalanceAsked | None, Parameter(name="*")] = None,
    address: str | None = None,
    format: Format = Format.TABLE,
) -> int:
    """Show how unequal attention time is across data-parallel groups as CP grows, and what helps.

    Args:
        asked: The documents, the hardware and the batch.
        address: Measure on the nodes of this Ray cluster; "local" starts a Ray on this machine.
        format: How to print the result.
    """
    from cptune.balance.answer import answer_asked
    from cptune.report.balance import balance_page, study_lines
    from cptune.store.balance import open_lengths, write_balance

    asked = asked or BalanceAsked()
    outputs = {"--out": asked.out, "--figure": asked.figure}
    check_outputs(outputs, inputs=[Path(asked.lengths)])
    study = answer_asked(asked, open_file=open_lengths, measurer=_measurer(address))
    if asked.out:
        write_balance(asked.out, study.rows)
    if asked.figure:
        from cptune.report.figures import balance_figure
        from cptune.store.files import write_durably

        write_durably(asked.figure, balance_figure(study.rows).encode())
    print_answer(study.to_json(), as_json=format is Format.JSON, view=lambda _: balance_page(study))
    if format is Format.JSON:
        say("\n".join(study_lines(study)))
    return 0


def _measurer(address: str | None) -> Measurer:
    """Times batches in processes of this machine, or on the rank actors of a cluster."""
    if address is None:
        from cptune.balance.processes import measure

        return measure
    from cptune.balance.batches import time_batches
    from cptune.cluster.calls import RunOnCluster

    end_on_signals()
    return partial(RunOnCluster(address=address), time_batches)
