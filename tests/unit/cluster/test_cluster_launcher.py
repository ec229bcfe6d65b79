"""What a launcher asks of ranks on GPUs, and what it does not go on with."""

import pytest
from fakes import devices, failed

from cptune.cluster.ray_launcher import _refuse_other_devices, _trace
from cptune.domain.outcome import OutcomeKind
from cptune.domain.study import TraceKind
from cptune.errors import ClusterError


@pytest.mark.parametrize("asked", list(TraceKind))
def test_a_step_on_a_gpu_is_always_traced(asked):
    (cpu,), (gpu,) = devices(1), devices(1, kind="cuda")

    assert _trace(asked, cpu) is asked
    assert _trace(asked, gpu) is (TraceKind.STEP if asked is TraceKind.OFF else asked)


def test_a_rank_on_another_device_ends_the_sweep():
    crashed = failed(OutcomeKind.CRASHED, "it broke")
    elsewhere = failed(OutcomeKind.NOT_APPLIED, "this rank has GPU-1, wanted GPU-2")

    _refuse_other_devices([crashed])
    with pytest.raises(ClusterError, match="has GPU-1, wanted GPU-2"):
        _refuse_other_devices([crashed, elsewhere])
