"""What lies in a run directory, read as far as it can be; what cannot is a sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cptune import spec as specs
from cptune.domain.layout import Axis
from cptune.domain.study import SweepSpec
from cptune.domain.trial import Trial
from cptune.errors import LedgerError
from cptune.logs import SWEEP_FINISHED, SWEEP_STARTED, read_events
from cptune.recipe.requalify import check_schema
from cptune.report.run import RunState
from cptune.store.ledger import ParquetLedger
from cptune.store.recipes import recipe_text_in_table
from cptune.store.run_directory import holder_of
from topology.errors import TopologyError
from topology.nouns import Topology

_NEEDED = ("step_s", "tokens_per_s", "peak_allocated_bytes")
_NEEDED += tuple(f"{axis.value}_exposed_s" for axis in Axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What lies in a run directory; `recipe` and `topology` None: lost. `doubts` grows."""

    directory: Path
    spec: SweepSpec
    trials: Sequence[Trial]
    quarantined: Sequence[str]
    events: Sequence[dict[str, Any]]
    topology: Topology | None = None
    recipe: dict[str, Any] | None = None
    recipe_text: str = ""
    doubts: list[str] = field(default_factory=list)


def read_disk(directory: Path) -> Disk:
    """Read a run directory.

    Raises:
        SpecError: when it has no spec that can be read.
        LedgerError: when the id of the run cannot be read.
    """
    ledger = ParquetLedger(directory, writable=False)
    kept = ledger.read()
    trials = [trial for trial in kept if not _lacking(trial)]
    aside = sorted(path.name for path in (directory / "quarantine").glob("*"))
    doubts = [
        f"trial {trial.number} attempt {trial.attempt} has no {', '.join(_lacking(trial))}: it is "
        "of an older version, and left out"
        for trial in kept
        if _lacking(trial)
    ]
    text = _text(directory / "recipe.json", doubts, needed=False)
    recipe = _recipe_content(text, doubts) if text is not None else None
    if recipe is not None and (why := _why_altered(directory, text)):
        doubts.append(why)
    return Disk(
        directory=directory,
        spec=specs.load(directory / "spec.toml"),
        trials=trials,
        quarantined=[*ledger.quarantined, *(f"{name}: set aside by the sweep" for name in aside)],
        events=read_events(directory / "log.jsonl"),
        topology=_topology(_text(directory / "topology.json", doubts, needed=bool(kept)), doubts),
        recipe=recipe,
        recipe_text=text or "",
        doubts=doubts,
    )


def _lacking(trial: Trial) -> list[str]:
    """The figures that a measured trial must have, and one of the first versions did not keep."""
    seen = trial.measurement
    return [] if seen is None else [name for name in _NEEDED if getattr(seen, name) is None]


def _text(path: Path, doubts: list[str], *, needed: bool) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        if needed or not isinstance(exc, FileNotFoundError):
            why = "is lost" if isinstance(exc, FileNotFoundError) else f"cannot be read: {exc}"
            doubts.append(f"{path.name} {why}")
        return None


def _why_altered(directory: Path, text: str | None) -> str | None:
    """Why recipe.json is not as it was written: recipes.parquet has the same text."""
    try:
        told = recipe_text_in_table(directory)
    except LedgerError as exc:
        return f"recipes.parquet {exc}"
    if told is None or told == text:
        return None
    return "recipe.json is not as it was written: recipes.parquet has another text of it"


def _topology(text: str | None, doubts: list[str]) -> Topology | None:
    try:
        return None if text is None else Topology.from_json(json.loads(text))
    except (TopologyError, ValueError, RecursionError) as exc:
        doubts.append(f"topology.json is no topology: {exc}")
        return None


def _recipe_content(text: str, doubts: list[str]) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
        check_schema(content if isinstance(content, dict) else {})
    except (ValueError, RecursionError) as exc:
        doubts.append(f"recipe.json is no recipe: {exc}")
        return None
    return content


def state_of(disk: Disk) -> tuple[RunState, str]:
    """How far the run has come, and the same in a sentence; that is empty where it is finished."""
    holder = holder_of(disk.directory)
    if holder is not None:
        return RunState.RUNNING, f"the run is still going, by {holder}: what stands here may change"
    told = [
        event["event"] for event in disk.events if event["event"] in (SWEEP_STARTED, SWEEP_FINISHED)
    ]
    if told[-1:] == [SWEEP_FINISHED] or (SWEEP_FINISHED not in told and disk.recipe is not None):
        return RunState.FINISHED, ""
    again = f"`cptune sweep {disk.directory / 'spec.toml'} --runs {disk.directory.parent} --resume`"
    return RunState.ENDED, f"no end of the run is logged: it was ended early; {again} goes on"


def notes_of(events: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What the run said of itself, in order, each once."""
    told = [str(event.get("message", "")) for event in events if event["event"] == "note"]
    return tuple(dict.fromkeys(told))
