"""No step is faster than the cores of its cluster."""

import pytest
from fakes import candidate, measured, sweep_spec

from cptune.domain.candidate import Recompute
from cptune.predict.facts import read_gpu
from cptune.predict.flops import step_flop
from cptune.predict.limits import Hardware, RateGuard

SPEC = sweep_spec()
LIMIT = read_gpu("cpu").limit_flop_per_s(SPEC.workload.precision)
SHORTEST_S = step_flop(SPEC.model, SPEC.workload, Recompute.NONE).model / (4 * LIMIT)


@pytest.mark.parametrize(("times", "refused"), [(1.01, False), (0.99, True), (1e-9, True)])
def test_the_shortest_step_is_that_of_all_cores_at_their_limit(times, refused):
    guard = RateGuard(SPEC, hardware=Hardware(cores=(2, 2)))

    assert (guard(measured(step_s=SHORTEST_S * times), candidate(dp=4)) is not None) == refused


@pytest.mark.parametrize("cores", [[], [None], [2, None]])
def test_an_unknown_core_count_refuses_nothing(cores):
    guard = RateGuard(SPEC, hardware=Hardware(cores=tuple(cores)))

    assert guard(measured(step_s=1e-30), candidate(dp=4)) is None


def test_the_limit_of_a_gpu_is_its_dense_peak():
    gpu = read_gpu("H100-SXM-80GB")

    assert gpu.limit_flop_per_s(SPEC.workload.precision) == gpu.fp32_flop_per_s
