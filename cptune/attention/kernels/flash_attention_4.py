"""FlashAttention 4, `flash_attn.cute` of the package flash-attn-4: Hopper and Blackwell.

Shapes: B batch, S query rows, R key rows, H query heads, K kv heads, D head dim.
"""

import importlib

from torch import Tensor

from cptune.attention.kernels.block import HALVES, Block, Capability
from cptune.attention.kernels.footprint import Footprint
from cptune.attention.kernels.library import Load, why_unusable

_HOPPER, _LATER = (9, 0), (13, 0)
_GIVEN = {
    "flash_attn_func": ("q", "k", "v", "softmax_scale", "causal", "window_size", "return_lse"),
    "_flash_attn_bwd": (
        *("q", "k", "v", "out", "dout", "lse", "softmax_scale", "causal"),
        *("window_size_left", "window_size_right"),
    ),
}


class FlashAttention4:
    """flash_attn.cute: -inf for an empty row, bottom-right, None for no limit.

    Its backward takes the output before its gradient, which the others take first.

    Args:
        load: Imports the interface.
    """

    name = "flash_attn_4"
    capability = Capability(
        device_types=frozenset({"cuda"}),
        dtypes=HALVES,
        gqa=True,
        most_head_dim=128,
        head_dim_step=8,
        compute=(_HOPPER, _LATER),
        # _flash_attn_bwd in interface.py: dq_accum, a sum and a scaled
        # log-sum-exp of each row, dk_accum and dv_accum
        footprint=Footprint(query_sums=1, row_sums=2, key_sums=True),
    )

    def __init__(
        self, load: Load = lambda: importlib.import_module("flash_attn.cute.interface")
    ) -> None:
        self._load = load

    def why_missing(self) -> str | None:
        """As Kernel.why_missing."""
        return why_unusable(self._load, package="flash_attn.cute", calls=_GIVEN)

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """As Kernel.forward."""
        out_BSHD, lse_BHS = self._load().flash_attn_func(
            *(one.contiguous() for one in (block.q, block.k, block.v)),
            softmax_scale=block.scale,
            causal=block.causal,
            window_size=_window(block),
            return_lse=True,
        )
        return out_BSHD, lse_BHS

    def backward(
        self, block: Block, *, dout_BSHD: Tensor, out_BSHD: Tensor, lse_BHS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As Kernel.backward."""
        q, k, v = (one.contiguous() for one in (block.q, block.k, block.v))
        left, right = _window(block)
        dq_BSHD, dk_BRKD, dv_BRKD, *_ = self._load()._flash_attn_bwd(
            q,
            k,
            v,
            out_BSHD.contiguous(),
            dout_BSHD.contiguous(),
            lse_BHS.contiguous(),
            softmax_scale=block.scale,
            causal=block.causal,
            window_size_left=left,
            window_size_right=right,
        )
        return dq_BSHD, dk_BRKD, dv_BRKD


def _window(block: Block) -> tuple[int | None, int | None]:
    """A causal block says so by its flag."""
    return block.window if block.band is not None else (None, None)
