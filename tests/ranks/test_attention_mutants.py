"""Fifteen wrong implementations: the exactness check must refuse every one of them.

Those that ship as planted faults, put on wires of memory, and ReusedReturnBuffer: the gradients of
all stages share one buffer, sent or not, which no other wire is slow enough to show.
"""

import time

import pytest
import torch
import torch.distributed as dist
from attention_cases import HEAD_DIM, Shape, View, attend_naively, make_inputs, rotate
from simulated_ranks import MemoryGroup, MemoryWire, SimulatedContextParallel, run_simulated
from test_attention_exact import TOLERANCE
from torch import Tensor

from cptune.attention import ContextParallel
from cptune.attention.rounding import Rounding
from cptune.attention.stages import Stage
from cptune.attention.transport import Transport
from cptune.attention.wire import Exchange
from cptune.proof import attention_mutants as planted

SEQ_LEN = 37
SHAPE = Shape(1, heads=4, kv_heads=2)


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


CAUSAL = View("causal")
PACKED = View("document", docs=(7, 0, 1, 13, 16))
WINDOW = View("causal", window=5)
#: fault -> the case that must refuse it
FAULTS: dict[type[ContextParallel], tuple[View, str]] = {
    planted.CausalDropped: (CAUSAL, "ring"),
    planted.TopLeft: (CAUSAL, "ring"),
    planted.EmptyRowSaysZero: (CAUSAL, "ring"),
    planted.RunningSumInBf16: (CAUSAL, "ring"),
    planted.GradientsLost: (CAUSAL, "ring"),
    planted.StaleInBackward: (CAUSAL, "ring"),
    planted.ValuesForKeys: (CAUSAL, "ring"),
    planted.WrongHalf: (CAUSAL, "ring"),
    planted.DocumentsPadded: (PACKED, "ring"),
    planted.HeadsTiled: (CAUSAL, "ring"),
    planted.LocalPositions: (PACKED, "ring"),
    ReusedReturnBuffer: (CAUSAL, "ring"),
    planted.PartialLse: (CAUSAL, "ring"),
    planted.WindowForgotten: (WINDOW, "ring"),
    planted.TokensOutOfOrder: (CAUSAL, "ulysses"),
}


def simulated(fault: type[ContextParallel]) -> type[ContextParallel]:
    """The fault, on wires of memory."""
    return type(fault.__name__, (fault, SimulatedContextParallel), {})


MUTANTS = {simulated(fault): case for fault, case in FAULTS.items()}


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


def test_there_are_at_least_twelve() -> None:
    assert len(MUTANTS) >= 12
    assert HEAD_DIM % 2 == 0
