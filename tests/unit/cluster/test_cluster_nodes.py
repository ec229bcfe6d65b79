"""Which nodes of a Ray cluster are measured: the living ones that can hold a rank."""

import pytest

from cptune.cluster.connection import RayNode, usable_nodes


def told(name, *, alive=True, **resources):
    return {"NodeID": f"id-{name}", "NodeManagerHostname": name, "Alive": alive} | {
        "Resources": resources
    }


def test_nodes_come_by_name_with_what_they_offer():
    assert usable_nodes([told("b", CPU=4.0), told("a", CPU=8.0, GPU=2.0)]) == [
        RayNode(node_id="id-a", name="a", cpus=8.0, gpus=2.0),
        RayNode(node_id="id-b", name="b", cpus=4.0, gpus=0.0),
    ]


@pytest.mark.parametrize(
    "other",
    [told("head"), told("head", CPU=0.0, memory=1e9), told("gone", alive=False, CPU=8.0)],
    ids=["offers-nothing", "no-cpus", "dead"],
)
def test_a_node_that_can_hold_no_rank_is_none_of_them(other):
    assert [node.name for node in usable_nodes([other, told("b", CPU=4.0)])] == ["b"]


def test_a_node_of_gpus_alone_counts():
    assert [node.gpus for node in usable_nodes([told("a", GPU=8.0)])] == [8.0]
