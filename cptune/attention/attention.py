"""The door of staged attention into autograd.

Shapes: B batch, S rows of this rank (padding included), R real rows, 2 key and value,
H query heads, K kv heads, D head dim.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cptune.attention.staged import Engine, Saved
from cptune.attention.transport import unpack_kv


class Attention(Protocol):
    """Both halves on one rank. Collective: all ranks run both."""

    def forward(self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> tuple[Tensor, Saved]:
        """Return (out_BSHD in the type of q, what backward needs)."""
        ...

    def backward(
        self, dout_BSHD: Tensor, saved: Saved, *, kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (dq_BSHD, dk_BSKD, dv_BSKD) in the type of the inputs, zeros in padding."""
        ...


@dataclass(frozen=True, slots=True)
class Staged:
    """All heads over this rank's own tokens."""

    engine: Engine

    def forward(self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> tuple[Tensor, Saved]:
        """As Attention.forward."""
        partial = self.engine.forward(q_BSHD, k_BSKD, v_BSKD)
        out_BSHD = partial.out.to(q_BSHD.dtype)
        return out_BSHD, Saved(q_BSHD, k_BSKD, v_BSKD, out_BSHD, partial.lse)

    def backward(
        self,
        dout_BSHD: Tensor,
        saved: Saved,
        *,
        kv_heads: int,  # noqa: ARG002 - of the shards, as saved
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As Attention.backward."""
        dq_BSHD, dkv_R2BKD = self.engine.backward(dout_BSHD, saved)
        return dq_BSHD.to(saved.q.dtype), *_unpack_padded(dkv_R2BKD, saved.k)


class _Context(Protocol):
    attention: Attention
    kv_heads: int
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


# Autograd declares its two methods for any arguments at all, and typing.override is Python 3.12's.
class _StagedAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # pyrefly: ignore[bad-override, missing-override-decorator]
        ctx: _Context, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, attention: Attention
    ) -> Tensor:
        with _as_given(q_BSHD):
            out_BSHD, saved = attention.forward(q_BSHD, k_BSKD, v_BSKD)
        ctx.attention, ctx.kv_heads = attention, k_BSKD.shape[2]
        ctx.save_for_backward(saved.q, saved.k, saved.v, saved.out, saved.lse)
        return out_BSHD

    @staticmethod
    @once_differentiable
    def backward(  # pyrefly: ignore[bad-override, missing-override-decorator]
        ctx: _Context, dout_BSHD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        # A gradient may come expanded (stride 0), which no kernel wants to read.
        saved = Saved(*ctx.saved_tensors)
        with _as_given(dout_BSHD):
            found = ctx.attention.backward(dout_BSHD.contiguous(), saved, kv_heads=ctx.kv_heads)
        return *found, None


Attend = TypeVar("Attend", bound=Callable[..., Tensor])


def outside_of_graphs(attend: Attend) -> Attend:
    """Have torch.compile end its graph before attention and begin another one after it.

    What is exchanged is no part of a graph. The compiler is imported by those who use it alone.
    """

    @wraps(attend)
    def run(*given: object, **named: object) -> Tensor:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(attend)(*given, **named)
        return attend(*given, **named)

    return cast(Attend, run)


def _as_given(x: Tensor) -> torch.autocast:
    """Autocast narrows matrix products, also those that are to be exact."""
    return torch.autocast(x.device.type, enabled=False)


def attend_staged(
    q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, *, attention: Attention
) -> Tensor:
    """Attend over the whole sequence from this rank's rows; differentiable once.

    All ranks of the group call it together, and run its backward together.
    """
    return cast(Tensor, _StagedAttention.apply(q_BSHD, k_BSKD, v_BSKD, attention))


def _unpack_padded(dkv_R2BKD: Tensor, like_BSKD: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the real rows, and zeros for the padded ones, as `like_BSKD`."""
    rows = dkv_R2BKD.shape[0]
    dk_BSKD, dv_BSKD = like_BSKD.new_zeros(like_BSKD.shape), like_BSKD.new_zeros(like_BSKD.shape)
    dk_BRKD, dv_BRKD = unpack_kv(dkv_R2BKD)
    dk_BSKD[:, :rows], dv_BSKD[:, :rows] = dk_BRKD, dv_BRKD
    return dk_BSKD, dv_BSKD
