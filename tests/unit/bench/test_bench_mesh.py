"""The default process group of a trial: gone after it, or left alone where its process ends."""

import pytest
import torch.distributed as dist

from cptune.bench.job import Rendezvous
from cptune.bench.mesh import joined, open_store


@pytest.fixture
def rendezvous():
    store, port = open_store("127.0.0.1")
    yield Rendezvous(host="127.0.0.1", port=port, prefix="alone", timeout_s=30.0)
    if dist.is_initialized():
        dist.destroy_process_group()
    del store


@pytest.mark.parametrize("ends", [True, False])
def test_groups_of_a_rank_that_failed_may_be_left_alone(rendezvous, ends):
    group = joined(rendezvous, rank=0, world_size=1, ends_after_failure=ends)

    with pytest.raises(ValueError, match="it broke"), group:
        raise ValueError("it broke")

    assert dist.is_initialized() is not ends


def test_groups_of_a_rank_that_is_done_are_ended(rendezvous):
    with joined(
        rendezvous, rank=0, world_size=1, backend="cpu:gloo,cuda:gloo", ends_after_failure=False
    ):
        assert dist.get_backend_config() == "cpu:gloo,cuda:gloo"

    assert not dist.is_initialized()
