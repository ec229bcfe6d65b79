"""Communication on the page: what no compute hid, and the edges beside what was promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cptune.domain.layout import Axis
from cptune.domain.outcome import EdgeReport, Measurement
from cptune.domain.placement import RankPlace
from cptune.domain.recipe import Recipe
from cptune.domain.units import bytes_text
from cptune.report.figures_run import exposed_plot
from cptune.report.page_basis import basis_of_recipe, traced_words
from cptune.report.page_measured import mark_of
from cptune.report.page_parts import Figure, Grid, Line, Section, grid_of
from cptune.report.probe import rate_text
from cptune.report.ring_picture import Wires, ring_svg
from cptune.report.run import ReportedRun
from cptune.report.summary import Judged
from cptune.report.trace import (
    BY_STEPS,
    BY_UNION,
    EXPOSED_COLUMNS,
    LINK_COLUMNS,
    LINKS,
    Row,
    contention_text,
    exposed_cells,
    exposed_meanings,
    link_cells,
    link_meanings,
    trace_lines,
)

_AXES = tuple(axis.value for axis in Axis)
_ALL = ("#", "layout", *(f"{axis} ms" for axis in _AXES), "share", "of a step of ms", "method")
_EDGES = (
    *("axis", "ranks", "from", "to", "kind", "bytes a step", "ms", "at least"),
    *("promised", "share of it", "beside others"),
)
_EDGE_WORDS = ("axis", "ranks", "from", "to", "kind")


def exposed_section(run: ReportedRun) -> Section:
    """Exposed communication of the recipe by axis and layer, and of all by axis."""
    trace = run.trace
    measured = [one for one in run.judged if one.trial.measurement is not None]
    every = Grid(
        title="Of every candidate, by axis",
        columns=_ALL,
        lines=tuple(Line(cells=_by_axis(one), mark=mark_of(one)) for one in measured),
        numbers=frozenset(_ALL) - {"layout", "method"},
    )
    if trace is None:
        why = "no step of a recipe was traced: by axis alone, and not by layer"
        parts = (every,) if measured else ()
        return Section(anchor="exposed", title="Exposed communication", lines=(why,), parts=parts)
    figure = Figure(
        name="exposed",
        title="Communication of the recipe by axis and layer, hidden and exposed",
        basis=basis_of_recipe(run, window=traced_words(run)),
        plot=exposed_plot(trace["communication"]),
        grids=_traced_grids(dict(trace)),
    )
    return Section(
        anchor="exposed",
        title="Exposed communication",
        lines=tuple(trace_lines(dict(trace))),
        parts=(figure, every),
    )


def _traced_grids(trace: Row) -> tuple[Grid, ...]:
    tables = ((BY_UNION, trace["communication"]), (BY_STEPS, trace["ablation"]))
    *first, last = (
        grid_of(
            EXPOSED_COLUMNS, list(map(exposed_cells, rows)), words=("axis", "layer"), title=name
        )
        for name, rows in tables
        if rows or name == BY_UNION
    )
    return (*first, replace(last, legend=exposed_meanings(trace)))


def _by_axis(one: Judged) -> tuple[str, ...]:
    seen = one.trial.measurement
    assert seen is not None, "chosen above"
    of_s = seen.traced_step_s or seen.step_s
    return (
        str(one.trial.number),
        one.trial.source,
        *(f"{getattr(seen, f'{axis}_exposed_s') * 1e3:,.1f}" for axis in _AXES),
        f"{seen.exposed_share:.1%}",
        f"{of_s * 1e3:,.0f}",
        seen.exposed_method,
    )


def rings_section(run: ReportedRun) -> Section:
    """The context groups as they were placed, and every edge that carried something."""
    recipe = run.recipe
    if recipe is None:
        return Section(anchor="rings", title="Rings", lines=("nothing was chosen",))
    wires = Wires(run.topology, recipe.placement)
    grids = [_edges(recipe, wires)] if any(one.edges for one in recipe.measurement.ranks) else []
    if run.trace is not None and run.trace["links"]:
        rows = [link_cells(row) for row in run.trace["links"]]
        table = grid_of(LINK_COLUMNS, rows, words=("link", "axis"), title=LINKS)
        grids.append(replace(table, legend=link_meanings()))
    figure = Figure(
        name="rings",
        title="Context groups as they were placed",
        basis=basis_of_recipe(run, window=_edge_window(recipe.measurement)),
        svg=ring_svg(recipe.candidate.layout, wires),
        grids=tuple(grids),
    )
    lines = _promise_lines(run, recipe, wires)
    if not (figure.svg or grids):
        return Section(anchor="rings", title="Rings", lines=(*lines, "no rank sent to another one"))
    return Section(anchor="rings", title="Rings", lines=lines, parts=(figure,))


def _promise_lines(run: ReportedRun, recipe: Recipe, wires: Wires) -> tuple[str, ...]:
    """What the promises are worth."""
    if run.topology is None:
        return ("the topology is lost: nothing is promised",)
    told = [rate for *_, rate in _measured_edges(recipe, wires) if rate is not None]
    source = f"topology {run.topology.content_hash[:12]} from {run.topology.source}"
    if not told:
        return (f"{source} promises no rate of these edges; `cptune topology probe` measures them",)
    return (
        f"{source} promises the rates; a trial's own is a lower bound, since its seconds run from "
        "the post of an exchange to the return of its wait: `cptune topology probe` measures the "
        "edges alone",
    )


def _edge_window(seen: Measurement) -> str:
    steps = len(seen.ranks[0].step_s) if seen.ranks else 0
    return f"per step, over {steps} timed steps, by the clock of the sending rank"


def _edges(recipe: Recipe, wires: Wires) -> Grid:
    places = {place.rank: place for place in recipe.placement.ranks}
    rows = [
        _edge_cells(edge, places[rank], places[edge.peer_rank], kind=kind, promised=promised)
        for rank, edge, kind, promised in _measured_edges(recipe, wires)
    ]
    return grid_of(_EDGES, rows, words=_EDGE_WORDS, title="Edges: measured and promised")


def _measured_edges(
    recipe: Recipe, wires: Wires
) -> Sequence[tuple[int, EdgeReport, str, float | None]]:
    """Sending rank, edge, kind and promised bytes per second of everything that was sent."""
    return [
        (report.rank, edge, *wires.promise(report.rank, edge.peer_rank))
        for report in recipe.measurement.ranks
        for edge in report.edges
    ]


def _edge_cells(
    edge: EdgeReport, a: RankPlace, b: RankPlace, *, kind: str, promised: float | None
) -> tuple[str, ...]:
    rate = edge.sent_bytes / edge.seconds if edge.seconds else None
    share = "-" if rate is None or not promised else f"{rate / promised:.3g}"
    return (
        edge.axis,
        f"{a.rank} -> {b.rank}",
        a.device.name,
        b.device.name,
        kind,
        bytes_text(edge.sent_bytes),
        "unknown" if edge.seconds is None else f"{edge.seconds * 1e3:,.1f}",
        rate_text(rate),
        rate_text(promised),
        share,
        contention_text(edge.contention),
    )
