"""Who owns which tokens, by exact lists and as a law over any length and group."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cptune.attention import Partition, Sharding

partitions = st.builds(
    Partition,
    seq_len=st.integers(1, 70),
    cp_size=st.integers(1, 9),
    sharding=st.sampled_from(Sharding),
)


def cut(seq_len: int, cp_size: int, sharding: str) -> list[list[int]]:
    partition = Partition(seq_len=seq_len, cp_size=cp_size, sharding=Sharding(sharding))
    return [partition.positions(rank) for rank in range(cp_size)]


def test_zigzag_8_over_2() -> None:
    assert cut(8, 2, "zigzag") == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_contiguous_8_over_2() -> None:
    assert cut(8, 2, "contiguous") == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_zigzag_7_over_3_gives_chunk_r_then_its_mirror() -> None:
    assert cut(7, 3, "zigzag") == [[0, 5, 6], [1, 4], [2, 3]]


def test_contiguous_7_over_3_needs_no_divisor() -> None:
    assert cut(7, 3, "contiguous") == [[0, 1], [2, 3], [4, 5, 6]]


def test_a_sequence_shorter_than_the_group_leaves_empty_shards() -> None:
    assert cut(2, 4, "contiguous") == [[], [0], [], [1]]
    assert cut(2, 4, "zigzag") == [[1], [], [], [0]]


def test_touching_chunks_are_one_interval() -> None:
    partition = Partition(seq_len=8, cp_size=2, sharding=Sharding.ZIGZAG)
    assert [partition.intervals(rank) for rank in (0, 1)] == [((0, 2), (6, 8)), ((2, 6),)]


def test_one_rank_owns_one_interval() -> None:
    for sharding in Sharding:
        assert Partition(seq_len=5, cp_size=1, sharding=sharding).intervals(0) == ((0, 5),)


def test_local_len_is_the_largest_shard_and_never_zero() -> None:
    assert Partition(seq_len=7, cp_size=3, sharding=Sharding.ZIGZAG).local_len == 3
    assert Partition(seq_len=1, cp_size=4, sharding=Sharding.ZIGZAG).local_len == 1


@settings(deadline=None)  # another job may hold the core
@given(partitions)
def test_every_token_has_one_owner_in_increasing_order(partition: Partition) -> None:
    owned = [partition.positions(rank) for rank in range(partition.cp_size)]
    assert sorted(position for one in owned for position in one) == list(range(partition.seq_len))
    assert all(one == sorted(one) for one in owned)
    assert [len(one) for one in owned] == [
        partition.real_len(rank) for rank in range(partition.cp_size)
    ]


@settings(deadline=None)  # another job may hold the core
@given(partitions)
def test_shards_differ_by_at_most_a_row_a_chunk(partition: Partition) -> None:
    lengths = [partition.real_len(rank) for rank in range(partition.cp_size)]
    chunk = -(-partition.seq_len // (8 * partition.cp_size))
    most = {Sharding.CONTIGUOUS: 1, Sharding.ZIGZAG: 2, Sharding.BALANCED: max(8, chunk)}
    assert max(lengths) - min(lengths) <= most[partition.sharding]


@pytest.mark.parametrize(("name", "value"), [("seq_len", 0), ("cp_size", -1)])
def test_sizes_below_one_are_refused(name: str, value: int) -> None:
    sizes = {"seq_len": 4, "cp_size": 2} | {name: value}
    with pytest.raises(ValueError, match=f"{name} is {value}, wanted .* nearest is 1"):
        Partition(**sizes, sharding=Sharding.ZIGZAG)


def test_a_rank_outside_the_group_is_refused() -> None:
    partition = Partition(seq_len=4, cp_size=2, sharding=Sharding.ZIGZAG)
    with pytest.raises(ValueError, match=r"rank is 2, wanted 0\.\.1; nearest is 1"):
        partition.intervals(2)
