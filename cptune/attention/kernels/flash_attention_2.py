"""flash-attn 2, from 2.7 on (its functions return four values since then).

Shapes: B batch, S query rows, R key rows, H query heads, K kv heads, D head dim.
"""

import importlib

import torch
from torch import Tensor

from cptune.attention.kernels.block import HALVES, Block, Capability
from cptune.attention.kernels.cuda_flash import FOOTPRINT, nothing_seen_is_minus_infinity
from cptune.attention.kernels.library import Load, why_unusable

_AMPERE, _LATER = (8, 0), (99, 0)
_OPTIONS = ("dropout_p", "softmax_scale", "causal", "window_size_left", "window_size_right")
_GIVEN = {
    "_flash_attn_forward": (
        *("q", "k", "v", *_OPTIONS),
        *("softcap", "alibi_slopes", "return_softmax"),
    ),
    "_flash_attn_backward": (
        *("dout", "q", "k", "v", "out", "softmax_lse", "dq", "dk", "dv", *_OPTIONS),
        *("softcap", "alibi_slopes", "deterministic"),
    ),
}


class FlashAttention2:
    """flash_attn.flash_attn_interface: +inf for an empty row, bottom-right, -1 for no limit.

    Args:
        load: Imports the interface.
    """

    name = "flash_attn_2"
    capability = Capability(
        device_types=frozenset({"cuda"}),
        dtypes=HALVES,
        gqa=True,
        most_head_dim=256,
        head_dim_step=8,
        compute=(_AMPERE, _LATER),
        footprint=FOOTPRINT,
    )

    def __init__(
        self, load: Load = lambda: importlib.import_module("flash_attn.flash_attn_interface")
    ) -> None:
        self._load = load

    def why_missing(self) -> str | None:
        """As Kernel.why_missing."""
        return why_unusable(self._load, package="flash_attn", calls=_GIVEN)

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """As Kernel.forward."""
        out_BSHD, lse_BHS, *_ = self._load()._flash_attn_forward(
            *(one.contiguous() for one in (block.q, block.k, block.v)),
            dropout_p=0.0,
            softmax_scale=block.scale,
            causal=block.causal,
            **_window(block),
            softcap=0.0,
            alibi_slopes=None,
            return_softmax=False,
        )
        return out_BSHD, nothing_seen_is_minus_infinity(lse_BHS)

    def backward(
        self, block: Block, *, dout_BSHD: Tensor, out_BSHD: Tensor, lse_BHS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As Kernel.backward."""
        q, k, v = (one.contiguous() for one in (block.q, block.k, block.v))
        dq_BSHD, dk_BRKD, dv_BRKD = (torch.empty_like(one) for one in (q, k, v))
        self._load()._flash_attn_backward(
            dout_BSHD.contiguous(),
            q,
            k,
            v,
            out_BSHD.contiguous(),
            lse_BHS.contiguous(),
            dq_BSHD,
            dk_BRKD,
            dv_BRKD,
            dropout_p=0.0,
            softmax_scale=block.scale,
            causal=block.causal,
            **_window(block),
            softcap=0.0,
            alibi_slopes=None,
            deterministic=False,
        )
        return dq_BSHD, dk_BRKD, dv_BRKD


def _window(block: Block) -> dict[str, int]:
    """-1 is without limit; a causal block says so by its flag."""
    left, right = block.window if block.band is not None else (None, None)
    return {
        "window_size_left": -1 if left is None else left,
        "window_size_right": -1 if right is None else right,
    }
