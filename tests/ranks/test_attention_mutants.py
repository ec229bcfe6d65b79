"""Four wrong implementations: the exactness check must refuse every one of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from attention_cases import Shape, run_case
from rank_pool import RankPool
from test_attention_exact import TOLERANCE
from torch import Tensor

from cptune.attention import ContextParallel, Mask, Partition, Plan
from cptune.attention.kernels import Block, CpuFlash, Kernel
from cptune.attention.plan import Rows, Schedule, Stage, Transfer
from cptune.attention.traffic import Pass
from cptune.attention.transport import Exchange, Transport, split_group


class CausalDropped(CpuFlash):
    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        return super().forward(replace(block, causal=False))


class GradientsLost(Transport):
    returns = 0

    def give_back(self, stage: Stage, dkv_R2BKD: Tensor) -> Exchange:
        self.returns += 1
        lost = self.returns == 2
        return super().give_back(stage, torch.zeros_like(dkv_R2BKD) if lost else dkv_R2BKD)


class StaleInBackward(Transport):
    def stream(
        self, stages: Sequence[Stage], kv_R2BKD: Tensor, *, during: Pass
    ) -> Iterator[tuple[Stage, Tensor]]:
        last_R2BKD: Tensor | None = None
        for stage, fresh_R2BKD in super().stream(stages, kv_R2BKD, during=during):
            given_R2BKD = fresh_R2BKD.clone()
            if during is Pass.BACKWARD and last_R2BKD is not None:
                rows = min(len(last_R2BKD), len(given_R2BKD))
                given_R2BKD[:rows] = last_R2BKD[:rows]
            yield stage, given_R2BKD
            last_R2BKD = fresh_R2BKD


class WrongHalf(Plan):
    def schedule(self, rank: int) -> Schedule:
        right = super().schedule(rank)
        stages = [
            replace(
                stage,
                recv=tuple(self._take_tail(one, owner=one[0]) for one in stage.recv),
                send=tuple(self._take_tail(one, owner=rank) for one in stage.send),
            )
            for stage in right.stages
        ]
        return replace(right, stages=tuple(stages))

    def _take_tail(self, transfer: Transfer, *, owner: int) -> Transfer:
        peer, rows = transfer
        stop = self.partition.real_len(owner)
        return peer, Rows(stop - rows.num_rows, stop)


class WithCausalDropped(ContextParallel):
    def _choose_kernel(self, q_BSHD: Tensor, k_BSKD: Tensor) -> Kernel:
        return CausalDropped()


class WithGradientsLost(ContextParallel):
    def _build_transport(self, group: dist.ProcessGroup | None) -> Transport:
        assert group is not None
        return GradientsLost(group, split_group(group))


class WithStaleInBackward(ContextParallel):
    def _build_transport(self, group: dist.ProcessGroup | None) -> Transport:
        assert group is not None
        return StaleInBackward(group, split_group(group))


class WithWrongHalf(ContextParallel):
    def _build_plan(self, partition: Partition, *, mask: Mask, stages: int) -> Plan:
        return WrongHalf(partition=partition, mask=mask, stages=stages)


MUTANTS = [WithCausalDropped, WithGradientsLost, WithStaleInBackward, WithWrongHalf]


def worst_error(made_by: type[ContextParallel]) -> float:
    cp = made_by(dist.group.WORLD, seq_len=37)
    outcome = run_case(cp, mask="causal", shape=Shape(1, heads=4, kv_heads=1))
    return max(outcome.error, outcome.padding)


@pytest.mark.parametrize("world", [3, 4])
def test_the_check_accepts_the_real_one(ranks: RankPool, world: int) -> None:
    assert max(ranks.run(worst_error, world=world, made_by=ContextParallel)) <= TOLERANCE


@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_check_refuses_a_mutant(
    ranks: RankPool, mutant: type[ContextParallel], world: int
) -> None:
    assert max(ranks.run(worst_error, world=world, made_by=mutant)) > 1e-3
