"""The public class on several ranks: shards, counters and refusals."""

from dataclasses import asdict
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from attention_cases import Shape, attend_sharded, make_inputs
from rank_pool import RankPool

from cptune.attention import ContextParallel

DTYPES = ["bool", "uint8", "int64", "bfloat16", "float32", "float64", "complex64"]


def round_trips(seq_len: int, sharding: str) -> list[str]:
    """What does not come back as it went, by dtype and dim."""
    cp = ContextParallel(dist.group.WORLD, seq_len=seq_len, sharding=sharding)
    whole = torch.arange(3 * seq_len).view(3, seq_len)
    wrong: list[str] = []
    for name in DTYPES:
        for x, dim in ((whole[0], 0), (whole, 1), (whole, -1), (whole.T[..., None], 0)):
            x = (x % 2 == 0) if name == "bool" else x.to(getattr(torch, name))
            local = cp.shard(x, dim)
            if local.shape[dim] != cp.local_len or not torch.equal(cp.unshard(local, dim), x):
                wrong.append(f"{name} {dim}")
    return wrong


@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "balanced"])
@pytest.mark.parametrize(("world", "seq_len"), [(2, 9), (3, 2), (3, 16), (4, 37)])
def test_unshard_undoes_shard_for_any_dtype_and_dim(
    ranks: RankPool, world: int, seq_len: int, sharding: str
) -> None:
    found = ranks.run(round_trips, world=world, seq_len=seq_len, sharding=sharding)
    assert found == [[]] * world


def local_view(seq_len: int) -> tuple[list[int], list[bool], list[float]]:
    cp = ContextParallel(dist.group.WORLD, seq_len=seq_len)
    ones = cp.shard(torch.ones(seq_len), dim=0)
    return cp.positions.tolist(), cp.valid.tolist(), ones.tolist()


def test_positions_are_global_and_padding_is_marked_and_zero(ranks: RankPool) -> None:
    assert ranks.run(local_view, world=3, seq_len=7) == [
        ([0, 5, 6], [True, True, True], [1.0, 1.0, 1.0]),
        ([1, 4, 0], [True, True, False], [1.0, 1.0, 0.0]),
        ([2, 3, 0], [True, True, False], [1.0, 1.0, 0.0]),
    ]


def packed_view() -> tuple[list[int], list[bool]]:
    cp = ContextParallel(dist.group.WORLD, seq_len=7, mask="document", docs=[2, 0, 1, 4])
    return cp.positions.tolist(), cp.valid.tolist()


def test_positions_restart_at_every_document(ranks: RankPool) -> None:
    assert ranks.run(packed_view, world=3) == [
        ([0, 2, 3], [True, True, True]),
        ([1, 1, 0], [True, True, False]),
        ([0, 0, 0], [True, True, False]),
    ]


def unshard_detaches() -> bool:
    cp = ContextParallel(dist.group.WORLD, seq_len=4)
    return cp.unshard(torch.ones(2, requires_grad=True) * 2, dim=0).requires_grad


def test_unshard_is_detached(ranks: RankPool) -> None:
    assert ranks.run(unshard_detaches, world=2) == [False, False]


def traffic_of_two_steps(sharding: str, stages: int | None) -> tuple[dict, dict, float]:
    cp = ContextParallel(dist.group.WORLD, seq_len=48, sharding=sharding, stages=stages)
    inputs = make_inputs(48, Shape(1, heads=4, kv_heads=2), torch.float32)
    attend_sharded(cp, inputs)
    cp.traffic.reset()
    emptied = asdict(cp.traffic)
    attend_sharded(cp, inputs)
    return emptied, asdict(cp.traffic), cp.traffic.wait_s


@pytest.mark.parametrize("stages", [None, 1])
def test_counters_add_up_over_peers_and_start_anew(ranks: RankPool, stages: int | None) -> None:
    results = ranks.run(traffic_of_two_steps, world=4, sharding="zigzag", stages=stages)
    nothing = {"sent_bytes": 0, "received_bytes": 0, "wait_s": 0.0}
    for rank, (emptied, counted, wait_s) in enumerate(results):
        assert emptied == {"forward": nothing, "backward": nothing, "peers": {}}
        assert sorted(counted["peers"]) == [peer for peer in range(4) if peer != rank]
        for name in ("sent_bytes", "received_bytes"):
            by_pass = counted["forward"][name] + counted["backward"][name]
            assert by_pass == sum(peer[name] for peer in counted["peers"].values()) > 0
        assert all(peer["seconds"] > 0 for peer in counted["peers"].values())
        assert wait_s == counted["forward"]["wait_s"] + counted["backward"]["wait_s"] > 0


def test_what_one_rank_sends_its_peer_receives(ranks: RankPool) -> None:
    results = ranks.run(traffic_of_two_steps, world=3, sharding="zigzag", stages=2)
    peers = [counted["peers"] for _, counted, _ in results]
    for a in range(3):
        for b in set(range(3)) - {a}:
            assert peers[a][b]["sent_bytes"] == peers[b][a]["received_bytes"]


def test_a_causal_contiguous_ring_sends_nothing_to_the_past(ranks: RankPool) -> None:
    results = ranks.run(traffic_of_two_steps, world=3, sharding="contiguous", stages=None)
    forward = [counted["forward"] for _, counted, _ in results]
    assert forward[0]["received_bytes"] == 0
    assert forward[2]["sent_bytes"] == 0
    assert forward[0]["sent_bytes"] == forward[2]["received_bytes"] > 0


def no_grad_and_eval() -> tuple[bool, int]:
    cp = ContextParallel(dist.group.WORLD, seq_len=9)
    q, k, v, _ = (cp.shard(x, 1) for x in make_inputs(9, Shape(1, 4, 4), torch.float32))
    with torch.no_grad():
        out = cp.attend(q, k, v)
    return out.requires_grad, cp.traffic.backward_sent_bytes


def test_forward_alone_moves_nothing_backward(ranks: RankPool) -> None:
    assert ranks.run(no_grad_and_eval, world=2) == [(False, 0)] * 2


def refusals() -> list[str]:
    said: list[str] = []
    for arguments in ({"stages": 0}, {"stages": 9}, {"strategy": "all_gather", "stages": 2}):
        try:
            ContextParallel(dist.group.WORLD, seq_len=9, **arguments)
        except ValueError as error:
            said.append(str(error))
    cp = ContextParallel(dist.group.WORLD, seq_len=9)
    for call in (cp.unshard, cp.shard):
        try:
            call(torch.zeros(2), dim=0)
        except ValueError as error:
            said.append(str(error))
    return said


def test_refusals_name_the_value_and_the_nearest_legal_one(ranks: RankPool) -> None:
    for said in ranks.run(refusals, world=4):
        assert said == [
            "stages is 0, wanted 1..3 for 4 ranks; nearest is 1",
            "stages is 9, wanted 1..3 for 4 ranks; nearest is 3",
            "stages is 2, wanted 1 for strategy all_gather; nearest is 1 "
            "(strategy ring takes 1..3)",
            "x has 2 rows along dim 0, wanted local_len = 3 (shard(x, dim) gives that many)",
            "x has 2 rows along dim 0, wanted seq_len = 9",
        ]


def time_limit_s() -> float:
    group = dist.new_group([0, 1], timeout=timedelta(seconds=77))
    cp = ContextParallel(group, seq_len=8)
    wire = cp._transport.dkv_wire.group
    return wire._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def test_the_gradients_group_keeps_the_time_limit_of_the_group(ranks: RankPool) -> None:
    assert ranks.run(time_limit_s, world=2) == [77.0, 77.0]


def none_at_all(strategy: str) -> tuple[int, ...]:
    cp = ContextParallel(dist.group.WORLD, seq_len=9, strategy=strategy)
    q, k, v = (torch.ones(0, cp.local_len, n, 8, requires_grad=True) for n in (4, 2, 2))
    cp.attend(q, k, v).sum().backward()
    return tuple(k.grad.shape)


@pytest.mark.parametrize("strategy", ["ring", "ulysses"])
def test_a_batch_without_a_sequence_is_fine(ranks: RankPool, strategy: str) -> None:
    assert ranks.run(none_at_all, world=2, strategy=strategy) == [(0, 5, 2, 8)] * 2
