"""A kept recipe read back: what recipe.json says, joined with the trial that it was made from.

The trials are the truth; what recipe.json says of them otherwise is named, and never taken over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cptune.domain.outcome import Measurement
from cptune.domain.proof import proof_from_json
from cptune.domain.recipe import CertificateEntry, Control, Recipe
from cptune.domain.seal import DIGESTS
from cptune.domain.study import SweepSpec
from cptune.domain.trial import Trial
from cptune.recipe.nouns import read_environment, read_list, read_table

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
        TopologyError: likewise, with the place.
    """
    proof = content.get("equivalence")
    return Recipe(
        spec=spec,
        candidate=trial.candidate,
        placement=trial.placement,
        measurement=measurement,
        predicted=trial.predicted,
        capacity_bytes=capacity_bytes,
        certificate=read_list(CertificateEntry, content["certificate"], path="certificate"),
        controls=read_list(Control, content["controls"], path="controls"),
        versions=read_table(content["versions"], path="versions"),
        fingerprints=read_table(content["fingerprints"], path="fingerprints"),
        commands=tuple(content["commands"]),
        expectation=read_table(content.get("expectation") or {}, path="expectation"),
        proof=None if proof is None else proof_from_json(proof),
        environment=read_environment(content.get("environment")),
        caveats=tuple(content.get("caveats") or ()),
        launcher=trial.launcher,
        run_id=read_table(content.get("run") or {}, path="run").get("id"),
    )


def contradictions(content: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Where recipe.json says other than the trials; keys that one of them lacks say nothing."""
    ours = json.loads(json.dumps(recipe.to_json()))
    del ours[DIGESTS]  # they follow from the rest
    found = list(_differences("", content, ours))
    more = [f"and {len(found) - _MOST} more"] if len(found) > _MOST else []
    return found[:_MOST] + more


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
