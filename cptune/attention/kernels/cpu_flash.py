"""The flash attention of torch on CPU.

Shapes: B batch, S query rows, R key rows, H query heads, K kv heads, D head dim.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cptune.attention.kernels.block import FLOATS, Block, Capability
from cptune.attention.kernels.footprint import Footprint
from cptune.attention.merge import accumulator_dtype

_flash_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


BAND_ROWS = 256  # of one call under a band, so that no mask grows with the block


class CpuFlash:
    """No score matrix, all float types; a band goes in runs of rows, each with its mask."""

    name = "cpu_flash"
    capability = Capability(
        device_types=frozenset({"cpu"}),
        dtypes=FLOATS,
        gqa=True,
        footprint=Footprint(wide_gradients=True, wide_copies=True, band_rows=BAND_ROWS),
    )

    def why_missing(self) -> str | None:
        """As Kernel.why_missing."""
        return None

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """As Kernel.forward."""
        q_BHSD, k_BKRD, v_BKRD = _heads_first(block.q, block.k, block.v)
        if block.band is None:
            out_BHSD, lse_BHS = _flash_forward(
                q_BHSD, k_BKRD, v_BKRD, 0.0, block.causal, scale=block.scale
            )
            return out_BHSD.transpose(1, 2), lse_BHS
        found = [
            _flash_forward(
                q_BHSD[:, :, run.rows],
                k_BKRD[:, :, run.keys],
                v_BKRD[:, :, run.keys],
                0.0,
                False,
                attn_mask=run.mask,
                scale=block.scale,
            )
            for run in _runs(block, dtype=block.q.dtype)
        ]
        out_BHSD, lse_BHS = (torch.cat(parts, dim=2) for parts in zip(*found, strict=True))
        return out_BHSD.transpose(1, 2), lse_BHS

    def backward(
        self, block: Block, *, dout_BSHD: Tensor, out_BSHD: Tensor, lse_BHS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As Kernel.backward, in fp32 or better.

        Given halves, the operator adds up the gradients of keys and values in that type, query
        block by query block: three times the error of one rounding, more the longer the block.
        """
        dout_BHSD, q_BHSD, k_BKRD, v_BKRD, out_BHSD = (
            x.to(accumulator_dtype(x.dtype))
            for x in _heads_first(dout_BSHD, block.q, block.k, block.v, out_BSHD)
        )
        if block.band is None:
            found = _flash_backward(
                dout_BHSD,
                q_BHSD,
                k_BKRD,
                v_BKRD,
                out_BHSD,
                lse_BHS,
                0.0,
                block.causal,
                scale=block.scale,
            )
            dq_BSHD, dk_BRKD, dv_BRKD = (x.transpose(1, 2) for x in found)
            return dq_BSHD, dk_BRKD, dv_BRKD
        dk_BKRD, dv_BKRD = torch.zeros_like(k_BKRD), torch.zeros_like(v_BKRD)
        dq: list[Tensor] = []
        for run in _runs(block, dtype=q_BHSD.dtype):
            dq_BHSD, dk, dv = _flash_backward(
                dout_BHSD[:, :, run.rows],
                q_BHSD[:, :, run.rows],
                k_BKRD[:, :, run.keys],
                v_BKRD[:, :, run.keys],
                out_BHSD[:, :, run.rows],
                lse_BHS[:, :, run.rows],
                0.0,
                False,
                attn_mask=run.mask,
                scale=block.scale,
            )
            dq.append(dq_BHSD)
            dk_BKRD[:, :, run.keys] += dk
            dv_BKRD[:, :, run.keys] += dv
        parts = (torch.cat(dq, dim=2), dk_BKRD, dv_BKRD)
        dq_BSHD, dk_BRKD, dv_BRKD = (x.transpose(1, 2) for x in parts)
        return dq_BSHD, dk_BRKD, dv_BRKD


class _Run(NamedTuple):
    """Some rows of a band, the keys that any of them sees, and 0 or -inf for each pair."""

    rows: slice
    keys: slice
    mask: Tensor  # SR


def _runs(block: Block, *, dtype: torch.dtype) -> Iterator[_Run]:
    assert block.band is not None, "runs are cut for a band"
    left, right = block.band
    count = block.q.shape[1]
    for start in range(0, count, BAND_ROWS):
        stop = min(start + BAND_ROWS, count)
        first, last = max(0, start - left), min(count, stop + right)
        seen_SR = torch.ones(stop - start, last - first, dtype=torch.bool, device=block.q.device)
        seen_SR = seen_SR.tril(start - first + right).triu(start - first - left)
        mask_SR = torch.zeros_like(seen_SR, dtype=dtype)
        yield _Run(
            slice(start, stop), slice(first, last), mask_SR.masked_fill_(~seen_SR, -torch.inf)
        )


def _heads_first(*tensors_BSHD: Tensor) -> list[Tensor]:
    """(B, S, H, D) -> (B, H, S, D) views; the aten op reads a head's elements as neighbours."""
    dense = (one if one.stride(-1) == 1 else one.contiguous() for one in tensors_BSHD)
    return [one_BSHD.transpose(1, 2) for one_BSHD in dense]
