"""A trial over NCCL, as far as one GPU goes; the last of all, since a hang in it ends the run."""

import pytest
import torch
from trial_jobs import alone, device_of

from cptune.bench.cuda import NCCL
from cptune.domain.timeline import DEVICE_INTERVALS

pytestmark = pytest.mark.gpu


def test_nccl_carries_a_trial(gpu: torch.device) -> None:
    over_gloo = alone({}, device=device_of("cuda"))
    over_nccl = alone({}, device=device_of("cuda", backend=NCCL))

    assert over_nccl.first_loss == pytest.approx(over_gloo.first_loss, rel=1e-5)
    assert over_nccl.first_grad_norm == pytest.approx(over_gloo.first_grad_norm, rel=1e-4)
    whole = over_nccl.trace.whole("world")
    assert whole.method == DEVICE_INTERVALS
    assert whole.exposed_s is not None
