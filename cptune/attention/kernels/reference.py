"""Attention written out in matrix products and exponentials, for every device and float type.

Shapes: B batch, S query rows, R key rows, H query heads, K kv heads, G query heads of a kv head
(H = K*G, query head h reads kv head h // G), D head dim.
"""

import torch
from torch import Tensor

from cptune.attention.kernels.block import FLOATS, Block, Capability
from cptune.attention.kernels.footprint import Footprint
from cptune.attention.merge import accumulator_dtype


class MathReference:
    """Matrix products and exponentials written out: any device, any float type, O(S*R) memory."""

    name = "math"
    capability = Capability(
        device_types=frozenset({"cpu", "cuda"}),
        dtypes=FLOATS,
        gqa=True,
        footprint=Footprint(wide_out=True, wide_gradients=True, wide_copies=True, scores=(3, 6)),
    )

    def why_missing(self) -> str | None:
        """As Kernel.why_missing."""
        return None

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """As Kernel.forward."""
        scores_BKGSR = _scores(block)
        lse_BKGS = scores_BKGSR.logsumexp(dim=-1)
        weights_BKGSR = (scores_BKGSR - lse_BKGS.unsqueeze(-1)).exp()
        v_BRKD = block.v.to(scores_BKGSR.dtype)
        out_BSKGD = torch.einsum("bkgsr,brkd->bskgd", weights_BKGSR, v_BRKD)
        return out_BSKGD.flatten(2, 3), lse_BKGS.flatten(1, 2)

    def backward(
        self, block: Block, *, dout_BSHD: Tensor, out_BSHD: Tensor, lse_BHS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As Kernel.backward."""
        scores_BKGSR = _scores(block)
        acc, kv_heads = scores_BKGSR.dtype, block.k.shape[2]
        q_BSKGD = _grouped(block.q, kv_heads).to(acc)
        dout_BSKGD = _grouped(dout_BSHD, kv_heads).to(acc)
        delta_BSKG = (dout_BSKGD * _grouped(out_BSHD, kv_heads).to(acc)).sum(dim=-1)
        weights_BKGSR = (scores_BKGSR - lse_BHS.unflatten(1, (kv_heads, -1)).unsqueeze(-1)).exp()
        dv_BRKD = torch.einsum("bkgsr,bskgd->brkd", weights_BKGSR, dout_BSKGD)
        dweights_BKGSR = torch.einsum("bskgd,brkd->bkgsr", dout_BSKGD, block.v.to(acc))
        delta_BKGS1 = delta_BSKG.permute(0, 2, 3, 1).unsqueeze(-1)
        dscores_BKGSR = block.scale * weights_BKGSR * (dweights_BKGSR - delta_BKGS1)
        dq_BSKGD = torch.einsum("bkgsr,brkd->bskgd", dscores_BKGSR, block.k.to(acc))
        dk_BRKD = torch.einsum("bkgsr,bskgd->brkd", dscores_BKGSR, q_BSKGD)
        return dq_BSKGD.flatten(2, 3), dk_BRKD, dv_BRKD


def _grouped(x_BSHD: Tensor, kv_heads: int) -> Tensor:
    return x_BSHD.unflatten(2, (kv_heads, -1))


def _scores(block: Block) -> Tensor:
    """Scaled scores, -inf where the mask hides, in the accumulator type."""
    acc = accumulator_dtype(block.q.dtype)
    q_BSKGD = _grouped(block.q, block.k.shape[2]).to(acc)
    scores_BKGSR = torch.einsum("bskgd,brkd->bkgsr", q_BSKGD, block.k.to(acc)) * block.scale
    left, right = block.window
    if left is None and right is None:
        return scores_BKGSR
    seen_SR = torch.ones(scores_BKGSR.shape[-2:], dtype=torch.bool, device=scores_BKGSR.device)
    if right is not None:
        seen_SR = seen_SR.tril(diagonal=right)
    if left is not None:
        seen_SR = seen_SR.triu(diagonal=-left)
    return scores_BKGSR.masked_fill(~seen_SR, -torch.inf)
