"""What the libraries of the ranks read: shared where all agree, by place where they do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cptune.domain.environment import RankEnvironment, join_environments, told_variables


def test_variables_of_libraries_are_kept_and_nothing_else():
    kept = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "TORCH_DISTRIBUTED_DEBUG": "OFF"}

    assert told_variables(kept | {"HOME": "/", "MY_NCCL_ALGO": "Tree", "PATH": "/bin"}) == kept


@pytest.mark.parametrize(
    "name",
    ["NCCL_AUTH_TOKEN", "TORCH_HUB_KEY", "CUDA_SECRET", "GLOO_PASSWORD", "TORCH_tokens_file"],
)
def test_no_name_that_speaks_of_a_secret_is_kept(name):
    assert told_variables({name: "hush"}) == {}


def test_which_device_a_rank_has_is_no_difference():
    assert told_variables({"CUDA_VISIBLE_DEVICES": "3", "CUDA_MODULE_LOADING": "LAZY"}) == {
        "CUDA_MODULE_LOADING": "LAZY"
    }


def test_where_all_ranks_agree_there_is_one_set():
    both = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "1"}

    found = join_environments([("a", both), ("a", both), ("b", both)])

    assert found == RankEnvironment(shared=both)
    assert found.why_differing() == []
    assert found.of("NCCL_ALGO") == {"": "Ring"}


def test_where_nodes_differ_each_is_named_with_its_value():
    found = join_environments(
        [
            ("a", {"NCCL_IB_HCA": "mlx5_0", "NCCL_ALGO": "Ring"}),
            ("a", {"NCCL_IB_HCA": "mlx5_0", "NCCL_ALGO": "Ring"}),
            ("b", {"NCCL_ALGO": "Ring"}),
            ("c", {"NCCL_IB_HCA": "mlx5_0", "NCCL_ALGO": "Ring"}),
        ]
    )

    assert found.shared == {"NCCL_ALGO": "Ring"}
    assert found.differing == {"NCCL_IB_HCA": {"a": "mlx5_0", "b": None, "c": "mlx5_0"}}
    assert found.why_differing() == [
        "the ranks differ in NCCL_IB_HCA: 'mlx5_0' on a, c; unset on b"
    ]


def test_where_the_ranks_of_one_node_differ_each_rank_is_named():
    found = join_environments([("a", {"OMP_NUM_THREADS": "1"}), ("a", {}), ("b", {})])

    assert found.differing == {"OMP_NUM_THREADS": {"a rank 0": "1", "a rank 1": None, "b": None}}


def test_of_very_many_nodes_the_first_are_named():
    ranks = [(f"n{one}", {"NCCL_ALGO": "Tree" if one else "Ring"}) for one in range(20)]

    (said,) = join_environments(ranks).why_differing()

    assert said.endswith("'Tree' on n1, n2, n3, n4, n5, n6, n7, n8 and 11 more")


names = st.sampled_from(["NCCL_ALGO", "NCCL_PROTO", "OMP_NUM_THREADS"])
variables = st.dictionaries(names, st.sampled_from(["", "1", "2"]))


@given(st.lists(st.tuples(st.sampled_from("abc"), variables), min_size=1, max_size=6))
def test_nothing_is_lost_and_no_order_of_names_counts(ranks):
    found = join_environments(ranks)

    assert set(found.shared) | set(found.differing) == {name for _, one in ranks for name in one}
    assert not set(found.shared) & set(found.differing)
    for rank, (node, own) in enumerate(ranks):
        for name, values in found.differing.items():
            place = node if node in values else f"{node} rank {rank}"
            assert values[place] == own.get(name)
        assert all(own[name] == value for name, value in found.shared.items())
