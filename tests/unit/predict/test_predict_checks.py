"""Collectives that a host checks before they start: how many, of what groups, hidden by what."""

from dataclasses import replace

import pytest
from predict_cases import candidate, case

from cptune.domain.candidate import DataParallelKind, Recompute
from cptune.domain.stack import Stack, TensorInputs
from cptune.predict.checks import data_checks, layer_checks
from cptune.predict.prediction import Predictor

CHECK_S = 1e-3


def checked(check_s=CHECK_S, **more):
    given = case(seq_len=4096, batch=256, world=64, stack=Stack.EAGER)
    return replace(given, check_s=check_s, **more)


def step_s(given, tried):
    return Predictor(given).predict(tried).time.step_s


def test_a_layer_checks_each_gather_and_scatter_of_its_tensor_parallel_group():
    tried = candidate(tp=8, dp=8)
    found = layer_checks(checked(), tried)
    assert (found.forward, found.backward) == pytest.approx((4 * 8e-3, 6 * 8e-3))
    kept = layer_checks(checked(tp_inputs=TensorInputs.KEPT), tried)
    assert kept.backward == pytest.approx(4 * 8e-3)
    assert layer_checks(checked(), candidate(tp=1, dp=64)).both == 0


def test_ulysses_exchanges_are_checked_and_messages_of_a_ring_are_not():
    heads = layer_checks(checked(), candidate(tp=1, cp=4, ulysses=4, dp=16))
    assert (heads.forward, heads.backward) == pytest.approx((2 * 4e-3, 2 * 4e-3))
    assert layer_checks(checked(), candidate(tp=1, cp=4, dp=16)).both == 0


@pytest.mark.parametrize(
    ("kind", "checks"),
    [
        (DataParallelKind.DDP, 32),
        (DataParallelKind.ZERO1, 2),
        (DataParallelKind.ZERO2, 16 + 1),
        (DataParallelKind.FSDP, 3 * 32 * 16),
    ],
)
def test_a_step_checks_what_its_kind_of_data_parallelism_calls(kind, checks):
    tried = candidate(kind=kind, tp=4, dp=16)
    assert data_checks(checked(), tried, layers=32) == pytest.approx(checks * 16 * CHECK_S)
    assert data_checks(checked(), replace(tried, layout=candidate(tp=64).layout), layers=32) == 0


def test_a_layer_lasts_as_long_as_the_longer_of_device_and_host():
    tried = candidate(tp=8, dp=8, micro_batch=4)
    steps = [step_s(checked(us * 1e-6), tried) for us in (0, 10, 1000, 2000)]
    data_s = 2 * 8 * 10e-6
    assert steps[1] - steps[0] == pytest.approx(data_s, rel=1e-3)
    assert steps[3] - steps[2] == pytest.approx((8 * 32 * 10 * 8 + 2 * 8) * 1e-3, rel=1e-3)


def test_full_recompute_checks_its_exchanges_again():
    plain, again = (
        step_s(checked(20e-3), one) - step_s(checked(10e-3), one)
        for one in (
            candidate(tp=8, dp=8, recompute=word) for word in (Recompute.NONE, Recompute.FULL)
        )
    )
    assert again / plain == pytest.approx(14 / 10, rel=1e-3)
