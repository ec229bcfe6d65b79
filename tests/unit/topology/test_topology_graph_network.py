"""The network as one tree, whatever shape people's switch graphs have."""

import random

import pytest
from ring_samples import cluster, node_of, switch

from topology import Edge, TierKind
from topology.network_tree import NetworkTree


def tree_of(names, *, tiers, edges=()):
    nodes = [node_of("NV18", name=name, gpus=1) for name in names]
    return NetworkTree.of(cluster(*nodes, tiers=tuple(tiers), edges=tuple(edges)))


def test_a_path_leads_from_the_root_to_the_leaf():
    tiers = [
        switch("leaf", "a", parent="spine"),
        switch("spine", parent="core"),
        switch("core", "b"),
    ]

    tree = tree_of("abc", tiers=tiers)

    assert tree.paths == {"a": ("core", "spine", "leaf"), "b": ("core",), "c": ()}
    assert [tree.leaf(node) for node in "abc"] == ["leaf", "core", None]
    assert tree.notes == ()


def test_a_parent_that_is_not_listed_is_a_root():
    assert tree_of("a", tiers=[switch("leaf", "a", parent="gone")]).paths["a"] == ("gone", "leaf")


def test_the_first_of_several_parents_and_switches_is_followed_and_noted():
    tiers = [
        switch("leaf", "a", parent="spine0"),
        switch("leaf", "a", parent="spine1"),
        switch("rail", "a"),
    ]

    tree = tree_of("a", tiers=tiers)

    assert tree.paths["a"] == ("spine0", "leaf")
    assert any("leaf: several parents" in note for note in tree.notes)
    assert any("a: under several switches" in note for note in tree.notes)


@pytest.mark.parametrize("length", [1, 2, 5, 3000])
def test_a_cycle_of_parents_is_cut_once(length):
    tiers = [
        switch(f"s{place}", f"n{place}", parent=f"s{(place + 1) % length}")
        for place in range(length)
    ]

    tree = tree_of(dict.fromkeys(["n0", f"n{length - 1}"]), tiers=tiers)

    assert any("cycle" in note for note in tree.notes)
    assert tree.paths["n0"] == ("s0",)
    assert tree.paths[f"n{length - 1}"] == ("s0", f"s{length - 1}")[: min(2, length)]


def test_tiers_that_only_edges_join_are_ordered_by_levels():
    tiers = [
        switch("core"),
        switch("spine0"),
        switch("spine1"),
        switch("leaf0", "a"),
        switch("leaf1"),
        switch("lonely"),
    ]
    edges = [
        Edge(a="leaf0", b="spine0"),
        Edge(a="leaf0", b="spine1"),
        Edge(a="spine1", b="leaf1"),
        Edge(a="spine0", b="leaf1"),
        Edge(a="spine0", b="core"),
        Edge(a="core", b="spine1"),
        Edge(a="spine0", b="spine1"),
        Edge(a="leaf1", b="b"),
        Edge(a="core", b="core"),
    ]

    tree = tree_of("ab", tiers=tiers, edges=edges)

    assert tree.paths["a"] == ("core", "spine0", "leaf0")
    assert tree.paths["b"][-1] == "leaf1"
    assert tree.paths["b"][0] == "core"


def test_random_graphs_of_switches_end_and_keep_every_node():
    for seed in range(30):
        rng = random.Random(seed)
        names = [f"s{place}" for place in range(12)]
        tiers = [
            switch(name, *rng.sample("abcd", rng.randint(0, 2)), parent=rng.choice([None, *names]))
            for name in names
        ]
        edges = [Edge(a=rng.choice(names), b=rng.choice([*names, "a"])) for _ in range(20)]

        tree = tree_of("abcd", tiers=tiers, edges=edges)

        assert set(tree.paths) == set("abcd")
        assert all(len(set(path)) == len(path) for path in tree.paths.values())


def test_an_nvlink_domain_goes_below_the_lowest_switch_that_holds_all_of_it():
    tiers = [
        switch("core"),
        switch("leaf0", "a", "b", parent="core"),
        switch("leaf1", "c", "d", parent="core"),
        switch("rack", "b", "c", kind=TierKind.NVLINK_DOMAIN),
    ]

    tree = tree_of("abcd", tiers=tiers)

    assert tree.paths["a"] == ("core", "leaf0")
    assert tree.paths["b"] == ("core", "rack", "leaf0")
    assert tree.paths["c"] == ("core", "rack", "leaf1")
    assert tree.leaf("b") == "leaf0"
    assert tree.domains == {"b": "rack", "c": "rack"}


def test_an_nvlink_domain_may_be_a_tier_of_the_tree_itself():
    above = [
        switch("block", kind=TierKind.BLOCK),
        switch("rack", "a", parent="block", kind=TierKind.NVLINK_DOMAIN),
        switch("tray", "b", parent="rack"),
    ]

    tree = tree_of("ab", tiers=above)

    assert tree.paths == {"a": ("block", "rack"), "b": ("block", "rack", "tray")}
    assert tree.domains == {"a": "rack", "b": "rack"}
    assert tree.leaf("a") == "block"


def test_a_block_counts_where_there_is_no_switch():
    tiers = [
        switch("block0", "a", "b", kind=TierKind.BLOCK),
        switch("leaf0", "a"),
    ]

    tree = tree_of("ab", tiers=tiers)

    assert tree.paths == {"a": ("leaf0",), "b": ("block0",)}


def test_rates_out_are_those_of_edges_that_cross_the_boundary():
    tiers = [switch("leaf0", "a", "b", parent="spine"), switch("leaf1", "c"), switch("spine")]
    edges = [
        Edge(a="a", b="leaf0", bytes_per_s=1e9),
        Edge(a="b", b="leaf0", bytes_per_s=2e9),
        Edge(a="leaf0", b="spine", bytes_per_s=3e9),
        Edge(a="leaf0", b="spine", bytes_per_s=4e9),
        Edge(a="a", b="c", bytes_per_s=5e9),
        Edge(a="leaf1", b="c"),
    ]

    tree = tree_of("abc", tiers=tiers, edges=edges)

    assert tree.rates_out["a"] == (1e9,)
    assert tree.rates_out["leaf0"] == (3e9, 4e9)
    assert tree.rates_out["c"] == (None,)
    assert tree.rates[frozenset(("leaf0", "spine"))] == 4e9
