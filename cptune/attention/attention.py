"""The forward and backward of staged attention, and their door into autograd.

Shapes: B batch, S rows of this rank (padding included), R rows of a message, 2 key and value,
H query heads, K kv heads, D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cptune.attention.kernels import Block, Kernel
from cptune.attention.mask import Slice
from cptune.attention.merge import Partial, accumulator_dtype
from cptune.attention.plan import Rows, Schedule, Stage
from cptune.attention.traffic import Pass
from cptune.attention.transport import Exchange, Transport, pack_kv, unpack_kv


@dataclass(frozen=True, slots=True)
class Saved:
    """What backward needs: the inputs, the whole output and its log-sum-exp over all keys."""

    q: Tensor  # BSHD
    k: Tensor  # BSKD
    v: Tensor  # BSKD
    out: Tensor  # BSHD
    lse: Tensor  # BHS


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One rank's schedule with what carries it out. Collective: all ranks run both halves."""

    schedule: Schedule
    transport: Transport
    kernel: Kernel
    scale: float

    def forward(self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> Partial:
        """Attend the own rows, then stage by stage; padded rows stay (0, -inf)."""
        own_R2BKD = pack_kv(k_BSKD, v_BSKD, rows=self.schedule.rows)
        stream = self.transport.stream(self.schedule.stages, own_R2BKD, during=Pass.FORWARD)
        partial = Partial.empty(q_BSHD)
        self._attend(partial, self.schedule.local, q_BSHD=q_BSHD, kv_R2BKD=own_R2BKD)
        for stage, kv_R2BKD in stream:
            self._attend(partial, stage.slices, q_BSHD=q_BSHD, kv_R2BKD=kv_R2BKD)
            del kv_R2BKD  # before the stream makes room for the stage after next
        return partial

    def backward(self, dout_BSHD: Tensor, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
        """Fetch keys and values again; send each stage's gradients straight to their owners.

        Host work stands at both ends: the causal blocks hide the first fetch, the own full blocks
        hide the last return. A return is taken in once the next one is posted, so that at most two
        are in flight: of a ring, neither keys nor gradients ever hold more than a few shards.
        """
        own_R2BKD = pack_kv(saved.k, saved.v, rows=self.schedule.rows)
        stream = self.transport.stream(self.schedule.stages, own_R2BKD, during=Pass.BACKWARD)
        sums = _Sums(self, dout_BSHD=dout_BSHD, saved=saved)
        dkv_R2BKD = _zeros(own_R2BKD)
        first = [one for one in self.schedule.local if one.causal]
        last = [one for one in self.schedule.local if not one.causal]
        sums.add(first, kv_R2BKD=own_R2BKD, dkv_R2BKD=dkv_R2BKD)
        returning: _Return | None = None
        for stage, kv_R2BKD in stream:
            newer = self._give_back(stage, kv_R2BKD, sums=sums)
            del kv_R2BKD  # before the stream makes room for the stage after next
            if returning:
                returning.add_to(dkv_R2BKD)
            returning = newer
        sums.add(last, kv_R2BKD=own_R2BKD, dkv_R2BKD=dkv_R2BKD)
        if returning:
            returning.add_to(dkv_R2BKD)
        return sums.dq_BSHD.to(saved.q.dtype), *_unpack_padded(dkv_R2BKD, saved.k)

    def _give_back(self, stage: Stage, kv_R2BKD: Tensor, *, sums: "_Sums") -> "_Return":
        """Compute and post the gradients of the peers' rows of `stage`."""
        peers_R2BKD = _zeros(kv_R2BKD)
        sums.add(stage.slices, kv_R2BKD=kv_R2BKD, dkv_R2BKD=peers_R2BKD)
        # Rounded once, to the type on the wire; the owner adds in the accumulator type.
        return _Return(stage, self.transport.give_back(stage, peers_R2BKD.to(kv_R2BKD.dtype)))

    def block(self, one: Slice, *, q_BSHD: Tensor, kv_R2BKD: Tensor) -> Block:
        """The rows of one slice."""
        k_BRKD, v_BRKD = unpack_kv(kv_R2BKD[one.kv_start : one.kv_stop])
        q_BSHD = q_BSHD[:, one.q_start : one.q_stop]
        return Block(q_BSHD, k_BRKD, v_BRKD, causal=one.causal, scale=self.scale)

    def _attend(
        self, partial: Partial, slices: Sequence[Slice], *, q_BSHD: Tensor, kv_R2BKD: Tensor
    ) -> None:
        for one in slices:
            out_BSHD, lse_BHS = self.kernel.forward(
                self.block(one, q_BSHD=q_BSHD, kv_R2BKD=kv_R2BKD)
            )
            partial.add(Rows(one.q_start, one.q_stop), out_BSHD, lse_BHS)


@dataclass(frozen=True, slots=True)
class _Return:
    """Gradients of one stage, on their way from the peers that computed them to this rank."""

    stage: Stage
    exchange: Exchange

    def add_to(self, dkv_R2BKD: Tensor) -> None:
        """Wait, and add what came for our rows, in the order of the stage's sends."""
        parts = self.exchange.wait().split([rows.num_rows for _, rows in self.stage.send])
        for (_, rows), part_R2BKD in zip(self.stage.send, parts, strict=True):
            dkv_R2BKD[rows.start : rows.stop] += part_R2BKD
        self.exchange.finish()


class _Sums:
    """The gradients of one backward, summed over blocks in the accumulator type."""

    def __init__(self, engine: Engine, *, dout_BSHD: Tensor, saved: Saved) -> None:
        self._engine, self._dout_BSHD, self._saved = engine, dout_BSHD, saved
        self.dq_BSHD = _zeros(saved.q)

    def add(self, slices: Sequence[Slice], *, kv_R2BKD: Tensor, dkv_R2BKD: Tensor) -> None:
        """Add blocks: to the query gradient, and to `dkv_R2BKD` where their keys lie."""
        dk_BRKD, dv_BRKD = unpack_kv(dkv_R2BKD)
        for one in slices:
            queries, keys = slice(one.q_start, one.q_stop), slice(one.kv_start, one.kv_stop)
            dq, dk, dv = self._engine.kernel.backward(
                self._engine.block(one, q_BSHD=self._saved.q, kv_R2BKD=kv_R2BKD),
                dout_BSHD=self._dout_BSHD[:, queries],
                out_BSHD=self._saved.out[:, queries],
                lse_BHS=self._saved.lse[:, :, queries],
            )
            self.dq_BSHD[:, queries] += dq
            dk_BRKD[:, keys] += dk
            dv_BRKD[:, keys] += dv


class _Context(Protocol):
    engine: Engine
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


# Autograd declares its two methods for any arguments at all, and typing.override is Python 3.12's.
class _StagedAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # pyrefly: ignore[bad-override, missing-override-decorator]
        ctx: _Context, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, engine: Engine
    ) -> Tensor:
        partial = engine.forward(q_BSHD, k_BSKD, v_BSKD)
        out_BSHD = partial.out.to(q_BSHD.dtype)
        ctx.engine = engine
        ctx.save_for_backward(q_BSHD, k_BSKD, v_BSKD, out_BSHD, partial.lse)
        return out_BSHD

    @staticmethod
    @once_differentiable
    def backward(  # pyrefly: ignore[bad-override, missing-override-decorator]
        ctx: _Context, dout_BSHD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        # A gradient may come expanded (stride 0), which no kernel wants to read.
        return *ctx.engine.backward(dout_BSHD.contiguous(), Saved(*ctx.saved_tensors)), None


def check_heads(q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> None:
    """Refuse queries, keys and values that do not fit together.

    Raises:
        ValueError: Their shapes or types differ where they must not.
    """
    shapes = f"q {tuple(q_BSHD.shape)}, k {tuple(k_BSKD.shape)}, v {tuple(v_BSKD.shape)}"
    if {q_BSHD.ndim, k_BSKD.ndim, v_BSKD.ndim} != {4}:
        raise ValueError(f"shapes are {shapes}, wanted (batch, rows, heads, head_dim) each")
    if k_BSKD.shape != v_BSKD.shape:
        raise ValueError(f"shapes are {shapes}, wanted k and v alike")
    (batch, _, heads, head_dim), (kv_batch, _, kv_heads, kv_head_dim) = q_BSHD.shape, k_BSKD.shape
    if (batch, head_dim) != (kv_batch, kv_head_dim):
        raise ValueError(f"shapes are {shapes}, wanted equal batch and head_dim")
    if kv_heads < 1 or heads % kv_heads:
        nearest = max(kv_heads, heads - heads % max(kv_heads, 1))
        raise ValueError(
            f"q has {heads} heads, wanted a multiple of the {kv_heads} kv heads; "
            f"nearest is {nearest}"
        )
    if not q_BSHD.dtype == k_BSKD.dtype == v_BSKD.dtype:
        raise ValueError(
            f"dtypes are q {q_BSHD.dtype}, k {k_BSKD.dtype}, v {v_BSKD.dtype}, wanted one"
        )


def attend_staged(q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, *, engine: Engine) -> Tensor:
    """Attend over the whole sequence from this rank's rows; differentiable once.

    All ranks of the group call it together, and run its backward together.
    """
    return cast(Tensor, _StagedAttention.apply(q_BSHD, k_BSKD, v_BSKD, engine))


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros(like.shape, dtype=accumulator_dtype(like.dtype), device=like.device)


def _unpack_padded(dkv_R2BKD: Tensor, like_BSKD: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the real rows, and zeros for the padded ones, as `like_BSKD`."""
    rows = dkv_R2BKD.shape[0]
    dk_BSKD, dv_BSKD = like_BSKD.new_zeros(like_BSKD.shape), like_BSKD.new_zeros(like_BSKD.shape)
    dk_BRKD, dv_BRKD = unpack_kv(dkv_R2BKD)
    dk_BSKD[:, :rows], dv_BSKD[:, :rows] = dk_BRKD, dv_BRKD
    return dk_BSKD, dv_BSKD
