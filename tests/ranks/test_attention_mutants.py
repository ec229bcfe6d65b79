"""Fifteen wrong implementations: the exactness check must refuse every one of them.

CausalDropped          the causal flag never reaches the kernel
TopLeft                a rectangle and its triangle are one oblong call, aligned top-left
EmptyRowSaysZero       the log-sum-exp of a row that saw nothing yet is taken as 0
RunningSumInBf16       partial outputs are summed in bf16
GradientsLost          one stage's gradients never go home
StaleInBackward        backward attends the keys of the stage before
ValuesForKeys          a peer's two messages are taken for one another
WrongHalf              a peer's last rows are fetched where its first are needed
DocumentsPadded        documents are padded to a multiple of two
HeadsTiled             kv heads are tiled over query heads, not repeated
LocalPositions         positions count the rows of the rank
ReusedReturnBuffer     the gradients of all stages share one buffer, sent or not
PartialLse             backward takes a log-sum-exp that is not that of all keys
WindowForgotten        the window is not part of the plan
TokensOutOfOrder       Ulysses attends the tokens member by member, not in order
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from attention_cases import HEAD_DIM, Shape, View, attend_naively, make_inputs, rotate
from simulated_ranks import MemoryGroup, MemoryWire, SimulatedContextParallel, run_simulated
from test_attention_exact import TOLERANCE
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
from cptune.attention.wire import Exchange

SEQ_LEN = 37
SHAPE = Shape(1, heads=4, kv_heads=2)


class WithKernel(SimulatedContextParallel):
    kernel_of: type[CpuFlash]

    def _choose_kernel(self, q_BSHD: Tensor, k_BSKD: Tensor) -> Kernel:
        return self.kernel_of()


class CausalDropped(WithKernel):
    class kernel_of(CpuFlash):  # noqa: N801
        def forward(self, block: Block) -> tuple[Tensor, Tensor]:
            return super().forward(replace(block, causal=False))


class HeadsTiled(WithKernel):
    class kernel_of(CpuFlash):  # noqa: N801
        def forward(self, block: Block) -> tuple[Tensor, Tensor]:
            tiles = block.q.shape[2] // block.k.shape[2]
            k, v = (x.repeat(1, 1, tiles, 1) for x in (block.k, block.v))
            return super().forward(replace(block, k=k, v=v))


class WithPlan(SimulatedContextParallel):
    def _build_plan(self, asked: Asked) -> Plan:
        return self.spoil(super()._build_plan(asked))

    def spoil(self, plan: Plan) -> Plan:
        raise NotImplementedError


class DocumentsPadded(WithPlan):
    def spoil(self, plan: Plan) -> Plan:
        docs: list[int] = []
        for length in plan.docs:
            docs.append(min(length + length % 2, plan.partition.seq_len - sum(docs)))
        return replace(plan, docs=tuple(docs))


class WindowForgotten(WithPlan):
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
    def spoil(self, plan: Plan) -> Plan:
        return recast(plan, WrongHalfPlan)


class WithEngine(SimulatedContextParallel):
    engine_of: type[Engine]

    def _build_attention(self, q_BSHD: Tensor, **arguments: Any) -> Attention:
        right = super()._build_attention(q_BSHD, **arguments)
        assert isinstance(right, Staged)
        return Staged(recast(right.engine, self.engine_of))


class EmptyRowSaysZero(WithEngine):
    class engine_of(Engine):  # noqa: N801
        def _attend(self, partial: Partial, slices: Sequence[Slice], **arguments: Any) -> None:
            partial.lse.masked_fill_(partial.lse == -torch.inf, 0.0)
            Engine._attend(self, partial, slices, **arguments)


class RunningSumInBf16(WithEngine):
    class engine_of(Engine):  # noqa: N801
        def _attend(self, partial: Partial, slices: Sequence[Slice], **arguments: Any) -> None:
            Engine._attend(self, partial, slices, **arguments)
            partial.out.copy_(partial.out.bfloat16())


class PartialLse(WithEngine):
    class engine_of(Engine):  # noqa: N801
        def backward(self, dout_BSHD: Tensor, saved: Saved) -> tuple[Tensor, Tensor]:
            return Engine.backward(self, dout_BSHD, replace(saved, lse=saved.lse - 0.01))


class WithTransport(SimulatedContextParallel):
    transport_of: type[Transport]

    def _build_transport(self, group: dist.ProcessGroup | None) -> Transport:
        right = super()._build_transport(group)
        return self.transport_of(right.kv_wire, right.dkv_wire)


class GradientsLost(WithTransport):
    class transport_of(Transport):  # noqa: N801
        returns = 0

        def give_back(self, stage: Stage, dkv_R2BKD: Tensor, *, rounding: Rounding) -> Exchange:
            self.returns += 1
            if self.returns == 2:
                dkv_R2BKD = torch.zeros_like(dkv_R2BKD)
            return super().give_back(stage, dkv_R2BKD, rounding=rounding)


class StaleInBackward(WithTransport):
    class transport_of(Transport):  # noqa: N801
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
    class transport_of(Transport):  # noqa: N801
        def stream(
            self, stages: Sequence[Stage], kv: KeyValue, *, during: Pass
        ) -> Iterator[tuple[int, KeyValue]]:
            for index, found in super().stream(stages, kv, during=during):
                yield index, KeyValue(found.v, found.k)


class SlowWire(MemoryWire):
    """Takes a message long after it was posted, as a slow link may."""

    def post(self, *, recv, send):
        works = super().post(recv=recv, send=send)
        if self.kind == "dkv":
            for work in works[: len(recv)]:
                work.wait = lambda wait=work.wait: (time.sleep(0.05), wait())[1]
        return works


class ReusedReturnBuffer(SimulatedContextParallel):
    class Reusing(Transport):
        held: Tensor | None = None

        def give_back(self, stage: Stage, dkv_R2BKD: Tensor, *, rounding: Rounding) -> Exchange:
            if self.held is None:
                self.held = dkv_R2BKD.new_zeros((SEQ_LEN, *dkv_R2BKD.shape[1:]))
            shared_R2BKD = self.held[: len(dkv_R2BKD)]
            shared_R2BKD.copy_(dkv_R2BKD)
            return super().give_back(stage, shared_R2BKD, rounding=rounding)

    def _build_transport(self, group: dist.ProcessGroup | None) -> Transport:
        assert isinstance(group, MemoryGroup)
        wires = (SlowWire(group.switch, kind, group.rank()) for kind in ("kv", "dkv"))
        return self.Reusing(*wires)


class LocalPositions(SimulatedContextParallel):
    @property
    def positions(self) -> Tensor:
        return torch.arange(self.local_len)


class TokensOutOfOrder(SimulatedContextParallel):
    def _build_attention(self, q_BSHD: Tensor, **arguments: Any) -> Attention:
        right = super()._build_attention(q_BSHD, **arguments)
        return replace(right, trade=replace(right.trade, places=torch.arange(SEQ_LEN)))


CAUSAL = View("causal")
PACKED = View("document", docs=(7, 0, 1, 13, 16))
#: mutant -> the case that must refuse it
MUTANTS: dict[type[ContextParallel], tuple[View, str]] = {
    CausalDropped: (CAUSAL, "ring"),
    TopLeft: (CAUSAL, "ring"),
    EmptyRowSaysZero: (CAUSAL, "ring"),
    RunningSumInBf16: (CAUSAL, "ring"),
    GradientsLost: (CAUSAL, "ring"),
    StaleInBackward: (CAUSAL, "ring"),
    ValuesForKeys: (CAUSAL, "ring"),
    WrongHalf: (CAUSAL, "ring"),
    DocumentsPadded: (PACKED, "ring"),
    HeadsTiled: (CAUSAL, "ring"),
    LocalPositions: (PACKED, "ring"),
    ReusedReturnBuffer: (CAUSAL, "ring"),
    PartialLse: (CAUSAL, "ring"),
    WindowForgotten: (View("causal", window=5), "ring"),
    TokensOutOfOrder: (CAUSAL, "ulysses"),
}


def positions_of(view: View) -> Tensor:
    docs = view.docs or (SEQ_LEN,)
    return torch.cat([torch.arange(length) for length in docs])


def worst_error(made_by: type[ContextParallel], *, view: View, strategy: str, world: int) -> float:
    """Largest error of out, dq, dk, dv on any rank, with rotary embeddings by `positions`."""
    inputs = make_inputs(SEQ_LEN, SHAPE, torch.float64)

    def act(cp: ContextParallel) -> list[Tensor]:
        q, k, v, dout = (cp.shard(x, dim=1).requires_grad_() for x in inputs)
        out = cp.attend(rotate(q, cp.positions), rotate(k, cp.positions), v)
        grads = torch.autograd.grad(out, (q, k, v), dout.detach())
        return [x.detach()[:, cp.valid] for x in (out, *grads)]

    arguments = {"mask": view.mask, "docs": view.docs, "window": view.window}
    per_rank = run_simulated(
        act, cp_size=world, made_by=made_by, seq_len=SEQ_LEN, strategy=strategy, **arguments
    )
    owned = run_simulated(
        lambda cp: cp.partition.positions(cp._rank),
        cp_size=world,
        seq_len=SEQ_LEN,
        strategy=strategy,
        **arguments,
    )
    wanted = rotated_reference(inputs, view)
    return max(
        (x - y[:, at]).abs().nan_to_num(torch.inf).max().item()
        for found, at in zip(per_rank, owned, strict=True)
        for x, y in zip(found, wanted, strict=True)
    )


def rotated_reference(inputs: list[Tensor], view: View) -> list[Tensor]:
    q, k, v = (x.clone().requires_grad_() for x in inputs[:3])
    at = positions_of(view)
    out = attend_naively(rotate(q, at), rotate(k, at), v, view)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), inputs[3])]


@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize(("view", "strategy"), sorted(set(MUTANTS.values()), key=str))
def test_the_check_accepts_the_real_one(view: View, strategy: str, world: int) -> None:
    found = worst_error(SimulatedContextParallel, view=view, strategy=strategy, world=world)
    assert found <= TOLERANCE


@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_check_refuses_a_mutant(mutant: type[ContextParallel], world: int) -> None:
    view, strategy = MUTANTS[mutant]
    assert worst_error(mutant, view=view, strategy=strategy, world=world) > 1e-6


def test_there_are_at_least_twelve_and_each_is_told() -> None:
    assert len(MUTANTS) >= 12
    told = [line.split()[0] for line in __doc__.splitlines()[2:] if line]
    assert told == [mutant.__name__ for mutant in MUTANTS]
    assert HEAD_DIM % 2 == 0
