"""Memory: the published figures, states by kind, what is in flight, and what may be pruned."""

from dataclasses import replace
from itertools import product

import pytest
from predict_cases import GIB, candidate, case

from cptune.domain.candidate import DataParallelKind, LossKind, Recompute
from cptune.domain.layout import ParallelLayout
from cptune.domain.stack import Stack
from cptune.domain.workload import ModelShape, Precision
from cptune.predict.activations import (
    EAGER,
    HEAVY,
    activation_bytes,
    layer_activation_bytes,
    layers_in_flight,
    logits_bytes,
)
from cptune.predict.memory import MemoryBand, MemoryModel, state_bytes
from cptune.predict.shares import stage_parameters, stage_shares

DDP, ZERO1, ZERO2, FSDP = DataParallelKind


@pytest.mark.parametrize(
    ("cp", "states", "none", "full", "logits"),
    [
        (4, 67.3, 136.1, 12.3, 23.5),
        (8, 56.1, 68.1, 6.1, 11.7),
        (16, 50.5, 34.0, 3.1, 5.9),
    ],
)
def test_llama3_8b_at_128k_takes_what_is_known(cp, states, none, full, logits):
    given = case(world=cp)
    plain = candidate(cp=cp)
    again = replace(plain, recompute=Recompute.FULL)
    [share] = given.shares(plain)
    parameters = stage_parameters(given.model, plain.layout, share)
    found = (
        state_bytes(parameters, plain, given),
        activation_bytes(given, plain, share),
        activation_bytes(given, again, share),
        logits_bytes(given, plain, share),
    )
    assert [one / GIB for one in found] == pytest.approx([states, none, full, logits], abs=0.1)


@pytest.mark.parametrize(
    ("kind", "per_parameter"),
    [(DDP, 18), (ZERO1, 6 + 12 / 8), (ZERO2, 2 + 16 / 8), (FSDP, 18 / 8)],
)
def test_states_are_sharded_over_data_and_context_ranks(kind, per_parameter):
    given, one = case(), candidate(kind=kind, cp=4, dp=2)
    gathered = 2 * 2 * 218_112_000 if kind is FSDP else 0
    assert state_bytes(1000.0, one, given) == 1000 * per_parameter + gathered


def test_fp32_has_no_second_copy_of_its_weights():
    given = case(precision=Precision.FP32)
    assert state_bytes(1.0, candidate(kind=DDP), given) == 16


def in_flight(pp, vpp, batches, layers=8):
    shape = ModelShape(layers=layers, hidden=8, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=8)
    layout = ParallelLayout(pp=pp, vpp=vpp)
    shares = stage_shares(shape, layout, balanced=False)
    return [layers_in_flight(layout, share, batches) for share in shares]


def test_1f1b_holds_a_micro_batch_for_each_stage_ahead():
    assert in_flight(pp=4, vpp=1, batches=16) == [8, 6, 2]  # first, second, last stage
    assert in_flight(pp=4, vpp=1, batches=2) == [4, 4, 2]
    assert in_flight(pp=1, vpp=1, batches=16) == [8]


def test_interleaving_holds_more_chunks_ahead():
    # 2(p-i-1) + (v-1)p + 1 chunks of one layer: 11, 9 and 5 of p=4, v=2
    assert in_flight(pp=4, vpp=2, batches=16) == [11, 9, 5]
    assert in_flight(pp=4, vpp=2, batches=1) == [2, 2, 2]


def test_126_layers_over_16_stages_spare_the_ends_one_layer():
    shape = ModelShape(layers=126, hidden=8, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=8)
    shares = stage_shares(shape, ParallelLayout(pp=16), balanced=False)
    assert [(one.index, one.layers) for one in shares] == [(0, 7), (1, 8), (15, 7)]


def test_a_balanced_pipeline_takes_the_head_for_layers():
    shape = ModelShape(layers=16, hidden=8, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=128)
    # 4*64 + 3*64 = 448 weights a layer, 1024 in the head: 16/7 layers
    first, second, last = stage_shares(shape, ParallelLayout(pp=4), balanced=True)
    assert first.layers == second.layers == pytest.approx((16 + 16 / 7) / 4)
    assert 3 * first.layers + last.layers == pytest.approx(16)


def test_a_tied_embedding_is_held_once_or_at_both_ends():
    shape = ModelShape(
        layers=4, hidden=8, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=100, tied_embeddings=True
    )

    def held(pp):
        layout = ParallelLayout(pp=pp)
        shares = stage_shares(shape, layout, balanced=False)
        return [stage_parameters(shape, layout, share) for share in shares]

    layer = 4 * 64 + 3 * 64 + 16
    assert held(1) == [4 * layer + 800 + 8]
    assert held(2) == [2 * layer + 800, 2 * layer + 800 + 8]


def test_key_heads_below_one_a_rank_are_replicated():
    given = case(model="llama3-8b", seq_len=1024)
    few, many = candidate(tp=8, dp=1), candidate(tp=32, dp=1)
    keys = 4 * 1 * 128 * 1024 * 32
    one, two = (activation_bytes(given, each, given.shares(each)[0]) - keys for each in (few, many))
    assert one == 4 * two


def test_a_chunked_loss_holds_a_sixteenth():
    given, plain = case(), candidate(cp=8)
    [share] = given.shares(plain)
    chunked = replace(plain, loss=LossKind.CHUNKED)
    assert logits_bytes(given, plain, share) == 16 * logits_bytes(given, chunked, share)


def test_selective_recompute_spares_norm_outputs_and_the_product():
    given, plain = case(), candidate(cp=8)
    [share] = given.shares(plain)
    selective = replace(plain, recompute=Recompute.SELECTIVE)
    spared = activation_bytes(given, plain, share) - activation_bytes(given, selective, share)
    assert spared == 32 * 16384 * (4 * 4096 + 2 * 14336)


def test_the_worst_stage_and_its_rank_are_named():
    given = case(world=16, batch=16)
    band = MemoryModel(given).band(candidate(tp=2, pp=4, dp=2, recompute=Recompute.FULL))
    assert (band.worst.stage, band.worst.rank) == (3, 12)  # the logits, not the first stage


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [(101, 120, "no"), (90, 93, "unknown"), (80, 92, "yes"), (100, 120, "unknown")],
)
def test_only_the_ends_of_the_band_decide(low, high, answer):
    worst = MemoryModel(case()).band(candidate(cp=8)).worst
    band = MemoryBand(worst=worst, low_bytes=low, likely_bytes=low, high_bytes=high)
    assert band.fits(100, 0.08) == answer
    assert band.fits(0, 0.08) == "unknown"


def test_the_band_is_ordered_for_every_kind_and_stack():
    kinds = (DDP, ZERO1, ZERO2, FSDP)
    for kind, recompute, stack in product(kinds, Recompute, (None, *Stack)):
        given = case(world=64, batch=32, stack=stack)
        one = candidate(kind=kind, tp=2, cp=4, pp=2, dp=4, recompute=recompute)
        band = MemoryModel(given).band(one)
        assert 0 < band.low_bytes < band.likely_bytes < band.high_bytes


def test_experts_are_sharded_over_ep_and_only_their_own_copies():
    moe = ModelShape(
        layers=2, hidden=8, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=8, experts=4,
        experts_per_token=1, expert_ffn=16,
    )  # fmt: skip
    given = case(model=moe, seq_len=64, batch=8, world=8)
    states = [MemoryModel(given).band(candidate(dp=8, ep=ep)).worst.states_bytes for ep in (1, 4)]
    held = 2 * 4 * 3 * 8 * 16  # weights of all experts
    assert states[0] - states[1] == held * (6 + 12 / 8) - held / 4 * (6 + 12 / 2)


def test_the_highest_peak_keeps_the_inputs_that_tensor_parallelism_gathered():
    given = case(seq_len=8192, world=8)
    for tp in (1, 8):
        one = candidate(tp=tp, dp=8 // tp)
        eager, heavy = (
            layer_activation_bytes(given, one, footprint) for footprint in (EAGER, HEAVY)
        )
        assert heavy - eager == pytest.approx(4 * 4096 * 8192 * (1 - 1 / tp))
    band = MemoryModel(given).band(candidate(tp=8))
    _, most = given.constants.memory_band
    eager = MemoryModel(given).worst(candidate(tp=8), EAGER)
    assert band.high_bytes > most * eager.allocated_bytes + eager.reserve_bytes
