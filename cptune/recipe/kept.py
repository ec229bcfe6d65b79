"""A kept recipe read back: what recipe.json says, joined with the trial that it was made from.

The trials are the truth; what recipe.json says of them otherwise is named, and never taken over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cptune.domain.environment import RankEnvironment
from cptune.domain.outcome import Measurement
from cptune.domain.proof import proof_from_json
from cptune.domain.recipe import CertificateEntry, Control, Evidence, Recipe
from cptune.domain.study import SweepSpec
from cptune.domain.trial import Trial

_MOST = 5  # contradictions that are named


def read_back(
    content: Mapping[str, Any],
    *,
    spec: SweepSpec,
    trial: Trial,
    measurement: Measurement,
    capacity_bytes: int,
) -> Recipe:
    """The recipe of a run, with the figures of its trials.

    Args:
        content: Of recipe.json.
        spec: The resolved spec of the run.
        trial: The attempt, or the joined rounds, that speak for its candidate.
        measurement: What it came to.
        capacity_bytes: What a rank may hold.

    Raises:
        KeyError: when something is missing.
        TypeError: when something is of another kind.
        ValueError: when something is no legal value, or the proof says other than its checks.
    """
    proof = content.get("equivalence")
    return Recipe(
        spec=spec,
        candidate=trial.candidate,
        placement=trial.placement,
        measurement=measurement,
        predicted=trial.predicted,
        capacity_bytes=capacity_bytes,
        certificate=tuple(map(_entry, content["certificate"])),
        controls=tuple(Control(**one) for one in content["controls"]),
        versions=_table(content["versions"]),
        fingerprints=_table(content["fingerprints"]),
        commands=tuple(content["commands"]),
        expectation=_table(content.get("expectation") or {}),
        proof=None if proof is None else proof_from_json(proof),
        environment=_environment(_table(content.get("environment") or {})),
        caveats=tuple(content.get("caveats") or ()),
    )


def contradictions(content: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Where recipe.json says other than the trials; keys that one of them lacks say nothing."""
    ours = json.loads(json.dumps(recipe.to_json()))
    found = list(_differences("", content, ours))
    more = [f"and {len(found) - _MOST} more"] if len(found) > _MOST else []
    return found[:_MOST] + more


def _table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{_short(value)} is no table")
    return value


def _environment(content: Mapping[str, Any]) -> RankEnvironment:
    differing = _table(content.get("differing", {}))
    return RankEnvironment(
        shared=_table(content.get("shared", {})),
        differing={name: _table(values) for name, values in differing.items()},
    )


def _entry(row: Mapping[str, Any]) -> CertificateEntry:
    told = row["evidence"]
    evidence = None if told is None else Evidence(told)
    return CertificateEntry(cp=row["cp"], reason=row["reason"], evidence=evidence)


def _differences(path: str, told: object, ours: object) -> Iterator[str]:
    if isinstance(told, dict) and isinstance(ours, dict):
        for name in sorted(told.keys() & ours.keys()):
            yield from _differences(f"{path}.{name}".removeprefix("."), told[name], ours[name])
    elif isinstance(told, list) and isinstance(ours, list) and len(told) == len(ours):
        for place, (one, other) in enumerate(zip(told, ours, strict=True)):
            yield from _differences(f"{path}[{place}]", one, other)
    elif told != ours:
        yield f"{path} is {_short(told)} in recipe.json, {_short(ours)} by its trials"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
