"""The flash attention that torch brings for CUDA (FlashAttention 2, or what is activated for it).

Shapes: B batch, S query rows, R key rows, H query heads, K kv heads, D head dim.
"""

from typing import Any

import torch
from torch import Tensor

from cptune.attention.kernels.block import HALVES, Block, Capability
from cptune.attention.kernels.footprint import Footprint

_AMPERE, _LATER = (8, 0), (99, 0)
# mha_bwd in flash_api.cpp of FlashAttention 2: dq_accum, softmax_d, dk_expanded and dv_expanded
FOOTPRINT = Footprint(query_sums=1, row_sums=1, expanded_keys=True)


class CudaFlash:
    """torch.ops.aten._flash_attention_forward: (B, S, H, D), fewer kv heads, windows.

    Its log-sum-exp of an empty row is +inf, its oblong causal blocks are aligned bottom-right, and
    an unlimited side of a window is None. None of its rows is empty and none of its blocks oblong.

    Args:
        ops: The operators; others in their place stand for them in tests.
    """

    name = "cuda_flash"
    capability = Capability(
        device_types=frozenset({"cuda"}),
        dtypes=HALVES,
        gqa=True,
        most_head_dim=256,
        head_dim_step=8,
        compute=(_AMPERE, _LATER),
        footprint=FOOTPRINT,
    )

    def __init__(self, ops: Any = torch.ops.aten) -> None:  # noqa: ANN401 - a namespace of torch
        self._ops = ops

    def why_missing(self) -> str | None:
        """As Kernel.why_missing."""
        return None

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """As Kernel.forward."""
        found = self._ops._flash_attention_forward(
            *_dense(block.q, block.k, block.v),
            None,
            None,
            block.q.shape[1],
            block.k.shape[1],
            0.0,
            block.causal,
            False,
            scale=block.scale,
            **_window(block),
        )
        return found[0], nothing_seen_is_minus_infinity(found[1])

    def backward(
        self, block: Block, *, dout_BSHD: Tensor, out_BSHD: Tensor, lse_BHS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As Kernel.backward."""
        # Without dropout neither the state of the generator nor what follows it is read.
        unused = torch.empty(2, dtype=torch.uint64, device=block.q.device)
        dq_BSHD, dk_BRKD, dv_BRKD = self._ops._flash_attention_backward(
            *(one.contiguous() for one in (dout_BSHD, block.q, block.k, block.v, out_BSHD)),
            lse_BHS.contiguous(),
            None,
            None,
            block.q.shape[1],
            block.k.shape[1],
            0.0,
            block.causal,
            unused,
            unused,
            scale=block.scale,
            **_window(block),
        )
        return dq_BSHD, dk_BRKD, dv_BRKD


def nothing_seen_is_minus_infinity(lse_BHS: Tensor) -> Tensor:
    """FlashAttention 2 says +inf of a row that saw no key; a merge wants -inf."""
    return lse_BHS.masked_fill(lse_BHS == torch.inf, -torch.inf)


def _dense(*tensors_BSHD: Tensor) -> list[Tensor]:
    return [one if one.stride(-1) == 1 else one.contiguous() for one in tensors_BSHD]


def _window(block: Block) -> dict[str, int | None]:
    # With `is_causal` the right side is the operator's own; a window replaces it.
    if block.band is None:
        return {"window_size_left": None, "window_size_right": None}
    left, right = block.window
    return {
        "window_size_left": -1 if left is None else left,
        "window_size_right": -1 if right is None else right,
    }
