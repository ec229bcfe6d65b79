"""The sharded step against plain PyTorch in one process, fp64: loss, gradients and updates."""

import hashlib

import pytest
from decoder_cases import UPDATES, check

LAYOUTS = [(1, 2, 1), (2, 1, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2), (1, 3, 1)]


def plain(layout):
    return dict(zip(("tp", "cp", "dp"), layout, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sharding", ["zigzag", "contiguous"])
def test_loss_and_every_gradient_equal_the_unsharded_model(ranks, layout, sharding):
    check(ranks, plain(layout), sharding=sharding)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_without_valid_token_changes_nothing(ranks, layout):
    # Samples 0 and 1 have no loss at all, 2 and 3 none in their first half: under contiguous
    # sharding the first context rank, and under dp=2 the whole first group, has no valid token.
    ignored = {0: (0, 23), 1: (0, 23), 2: (0, 12), 3: (0, 12)}
    check(ranks, plain(layout), ignored=ignored, sharding="contiguous")


def test_micro_batches_change_nothing(ranks):
    check(ranks, {"cp": 2, "micro_batch": 2}, ignored={1: (3, 20)})


def test_a_batch_without_any_valid_token_has_zero_loss(ranks):
    check(ranks, {"cp": 2}, ignored=dict.fromkeys(range(4), (0, 23)))


COMPOSITIONS = [
    {"pp": 2},
    {"pp": 2, "vpp": 2},
    {"pp": 4},
    {"pp": 2, "cp": 2},
    {"pp": 2, "tp": 2},
    {"pp": 2, "dp": 2},
    {"pp": 2, "vpp": 2, "tp": 2},
    {"dp": 2, "data_parallel": "zero1"},
    {"cp": 2, "tp": 2, "data_parallel": "zero1"},
    {"cp": 2, "dp": 2, "data_parallel": "fsdp"},
    {"cp": 2, "tp": 2, "data_parallel": "fsdp"},
    {"dp": 2, "tp": 2, "data_parallel": "fsdp", "micro_batch": 2},
    {"pp": 2, "dp": 2, "data_parallel": "fsdp"},
    {"pp": 2, "cp": 2, "data_parallel": "zero1", "recompute": "full"},
    {"cp": 2, "strategy": "ulysses", "ulysses": 2},
    {"cp": 4, "strategy": "ulysses", "ulysses": 4, "recompute": "full"},
    {"cp": 4, "strategy": "hybrid", "ulysses": 2},
    {"cp": 2, "tp": 2, "strategy": "ulysses", "ulysses": 2},
    {"cp": 2, "recompute": "full"},
    {"cp": 2, "recompute": "selective"},
    {"tp": 2, "recompute": "full", "loss": "chunked"},
    {"cp": 2, "dp": 2, "loss": "chunked", "micro_batch": 2},
    {"pp": 2, "tp": 2, "loss": "chunked", "recompute": "selective"},
    {"cp": 2, "dp": 2, "data_parallel": "fsdp", "recompute": "full", "loss": "chunked"},
]


def name_of(axes):
    return "-".join(f"{name}{value}" for name, value in axes.items())


@pytest.mark.parametrize("axes", COMPOSITIONS, ids=name_of)
def test_compositions_equal_the_unsharded_model(ranks, axes):
    digest = hashlib.sha256(name_of(axes).encode()).digest()[0]
    case = {
        "mask": ("causal", "full")[digest % 2],
        "sharding": ("zigzag", "contiguous")[digest % 3 % 2],
    }
    check(ranks, axes, ignored={0: (0, 23), 2: (5, 9)}, updates=UPDATES, **case)


# Every axis with documents: packs differ from sample to sample and from step to step.
DOCUMENTS = [
    {"dp": 2},
    {"cp": 2, "micro_batch": 2},
    {"cp": 3, "tp": 2, "pp": 1},
    {"cp": 2, "pp": 2},
    {"cp": 2, "pp": 2, "recompute": "full", "data_parallel": "zero1"},
    {"cp": 2, "dp": 2, "data_parallel": "fsdp", "recompute": "selective", "loss": "chunked"},
    {"cp": 4, "strategy": "hybrid", "ulysses": 2},
    {"cp": 2, "strategy": "ulysses", "ulysses": 2, "pp": 2, "vpp": 2},
]


@pytest.mark.parametrize("axes", DOCUMENTS, ids=name_of)
def test_packed_documents_equal_the_unsharded_model(ranks, axes):
    check(ranks, axes, mask="document", ignored={2: (5, 9)}, updates=UPDATES)


@pytest.mark.parametrize("axes", [{"cp": 2}, {"cp": 3, "recompute": "full"}], ids=name_of)
def test_packs_cut_by_their_area_equal_the_unsharded_model(ranks, axes):
    check(ranks, axes, mask="document", sharding="balanced", updates=UPDATES)


@pytest.mark.parametrize(
    "axes",
    [
        {"tp": 4},
        {"tp": 4, "data_parallel": "zero1", "recompute": "full"},
        {"tp": 4, "data_parallel": "fsdp", "micro_batch": 2, "loss": "chunked"},
    ],
    ids=name_of,
)
def test_kv_heads_that_several_tensor_ranks_share_equal_the_unsharded_model(ranks, axes):
    check(ranks, axes, updates=UPDATES)
