"""Ranks that were given different arguments: all of them say so, none waits for another."""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from attention_cases import OnSharedWires
from rank_pool import RankPool

from cptune.attention import ContextParallel
from cptune.attention.agreement import tell_differences

BASE = {"seq_len": 16}
PACKED = {"seq_len": 16, "mask": "document", "docs": (8, 8)}


def arguments_of(world: int) -> dict[str, tuple[dict, object]]:
    """What all ranks are given, and the one value that the last rank is given instead."""
    return {
        "seq_len": (BASE, 17),
        "sharding": (BASE, "contiguous"),
        "mask": (BASE, "full"),
        "docs": (PACKED, (8, 7, 1)),
        "window": (BASE, 3),
        "strategy": (BASE, "all_gather"),
        "ulysses": (BASE | {"strategy": "hybrid"}, world),
        "stages": (BASE, 1),
        "kernel": (BASE, "math"),
        "nodes": (BASE | {"nodes": ["a"] * world}, ["a"] * (world - 1) + ["b"]),
        "dkv_wire": (BASE, "fp32"),
        "heads": (BASE | {"heads": 4}, 8),
        "kv_heads": (BASE, 2),
        "head_dim": (BASE | {"head_dim": 8}, 16),
        "dtype": (BASE, torch.bfloat16),
    }


SAID = {
    "seq_len": "seq_len is 17 on rank {odd}, 16 on rank 0",
    "docs": "docs[1] is 7 on rank {odd}, 8 on rank 0",
    "nodes": "nodes[{odd}] is 1 on rank {odd}, 0 on rank 0",
    "dtype": "dtype is 'torch.bfloat16' on rank {odd}, 'None' on rank 0",
}


def construct_differently(cases: dict[str, tuple[dict, object]]) -> dict[str, str]:
    """What this rank is told of each argument."""
    odd = dist.get_rank() == dist.get_world_size() - 1
    said: dict[str, str] = {}
    for name, (base, other) in cases.items():
        try:
            ContextParallel(dist.group.WORLD, **base | ({name: other} if odd else {}))
        except ValueError as error:
            said[name] = str(error)
    return said


@pytest.mark.parametrize("world", [2, 3, 4])
def test_each_argument_is_compared_and_named_on_all_ranks(ranks: RankPool, world: int) -> None:
    cases = arguments_of(world)
    first, *others = ranks.run(construct_differently, world=world, cases=cases)
    assert all(one == first for one in others)
    assert first.keys() == cases.keys()
    for name, told in first.items():
        wanted = SAID.get(name, f"{name} is ").format(odd=world - 1)
        assert told.startswith(wanted)
        assert told.endswith(f": wanted the same on all {world} ranks of the group")


def refuse_on_one_rank() -> list[str]:
    said: list[str] = []
    for stages in (9, None):
        try:
            given = stages if dist.get_rank() == 1 else None
            ContextParallel(dist.group.WORLD, seq_len=16, stages=given)
        except ValueError as error:
            said.append(str(error))
    return said


def test_a_rank_that_refuses_its_arguments_does_not_leave_the_others_waiting(
    ranks: RankPool,
) -> None:
    reason = "stages is 9, wanted 1..2 for 3 ranks; nearest is 2"
    other = f"rank 1 of the group refuses its arguments: {reason}"
    assert ranks.run(refuse_on_one_rank, world=3) == [[other], [reason], [other]]


@dataclass(frozen=True)
class Tensors:
    batch: int = 1
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    dtype: torch.dtype = torch.float32
    scale: float | None = None
    backward: bool = True
    rows: int = 8
    docs: tuple[int, ...] = (8, 8)


ATTENDED = {
    "batch": (Tensors(batch=2), "batch is 2 on rank 1, 1 on rank 0"),
    "heads": (Tensors(heads=8), "heads is 8 on rank 1, 4 on rank 0"),
    "kv_heads": (Tensors(kv_heads=4), "kv_heads is 4 on rank 1, 2 on rank 0"),
    "head_dim": (Tensors(head_dim=16, scale=8**-0.5), "head_dim is 16 on rank 1, 8 on rank 0"),
    "dtype": (Tensors(dtype=torch.float64), "dtype is 'torch.float64' on rank 1, 'torch.float32'"),
    "scale": (Tensors(scale=0.5), "scale is 0.5 on rank 1, 0.35355"),
    "backward": (Tensors(backward=False), "backward is False on rank 1, True on rank 0"),
    "docs": (Tensors(docs=(9, 7)), "docs[0] is 9 on rank 1, 8 on rank 0"),
    "rows": (Tensors(rows=7), "has 7 rows along dim 1, wanted local_len = 8"),
}


def attend_differently(cases: dict[str, Tensors]) -> tuple[dict[str, str], int]:
    """What this rank is told at the first attend, and how often ranks asked each other in all."""
    OnSharedWires.wires = None
    asked = Counting.asked = 0
    said: dict[str, str] = {}
    cp = Counting(dist.group.WORLD, seq_len=16, mask="document", docs=(8, 8))
    for name, other in cases.items():
        mine = other if dist.get_rank() == 1 else Tensors()
        try:
            attend(cp.with_docs(mine.docs), mine)
        except ValueError as error:
            said[name] = str(error)
    asked = Counting.asked
    for docs in ((8, 8), (8, 8), (1, 15), (16,)):  # nothing is asked from the second step on
        attend(cp.with_docs(docs), Tensors())
    return said, Counting.asked - asked


class Counting(OnSharedWires):
    asked = 0

    def _gather(self, mine: object) -> list[object]:
        Counting.asked += 1
        return list(super()._gather(mine))


def attend(cp: ContextParallel, one: Tensors) -> None:
    sizes = [
        (one.batch, one.rows, heads, one.head_dim) for heads in (one.heads, *[one.kv_heads] * 2)
    ]
    q, k, v = (torch.ones(size, dtype=one.dtype, requires_grad=one.backward) for size in sizes)
    out = cp.attend(q, k, v, scale=one.scale)
    if one.backward:
        out.sum().backward()


def test_the_first_attend_is_compared_and_no_later_one_asks(ranks: RankPool) -> None:
    cases = {name: one for name, (one, _) in ATTENDED.items()}
    for said, asked_later in ranks.run(attend_differently, world=2, cases=cases):
        assert said.keys() == ATTENDED.keys()
        for name, (_, told) in ATTENDED.items():
            assert told in said[name]
        assert asked_later == 1


def test_the_rank_that_differs_is_told_from_the_others() -> None:
    given = [{"seq_len": 8, "docs": (4, 4)}] * 3 + [{"seq_len": 9, "docs": (4, 4, 1)}]
    assert tell_differences([given[3], *given[:3]]) == (
        "seq_len is 9 on rank 0, 8 on rank 1; the length of docs is 3 on rank 0, 2 on rank 1: "
        "wanted the same on all 4 ranks of the group"
    )


def test_many_that_differ_are_counted() -> None:
    told = tell_differences([{"window": max(0, rank - 9)} for rank in range(16)])
    assert told.startswith("window is 1 on rank 10, 0 on rank 0, window is 2 on rank 11")
    assert "and 3 more ranks: wanted the same on all 16" in told


def attend_crosswise() -> str:
    """What this rank is told when the others begin with another instance than it does."""
    pair = [
        ContextParallel(dist.group.WORLD, seq_len=16, sharding=x) for x in ("zigzag", "balanced")
    ]
    first = pair[dist.get_rank() % 2]
    q_BSHD = torch.zeros(1, first.local_len, 2, 8)
    try:
        first.attend(q_BSHD, q_BSHD, q_BSHD)
    except ValueError as error:
        return str(error)
    return ""


def test_ranks_that_begin_with_different_instances_are_told(ranks: RankPool) -> None:
    for said in ranks.run(attend_crosswise, world=2):
        assert "sharding is 'balanced' on rank 1, 'zigzag' on rank 0" in said
