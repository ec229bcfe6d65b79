"""What a narrow terminal shows of a wide table: all of it, in folded lines."""

import io

from rich.console import Console
from rich.table import Table

from cptune import printing


def test_a_narrow_terminal_loses_no_column(monkeypatch):
    out = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=40)
    monkeypatch.setattr(printing, "console", lambda: out)
    names = ["layout", *(f"a column of its own {number}" for number in range(4))]
    table = Table()
    for name in names:
        table.add_column(name, no_wrap=name != "layout")
    table.add_row(*names)

    printing.print_answer({}, as_json=False, view=lambda _: table)

    shown = out.file.getvalue()
    assert all(shown.count(name) == 2 for name in names)
