"""`python -m topology rings`: where the groups of a layout would go, and what limits them."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from topology.cli import check_outputs, print_text, word_of, write_text
from topology.discover import discover
from topology.errors import TopologyError
from topology.graph import DeviceEdge
from topology.nouns import Topology
from topology.ring_plan import Ring, RingPlan
from topology.rings import plan_rings

__all__ = ["main", "render_rings", "show_rings"]

_GIGA = 1e9
_MOST_DEVICES = 1 << 20  # more than any cluster has


def main(argv: Sequence[str]) -> int:
    """Print the rings of a layout on this machine, or on the machines the files tell of.

    Args:
        argv: Arguments after the word `rings`.

    Returns:
        The exit status: 0 done, 1 no ring can be built or the plan cannot be written out, 2 for a
        file that cannot be read or named for output, 130 after Ctrl-C. Bad usage leaves by
        SystemExit(2), as argparse does.
    """
    options = _parser().parse_args(argv)
    failed = 2
    try:
        check_outputs({"--svg": options.svg}, inputs=options.files)
        topology = _read(options.files)
        failed = 1
        plan = plan_rings(topology, tp=options.tp, cp=options.cp)
        show_rings(plan, topology=topology, form=options.format, svg=options.svg)
    except TopologyError as exc:
        hint = f" ({exc.hint})" if exc.hint else ""
        sys.stderr.write(f"error: {exc}{hint}\n")
        return failed
    except KeyboardInterrupt:
        return 130
    return 0


def show_rings(
    plan: RingPlan, *, topology: Topology, form: str = "table", svg: Path | None = None
) -> None:
    """Print a plan as a table or JSON, and draw it into a file where one is named.

    Raises:
        TopologyError: It cannot be written.
    """
    if svg is not None:
        _draw(svg, topology=topology, plan=plan)
    print_text(_json(plan) if form == "json" else render_rings(plan))


def render_rings(plan: RingPlan) -> str:
    """The plan as text that ends in a newline; `?` is a rate nobody told."""
    blocks = [
        f"tp {plan.tp}, cp {plan.cp}: {_count(plan.groups, 'group')}, {_count(plan.rings, 'ring')}",
        *(_ring(number, ring) for number, ring in enumerate(plan.rings)),
        _limits(plan),
    ]
    if any(edge.planned for ring in plan.rings for edge in ring.edges):
        blocks.append("? is a rate nobody told: such edges are ordered by the planning weights")
    if plan.notes:
        blocks.append("\n".join(["notes:", *(f"  - {note}" for note in plan.notes)]))
    return "\n\n".join(blocks) + "\n"


def _limits(plan: RingPlan) -> str:
    """What the rings get all at once and what none can beat, or whose rates nobody told."""
    achieved, bound = plan.achieved_bytes_per_s, plan.bound_bytes_per_s
    edges = [edge for ring in plan.rings for edge in ring.edges]
    if not edges:
        return "rings of one device: nothing is sent"
    untold = [edge for edge in edges if edge.bytes_per_s is None]
    gets = _rate(achieved)
    if achieved is None:
        gets = f"unknown, since {len(untold)} of {len(edges)} edges have no rate told"
    beats = f"no rings over these devices beat {_rate(bound)}{_share(plan)}"
    if bound is None:
        beats = "what no rings over these devices beat is unknown, since no capacity was told"
    return f"slowest edge, all rings at once: {gets}; {beats}"


def _ring(number: int, ring: Ring) -> str:
    lines = [f"ring {number}: {' '.join(map(str, ring.order))}"]
    slowest = ring.slowest
    if slowest is not None:
        count = sum(edge.worth == slowest.worth for edge in ring.edges)
        alike = f", {count} edges alike" if count > 1 else ""
        lines.append(f"  slowest edge: {_edge(slowest)}{alike}")
    crossings = ring.crossings
    lines.append(
        f"  edges between islands {crossings.island}, nodes {crossings.node}, "
        f"switches {crossings.switch}"
    )
    lines += _leaving(ring.leaving)
    return "\n".join(lines)


def _leaving(edges: Iterable[DeviceEdge]) -> list[str]:
    return [
        f"  leaves {'the island' if edge.a.node == edge.b.node else 'the node'}: {_edge(edge)}"
        for edge in edges
    ]


def _edge(edge: DeviceEdge) -> str:
    return f"{edge.a} - {edge.b} {edge.label} {_rate(edge.bytes_per_s)}"


def _rate(bytes_per_s: float | None) -> str:
    return "?" if bytes_per_s is None else f"{bytes_per_s / _GIGA:.1f} GB/s"


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}" + ("" if len(things) == 1 else "s")


def _share(plan: RingPlan) -> str:
    if plan.achieved_bytes_per_s is None or plan.bound_bytes_per_s is None:
        return ""
    return f" ({plan.achieved_bytes_per_s / plan.bound_bytes_per_s:.0%} reached)"


def _json(plan: RingPlan) -> str:
    return json.dumps(plan.to_json(), indent=1, allow_nan=False) + "\n"


def _draw(path: Path, *, topology: Topology, plan: RingPlan) -> None:
    from topology.picture import render_svg  # only where a picture is asked for

    write_text(path, text=render_svg(topology, plan))
    sys.stderr.write(f"wrote {path}\n")


def _read(paths: Sequence[Path]) -> Topology:
    if not paths:
        return discover()
    from topology.readers import read_topology  # only where there is a file to read

    return read_topology(paths)


def _degree(text: str) -> int:
    value = int(text)
    if not 1 <= value <= _MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"saw {value}, wanted 1 to {_MOST_DEVICES:,}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m topology rings",
        description="Where would the groups of a layout go, and what limits them?",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--tp", type=_degree, required=True, metavar="T", help="devices in a tensor-parallel group"
    )
    parser.add_argument(
        "--cp", type=_degree, required=True, metavar="C", help="such groups in a ring"
    )
    parser.add_argument(
        "--format",
        type=word_of(("table", "json")),
        metavar="{table,json}",
        default="table",
        help="for people, or JSON",
    )
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="also draw the wiring and the rings into FILE"
    )
    parser.add_argument(
        "files",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="text of other machines (topo -m, NCCL XML, Slurm, ...); without: this machine",
    )
    return parser
