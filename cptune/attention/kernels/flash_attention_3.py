"""FlashAttention 3 for Hopper, `flash_attn_interface` 3.0.

Shapes: B batch, S query rows, R key rows, H query heads, K kv heads, D head dim.
"""

import importlib

import torch
from torch import Tensor

from cptune.attention.kernels.block import HALVES, Block, Capability
from cptune.attention.kernels.footprint import Footprint
from cptune.attention.kernels.library import Load, why_unusable

_HOPPER, _BLACKWELL = (9, 0), (10, 0)
_SIDES = ("window_size_left", "window_size_right")
_GIVEN = {
    "_flash_attn_forward": ("q", "k", "v", "softmax_scale", "causal", *_SIDES),
    "_flash_attn_backward": (
        *("dout", "q", "k", "v", "out", "softmax_lse", "dq", "dk", "dv"),
        *("softmax_scale", "is_causal", *_SIDES),
    ),
}


class FlashAttention3:
    """flash_attn_interface: -inf for an empty row, bottom-right, -1 for no limit.

    Its backward spells two arguments otherwise than its forward: `sequed_*` and `is_causal`.

    Args:
        load: Imports the interface.
    """

    name = "flash_attn_3"
    capability = Capability(
        device_types=frozenset({"cuda"}),
        dtypes=HALVES,
        gqa=True,
        most_head_dim=256,
        head_dim_step=8,
        compute=(_HOPPER, _BLACKWELL),
        # mha_bwd in hopper/flash_api.cpp: dq_accum, a sum and a scaled
        # log-sum-exp of each row, dk_accum and dv_accum
        footprint=Footprint(query_sums=1, row_sums=2, key_sums=True),
    )

    def __init__(
        self, load: Load = lambda: importlib.import_module("flash_attn_interface")
    ) -> None:
        self._load = load

    def why_missing(self) -> str | None:
        """As Kernel.why_missing."""
        return why_unusable(self._load, package="flash_attn_interface", calls=_GIVEN)

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """As Kernel.forward."""
        q, k, v = (one.contiguous() for one in (block.q, block.k, block.v))
        left, right = _window(block)
        out_BSHD, lse_BHS, *_ = self._load()._flash_attn_forward(
            q,
            k,
            v,
            softmax_scale=block.scale,
            causal=block.causal,
            window_size_left=left,
            window_size_right=right,
        )
        return out_BSHD, lse_BHS

    def backward(
        self, block: Block, *, dout_BSHD: Tensor, out_BSHD: Tensor, lse_BHS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As Kernel.backward."""
        q, k, v = (one.contiguous() for one in (block.q, block.k, block.v))
        dq_BSHD, dk_BRKD, dv_BRKD = (torch.empty_like(one) for one in (q, k, v))
        left, right = _window(block)
        self._load()._flash_attn_backward(
            dout_BSHD.contiguous(),
            q,
            k,
            v,
            out_BSHD.contiguous(),
            lse_BHS.contiguous(),
            dq=dq_BSHD,
            dk=dk_BRKD,
            dv=dv_BRKD,
            softmax_scale=block.scale,
            is_causal=block.causal,
            window_size_left=left,
            window_size_right=right,
        )
        return dq_BSHD, dk_BRKD, dv_BRKD


def _window(block: Block) -> tuple[int, int]:
    """-1 is without limit; a causal block says so by its flag."""
    left, right = block.window if block.band is not None else (None, None)
    return (-1 if left is None else left), (-1 if right is None else right)
