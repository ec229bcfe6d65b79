"""The SVG of wiring and rings: valid XML, the right words, every colour with its word."""

import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from ring_samples import DGX_1V, NVLINK_RATE, cluster, fat_tree, node_of, node_of_table

from topology import Topology
from topology.picture import COLOURS, render_svg
from topology.picture_rings import RING_INK
from topology.rings import plan_rings

SVG = "{http://www.w3.org/2000/svg}"


def parsed(topology, plan=None):
    text = render_svg(topology, plan)
    assert text.isascii()
    assert text.endswith("</svg>\n")
    return ET.fromstring(text)


def words_of(root):
    return [text.text for text in root.iter(f"{SVG}text")]


def titles_of(root):
    return [title.text for title in root.iter(f"{SVG}title")]


def group_of(root, title):
    (found,) = [
        group
        for group in root.iter(f"{SVG}g")
        if (named := group.find(f"{SVG}title")) is not None and named.text == title
    ]
    return found


def framed_in(root):
    return [title for title in titles_of(root) if title.endswith(", used by a ring")]


def contrast(first, second):
    """The ratio of WCAG 2."""

    def light(colour):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted([light(first), light(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("kind", COLOURS)
def test_words_can_be_read_on_their_colour(kind):
    assert contrast(*COLOURS[kind]) >= 4.5


def test_the_matrix_says_what_joins_every_pair():
    root = parsed(cluster(node_of_table(DGX_1V)))

    words = words_of(root)
    assert (words.count("NV1"), words.count("NV2"), words.count("SYS")) == (16, 16, 24 + 1)
    assert root.find(f"{SVG}title").text == "Topology: 1 node, 8 GPUs"
    assert root.get("role") == "img"
    assert "GPU0 to GPU4: NV2" in titles_of(root)
    assert "GPU4 to GPU0: NV2" in titles_of(root)
    assert framed_in(root) == []


def test_a_cell_has_colour_word_and_title():
    root = parsed(cluster(node_of("NV18", gpus=2, nics=1, bytes_per_s=NVLINK_RATE)))

    cell = group_of(root, "GPU0 to GPU1: NV18, 478.0 GB/s")
    assert cell.find(f"{SVG}rect").get("fill") == COLOURS["NVLINK"][0]
    assert cell.find(f"{SVG}text").text == "NV18"
    assert group_of(root, "GPU1 to NIC mlx5_0: PIX") is not None


def test_what_nobody_told_is_a_question_mark():
    root = parsed(cluster(node_of("?", gpus=2)))

    assert group_of(root, "GPU0 to GPU1: not told").find(f"{SVG}text").text == "?"


def test_links_of_a_ring_are_framed_both_ways():
    topology = cluster(node_of_table(DGX_1V))
    plan = plan_rings(topology, tp=1, cp=8)

    root = parsed(topology, plan)

    order = [device.gpu for device in plan.rings[0].order]
    pairs = list(pairwise([*order, order[0]]))
    wanted = {f"GPU{a} to GPU{b}: NV2, used by a ring" for a, b in pairs}
    wanted |= {f"GPU{b} to GPU{a}: NV2, used by a ring" for a, b in pairs}
    assert set(framed_in(root)) == wanted
    assert root.find(f"{SVG}title").text == "Topology: 1 node, 8 GPUs; rings for tp 1, cp 8"


def test_a_ring_is_a_circle_of_its_devices_in_order():
    topology = cluster(node_of_table(DGX_1V))
    plan = plan_rings(topology, tp=1, cp=8)

    root = parsed(topology, plan)

    spots = []
    for device in plan.rings[0].order:
        circle = group_of(root, str(device)).find(f"{SVG}circle")
        spots.append((float(circle.get("cx")), float(circle.get("cy"))))
    steps = [math.dist(a, b) for a, b in pairwise([*spots, spots[0]])]
    assert max(steps) - min(steps) < 0.2
    assert spots[0][1] == min(y for _, y in spots)  # the first one stands on top


def test_only_the_slowest_edges_are_marked():
    nodes = [node_of("NV18", name=name, gpus=2, bytes_per_s=NVLINK_RATE) for name in "ab"]
    topology = cluster(*nodes)

    root = parsed(topology, plan_rings(topology, tp=1, cp=4))

    slow = [title for title in titles_of(root) if title.endswith("the slowest of the ring")]
    assert len(slow) == 2
    assert all(" NET " in f" {title} " for title in slow)
    strokes = [mark.get("stroke") for mark in group_of(root, slow[0]).iter(f"{SVG}line")]
    assert strokes == [RING_INK, COLOURS["NET"][0]]


def test_edges_that_are_all_alike_are_not_marked():
    topology = cluster(node_of("NV18", gpus=4))

    titles = titles_of(parsed(topology, plan_rings(topology, tp=1, cp=4)))

    assert not [title for title in titles if "slowest of the ring" in title]


def test_nodes_wired_alike_are_drawn_once():
    topology = fat_tree(64, rack=8)

    root = parsed(topology, plan_rings(topology, tp=8, cp=8))

    words = words_of(root)
    assert words.count("GPU7") == 2
    assert "node n0000 and 63 wired alike" in words
    assert "ring 15: 8 GPUs" in words
    assert "ring 16: 8 GPUs" not in words
    assert "and 48 more rings" in words


def test_many_kinds_of_node_are_cut_and_counted():
    topology = cluster(*[node_of("PIX", name=f"n{n}", gpus=n) for n in range(1, 12)])

    assert "and 3 other kinds of node" in words_of(parsed(topology))


def test_a_ring_too_long_to_draw_is_told_in_words():
    topology = fat_tree(16, rack=8)
    plan = plan_rings(topology, tp=1, cp=128)

    root = parsed(topology, plan)

    assert "ring 0: 128 GPUs" in words_of(root)
    assert list(root.iter(f"{SVG}circle")) == []


@pytest.mark.parametrize(
    "name", ["a<b>&\"'", "\x00\x1b[0m", "\ud800", "\uffff", "h\u00f6st", "\U0001f600", ""]
)
def test_any_name_gives_valid_xml(name):
    topology = cluster(node_of("NV18", name=name, gpus=2), node_of("PIX", name="z", gpus=2))

    root = parsed(topology, plan_rings(topology, tp=1, cp=4))

    assert [word for word in words_of(root) if word.startswith("node ")]


def test_a_cluster_without_gpus_is_a_picture_too():
    root = parsed(cluster(node_of("PIX", gpus=0)))

    assert "node node0: no GPU" in words_of(root)
    assert parsed(Topology(source="test", nodes=())) is not None


def test_everything_lies_on_the_page():
    topology = cluster(*[node_of("NV18", name=f"host-{n}", nics=8) for n in range(4)])

    root = parsed(topology, plan_rings(topology, tp=2, cp=16))

    width, height = float(root.get("width")), float(root.get("height"))
    assert root.get("viewBox") == f"0 0 {width:.0f} {height:.0f}"
    for x, y in placed(root, at=(0.0, 0.0)):
        assert 0 <= x <= width
        assert 0 <= y <= height


def placed(mark, *, at):
    """Where every mark begins, in page coordinates."""
    move = mark.get("transform", "translate(0 0)")[len("translate(") : -1].split()
    at = (at[0] + float(move[0]), at[1] + float(move[1]))
    for across, down in (("x", "y"), ("cx", "cy"), ("x1", "y1"), ("x2", "y2")):
        if across in mark.attrib:
            yield at[0] + float(mark.get(across)), at[1] + float(mark.get(down))
    for below in mark:
        yield from placed(below, at=at)
