"""Versioning: another version of a kernel aligns the causal mask otherwise.

flash-attn 2.1 moved the causal mask of oblong blocks from the top left to the bottom right corner
(the list of changes in its README): under the other one queries see too few keys, or later ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cptune.domain.recipe import Recipe
from cptune.domain.standing import Standing
from cptune.drills import proofs
from cptune.drills.finding import Finding
from cptune.drills.proofs import PROVEN, Proofs
from cptune.drills.ranks import SPEC
from cptune.drills.reports import measured
from cptune.drills.searching import STAMP, placed
from cptune.recipe.requalify import conditions_of

_THEN = {"flash-attn": "2.1.0", "torch": "2.13.0"}
_NOW = {**_THEN, "flash-attn": "2.0.9"}


def judge(seen: Proofs) -> Finding:
    """Requalification must name the version, and the proof refuse blocks aligned top left."""
    recipe = _recipe(seen)
    changed, same = (_changed(recipe, versions) for versions in (_NOW, _THEN))
    proven = proofs.judge(seen, proofs.TOP_LEFT, fails={"outputs", "gradients"})
    named = changed == ["flash-attn"]
    update = f"flash-attn {_THEN['flash-attn']} -> {_NOW['flash-attn']}"
    return Finding(
        refused=named and proven.refused,
        said=f"requalify: {', '.join(changed) or 'nothing'} changed ({update}); {proven.said}",
        controls={"with the same versions nothing has changed": not same, **proven.controls},
        figures=proven.figures,
    )


def _changed(recipe: Mapping[str, Any], versions: Mapping[str, str]) -> list[str]:
    found = conditions_of(
        recipe, topology_hash=STAMP.topology, versions=versions, environment=STAMP.environment
    )
    return [one.what for one in found if one.standing is Standing.CHANGED]


def _recipe(seen: Proofs) -> dict[str, Any]:
    """The recipe.json of the candidate as it was proven before the update."""
    recipe = Recipe(
        spec=SPEC,
        candidate=PROVEN,
        placement=placed(PROVEN),
        measurement=measured(PROVEN, step_s=0.1),
        predicted=None,
        capacity_bytes=1 << 30,
        certificate=(),
        controls=(),
        versions=_THEN,
        fingerprints=STAMP.fingerprints,
        commands=(),
        proof=seen.honest,
    )
    return json.loads(json.dumps(recipe.to_json()))
