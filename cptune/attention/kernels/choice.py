"""Picks the kernel that was asked for, or says why it cannot run."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from cptune.attention.choices import read_choice
from cptune.attention.kernels.block import Capability, Kernel
from cptune.attention.kernels.cpu_flash import CpuFlash
from cptune.attention.kernels.cuda_flash import CudaFlash
from cptune.attention.kernels.flash_attention_2 import FlashAttention2
from cptune.attention.kernels.flash_attention_3 import FlashAttention3
from cptune.attention.kernels.flash_attention_4 import FlashAttention4
from cptune.attention.kernels.footprint import Footprint
from cptune.attention.kernels.reference import MathReference

AUTO = "auto"
# The first that can run is "auto".
KERNELS: tuple[Kernel, ...] = (
    FlashAttention3(),
    FlashAttention4(),
    FlashAttention2(),
    CudaFlash(),
    CpuFlash(),
    MathReference(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a kernel is wanted for. `compute`: of the CUDA device; None is any."""

    device_type: str
    dtype: torch.dtype
    grouped: bool = False  # fewer kv heads than query heads
    head_dim: int | None = None
    compute: tuple[int, int] | None = None


def why_not(kernel: Kernel, ask: Ask) -> str | None:
    """Why `kernel` cannot run, or None when it can."""
    can = kernel.capability
    if ask.device_type not in can.device_types:
        return f"it runs on {', '.join(sorted(can.device_types))}, not on {ask.device_type}"
    if ask.dtype not in can.dtypes:
        return f"it takes {', '.join(sorted(map(str, can.dtypes)))}, not {ask.dtype}"
    if ask.grouped and not can.gqa:
        return "it wants as many kv heads as query heads"
    return _why_not_head_dim(can, ask) or _why_not_device(can, ask) or kernel.why_missing()


def _why_not_head_dim(can: Capability, ask: Ask) -> str | None:
    if ask.head_dim is None:
        return None
    if can.most_head_dim is not None and ask.head_dim > can.most_head_dim:
        return f"it takes heads of at most {can.most_head_dim} elements, not {ask.head_dim}"
    if ask.head_dim % can.head_dim_step:
        return f"it takes heads of multiples of {can.head_dim_step} elements, not {ask.head_dim}"
    return None


def _why_not_device(can: Capability, ask: Ask) -> str | None:
    if can.compute is None or ask.compute is None:
        return None
    least, below = can.compute
    if least <= ask.compute < below:
        return None
    seen, *wanted = (f"{major}.{minor}" for major, minor in (ask.compute, least, below))
    return f"it is built for compute capability {wanted[0]} to below {wanted[1]}, not {seen}"


def read_kernel_name(name: str) -> str:
    """Return `name` when it is "auto" or a kernel's.

    Raises:
        ValueError: It is neither.
    """
    return read_choice(name, what="kernel", choices=(AUTO, *(one.name for one in KERNELS)))


def find_footprint(name: str) -> Footprint:
    """What the kernel of that name allocates.

    Raises:
        ValueError: There is none of that name; "auto" is no kernel.
    """
    by_name = {one.name: one for one in KERNELS}
    return by_name[read_choice(name, what="kernel", choices=by_name)].capability.footprint


def choose_kernel(
    name: str,
    *,
    device_type: str,
    dtype: torch.dtype,
    grouped: bool = False,
    head_dim: int | None = None,
) -> Kernel:
    """Pick the kernel that `name` asks for; "auto" is the first that can run.

    Raises:
        ValueError: The name is unknown, or what it asks for cannot run; the message says why.
    """
    name = read_kernel_name(name)
    on_device = device_type == "cuda" and torch.cuda.is_available()
    ask = Ask(
        device_type=device_type,
        dtype=dtype,
        grouped=grouped,
        head_dim=head_dim,
        compute=torch.cuda.get_device_capability() if on_device else None,
    )
    return _choose(name, ask)


@lru_cache(maxsize=64)
def _choose(name: str, ask: Ask) -> Kernel:
    """Asked at every layer of every step, so libraries are looked for once."""
    asked = [one for one in KERNELS if name in (AUTO, one.name)]
    reasons: list[str] = []
    for kernel in asked:
        reason = why_not(kernel, ask)
        if reason is None:
            return kernel
        reasons.append(f"{kernel.name}: {reason}")
    raise ValueError(f"kernel is {name!r}, which cannot run here ({'; '.join(reasons)})")
