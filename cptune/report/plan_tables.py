"""Plans and explanations for people: lines and tables made of what the JSON says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cptune.domain.units import bytes_text, common_unit, in_unit
from cptune.report.tables import section

_PEAK = "peak"
_COLUMNS = (
    ("#", "right"),
    ("layout", "left"),
    ("recompute, loss, dp", "left"),
    (_PEAK, "right"),
    ("fits", "left"),
    ("step s", "right"),
    ("tokens/s/GPU", "right"),
    ("MFU", "right"),
    ("exposed", "right"),
    ("bound by", "left"),
)


def plan_view(answer: Mapping[str, Any]) -> Group:
    """The ranking, what was excluded, and what is worth measuring."""
    rows, counts = answer["rows"], answer["counts"]
    legal = counts["legal"]
    title = f"{legal} layouts may be tried; the best {len(rows)} of them"
    table = Table(title=title, title_justify="left", expand=False, box=SIMPLE_HEAD)
    size, unit = common_unit(row["memory"]["peak_bytes"] for row in rows)
    for name, justify in _COLUMNS:
        right, title = justify == "right", unit if name == _PEAK else name
        table.add_column(title, justify="right" if right else "left", no_wrap=name != "layout")
    for number, row in enumerate(rows, start=1):
        table.add_row(*(Text(cell) for cell in _cells(number, row, size)))
    excluded = [f"{count} by {rule}" for rule, count in counts["excluded"].items()]
    parts = [table] if rows else []
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


def nothing_fits_lines(answer: Mapping[str, Any]) -> list[str]:
    """By how many GiB the closest layout is too large, and the two nearest changes."""
    nothing = answer["nothing_fits"]
    if nothing["closest"] is None:
        return ["no layout is legal; the rules that exclude them are counted above"]
    short, capacity = nothing["short_bytes"], nothing["capacity_bytes"]
    return [
        f"the closest, {layout_text(nothing['closest'])}, is {bytes_text(short)} above the "
        f"{bytes_text(capacity)} of a device even at its lowest",
        *lighter_lines(answer["lighter"]),
    ]


def lighter_lines(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The nearest changes that need less memory, and whether they fit or by how much they miss."""
    return [
        f"{one['change']}: peak {bytes_text(one['peak_bytes'])}, {_fit(one)}" for one in changes
    ]


def _fit(change: Mapping[str, Any]) -> str:
    if change["fits"] == "yes":
        return "fits"
    if change["short_bytes"]:
        return f"still {bytes_text(change['short_bytes'])} short at its lowest"
    if change["beyond_bytes"]:
        return f"likely {bytes_text(change['beyond_bytes'])} beyond the margin"
    return "likely fits"


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
    return Group(*parts)


def layout_text(layout: Mapping[str, Any]) -> str:
    """A layout in a few words."""
    words = [f"{name}{layout[name]}" for name in ("tp", "cp", "pp", "dp")]
    words += [f"{name}{layout[name]}" for name in ("vpp", "ulysses") if layout[name] > 1]
    if layout["cp"] > 1:
        words.append(f"{layout['sharding']} {layout['strategy']}/{layout['stages']}")
    return " ".join([*words, f"mb{layout['micro_batch']}x{layout['accumulation']}"])


def _cells(number: int, row: Mapping[str, Any], unit_bytes: int) -> list[str]:
    layout, memory = row["layout"], row["memory"]
    return [
        str(number),
        layout_text(layout),
        f"{layout['recompute']}, {layout['loss']}, {layout['data_parallel']}",
        in_unit(memory["peak_bytes"], unit_bytes),
        memory["fits"],
        f"{row['step_s']:.3g}",
        f"{row['tokens_per_s_per_gpu']:.0f}",
        f"{row['mfu']:.1%}",
        f"{_exposed_s(row) / row['step_s']:.1%}",
        row["bound_by"],
    ]


def _exposed_s(row: Mapping[str, Any]) -> float:
    return sum(row["time"][name] for name in ("tp_exposed_s", "cp_exposed_s", "dp_exposed_s"))


def _cost_lines(answer: Mapping[str, Any]) -> list[str]:
    memory, time = answer["memory"], answer["time"]
    parts = ("states", "activation", "logits", "comm", "workspace", "reserve")
    peaks = [memory[name] for name in ("peak_lo_bytes", "peak_bytes", "peak_hi_bytes")]
    size, unit = common_unit(peaks)
    held = ", ".join(f"{name} {in_unit(memory[f'{name}_bytes'], size)}" for name in parts)
    low, likely, high = (in_unit(one, size) for one in peaks)
    lines = [
        f"memory {unit}: {low} to {high}, likely {likely} on rank "
        f"{memory['worst_rank']} of stage {memory['worst_stage']}: {held}",
        f"fits: {memory['fits']}"
        + (
            f", short by {bytes_text(answer['short_bytes'])} at the lowest"
            if answer.get("short_bytes")
            else ""
        ),
        f"step {answer['step_s']:.4g} s, {answer['tokens_per_s_per_gpu']:.0f} tokens/s/GPU, "
        f"MFU {answer['mfu']:.1%} (causal half, no recompute), bound by {answer['bound_by']}",
        "seconds: " + ", ".join(f"{name.removesuffix('_s')} {time[name]:.3g}" for name in time),
        *_straggler_lines(answer["straggler"]),
    ]
    if "conventions" in answer:
        named = answer["conventions"]
        lines.append("MFU by convention: " + ", ".join(f"{k} {v:.1%}" for k, v in named.items()))
    return [*lines, f"model {answer['model_version']}"]


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
