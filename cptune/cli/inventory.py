"""`cptune topology`: what hardware is here, and how it is wired."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App

from cptune.cli.app import Format, app

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
