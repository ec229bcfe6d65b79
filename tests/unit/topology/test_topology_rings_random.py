"""Random clusters, odd ones too: what must hold of every plan."""

import random
from itertools import combinations, combinations_with_replacement

import pytest
from ring_samples import cluster, link, node_of, switch

from topology import Edge, Gpu, GpuNic, LinkKind, Nic, Node, TierKind, TopologyError
from topology.rings import plan_rings

FABRICS = (["NV18"], ["NV2", "NV1", "SYS"], ["PIX", "PHB", "SYS", "?"], ["NV12", "SYS"])


def random_node(rng, name):
    cells = rng.choice(FABRICS)
    rates = {cell: rng.choice([None, 10e9, 50e9]) for cell in cells}
    indices = sorted(rng.sample(range(9), rng.choice([1, 2, 3, 4, 4, 8])))
    pairs = [(a, b, rng.choice(cells)) for a, b in combinations(indices, 2)]
    nics = [f"mlx5_{number}" for number in range(rng.randint(0, 4))]
    kinds = [None, LinkKind.PIX, LinkKind.NODE, LinkKind.SYS]
    return Node(
        name=name,
        gpus=tuple(Gpu(index=index, mig=rng.random() < 0.05) for index in indices),
        nics=tuple(Nic(name=nic, speed_bytes_per_s=rng.choice([None, 25e9, 50e9])) for nic in nics),
        gpu_links=tuple(link(a, b, cell, bytes_per_s=rates[cell]) for a, b, cell in pairs),
        gpu_nics=tuple(
            GpuNic(gpu=gpu, nic=nic, kind=rng.choice(kinds)) for gpu in indices for nic in nics
        ),
    )


def random_cluster(rng):
    names = [f"n{number}" for number in range(rng.randint(1, 6))]
    above = [f"s{number}" for number in range(rng.randint(0, 4))]
    tiers = [
        switch(
            name,
            *rng.sample(names, rng.randint(0, len(names))),
            parent=rng.choice([None, *above]),
            kind=rng.choice(list(TierKind)),
        )
        for name in above
    ]
    ends = [*names, *above]
    edges = [
        Edge(a=rng.choice(ends), b=rng.choice(ends), bytes_per_s=rng.choice([None, 20e9, 100e9]))
        for _ in range(rng.randint(0, 5))
    ]
    nodes = [random_node(rng, name) for name in names]
    return cluster(*nodes, tiers=tuple(tiers), edges=tuple(edges))


@pytest.mark.parametrize("seed", range(150))
def test_every_plan_uses_a_device_once_and_stays_below_its_bound(seed):
    rng = random.Random(seed)
    topology = random_cluster(rng)
    tp, cp = rng.choice([1, 1, 2, 3, 4, 8]), rng.choice([1, 2, 3, 4, 6])

    try:
        plan = plan_rings(topology, tp=tp, cp=cp)
    except TopologyError:
        return  # too few devices for this layout

    devices = [device for ring in plan.rings for device in ring.order]
    assert len(devices) == len(set(devices)) == len(plan.groups) * tp * cp
    assert {len(ring.order) for ring in plan.rings} == {cp if cp > 1 else tp}
    if plan.bound_bytes_per_s is not None and plan.achieved_bytes_per_s is not None:
        assert plan.achieved_bytes_per_s <= plan.bound_bytes_per_s * (1 + 1e-9)
    assert plan == plan_rings(topology, tp=tp, cp=cp)


def least_crossings(sizes, *, size):
    """The fewest edges between racks of any groups of `size`, by trying all of them."""
    if sum(sizes) < size:
        return 0
    ways = []
    for racks in combinations_with_replacement(range(len(sizes)), size):
        taken = [racks.count(rack) for rack in range(len(sizes))]
        if all(count <= there for count, there in zip(taken, sizes, strict=True)):
            used = len(set(racks))
            rest = [there - count for count, there in zip(taken, sizes, strict=True)]
            ways.append((used if used > 1 else 0) + least_crossings(rest, size=size))
    return min(ways)


@pytest.mark.parametrize(
    ("sizes", "size"),
    [([3, 2, 1], 4), ([5, 5, 2], 4), ([3, 3, 3], 4), ([1, 2, 3, 4], 5), ([7, 1, 1], 3)],
)
def test_racks_are_joined_with_the_fewest_crossings_there_can_be(sizes, size):
    racks = [[f"r{rack}n{number}" for number in range(count)] for rack, count in enumerate(sizes)]
    tiers = [
        switch("core"),
        *(switch(f"r{i}", *rack, parent="core") for i, rack in enumerate(racks)),
    ]
    nodes = [node_of("NV18", name=name, gpus=1) for rack in racks for name in rack]

    plan = plan_rings(cluster(*nodes, tiers=tuple(tiers)), tp=1, cp=size)

    crossings = sum(ring.crossings.switch for ring in plan.rings)
    assert crossings == least_crossings(sizes, size=size)
    assert len(plan.rings) == sum(sizes) // size
