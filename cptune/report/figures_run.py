"""The figures of a run as plotly.js takes them: plain data, of the same numbers as the tables.

Nothing is drawn here and no library is needed. Labels hold words of ours alone, never text of a
spec or a path: plotly.js reads some markup in labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cptune.domain.outcome import Measurement
from cptune.domain.study import Objective
from cptune.domain.trial import Trial
from cptune.domain.units import common_unit
from cptune.report.page_parts import Plot
from cptune.report.summary import Judged

# Colour-blind safe (Okabe and Ito, https://jfly.uni-koeln.de/color/)
_BLUE, _ORANGE, _GREEN, _SKY, _PINK, _RED = (
    *("#0072b2", "#e69f00", "#009e73", "#56b4e9", "#cc79a7", "#d55e00"),
)
_PARTS = (
    ("states", "states_bytes", _BLUE),
    ("activations", "activations_bytes", _ORANGE),
    ("logits", "logits_bytes", _GREEN),
    ("communication", "comm_bytes", _RED),
    ("transient", "transient_bytes", _SKY),
)
_OTHER = "other"
_MS = 1e3
_ROOM = 1.15  # right of the last point
_PASSED = ("chosen", "larger cp", "same cp", "slower")  # every gate but that of speed


def memory_plot(
    judged: Sequence[Judged], *, capacity_bytes: int | None, allowed_bytes: int | None
) -> Plot:
    """A bar a candidate: the parts of its peak, or how much one that failed needed at least."""
    sizes = [_needed(one.trial, capacity_bytes) for one in judged]
    size, unit = common_unit([*(known for known in sizes if known), capacity_bytes or 0])
    names = [_label(one.trial) for one in judged]
    data: list[Mapping[str, Any]] = [
        _bar(name, names, [_part(one.trial, field) for one in judged], size=size, colour=colour)
        for name, field, colour in _PARTS
    ]
    whole = [
        seen.peak_allocated_bytes if (seen := one.trial.measurement) and not seen.memory else None
        for one in judged
    ]
    if any(whole):
        data.append(_bar("peak, not split", names, whole, size=size, colour=_SKY))
    failed = [
        None if one.trial.measurement else known for one, known in zip(judged, sizes, strict=True)
    ]
    if any(failed):
        bar = _bar("failed: needed at least", names, failed, size=size, colour="rgba(0,0,0,0)")
        data.append({**bar, "marker": {**bar["marker"], "line": {"color": _RED, "width": 2}}})
    lines = [
        _level(height / size, words)
        for height, words in ((capacity_bytes, "capacity"), (allowed_bytes, "inside the margin"))
        if height is not None
    ]
    return {
        "data": data,
        "layout": {
            "barmode": "stack",
            "xaxis": {"title": {"text": "candidate"}, "type": "category"},
            "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
            **_levels(lines),
        },
    }


def speed_plot(judged: Sequence[Judged], *, objective: Objective) -> Plot:
    """A point a candidate, its bar the fastest to the slowest tenth of its steps."""
    by_mark: dict[bool, list[Judged]] = {False: [], True: []}
    for one in judged:
        by_mark[one.word == "chosen"].append(one)
    data = [_points(points, chosen=chosen) for chosen, points in by_mark.items() if points]
    widest = _ROOM * max((share for points in data for share in points["x"]), default=0.0)
    passed = [_rate(one) for one in judged if one.word in _PASSED]
    slack, budget = objective.throughput_slack, objective.exposed_comm_share
    words = f"slack {slack:.1%} below the best"
    lines = [_level(max(passed) * (1 - slack), words)] if passed else []
    if budget * 100 <= widest:  # farther off it would crowd the points
        lines.append({**_level(budget * 100, f"budget {budget:.1%}"), "upright": True})
    return {
        "data": data,
        "layout": {
            "xaxis": {
                "title": {"text": f"exposed communication, % of the step (budget {budget:.1%})"},
                "range": [0, widest or 1],
            },
            "yaxis": {"title": {"text": "tokens/s"}, "rangemode": "tozero"},
            **_levels(lines),
        },
    }


def exposed_plot(rows: Iterable[Mapping[str, Any]]) -> Plot:
    """Hidden and exposed milliseconds of each axis, and of each layer of it.

    Args:
        rows: `communication` of the answer of `cptune trace`; unknown seconds draw no bar.
    """
    rows = [row for row in rows if row["communication_s"] is not None]
    names = [_row_name(row) for row in rows]
    exposed = [row["exposed_s"] for row in rows]
    hidden = [
        None if seen is None else max(0.0, row["communication_s"] - seen)
        for row, seen in zip(rows, exposed, strict=True)
    ]
    return {
        "data": [
            _bar("exposed", names, exposed, size=1 / _MS, colour=_RED),
            _bar("hidden under compute", names, hidden, size=1 / _MS, colour=_SKY),
        ],
        "layout": {
            "barmode": "stack",
            "xaxis": {"type": "category"},
            "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero"},
        },
    }


def prediction_plot(trials: Sequence[Trial]) -> Plot:
    """Measured over predicted, step and peak: 1 is what was expected."""
    pairs = [(trial, trial.predicted, trial.measurement) for trial in trials]
    known = [(trial, said, seen) for trial, said, seen in pairs if said and seen]
    names = [_label(trial) for trial, _, _ in known]
    steps = [seen.step_s / said.step_s for _, said, seen in known]
    peaks = [seen.peak_allocated_bytes / said.peak_bytes for _, said, seen in known]
    return {
        "data": [
            _marks("step", names, steps, colour=_BLUE, symbol="circle"),
            _marks("peak", names, peaks, colour=_ORANGE, symbol="square"),
        ],
        "layout": {
            "xaxis": {"title": {"text": "candidate"}, "type": "category"},
            "yaxis": {"title": {"text": "measured over predicted"}, "rangemode": "tozero"},
            **_levels([_level(1.0, "as predicted")]),
        },
    }


def _label(trial: Trial) -> str:
    return f"#{trial.number} cp{trial.candidate.layout.cp}"


def _row_name(row: Mapping[str, Any]) -> str:
    if row["whole_axis"]:
        return f"{row['axis']}, all"
    return f"{row['axis']}, {_OTHER if row['layer'] is None else row['layer']}"


def _needed(trial: Trial, capacity_bytes: int | None) -> int | None:
    """The peak of a trial, or the least that one needed which ran out of memory."""
    if trial.measurement is not None:
        return trial.measurement.peak_allocated_bytes
    short = trial.shortage
    return None if short is None or capacity_bytes is None else capacity_bytes + short.short_bytes


def _part(trial: Trial, name: str) -> int | None:
    split = trial.measurement.memory if trial.measurement else None
    return None if split is None else getattr(split, name)


def _rate(one: Judged) -> float:
    assert one.trial.measurement is not None, "measured trials alone are drawn"
    return one.trial.measurement.tokens_per_s


def _bar(
    name: str,
    names: Sequence[str],
    values: Sequence[float | None],
    *,
    size: float,
    colour: str,
) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "x": list(names),
        "y": [None if value is None else value / size for value in values],
        "marker": {"color": colour},
    }


def _points(judged: Sequence[Judged], *, chosen: bool) -> dict[str, Any]:
    seen = [one.trial.measurement for one in judged]
    known = [one for one in seen if one is not None]
    return {
        "type": "scatter",
        "mode": "markers+text" if chosen else "markers",
        "name": "chosen" if chosen else "rejected",
        "x": [one.exposed_share * 100 for one in known],
        "y": [one.tokens_per_s for one in known],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_rate_change(one, one.step_p10_s) for one in known],
            "arrayminus": [-_rate_change(one, one.step_p90_s) for one in known],
        },
        "text": [_label(one.trial) for one in judged],
        "hovertext": [f"{_label(one.trial)}: {one.trial.candidate.describe()}" for one in judged],
        "textposition": "middle right",
        "marker": {
            "size": 16 if chosen else 9,
            "symbol": "star" if chosen else "circle",
            "color": _GREEN if chosen else _BLUE,
        },
    }


def _rate_change(seen: Measurement, step_s: float) -> float:
    """How much the rate of another step differs from that of the median."""
    return seen.tokens_per_s * (seen.step_s / step_s - 1)


def _marks(
    name: str, names: Sequence[str], values: Sequence[float], *, colour: str, symbol: str
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(names),
        "y": list(values),
        "marker": {"color": colour, "symbol": symbol, "size": 10},
    }


def _level(height: float, words: str) -> dict[str, Any]:
    return {"at": height, "words": words}


def _levels(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Dashed lines over the whole figure, each with its words beside it."""
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for line in lines:
        along, across = ("y", "x") if line.get("upright") else ("x", "y")
        shapes.append(
            {
                "type": "line",
                f"{along}ref": "paper",
                f"{along}0": 0,
                f"{along}1": 1,
                f"{across}0": line["at"],
                f"{across}1": line["at"],
                "line": {"dash": "dash", "color": _PINK},
            }
        )
        notes.append(
            {
                "text": line["words"],
                "showarrow": False,
                f"{along}ref": "paper",
                along: 1,
                across: line["at"],
                "xanchor": "right",
                "yanchor": "bottom",
            }
        )
    return {"shapes": shapes, "annotations": notes}
