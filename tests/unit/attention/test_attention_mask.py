"""A query sees one run of keys: its document, up to itself, and no further left than the window."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cptune.attention import Mask, Pattern


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    mask = draw(st.sampled_from(Mask))
    window = None if mask is Mask.FULL else draw(st.none() | st.integers(0, 12))
    if mask is not Mask.DOCUMENT:
        return Pattern(mask=mask, seq_len=draw(st.integers(1, 40)), window=window)
    docs = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(sum)))
    return Pattern(mask=mask, seq_len=sum(docs), docs=docs, window=window)


def visible(pattern: Pattern) -> list[set[int]]:
    """Keys of each query, one by one."""
    tokens = range(pattern.seq_len)
    if pattern.mask is Mask.FULL:
        return [set(tokens) for _ in tokens]
    lengths = pattern.docs or (pattern.seq_len,)
    starts = [sum(lengths[:index]) for index, n in enumerate(lengths) for _ in range(n)]
    reach = pattern.seq_len if pattern.window is None else pattern.window
    return [set(range(max(start, p - reach), p + 1)) for p, start in enumerate(starts)]


@settings(deadline=None)  # another job may hold the core
@given(patterns(), st.data())
def test_pairs_count_the_keys_of_each_query(pattern: Pattern, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, pattern.seq_len))
    stop = data.draw(st.integers(start, pattern.seq_len))
    assert pattern.pairs((start, stop)) == sum(map(len, visible(pattern)[start:stop]))


def test_positions_restart_at_every_document_and_empty_ones_take_none() -> None:
    packed = Pattern(mask=Mask.DOCUMENT, seq_len=7, docs=(0, 3, 0, 0, 1, 3, 0))
    assert list(packed.positions((0, 7))) == [0, 1, 2, 0, 0, 1, 2]
    assert list(packed.positions((2, 5))) == [2, 0, 0]
    assert packed.documents() == ((0, 3), (3, 4), (4, 7))
    assert list(packed.cut((2, 6))) == [(0, (2, 3)), (1, (3, 4)), (2, (4, 6))]


def test_without_documents_positions_are_global() -> None:
    assert list(Pattern(mask=Mask.CAUSAL, seq_len=5).positions((2, 5))) == [2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": Mask.DOCUMENT}, "docs is empty"),
        ({"mask": Mask.CAUSAL, "docs": (4,)}, "docs are given with mask causal"),
        ({"mask": Mask.DOCUMENT, "docs": (4, 3)}, "docs add up to 7 tokens, wanted seq_len = 4"),
        ({"mask": Mask.DOCUMENT, "docs": (5, -1)}, "docs holds -1"),
        ({"mask": Mask.FULL, "window": 1}, "window is 1, wanted None with mask full"),
        ({"mask": Mask.CAUSAL, "window": -2}, "window is -2, wanted at least 0"),
    ],
)
def test_keywords_that_do_not_fit_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pattern(seq_len=4, **arguments)
