"""Context-parallel attention on torch.distributed: one staged plan for ring and all-gather."""

from cptune.attention.context_parallel import ContextParallel
from cptune.attention.mask import Mask
from cptune.attention.plan import Plan, PlanBytes, Strategy
from cptune.attention.shard import Partition, Sharding
from cptune.attention.traffic import PassTraffic, PeerTraffic, Traffic

__all__ = [
    "ContextParallel",
    "Mask",
    "Partition",
    "PassTraffic",
    "PeerTraffic",
    "Plan",
    "PlanBytes",
    "Sharding",
    "Strategy",
    "Traffic",
]
