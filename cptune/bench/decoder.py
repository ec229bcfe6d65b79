"""The decoder that trials train: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

One `Decoder` is one pipeline chunk: some of the layers, with the embedding if it is the first and
the final norm and the head if it is the last. A model that is not cut is first and last at once.

Shapes: B batch, S tokens of this rank, H query heads of this rank, K kv heads of this rank, D head
dim, E hidden, V vocab.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cptune.bench.memory import recomputation
from cptune.domain.candidate import Recompute
from cptune.domain.workload import ModelShape

#: Attention over the whole sequence: (q_BSHD, k_BSKD, v_BSKD) -> out_BSHD.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where the tokens of one pass stand, and how they attend.

    Positions are (B, S), or (1, S) where they are the same in every sequence.
    """

    positions_BS: Tensor
    attend: Attend


_ROPE_BASE = 500_000.0  # Llama 3, arXiv:2407.21783, section 3.2
_NORM_EPS = 1e-5
_INIT_STD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Which part of the model a decoder is."""

    layers: range
    is_first: bool
    is_last: bool

    @staticmethod
    def whole(shape: ModelShape) -> Chunk:
        """The model in one piece."""
        return Chunk(layers=range(shape.layers), is_first=True, is_last=True)


class KvProjection(nn.Linear):
    """Keys or values of all kv heads; `own` limits them to some rows of the weight.

    Set where tensor-parallel ranks outnumber the kv heads: the weight is the same on all of them,
    each computes the head that its query heads read, and the gradients are summed over the ranks.
    """

    own: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """(B, S, E) -> (B, S, K*D)."""
        if self.own is None:
            return super().forward(input)
        return nn.functional.linear(*self.own(input, self.weight))


class Attention(nn.Module):
    """Grouped-query attention; the heads are those of this tensor-parallel rank."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self._head_dim = shape.head_dim
        self.q = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k = KvProjection(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v = KvProjection(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x_BSE: Tensor, rotation_BSD: Tensor, attend: Attend) -> Tensor:
        """x_BSE -> (B, S, E); rotation_BSD is complex, one angle per position and pair."""
        q_BSHD, k_BSKD, v_BSKD = (
            layer(x_BSE).unflatten(-1, (-1, self._head_dim)) for layer in (self.q, self.k, self.v)
        )
        q_BSHD, k_BSKD = rotate(q_BSHD, rotation_BSD), rotate(k_BSKD, rotation_BSD)
        return self.out(attend(q_BSHD, k_BSKD, v_BSKD).flatten(-2))


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
    """One decoder layer. Selective recompute computes its feed-forward half again in backward."""

    def __init__(self, shape: ModelShape, recompute: Recompute) -> None:
        super().__init__()
        self._recompute = recompute
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=_NORM_EPS)
        self.attention = Attention(shape)
        self.mlp_norm = nn.RMSNorm(shape.hidden, eps=_NORM_EPS)
        self.mlp = FeedForward(shape)

    def forward(self, x_BSE: Tensor, rotation_BSD: Tensor, attend: Attend) -> Tensor:
        """x_BSE -> (B, S, E)."""
        # `attend` is an argument: what is computed again must attend as it did the first time.
        if self._recompute is Recompute.FULL:
            return _checkpoint(self._both, x_BSE, rotation_BSD, attend)
        return self._both(x_BSE, rotation_BSD, attend)

    def _both(self, x_BSE: Tensor, rotation_BSD: Tensor, attend: Attend) -> Tensor:
        x_BSE = x_BSE + self.attention(self.attention_norm(x_BSE), rotation_BSD, attend)
        if self._recompute is Recompute.SELECTIVE:
            return x_BSE + _checkpoint(self._feed, x_BSE)
        return x_BSE + self._feed(x_BSE)

    def _feed(self, x_BSE: Tensor) -> Tensor:
        return self.mlp(self.mlp_norm(x_BSE))


def _checkpoint(part: Callable[..., Tensor], *inputs: Tensor | Attend) -> Tensor:
    return checkpoint(part, *inputs, use_reentrant=False, context_fn=recomputation)


class Decoder(nn.Module):
    """A chunk of a decoder-only transformer over this rank's tokens.

    Args:
        shape: Sizes of the whole model.
        chunk: The part that this is.
        attend: Attention over the whole sequence, given this rank's q, k and v.
        positions_S: Global position of each of this rank's tokens.
        recompute: Which activations are computed again in backward.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        chunk: Chunk,
        attend: Attend,
        positions_S: Tensor,
        recompute: Recompute = Recompute.NONE,
    ) -> None:
        super().__init__()
        self._head_dim = shape.head_dim
        #: What the next pass attends; the same for all unless somebody sets it.
        self.context = Context(positions_BS=positions_S[None], attend=attend)
        self.chunk = chunk
        if chunk.is_first:
            self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        # By the layer's number in the whole model, so that a name means the same in every cut.
        self.blocks = nn.ModuleDict({str(layer): Block(shape, recompute) for layer in chunk.layers})
        if chunk.is_last:
            self.norm = nn.RMSNorm(shape.hidden, eps=_NORM_EPS)
            self.to_head = nn.Identity()  # where the rows of all tp ranks come together
            self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, S) in the first chunk, else (B, S, E) -> (B, S, E).

        The last chunk returns what the head reads: the head belongs to the loss, which decides how
        much of the logits is held at once.
        """
        x_BSE = self.embedding(x) if self.chunk.is_first else x
        context = self.context
        rotation_BSD = rotations(context.positions_BS, head_dim=self._head_dim, dtype=x_BSE.dtype)
        for block in self.blocks.values():
            x_BSE = block(x_BSE, rotation_BSD, context.attend)
        return self.norm(x_BSE) if self.chunk.is_last else x_BSE


def initialise(model: nn.Module, *, seed: int) -> None:
    """Set each matrix from the seed and its own name, so that no cut changes a weight."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
                generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
                parameter.normal_(0.0, _INIT_STD, generator=generator)


def rotations(positions_BS: Tensor, *, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Unit complex numbers (B, S, D/2), one angle per position and pair (arXiv:2104.09864)."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions_BS.device)
    angle_BSD = positions_BS.to(torch.float64)[..., None] * _ROPE_BASE ** (-pairs / head_dim)
    unit_BSD = torch.polar(torch.ones_like(angle_BSD), angle_BSD)
    return unit_BSD if dtype is torch.float64 else unit_BSD.to(torch.complex64)


def rotate(x_BSHD: Tensor, rotation_BSD: Tensor) -> Tensor:
    """Turn neighbouring pairs of the head dimension by the angle of their token's position."""
    real = x_BSHD if x_BSHD.dtype is torch.float64 else x_BSHD.float()
    pairs_BSHD = torch.view_as_complex(real.unflatten(-1, (-1, 2)).contiguous())
    turned_BSHD = torch.view_as_real(pairs_BSHD * rotation_BSD[:, :, None, :])
    return turned_BSHD.flatten(-2).to(x_BSHD.dtype)
