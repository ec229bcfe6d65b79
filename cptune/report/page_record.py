"""The record on the page: every attempt, what everything ran under, and how to run it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cptune.domain.trial import Trial
from cptune.report.page_parts import Folded, Grid, Line, Section, grid_of, places_by
from cptune.report.run import ReportedRun
from cptune.report.summary import NOISY, Judged, again_line, trial_cells, where_lines

_TRIALS = (
    *("#", "attempt", "round", "key", "outcome", "step ms", "peak", "exposed"),
    *("proof", "started", "reason"),
)
_ORDERS = ("#", "outcome", "step ms", "peak", "exposed", "started")
_REQUALIFY = (
    "A recipe holds for what it was found under. Prove it again and measure it again when one of "
    "these changes: the model or the workload (convergence fingerprint), the topology, a version "
    "or a variable below (execution fingerprint), or the fixture of the proof."
)


def trials_section(run: ReportedRun) -> Section:
    """Every attempt of every candidate; ordered at will, without scripts."""
    trials = run.trials
    keys = [_keys(trial) for trial in trials]
    orders = [places_by(column) for column in zip(*keys, strict=True)]
    chosen = run.chosen
    lines = tuple(
        Line(
            cells=_cells(trial),
            mark="chosen" if chosen is not None and _speaks(trial, chosen.trial) else "",
            places=tuple(order[row] for order in orders),
        )
        for row, trial in enumerate(trials)
    )
    words = {"key", "outcome", "proof", "started", "reason"}
    grid = Grid(columns=_TRIALS, lines=lines, numbers=frozenset(_TRIALS) - words, orders=_ORDERS)
    said = (
        f"{len(trials)} attempts ({NOISY} noisy timing); round 0 is the search, the others are "
        "finals: a candidate of the finals is judged by all complete rounds together"
    )
    return Section(anchor="trials", title="Every trial", lines=(said,), parts=(grid,))


def _speaks(trial: Trial, chosen: Trial) -> bool:
    return (trial.number, trial.attempt) == (chosen.number, chosen.attempt)


def _cells(trial: Trial) -> tuple[str, ...]:
    number, _, outcome, step, _, peak, exposed = trial_cells(
        Judged(trial=trial, word=trial.kind.value, reason=trial.reason)
    )
    return (
        number,
        str(trial.attempt),
        str(trial.round),
        trial.candidate.key,
        outcome,
        step,
        peak,
        exposed,
        trial.proof_id or "-",
        trial.started_at,
        trial.reason,
    )


def _keys(trial: Trial) -> tuple[Any, ...]:
    """What orders a trial, as `_ORDERS`; None: it has no such figure."""
    seen = trial.measurement
    return (
        (trial.number, trial.attempt),
        trial.kind.value,
        None if seen is None else seen.step_s,
        None if seen is None else seen.peak_allocated_bytes,
        None if seen is None else seen.exposed_share,
        trial.started_at,
    )


def origin_section(run: ReportedRun) -> Section:
    """Fingerprints, versions and environment: what forces a requalification."""
    recipe = run.recipe
    fingerprints = {} if recipe is None else dict(recipe.fingerprints)
    if recipe is not None and recipe.proof is not None:
        fingerprints["equivalence fixture"] = recipe.proof.fixture
    if run.topology is not None:
        fingerprints.setdefault("topology", run.topology.content_hash)
    parts: list[Grid | Folded] = [
        grid_of(("fingerprint", "hash"), list(fingerprints.items()), words=("fingerprint", "hash")),
    ]
    versions: Mapping[str, str] = {} if recipe is None else recipe.versions
    if versions:
        rows = list(versions.items())
        parts.append(grid_of(("what", "version"), rows, words=("what", "version")))
    environment = _environment(run)
    if environment:
        columns = ("variable", "where", "value")
        parts.append(grid_of(columns, environment, words=columns))
    absent = () if versions else ("versions and environment are told when the sweep ends",)
    return Section(
        anchor="origin",
        title="What forces a requalification",
        lines=(_REQUALIFY, *absent),
        parts=tuple(parts),
    )


def _environment(run: ReportedRun) -> list[tuple[str, str, str]]:
    if run.recipe is None:
        return []
    environment = run.recipe.environment
    rows = [(name, "all ranks", value) for name, value in environment.shared.items()]
    for name, values in environment.differing.items():
        rows += [(name, place, value or "not set") for place, value in values.items()]
    return rows


def again_section(run: ReportedRun) -> Section:
    """The commands that run it again, and what the run said and was asked."""
    where, recipe = run.directory, run.recipe
    told = () if recipe is None else recipe.commands
    lines = [*(told or (again_line(where, program=str),))]
    lines += where_lines(where, has_recipe=bool(run.recipe_text), program=str, storage=run.storage)
    if run.trace is not None:
        lines.append(f"trace     cptune trace {where} {run.trace['trial']}")
    if recipe is not None:
        key = recipe.candidate.key
        lines.append(f"prove     cptune verify {where / 'spec.toml'} --candidate {key}")
    lines.append(f"page      cptune report {where}")
    texts = (
        ("What the run said", "\n".join(run.notes)),
        ("spec.toml", run.spec_text),
        ("recipe.json", run.recipe_text),
    )
    parts: Sequence[Folded] = [Folded(title=title, text=text) for title, text in texts if text]
    return Section(anchor="again", title="Run it again", lines=tuple(lines), parts=tuple(parts))
