"""A function run on the rank actors of a Ray cluster, as `cptune.bench.calls` describes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cptune.cluster.session import joined_cluster, ready_for_calls

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOnCluster:
    """Runs a function on a gang of actors, spread evenly over the nodes; all are gone afterwards.

    Args:
        address: "local", or the address of a Ray cluster.
    """

    address: str

    def __call__(
        self, function: Callable[[_Given], _Found], argument: _Given, *, ranks: int
    ) -> list[_Found]:
        """What each rank found, by rank.

        Raises:
            ClusterError: when the cluster cannot be used, or a rank fails or is late.
        """
        with (
            joined_cluster(self.address, ranks=ranks) as (nodes, topology),
            ready_for_calls(nodes=nodes, topology=topology, ranks=ranks) as run,
        ):
            return run(function, argument, ranks=ranks)
