"""The seam: attention of one block with its log-sum-exp, and what a kernel says it can do.

Shapes: B batch, S query rows, R key rows, H query heads, K kv heads (query head h reads kv head
h // (H/K)), D head dim.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cptune.attention.kernels.footprint import NOTHING, Footprint
from cptune.attention.slices import Band

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
HALVES = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True, slots=True)
class Block:
    """What one kernel call attends: never an empty row, and causal or a band only when square.

    Kernels disagree on the log-sum-exp of an empty row (0, +inf, -inf) and on how an oblong causal
    block is aligned, so neither may reach one.
    """

    q: Tensor  # BSHD
    k: Tensor  # BRKD
    v: Tensor  # BRKD
    causal: bool
    scale: float
    band: Band | None = None  # row i sees columns i - left to i + right

    def __post_init__(self) -> None:
        q_rows, kv_rows = self.q.shape[1], self.k.shape[1]
        assert q_rows > 0, "a block without queries"
        assert kv_rows > 0, "a block without keys"
        assert not self.causal or q_rows == kv_rows, f"causal but {q_rows} x {kv_rows}"
        assert not self.band or q_rows == kv_rows, f"a band but {q_rows} x {kv_rows}"
        assert not (self.band and self.causal), "causal or a band, not both"

    @property
    def window(self) -> tuple[int | None, int | None]:
        """(left, right) as kernels with windows take it; None is without limit."""
        if self.band is not None:
            left, right = self.band
            last = self.q.shape[1] - 1
            return (left if left < last else None), (right if right < last else None)
        return None, (0 if self.causal else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What a kernel can run, and what it allocates meanwhile."""

    device_types: frozenset[str]
    dtypes: frozenset[torch.dtype]
    gqa: bool  # fewer kv heads than query heads
    footprint: Footprint = NOTHING
    most_head_dim: int | None = None
    head_dim_step: int = 1
    # (major, minor) of the CUDA devices it is built for: at least the first, below the second
    compute: tuple[tuple[int, int], tuple[int, int]] | None = None


class Kernel(Protocol):
    """One implementation of block attention."""

    @property
    def name(self) -> str:
        """The word that asks for it."""
        ...

    @property
    def capability(self) -> Capability:
        """What it can run."""
        ...

    def why_missing(self) -> str | None:
        """Why the library behind it cannot be used here, or None when it can."""
        ...

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """Attend one block.

        Returns:
            (out_BSHD in the dtype of q or wider, lse_BHS in fp32 or better, natural log).
        """
        ...

    def backward(
        self, block: Block, *, dout_BSHD: Tensor, out_BSHD: Tensor, lse_BHS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of one block, exact when other blocks were attended too.

        Args:
            block: As in forward.
            dout_BSHD: Gradient of the whole output, over all blocks.
            out_BSHD: The whole output.
            lse_BHS: Log-sum-exp over all blocks.

        Returns:
            (dq_BSHD, dk_BRKD, dv_BRKD): this block's part of each, in the dtype of q or wider.
        """
        ...
