"""Joins attention over disjoint blocks of keys, in fp32 or better.

Shapes: B batch, S query rows, H query heads, D head dim.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from cptune.attention.slices import Rows


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type partial results of `dtype` inputs are summed in: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def merge_partials(
    out_a_BSHD: Tensor, lse_a_BHS: Tensor, out_b_BSHD: Tensor, lse_b_BHS: Tensor
) -> tuple[Tensor, Tensor]:
    """Join attention over two disjoint blocks of keys into attention over both.

    Args:
        out_a_BSHD: Output over block a.
        lse_a_BHS: Log-sum-exp of its scores, natural log, fp32 or fp64; -inf where nothing was
            attended (that row's output must be finite and gets no weight).
        out_b_BSHD: As out_a_BSHD, for block b.
        lse_b_BHS: As lse_a_BHS, for block b.

    Returns:
        (out, lse) as if both blocks had been attended at once. Symmetric in a and b.
    """
    lse_BHS = torch.logaddexp(lse_a_BHS, lse_b_BHS)
    weight_a_BSH1 = _weight(lse_a_BHS, lse_BHS)
    weight_b_BSH1 = _weight(lse_b_BHS, lse_BHS)
    return weight_a_BSH1 * out_a_BSHD + weight_b_BSH1 * out_b_BSHD, lse_BHS


def _weight(part_BHS: Tensor, whole_BHS: Tensor) -> Tensor:
    # -inf minus -inf is NaN where neither block was attended: such a row weighs nothing.
    share_BHS = (part_BHS - whole_BHS).exp().masked_fill(part_BHS == -torch.inf, 0.0)
    return share_BHS.transpose(1, 2).unsqueeze(-1)


@dataclass(frozen=True, slots=True)
class Partial:
    """Attention over the keys seen so far; rows that saw none are (0, -inf)."""

    out: Tensor  # BSHD
    lse: Tensor  # BHS

    @classmethod
    def empty(cls, q_BSHD: Tensor) -> Self:
        """Nothing attended yet, in the accumulator type of `q_BSHD`."""
        batch, rows, heads, _ = q_BSHD.shape
        acc = accumulator_dtype(q_BSHD.dtype)
        out_BSHD = torch.zeros_like(q_BSHD, dtype=acc, memory_format=torch.contiguous_format)
        return cls(out_BSHD, q_BSHD.new_full((batch, heads, rows), -torch.inf, dtype=acc))

    def add(self, rows: Rows, out_BSHD: Tensor, lse_BHS: Tensor) -> None:
        """Merge a block's result into query rows `rows`: merge_partials, in place."""
        mine_BSHD = self.out[:, rows.start : rows.stop]
        mine_BHS = self.lse[:, :, rows.start : rows.stop]
        new_BHS = lse_BHS.to(mine_BHS.dtype)
        both_BHS = torch.logaddexp(mine_BHS, new_BHS)
        # In place and in one pass: no weighted copy of the block's output is made.
        mine_BSHD.mul_(_weight(mine_BHS, both_BHS)).addcmul_(_weight(new_BHS, both_BHS), out_BSHD)
        mine_BHS.copy_(both_BHS)
