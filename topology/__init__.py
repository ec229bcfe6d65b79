"""What hardware is here, and how is it wired? Standard library and pynvml only.

`topology.discover.discover()` looks at this machine; `python -m topology` prints what it found.
"""

from topology.errors import TopologyError
from topology.nouns import (
    Edge,
    Gpu,
    GpuNic,
    Link,
    LinkKind,
    Network,
    Nic,
    Node,
    Tier,
    TierKind,
    Topology,
)

__all__ = [
    "Edge",
    "Gpu",
    "GpuNic",
    "Link",
    "LinkKind",
    "Network",
    "Nic",
    "Node",
    "Tier",
    "TierKind",
    "Topology",
    "TopologyError",
]
