"""All axes at once on eight ranks, against plain PyTorch in one process, fp64."""

import pytest
from decoder_cases import UPDATES, check

CASES = [
    ({"tp": 2, "cp": 2, "dp": 2, "data_parallel": "fsdp", "recompute": "full"}, "document"),
    ({"tp": 2, "cp": 2, "pp": 2, "data_parallel": "zero1", "loss": "chunked"}, "causal"),
    ({"tp": 4, "cp": 2, "recompute": "selective", "micro_batch": 2}, "document"),
    ({"tp": 2, "pp": 2, "vpp": 2, "dp": 2, "loss": "chunked"}, "full"),
    ({"cp": 2, "pp": 2, "dp": 2, "data_parallel": "fsdp", "recompute": "full"}, "document"),
    ({"cp": 4, "dp": 2, "strategy": "hybrid", "ulysses": 2, "data_parallel": "zero1"}, "causal"),
    ({"cp": 8}, "document"),
    ({"tp": 4, "pp": 2, "data_parallel": "fsdp"}, "causal"),
]


@pytest.mark.parametrize(
    ("axes", "mask"),
    CASES,
    ids=["-".join([*map(str, axes.values()), mask]) for axes, mask in CASES],
)
def test_eight_ranks_equal_the_unsharded_model(ranks, axes, mask):
    check(ranks, axes, mask=mask, ignored={0: (0, 23), 2: (5, 9)}, updates=UPDATES)
