"""What torch was built with on a rank."""

from __future__ import annotations

import torch
from torch.cuda import nccl


def torch_parts() -> dict[str, str]:
    """Versions of CUDA and NCCL that torch brings, without a look at a GPU; none on CPU builds."""
    found: dict[str, str] = {}
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
        if torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, nccl.version()))
    return found
