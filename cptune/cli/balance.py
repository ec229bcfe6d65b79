"""`cptune balance`: attention time across data-parallel groups."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from cptune.balance.asked import BalanceAsked
from cptune.cli.app import Format, app
from cptune.printing import print_answer, say


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
