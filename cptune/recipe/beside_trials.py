"""A kept recipe read back: what recipe.json says, joined with the trial that it was made from.

The trials are the truth; what recipe.json says of them otherwise is named, and never taken over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cptune.domain.outcome import Measurement
from cptune.domain.recipe import Recipe
from cptune.domain.seal import DIGESTS
from cptune.domain.study import SweepSpec
from cptune.domain.trial import Trial
from cptune.recipe.parts import differing, told_parts

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
        KeyError, TypeError, ValueError, TopologyError: as `told_parts`.
    """
    return Recipe(
        spec=spec,
        candidate=trial.candidate,
        placement=trial.placement,
        measurement=measurement,
        predicted=trial.predicted,
        capacity_bytes=capacity_bytes,
        launcher=trial.launcher,
        **told_parts(content),
    )


def contradictions(content: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Where recipe.json says other than the trials; keys that one of them lacks say nothing."""
    ours = json.loads(json.dumps(recipe.to_json()))
    del ours[DIGESTS]  # they follow from the rest
    found = [
        f"{path} is {_short(told)} in recipe.json, {_short(seen)} by its trials"
        for path, told, seen in differing(content, ours)
    ]
    more = [f"and {len(found) - _MOST} more"] if len(found) > _MOST else []
    return found[:_MOST] + more


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
