"""Context-parallel attention on torch.distributed: one plan for ring, all-gather and Ulysses."""

from cptune.attention.context_parallel import ContextParallel
from cptune.attention.cost import PlanBytes, PlanFlop, PlanPeak
from cptune.attention.mask import Mask, Pattern
from cptune.attention.plan import Plan
from cptune.attention.shard import Partition, Sharding
from cptune.attention.strategy import Strategy
from cptune.attention.traffic import PassTraffic, PeerTraffic, Traffic

__all__ = [
    "ContextParallel",
    "Mask",
    "Partition",
    "PassTraffic",
    "Pattern",
    "PeerTraffic",
    "Plan",
    "PlanBytes",
    "PlanFlop",
    "PlanPeak",
    "Sharding",
    "Strategy",
    "Traffic",
]
