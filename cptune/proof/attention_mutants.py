"""Wrong implementations of attention, each `ContextParallel` with one of its parts replaced.

Each has the fault that its first line tells, and nothing else; a subclass of several may put them
on other wires.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention import ContextParallel, Plan
from cptune.attention.asked import Asked
from cptune.attention.attention import Attention, Staged
from cptune.attention.kernels import Block, CpuFlash, Kernel
from cptune.attention.merge import Partial
from cptune.attention.rounding import Rounding
from cptune.attention.slices import Rows, Slice
from cptune.attention.staged import Engine, Saved
from cptune.attention.stages import Schedule, Stage, Transfer
from cptune.attention.traffic import Pass
from cptune.attention.transport import KeyValue, Transport
from cptune.attention.ulysses import HeadParallel
from cptune.attention.wire import Exchange


class WithKernel(ContextParallel):
    kernel_of: ClassVar[type[CpuFlash]]

    def _choose_kernel(self, q_BSHD: Tensor, k_BSKD: Tensor) -> Kernel:
        return self.kernel_of()


class CausalDropped(WithKernel):
    """The causal flag never reaches the kernel."""

    class kernel_of(CpuFlash):
        def forward(self, block: Block) -> tuple[Tensor, Tensor]:
            return super().forward(replace(block, causal=False))


class HeadsTiled(WithKernel):
    """Kv heads are tiled over query heads, not repeated."""

    class kernel_of(CpuFlash):
        def forward(self, block: Block) -> tuple[Tensor, Tensor]:
            tiles = block.q.shape[2] // block.k.shape[2]
            k, v = (x.repeat(1, 1, tiles, 1) for x in (block.k, block.v))
            return super().forward(replace(block, k=k, v=v))


class WithPlan(ContextParallel):
    def _build_plan(self, asked: Asked) -> Plan:
        return self.spoil(super()._build_plan(asked))

    def spoil(self, plan: Plan) -> Plan:
        return plan


class DocumentsPadded(WithPlan):
    """Documents are padded to a multiple of two."""

    def spoil(self, plan: Plan) -> Plan:
        docs: list[int] = []
        for length in plan.docs:
            docs.append(min(length + length % 2, plan.partition.seq_len - sum(docs)))
        return replace(plan, docs=tuple(docs))


class WindowForgotten(WithPlan):
    """The window is not part of the plan."""

    def spoil(self, plan: Plan) -> Plan:
        return replace(plan, window=None)


def recast(one: Any, kind: type) -> Any:
    return kind(**{field.name: getattr(one, field.name) for field in fields(one)})


class TopLeftPlan(Plan):
    def schedule(self, rank: int) -> Schedule:
        right = super().schedule(rank)
        blocks = list(right.local)
        for at, (full, causal) in enumerate(pairwise(blocks)):
            if full.full and causal.causal and full.q_start == causal.q_start:
                rows = min(full.q_stop - full.q_start, full.kv_stop - full.kv_start)
                blocks[at : at + 2] = [
                    Slice(
                        q_start=full.q_start,
                        q_stop=full.q_start + rows,
                        kv_start=full.kv_start,
                        kv_stop=full.kv_start + rows,
                        causal=True,
                    )
                ]
                break
        return replace(right, local=tuple(blocks))


class TopLeft(WithPlan):
    """A rectangle and its triangle are one oblong call, aligned top-left."""

    def spoil(self, plan: Plan) -> Plan:
        return recast(plan, TopLeftPlan)


class WrongHalfPlan(Plan):
    def schedule(self, rank: int) -> Schedule:
        right = super().schedule(rank)
        stages = [
            replace(
                stage,
                recv=tuple(self._take_tail(one, owner=one.peer) for one in stage.recv),
                send=tuple(self._take_tail(one, owner=rank) for one in stage.send),
            )
            for stage in right.stages
        ]
        return replace(right, stages=tuple(stages))

    def _take_tail(self, one: Transfer, *, owner: int) -> Transfer:
        stop = self.partition.real_len(owner)
        return Transfer(one.peer, (Rows(stop - one.num_rows, stop),))


class WrongHalf(WithPlan):
    """A peer's last rows are fetched where its first are needed."""

    def spoil(self, plan: Plan) -> Plan:
        return recast(plan, WrongHalfPlan)


class WithEngine(ContextParallel):
    engine_of: ClassVar[type[Engine]]

    def _build_attention(self, q_BSHD: Tensor, **arguments: Any) -> Attention:
        right = super()._build_attention(q_BSHD, **arguments)
        assert isinstance(right, Staged)
        return Staged(recast(right.engine, self.engine_of))


class EmptyRowSaysZero(WithEngine):
    """The log-sum-exp of a row that saw nothing yet is taken as 0."""

    class engine_of(Engine):
        def _attend(self, partial: Partial, slices: Sequence[Slice], **arguments: Any) -> None:
            partial.lse.masked_fill_(partial.lse == -torch.inf, 0.0)
            Engine._attend(self, partial, slices, **arguments)


class RunningSumInBf16(WithEngine):
    """Partial outputs are summed in bf16."""

    class engine_of(Engine):
        def _attend(self, partial: Partial, slices: Sequence[Slice], **arguments: Any) -> None:
            Engine._attend(self, partial, slices, **arguments)
            partial.out.copy_(partial.out.bfloat16())


class PartialLse(WithEngine):
    """Backward takes a log-sum-exp that is not that of all keys."""

    class engine_of(Engine):
        def backward(self, dout_BSHD: Tensor, saved: Saved) -> tuple[Tensor, Tensor]:
            return Engine.backward(self, dout_BSHD, replace(saved, lse=saved.lse - 0.01))


class WithTransport(ContextParallel):
    transport_of: ClassVar[type[Transport]]

    def _build_transport(self, group: dist.ProcessGroup | None) -> Transport:
        right = super()._build_transport(group)
        return self.transport_of(right.kv_wire, right.dkv_wire)


class GradientsLost(WithTransport):
    """One stage's gradients never go home."""

    class transport_of(Transport):
        returns = 0

        def give_back(self, stage: Stage, dkv_R2BKD: Tensor, *, rounding: Rounding) -> Exchange:
            self.returns += 1
            if self.returns == 2:
                dkv_R2BKD = torch.zeros_like(dkv_R2BKD)
            return super().give_back(stage, dkv_R2BKD, rounding=rounding)


class StaleInBackward(WithTransport):
    """Backward attends the keys of the stage before."""

    class transport_of(Transport):
        def stream(
            self, stages: Sequence[Stage], kv: KeyValue, *, during: Pass
        ) -> Iterator[tuple[int, KeyValue]]:
            last: KeyValue | None = None
            for index, fresh in super().stream(stages, kv, during=during):
                given = KeyValue(*(x_BRKD.clone() for x_BRKD in fresh))
                if during is Pass.BACKWARD and last is not None:
                    rows = min(last.k.shape[1], given.k.shape[1])
                    for x_BRKD, old_BRKD in zip(given, last, strict=True):
                        x_BRKD[:, :rows] = old_BRKD[:, :rows]
                yield index, given
                last = fresh


class ValuesForKeys(WithTransport):
    """A peer's two messages are taken for one another."""

    class transport_of(Transport):
        def stream(
            self, stages: Sequence[Stage], kv: KeyValue, *, during: Pass
        ) -> Iterator[tuple[int, KeyValue]]:
            for index, found in super().stream(stages, kv, during=during):
                yield index, KeyValue(found.v, found.k)


class LocalPositions(ContextParallel):
    """Positions count the rows of the rank."""

    @property
    def positions(self) -> Tensor:
        return torch.arange(self.local_len)


class SeamLate(ContextParallel):
    """Positions go on one late where the rows of another rank begin."""

    @property
    def positions(self) -> Tensor:
        assert self.group is not None, "a context of one rank has no seam"
        return super().positions + min(1, self.group.rank())


class PaddingAttended(WithPlan):
    """A shard sees the first of its rows of padding, as if it were a token."""

    def spoil(self, plan: Plan) -> Plan:
        return recast(plan, _PaddedPlan)


class _PaddedPlan(Plan):
    def schedule(self, rank: int) -> Schedule:
        right = super().schedule(rank)
        rows = right.rows
        if rows == self.partition.local_len:
            return right
        more = Slice(q_start=0, q_stop=rows, kv_start=rows, kv_stop=rows + 1, causal=False)
        return replace(right, local=(*right.local, more))


class TokensOutOfOrder(ContextParallel):
    """Ulysses attends the tokens member by member, not in order."""

    def _build_attention(self, q_BSHD: Tensor, **arguments: Any) -> Attention:
        right = super()._build_attention(q_BSHD, **arguments)
        assert isinstance(right, HeadParallel)
        return replace(
            right, trade=replace(right.trade, places=torch.arange(self.partition.seq_len))
        )


class NothingFetched(WithPlan):
    """Every rank attends its own rows alone, as though there were no other."""

    def spoil(self, plan: Plan) -> Plan:
        return recast(plan, _LonelyPlan)


class _LonelyPlan(Plan):
    def schedule(self, rank: int) -> Schedule:
        return replace(super().schedule(rank), stages=())


class WrongScale(ContextParallel):
    """Scores are scaled by the heads of the whole model's width."""

    def attend(
        self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, scale: float | None = None
    ) -> Tensor:
        """As ContextParallel.attend."""
        wrong = (q_BSHD.shape[2] * q_BSHD.shape[3]) ** -0.5
        return super().attend(q_BSHD, k_BSKD, v_BSKD, scale or wrong)
