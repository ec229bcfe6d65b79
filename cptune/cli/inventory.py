"""`cptune topology`: what hardware is here, how it is wired, where rings go, what they get."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from cptune.cli.app import Format, app, end_on_signals
from cptune.cli.outputs import check_outputs
from cptune.domain.checks import MOST_RANKS, is_file
from cptune.domain.probe import ProbeAsk
from cptune.errors import SpecError
from cptune.printing import print_answer, say
from topology.errors import TopologyError
from topology.words import nearest_word, suggestion

if TYPE_CHECKING:
    from topology.nouns import Topology

topology = App(name="topology", help="What hardware is here or in files, and how it is wired.")
app.command(topology)

_COMMANDS = ("rings", "probe")
_File = Annotated[Path, Parameter(allow_leading_hyphen=True)]  # "-" is standard input


@topology.default
def _inventory(
    *files: _File,
    address: str | None = None,
    format: Literal["table", "json", "tree"] | None = None,
    out: Path | None = None,
) -> int:
    """Show GPUs, NICs and how they are wired: of this node, a Ray cluster, or as text files tell.

    Args:
        files: Text to read instead (nvidia-smi, NCCL, Slurm, JSON ...); several are merged, - is
            standard input.
        address: A Ray cluster, to look at all of its nodes; "local" starts a Ray here.
        format: How to print it; a table if omitted.
        out: Write it to this file instead, as JSON unless --format says otherwise.
    """
    from topology.cli import show_topology

    check_outputs({"--out": out}, inputs=files)
    show_topology(_look(files, address=address), form=format, out=out)
    return 0


@topology.command
def rings(
    *files: _File,
    tp: int,
    cp: int,
    address: str | None = None,
    format: Format = Format.TABLE,
    svg: Path | None = None,
) -> int:
    """Show where context groups go: each ring, its slowest edge, what leaves an island or a node.

    Args:
        files: Text to read instead of looking at this node; - is standard input.
        tp: Tensor-parallel degree.
        cp: Context-parallel degree.
        address: A Ray cluster, to look at all of its nodes; "local" starts a Ray here.
        format: How to print it.
        svg: Also draw the wiring and the rings into this file.
    """
    from topology.rings import plan_rings
    from topology.rings_command import show_rings

    for name, value in (("--tp", tp), ("--cp", cp)):
        if not 1 <= value <= MOST_RANKS:
            raise SpecError(f"{name} is {value}; wanted 1 or more, and {MOST_RANKS:,} at most")
    check_outputs({"--svg": svg}, inputs=files)
    found = _look(files, address=address)
    show_rings(plan_rings(found, tp=tp, cp=cp), topology=found, form=format.value, svg=svg)
    return 0


@app.command
@topology.command
def probe(
    *files: _File,
    ask: Annotated[ProbeAsk, Parameter(name="*")],
    address: str = "local",
    format: Format = Format.TABLE,
    out: Path | None = None,
) -> int:
    """Measure every edge that rings would use, alone and all at once, against what is promised.

    A process for each device of the rings sends over gloo, as CPU trials do. Exit code 1 when an
    edge is below its promise.

    Args:
        files: The topology that promises, as text; the inventory of the cluster if omitted.
        ask: The rings, and how to measure them.
        address: "local" starts a Ray on this machine; else the address of a Ray cluster.
        format: How to print the result.
        out: Keep the edges in this Parquet file.
    """
    from cptune.cluster.probe import probe_cluster
    from cptune.report.probe import below_lines, probe_view
    from cptune.store.edges import write_probe

    check_outputs({"--out": out}, inputs=files)
    promised = _read(files) if files else None
    end_on_signals()
    probed = probe_cluster(ask, address=address, promised=promised, tell=say)
    if out is not None:
        write_probe(out, probed)
    print_answer(probed.to_json(), as_json=format is Format.JSON, view=probe_view)
    for line in below_lines(probed):
        say(f"error: {line}")
    return 1 if probed.below else 0


def _look(files: Sequence[Path], *, address: str | None) -> Topology:
    """What the files tell, what the nodes of a cluster are, or this node."""
    if files and address is not None:
        raise SpecError(
            f"--address {address} and {files[0]}: wanted a cluster to look at, or files to read"
        )
    if files:
        return _read(files)
    if address is None:
        from topology.discover import discover

        return discover()
    from cptune.cluster.session import joined_cluster

    end_on_signals()
    with joined_cluster(address, ranks=1) as (_, found):
        return found


def _read(files: Sequence[Path]) -> Topology:
    from topology.readers import read_topology

    for file in files:
        if str(file).startswith("-") and str(file) != "-":
            raise SpecError(
                f"unknown option {file}", hint=f"a file of this name is {Path.cwd() / file}"
            )
    near = nearest_word(files[0], _COMMANDS)
    if not is_file(files[0]) and suggestion(files[0], _COMMANDS).endswith("?"):
        raise SpecError(f"no file {files[0]}", hint=f"did you mean cptune topology {near}?")
    with _refused():
        return read_topology(files)


@contextmanager
def _refused() -> Generator[None]:
    """Files that cannot be read are the user's to change: exit 2."""
    try:
        yield
    except TopologyError as exc:
        raise SpecError(str(exc), hint=exc.hint) from exc
