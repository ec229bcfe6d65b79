"""Tables that people posted, against rings found by exhaustive search."""

import csv
from collections import Counter

import pytest
from ring_samples import CORPUS, DGX_1V, cluster, gpus_of, labels_of, node_of_table, turned

from topology.rings import plan_rings

OPTIMA = CORPUS / "RING_OPTIMA.csv"


def optima():
    if not OPTIMA.is_file():
        reason = "the posted tables are not beside this checkout (shared/data/topologies)"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    with OPTIMA.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [pytest.param(row, id=f"{row['file'][7:9]}-{row['ring_size']}") for row in rows]


def plan_of(table, *, size):
    return plan_rings(cluster(node_of_table(table)), tp=1, cp=size)


@pytest.mark.parametrize("row", optima())
def test_the_first_ring_is_the_best_there_is(row):
    table = (CORPUS / row["file"]).read_text()

    ring = plan_of(table, size=int(row["ring_size"])).rings[0]

    wanted = Counter()
    for edges in row["best_edges"].replace("SOC", "SYS").split():
        label, count = edges.split("x")
        wanted[label] += int(count)
    assert Counter(labels_of(ring)) == wanted
    assert gpus_of(ring) == [int(gpu) for gpu in row["one_best_order"].split()]


def test_a_dgx_1v_has_one_ring_of_double_links():
    ring = plan_of(DGX_1V, size=8).rings[0]

    assert gpus_of(ring) in turned([0, 3, 2, 1, 5, 6, 7, 4])
    assert labels_of(ring) == ["NV2"] * 8
    assert ring.crossings.island == 0
