"""Step time: parts that add up, what hides what, and what is said to bind."""

from dataclasses import replace

import pytest
from predict_cases import candidate, case, machine, with_constants

from cptune.domain.candidate import DataParallelKind, Recompute, ShardingKind, Strategy
from cptune.domain.layout import Axis
from cptune.domain.stack import Stack
from cptune.domain.workload import AttentionMask
from cptune.predict.links import axis_span
from cptune.predict.rates import head_seconds, imbalance, layer_attention, product_s
from cptune.predict.step_time import (
    Bound,
    accumulation_seconds,
    layer_time,
    predict_step,
)


def test_the_parts_add_up_to_the_step():
    time = predict_step(case(world=64, batch=32), candidate(tp=2, cp=4, pp=2, dp=4))
    parts = (time.compute_s, time.tp_exposed_s, time.cp_exposed_s, time.dp_exposed_s)
    assert min(*parts, time.pp_bubble_s) >= 0
    assert time.step_s == sum(parts) + time.pp_bubble_s


def test_a_product_approaches_the_rate_that_is_measured():
    given = case()
    rate = 2 * 1e6 * 1e6 * 1e6 / product_s(given, 1e6, 1e6, 1e6)
    best = 989.4e12 * 0.803 * given.constants.gemm_sustained
    assert 0.99 * best < rate < best
    half = given.constants.gemm_half_rows
    assert product_s(given, half, 1e9, 1e9) == pytest.approx(2 * 2 * half * 1e18 / best, rel=1e-5)


def test_full_recompute_runs_every_layer_forward_again():
    given = case(world=8, batch=1)
    plain = candidate(cp=8, strategy=Strategy.ALL_GATHER, stages=1)
    again = replace(plain, recompute=Recompute.FULL)
    layer = layer_time(given, plain)
    more = predict_step(given, again).step_s - predict_step(given, plain).step_s
    assert more == pytest.approx(32 * layer.whole.forward)


def test_the_bubble_is_the_idle_stages_over_the_micro_batches():
    given = case(seq_len=8192, batch=32, world=4)
    slow = replace(given, model=replace(given.model, vocab=1))
    one, two = candidate(pp=4), candidate(pp=4, vpp=2)
    instant = with_constants(slow, pp_overlap=1.0)
    time, inter = predict_step(instant, one), predict_step(instant, two)
    pace = (time.step_s - time.pp_bubble_s) / 32
    assert time.pp_bubble_s == pytest.approx(3 * pace, rel=0.02)
    assert inter.pp_bubble_s == pytest.approx(time.pp_bubble_s / 2)


def test_context_transfers_hide_behind_long_blocks_only():
    long, short = (case(seq_len=length, world=8, node=1) for length in (1 << 20, 8192))
    one = candidate(cp=8)
    assert predict_step(long, one).cp_exposed_s == 0
    assert predict_step(short, one).cp_exposed_s > 0


def test_a_ring_over_the_network_needs_the_known_tokens_to_hide():
    # a stage moves 4*k*d*s bytes and computes 2*s^2*a*d FLOP: s = 2*(k/a)*F/B hides it
    given = with_constants(
        case(seq_len=131072, world=64, network=1e9), p2p_latency_s=0.0, stage_launch_s=0.0
    )
    one = candidate(tp=8, cp=8)
    attention = layer_attention(given, one)
    layer = layer_time(given, one)
    moved = 4 * 1 * 128 * 16384 / (1e9 * given.constants.network_share)
    assert layer.context.forward == pytest.approx(7 * (moved - attention.forward / 8), rel=1e-6)


def test_an_all_to_all_hides_nothing():
    given = case(seq_len=1 << 20, world=8)
    one = candidate(cp=8, ulysses=8, strategy=Strategy.ULYSSES)
    assert predict_step(given, one).cp_exposed_s > 0


def test_a_contiguous_causal_cut_makes_the_last_rank_work_most():
    given = case()
    plain = candidate(cp=4, sharding=ShardingKind.CONTIGUOUS)
    assert imbalance(given, plain) == 2 - 1 / 4
    assert imbalance(given, replace(plain, sharding=ShardingKind.ZIGZAG)) == 1
    assert imbalance(case(mask=AttentionMask.FULL), plain) == 1


def test_documents_leave_zigzag_uneven_but_not_a_balanced_cut():
    given = case(mask=AttentionMask.DOCUMENT, lengths="lognormal(mean=4000, sigma=1)")
    zigzag = imbalance(given, candidate(cp=8, sharding=ShardingKind.ZIGZAG))
    assert 1.7 < zigzag < 1.9
    assert imbalance(given, candidate(cp=8, sharding=ShardingKind.BALANCED)) == 1


@pytest.mark.parametrize(
    ("more", "one", "bound"),
    [
        ({"seq_len": 131072, "batch": 8}, {"cp": 8}, Bound.COMPUTE),
        ({"seq_len": 8192, "batch": 64, "world": 64, "network": 1e8}, {"dp": 64}, Bound.NETWORK),
        ({"seq_len": 8192, "batch": 1, "world": 8}, {"pp": 8}, Bound.BUBBLE),
    ],
)
def test_what_binds_is_named(more, one, bound):
    assert predict_step(case(**more), candidate(**one)).bound_by is bound


def test_tensor_parallelism_over_a_slow_island_is_bound_by_it():
    given = case(seq_len=8192, batch=8, world=8)
    slow = replace(given, machine=replace(given.machine, island_bytes_per_s=5e9))
    assert predict_step(slow, candidate(tp=8)).bound_by is Bound.NVLINK


def test_torch_modules_one_by_one_take_longer_than_fused_ones():
    fused, eager = (
        predict_step(case(seq_len=8192, batch=8, stack=stack), candidate(dp=8)).step_s
        for stack in (Stack.FUSED, Stack.EAGER)
    )
    assert 1.05 < eager / fused < 1.5


def test_an_eager_optimizer_waits_for_its_weights_where_a_fused_one_hides_them():
    given = case(seq_len=8192, batch=64, world=64)
    fused, eager = (
        predict_step(replace(given, stack=stack), candidate(dp=64)).dp_exposed_s
        for stack in (Stack.FUSED, Stack.EAGER)
    )
    bus_bytes_per_s = axis_span(given, candidate(dp=64).layout, Axis.DP).bus_bytes_per_s
    gathered = 2 * 8.03e9 * 63 / 64 / bus_bytes_per_s
    hidden = 1 - given.constants.overlap_cost
    assert eager - fused == pytest.approx(gathered * hidden, rel=0.05)


def test_eager_gradients_are_summed_in_every_micro_batch():
    given = case(seq_len=8192, batch=8, world=1, stack=Stack.EAGER)
    seconds = accumulation_seconds(given, candidate(kind=DataParallelKind.DDP), 8e9)
    assert seconds == pytest.approx(10 * 8e9 / (3.35e12 * given.constants.hbm_share))
    assert accumulation_seconds(given, candidate(kind=DataParallelKind.FSDP), 8e9) == 0
    assert accumulation_seconds(replace(given, stack=Stack.FUSED), candidate(), 8e9) == 0
    few, many = (
        predict_step(replace(given, workload=replace(given.workload, global_batch_seqs=n)), one)
        for n, one in ((8, candidate(micro_batch=8)), (8, candidate(micro_batch=1)))
    )
    assert many.compute_s - few.compute_s > 7 * 0.9 * seconds


def test_torchs_own_loss_passes_the_logits_more_often():
    fused, eager = (
        head_seconds(case(seq_len=8192, stack=stack), candidate(dp=8))
        for stack in (Stack.FUSED, Stack.EAGER)
    )
    assert eager[0] == fused[0]
    assert eager[1] / fused[1] == pytest.approx(40 / 22)


def test_small_layers_last_as_long_as_the_host_needs_to_launch_them():
    given = case(model="tiny", seq_len=64, batch=8, world=8, gpu="H100-SXM-80GB")
    time = predict_step(given, candidate(dp=8))
    assert time.compute_s == pytest.approx(2 * 3 * given.constants.layer_launch_s, rel=0.01)


def test_sharded_weights_are_gathered_in_every_micro_batch():
    given = case(seq_len=8192, batch=128, world=64, network=2e9)
    ddp, fsdp = (
        predict_step(given, candidate(kind=kind, dp=64)).dp_exposed_s
        for kind in (DataParallelKind.ZERO1, DataParallelKind.FSDP)
    )
    assert fsdp > 1.5 * ddp


def test_experts_on_other_ranks_cost_an_exchange_that_is_named():
    moe = replace(case().model, experts=8, experts_per_token=2, expert_ffn=14336)
    given = case(model=moe, seq_len=8192, batch=8, world=8)
    near, far = (predict_step(given, candidate(dp=8, ep=ep)) for ep in (1, 8))
    assert near.ep_exposed_s == 0
    assert far.ep_exposed_s > 0


def test_published_steps_come_out_with_the_one_set_of_constants():
    # NVIDIA DGXC recipes, Llama-3-70B on 64 H100 and Llama-3-8B on 8: 14.7 s and 12.3 s
    large = case(model="llama3-70b", seq_len=8192, batch=128, world=64)
    small = case(seq_len=8192, batch=128, world=8)
    assert predict_step(large, candidate(tp=4, pp=4, vpp=5, cp=2, dp=2)).step_s == pytest.approx(
        14.7, rel=0.08
    )
    assert predict_step(small, candidate(cp=2, dp=4)).step_s == pytest.approx(12.3, rel=0.08)


def test_a_slower_network_never_makes_a_step_faster():
    one, steps = candidate(cp=16, dp=4), []
    for network in (100e9, 50e9, 10e9, 1e9):
        given = replace(case(batch=8, world=64), machine=machine(world=64, network=network))
        steps.append(predict_step(given, one).step_s)
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]
