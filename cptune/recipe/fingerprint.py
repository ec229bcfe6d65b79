"""Two fingerprints: what changes the mathematics, and what changes only how it is executed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata

from cptune.domain.environment import RankEnvironment, told_variables
from cptune.domain.stamp import Stamp
from cptune.domain.study import SweepSpec
from cptune.domain.workload import FULL_LENGTHS

_PACKAGES = ("cptune", "torch", "ray", "optuna", "numpy", "pyarrow", "flash-attn")


def stamp_of(
    spec: SweepSpec,
    *,
    topology_hash: str,
    lengths: Sequence[int] = (),
    environment: RankEnvironment | None = None,
) -> Stamp:
    """Stamp a spec on this machine as it is now.

    Args:
        spec: Resolved.
        topology_hash: Of the inventory that ranks are placed on.
        lengths: Those that documents have. They stand for the name under which the spec found
            them, which differs between machines.
        environment: The variables of the ranks; those of this process where there are no others.
    """
    shape = {name: value for name, value in asdict(spec.model).items() if name != "preset"}
    mathematics: dict[str, object] = {
        "model": shape,
        "workload": asdict(spec.workload) | ({"lengths": FULL_LENGTHS} if lengths else {}),
        "seed": spec.search.seed,
    }
    if lengths:
        mathematics["document_lengths"] = list(lengths)
    found = installed_versions()
    environment = environment or RankEnvironment(shared=told_variables(os.environ))
    execution = {
        "topology": topology_hash,
        "versions": found,
        "environment": environment.to_json(),
    }
    return Stamp(
        convergence=_digest(mathematics),
        execution=_digest(execution),
        topology=topology_hash,
        versions=found,
        environment=environment,
    )


def installed_versions() -> dict[str, str]:
    """Versions of what a trial runs on; a package that is not installed is left out."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _digest(facts: Mapping[str, object]) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
