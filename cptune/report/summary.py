"""The rows and sentences of a finished sweep, as plain text; who prints them is open."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cptune.domain.outcome import Measurement
from cptune.domain.recipe import Recipe
from cptune.domain.study import Storage
from cptune.domain.timeline import ABLATION, WORLD
from cptune.domain.trial import Predicted, Trial
from cptune.domain.units import bytes_text
from cptune.report.proof_words import proof_words

#: Before the step time of a trial whose steps vary more than was wanted.
NOISY = "~"
TRIAL_COLUMNS = ("#", "layout", "verdict", "step ms", "tokens/s", "peak", "exposed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A trial and what was ruled on it."""

    trial: Trial
    word: str
    reason: str
    is_nearest: bool = False  # of those that failed, where none passed


def trial_cells(judged: Judged) -> tuple[str, ...]:
    """One row of the table of trials, in the order of `TRIAL_COLUMNS`."""
    seen = judged.trial.measurement
    figures = ("-", "-", "-", "-") if seen is None else _figures(seen)
    return (
        str(judged.trial.number),
        judged.trial.source,
        judged.word,
        *figures,
    )


def control_lines(judged: Sequence[Judged]) -> list[str]:
    """Why each of the others is not the recipe, one line a trial."""
    return [f"#{one.trial.number} {one.reason}" for one in judged if one.word != "chosen"]


def _figures(seen: Measurement) -> tuple[str, str, str, str]:
    depth = seen.depth
    band = f" ({depth.step_lo_s * 1e3:,.0f}-{depth.step_hi_s * 1e3:,.0f})" if depth else ""
    return (
        f"{NOISY if seen.noisy else ''}{seen.step_s * 1e3:,.0f}{band}",
        f"{seen.tokens_per_s:,.0f}",
        bytes_text(seen.peak_allocated_bytes),
        f"{seen.exposed_share:.1%}",
    )


def recipe_sections(recipe: Recipe) -> list[tuple[str, list[str]]]:
    """What is said of a recipe, when it is found and whenever it is shown again."""
    name = recipe.launcher
    how = f" ({name.success.value}, nothing ran)" if name.is_simulated else ""
    return [(f"Recipe{how}", recipe_lines(recipe)), ("Certificate", certificate_lines(recipe))]


def recipe_lines(recipe: Recipe) -> list[str]:
    """What to ship, and what it cost."""
    candidate, seen, layout = recipe.candidate, recipe.measurement, recipe.candidate.layout
    batch = recipe.spec.workload.global_batch_seqs
    exchange = f", {candidate.sharding} {candidate.strategy} in {candidate.stages} "
    exchange += "stage" if candidate.stages == 1 else "stages"
    allowed = int(recipe.capacity_bytes * (1 - recipe.spec.cluster.memory_margin))
    return [
        f"TP={layout.tp} CP={layout.cp} PP={layout.pp} DP={layout.dp} on {layout.world_size} ranks"
        + (exchange if layout.cp > 1 else ""),
        f"micro-batch {candidate.micro_batch} x {batch // (layout.dp * candidate.micro_batch)} "
        f"passes, global batch {batch} x {recipe.spec.workload.seq_len} tokens",
        f"recompute {candidate.recompute}, {candidate.loss} loss, data parallel "
        f"{candidate.data_parallel}",
        f"{seen.tokens_per_s:,.0f} tokens/s, step {seen.step_s * 1e3:,.0f} ms "
        f"(p10 {seen.step_p10_s * 1e3:,.0f}, p90 {seen.step_p90_s * 1e3:,.0f})",
        certainty_line(recipe),
        f"peak {bytes_text(seen.peak_allocated_bytes)} of {bytes_text(recipe.capacity_bytes)} "
        f"({bytes_text(allowed)} inside the margin); forward "
        f"{bytes_text(seen.forward_peak_bytes)}, backward {bytes_text(seen.backward_peak_bytes)}",
        *_made_of(seen),
        f"exposed communication {seen.exposed_share:.1%} of {_exposed_in(seen)}: "
        f"tp {seen.tp_exposed_s * 1e3:,.1f}, cp {seen.cp_exposed_s * 1e3:,.1f}, "
        f"dp {seen.dp_exposed_s * 1e3:,.1f}, pp {seen.pp_exposed_s * 1e3:,.1f} ms "
        f"({seen.exposed_method})",
        *_by_ablation(recipe),
        *([] if seen.kernel is None else [f"attention kernel {seen.kernel}"]),
        *_proven(recipe),
        *_expected(recipe),
        *(f"caveat: {one}" for one in recipe.caveats),
    ]


def _exposed_in(seen: Measurement) -> str:
    """The step that a share is of: one is traced, and tracing takes time."""
    traced_s = seen.traced_step_s
    return "the step" if traced_s is None else f"the traced step of {traced_s * 1e3:,.0f} ms"


def _by_ablation(recipe: Recipe) -> list[str]:
    """The same by another method, where it was tried."""
    reported = recipe.reported
    if not reported.cross_checked:
        return []
    found = [
        f"{row.axis} unknown" if row.exposed_s is None else f"{row.axis} {row.exposed_s * 1e3:,.1f}"
        for row in reported.exposures
        if row.method == ABLATION and row.axis != WORLD
    ]
    return [f"by {ABLATION}: {', '.join(found)} ms"] if found else []


def certainty_line(recipe: Recipe) -> str:
    """How well the step time is known."""
    if recipe.launcher.is_simulated:
        return "no step was timed"
    seen, steps = recipe.measurement, len(recipe.reported.steps_s)
    known = (
        "too few for an interval"
        if seen.step_ci_share is None
        else (f"median within {seen.step_ci_share:.1%} with 95%")
    )
    count = f"{steps} timed steps" if steps else "timed steps, how many was not kept"
    return f"{count}: {known}" + (", noisy" if seen.noisy else "")


def _made_of(seen: Measurement) -> list[str]:
    split = seen.memory
    if split is None:
        return []
    return [
        f"at the peak: states {bytes_text(split.states_bytes)}, activations "
        f"{bytes_text(split.activations_bytes)}, logits {bytes_text(split.logits_bytes)}, "
        f"communication {bytes_text(split.comm_bytes)}, transient "
        f"{bytes_text(split.transient_bytes)}; optimizer's own peak "
        f"{bytes_text(split.optimizer_peak_bytes)}"
    ]


def _proven(recipe: Recipe) -> list[str]:
    """That it computes what the unsharded model computes."""
    proof = recipe.proof
    if proof is None:
        return []
    word = "proven" if proof.passed else "NOT PROVEN"
    return [f"{word} against the unsharded model: {proof_words(proof)}"]


def _expected(recipe: Recipe) -> list[str]:
    expected, seen = recipe.predicted, recipe.measurement
    if expected is None or recipe.launcher.is_simulated:
        return []
    return [
        f"predicted {expected.step_s * 1e3:,.0f} ms ({step_error(expected, seen)} "
        f"measured) and {bytes_text(expected.peak_bytes)} "
        f"({peak_error(expected, seen)}), model {expected.model_version}"
    ]


def step_error(expected: Predicted, seen: Measurement) -> str:
    """The measured step over the predicted one, less one."""
    return f"{seen.step_s / expected.step_s - 1:+.0%}"


def peak_error(expected: Predicted, seen: Measurement) -> str:
    """The measured peak over the likely predicted one, less one."""
    return f"{seen.peak_allocated_bytes / expected.peak_bytes - 1:+.0%}"


def certificate_lines(recipe: Recipe) -> list[str]:
    """Why no smaller CP is the recipe."""
    if recipe.candidate.layout.cp == 1:
        return ["CP=1 is the smallest there is"]
    return [
        f"CP={entry.cp} {entry.evidence or 'OPEN'}: {entry.reason}" for entry in recipe.certificate
    ]


def nothing_fits_lines(judged: list[Judged]) -> list[str]:
    """What to say when no candidate passed: the tally of verdicts and the nearest miss."""
    if not judged:
        return ["no candidate was tried"]
    tally: dict[str, int] = {}
    for one in judged:
        tally[one.word] = tally.get(one.word, 0) + 1
    words = ", ".join(f"{count} {word}" for word, count in sorted(tally.items()))
    lines = [f"no candidate of {len(judged)} passed: {words}"]
    near = [one for one in judged if one.is_nearest]
    return lines + [f"nearest, {one.trial.candidate.describe()}: {one.reason}" for one in near]


def without_password(study: str) -> str:
    """The URL of a study as it may be shown."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", study)


def _study_argument(directory: Path, storage: Storage) -> str:
    """What optuna-dashboard takes for a study: read-only where it can be, without a password."""
    if storage.file_name is None:
        return without_password(storage.study)
    path = (directory / storage.file_name).resolve()
    return str(path) if storage.is_journal else f"sqlite:///file:{path}?mode=ro&uri=true"


def where_lines(
    directory: Path,
    *,
    has_recipe: bool,
    program: Callable[[str], str],
    storage: Storage | None = None,
    has_page: bool = False,
) -> list[str]:
    """Where what a run keeps is, and what reads it.

    Args:
        directory: The run directory.
        has_recipe: Whether there is one in it.
        program: How a program is called here.
        storage: Where the study is; SQLite in the run directory if omitted.
        has_page: Whether its page was written.
    """
    study = _study_argument(directory, storage or Storage())
    lines = [f"recipe    {directory / 'recipe.json'}"] if has_recipe else []
    lines += [f"page      {directory / 'report.html'}"] if has_page else []
    return [
        *lines,
        f"trials    {directory / 'trials'}/*.parquet (any Parquet reader)",
        f"study     {program('optuna-dashboard')} '{study}'",
    ]


def again_line(directory: Path, *, program: Callable[[str], str], flags: Sequence[str] = ()) -> str:
    """The command that runs it again, with the flags of its sweep beside the spec."""
    spec, runs = directory / "spec.toml", directory.parent
    words = f"{program('cptune')} sweep {spec} --runs {runs} --name {directory.name}-again"
    return f"again     {words}{'' if not flags else ' '}{shlex.join(flags)}"
