"""Attention of one block with its log-sum-exp, behind one seam: six kernels and what they can do.

The door to flash-attn: no other package imports it, and this one not before it is asked for.
"""

from cptune.attention.kernels.block import Block, Capability, Kernel
from cptune.attention.kernels.choice import (
    AUTO,
    KERNELS,
    Ask,
    choose_kernel,
    find_footprint,
    read_kernel_name,
    why_not,
)
from cptune.attention.kernels.cpu_flash import CpuFlash
from cptune.attention.kernels.cuda_flash import CudaFlash
from cptune.attention.kernels.flash_attention_2 import FlashAttention2
from cptune.attention.kernels.flash_attention_3 import FlashAttention3
from cptune.attention.kernels.flash_attention_4 import FlashAttention4
from cptune.attention.kernels.footprint import Footprint
from cptune.attention.kernels.reference import MathReference

__all__ = [
    "AUTO",
    "KERNELS",
    "Ask",
    "Block",
    "Capability",
    "CpuFlash",
    "CudaFlash",
    "FlashAttention2",
    "FlashAttention3",
    "FlashAttention4",
    "Footprint",
    "Kernel",
    "MathReference",
    "choose_kernel",
    "find_footprint",
    "read_kernel_name",
    "why_not",
]
