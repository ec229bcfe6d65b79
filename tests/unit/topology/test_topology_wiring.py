"""Which pairs are NVLink, and what stays unknown: decisions on readings, without a driver."""

import tomllib
from importlib.resources import files

import pytest

from topology import LinkKind
from topology.wiring import (
    FarEnd,
    GpuReading,
    MachineReading,
    NvlinkEnd,
    PairReading,
    build_links,
    fold_notes,
    nvlink_bytes_per_s,
)

BUSES = ["0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"]
SWITCH = NvlinkEnd(far_end=FarEnd.SWITCH, bus_id=None)
NAMELESS_GPU = NvlinkEnd(far_end=FarEnd.GPU, bus_id=None)
UNKNOWN = NvlinkEnd(far_end=FarEnd.UNKNOWN, bus_id=None)
CPU = NvlinkEnd(far_end=FarEnd.OTHER, bus_id=None)


def to(index):
    return NvlinkEnd(far_end=FarEnd.GPU, bus_id=BUSES[index])


def join(ends_a, ends_b, *, nvlink_p2p=None, ancestor=40, switches=()):
    """The link of two GPUs with these NVLinks, and the notes on it."""
    gpus = tuple(
        GpuReading(index=index, pci_bus_id=BUSES[index], compute_capability="9.0", nvlinks=ends)
        for index, ends in enumerate((ends_a, ends_b))
    )
    pair = PairReading(a=0, b=1, ancestor=ancestor, nvlink_p2p=nvlink_p2p)
    machine = MachineReading(gpus=gpus, pairs=(pair,))
    (link,), notes = build_links(machine, switch_bus_ids=frozenset(switches))
    return link, notes


@pytest.mark.parametrize(
    ("ends_a", "ends_b", "nvlink_p2p", "kind", "lanes", "note"),
    [
        ((to(1), to(1)), (to(0), to(0)), None, "NVLINK", 2, ""),
        ((to(1), to(1)), (to(0),), None, "NVLINK", 1, "different numbers"),
        ((to(1),), (), None, "NODE", None, "one side only"),
        ((to(1),), (), True, "NODE", None, "one side only"),
        ((to(1),), None, True, "NVLINK", None, "far ends are not told"),
        ((to(1),), None, None, None, None, "kind unknown"),
        ((to(2),), (to(2),), True, "NODE", None, ""),
        ((SWITCH,) * 3, (SWITCH,) * 2, True, "NVLINK", 2, ""),
        ((SWITCH,), (SWITCH,), False, "NODE", None, "fabric manager"),
        ((SWITCH,), (SWITCH,), None, None, None, "kind unknown"),
        ((SWITCH,), (), True, "NODE", None, ""),
        ((SWITCH,), (UNKNOWN,), True, "NVLINK", None, "far ends are not told"),
        ((UNKNOWN,), (UNKNOWN,), False, "NODE", None, ""),
        ((UNKNOWN, SWITCH), (SWITCH,), True, "NVLINK", None, "far ends are not told"),
        ((NAMELESS_GPU,), (NAMELESS_GPU,), True, "NVLINK", None, "far ends are not told"),
        ((CPU,), (CPU,), True, "NODE", None, ""),
        ((), (), None, "NODE", None, ""),
        (None, (), None, "NODE", None, ""),
        (None, None, None, None, None, "kind unknown"),
        (None, None, False, "NODE", None, ""),
    ],
)
def test_a_pair_is_nvlink_only_where_the_driver_says_enough(
    ends_a, ends_b, nvlink_p2p, kind, lanes, note
):
    link, notes = join(ends_a, ends_b, nvlink_p2p=nvlink_p2p)
    mirrored, _ = join(
        None if ends_b is None else tuple(map(mirror, ends_b)),
        None if ends_a is None else tuple(map(mirror, ends_a)),
        nvlink_p2p=nvlink_p2p,
    )

    assert (link.kind, link.lanes) == (kind, lanes)
    assert [note in text for text in notes] == ([True] if note else [])
    assert mirrored == link


def mirror(end):
    """The same end after GPUs 0 and 1 swap places."""
    swapped = {BUSES[0]: BUSES[1], BUSES[1]: BUSES[0]}
    return NvlinkEnd(far_end=end.far_end, bus_id=swapped.get(end.bus_id, end.bus_id))


def test_a_known_switch_address_makes_an_unknown_far_end_a_switch():
    end = NvlinkEnd(far_end=FarEnd.UNKNOWN, bus_id="0000:99:00.0")

    told, _ = join((end,), (end,), nvlink_p2p=True, switches=["0000:99:00.0"])
    untold, _ = join((end,), (end,), nvlink_p2p=True)

    assert (told.lanes, untold.lanes) == (1, None)


@pytest.mark.parametrize(
    ("ancestor", "kind"),
    [
        (0, "PIX"),
        (10, "PIX"),
        (20, "PXB"),
        (30, "PHB"),
        (40, "NODE"),
        (50, "SYS"),
        (60, None),
        (None, None),
    ],
)
def test_without_nvlink_the_pcie_ancestor_decides(ancestor, kind):
    link, _ = join((), (), ancestor=ancestor)

    assert link.kind == kind


def test_the_rate_is_lanes_times_that_of_the_slower_gpu():
    assert nvlink_bytes_per_s("9.0", "9.0", lanes=18) == pytest.approx(478.1e9, rel=1e-3)
    assert nvlink_bytes_per_s("8.0", "9.0", lanes=2) == 50e9


@pytest.mark.parametrize(
    ("a", "b", "lanes"), [(None, "9.0", 1), ("9.0", "99.0", 1), ("9.0", "9.0", None)]
)
def test_a_rate_is_unknown_where_anything_it_needs_is(a, b, lanes):
    assert nvlink_bytes_per_s(a, b, lanes=lanes) is None


def test_pcie_links_have_no_rate():
    link, _ = join((), ())

    assert (link.kind, link.bytes_per_s) == (LinkKind.NODE, None)


def test_every_row_of_the_link_table_has_a_source_and_a_plan_below_the_promise():
    table = tomllib.loads(files("topology").joinpath("links.toml").read_text())

    for capability, row in table["nvlink"].items():
        assert set(row) == {"bytes_per_s", "nccl_bytes_per_s", "source"}, capability
        assert row["source"]
        assert 1e9 < row["nccl_bytes_per_s"] < row["bytes_per_s"] < 1e12


def test_notes_of_one_text_are_folded():
    remarks = [("0", "lost"), ("1", "odd"), ("2", "lost")]

    assert fold_notes("GPU", remarks) == ["GPU 0, 2: lost", "GPU 1: odd"]
