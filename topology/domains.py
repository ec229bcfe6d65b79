"""NVLink domains across hosts: what the GPUs of several nodes say of the fabric they are in."""

from collections.abc import Iterable

from topology.network import Tier, TierKind
from topology.nouns import Node


def find_domains(nodes: Iterable[Node]) -> tuple[list[Tier], list[str]]:
    """The domains that more than one node is in, and what is odd about them.

    A board of one host may tell a cluster of its own, so a domain seen once is none.
    """
    members: dict[tuple[str, int], list[str]] = {}
    notes: list[str] = []
    for node in nodes:
        told = {gpu.index: gpu.fabric.domain for gpu in node.gpus if gpu.fabric is not None}
        domains = {domain for domain in told.values() if domain is not None}
        if len(domains) > 1:
            shown = ", ".join(_name(domain) for domain in sorted(domains))
            notes.append(f"node {node.name}: its GPUs are in several NVLink domains: {shown}")
        for domain in domains if len(domains) == 1 else ():
            members.setdefault(domain, []).append(node.name)
            out = [str(gpu.index) for gpu in node.gpus if told.get(gpu.index) is None]
            if out:
                notes.append(
                    f"node {node.name}: GPU {', '.join(out)} not in NVLink domain {_name(domain)}"
                )
    tiers = [
        Tier(name=_name(domain), kind=TierKind.NVLINK_DOMAIN, nodes=tuple(names))
        for domain, names in members.items()
        if len(names) > 1
    ]
    return tiers, notes


def _name(domain: tuple[str, int]) -> str:
    """Cluster UUID and clique, as the label nvidia.com/gpu.clique of Kubernetes has them."""
    return f"{domain[0]}.{domain[1]}"
