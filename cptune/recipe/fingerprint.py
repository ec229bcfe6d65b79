"""Two fingerprints: what changes the mathematics, and what changes only how it is executed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from cptune.domain.environment import RankEnvironment, told_variables
from cptune.domain.stamp import Stamp
from cptune.domain.study import SweepSpec
from cptune.domain.workload import FULL_LENGTHS
from cptune.versions import installed_versions


def stamp_of(
    spec: SweepSpec,
    *,
    topology_hash: str,
    lengths: Sequence[int] = (),
    environment: RankEnvironment | None = None,
    versions: RankEnvironment | None = None,
) -> Stamp:
    """Stamp a spec on this machine as it is now.

    Args:
        spec: Resolved.
        topology_hash: Of the inventory that ranks are placed on.
        lengths: Those that documents have. They stand for the name under which the spec found
            them, which differs between machines.
        environment: The variables of the ranks; those of this process where there are no others.
        versions: Of the ranks' software; likewise.
    """
    shape = {name: value for name, value in asdict(spec.model).items() if name != "preset"}
    mathematics: dict[str, object] = {
        "model": shape,
        "workload": asdict(spec.workload) | ({"lengths": FULL_LENGTHS} if lengths else {}),
        "seed": spec.search.seed,
    }
    if lengths:
        mathematics["document_lengths"] = list(lengths)
    versions = versions or RankEnvironment(shared=installed_versions())
    environment = environment or RankEnvironment(shared=told_variables(os.environ))
    execution = {
        "topology": topology_hash,
        "versions": versions.texts(),
        "environment": environment.to_json(),
    }
    return Stamp(
        convergence=_digest(mathematics),
        execution=_digest(execution),
        topology=topology_hash,
        versions=versions,
        environment=environment,
    )


def _digest(facts: Mapping[str, object]) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
