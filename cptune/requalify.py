"""A recipe looked at again: what it depends on, then and now."""

from __future__ import annotations

from pathlib import Path

from cptune.cluster.connection import LOCAL
from cptune.cluster.inventory import most_ranks
from cptune.cluster.session import joined_cluster, ready_for_calls
from cptune.domain.environment import RankEnvironment
from cptune.domain.standing import Condition
from cptune.domain.study import SweepSpec
from cptune.kept import read_recipe, refuse_simulated
from cptune.recipe.requalify import conditions_of
from cptune.versions import installed_versions
from topology.discover import discover


def requalify(
    path: Path, *, spec: SweepSpec | None = None, address: str = LOCAL
) -> list[Condition]:
    """The conditions of a recipe, as they are on this machine, or on the nodes of a Ray cluster.

    Actors are asked for their environment and versions, one a rank. Where they are too many for
    this machine the environment is not known, and the versions are those of this process.

    Args:
        path: A recipe.json.
        spec: What is to be trained now; the recipe's own if omitted.
        address: "local" looks at this machine; else the address of a Ray cluster.

    Raises:
        SpecError: when the file is no recipe, or is not as it was written.
        ClusterError: when the cluster cannot be reached.
    """
    kept = read_recipe(path)
    refuse_simulated(kept)
    recipe = kept.content
    environment: RankEnvironment | None = None
    versions = installed_versions()
    here = discover() if address == LOCAL else None
    if here is None or len(recipe["mesh"]) <= most_ranks(here):
        with (
            joined_cluster(address, ranks=len(recipe["mesh"])) as (nodes, topology),
            ready_for_calls(nodes=nodes, topology=topology, ranks=len(recipe["mesh"])) as ranks,
        ):
            environment, versions = ranks.gang.environment(), ranks.gang.versions().texts()
    else:
        topology = here
    return conditions_of(
        recipe,
        topology_hash=topology.content_hash,
        versions=versions,
        environment=environment,
        model=None if spec is None else spec.model,
        workload=None if spec is None else spec.workload,
    )
