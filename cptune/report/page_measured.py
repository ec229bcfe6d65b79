"""What the trials measured: memory by CP, throughput, and both beside their predictions."""

from __future__ import annotations

from collections.abc import Sequence

from cptune.domain.trial import Trial
from cptune.domain.units import bytes_text
from cptune.report.figures_run import memory_plot, prediction_plot, speed_plot
from cptune.report.page_basis import basis_of_all
from cptune.report.page_parts import Figure, Grid, Line, Section
from cptune.report.run import ReportedRun
from cptune.report.summary import (
    TRIAL_COLUMNS,
    Judged,
    peak_error,
    step_error,
    trial_cells,
)

_PARTS = ("states", "activations", "logits", "communication", "transient")
_MEMORY = ("#", "layout", "cp", "verdict", *_PARTS, "peak", "forward", "backward", "short by")
_WORDS = frozenset({"layout", "verdict", "model"})
_EXPECTED = (
    *("#", "layout", "predicted ms", "measured ms", "step error"),
    *("low", "likely", "high", "measured peak", "peak error", "model"),
)


def mark_of(one: Judged) -> str:
    """How the row of a trial stands out."""
    return "chosen" if one.word == "chosen" else ""


def memory_section(run: ReportedRun) -> Section:
    """What the peak of each layout was made of, against what a rank may hold."""
    ordered = sorted(run.judged, key=lambda one: (one.trial.candidate.layout.cp, one.trial.number))
    capacity, allowed = run.capacity_bytes, run.allowed_bytes
    lines = ["what a rank may hold is not known"]
    if capacity is not None and allowed is not None:
        margin = run.spec.cluster.memory_margin
        lines = [
            f"a rank may hold {bytes_text(capacity)}; {bytes_text(allowed)} of it inside the "
            f"margin of {margin:.0%}"
        ]
    figure = Figure(
        name="memory",
        title="Peak of the fullest rank by CP, and what it was made of",
        basis=basis_of_all(run),
        plot=memory_plot(ordered, capacity_bytes=capacity, allowed_bytes=allowed),
        grids=(_grid(_MEMORY, ordered, [_memory_cells(one) for one in ordered]),),
    )
    return Section(anchor="memory", title="Memory by CP", lines=tuple(lines), parts=(figure,))


def _memory_cells(one: Judged) -> tuple[str, ...]:
    trial, seen = one.trial, one.trial.measurement
    first = (str(trial.number), trial.source, str(trial.candidate.layout.cp), one.word)
    if seen is None:
        short = trial.shortage
        missing = "-" if short is None else bytes_text(short.short_bytes)
        return (*first, *("-",) * (len(_PARTS) + 3), missing)
    split = seen.memory
    parts = ("-",) * len(_PARTS)
    if split is not None:
        sizes = (split.states_bytes, split.activations_bytes, split.logits_bytes)
        parts = tuple(map(bytes_text, (*sizes, split.comm_bytes, split.transient_bytes)))
    peaks = (seen.peak_allocated_bytes, seen.forward_peak_bytes, seen.backward_peak_bytes)
    return (*first, *parts, *map(bytes_text, peaks), "-")


def speed_section(run: ReportedRun) -> Section:
    """Throughput against exposed communication, of everything that was measured."""
    objective = run.spec.objective
    found = [one for one in run.judged if one.trial.measurement is not None]
    lines = (
        f"exposed communication may be {objective.exposed_comm_share:.1%} of the step; a recipe "
        f"may lose {objective.throughput_slack:.1%} of the best throughput of those that pass: "
        "finalists, measured in turns, are compared among themselves, the others with the search",
    )
    figure = Figure(
        name="speed",
        title="Throughput against exposed communication",
        basis=basis_of_all(run),
        plot=speed_plot(found, objective=objective),
        grids=(_grid(TRIAL_COLUMNS, found, [trial_cells(one) for one in found]),),
    )
    return Section(
        anchor="speed", title="Throughput", lines=lines, parts=(figure,) if found else ()
    )


def prediction_section(run: ReportedRun) -> Section:
    """Each prediction, made before its trial, beside what came."""
    pairs = [one for one in run.judged if one.trial.predicted and one.trial.measurement]
    lines = ("each was made before its trial, by the model that its row names",)
    if not pairs:
        return Section(anchor="prediction", title="Prediction", lines=("nothing was predicted",))
    figure = Figure(
        name="prediction",
        title="Predicted against measured step and peak",
        basis=basis_of_all(run),
        plot=prediction_plot([one.trial for one in pairs]),
        grids=(_grid(_EXPECTED, pairs, [_expected_cells(one.trial) for one in pairs]),),
    )
    return Section(anchor="prediction", title="Prediction", lines=lines, parts=(figure,))


def _expected_cells(trial: Trial) -> tuple[str, ...]:
    expected, seen = trial.predicted, trial.measurement
    assert expected is not None, "chosen above"
    assert seen is not None, "chosen above"
    bands = (expected.peak_lo_bytes, expected.peak_bytes, expected.peak_hi_bytes)
    return (
        str(trial.number),
        trial.source,
        f"{expected.step_s * 1e3:,.0f}",
        f"{seen.step_s * 1e3:,.0f}",
        step_error(expected, seen),
        *map(bytes_text, (*bands, seen.peak_allocated_bytes)),
        peak_error(expected, seen),
        expected.model_version,
    )


def _grid(
    columns: Sequence[str], judged: Sequence[Judged], rows: Sequence[tuple[str, ...]]
) -> Grid:
    return Grid(
        columns=tuple(columns),
        lines=tuple(
            Line(cells=row, mark=mark_of(one)) for one, row in zip(judged, rows, strict=True)
        ),
        numbers=frozenset(columns) - _WORDS,
    )
