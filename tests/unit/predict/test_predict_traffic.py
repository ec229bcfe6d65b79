"""Bytes by axis and where groups lie: against the counts of the attention plan and by hand."""

from dataclasses import replace

import pytest
from predict_cases import MIB, candidate, case, machine

from cptune.domain.candidate import Strategy
from cptune.domain.layout import Axis
from cptune.predict.links import (
    axis_span,
    gather_seconds,
    hop_seconds,
    reduce_seconds,
    span_of,
)
from cptune.predict.traffic import context_bytes, pipeline_bytes, tensor_bytes


def test_a_ring_of_eight_at_128k_moves_448_mib_forward_and_twice_that_back():
    moved = context_bytes(case(), candidate(cp=8))
    assert (moved.ring_forward, moved.ring_backward) == (448 * MIB, 896 * MIB)
    assert moved.heads == 0


def test_ulysses_of_eight_moves_280_mib_each_way():
    one = candidate(cp=8, ulysses=8, strategy=Strategy.ULYSSES)
    moved = context_bytes(case(), one)
    assert moved.heads == 280 * MIB
    assert moved.ring_forward == 0


def test_ulysses_replicates_keys_where_heads_are_fewer():
    one = candidate(cp=32, ulysses=32, strategy=Strategy.ULYSSES)
    moved = context_bytes(case(world=32), one)
    assert moved.heads == 4 * (32 + 32) * 128 * 4096 * 31 / 32


def test_tensor_and_pipeline_bytes_are_activations():
    one = candidate(tp=4, cp=2, pp=2, micro_batch=2)
    assert tensor_bytes(case(), one) == 2 * 2 * 65536 * 4096
    assert pipeline_bytes(case(), one) == 2 * 2 * 65536 * 4096 / 4


def test_groups_follow_the_rank_order_tp_cp_dp_pp():
    given, layout = case(world=64), candidate(tp=2, cp=8, dp=2, pp=2).layout
    spans = {axis: axis_span(given, layout, axis) for axis in Axis}
    assert [spans[axis].size for axis in (Axis.TP, Axis.CP, Axis.DP, Axis.PP)] == [2, 8, 16, 2]
    assert [spans[axis].islands for axis in (Axis.TP, Axis.CP, Axis.DP, Axis.PP)] == [1, 2, 4, 2]


def test_a_group_inside_a_node_rides_nvlink_and_beyond_it_the_network():
    given = case(world=64)
    fixed = given.constants
    near, far = span_of(given, size=8, stride=1), span_of(given, size=8, stride=8)
    assert near.bus_bytes_per_s == 450e9 * fixed.nvlink_share
    assert far.bus_bytes_per_s == 50e9 * fixed.network_share
    assert far.crosses
    assert not near.crosses


def test_members_of_a_node_share_its_network_cards():
    given = case(world=64)
    span = span_of(given, size=16, stride=2)  # four of each node
    assert span.bus_bytes_per_s == 4 * 50e9 * given.constants.network_share
    assert span.edge_bytes_per_s == 50e9 * given.constants.network_share


def test_a_gather_moves_all_but_ones_own_part_and_a_reduce_twice_that():
    given = case(world=64)
    span = span_of(given, size=8, stride=1)
    start = given.constants.collective_latency_s
    assert gather_seconds(given, span, 8e9) == start + 7e9 / span.bus_bytes_per_s
    assert reduce_seconds(given, span, 8e9) == start + 14e9 / span.bus_bytes_per_s
    assert gather_seconds(given, span_of(given, size=1, stride=1), 8e9) == 0


def test_a_slow_fabric_costs_a_hop_for_each_rank():
    given = case(world=64)
    hops = {"gather_hops": ((8, 1e-3),), "reduce_hops": ((8, 2e-3),)}
    slow = replace(given, machine=machine(world=64, **hops))
    span = span_of(given, size=16, stride=4)
    for collective, each in ((gather_seconds, 1e-3), (reduce_seconds, 2e-3)):
        extra = collective(slow, span, 1e6) - collective(given, span, 1e6)
        assert extra == pytest.approx(15 * each)
    near = span_of(given, size=8, stride=1)
    assert gather_seconds(slow, near, 1e6) == gather_seconds(given, near, 1e6)


@pytest.mark.parametrize(
    ("ranks", "wanted"), [(2, 4e-5), (32, 4e-5), (64, 3e-5), (128, 2e-5), (512, 6e-5), (999, 6e-5)]
)
def test_hops_between_two_measured_sizes_follow_the_logarithm(ranks, wanted):
    measured = ((32, 4e-5), (128, 2e-5), (512, 6e-5))
    assert hop_seconds(measured, ranks) == pytest.approx(wanted)
    assert hop_seconds((), ranks) == 0
