"""The decoder that trials train: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Shapes: B batch, S tokens of this rank, H query heads of this rank, K kv heads of this rank, D head
dim, E hidden, V vocab.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from cptune.domain.workload import ModelShape

#: Attention over the whole sequence: (q_BSHD, k_BSKD, v_BSKD) -> out_BSHD.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

_ROPE_BASE = 500_000.0  # Llama 3, arXiv:2407.21783, section 3.2


class Attention(nn.Module):
    """Grouped-query attention; the heads are those of this tensor-parallel rank."""

    def __init__(self, shape: ModelShape, attend: Attend) -> None:
        super().__init__()
        self._head_dim, self._attend = shape.head_dim, attend
        self.q = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x_BSE: Tensor, rotation_SD: Tensor) -> Tensor:
        """x_BSE -> (B, S, E); rotation_SD is complex, one angle per position and pair."""
        q_BSHD, k_BSKD, v_BSKD = (
            layer(x_BSE).unflatten(-1, (-1, self._head_dim)) for layer in (self.q, self.k, self.v)
        )
        q_BSHD, k_BSKD = rotate(q_BSHD, rotation_SD), rotate(k_BSKD, rotation_SD)
        return self.out(self._attend(q_BSHD, k_BSKD, v_BSKD).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x_BSE: Tensor) -> Tensor:
        """x_BSE -> (B, S, E)."""
        return self.down(nn.functional.silu(self.gate(x_BSE)) * self.up(x_BSE))


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: ModelShape, attend: Attend) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.attention = Attention(shape, attend)
        self.mlp_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.mlp = FeedForward(shape)

    def forward(self, x_BSE: Tensor, rotation_SD: Tensor) -> Tensor:
        """x_BSE -> (B, S, E)."""
        x_BSE = x_BSE + self.attention(self.attention_norm(x_BSE), rotation_SD)
        return x_BSE + self.mlp(self.mlp_norm(x_BSE))


class Decoder(nn.Module):
    """A decoder-only transformer over this rank's tokens.

    Args:
        shape: Sizes of the whole model.
        attend: Attention over the whole sequence, given this rank's q, k and v.
    """

    def __init__(self, shape: ModelShape, attend: Attend) -> None:
        super().__init__()
        self._head_dim = shape.head_dim
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape, attend) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens_BS: Tensor, positions_S: Tensor) -> Tensor:
        """Logits (B, S, V); under tensor parallelism a DTensor sharded over V."""
        x_BSE = self.embedding(tokens_BS)
        rotation_SD = rotations(positions_S, head_dim=self._head_dim, dtype=x_BSE.dtype)
        for block in self.blocks:
            x_BSE = block(x_BSE, rotation_SD)
        return self.head(self.norm(x_BSE))


def build_decoder(
    shape: ModelShape,
    *,
    attend: Attend,
    seed: int,
    dtype: torch.dtype,
    tp: DeviceMesh | None,
) -> Decoder:
    """The model with weights that depend on the seed alone, then cut over the tp ranks."""
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(shape, attend).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
    if tp is not None:
        parallelize_module(model, tp, _tensor_plan(shape))
    return model


def rotations(positions_S: Tensor, *, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Unit complex numbers (S, D/2), one angle per global position and pair (arXiv:2104.09864)."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions_S.device)
    angle_SD = positions_S.to(torch.float64)[:, None] * _ROPE_BASE ** (-pairs / head_dim)
    unit_SD = torch.polar(torch.ones_like(angle_SD), angle_SD)
    return unit_SD if dtype is torch.float64 else unit_SD.to(torch.complex64)


def rotate(x_BSHD: Tensor, rotation_SD: Tensor) -> Tensor:
    """Turn neighbouring pairs of the head dimension by the angle of their token's position."""
    real = x_BSHD if x_BSHD.dtype is torch.float64 else x_BSHD.float()
    pairs_BSHD = torch.view_as_complex(real.unflatten(-1, (-1, 2)).contiguous())
    turned_BSHD = torch.view_as_real(pairs_BSHD * rotation_SD[None, :, None, :])
    return turned_BSHD.flatten(-2).to(x_BSHD.dtype)


def _tensor_plan(shape: ModelShape) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    for layer in range(shape.layers):
        block = f"blocks.{layer}"
        # One conversion a module, so that its input gradient is summed over tp once.
        plan |= {
            f"{block}.attention": PrepareModuleInput(
                input_layouts=(Replicate(), None), desired_input_layouts=(Replicate(), None)
            ),
            f"{block}.attention.q": ColwiseParallel(),
            f"{block}.attention.k": ColwiseParallel(),
            f"{block}.attention.v": ColwiseParallel(),
            f"{block}.attention.out": RowwiseParallel(),
            f"{block}.mlp": PrepareModuleInput(
                input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)
            ),
            f"{block}.mlp.gate": ColwiseParallel(),
            f"{block}.mlp.up": ColwiseParallel(),
            f"{block}.mlp.down": RowwiseParallel(),
        }
    return plan
