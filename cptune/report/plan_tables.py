"""Plans and explanations for people: lines and tables made of what the JSON says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cptune.domain.fit import FIT_RULE, Fit, beyond_text, bounds_text
from cptune.domain.units import bytes_text, common_unit, in_unit
from cptune.report.tables import section

_COLUMNS = (
    ("#", "right"),
    ("layout", "left"),
    ("recompute, loss, dp", "left"),
    ("low", "right"),
    ("likely", "right"),
    ("high", "right"),
    ("fits", "left"),
    ("step s", "right"),
    ("tokens/s\n/GPU", "right"),
    ("MFU", "right"),
    ("exposed", "right"),
    ("bound\nby", "left"),
)
_PEAKS = ("peak_lo_bytes", "peak_bytes", "peak_hi_bytes")


def plan_view(answer: Mapping[str, Any]) -> Group:
    """The ranking, what was excluded, and what is worth measuring."""
    rows, counts = answer["rows"], answer["counts"]
    legal = counts["legal"]
    title = f"{legal} layouts may be tried; the best {len(rows)} of them"
    excluded = [f"{count} by {rule}" for rule, count in counts["excluded"].items()]
    parts: list[RenderableType] = [_ranking(rows, title=title)] if rows else []
    parts += [section("How to read it", _legend(rows))] if rows else []
    parts += [section("Excluded", excluded or ["nothing"])]
    if uneven := _straggler_table(rows):
        parts += [section("Attention work of the slowest group over the mean", uneven)]
    if rows:
        why = answer["measure_why"]
        parts += [section("Worth measuring", [f"{key}: {why[key]}" for key in answer["measure"]])]
        parts += [section("Front of throughput and CP", answer["pareto"])]
    else:
        parts += [section("Nothing fits", nothing_fits_lines(answer))]
    return Group(*parts)


def _ranking(rows: Sequence[Mapping[str, Any]], *, title: str) -> Table:
    table = Table(
        title=title, title_justify="left", expand=False, box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for name, justify in _COLUMNS:
        right = justify == "right"
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "layout")
    size, _ = _unit_of(rows)
    for number, row in enumerate(rows, start=1):
        table.add_row(*(Text(cell) for cell in _cells(number, row, size)))
    return table


def _unit_of(rows: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
    """One unit for the bands of all rows, and the device."""
    bands = [row["memory"][name] for row in rows for name in _PEAKS]
    return common_unit([*bands, rows[0]["memory"]["inside_margin_bytes"] or 0])


def _legend(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the columns are, and what the figures take for granted."""
    size, unit = _unit_of(rows)
    memory = rows[0]["memory"]
    bounds = bounds_text(
        memory["capacity_bytes"] or 0, memory["inside_margin_bytes"] or 0, size=size
    )
    return [
        f"low, likely, high: peak of the worst rank, {unit}; {bounds}",
        FIT_RULE,
        *_stack_lines(rows),
    ]


def _stack_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whose software the figures are for; by the kind of data parallelism where it is assumed."""
    found: dict[str, list[str]] = {}
    for row in rows:
        known = found.setdefault(row["stack"]["kind"], [])
        if row["layout"]["data_parallel"] not in known:
            known.append(row["layout"]["data_parallel"])
    if not rows[0]["stack"]["assumed"]:
        return [f"stack: {', '.join(found)}"]
    said = ", ".join(f"{kind} under {' and '.join(kinds)}" for kind, kinds in found.items())
    return [f"stack: {said}, assumed; [stack] kind says which it is"]


def nothing_fits_lines(answer: Mapping[str, Any]) -> list[str]:
    """By how many GiB the closest layout is too large, and the two nearest changes."""
    nothing = answer["nothing_fits"]
    if nothing["closest"] is None:
        return ["no layout is legal; the rules that exclude them are counted above"]
    short, capacity = nothing["short_bytes"], nothing["capacity_bytes"]
    inside = nothing["inside_margin_bytes"]
    return [
        f"the closest, {layout_text(nothing['closest'])}, needs "
        f"{bytes_text(nothing['lowest_bytes'])} at its lowest, {bytes_text(short)} above the "
        f"{bytes_text(capacity)} of a device ({bytes_text(inside)} inside the margin)",
        *lighter_lines(answer["lighter"]),
    ]


def lighter_lines(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The nearest changes that need less memory, and whether they fit or by how much they miss."""
    return [f"{one['change']}: {_fit(one).band}: {_verdict(one)}" for one in changes]


def _fit(memory: Mapping[str, Any]) -> Fit:
    low, likely, high = (memory[name] for name in _PEAKS)
    return Fit(
        low_bytes=low,
        likely_bytes=likely,
        high_bytes=high,
        capacity_bytes=memory["capacity_bytes"] or 0,
        inside_bytes=memory["inside_margin_bytes"] or 0,
    )


def _verdict(change: Mapping[str, Any]) -> str:
    if change["fits"] == "yes":
        return "fits"
    if change["short_bytes"]:
        return f"does not fit, still {bytes_text(change['short_bytes'])} short at its lowest"
    if change["beyond_bytes"]:
        return f"unknown, {beyond_text(change['beyond_bytes'], change['reserve_bytes'])}"
    return "unknown, likely fits"


def explain_view(answer: Mapping[str, Any]) -> Group:
    """One layout: why not, or what it costs."""
    title = layout_text(answer["layout"])
    if not answer["legal"]:
        near = [layout_text(one) for one in answer["nearest_legal"]]
        return Group(
            section(f"{title} is not legal", answer["violations"]),
            section("Nearest legal layouts", near or ["none of this world and batch"]),
            section("Megatron", _megatron_lines(answer)),
        )
    parts = [section(title, _cost_lines(answer)), section("Megatron", _megatron_lines(answer))]
    if answer.get("lighter"):
        parts.insert(1, section("With less memory", lighter_lines(answer["lighter"])))
    if answer.get("mesh"):
        parts.append(section("Mesh", _mesh_lines(answer["mesh"])))
    return Group(*parts)


def _mesh_lines(mesh: Sequence[Mapping[str, int]]) -> list[str]:
    """One line a rank, the columns under their names."""
    names = ("rank", "tp", "cp", "dp", "pp")
    widths = [max(len(name), len(str(max(row[name] for row in mesh)))) for name in names]
    lines = [names, *(tuple(row[name] for name in names) for row in mesh)]
    return [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]


def layout_text(layout: Mapping[str, Any]) -> str:
    """A layout in a few words."""
    words = [f"{name}{layout[name]}" for name in ("tp", "cp", "pp", "dp")]
    words += [f"{name}{layout[name]}" for name in ("vpp", "ulysses", "ep") if layout[name] > 1]
    if layout["cp"] > 1:
        words.append(f"{layout['sharding']} {layout['strategy']}/{layout['stages']}")
    return " ".join([*words, f"mb{layout['micro_batch']}x{layout['accumulation']}"])


def _cells(number: int, row: Mapping[str, Any], unit_bytes: int) -> list[str]:
    layout, memory = row["layout"], row["memory"]
    return [
        str(number),
        layout_text(layout),
        f"{layout['recompute']}, {layout['loss']}, {layout['data_parallel']}",
        *(f"{memory[name] / unit_bytes:.2f}" for name in _PEAKS),
        memory["fits"],
        f"{row['step_s']:.3g}",
        f"{row['tokens_per_s_per_gpu']:.0f}",
        f"{row['mfu']:.1%}",
        f"{_exposed_s(row) / row['step_s']:.1%}",
        row["bound_by"],
    ]


def _exposed_s(row: Mapping[str, Any]) -> float:
    exposed = ("tp_exposed_s", "cp_exposed_s", "dp_exposed_s", "ep_exposed_s")
    return sum(_seconds(row).get(name, 0.0) for name in exposed)


def _seconds(row: Mapping[str, Any]) -> dict[str, float]:
    """The parts that add up to the step; with experts, their exchange too."""
    experts = {"ep_exposed_s": row["ep_exposed_s"]} if "ep_exposed_s" in row else {}
    return {**row["time"], **experts}


def _cost_lines(answer: Mapping[str, Any]) -> list[str]:
    time = _seconds(answer)
    lines = [
        *_memory_lines(answer),
        *_stack_lines([answer]),
        f"step {answer['step_s']:.4g} s, {answer['tokens_per_s_per_gpu']:.0f} tokens/s/GPU, "
        f"MFU {answer['mfu']:.1%} (causal half, no recompute), bound by {answer['bound_by']}",
        "seconds: " + ", ".join(f"{name.removesuffix('_s')} {time[name]:.3g}" for name in time),
        *_straggler_lines(answer["straggler"]),
    ]
    if "planned_only" in answer:
        lines.append(f"{answer['planned_only']}: planned only, no trial runs it")
    if "conventions" in answer:
        named = answer["conventions"]
        lines.append("MFU by convention: " + ", ".join(f"{k} {v:.1%}" for k, v in named.items()))
    return [*lines, f"model {answer['model_version']}"]


def _memory_lines(answer: Mapping[str, Any]) -> list[str]:
    """The band, what it is held to, the verdict and why, and what the likely peak is made of."""
    memory = answer["memory"]
    parts = ("states", "activation", "logits", "comm", "workspace")
    size, unit = common_unit(memory[name] for name in _PEAKS)
    held = ", ".join(f"{name} {in_unit(memory[f'{name}_bytes'], size)}" for name in parts)
    beside = in_unit(memory["reserve_bytes"], size)
    return [
        f"memory: {_fit(memory)}",
        f"fits: {memory['fits']}, {_why_fits(answer)}",
        f"likely on rank {memory['worst_rank']} of stage {memory['worst_stage']}, {unit}: {held}; "
        f"reserve {beside} beside it, outside the allocator",
    ]


def _why_fits(answer: Mapping[str, Any]) -> str:
    memory = answer["memory"]
    if memory["fits"] == "yes":
        return "high is inside the margin"
    if not memory["capacity_bytes"]:
        return "the capacity of a device is not known"
    if memory["fits"] == "no":
        return f"short by {bytes_text(answer['short_bytes'])} at the lowest"
    return "low is not above the device, and high is not inside the margin"


def _straggler_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each number of data-parallel groups, where documents make them uneven."""
    factors = {row["layout"]["dp"]: row["straggler"]["factor"] for row in rows}
    return [f"dp{dp}: {factor:.2f}" for dp, factor in sorted(factors.items()) if factor > 1]


def _straggler_lines(straggler: Mapping[str, float]) -> list[str]:
    factor, seconds = straggler["factor"], straggler["seconds"]
    if factor == 1:
        return []
    return [
        f"straggler: the slowest data-parallel group has {factor:.2f} times the mean attention "
        f"work, expected over many batches; {seconds:.3g} s of compute are waiting for it"
    ]


def _megatron_lines(answer: Mapping[str, Any]) -> list[str]:
    said = answer["exports"]["megatron"]
    below, above = said["nearest_seq_len"]
    rule = f"the sequence must divide by {said['divisor']}"
    rule += " and does" if below == above else f" (nearest: {below} and {above})"
    word = "takes it" if said["legal"] else "refuses it"
    return [f"{word}; {rule}", *said["reasons"]]
